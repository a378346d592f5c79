"""How far a prediction may be off: intervals whose width follows what the step is made of.

In: features of a step, an `IntervalModel` fitted to held-out residuals. Out: offsets of log(measured /
predicted). Pure functions on arrays [step]: one step or a sweep. Knows no measurement.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from joulecast.model.batch import Batch, StepCosts, top_clock_hz
from joulecast.model.clock import sums
from joulecast.model.rows import KIND_NUMBER, Booleans
from joulecast.workload.table import Floats, OpKind

Values = Mapping[str, float]
Features = Mapping[str, Floats]

#: What a step is made of, each 0 to 1: shares of kernel time, shares of the step, and what is or is not.
STRUCTURE: Final[Mapping[str, str]] = {
    "host": "dispatch time over step time, at most 1",
    "communication": "share of the step in communication that shows",
    "streaming": "share of kernel time outside products, convolutions and attention",
    "convolution": "share of kernel time in dense convolutions",
    "grouped": "share of kernel time in grouped and depthwise convolutions",
    "attention": "share of kernel time in fused attention",
    "throttled": "1 - clock / highest clock",
    "forward": "1 where nothing is back-propagated",
    "several_gpus": "1 for a job of several GPUs",
}

#: What the calibration has not seen, each 0 or 1. These only widen.
NOVELTY: Final[Mapping[str, str]] = {
    "unseen_gpu": "1 where no run is on this GPU",
    "unseen_architecture": "1 where no run is on a GPU of this architecture",
    "unseen_precision": "1 where no run has this precision",
    "unseen_class": "1 where no run is of a model of this class",
    "unseen_range": "1 where a size, limit or clock lies outside those of all runs",
}

FEATURES: Final = (*STRUCTURE, *NOVELTY)

#: Intervals of these quantities are fitted.
QUANTITIES: Final = ("time", "power", "energy", "memory", "process")

#: A combined quantity's scale is the root of the sum of squares of these.
PARTS: Final[Mapping[str, tuple[str, str]]] = {"energy": ("time", "power")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How the residuals of one quantity spread.

    Attributes
    ----------
    intercept : float
        Log of the scale where all features are 0; nothing where the scale is of parts. [1]
    weights : mapping of str to float
        Log of the scale per unit of a feature; absent ones are 0. [1]
    low, high : float
        Conformal quantiles of log(measured / predicted) over the scale. [1]
    n_rows : int
        Held-out rows behind it; 0 marks a guess.
    """

    intercept: float
    weights: Mapping[str, float] = field(default_factory=dict)
    low: float
    high: float
    n_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalModel:
    """Intervals of every quantity.

    Attributes
    ----------
    spreads : mapping of str to Spread
        By quantity.

    Notes
    -----
    ``sigma = exp(intercept + sum(weight x feature))``; the 90 % interval of ``log(measured / predicted)`` is
    ``[low x sigma, high x sigma]``, and always holds 0. Of energy, ``sigma = sqrt(sigma_time**2 +
    sigma_power**2)``, so that it is wide wherever one of both is; its quantiles are its own.
    """

    spreads: Mapping[str, Spread]

    def scale(self, quantity: str, features: Features) -> Floats:
        """Return sigma of a quantity. [1] [step]."""
        if quantity in PARTS:
            first, second = (self.scale(part, features) for part in PARTS[quantity])
            both: Floats = np.hypot(first, second)
            return both
        return scale(self.spreads[quantity], features)

    def bounds(self, quantity: str, features: Features) -> tuple[Floats, Floats]:
        """Return the offsets of log(measured / predicted): (<= 0, >= 0). [1] [step].

        Parameters
        ----------
        quantity : str
            One of `QUANTITIES`.
        features : mapping of str to ndarray [step]
            All of `FEATURES`.
        """
        spread, sigma = self.spreads[quantity], self.scale(quantity, features)
        return np.minimum(spread.low, 0.0) * sigma, np.maximum(spread.high, 0.0) * sigma


def scale(spread: Spread, features: Features) -> Floats:
    """Return ``exp(intercept + sum(weight x feature))``. [1] [step]."""
    exponent = np.full(np.shape(features[FEATURES[0]]), spread.intercept)
    for name, weight in spread.weights.items():
        exponent = exponent + weight * features[name]
    sigma: Floats = np.exp(exponent)
    return sigma


def step_features(batch: Batch, costs: StepCosts, values: Values) -> dict[str, Floats]:
    """Return the features of structure of every step; shares of kernels at their highest clock. [1] [step].

    Parameters
    ----------
    batch : Batch
    costs : StepCosts
        Of the batch.
    values : mapping
        Parameters.
    """
    operating = costs.operating
    rows = batch.loads.rows
    kind, groups = rows.kind[operating.rows], rows.groups[operating.rows]  # [row of a run]
    kernels_s = operating.kernels.time_s(operating.top_clock_hz)
    n_runs = int(operating.run_of_point.max()) + 1
    total_s = np.maximum(sums(kernels_s, operating.run_of_row, n_runs), 1e-300)
    run = operating.run_of_point[operating.point_of]  # [step]

    def share(chosen: Booleans) -> Floats:
        return (sums(np.where(chosen, kernels_s, 0.0), operating.run_of_row, n_runs) / total_s)[run]

    convolution, grouped = kind == KIND_NUMBER[OpKind.CONVOLUTION], groups > 1
    gradients = sums(rows.backward[operating.rows].astype(np.float64), operating.run_of_row, n_runs)[run]
    return {
        "host": np.minimum(costs.dispatch_time_s / costs.step_time_s, 1.0),
        "communication": costs.exposed_time_s / costs.step_time_s,
        "streaming": share(~np.isin(kind, _ARITHMETIC)),
        "convolution": share(convolution & ~grouped),
        "grouped": share(convolution & grouped),
        "attention": share(kind == KIND_NUMBER[OpKind.ATTENTION]),
        "throttled": np.clip(1.0 - costs.sm_clock_hz / top_clock_hz(batch, values), 0.0, 1.0),
        "forward": (gradients == 0).astype(np.float64),
        "several_gpus": (batch.ring.n_gpus > 1).astype(np.float64),
    }


_ARITHMETIC: Final = tuple(
    KIND_NUMBER[kind] for kind in (OpKind.GEMM, OpKind.BATCHED_GEMM, OpKind.CONVOLUTION, OpKind.ATTENTION)
)


#: Half-widths of the intervals of log(measured / predicted) until a fit has measured them; that of energy is
#: relative to the scale of time and power together. [1] (guess)
GUESSED_HALF_WIDTHS: Final[Mapping[str, float]] = {
    "time": 0.25,
    "power": 0.2,
    "energy": 0.8,
    "memory": 0.08,
    "process": 0.2,
}

#: Log of the widening by anything unseen, until a fit has measured it: 1.26 times. [1] (guess)
_GUESSED_WIDENING: Final = 0.23


def guessed_spread(quantity: str) -> Spread:
    """Return the spread of a quantity until a fit has measured it."""
    half_width = GUESSED_HALF_WIDTHS[quantity]
    if quantity in PARTS:
        return Spread(intercept=0.0, low=-half_width, high=half_width, n_rows=0)
    return Spread(
        intercept=float(np.log(half_width)),
        weights=dict.fromkeys(NOVELTY, _GUESSED_WIDENING),
        low=-1.0,
        high=1.0,
        n_rows=0,
    )


def guessed_intervals() -> IntervalModel:
    """Return the intervals until a fit has measured them: constant, and wider on what is unseen."""
    return IntervalModel(spreads={quantity: guessed_spread(quantity) for quantity in QUANTITIES})

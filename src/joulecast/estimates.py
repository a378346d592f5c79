"""Quantities of many steps at once: what a prediction says, with its interval; arrays [step].

In: `StepPredictions` and the `Circumstances` of the steps. Out: an `Estimate` for each of
`results.QUANTITIES`. A prediction is one step, a sweep a block of them. Knows no names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from joulecast.model.intervals import QUANTITIES
from joulecast.model.parameters import ParameterSet
from joulecast.model.step import StepPredictions
from joulecast.results import MemoryVerdict
from joulecast.workload.table import Floats

#: Verdicts in the order of `memory_verdicts`.
VERDICTS: Final = (MemoryVerdict.FITS, MemoryVerdict.MAY_NOT_FIT, MemoryVerdict.DOES_NOT_FIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Values and their 90 % intervals; NaN where there is none; arrays [step]."""

    value: Floats
    low: Floats
    high: Floats

    def times(self, factor: Floats) -> "Estimate":
        """Return the values scaled by exact factors >= 0."""
        return Estimate(value=self.value * factor, low=self.low * factor, high=self.high * factor)

    def into(self, numerator: Floats) -> "Estimate":
        """Return exact numerators divided by the values; intervals turn round."""
        with np.errstate(divide="ignore"):
            high = np.where(self.low > 0, numerator / self.low, np.where(np.isnan(numerator), np.nan, np.inf))
        return Estimate(value=numerator / self.value, low=numerator / self.high, high=high)

    def within(self, low: Floats | float, high: Floats | float) -> "Estimate":
        """Return the values with their intervals cut at bounds that hold always."""
        return Estimate(
            value=self.value,
            low=np.minimum(np.maximum(self.low, low), self.value),
            high=np.maximum(np.minimum(self.high, high), self.value),
        )


#: Low and high end of an interval over the value, by quantity of `intervals.QUANTITIES`; arrays [step].
Ratios = Mapping[str, tuple[Floats, Floats]]


def interval_ratios(
    parameters: ParameterSet, features: Mapping[str, Floats], novelty: Mapping[str, Floats]
) -> Ratios:
    """Return the ends of the intervals over the value, by quantity. [1] [step].

    Parameters
    ----------
    parameters : ParameterSet
    features : mapping of str to ndarray [step]
        Of structure; see `StepPredictions`.
    novelty : mapping of str to ndarray [step]
        What the calibration has not seen; see `coverage.novelty`.
    """
    every = {**features, **novelty}
    offsets = {name: parameters.intervals.bounds(name, every) for name in QUANTITIES}
    return {name: (np.exp(low), np.exp(high)) for name, (low, high) in offsets.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What the quantities of steps follow from, beside the prediction; arrays [step].

    Attributes
    ----------
    n_gpus, n_samples : ndarray
        Of the job; samples of all its GPUs in one step. [1]
    seq_len : ndarray
        Tokens per sample; NaN where a sample is not a sequence. [1]
    idle_power_w, power_limit_w : ndarray
        [W]
    min_clock_hz, top_clock_hz : ndarray
        Lowest clock; the highest, or the locked one. [Hz]
    memory_bytes : ndarray
        Of the card. [bytes]
    ideal_time_s : ndarray
        Of all model FLOP at the peaks of the units they may use; NaN where nothing is multiplied. [s]
    coverage_frac : ndarray
        Share of the traffic in operators that have a formula. [1]
    """

    n_gpus: Floats
    n_samples: Floats
    seq_len: Floats
    idle_power_w: Floats
    power_limit_w: Floats
    min_clock_hz: Floats
    top_clock_hz: Floats
    memory_bytes: Floats
    ideal_time_s: Floats
    coverage_frac: Floats


def estimates(steps: StepPredictions, around: Circumstances, ratios: Ratios) -> dict[str, Estimate]:
    """Return every quantity of `results.QUANTITIES`, with its interval. [step]."""

    def estimate(value: Floats, quantity: str) -> Estimate:
        low, high = ratios[quantity]
        return Estimate(value=value, low=value * low, high=value * high)

    time = estimate(steps.costs.step_time_s, "time")
    energy = estimate(steps.energy_per_step_j, "energy")
    power = estimate(steps.costs.mean_power_w, "power")
    # the clock is solved with the power, and no run of the calibration states it alone
    clock = estimate(steps.costs.sm_clock_hz, "power")
    allocated = estimate(steps.memory.allocated_bytes, "memory")
    coverage = around.coverage_frac
    return {
        "step_time_s": time,
        "samples_per_s": time.into(around.n_samples),
        "tokens_per_s": time.into(around.n_samples * around.seq_len),
        "mean_power_w": power.within(around.idle_power_w, around.power_limit_w),
        "energy_per_step_j": energy,
        "energy_per_sample_j": energy.times(1 / around.n_samples),
        "samples_per_j": energy.into(around.n_samples),
        "mfu": time.into(around.ideal_time_s).within(0.0, 1.0),
        "peak_memory_bytes": allocated,
        "allocated_bytes": allocated,
        "reserved_bytes": estimate(steps.memory.reserved_bytes, "process"),
        "process_bytes": estimate(steps.memory.process_bytes, "process"),
        "sm_clock_hz": clock.within(around.min_clock_hz, around.top_clock_hz),
        "coverage": Estimate(value=coverage, low=coverage, high=coverage),
    }


def memory_verdicts(process: Estimate, memory_bytes: Floats) -> npt.NDArray[np.int64]:
    """Return whether each process fits its card: an index into `VERDICTS`. [step]."""
    verdicts: npt.NDArray[np.int64] = np.where(
        process.high <= memory_bytes, 0, np.where(process.value <= memory_bytes, 1, 2)
    )
    return verdicts

"""Measured beside predicted, as columns: what every statistic of accuracy is computed from.

In: measured numbers and their predictions, held-out predictions. Out: `Comparisons`, one row per number, and
`ErrorSummary`. Knows neither runs nor operators.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Self

import numpy as np

from joulecast.calibrate.held_out import HeldOutPrediction
from joulecast.model.rows import Booleans, Integers
from joulecast.workload.table import Floats, Strings

#: Quantities in the order of the reports.
QUANTITIES: Final = (
    "latency_s",
    "step_time_s",
    "mean_power_w",
    "energy_per_step_j",
    "peak_memory_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparisons:
    """Measured numbers and their predictions; arrays [row].

    Attributes
    ----------
    key, source, gpu : ndarray of str
        ``run_id`` or key of the operator; where the row comes from; the card.
    subject : ndarray of str
        The model of a run, the kind of an operator.
    quantity : ndarray of str
        A measured column, in SI units.
    group : ndarray of str
        Rows that differ in power limit alone share it; empty where that is not of interest.
    n_gpus, power_limit_w : ndarray
        NaN where not stated. [1], [W]
    suspect : ndarray of bool
        Whether the source or the reader doubts the row.
    measured, predicted, low, high, null : ndarray
        The number, its prediction with the 90 % interval, and that of the null model (NaN without one).
    """

    key: Strings
    source: Strings
    gpu: Strings
    subject: Strings
    quantity: Strings
    group: Strings
    n_gpus: Floats
    power_limit_w: Floats
    suspect: Booleans
    measured: Floats
    predicted: Floats
    low: Floats
    high: Floats
    null: Floats

    def __len__(self) -> int:
        return len(self.measured)

    def rows(self, chosen: Booleans | Integers) -> Self:
        """Return the chosen rows."""
        return type(self)(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})

    @property
    def error(self) -> Floats:
        """Relative error, ``predicted / measured - 1``. [1] [row]."""
        return self.predicted / self.measured - 1.0

    @property
    def inside(self) -> Booleans:
        """Whether the measured number lies in the interval. [row]."""
        return (self.low <= self.measured) & (self.measured <= self.high)

    def by_null(self) -> Self:
        """Return the rows that the null model predicts, with its prediction in place of the model's."""
        known = self.rows(np.isfinite(self.null))
        return replace(known, predicted=known.null)


def concatenate(parts: Sequence[Comparisons]) -> Comparisons:
    """Return the rows of all parts, in order."""
    return Comparisons(
        **{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Comparisons)}
    )


_TEXTS: Final = ("key", "source", "gpu", "subject", "quantity", "group")


def comparisons_of(records: Sequence[Mapping[str, object]]) -> Comparisons:
    """Return columns from rows with every field of `Comparisons`."""

    def dtype(name: str) -> type:
        if name in _TEXTS:
            return np.str_
        return np.bool_ if name == "suspect" else np.float64

    return Comparisons(
        **{
            f.name: np.array([record[f.name] for record in records], dtype=dtype(f.name))
            for f in fields(Comparisons)
        }
    )


def held_out_comparisons(seen: Comparisons, held_out: Sequence[HeldOutPrediction], kind: str) -> Comparisons:
    """Return the compared rows that were left out of a fit, with what that fit predicted.

    Parameters
    ----------
    seen : Comparisons
        In sample; rows without a held-out prediction are dropped.
    held_out : sequence of HeldOutPrediction
    kind : str
        ``gpu`` or ``family``: what was left out.
    """
    found = {(row.key, row.quantity): row for row in held_out if row.kind == kind}
    pairs = list(zip(seen.key.tolist(), seen.quantity.tolist(), strict=True))
    chosen = np.array([pair in found for pair in pairs], dtype=np.bool_)
    left = [found[pair] for pair in pairs if pair in found]
    return replace(
        seen.rows(chosen),
        predicted=np.array([row.predicted for row in left], dtype=np.float64),
        low=np.array([row.low for row in left], dtype=np.float64),
        high=np.array([row.high for row in left], dtype=np.float64),
    )


# --- errors ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Relative errors of one quantity over the rows of one source, card and kind of operator.

    Attributes
    ----------
    source, gpu : str
        ``*`` for all.
    quantity : str
        A measured column.
    n : int
        Rows.
    mean, median, p90, max : float
        Of ``|predicted / measured - 1|``. [1]
    bias : float
        Median of ``predicted / measured - 1``. [1]
    interval_coverage : float
        Share of the measured values inside the stated interval. [1]
    null_mean, null_median : float or None
        The same of the null model, over the rows that it predicts; None where it predicts none. [1]
    kind : str
        Of operator; ``*`` for all, and for runs.
    """

    source: str
    gpu: str
    quantity: str
    n: int
    mean: float
    median: float
    p90: float
    max: float
    bias: float
    interval_coverage: float
    null_mean: float | None
    null_median: float | None
    kind: str = "*"


def error_summaries(compared: Comparisons, *, by_kind: bool = False) -> tuple[ErrorSummary, ...]:
    """Return the errors of every quantity by source and card, each also over all (``*``).

    Parameters
    ----------
    compared : Comparisons
    by_kind : bool
        Whether to tell subjects apart, too: kinds of operators are few, models are not.
    """
    error, inside = compared.error, compared.inside
    null_error = compared.null / compared.measured - 1.0
    found: list[ErrorSummary] = []
    for quantity in QUANTITIES:
        for source, of_source in _each(compared.source, compared.quantity == quantity):
            for gpu, of_gpu in _each(compared.gpu, of_source):
                for kind, rows in _each(compared.subject, of_gpu) if by_kind else [("*", of_gpu)]:
                    size = np.abs(null_error[rows])
                    found.append(_summary((source, gpu, quantity, kind), error[rows], inside[rows], size))
    order = {quantity: i for i, quantity in enumerate(QUANTITIES)}
    return tuple(sorted(found, key=lambda e: (e.source, e.gpu, e.kind, order[e.quantity])))


def _each(labels: Strings, chosen: Booleans) -> Iterator[tuple[str, Booleans]]:
    """Return the chosen rows under ``*``, then those of each label; nothing where there are none."""
    if not np.any(chosen):
        return
    yield "*", chosen
    for label in np.unique(labels[chosen]).tolist():
        yield label, chosen & (labels == label)


def _summary(
    labels: tuple[str, str, str, str], error: Floats, inside: Booleans, null_size: Floats
) -> ErrorSummary:
    source, gpu, quantity, kind = labels
    size, null = np.abs(error), null_size[np.isfinite(null_size)]
    return ErrorSummary(
        source=source,
        gpu=gpu,
        quantity=quantity,
        n=len(error),
        mean=float(np.mean(size)),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        max=float(np.max(size)),
        bias=float(np.median(error)),
        interval_coverage=float(np.mean(inside)),
        null_mean=float(np.mean(null)) if len(null) else None,
        null_median=float(np.median(null)) if len(null) else None,
        kind=kind,
    )


def overall(summaries: Sequence[ErrorSummary]) -> tuple[ErrorSummary, ...]:
    """Return the summaries over all sources, cards and kinds."""
    return tuple(s for s in summaries if s.source == s.gpu == s.kind == "*")


# --- units ----------------------------------------------------------------------------------------

#: Factors between SI prefixes, and how near a median must be to one to look like it. [1]
_PREFIX_FACTORS: Final = (1e-6, 1e-3, 1e3, 1e6)
_NEAR: Final = 5.0


def unit_warnings(compared: Comparisons) -> tuple[str, ...]:
    """Return a line for every quantity of a source that is off by a factor between SI prefixes."""
    lines = []
    for source in np.unique(compared.source).tolist():
        for quantity in QUANTITIES:
            mine = compared.rows((compared.source == source) & (compared.quantity == quantity))
            if not len(mine):
                continue
            ratio = float(np.median(mine.measured / mine.predicted))
            near = [f for f in _PREFIX_FACTORS if 1 / _NEAR < ratio / f < _NEAR]
            if near:
                lines.append(
                    f"{quantity} of {source} is about {near[0]:g} times what is predicted: check that the "
                    f"column is in {_UNITS[quantity]}"
                )
    return tuple(lines)


_UNITS: Final = {
    "latency_s": "seconds",
    "step_time_s": "seconds",
    "mean_power_w": "watts",
    "energy_per_step_j": "joules",
    "peak_memory_bytes": "bytes",
}

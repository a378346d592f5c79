"""What the predictions must reach, and what they reach: one line per quantity of a source.

In: comparisons of runs and of operators, in sample and held out. Out: `TargetLine`.

``python -m joulecast.calibrate.targets --data DIR [--parameters SET.toml] [--held-out FILE]`` prints them.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite, nan
from pathlib import Path
from typing import Final

import numpy as np

from joulecast.calibrate.comparisons import Comparisons, concatenate, held_out_comparisons
from joulecast.calibrate.held_out import HeldOutPrediction, load_held_out
from joulecast.calibrate.operator_validation import OperatorValidation, validate_operators
from joulecast.calibrate.published import PUBLISHED
from joulecast.calibrate.validation import Validation, validate
from joulecast.model.parameters import load_parameters
from joulecast.model.rows import Booleans
from joulecast.units import PERCENT
from joulecast.workload.table import OpKind

#: Least and greatest value that counts as reached.
Range = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One quantity of one source, and what it must reach.

    Attributes
    ----------
    name : str
        Source and quantity.
    statistic : str
        In words.
    held_out_by : str
        ``gpu`` or ``family``; empty for both.
    chosen : callable
        The rows that count.
    value : callable
        The statistic of those rows; NaN of none.
    in_sample, held_out : tuple of float, or None
        The range to reach. [1]
    has_null : bool
        Whether the null model states such a number.
    """

    name: str
    statistic: str
    held_out_by: str
    chosen: Callable[[Comparisons], Comparisons]
    value: Callable[[Comparisons], float]
    in_sample: Range | None
    held_out: Range | None
    has_null: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLine:
    """A target and what was reached.

    Attributes
    ----------
    name, statistic : str
    n : int
        Rows in sample; where held out differs, ``n_held_out``.
    n_held_out : int
    value, held_out, null : float
        In sample; held out; of the null model over the same rows as in sample. NaN where there is none. [1]
    with_suspect : float
        In sample, rows that the source doubts included. [1]
    target_in_sample, target_held_out : tuple of float, or None
        Range to reach. [1]
    published : str
        What others state; empty for nothing.
    """

    name: str
    statistic: str
    n: int
    n_held_out: int
    value: float
    held_out: float
    null: float
    with_suspect: float
    target_in_sample: Range | None
    target_held_out: Range | None
    published: str

    @property
    def reached_in_sample(self) -> bool | None:
        """Whether the number in sample is in its range; None without a target or a number."""
        return _reached(self.value, self.target_in_sample)

    @property
    def reached_held_out(self) -> bool | None:
        """Whether the number held out is in its range; None without a target or a number."""
        return _reached(self.held_out, self.target_held_out)


def _reached(value: float, wanted: Range | None) -> bool | None:
    if wanted is None or not isfinite(value):
        return None
    return wanted[0] <= value <= wanted[1]


# --- statistics -----------------------------------------------------------------------------------


def mean_error(compared: Comparisons) -> float:
    """Return the mean of ``|predicted / measured - 1|``. [1]."""
    return float(np.mean(np.abs(compared.error))) if len(compared) else nan


def quantile_error(compared: Comparisons, level: float) -> float:
    """Return a quantile of ``|predicted / measured - 1|``. [1]."""
    return float(np.quantile(np.abs(compared.error), level)) if len(compared) else nan


def slow_downs(compared: Comparisons) -> Comparisons:
    """Return times over the time at the highest limit of the same work, measured and predicted.

    The rows at the highest limit, 1 by definition, and groups of one limit are left out.
    """
    order = np.lexsort((-compared.power_limit_w, compared.group))
    ordered = compared.rows(order)
    first = np.ones(len(ordered), dtype=np.bool_)
    first[1:] = ordered.group[1:] != ordered.group[:-1]
    reference = np.maximum.accumulate(np.where(first, np.arange(len(ordered)), 0))  # [row]
    columns = ("measured", "predicted", "low", "high", "null")
    ratios = {name: getattr(ordered, name) / getattr(ordered, name)[reference] for name in columns}
    return replace(ordered, **ratios).rows(~first)


def coverage(compared: Comparisons) -> float:
    """Return the share of measured numbers inside the interval. [1]."""
    return float(np.mean(compared.inside)) if len(compared) else nan


#: Fewer rows than this say nothing of a share of 75 %.
_FEWEST_ROWS: Final = 8


def least_coverage(compared: Comparisons) -> float:
    """Return the smallest `coverage` of one quantity of one source with at least 8 rows. [1]."""
    shares = [
        coverage(compared.rows(chosen))
        for source in np.unique(compared.source).tolist()
        for quantity in np.unique(compared.quantity).tolist()
        if int(np.sum(chosen := (compared.source == source) & (compared.quantity == quantity)))
        >= _FEWEST_ROWS
    ]
    return min(shares, default=nan)


def median_width(compared: Comparisons) -> float:
    """Return the median of high / low. [1]."""
    return float(np.median(compared.high / compared.low)) if len(compared) else nan


# --- which rows -----------------------------------------------------------------------------------


def _of(compared: Comparisons, source: str, quantity: str) -> Comparisons:
    starts = np.char.startswith(compared.source, source)
    return compared.rows(starts & (compared.quantity == quantity))


def _one_gpu(compared: Comparisons) -> Comparisons:
    times = _of(compared, "lambdal/", "step_time_s")
    return times.rows(times.n_gpus == 1)


def _several_gpus(compared: Comparisons) -> Comparisons:
    """Return the rows of 2 to 8 GPUs: what one node holds."""
    times = _of(compared, "lambdal/", "step_time_s")
    return times.rows((times.n_gpus >= 2) & (times.n_gpus <= 8))  # noqa: PLR2004


def _lowest_limit(compared: Comparisons) -> Booleans:
    """Return whether a row is at the lowest limit that its source set on the card."""
    lowest = np.zeros(len(compared), dtype=np.bool_)
    for gpu in np.unique(compared.gpu):
        mine = compared.gpu == gpu
        lowest |= mine & (compared.power_limit_w == np.min(compared.power_limit_w[mine]))
    return lowest


def _zeus_slow_downs(compared: Comparisons, *, lowest: bool) -> Comparisons:
    ratios = slow_downs(_of(compared, "ml-energy/zeus", "step_time_s"))
    return ratios.rows(_lowest_limit(ratios) == lowest)


def _kinds(compared: Comparisons, *kinds: OpKind) -> Comparisons:
    wanted = np.isin(compared.subject, [str(kind) for kind in kinds])
    return compared.rows(wanted & (compared.quantity == "latency_s"))


def _of_runs(compared: Comparisons) -> Comparisons:
    """Return what was measured of runs, not of operators: their subject is a kind."""
    return compared.rows(~np.isin(compared.subject, [str(kind) for kind in OpKind]))


# --- the targets ----------------------------------------------------------------------------------


def _percent_range(most: float | None) -> Range | None:
    return None if most is None else (0.0, most * PERCENT)


def _mean(
    name: str, source: str, quantity: str, held_out: float, in_sample: float, by: str = "gpu"
) -> Target:
    return Target(
        name=name,
        statistic="mean",
        held_out_by=by,
        chosen=partial(_of, source=source, quantity=quantity),
        value=mean_error,
        in_sample=_percent_range(in_sample),
        held_out=_percent_range(held_out),
    )


def _at(
    level: float,
    name: str,
    chosen: Callable[[Comparisons], Comparisons],
    held_out: float,
    in_sample: float,
    by: str = "gpu",
) -> Target:
    return Target(
        name=name,
        statistic="median" if level == 0.5 else f"p{level * 100:.0f}",  # noqa: PLR2004
        held_out_by=by,
        chosen=chosen,
        value=partial(quantile_error, level=level),
        in_sample=_percent_range(in_sample),
        held_out=_percent_range(held_out),
    )


def _slow_down(name: str, lowest: bool, held_out: float, in_sample: float | None) -> Target:
    return Target(
        name=name,
        statistic="mean",
        held_out_by="gpu",
        chosen=partial(_zeus_slow_downs, lowest=lowest),
        value=mean_error,
        in_sample=_percent_range(in_sample),
        held_out=_percent_range(held_out),
    )


def _operators(name: str, held_out: float, *kinds: OpKind) -> Target:
    return Target(
        name=f"operators {name}",
        statistic="mean",
        held_out_by="gpu",
        chosen=lambda compared: _kinds(compared, *kinds),
        value=mean_error,
        in_sample=None,
        held_out=_percent_range(held_out),
    )


def _intervals(statistic: str, value: Callable[[Comparisons], float], wanted: Range) -> Target:
    return Target(
        name="intervals of all runs",
        statistic=statistic,
        held_out_by="",
        chosen=_of_runs,
        value=value,
        in_sample=None,
        held_out=wanted,
        has_null=False,
    )


_TIMM: Final = partial(_of, source="huggingface/pytorch-image-models", quantity="step_time_s")
_MILA_TIME: Final = partial(_of, source="mila-iqia/milabench", quantity="step_time_s")
_MILA_MEMORY: Final = partial(_of, source="mila-iqia/milabench", quantity="peak_memory_bytes")

#: Held-out and in-sample targets in percent, in the order of the page.
TARGETS: Final = (
    _mean("willgpaik time", "willgpaik/", "step_time_s", 6, 3, "family"),
    _mean("willgpaik power", "willgpaik/", "mean_power_w", 6, 4, "family"),
    _mean("willgpaik energy", "willgpaik/", "energy_per_step_j", 8, 5, "family"),
    _mean("willgpaik memory", "willgpaik/", "peak_memory_bytes", 2, 2, "family"),
    _mean("NeuSight time", "NeuSight", "step_time_s", 6, 4),
    _mean("EnergAIzer power", "EnergAIzer", "mean_power_w", 7, 5, "family"),
    _mean("EnergAIzer energy", "EnergAIzer", "energy_per_step_j", 9, 6, "family"),
    _mean("Zeus power", "ml-energy/zeus", "mean_power_w", 8, 5),
    _slow_down("Zeus slow-down by the limit", False, 3, 2),
    _slow_down("Zeus slow-down at the lowest limit", True, 10, None),
    _at(0.5, "timm time", _TIMM, 9, 7, "family"),
    _at(0.9, "timm time", _TIMM, 25, 20, "family"),
    _at(0.5, "lambda time, 1 GPU", _one_gpu, 8, 6),
    _at(0.5, "lambda time, 2-8 GPUs", _several_gpus, 10, 8),
    _at(0.5, "milabench time", _MILA_TIME, 6, 4),
    _at(0.5, "milabench memory", _MILA_MEMORY, 5, 4, "family"),
    _operators("GEMM", 15, OpKind.GEMM, OpKind.BATCHED_GEMM),
    _operators("elementwise", 7, OpKind.ELEMENTWISE),
    _operators("softmax and norm", 12, OpKind.SOFTMAX, OpKind.LAYER_NORM),
    _operators("convolution", 20, OpKind.CONVOLUTION),
    _operators("attention", 15, OpKind.ATTENTION),
    _intervals("share inside", coverage, (0.85, 0.95)),
    _intervals("least share of a source and quantity", least_coverage, (0.75, 1.0)),
    _intervals("median high / low", median_width, (1.0, 1.5)),
)


def target_lines(
    validation: Validation,
    operators: OperatorValidation | None = None,
    held_out: Sequence[HeldOutPrediction] = (),
) -> list[TargetLine]:
    """Return every target with what was reached.

    Parameters
    ----------
    validation : Validation
        In sample.
    operators : OperatorValidation, optional
        In sample; without it their lines hold NaN.
    held_out : sequence of HeldOutPrediction
        Without them their numbers are NaN.

    Notes
    -----
    Suspect rows are left out, but for ``with_suspect``.
    """
    parts = [validation.compared, *([operators.compared] if operators is not None else [])]
    everything = concatenate(parts)
    kept = everything.rows(~everything.suspect)
    by_kind = {kind: held_out_comparisons(kept, held_out, kind) for kind in ("gpu", "family")}
    by_kind[""] = concatenate(list(by_kind.values()))
    return [_line(target, kept, by_kind[target.held_out_by], everything) for target in TARGETS]


def _line(target: Target, kept: Comparisons, left_out: Comparisons, everything: Comparisons) -> TargetLine:
    seen, unseen = target.chosen(kept), target.chosen(left_out)
    published = PUBLISHED.get(target.name)
    return TargetLine(
        name=target.name,
        statistic=target.statistic,
        n=len(seen),
        n_held_out=len(unseen),
        value=target.value(seen),
        held_out=target.value(unseen),
        null=target.value(seen.by_null()) if target.has_null else nan,
        with_suspect=target.value(target.chosen(everything)),
        target_in_sample=target.in_sample,
        target_held_out=target.held_out,
        published=published.figure if published else "",
    )


# --- as text --------------------------------------------------------------------------------------


def range_text(wanted: Range | None) -> str:
    """Return ``<= 6 %``, ``85-95 %`` or ``<= 1.5``; a dash for none."""
    if wanted is None:
        return "-"
    low, high = wanted
    if high > 1:
        return f"<= {high:g}"
    if low == 0:
        return f"<= {high / PERCENT:g} %"
    return f">= {low / PERCENT:g} %" if high == 1 else f"{low / PERCENT:g}-{high / PERCENT:g} %"


def value_text(value: float, wanted: Range | None) -> str:
    """Return a number as its target is written; a dash for NaN."""
    if not isfinite(value):
        return "-"
    return f"{value:.2f}" if wanted is not None and wanted[1] > 1 else f"{value / PERCENT:.1f} %"


_MARKS: Final = {True: " ok", False: " missed", None: ""}


def line_cells(line: TargetLine) -> tuple[str, ...]:
    """Return the cells under `LINE_HEADS`."""
    unit = line.target_held_out
    return (
        line.name,
        line.statistic,
        str(line.n),
        value_text(line.held_out, unit) + _MARKS[line.reached_held_out],
        range_text(line.target_held_out),
        value_text(line.value, unit) + _MARKS[line.reached_in_sample],
        range_text(line.target_in_sample),
        value_text(line.with_suspect, unit),
        value_text(line.null, unit),
        line.published or "-",
    )


LINE_HEADS: Final = (
    *("data", "statistic", "rows", "held out", "target", "in sample", "target"),
    *("with suspect", "null model", "published"),
)


def _table(lines: Iterable[TargetLine]) -> str:
    cells = [LINE_HEADS[:-1], *(line_cells(line)[:-1] for line in lines)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    texts = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(texts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what a set reaches of the targets, on the public measurements of a folder."""
    parser = argparse.ArgumentParser(prog="python -m joulecast.calibrate.targets", description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with runs.csv and ops.parquet")
    parser.add_argument("--parameters", help="a set, instead of the shipped one")
    parser.add_argument("--held-out", type=Path, help="predictions of rows left out of a fit")
    options = parser.parse_args(arguments)
    fitted = load_parameters(options.parameters)
    held_out = load_held_out(options.held_out) if options.held_out else []
    operators = validate_operators(options.data / "ops.parquet", parameters=fitted)
    validation = validate(options.data / "runs.csv", parameters=fitted)
    sys.stdout.write(_table(target_lines(validation, operators, held_out)))


if __name__ == "__main__":
    main()

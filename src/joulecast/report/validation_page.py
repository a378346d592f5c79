"""The page of accuracy, docs/validation.md, and the README's table, as Markdown.

In: validations in sample, held-out predictions, the set. Out: text. Every figure of it is computed here or
below; the only sentences are what the columns mean.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from joulecast.calibrate.comparisons import (
    Comparisons,
    ErrorSummary,
    error_summaries,
    held_out_comparisons,
)
from joulecast.calibrate.held_out import HeldOutPrediction
from joulecast.calibrate.null_model import LIMIT_SHARE, OPERATOR_ROOFLINE_SHARE, STEP_PEAK_SHARE
from joulecast.calibrate.operator_validation import OperatorValidation
from joulecast.calibrate.operators import set_aside
from joulecast.calibrate.published import PUBLISHED
from joulecast.calibrate.targets import (
    LINE_HEADS,
    TargetLine,
    coverage,
    line_cells,
    median_width,
    range_text,
    target_lines,
    value_text,
)
from joulecast.calibrate.validation import ValidatedRun, Validation
from joulecast.model.parameters import ParameterSet
from joulecast.report.figures import percent
from joulecast.report.validation_figures import CAPTIONS
from joulecast.report.validations import QUANTITY_NAMES
from joulecast.units import PERCENT

_N_WORST: Final = 15

_INTRODUCTION: Final = """\
Written by `make validation`; do not edit. Errors are relative, |predicted / measured - 1|, of the shipped
parameter set on public measurements: {predicted} of {rows} runs, {operators} of {operator_rows} single
operators and {powers} of {power_rows} operators with power could be predicted.

* **In sample**: the set was fitted to these sources.
* **Held out**: a set fitted without the row's GPU, or without its family of models, predicts it.
* **Null model**: what a data sheet alone says. Time is work / ({peak} x peak of the precision), a single
  operator takes max(work / peak, traffic / bandwidth) / {roofline}; power is {limit} x limit; limits and
  clocks slow nothing down; memory is weights, gradients and optimizer state. Each share is one constant for
  all sources, set to the median over the sources (kinds) of what was measured, so the null model has seen
  every row that it is compared on.
* A **bias** is the median of predicted / measured - 1; **inside** is the share of measured values in the 90 %
  interval.

What was tried, and what it gained: [the diary](calibration-diary.md)."""

_BY_SOURCE: Final = """\
The step times of the Zeus trace hold its input pipeline, which no prediction does: of its time, ratios
between power limits count (the slow-down above), and no interval is fitted to the time itself."""

_SUSPECT: Final = """\
Rows that their source gives a reason to doubt are predicted, and left out of every other table. The file
names them; none was added for its error. The second table has the errors of all sources with and without
them."""

_OPERATORS: Final = """\
Single operators, forward. Those from NeuSight were launched one by one from Python: their latency has the
dispatch time of the parameters as a floor, none observed in these rows. All records count; the fit leaves out
FP32 products of Pascal cards with matrices of gigabytes (page-table misses, which the model does not have),
and the last line is without them."""

_POWERS: Final = """\
Operators in a loop on an A100 (FlagPerf, Apache-2.0), with the power of the board. {skipped} rows cannot be
predicted: {reasons}. {suspect} stand apart: {doubts}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Everything that the page is written from.

    Attributes
    ----------
    runs : Validation
    operators, op_powers : OperatorValidation
        Single operators; operators with their power.
    held_out : sequence of HeldOutPrediction
        Empty where no fit has written any.
    parameters : ParameterSet
    """

    runs: Validation
    operators: OperatorValidation
    op_powers: OperatorValidation
    held_out: Sequence[HeldOutPrediction]
    parameters: ParameterSet

    @property
    def lines(self) -> list[TargetLine]:
        """The targets, and what was reached."""
        return target_lines(self.runs, self.operators, self.held_out)

    @property
    def kept(self) -> Comparisons:
        """Runs in sample, suspect ones left out."""
        return self.runs.compared.rows(~self.runs.compared.suspect)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_escaped(cell) for cell in line)} |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def validation_markdown(a: Accuracy) -> str:
    """Return docs/validation.md."""
    parts = [
        "# Validation",
        _introduction(a),
        "## What it must reach, and what it reaches",
        table(LINE_HEADS, [line_cells(line) for line in a.lines]),
        _published(),
        *_held_out_parts(a),
        "## In sample, by source",
        _BY_SOURCE,
        table(_HEADS, [_cells(e, "all") for e in a.runs.errors if e.gpu == "*"]),
        "## In sample, by source and GPU",
        table(_HEADS, [_cells(e, e.gpu) for e in a.runs.errors if "*" not in (e.gpu, e.source)]),
        "## Intervals",
        _interval_table(a),
        *_operator_parts(a),
        *_figure_parts(),
        *_suspect_parts(a.runs),
        "## Furthest off in time",
        _worst(a.runs.rows),
        "## Provenance of the set",
        "\n".join(f"* {name}: {text}" for name, text in a.parameters.provenance.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(a: Accuracy) -> str:
    return _INTRODUCTION.format(
        predicted=a.runs.n_predicted,
        rows=len(a.runs.rows),
        operators=len(a.operators.file.records),
        operator_rows=a.operators.file.n_rows,
        powers=len(a.op_powers.file.records),
        power_rows=a.op_powers.file.n_rows,
        peak=STEP_PEAK_SHARE,
        roofline=OPERATOR_ROOFLINE_SHARE,
        limit=LIMIT_SHARE,
    )


def _published() -> str:
    sources = dict.fromkeys(entry.source for entry in PUBLISHED.values())
    return "Published by others, not run again here:\n\n" + "\n".join(f"* {source}" for source in sources)


# --- errors ---------------------------------------------------------------------------------------

_HEADS: Final = (
    *("source", "GPU", "quantity", "rows", "mean", "median", "p90", "worst", "bias", "inside"),
    *("null mean", "null median"),
)


def _cells(e: ErrorSummary, gpu: str) -> tuple[str, ...]:
    return (
        "all sources" if e.source == "*" else e.source,
        gpu,
        QUANTITY_NAMES[e.quantity],
        str(e.n),
        *(percent(size) for size in (e.mean, e.median, e.p90, e.max)),
        f"{e.bias / PERCENT:+.1f} %",
        percent(e.interval_coverage),
        *("-" if size is None else percent(size) for size in (e.null_mean, e.null_median)),
    )


def _held_out_parts(a: Accuracy) -> list[str]:
    """Return the tables of rows left out of a fit, or one line where there are none."""
    if not a.held_out:
        return [
            "## Held out",
            "No fit has written held-out predictions for this set (`docs/data/held_out.csv`).",
        ]
    parts = []
    titles = {
        "gpu": "Held out: the GPU was left out of the fit",
        "family": "Held out: the family of models was",
    }
    for kind, title in titles.items():
        errors = error_summaries(held_out_comparisons(a.kept, a.held_out, kind))
        rows = [
            _cells(e, "all" if e.gpu == "*" else e.gpu) for e in errors if e.source != "*" or e.gpu == "*"
        ]
        if rows:
            parts += [f"## {title}", table(_HEADS, rows)]
    return parts


def _interval_table(a: Accuracy) -> str:
    """Return coverage and width by source and quantity, held out and in sample."""
    left_out = {kind: held_out_comparisons(a.kept, a.held_out, kind) for kind in ("gpu", "family")}
    named = {"in sample": a.kept, "GPU held out": left_out["gpu"], "family held out": left_out["family"]}
    rows = []
    for source in ("*", *np.unique(a.kept.source).tolist()):
        for quantity, short in QUANTITY_NAMES.items():
            cells = []
            for compared in named.values():
                mine = (compared.quantity == quantity) & ((source == "*") | (compared.source == source))
                some = compared.rows(mine)
                cells += [value_text(coverage(some), None), value_text(median_width(some), (1.0, 2.0))]
            if any(cell != "-" for cell in cells):
                rows.append(("all sources" if source == "*" else source, short, *cells))
    heads = [f"{name}: {what}" for name in named for what in ("inside", "high / low")]
    return table(("source", "quantity", *heads), rows)


# --- operators ------------------------------------------------------------------------------------

_KIND_HEADS: Final = (
    *("kind", "GPU", "quantity", "rows", "mean", "median", "p90", "worst", "bias", "inside"),
    *("null mean", "null median"),
)


def _operator_parts(a: Accuracy) -> list[str]:
    compared = a.operators.compared
    n_records = len(a.operators.file.records)
    latencies = compared.rows(np.arange(n_records))  # latencies come first, in the order of the records
    without = latencies.rows(~set_aside(a.operators.file.records) & (latencies.subject == "gemm"))
    (no_pascal,) = (e for e in error_summaries(without) if e.source == e.gpu == "*")
    rows = [_kind_cells(e) for e in a.operators.errors if e.source == "*" and e.kind != "*"]
    rows.append(("gemm, without Pascal's", *_kind_cells(no_pascal)[1:]))
    left_out = error_summaries(held_out_comparisons(compared, a.held_out, "gpu"), by_kind=True)
    unseen = [_kind_cells(e) for e in left_out if e.source == "*" and e.kind != "*"]
    file = a.op_powers.file
    return [
        "## Single operators, in sample",
        _OPERATORS,
        table(_KIND_HEADS, rows),
        *(["## Single operators, the GPU left out of the fit", table(_KIND_HEADS, unseen)] if unseen else []),
        "## Operators with power",
        _POWERS.format(
            skipped=len(file.skipped),
            reasons=_counted(file.skipped.values()),
            suspect=len(a.op_powers.suspect_rows),
            doubts=_counted(a.op_powers.suspect_rows.values()),
        ),
        table(
            _KIND_HEADS,
            [_kind_cells(e) for e in a.op_powers.errors if e.source == e.gpu == "*"]
            + [("with those apart", *_kind_cells(e)[1:]) for e in a.op_powers.errors_with_suspect],
        ),
    ]


def _kind_cells(e: ErrorSummary) -> tuple[str, ...]:
    kind = "all" if e.kind == "*" else e.kind
    return (kind, *_cells(e, "all" if e.gpu == "*" else e.gpu)[1:])


def _counted(reasons: Iterable[str]) -> str:
    return "; ".join(f"{reason} ({n})" for reason, n in Counter(reasons).most_common())


# --- figures, doubts, worst -----------------------------------------------------------------------


def _figure_parts() -> list[str]:
    images = [f"![{caption}](figures/{name}.png)\n\n{caption}" for name, caption in CAPTIONS.items()]
    return ["## Figures", *images]


def _suspect_parts(v: Validation) -> list[str]:
    """Return every doubted row with its reason and error, and the errors with and without them."""
    rows = [
        (*(row.run.text(c) for c in ("run_id", "model", "gpu", "n_gpus", "suspect")), _errors_text(row))
        for row in v.rows
        if row.run.is_suspect
    ]
    skipped = _counted(row.skipped_reason for row in v.rows if row.prediction is None)
    both = [
        *((*_cells(e, "all")[2:], "without") for e in v.errors if e.source == e.gpu == "*"),
        *((*_cells(e, "all")[2:], "with") for e in v.errors_with_suspect),
    ]
    return [
        "## Rows set aside",
        _SUSPECT,
        table(("run", "model", "GPU", "GPUs", "reason", "predicted / measured - 1"), rows),
        table(("suspect rows", *_HEADS[2:]), [(cells[-1], *cells[:-1]) for cells in both]),
        f"Without a prediction: {skipped or 'none'}.",
    ]


def _errors_text(row: ValidatedRun) -> str:
    texts = []
    for column, measured in row.run.measured.items():
        quantity = row.predicted(column)
        if quantity is not None:
            texts.append(f"{QUANTITY_NAMES[column]} {(quantity.value / measured - 1) / PERCENT:+.0f} %")
    return ", ".join(texts) or "not predicted"


def _worst(rows: Sequence[ValidatedRun]) -> str:
    """Return the runs whose time is furthest off, each model and GPU once, and where their time goes."""
    found: dict[tuple[str, str], tuple[float, tuple[str, ...]]] = {}
    for row in rows:
        quantity, measured = row.predicted("step_time_s"), row.run.measured.get("step_time_s")
        if row.prediction is None or quantity is None or measured is None or row.run.is_suspect:
            continue
        error = quantity.value / measured - 1
        key = (row.run.text("model"), row.run.gpu)
        if key in found and abs(error) <= abs(found[key][0]):
            continue
        columns = ("model", "gpu", "precision", "batch_per_gpu", "memory_format")
        groups = [f"{g.kind} {g.phase} {percent(g.time_share_frac)}" for g in row.prediction.op_groups[:2]]
        cells = (*(row.run.text(column) for column in columns), f"{error / PERCENT:+.0f} %")
        found[key] = (error, (*cells, row.prediction.bound_by, ", ".join(groups)))
    ranked = sorted(found.values(), key=lambda pair: -abs(pair[0]))[:_N_WORST]
    heads = ("model", "GPU", "precision", "batch", "format", "error", "bound by", "predicted time is in")
    return table(heads, [cells for _, cells in ranked]) + (
        "\n\nWhat is known of their causes is in [the diary](calibration-diary.md)."
    )


# --- README ---------------------------------------------------------------------------------------


def readme_table(a: Accuracy) -> str:
    """Return the README's table: the targets' lines, held out and in sample, beside the null model."""
    rows = [
        (
            line.name,
            line.statistic,
            value_text(line.held_out, line.target_held_out),
            value_text(line.value, line.target_held_out),
            range_text(line.target_held_out),
            value_text(line.null, line.target_held_out),
            line.published or "-",
        )
        for line in a.lines
    ]
    heads = (
        "data",
        "statistic",
        "held out",
        "in sample",
        "target held out",
        "null model",
        "published by others",
    )
    return table(heads, rows)

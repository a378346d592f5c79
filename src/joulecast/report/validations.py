"""How far predictions are from measurements, for people: a table per source, 100 columns wide at most."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from joulecast.calibrate.comparisons import ErrorSummary
from joulecast.calibrate.operator_validation import OperatorValidation
from joulecast.calibrate.validation import Validation
from joulecast.report.figures import percent
from joulecast.report.tables import Sheet
from joulecast.units import PERCENT

QUANTITY_NAMES: Final = {
    "latency_s": "latency",
    "step_time_s": "time",
    "mean_power_w": "power",
    "energy_per_step_j": "energy",
    "peak_memory_bytes": "memory",
}
_N_REASONS: Final = 12
_REASON_WIDTH: Final = 90

LEGEND: Final = """\
in %: mean, median, p90, max of |predicted / measured - 1|; bias: median of predicted/measured - 1;
inside: share of measured values in the 90 % interval; null: mean error of one constant per quantity"""


def validation_page(v: Validation) -> list[Sheet | str]:
    """Return counts, errors by source and card, and why rows were skipped."""
    page: list[Sheet | str] = [
        f"{len(v.rows)} rows, {v.n_predicted} predicted ({percent(v.n_predicted / len(v.rows))}); "
        f"{v.n_suspect} suspect, left out of the errors unless it says so",
        *(f"warning: {line}" for line in v.warnings),
    ]
    if v.errors:
        page += [LEGEND, *_errors(v.errors)]
    if v.n_suspect and v.errors_with_suspect:
        page.append(_sheet("all sources, suspect rows included", v.errors_with_suspect))
    return page + _reasons("skipped", (row.skipped_reason for row in v.rows if row.prediction is None))


def operator_validation_page(v: OperatorValidation) -> list[Sheet | str]:
    """Return counts, errors by source, card and kind of operator, and why rows were set aside or skipped."""
    n_rows, n_predicted = v.file.n_rows, len(v.file.records)
    page: list[Sheet | str] = [
        f"{n_rows} operators, {n_predicted} predicted ({percent(n_predicted / n_rows)}); "
        f"{len(v.suspect_rows)} suspect, left out of the errors unless it says so",
        *(f"warning: {line}" for line in v.warnings),
    ]
    if v.errors:
        page += [LEGEND, *_errors(v.errors)]
    if v.suspect_rows and v.errors_with_suspect:
        page.append(_sheet("all sources, suspect rows included", v.errors_with_suspect))
    return page + _reasons("suspect", v.suspect_rows.values()) + _reasons("skipped", v.file.skipped.values())


def _errors(errors: Sequence[ErrorSummary]) -> list[Sheet | str]:
    """Return a table per source, all sources together first; one source alone is shown once."""
    sources = list(dict.fromkeys(e.source for e in errors))
    if len(sources) == 2:  # noqa: PLR2004  (all, and the only one)
        sources = sources[1:]
    return [
        _sheet("all sources" if source == "*" else source, [e for e in errors if e.source == source])
        for source in sources
    ]


def _sheet(title: str, errors: Sequence[ErrorSummary]) -> Sheet:
    by_kind = any(e.kind != "*" for e in errors)
    heads = ("GPU", *(["kind"] if by_kind else []), "", ">n", ">mean", ">median", ">p90", ">max", ">bias")
    return Sheet(
        title=title,
        columns=(*heads, ">inside", ">null"),
        rows=tuple(
            (
                _all(e.gpu),
                *([_all(e.kind)] if by_kind else []),
                QUANTITY_NAMES[e.quantity],
                str(e.n),
                *(in_percent(size) for size in (e.mean, e.median, e.p90, e.max)),
                f"{e.bias / PERCENT:+.1f}",
                in_percent(e.interval_coverage),
                "-" if e.null_mean is None else in_percent(e.null_mean),
            )
            for e in _distinct(errors)
        ),
    )


def _all(name: str) -> str:
    return "all" if name == "*" else name


def in_percent(share: float) -> str:
    """Return a share in percent, without the sign of percent."""
    return f"{share / PERCENT:.1f}"


def _distinct(errors: Sequence[ErrorSummary]) -> list[ErrorSummary]:
    """Return the errors without those over all cards where there is only one card."""
    several = len({e.gpu for e in errors} - {"*"}) != 1
    return [e for e in errors if several or e.gpu != "*"]


def _reasons(title: str, given: Iterable[str]) -> list[Sheet | str]:
    reasons = Counter(given)
    if not reasons:
        return []
    rows = tuple((str(n), _shortened(reason)) for reason, n in reasons.most_common(_N_REASONS))
    lines: list[Sheet | str] = [Sheet(title=title, columns=(">rows", "reason"), rows=rows)]
    if len(reasons) > len(rows):
        lines.append(f"and {len(reasons) - len(rows)} more reasons: --format json names every row")
    return lines


def _shortened(reason: str) -> str:
    return reason if len(reason) <= _REASON_WIDTH else f"{reason[: _REASON_WIDTH - 3]}..."

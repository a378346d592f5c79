"""How far predictions are from measurements, for people."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from joulecast.calibrate.validation import ErrorSummary, Validation
from joulecast.report.figures import percent
from joulecast.report.tables import Sheet

_NAMES: Final = {
    "step_time_s": "time",
    "mean_power_w": "power",
    "energy_per_step_j": "energy",
    "peak_memory_bytes": "memory",
}
_N_REASONS: Final = 12


def validation_page(v: Validation) -> list[Sheet | str]:
    """Return counts, errors by source and card, and why rows were skipped."""
    page: list[Sheet | str] = [
        f"{len(v.rows)} rows, {v.n_predicted} predicted ({percent(v.n_predicted / len(v.rows))}); "
        f"{v.n_suspect} suspect, left out of the errors unless it says so"
    ]
    if v.errors:
        page.append(_errors("relative errors", v.errors))
    if v.n_suspect and v.errors_with_suspect:
        page.append(_errors("with the suspect rows", v.errors_with_suspect))
    return page + _skipped(v)


def _errors(title: str, errors: Sequence[ErrorSummary]) -> Sheet:
    return Sheet(
        title=title,
        columns=("source", "GPU", "", ">n", ">mean", ">median", ">p90", ">max", ">bias", ">in interval"),
        rows=tuple(
            (
                e.source,
                e.gpu,
                _NAMES[e.quantity],
                str(e.n),
                percent(e.mean),
                percent(e.median),
                percent(e.p90),
                percent(e.max),
                f"{'+' if e.bias > 0 else ''}{percent(e.bias)}",
                percent(e.interval_coverage),
            )
            for e in errors
        ),
    )


def _skipped(v: Validation) -> list[Sheet | str]:
    reasons = Counter(row.skipped_reason for row in v.rows if row.prediction is None)
    if not reasons:
        return []
    rows = tuple((str(n), reason) for reason, n in reasons.most_common(_N_REASONS))
    lines: list[Sheet | str] = [Sheet(title="skipped", columns=(">rows", "reason"), rows=rows)]
    if len(reasons) > len(rows):
        lines.append(f"and {len(reasons) - len(rows)} more reasons: --format json names every row")
    return lines

"""The page of a benchmark: what is known of each group of operators. Knows no torch."""

from typing import Final

from joulecast.measure.bench.run import Bench, KnownGroup
from joulecast.report.tables import Sheet

_ENDED: Final = {
    "budget": "the budget is spent: start it again with the same --out to go on",
    "known": "every group is known well enough, or has no case left",
    "interrupted": "interrupted: start it again with the same --out to go on",
}


def bench_page(found: Bench) -> list[Sheet | str]:
    """Return tables and lines for people."""
    page: list[Sheet | str] = [
        f"{found.device} ({found.gpu}), by {found.clock}: {found.n_new} cases in {found.spent_s:.0f} s of "
        f"{found.budget_s:.0f}; {found.out} holds {found.n_rows} rows",
        _ENDED[found.ended],
        "",
        Sheet(
            columns=("group", ">measured", ">left", ">over the set's", ">+-"),
            rows=tuple(_row(group) for group in found.groups),
        ),
        "over the set's: geometric mean of measured over predicted time; +-: standard error of its logarithm",
    ]
    page += [f"could not run: {group}: {reason}" for group, reason in found.failed.items()]
    if found.power:
        page.append(f"not measured: power: {found.power}")
    return page


def _row(group: KnownGroup) -> tuple[str, ...]:
    ratio, error = group.measured_over_expected, group.standard_error
    return (
        group.name,
        str(group.n_measured),
        str(group.n_left),
        "-" if ratio is None else f"{ratio:.3g}",
        "-" if error is None else f"{error:.2g}",
    )

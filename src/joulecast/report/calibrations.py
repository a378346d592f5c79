"""Calibrations and parameter sets, for people."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final

from joulecast.calibrate.as_published import PUBLISHED, AsPublished
from joulecast.calibrate.bench_fit import BenchFit
from joulecast.calibrate.explain import Explanation
from joulecast.calibrate.own import OwnCalibration
from joulecast.calibrate.posterior import UNTOUCHED
from joulecast.model.parameters import StageRecord
from joulecast.report.figures import percent
from joulecast.report.tables import Sheet

_N_REASONS: Final = 12


def own_page(c: OwnCalibration) -> list[Sheet | str]:
    """Return notices, what each stage gained, what changed, and what the runs leave alone."""
    page: list[Sheet | str] = [f"{c.n_used} of {c.n_runs} runs used"]
    page += [f"! {notice}" for notice in c.notices]
    page += [_stages("stages", c.parameters.stages), _changes(c), _left(c.left)]
    if c.skipped:
        rows = tuple(list(c.skipped.items())[:_N_REASONS])
        page.append(Sheet(title="runs left out", columns=("run", "reason"), rows=rows))
        if len(c.skipped) > len(rows):
            page.append(f"and {len(c.skipped) - len(rows)} more: --format json names every run")
    return page


def _stages(title: str, stages: Sequence[StageRecord]) -> Sheet:
    return Sheet(
        title=title,
        columns=(
            *("stage", ">parameters", ">values", ">in sample before", ">after"),
            *(">held out before", ">after", "", "because"),
        ),
        rows=tuple(
            (
                s.name,
                str(len(s.parameters)),
                str(s.n_rows),
                *(
                    _error(error)
                    for error in (s.error_before, s.error_after, s.held_out_before, s.held_out_after)
                ),
                "kept" if s.kept else "left out",
                s.reason,
            )
            for s in stages
        ),
    )


def _error(error: float) -> str:
    return percent(error) if isfinite(error) else "-"


def _changes(c: OwnCalibration) -> Sheet | str:
    if not c.changed:
        return "no parameter changed"
    stage_of = {name: s.name for s in c.parameters.stages if s.kept for name in s.parameters}
    return Sheet(
        title="parameters that changed",
        columns=("parameter", ">before", ">after", ">change", "stage"),
        rows=tuple(
            (name, f"{before:.4g}", f"{after:.4g}", _change(before, after), stage_of.get(name, ""))
            for name, (before, after) in c.changed.items()
        ),
    )


def _change(before: float, after: float) -> str:
    return f"{after / before - 1:+.1%}" if before else "-"


def _left(left: Mapping[str, str]) -> Sheet | str:
    """Return the parameters left alone: each with its reason, those that no value depends on in one line."""
    if not left:
        return "the runs determine every parameter that was tried"
    reasons = [(name, reason) for name, reason in left.items() if reason != UNTOUCHED]
    untouched = [name for name, reason in left.items() if reason == UNTOUCHED]
    if untouched:
        reasons.append((f"{len(untouched)} others", f"{UNTOUCHED}: {', '.join(untouched)}"))
    return Sheet(title="parameters left as they were", columns=("parameter", "because"), rows=tuple(reasons))


def published_page(p: AsPublished) -> list[Sheet | str]:
    """Return the errors in sample beside those that the paper states."""
    return [
        f"{p.n_runs} runs, fitted and judged in sample; none held out: use it to compare, not to predict",
        _stages("stages", p.parameters.stages),
        Sheet(
            title="mean relative error in sample",
            columns=("", ">here", ">the paper's, on its own runs"),
            rows=tuple(
                (name, f"{error:.2%}", f"{PUBLISHED[name]:.2%}" if name in PUBLISHED else "-")
                for name, error in p.errors.items()
            ),
        ),
    ]


def explanation_page(e: Explanation) -> list[Sheet | str]:
    """Return provenance, coverage, stages, intervals and every parameter."""
    page: list[Sheet | str] = [
        Sheet(title="provenance", columns=("", ""), rows=tuple(e.provenance.items())),
        Sheet(title="coverage", columns=("", ""), rows=tuple(_coverage(e))),
    ]
    if e.stages:
        page.append(_stages("stages", e.stages))
    if e.scalars:
        rows = tuple((name, f"{value:.3f}") for name, value in e.scalars.items())
        page.append(Sheet(title="scalars", columns=("of", ">factor"), rows=rows))
    page.append(_intervals(e))
    page.append(_parameters(e))
    page.append(
        "elasticity: relative change of step time, of mean power, per relative change of the parameter; mean "
        f"of, and largest in, {e.mix}"
    )
    hit = [line.name for line in e.parameters if line.at_bound]
    page.append(f"at a bound: {', '.join(hit)}" if hit else "no parameter is at a bound")
    return page


def _coverage(e: Explanation) -> list[tuple[str, str]]:
    rows = [
        (name, ", ".join(e.coverage[name]) or "none")
        for name in ("gpus", "architectures", "precisions", "classes")
    ]
    return rows + [(name, f"{low:.4g} to {high:.4g}") for name, (low, high) in e.coverage["ranges"].items()]


def _intervals(e: Explanation) -> Sheet:
    return Sheet(
        title="intervals: log(measured / predicted) within [low, high] x sigma",
        columns=("quantity", ">low", ">high", ">rows held out", "log sigma"),
        rows=tuple(
            (
                quantity,
                f"{s.low:.2f}",
                f"{s.high:.2f}",
                str(s.n_rows) if s.n_rows else "guess",
                " ".join((f"{s.intercept:.2f}", *(f"{w:+.2f} {name}" for name, w in s.weights.items() if w))),
            )
            for quantity, s in e.intervals.items()
        ),
    )


def _parameters(e: Explanation) -> Sheet:
    return Sheet(
        title="parameters",
        columns=("name", ">value", "unit", ">low", ">high", "", ">time", ">power", ">largest", "meaning"),
        rows=tuple(
            (
                p.name,
                f"{p.value:.4g}",
                p.unit,
                f"{p.low:.3g}",
                f"{p.high:.3g}",
                "at bound" if p.at_bound else "",
                f"{p.time_elasticity:+.3f}",
                f"{p.power_elasticity:+.3f}",
                f"{p.largest:.2f}",
                p.meaning,
            )
            for p in e.parameters
        ),
    )


def bench_fit_page(fit: BenchFit) -> list[Sheet | str]:
    """Return what a fit to one device's operators did, in sample."""
    rows = tuple(
        (s.name, str(s.n_rows), percent(s.error_before), percent(s.error_after), ", ".join(s.at_bound))
        for s in fit.stages
    )
    return [
        f"set for {fit.gpu}, from single operators alone; errors of the operators, in sample",
        Sheet(
            title="stages", columns=("stage", ">records", ">error before", ">after", "at a bound"), rows=rows
        ),
    ]

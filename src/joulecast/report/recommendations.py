"""Recommendations for people: the choice, why it wins, what the limits cost, how sure it is, the front."""

from collections.abc import Callable, Sequence
from typing import Final

from joulecast.explore.advice import configuration_text, limit_text
from joulecast.explore.recommend import Alternative, Comparison, Recommendation
from joulecast.explore.request import LIMIT_WORDS, Objective
from joulecast.report.figures import digits, gibibytes, interval, percent, prefix_of
from joulecast.report.tables import Sheet
from joulecast.report.whole_runs import mass
from joulecast.results import Quantity
from joulecast.units import J_PER_KWH, MEGA, MILLI, SECONDS_PER_HOUR

#: Rows of the front that are shown; the other formats have all.
_N_FRONT: Final = 12

_OBJECTIVE_WORDS: Final = {
    Objective.TIME: "time",
    Objective.ENERGY: "energy",
    Objective.COST: "money",
    Objective.CO2E: "CO2e",
    Objective.ENERGY_DELAY: "energy x time",
}
_AXIS_WORDS: Final = {
    "model": "model",
    "gpu": "card",
    "n_gpus": "number of GPUs",
    "precision": "precision",
    "batch_per_gpu": "batch",
    "accumulate": "micro-batches",
    "checkpointing": "checkpointing",
    "seq_len": "sequence",
    "image_size": "image",
    "optimizer": "optimizer",
    "attention": "attention",
    "memory_format": "memory format",
    "clip": "clipping",
    "n_sms": "SMs",
    "locked_sm_clock_hz": "clock",
    "power_limit_w": "power limit",
}


def recommendation_page(found: Recommendation) -> list[Sheet | str]:
    """Return a recommendation in full."""
    chosen = found.chosen
    page: list[Sheet | str] = [
        f"least {_OBJECTIVE_WORDS[found.request.objective]}: "
        f"{configuration_text(chosen.row, with_model=True)}",
        f"  of {found.n_candidates} candidates {found.n_predicted} can be, {found.n_fitting} fit the memory "
        f"by the upper end of its interval, {found.n_feasible} keep the limits ({_limits(found)})",
        "",
        Sheet(columns=("", ">", ">90 % interval", "from"), rows=tuple(_figures(found))),
        "",
    ]
    if found.reasons:
        page += [_comparisons("why it wins", found.reasons, found, _axis_text), ""]
    if found.limit_costs:
        page += [_comparisons("what the limits cost", found.limit_costs, found, _limit_text), ""]
    page += [*_certainty(found), "", _front(found), *_remarks(found)]
    return page


def _limits(found: Recommendation) -> str:
    limits = found.request.limits
    texts = [limit_text(name, getattr(limits, name)) for name in limits.given()]
    sure = f", at {percent(found.request.confidence_frac)} confidence" if texts else ""
    return ", ".join(texts) + sure if texts else "none"


def _figures(found: Recommendation) -> list[tuple[str, str, str, str]]:
    c, row = found.chosen, found.chosen.row
    money = f" {_currency(found)}".rstrip()
    time_factor, time_unit = _time_unit(c.time_s)
    energy_factor, energy_unit = _energy_unit(c.energy_j)
    of = "run" if found.request.plan else "sample"
    rows: list[tuple[str, Quantity | None, float, str]] = [
        (f"time of a {of}", c.time_s, time_factor, time_unit),
        (f"energy of a {of}", c.energy_j, energy_factor, energy_unit),
        ("money", c.cost, 1.0, money),
        ("CO2e", c.co2e_kg, *_mass_unit(c.co2e_kg)),
    ]
    origin = row["origin"]
    shown = [
        (label, f"{digits(q.value / factor)}{unit}", interval(q, factor), str(q.origin))
        for label, q, factor, unit in rows
        if q is not None
    ]
    power = f"{digits(row['low_mean_power_w'])} - {digits(row['high_mean_power_w'])}"
    shown.append(("power per GPU", f"{digits(row['mean_power_w'])} W", power, origin))
    memory = f"at most {gibibytes(row['high_process_bytes'])} of {gibibytes(row['capacity_bytes'])}"
    shown.append(("memory", gibibytes(row["process_bytes"]), memory, origin))
    return shown


def _time_unit(quantity: Quantity) -> tuple[float, str]:
    """Return hours for what lasts minutes, else a prefix of seconds."""
    if quantity.value >= SECONDS_PER_HOUR / 100:
        return SECONDS_PER_HOUR, " h"
    factor, prefix = prefix_of(quantity.value)
    return factor, f" {prefix}s"


def _energy_unit(quantity: Quantity) -> tuple[float, str]:
    if quantity.value >= J_PER_KWH / 1000:
        return J_PER_KWH, " kWh"
    factor, prefix = prefix_of(quantity.value)
    return factor, f" {prefix}J"


def _mass_unit(quantity: Quantity | None) -> tuple[float, str]:
    return (1.0, " kg") if quantity is None or quantity.value >= 1 else (MILLI, " g")


def _currency(found: Recommendation) -> str:
    prices = found.request.site.prices
    return prices.currency if prices else ""


def _comparisons(
    title: str,
    comparisons: Sequence[Comparison],
    found: Recommendation,
    text: Callable[[Comparison, Alternative], str],
) -> Sheet:
    word = _OBJECTIVE_WORDS[found.request.objective]
    return Sheet(
        title=title,
        columns=("", f">{word}", ">time", "the best there would be"),
        rows=tuple(
            (
                text(comparison, found.chosen),
                _change(comparison.objective_ratio),
                _change(comparison.other.time_s.value / found.chosen.time_s.value),
                "the same"
                if comparison.other.row == found.chosen.row
                else configuration_text(comparison.other.row),
            )
            for comparison in comparisons
        ),
    )


def _axis_text(comparison: Comparison, chosen: Alternative) -> str:
    name = comparison.what
    return f"{_AXIS_WORDS[name]} {_value(name, comparison.other)} instead of {_value(name, chosen)}"


def _limit_text(comparison: Comparison, _: Alternative) -> str:
    return f"without {LIMIT_WORDS[comparison.what]}"


def _value(axis: str, alternative: Alternative) -> str:
    value = alternative.row[axis]
    if axis == "power_limit_w":
        return f"{value:.0f} W"
    if axis == "locked_sm_clock_hz":
        return "free" if value is None else f"{value / MEGA:.0f} MHz"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _change(ratio: float) -> str:
    return f"{'+' if ratio >= 1 else ''}{percent(ratio - 1)}"


def _certainty(found: Recommendation) -> list[str]:
    c = found.certainty
    axes = ", ".join(f"{_AXIS_WORDS[axis]} {percent(share)}" for axis, share in c.same_axis_frac.items())
    kept = ", ".join(f"{LIMIT_WORDS[name]} {percent(share)}" for name, share in c.kept_frac.items())
    lines = [
        f"how sure: in {c.n_draws} draws of the errors it is best in {percent(c.best_frac)}, at most "
        f"{percent(c.median_excess_frac)} above the best in half of them and {percent(c.p90_excess_frac)} in "
        "nine of ten",
    ]
    if axes:
        lines.append(f"  the best of a draw has the same {axes}")
    if kept:
        lines.append(f"  it keeps {kept}")
    return lines


def _front(found: Recommendation) -> Sheet:
    step = max(-(-len(found.front) // _N_FRONT), 1)
    members = [m for i, m in enumerate(found.front) if i % step == 0 or m == found.chosen]
    shown = len(members)
    title = "Pareto front of time, energy" + (" and money" if found.chosen.cost else "")
    more = f" ({shown} of {len(found.front)} shown)" if shown < len(found.front) else ""
    columns = ["", ">time", ">energy", *([">money"] if found.chosen.cost else []), "configuration"]
    if found.chosen.co2e_kg:
        columns.insert(3, ">CO2e")
    return Sheet(
        title=title + more,
        columns=tuple(columns),
        rows=tuple(_front_row(member, found) for member in members),
    )


def _front_row(member: Alternative, found: Recommendation) -> tuple[str, ...]:
    time_factor, time_unit = _time_unit(found.chosen.time_s)
    energy_factor, energy_unit = _energy_unit(found.chosen.energy_j)
    cells = [
        "*" if member == found.chosen else "",
        f"{digits(member.time_s.value / time_factor)}{time_unit}",
        f"{digits(member.energy_j.value / energy_factor)}{energy_unit}",
    ]
    if member.co2e_kg:
        cells.append(mass(member.co2e_kg.value))
    if member.cost:
        cells.append(f"{digits(member.cost.value)} {_currency(found)}".strip())
    return (*cells, configuration_text(member.row))


def _remarks(found: Recommendation) -> list[Sheet | str]:
    lines: list[Sheet | str] = []
    grid = found.request.site.grid
    if grid is not None:
        lines.append(f"CO2e by {grid.source}")
    lines += [f"! {flag}" for flag in found.flags]
    if found.request.site.pue is None:
        lines.append("! no PUE given: energy is that of the GPUs and of what the options name")
    if found.guesses:
        lines.append(f"guessed facts of this card: {', '.join(found.guesses)}")
    lines.append("* the choice; --emit torchrun or slurm prints a job script for it")
    return lines

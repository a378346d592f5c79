"""Whole training runs for people: one as a page, several as a table."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from joulecast.explore.whole_run import COST_SCHEMA, RunCost
from joulecast.report.figures import count, digits, gibibytes, hours, interval, kilowatt_hours, with_prefix
from joulecast.report.tables import Sheet
from joulecast.results import Quantity
from joulecast.units import J_PER_KWH, KILO, MILLI, SECONDS_PER_HOUR

_KG_PREFIXES: Final = ((KILO, "t"), (1.0, "kg"), (MILLI, "g"))


def cost_document(runs: Sequence[RunCost]) -> dict[str, Any]:
    """Return the JSON document of ``joulecast cost --format json``."""
    return {"schema": COST_SCHEMA, "runs": [run.to_dict() for run in runs]}


def cost_page(run: RunCost) -> list[Sheet | str]:
    """Return one run in full."""
    p = run.training
    page: list[Sheet | str] = [
        f"{p.model} on {p.n_gpus} x {p.gpu_name} ({p.gpu}), {p.precision}, a whole run",
        f"  batch {count(p.global_batch)}, {_length(run)}, step {with_prefix(p.step_time_s.value, 's')} "
        f"at {p.mean_power_w.value:.0f} W per GPU, limit {digits(p.power_limit_w)} W, "
        f"process at most {gibibytes(p.process_bytes.high)} of {gibibytes(p.capacity_bytes)}",
        "",
        Sheet(columns=("", ">", ">interval", "from"), rows=tuple(_figures(run))),
        "",
    ]
    if len(run.parts) > 1:
        page += [_parts_sheet(run), ""]
    page += _sources(run)
    page += [f"! {flag}" for flag in run.flags]
    return page


def _length(run: RunCost) -> str:
    plan = run.plan
    what = (
        f"{plan.n_tokens:.4g} tokens"
        if plan.n_tokens is not None
        else f"{plan.n_samples} samples x {_epochs(run)} epochs"
    )
    trials = f" x {plan.n_trials} trials" if plan.n_trials > 1 else ""
    return f"{what}{trials} = {_steps(run)} steps"


def _epochs(run: RunCost) -> str:
    if run.plan.stop_epochs is None:
        return str(run.plan.n_epochs)
    low, high = run.plan.stop_epochs
    return f"{low:g} - {high:g} of {run.plan.n_epochs}"


def _steps(run: RunCost) -> str:
    if run.low_n_steps == run.high_n_steps:
        return f"{run.n_steps:.0f}"
    return f"{run.low_n_steps:.0f} - {run.high_n_steps:.0f}"


def _figures(run: RunCost) -> list[tuple[str, str, str, str]]:
    """Return label, value, interval and origin of every figure the user's facts allow."""
    money = f" {run.currency}".rstrip()
    rows: list[tuple[str, Quantity | None, float, str]] = [
        ("run", run.run_time_s, SECONDS_PER_HOUR, " h"),
        ("GPU-hours", run.gpu_time_s, SECONDS_PER_HOUR, " h"),
        ("energy of the GPUs", run.gpu_energy_j, J_PER_KWH, " kWh"),
        ("rest of the node", run.node_energy_j, J_PER_KWH, " kWh"),
        (_facility_label(run), run.facility_energy_j if _beyond_gpus(run) else None, J_PER_KWH, " kWh"),
        ("CO2e", run.co2e_kg, *_mass_unit(run.co2e_kg)),
        ("embodied CO2e, apart", run.embodied_co2e_kg, *_mass_unit(run.embodied_co2e_kg)),
        ("electricity", run.electricity_cost, 1.0, money),
        ("GPU time", run.gpu_cost, 1.0, money),
        ("money", run.cost if run.electricity_cost and run.gpu_cost else None, 1.0, money),
    ]
    return [
        (label, f"{digits(q.value / factor)}{unit}", interval(q, factor), str(q.origin))
        for label, q, factor, unit in rows
        if q is not None
    ]


def _beyond_gpus(run: RunCost) -> bool:
    return run.site.pue is not None or run.node_energy_j is not None


def _facility_label(run: RunCost) -> str:
    return f"all, PUE {run.site.pue:g}" if run.site.pue is not None else "all, without PUE"


def _mass_unit(quantity: Quantity | None) -> tuple[float, str]:
    value = quantity.value if quantity else 0.0
    factor, unit = next((pair for pair in _KG_PREFIXES if value >= pair[0]), _KG_PREFIXES[-1])
    return factor, f" {unit}"


def mass(value_kg: float) -> str:
    """Return a mass in t, kg or g."""
    factor, unit = next((pair for pair in _KG_PREFIXES if value_kg >= pair[0]), _KG_PREFIXES[-1])
    return f"{digits(value_kg / factor)} {unit}"


def _parts_sheet(run: RunCost) -> Sheet:
    return Sheet(
        title="what it consists of",
        columns=("", ">steps", ">time", ">energy of the GPUs"),
        rows=tuple(
            (part.name, f"{part.n_steps:.0f}", hours(part.time_s.value), kilowatt_hours(part.energy_j.value))
            for part in run.parts
        ),
    )


def _sources(run: RunCost) -> list[Sheet | str]:
    lines: list[Sheet | str] = []
    if run.intensity is not None:
        g_per_kwh = run.intensity.kg_per_j * J_PER_KWH / MILLI
        lines.append(f"electricity at {digits(g_per_kwh)} gCO2e/kWh: {_stated(run)}")
    if run.embodied_co2e_kg is not None and run.site.embodied is not None:
        lines.append(
            f"embodied: {digits(run.site.embodied.gpu_kg)} kg per GPU over "
            f"{hours(run.site.embodied.lifetime_s)} in use, as given"
        )
    if run.plan.stop_epochs is not None:
        lines.append("early stopping: expected is the middle of its range; the interval reaches to its ends")
    return lines


def _stated(run: RunCost) -> str:
    i = run.intensity
    assert i is not None
    return i.source if i.year in i.source or i.year == "as given" else f"{i.source}, {i.year}"


# --- several --------------------------------------------------------------------------------------

_COLUMNS: Final[tuple[tuple[str, Callable[[RunCost], str]], ...]] = (
    ("model", lambda run: run.training.model),
    ("GPU", lambda run: f"{run.training.n_gpus} x {run.training.gpu}"),
    ("precision", lambda run: run.training.precision),
    (">batch", lambda run: count(run.training.global_batch)),
    (">steps", _steps),
    (">run", lambda run: hours(run.run_time_s.value)),
    (">interval", lambda run: interval(run.run_time_s, SECONDS_PER_HOUR)),
    (">GPU-hours", lambda run: digits(run.gpu_time_s.value / SECONDS_PER_HOUR)),
    (">energy", lambda run: kilowatt_hours(run.facility_energy_j.value)),
    (">interval", lambda run: interval(run.facility_energy_j, J_PER_KWH)),
    (">CO2e", lambda run: mass(run.co2e_kg.value) if run.co2e_kg else ""),
    (">money", lambda run: f"{digits(run.cost.value)} {run.currency}".strip() if run.cost else ""),
    ("memory", lambda run: str(run.training.memory_verdict)),
)


def cost_table(runs: Sequence[RunCost]) -> list[Sheet | str]:
    """Return several runs as a table; columns that are empty throughout are left out."""
    columns = [(label, text) for label, text in _COLUMNS if any(text(run) for run in runs)]
    sheet = Sheet(
        columns=tuple(label for label, _ in columns),
        rows=tuple(tuple(text(run) for _, text in columns) for run in runs),
    )
    lines: list[Sheet | str] = [sheet, *dict.fromkeys(line for run in runs for line in _sources(run))]
    return [*lines, *dict.fromkeys(f"! {flag}" for run in runs for flag in run.flags)]

"""Forecasts of runs under way, for people."""

from joulecast.explore.forecast import Forecast
from joulecast.explore.measured_steps import MeasuredSteps
from joulecast.report.figures import digits, interval, percent, prefix_of
from joulecast.report.tables import Sheet
from joulecast.report.whole_runs import cost_page
from joulecast.results import Quantity
from joulecast.units import J_PER_KWH, SECONDS_PER_HOUR


def forecast_page(f: Forecast) -> list[Sheet | str]:
    """Return the run as it looks now, with what was expected before beside it."""
    before, after = f.prior, f.run
    rows = (
        ("step time", *_pair(before.training.step_time_s, after.training.step_time_s, "s")),
        ("energy per step", *_pair(before.training.energy_per_step_j, after.training.energy_per_step_j, "J")),
        ("run", *_pair(before.run_time_s, after.run_time_s, "h", SECONDS_PER_HOUR)),
        ("energy of the GPUs", *_pair(before.gpu_energy_j, after.gpu_energy_j, "kWh", J_PER_KWH)),
    )
    columns = ("", ">predicted", ">90 % interval", ">now", ">90 % interval")
    return [
        *cost_page(after),
        "",
        Sheet(title="before and after", columns=columns, rows=rows),
        "",
        f"measured: {_said(f.measured)}: steps take {digits(f.measured_over_predicted)} times what was "
        "predicted",
        f"the prediction keeps {percent(f.prior_weight_frac)} of the weight in the step time; the rest of "
        f"the run may drift by {percent(f.drift_log_sd)} (a guess unless given)",
        *_energy_line(f.measured),
    ]


def _said(m: MeasuredSteps) -> str:
    over = f"{m.n_done} steps done, " if m.n_done else ""
    averaged = f"mean of {m.n_averaged} steps" if m.n_averaged else "one mean"
    sure = f"sure to {percent(m.step_time_s.log_sd)}" if m.step_time_s.log_sd else "with no interval stated"
    return f"{m.source}, {over}{averaged}, {sure}"


def _energy_line(m: MeasuredSteps) -> list[str]:
    if m.energy_per_step_j is not None:
        return []
    return ["! no energy was measured: the predicted power multiplies the measured time"]


def _pair(
    before: Quantity, after: Quantity, unit: str, factor: float | None = None
) -> tuple[str, str, str, str]:
    """Return value and interval of both, in one unit."""
    scale, prefix = (factor, "") if factor is not None else prefix_of(after.value)
    unit = f"{prefix}{unit}"
    return (
        f"{digits(before.value / scale)} {unit}",
        interval(before, scale),
        f"{digits(after.value / scale)} {unit}",
        interval(after, scale),
    )

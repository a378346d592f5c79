"""``joulecast forecast``."""

from dataclasses import fields
from typing import Any, Final

import click

from joulecast.cli.options import (
    format_option,
    given_options,
    gpu_options,
    parameters_option,
    scenario_options,
    step_options,
)
from joulecast.cli.run_options import embodied_options, plan_of, plan_options, site_of, site_options
from joulecast.cli.show import show_csv, show_json, show_page
from joulecast.errors import UsageError
from joulecast.explore.forecast import DRIFT_LOG_SD, forecast
from joulecast.explore.measured_steps import load_measured
from joulecast.model.parameters import load_parameters
from joulecast.report.forecasts import forecast_page
from joulecast.scenario import Scenario
from joulecast.units import PERCENT

#: Parameters that say what runs.
_OF_THE_STEP: Final = (
    *("model", "gpu", "power_limit", "clock", "sms"),
    *(f.name for f in fields(Scenario)),
)


@click.command("forecast")
@click.argument("model", required=False)
@click.option(
    "--from",
    "run",
    required=True,
    metavar="RUN",
    help="A log of steps (CSV or JSON lines: step, step_time_s, energy_j), a file of runs (FILE#RUN_ID), or "
    "the id of a measured run.",
)
@click.option("--gpu", "-g", metavar="G", help="The card, for a log of steps.")
@click.option("--precision", "-p", default="fp32", show_default=True, metavar="P")
@click.option("--store", metavar="URL", help="Where a run's id is looked up; the usual store if not given.")
@click.option("--warmup", type=click.IntRange(min=0), metavar="N", help="Steps of a log to leave out.")
@click.option(
    "--drift",
    type=click.FloatRange(min=0, max=50),
    default=DRIFT_LOG_SD / PERCENT,
    show_default=True,
    metavar="PERCENT",
    help="How far the rest of the run may lie from the steps measured.",
)
@plan_options
@site_options
@embodied_options
@step_options
@gpu_options
@parameters_option
@format_option
def command(
    model: str | None,
    run: str,
    gpu: str | None,
    precision: str,
    store: str | None,
    warmup: int | None,
    drift: float,
    parameters: str | None,
    output_format: str,
    **given: Any,
) -> None:
    """Forecast a whole run anew from its first steps.

    A record of a run says what ran; a log of steps needs MODEL, --gpu and the options of `joulecast predict`.
    """
    plan, site = plan_of(given), site_of(given)
    measured = load_measured(run, store=store, n_warmup=warmup)
    scenario = None
    options = scenario_options(given)
    if measured.scenario is None:
        if model is None or gpu is None:
            raise UsageError(f"{run} does not say what ran: name MODEL and --gpu")
        scenario = Scenario(model=model, gpu=gpu, precision=precision, **options)
    else:
        said = given_options(among=_OF_THE_STEP)
        if said:
            raise UsageError(f"{run} says what ran: leave out {', '.join(said)}")
    found = forecast(
        measured,
        plan=plan,
        scenario=scenario,
        site=site,
        parameters=load_parameters(parameters),
        drift_log_sd=drift * PERCENT,
    )
    if output_format == "json":
        show_json(found.to_dict())
    elif output_format == "csv":
        show_csv([found.to_row()])
    else:
        show_page(forecast_page(found))

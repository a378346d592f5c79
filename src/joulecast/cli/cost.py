"""``joulecast cost``."""

from typing import Any

import click

from joulecast.cli.options import (
    format_option,
    gpu_list,
    gpu_options,
    parameters_option,
    precision_list,
    scenario_options,
    step_options,
)
from joulecast.cli.run_options import embodied_options, plan_of, plan_options, site_of, site_options
from joulecast.cli.show import show_csv, show_json, show_page
from joulecast.errors import UsageError
from joulecast.explore.whole_run import cost
from joulecast.model.parameters import load_parameters
from joulecast.report.whole_runs import cost_document, cost_page, cost_table


@click.command("cost")
@click.argument("models", nargs=-1, metavar="MODEL...")
@gpu_list
@precision_list
@plan_options
@site_options
@embodied_options
@step_options
@gpu_options
@parameters_option
@format_option
def command(
    models: tuple[str, ...],
    gpus: tuple[str, ...],
    precisions: tuple[str, ...],
    parameters: str | None,
    output_format: str,
    **given: Any,
) -> None:
    """Tell what a whole training run of MODEL takes: hours, GPU-hours, kWh, CO2e and money.

    Nothing is assumed about the place: energy is that of the GPUs, and the rest counts as far as --pue,
    --node-gpus, --host-power, --grid and prices say. Several models, GPUs or precisions make a table.
    """
    if not models:
        raise UsageError(
            "name a model: joulecast cost MODEL --gpu G --samples N (`joulecast models` lists them)"
        )
    if not gpus:
        raise UsageError("name a card with --gpu (`joulecast gpus` lists them)")
    plan, site = plan_of(given), site_of(given)
    runs = cost(
        models,
        gpu=gpus,
        precision=precisions or ("fp32",),
        plan=plan,
        site=site,
        parameters=load_parameters(parameters),
        **scenario_options(given),
    )
    if output_format == "json":
        show_json(cost_document(runs))
    elif output_format == "csv":
        show_csv([run.to_row() for run in runs])
    elif len(runs) == 1:
        show_page(cost_page(runs[0]))
    else:
        show_page(cost_table(runs))

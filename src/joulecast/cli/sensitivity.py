"""``joulecast sensitivity``."""

from typing import Any

import click

from joulecast.cli.options import (
    format_option,
    gpu_options,
    parameters_option,
    scenario_options,
    step_options,
)
from joulecast.cli.show import show_csv, show_json, show_page
from joulecast.explore.sensitivity import TARGETS, sensitivity
from joulecast.model.parameters import load_parameters
from joulecast.report.sensitivities import sensitivity_document, sensitivity_page, sensitivity_rows
from joulecast.scenario import Scenario


@click.command("sensitivity")
@click.argument("model")
@click.option(
    "--gpu", "-g", required=True, metavar="G", help="A name that `joulecast gpus` knows, or a TOML file."
)
@click.option("--precision", "-p", default="fp32", show_default=True)
@click.option("--times", "ratio", type=float, default=2.0, show_default=True, help="How much more is wanted.")
@click.option("--of", "target", type=click.Choice(TARGETS), default=TARGETS[0], show_default=True)
@step_options
@gpu_options
@parameters_option
@format_option
def command(
    model: str,
    gpu: str,
    precision: str,
    ratio: float,
    target: str,
    parameters: str | None,
    output_format: str,
    **given: Any,
) -> None:
    """Tell what each hardware property changes in a step of MODEL, and what would make it twice as efficient.

    Elasticities of time, power and energy to peaks, bandwidth, cache, multiprocessors, clock, power limit,
    idle power and link; then the smallest change of one property, or of two, that brings what is wanted.
    """
    scenario = Scenario(model=model, gpu=gpu, precision=precision, **scenario_options(given))
    found = sensitivity(scenario, target=target, ratio=ratio, parameters=load_parameters(parameters))
    if output_format == "json":
        show_json(sensitivity_document(found))
    elif output_format == "csv":
        show_csv(sensitivity_rows(found))
    else:
        show_page(sensitivity_page(found))

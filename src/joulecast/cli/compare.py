"""``joulecast compare``."""

from typing import Any

import click

from joulecast.cli.options import (
    device_option,
    parameters_option,
    scenario_options,
    seconds_option,
    step_options,
)
from joulecast.cli.show import quiet_torch, show_json, show_page
from joulecast.errors import UnknownModelError, UnknownRunError, UsageError
from joulecast.measure.comparison import Comparison
from joulecast.measure.side_by_side import compare_run, compare_step
from joulecast.model.parameters import ParameterSet, load_parameters
from joulecast.report.comparisons import comparison_page, save_comparison_figure
from joulecast.workload.models import resolve_model


@click.command("compare")
@click.argument("target", metavar="RUN|MODEL")
@click.option("--precision", "-p", default="fp32", show_default=True, metavar="P")
@step_options
@device_option("What to run a MODEL on")
@click.option(
    "--gpu", "-g", metavar="G", help="The card to predict, if the catalogue has the one at hand not."
)
@seconds_option("--seconds", 20.0, "For measuring a MODEL; its profile comes on top.")
@click.option(
    "--store",
    metavar="URL",
    help="Where the RUN is, or that of a MODEL is kept; the user's own if not given.",
)
@click.option("--figure", metavar="FILE", help="Draw it too: an .svg or .png file.")
@parameters_option
@click.option(
    "--format", "output_format", type=click.Choice(("table", "json")), default="table", show_default=True
)
def command(
    target: str,
    store: str | None,
    figure: str | None,
    parameters: str | None,
    output_format: str,
    **given: Any,
) -> None:
    """Put the prediction beside what was measured: of a stored RUN, or of MODEL's step, run and profiled now.

    RUN is an id of `joulecast runs list`, or the start of one. MODEL and its options are those of
    `joulecast predict`; it adds stages and groups of operators to the quantities.
    """
    quiet_torch()
    fitted = load_parameters(parameters)
    comparison = _compared(target, store, fitted, given)
    if figure is not None:
        save_comparison_figure(comparison, figure)
    if output_format == "json":
        show_json(comparison.to_dict())
    else:
        show_page(comparison_page(comparison))


def _compared(target: str, store: str | None, fitted: ParameterSet, given: dict[str, Any]) -> Comparison:
    """Compare a model if there is one of that name, else a stored run."""
    try:
        resolve_model(target, given["mode"])
    except UnknownModelError as unknown:
        return _compare_stored(target, store, fitted, unknown)
    options = scenario_options(given)
    for name in ("power_limit_w", "sm_clock_hz", "n_sms"):  # of a card to predict, not of the one at hand
        options.pop(name)
    from joulecast.measure.store import default_store

    return compare_step(target, fitted, store_url=store or default_store(), **options)


def _compare_stored(
    target: str, store: str | None, fitted: ParameterSet, unknown_model: UnknownModelError
) -> Comparison:
    from joulecast.measure.store import Store

    try:
        with Store.open(store, create=False) as opened:
            run = opened.get(target)
    except UnknownRunError:
        raise UsageError(f"{target!r} is neither a stored run nor a model: {unknown_model}") from None
    return compare_run(run, fitted)

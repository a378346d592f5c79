"""``joulecast measure``."""

import os
from typing import Any

import click

from joulecast.cli.options import (
    device_option,
    devices_option,
    format_option,
    positive_float,
    scenario_options,
    seconds_option,
    step_options,
)
from joulecast.cli.show import quiet_torch, show_csv, show_json, show_page
from joulecast.errors import UnstableMeasurementError, UsageError
from joulecast.measure.command import measure_command
from joulecast.measure.session import measure
from joulecast.report.measurements import measurement_page
from joulecast.results import Measurement
from joulecast.units import PERCENT


class _WrappingCommand(click.Command):
    """A command that keeps what follows ``--`` for itself."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            i = args.index("--")
            ctx.meta["wrapped"] = tuple(args[i + 1 :])
            args = args[:i]
        return super().parse_args(ctx, args)


@click.command("measure", cls=_WrappingCommand)
@click.argument("model", required=False)
@click.option("--precision", "-p", default="fp32", show_default=True, metavar="P")
@step_options
@device_option("What to run on")
@devices_option("Data parallel on this node, by torchrun; on a CPU, processes.")
@click.option("--force", is_flag=True, help="Go beyond the model's positions.")
@seconds_option("--seconds", 20.0, "For warm-up and repeats.")
@click.option(
    "--max-error",
    type=float,
    default=10.0,
    show_default=True,
    metavar="%",
    callback=positive_float,
    help="Refuse a mean step time whose standard error is larger.",
)
@click.option("--store", metavar="URL", help="Keep the run there; the user's own store if not given.")
@click.option("--no-store", is_flag=True, help="Keep no record.")
@click.option("--record", metavar="FILE", help="Write every reading of the sensors to a file.")
@format_option
def command(
    model: str | None,
    store: str | None,
    no_store: bool,
    record: str | None,
    output_format: str,
    **given: Any,
) -> int:
    """Measure MODEL's training step on the device at hand, or any command: joulecast measure -- CMD...

    MODEL and its options are those of `joulecast predict`. A command runs as it would without, its exit code
    is passed on, and the page goes to standard error.
    """
    wrapped = click.get_current_context().meta.get("wrapped")
    if (model is None) == (wrapped is None):
        raise UsageError("name a model, or a command behind --: joulecast measure -- python train.py")
    url = None if no_store else store or _users_store()
    if wrapped is not None:
        if not wrapped:
            raise UsageError("there is no command behind --")
        return _measure_command(wrapped, url, record, output_format)
    return _measure_model(str(model), url, record, output_format, given)


def _users_store() -> str:
    from joulecast.measure.store import default_store

    return default_store()


def _measure_model(
    model: str, url: str | None, record: str | None, output_format: str, given: dict[str, Any]
) -> int:
    quiet_torch()
    options = scenario_options(given)
    for name in ("power_limit_w", "sm_clock_hz", "n_sms"):  # of a card to predict, not of the one at hand
        options.pop(name)
    is_first = int(os.environ.get("RANK", "0")) == 0  # of the ranks that a torchrun around us started
    max_error_frac = options.pop("max_error") * PERCENT
    try:
        found = measure(model, store_url=url, recording=record, max_error_frac=max_error_frac, **options)
    except UnstableMeasurementError as error:
        if is_first:
            _show(error.measurement, output_format)
        raise
    if is_first:
        _show(found, output_format)
    return 0


def _measure_command(
    wrapped: tuple[str, ...], url: str | None, record: str | None, output_format: str
) -> int:
    is_first = int(os.environ.get("LOCAL_RANK", "0")) == 0  # one rank of a node measures
    found = measure_command(
        wrapped,
        store_url=url if is_first else None,
        sensors=None if is_first else (),
        recording=record if is_first else None,
    )
    if is_first:
        _show(found, output_format, beside=True)
    return found.exit_code or 0


def _show(found: Measurement, output_format: str, *, beside: bool = False) -> None:
    """Show a record; that of a command beside its own output, which is not ours to mix with."""
    if output_format == "json":
        show_json(found.to_dict(), beside=beside)
    elif output_format == "csv":
        show_csv([found.to_row()], beside=beside)
    else:
        show_page(measurement_page(found), beside=beside)

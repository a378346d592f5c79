"""``joulecast trace``."""

from typing import Any

import click

from joulecast.characterisation import trace
from joulecast.cli.options import format_option, step_options
from joulecast.cli.show import show_csv, show_json, show_page
from joulecast.report.characterisations import characterisation_page


@click.command("trace")
@click.argument("model")
@click.option("--precision", "-p", default="fp32", show_default=True, metavar="P")
@step_options
@format_option
def command(model: str, output_format: str, **options: Any) -> None:
    """Show what a training step of MODEL computes: FLOPs, bytes, intensity, kernels.

    MODEL is a name that `joulecast models` knows, or path/to/file.py:make_model. CSV has one row for each
    distinct operator call.
    """
    found = trace(model, **options)
    if output_format == "json":
        show_json(found.to_dict())
    elif output_format == "csv":
        show_csv(found.to_rows())
    else:
        show_page(characterisation_page(found))

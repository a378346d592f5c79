"""``joulecast models``."""

import click

from joulecast.cli.options import format_option
from joulecast.cli.show import show_csv, show_json, show_page
from joulecast.report.models import flat_rows, model_rows, models_document, models_table


@click.command("models")
@click.option("--all", "everything", is_flag=True, help="Also those that are traced when first asked for.")
@format_option
def command(everything: bool, output_format: str) -> None:
    """List the models that are known: packaged ones need no torch, the others the torch extra."""
    rows = model_rows(everything=everything)
    if output_format == "json":
        show_json(models_document(rows))
    elif output_format == "csv":
        show_csv(flat_rows(rows))
    else:
        show_page(models_table(rows))

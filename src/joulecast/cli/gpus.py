"""``joulecast gpus``."""

import click

from joulecast.cli.options import format_option
from joulecast.cli.show import show_csv, show_json, show_page
from joulecast.hardware.catalogue import gpu_slugs, load_gpu
from joulecast.report.gpus import gpu_dict, gpu_page, gpu_row, gpus_document, gpus_table


@click.command("gpus")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@format_option
def command(names: tuple[str, ...], output_format: str) -> None:
    """List the cards that are known, or show the sheet of those named, each value with its source."""
    gpus = [load_gpu(name) for name in (names or gpu_slugs())]
    if output_format == "json":
        show_json(gpus_document([gpu_dict(gpu) for gpu in gpus]))
    elif output_format == "csv":
        show_csv([gpu_row(gpu) for gpu in gpus])
    elif names:
        show_page([part for gpu in gpus for part in gpu_page(gpu)])
    else:
        show_page(gpus_table(gpus))

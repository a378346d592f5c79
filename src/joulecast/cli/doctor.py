"""``joulecast doctor``."""

import click

from joulecast.cli.options import format_option
from joulecast.cli.show import show_csv, show_json, show_page
from joulecast.measure.doctor import doctor
from joulecast.report.doctor import doctor_page, doctor_rows


@click.command("doctor")
@format_option
def command(output_format: str) -> None:
    """Say which sensors work on this machine, why the others do not, and what to do; devices and drivers."""
    found = doctor()
    if output_format == "json":
        show_json(found.to_dict())
    elif output_format == "csv":
        show_csv(doctor_rows(found))
    else:
        show_page(doctor_page(found))

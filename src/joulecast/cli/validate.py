"""``joulecast validate``."""

import click

from joulecast.calibrate.validation import check_writable, save_predictions, validate
from joulecast.cli.options import format_option, parameters_option
from joulecast.cli.show import show_csv, show_json, show_page, with_progress
from joulecast.model.parameters import load_parameters
from joulecast.report.validations import validation_page


@click.command("validate")
@click.argument("runs", metavar="RUNS.csv")
@click.option("--out", metavar="PRED.csv", help="Write RUNS.csv with predictions appended, row for row.")
@parameters_option
@format_option
def command(runs: str, out: str | None, parameters: str | None, output_format: str) -> None:
    """Predict every row of RUNS.csv and compare with what was measured.

    Rows that cannot be predicted are named with the reason; rows that the file calls suspect are predicted,
    and counted apart. CSV has one row for each entry of the error table.
    """
    if out is not None:
        check_writable(out)
    validation = validate(
        runs,
        parameters=load_parameters(parameters),
        progress=lambda rows: with_progress(rows, "predicting"),
    )
    if out is not None:
        save_predictions(validation, out)
    if output_format == "json":
        show_json(validation.to_dict())
    elif output_format == "csv":
        show_csv(validation.to_dict()["errors"])
    else:
        show_page(validation_page(validation))

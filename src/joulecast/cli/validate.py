"""``joulecast validate``."""

import click

from joulecast.calibrate.operator_files import holds_operators
from joulecast.calibrate.operator_validation import save_operator_predictions, validate_operators
from joulecast.calibrate.validation import check_writable, save_predictions, validate
from joulecast.cli.options import format_option, parameters_option
from joulecast.cli.show import show_csv, show_json, show_page, with_progress
from joulecast.model.parameters import load_parameters
from joulecast.report.validations import operator_validation_page, validation_page


@click.command("validate")
@click.argument("measured", metavar="FILE")
@click.option("--out", metavar="PRED", help="Write FILE with predictions appended, row for row.")
@parameters_option
@format_option
def command(measured: str, out: str | None, parameters: str | None, output_format: str) -> None:
    """Predict every row of FILE and compare with what was measured.

    FILE holds runs (CSV), single operators (parquet) or operators with their power (CSV); its columns tell
    which, and docs/json.md lists them. Rows that cannot be predicted are named with the reason; rows that are
    doubted are predicted, and counted apart. CSV output has one row for each entry of the error table.
    """
    fitted = load_parameters(parameters)
    of_operators = holds_operators(measured)
    if out is not None:
        check_writable(out)
    if of_operators:
        operators = validate_operators(measured, parameters=fitted)
        if out is not None:
            save_operator_predictions(operators, out)
        document, page = operators.to_dict(), operator_validation_page(operators)
    else:
        runs = validate(measured, parameters=fitted, progress=lambda rows: with_progress(rows, "predicting"))
        if out is not None:
            save_predictions(runs, out)
        document, page = runs.to_dict(), validation_page(runs)
    if output_format == "json":
        show_json(document)
    elif output_format == "csv":
        show_csv(document["errors"])
    else:
        show_page(page)

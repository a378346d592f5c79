"""``joulecast predict``."""

from dataclasses import replace
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
from joulecast.cli.show import show_csv, show_json, show_page
from joulecast.errors import UsageError
from joulecast.model.parameters import load_parameters
from joulecast.prediction import predict
from joulecast.report.predictions import prediction_page, predictions_table
from joulecast.results import Predictions


@click.command("predict")
@click.argument("models", nargs=-1, metavar="MODEL...")
@gpu_list
@precision_list
@step_options
@gpu_options
@click.option(
    "--samples", type=click.IntRange(min=1), metavar="N", help="Samples per epoch: predict the run."
)
@click.option("--epochs", type=click.IntRange(min=1), metavar="E", help="Epochs of the run; 1 if not given.")
@parameters_option
@format_option
def command(
    models: tuple[str, ...],
    gpus: tuple[str, ...],
    precisions: tuple[str, ...],
    samples: int | None,
    epochs: int | None,
    parameters: str | None,
    output_format: str,
    **given: Any,
) -> None:
    """Predict a training step of MODEL on a GPU; several of either, or precisions, make a table.

    MODEL is a name that `joulecast models` knows, or path/to/file.py:make_model.
    """
    if not models:
        raise UsageError("name a model: joulecast predict MODEL --gpu G (`joulecast models` lists them)")
    if not gpus:
        raise UsageError("name a card with --gpu (`joulecast gpus` lists them)")
    if epochs is not None and samples is None:
        raise UsageError("--epochs needs --samples, the samples of one epoch")
    predictions = predict(
        models,
        gpu=gpus,
        precision=precisions or ("fp32",),
        parameters=load_parameters(parameters),
        **scenario_options(given),
    )
    if samples is not None:
        predictions = Predictions(
            [replace(p, whole_run=p.forecast(n_samples=samples, n_epochs=epochs or 1)) for p in predictions]
        )
    _show(predictions, output_format)


def _show(predictions: Predictions, output_format: str) -> None:
    if output_format == "json":
        show_json(predictions.to_dict())
    elif output_format == "csv":
        show_csv(predictions.to_rows())
    elif len(predictions) == 1:
        show_page(prediction_page(predictions[0]))
    else:
        show_page(predictions_table(predictions))

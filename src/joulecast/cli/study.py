"""``joulecast study``."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from joulecast.calibrate.runs import load_runs
from joulecast.cli.options import (
    comma_list,
    format_option,
    parameters_option,
    positive_float,
    precision_list,
    scenario_options,
    work_options,
)
from joulecast.cli.show import show_csv, show_json, show_page, with_progress
from joulecast.errors import UsageError
from joulecast.explore.measured_runs import beside, stored_runs
from joulecast.explore.study import DEFAULT_PRECISIONS, StudyPlan, study
from joulecast.explore.table import check_format
from joulecast.model.parameters import load_parameters
from joulecast.report.studies import study_document, study_sheets
from joulecast.scenario import Scenario


def _by_model(_: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """Return ``{"": 32, "tinyllama": 2}`` of ``32,tinyllama=2``."""
    chosen = {}
    for item in comma_list(_, parameter, values):
        model, _is, number = item.rpartition("=")
        if not number.isdigit() or int(number) < 1:
            raise click.BadParameter(f"{item!r} is neither a number nor MODEL=NUMBER", param=parameter)
        chosen[model] = int(number)
    return chosen


def _counts(_: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[int, ...]:
    """Return whole numbers of a list with commas."""
    names = comma_list(_, parameter, values)
    if not all(name.isdigit() and int(name) > 0 for name in names):
        raise click.BadParameter(f"{','.join(names)} is no list of counts such as 1,4", param=parameter)
    return tuple(int(name) for name in names)


@click.command("study")
@click.argument("models", nargs=-1, metavar="MODEL...")
@click.option("--gpu", "-g", metavar="G", help="A name that `joulecast gpus` knows, or a TOML file.")
@click.option(
    "--n-gpus",
    "-n",
    multiple=True,
    callback=_counts,
    metavar="N[,N...]",
    help="GPUs in the job; 1 if not given. Scaling is judged by the first.",
)
@precision_list
@click.option(
    "--batch-size",
    "-b",
    multiple=True,
    callback=_by_model,
    metavar="N[,MODEL=N...]",
    help="Samples per GPU; if not given the largest power of two up to 32 that is expected to fit.",
)
@click.option(
    "--seq-len",
    "-s",
    multiple=True,
    callback=_by_model,
    metavar="N[,MODEL=N...]",
    help="Tokens per sample; the models' own if not given.",
)
@work_options
@click.option(
    "--power-limit",
    type=float,
    callback=positive_float,
    metavar="W",
    help="Per GPU, where the curve over limits does not say; the card's own if not given.",
)
@click.option("--runs", metavar="CSV", help="Measured runs to stand beside, instead of the store's.")
@click.option("--store", metavar="URL", help="The store of measured runs; the usual one if not given.")
@click.option("--out", "-o", metavar="R.parquet", help="Also keep all rows, for `joulecast report`; or .csv.")
@parameters_option
@format_option
def command(
    models: tuple[str, ...],
    gpu: str | None,
    n_gpus: tuple[int, ...],
    precisions: tuple[str, ...],
    batch_size: dict[str, int],
    seq_len: dict[str, int],
    runs: str | None,
    store: str | None,
    out: str | None,
    parameters: str | None,
    output_format: str,
    **given: Any,
) -> None:
    """Predict what precision, GPU count, sharing, batch and power limit change for MODELs on a card.

    The first precision is what the others are compared with.
    """
    if not models:
        raise UsageError("name models: joulecast study MODEL... --gpu G (`joulecast models` lists them)")
    if gpu is None:
        raise UsageError("name a card with --gpu (`joulecast gpus` lists them)")
    if runs is not None and store is not None:
        raise UsageError("--runs and --store both name measured runs: give one of them")
    if out is not None:
        check_format(Path(out))
    plan = StudyPlan(
        models=models,
        gpu=gpu,
        n_gpus=n_gpus or (1,),
        precisions=precisions or DEFAULT_PRECISIONS,
        batch_size=batch_size,
        seq_len=seq_len,
        options={k: v for k, v in scenario_options(given).items() if v is not None},
    )
    found = study(plan, parameters=load_parameters(parameters), progress=_progress)
    measured = beside(found.points, load_runs(runs).runs if runs else stored_runs(store))
    if out is not None:
        found.table().save(out)
    if output_format == "json":
        show_json(study_document(found, measured))
    elif output_format == "csv":
        show_csv(found.table().to_rows())
    else:
        show_page(study_sheets(found, measured))


def _progress(scenarios: Sequence[Scenario]) -> Iterable[Scenario]:
    return with_progress(scenarios, "predicting")

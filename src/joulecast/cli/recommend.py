"""``joulecast recommend``."""

from collections.abc import Callable
from typing import Any, Final

import click

from joulecast.cli.options import (
    comma_list,
    format_option,
    given_options,
    gpu_list,
    parameters_option,
    positive_float,
)
from joulecast.cli.run_options import length_options, plan_of, site_of, site_options
from joulecast.cli.show import show_csv, show_json, show_page
from joulecast.errors import UsageError
from joulecast.explore.jobs import Launcher, job_script
from joulecast.explore.recommend import recommend
from joulecast.explore.request import Objective, Request, load_document, request_of
from joulecast.model.parameters import load_parameters
from joulecast.report.recommendations import recommendation_page

#: Option -> key of the file's table ``candidates``, and whether its values are numbers or ranges.
_CANDIDATE_KEYS: Final = {
    "gpus": "gpu",
    "precisions": "precision",
    "n_gpus": "n_gpus",
    "batch_size": "batch_per_gpu",
    "global_batch": "global_batch",
    "accumulate": "accumulate",
    "seq_len": "seq_len",
    "image_size": "image_size",
    "power_limit": "power_limit_w",
    "optimizer": "optimizer",
    "memory_format": "memory_format",
}
#: Option -> key of the file's table ``limits``.
_LIMIT_KEYS: Final = {
    "deadline": "deadline_h",
    "max_energy": "energy_kwh",
    "max_co2e": "co2e_kg",
    "max_cost": "cost",
    "node_power": "node_power_w",
    "rack_power": "rack_power_w",
    "rack_nodes": "rack_nodes",
    "memory": "memory_gib",
    "max_gpus": "gpus",
    "min_global_batch": "min_global_batch",
    "max_global_batch": "max_global_batch",
}
_CHECKPOINTING: Final = {"off": [False], "on": [True], "both": [False, True]}

#: Options that go with a file of the request.
_BESIDE_A_FILE: Final = ("models", "gpus", "file", "emit", "wrap", "parameters", "output_format")


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _list(name: str, help_text: str, metavar: str = "N[,N...]") -> Decorator:
    return click.option(name, multiple=True, callback=comma_list, metavar=metavar, help=help_text)


def _limit(name: str, metavar: str, help_text: str) -> Decorator:
    return click.option(name, type=float, callback=positive_float, metavar=metavar, help=help_text)


@click.command("recommend")
@click.argument("models", nargs=-1, metavar="MODEL...")
@gpu_list
@click.option(
    "--precision",
    "-p",
    "precisions",
    multiple=True,
    callback=comma_list,
    metavar="P[,P...]",
    help="fp32, tf32 and bf16 if not given.",
)
@_list("--n-gpus", "GPUs of the job, as 1,2,4 or 1:8:x2; up to 8 if not given.")
@_list("--batch-size", "Samples per GPU and step; 8:256:x2 if not given.")
@_list("--global-batch", "Samples per step of all GPUs, instead; divided into whole micro-batches.")
@_list("--accumulate", "Micro-batches per step; 1, or 1:16:x2 with --global-batch.")
@_list("--seq-len", "Tokens per sample; the model's own if not given.")
@_list("--image-size", "Pixels of a side; the model's own if not given.")
@_list(
    "--power-limit", "Per GPU; 40 to 100 % of the card's highest in steps of 5 % if not given.", "W[,W...]"
)
@_list("--optimizer", "The usual one if not given.", "NAME[,NAME...]")
@_list("--memory-format", "contiguous if not given.", "F[,F...]")
@click.option(
    "--checkpointing",
    type=click.Choice(list(_CHECKPOINTING)),
    default="off",
    show_default=True,
    help="Recompute the activations of repeated blocks.",
)
@click.option(
    "--objective",
    type=click.Choice([str(objective) for objective in Objective]),
    default=str(Objective.ENERGY),
    show_default=True,
    help="What to make small.",
)
@_limit("--deadline", "H", "Hours to the end of the run.")
@_limit("--max-energy", "KWH", "Energy of the run.")
@_limit("--max-co2e", "KG", "CO2e of the run; needs --grid.")
@_limit("--max-cost", "MONEY", "Price of the run; needs prices.")
@_limit("--node-power", "W", "Power budget of the node: the upper end of what it draws.")
@_limit("--rack-power", "W", "The same for --rack-nodes nodes that run the job each.")
@click.option(
    "--rack-nodes", type=click.IntRange(min=1), metavar="N", help="Nodes of the rack; 1 if not given."
)
@_limit("--memory", "GIB", "Memory to use per GPU, where less than the card's.")
@click.option("--max-gpus", type=click.IntRange(min=1), metavar="N", help="GPUs there are.")
@_limit("--min-global-batch", "N", "Samples of a step, at least.")
@_limit("--max-global-batch", "N", "Samples of a step, at most.")
@click.option(
    "--confidence",
    type=click.FloatRange(min=0, max=1, min_open=True, max_open=True),
    default=0.5,
    show_default=True,
    metavar="P",
    help="How sure limits of the run must be kept; 0.5 judges by the predicted value.",
)
@length_options
@site_options
@click.option("--file", metavar="TOML", help="Candidates, run, site and limits, instead of the options.")
@click.option(
    "--emit",
    type=click.Choice([str(launcher) for launcher in Launcher]),
    help="Print a job script for the choice instead.",
)
@click.option("--wrap", is_flag=True, help="With --emit: measure the run on the way.")
@parameters_option
@format_option
def command(
    models: tuple[str, ...],
    gpus: tuple[str, ...],
    file: str | None,
    emit: str | None,
    wrap: bool,
    parameters: str | None,
    output_format: str,
    **given: Any,
) -> None:
    """Recommend how to train MODEL: card, GPUs, precision, batch and power limit under limits.

    The objective is that of the whole run where --samples or --tokens say how long it is, else of a sample.
    """
    if wrap and emit is None:
        raise UsageError("--wrap goes with --emit")
    request = _request(models, gpus, given) if file is None else _request_of_file(file, models, gpus)
    found = recommend(request, parameters=load_parameters(parameters))
    if emit is not None:
        click.echo(job_script(found, Launcher(emit), wrap=wrap), nl=False)
    elif output_format == "json":
        show_json(found.to_dict())
    elif output_format == "csv":
        show_csv(found.to_rows())
    else:
        show_page(recommendation_page(found))


def _request(models: tuple[str, ...], gpus: tuple[str, ...], given: dict[str, Any]) -> Request:
    if not models:
        raise UsageError("name a model: joulecast recommend MODEL --gpu G (`joulecast models` lists them)")
    if not gpus:
        raise UsageError("name the cards there are with --gpu (`joulecast gpus` lists them)")
    site = site_of(given)
    run_given = given["samples"] is not None or given["tokens"] is not None
    plan = plan_of(given) if run_given else None
    asked = {"gpus": gpus, **given}
    candidates: dict[str, Any] = {
        key: list(asked[option]) for option, key in _CANDIDATE_KEYS.items() if asked.get(option)
    }
    candidates["checkpointing"] = {"off": [False], "on": [True], "both": [False, True]}[
        given["checkpointing"]
    ]
    document = {
        "objective": given["objective"],
        "confidence": given["confidence"],
        "candidates": {"model": list(models), **candidates},
        "limits": {key: given[option] for option, key in _LIMIT_KEYS.items() if given[option] is not None},
    }
    return request_of(document, plan=plan, site=site)


def _request_of_file(path: str, models: tuple[str, ...], gpus: tuple[str, ...]) -> Request:
    """Return the request of a file; models and cards of the command line stand for the file's."""
    others = given_options(but=_BESIDE_A_FILE)
    if others:
        raise UsageError(f"{path} says it all but models and cards: leave out {', '.join(others)}")
    document = load_document(path)
    named = {key: list(names) for key, names in (("model", models), ("gpu", gpus)) if names}
    if named:
        candidates = document.get("candidates", {})
        document["candidates"] = {**candidates, **named} if isinstance(candidates, dict) else candidates
    try:
        return request_of(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None

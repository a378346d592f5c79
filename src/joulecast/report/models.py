"""Models that can be named, for people and programs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from joulecast.report.tables import Sheet
from joulecast.workload.models import ModelName, known_models, model_card, resolve_model, short_names
from joulecast.workload.zoo import packaged_path

MODELS_SCHEMA: Final = "joulecast/models/1"


def model_rows(*, everything: bool) -> list[dict[str, Any]]:
    """Return a row per model: its names, tasks and default sizes, and whether its table is packaged.

    Parameters
    ----------
    everything : bool
        Also the models that are traced when first asked for.
    """
    aliases: dict[str, list[str]] = {}
    for alias in short_names():
        name = resolve_model(alias)
        aliases.setdefault(_plain(str(name)), []).append(alias)
    rows = [_row(model, aliases.get(model, [])) for model in known_models()]
    return [row for row in rows if everything or row["packaged"]]


def _plain(canonical: str) -> str:
    return canonical.partition("#")[0]


def _row(model: str, aliases: Sequence[str]) -> dict[str, Any]:
    family, _, exact = model.partition("/")
    if family in {"torchvision", "timm"}:  # known to be exact: looking up 1500 of them takes seconds
        name = ModelName(family=family, name=exact, task="image-classification")
    else:
        name = resolve_model(model)
    card = model_card(name)
    packaged = [task for task in card.tasks if packaged_path(replace(name, task=task)).is_file()]
    return {
        "model": model,
        "aliases": list(aliases),
        "packaged": bool(packaged),
        "tasks": list(card.tasks),
        "default_task": name.task,
        "packaged_tasks": packaged,
        "seq_len": card.default_seq_len,
        "max_seq_len": card.max_seq_len,
        "image_size": card.default_image_size,
    }


def flat_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with lists as words, for tables and CSV."""
    return [
        {key: " ".join(cell) if isinstance(cell, list) else cell for key, cell in row.items()} for row in rows
    ]


def models_table(rows: Sequence[dict[str, Any]]) -> list[Sheet | str]:
    """Return one row per model."""
    columns = ("model", "aliases", "packaged_tasks", "tasks", "seq_len", "max_seq_len", "image_size")
    headers = ("model", "aliases", "packaged", "tasks", ">sequence", ">at most", ">image")
    cells = tuple(tuple(str(row[column] or "-") for column in columns) for row in flat_rows(rows))
    return [
        Sheet(columns=headers, rows=cells),
        "packaged models need no torch; `joulecast models --all` lists those that are traced when asked for",
    ]


def models_document(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON document of ``joulecast models --format json``."""
    return {"schema": MODELS_SCHEMA, "models": list(rows)}

"""Predictions of rows by fits that had not seen them: the file between a fit and the page of its accuracy.

One CSV row per number: what was measured, and what a set predicted that was fitted without the row's GPU
(``gpu``) or without its family of models (``family``).
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any, Final

from joulecast.errors import RunsError, UsageError
from joulecast.whole_file import whole_file

KINDS: Final = ("gpu", "family")

_TEXTS: Final = ("key", "source", "gpu", "subject", "group_left_out", "kind", "quantity")
_NUMBERS: Final = ("measured", "predicted", "low", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutPrediction:
    """One number that a fit without its group predicted.

    Attributes
    ----------
    key : str
        ``run_id`` of a run; `operator_key` of an operator.
    source, gpu : str
        Where the row comes from; the card.
    subject : str
        The model of a run; the kind of an operator (a value of `OpKind`).
    group_left_out : str
        The GPU or the family that the fit did not see.
    kind : str
        ``gpu`` or ``family``.
    quantity : str
        A column of the measurements: ``step_time_s``, ``mean_power_w``, ``energy_per_step_j``,
        ``peak_memory_bytes``; ``latency_s`` of an operator.
    measured, predicted, low, high : float
        SI units; the interval is the 90 % one.
    """

    key: str
    source: str
    gpu: str
    subject: str
    group_left_out: str
    kind: str
    quantity: str
    measured: float
    predicted: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise RunsError(f"{self.key}: kind is {self.kind!r}, not one of {', '.join(KINDS)}")
        for name in _NUMBERS:
            if not (isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise RunsError(f"{self.key}: {name} is {getattr(self, name)}, not a number above 0")


def operator_key(i_row: int) -> str:
    """Return the key of the operator in row `i_row` (from 0) of its file."""
    return f"op{i_row}"


COLUMNS: Final = tuple(f.name for f in fields(HeldOutPrediction))


def save_held_out(rows: Iterable[HeldOutPrediction], path: str | Path) -> None:
    """Write held-out predictions, sorted, numbers with 6 digits; the old file stays whole until then.

    Raises
    ------
    UsageError
        The file cannot be written.
    """
    ordered = sorted(rows, key=lambda row: (row.kind, row.source, row.gpu, row.key, row.quantity))
    try:
        with whole_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for row in ordered:
                numbers = (f"{getattr(row, name):.6g}" for name in _NUMBERS)
                writer.writerow([*(getattr(row, name) for name in _TEXTS), *numbers])
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def load_held_out(path: str | Path) -> list[HeldOutPrediction]:
    """Load held-out predictions.

    Raises
    ------
    UsageError
        There is no such file.
    RunsError
        It lacks a column, or a cell holds what cannot be.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise RunsError(f"{path} lacks the columns {', '.join(missing)}: write it with a new fit")
            return [_row(path, reader.line_num, cells) for cells in reader]
    except FileNotFoundError:
        raise UsageError(f"no such file of held-out predictions: {path}") from None


def _row(path: str | Path, line: int, cells: dict[str, str]) -> HeldOutPrediction:
    try:
        row: dict[str, Any] = {name: cells[name] for name in _TEXTS}
        row |= {name: float(cells[name]) for name in _NUMBERS}
        return HeldOutPrediction(**row)
    except (ValueError, TypeError) as error:
        raise RunsError(f"{path} line {line}: {error}") from error

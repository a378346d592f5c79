"""Cuts through a table of predictions: the rows that differ in what a figure shows, and in nothing else.

In: columns named as in a file of runs. Out: row numbers. A full product of axes and the union of a few curves
are cut alike, because every other axis is held where most rows are.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from joulecast.explore.table import SweepResult

Columns = Mapping[str, npt.NDArray[Any]]
Rows = npt.NDArray[np.int64]

#: Columns that make a configuration; what follows from the others (``parallel``, ``global_batch``) is not
#: among them.
AXES: Final = (
    "model",
    "gpu",
    "n_sms",
    "mode",
    "precision",
    "optimizer",
    "attention",
    "memory_format",
    "checkpointing",
    "clip",
    "accumulate",
    "image_size",
    "seq_len",
    "batch_per_gpu",
    "n_gpus",
    "power_limit_w",
    "locked_sm_clock_hz",
)


def columns_of(table: SweepResult) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of the rows that are predicted; words as arrays of str, "" where there is none."""
    predicted = table.where(table.predicted)
    return {
        name: np.array([cell or "" for cell in column], dtype=np.str_) if column.dtype == object else column
        for name, column in predicted.columns.items()
    }


def n_rows(columns: Columns) -> int:
    """Return the number of rows."""
    return len(next(iter(columns.values()), ()))


def distinct(columns: Columns, name: str) -> list[Any]:
    """Return the values of a column, each once, in order of appearance."""
    values, first = np.unique(columns[name], return_index=True)
    return [values[i].item() for i in np.argsort(first)]


def groups(columns: Columns, by: Sequence[str], rows: Rows | None = None) -> list[Rows]:
    """Return the rows that agree in some columns, group by group, in order of appearance."""
    chosen = np.arange(n_rows(columns)) if rows is None else rows
    if not len(chosen):
        return []
    codes = np.stack([np.unique(columns[name][chosen], return_inverse=True)[1] for name in by], axis=1)
    _, first, members = np.unique(codes, axis=0, return_index=True, return_inverse=True)
    return [chosen[members.ravel() == i] for i in np.argsort(first)]


def slice_along(columns: Columns, free: Sequence[str]) -> Rows:
    """Return the rows of every model and card that differ in the free columns alone.

    Parameters
    ----------
    columns : mapping of str to ndarray [row]
    free : sequence of str
        Columns that may differ; the rest of `AXES` is held at its most frequent value.

    Returns
    -------
    ndarray of int
        In the order of the table.
    """
    always = ("model", "gpu")
    held = [name for name in AXES if name in columns and name not in (*always, *free)]
    chosen = []
    for rows in groups(columns, always):
        usual = {name: _usual(columns[name][rows]) for name in held}
        for name, value in usual.items():
            left = columns[name][rows]
            same = _same_as(left, value)
            # the most frequent values of two columns may not meet in any row
            rows = rows[same if same.any() else _same_as(left, _usual(left))]  # noqa: PLW2901
        chosen.append(rows)
    return np.sort(np.concatenate(chosen)) if chosen else np.array([], dtype=np.int64)


def _usual(values: npt.NDArray[Any]) -> Any:
    """Return the most frequent value; of several, the middle one."""
    known, n_times = np.unique(values, return_counts=True)
    best = known[n_times == n_times.max()]
    return best[len(best) // 2]


def _same_as(values: npt.NDArray[Any], value: Any) -> npt.NDArray[np.bool_]:
    """Return where the values equal one; NaN equals NaN."""
    if np.issubdtype(values.dtype, np.floating) and np.isnan(value):
        same: npt.NDArray[np.bool_] = np.isnan(values)
        return same
    return np.asarray(values == value, dtype=np.bool_)


def varies(columns: Columns, rows: Rows, name: str) -> bool:
    """Return whether a column holds more than one value in some rows."""
    return name in columns and len(np.unique(columns[name][rows])) > 1


def take(columns: Columns, rows: Rows, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return some columns of some rows as records of plain values."""
    lists = {name: columns[name][rows].tolist() for name in names if name in columns}
    return [dict(zip(lists, cells, strict=True)) for cells in zip(*lists.values(), strict=True)]

"""Files of measured operators, recognised by their columns: `ops.parquet`, and a table with the power, too.

In: a path. Out: `OperatorFile`: the rows as they stand, the records that can be predicted, and why the others
cannot. A number that cannot be refuses the file; a name that is not known skips its row.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final

import numpy as np

from joulecast.calibrate.op_power import op_power_records
from joulecast.calibrate.ops import (
    KINDS,
    OperatorRecords,
    operator_columns,
    operator_records,
    parquet_library,
)
from joulecast.errors import JoulecastError, RunsError, UsageError
from joulecast.hardware.catalogue import load_gpu
from joulecast.model.rows import Booleans, Integers
from joulecast.workload.table import Strings

#: First bytes of a parquet file. Source: Apache Parquet, file format.
_PARQUET_MAGIC: Final = b"PAR1"

#: Columns that tell the files apart.
OPERATOR_COLUMNS: Final = ("op", "gpu", "dtype", "latency_s")
OP_POWER_COLUMNS: Final = ("op", "gpu", "dtype", "case", "kernel_latency_s", "mean_power_w")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFile:
    """Measured operators.

    Attributes
    ----------
    path : Path
    is_parquet : bool
        What it is, and so what is written.
    columns : mapping of str to sequence
        The file as it stands. [row]
    records : OperatorRecords [record]
    i_row : ndarray of int [record]
        Row of each record, from 0.
    source : ndarray of str [record]
    suspect : ndarray of str [record]
        A reason to doubt the record; empty for none.
    skipped : mapping of int to str
        Rows without a record, and why.
    """

    path: Path
    is_parquet: bool
    columns: Mapping[str, Sequence[Any]]
    records: OperatorRecords
    i_row: Integers
    source: Strings
    suspect: Strings
    skipped: Mapping[int, str]

    @property
    def n_rows(self) -> int:
        """Rows of the file."""
        return len(self.columns["op"])


def holds_operators(path: str | Path) -> bool:
    """Return whether a file has the columns of measured operators, rather than those of runs.

    Raises
    ------
    UsageError
        There is no such file, or it cannot be read.
    """
    if _is_parquet(path):
        return True
    header = _csv_header(path)
    return any(set(columns) <= set(header) for columns in (OPERATOR_COLUMNS, OP_POWER_COLUMNS))


def load_operator_file(path: str | Path) -> OperatorFile:
    """Load measured operators.

    Raises
    ------
    UsageError
        There is no such file.
    RunsError
        It lacks a column, has no rows, or holds a latency or power that cannot be.
    MissingExtraError
        It is parquet, and pyarrow is not installed.
    """
    if _is_parquet(path):
        return _parquet_file(Path(path))
    columns = _csv_columns(path)
    if set(OP_POWER_COLUMNS) <= set(columns):
        return _op_power_file(Path(path), columns)
    raise RunsError(
        f"{path} has operators, but not as a table with {', '.join(OP_POWER_COLUMNS)}: "
        "give single operators as parquet"
    )


def _is_parquet(path: str | Path) -> bool:
    try:
        with Path(path).open("rb") as file:
            return file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error


# --- single operators -----------------------------------------------------------------------------


def _parquet_file(path: Path) -> OperatorFile:
    parquet = parquet_library()
    from pyarrow import ArrowException

    try:
        document = parquet.read_table(path)
    except (OSError, ValueError, ArrowException) as error:
        raise RunsError(f"{path} is not a whole parquet file: {error}") from error
    missing = [name for name in (*OPERATOR_COLUMNS, "source") if name not in document.column_names]
    if missing:
        raise RunsError(f"{path} lacks the columns {', '.join(missing)} of measured operators")
    if not document.num_rows:
        raise RunsError(f"{path} has no rows: nothing to predict")
    columns = {name: document[name].to_pylist() for name in document.column_names}
    skipped = _skipped(columns)
    source = np.array(columns["source"], dtype=np.str_)
    kept = np.array([i for i in range(document.num_rows) if i not in skipped], dtype=np.int64)
    if not len(kept):
        raise RunsError(f"{path}: no operator can be predicted: {skipped[0]}")
    numbers = operator_columns(document, path)
    records = operator_records({name: values[kept] for name, values in numbers.items()})
    return OperatorFile(
        path=path,
        is_parquet=True,
        columns=columns,
        records=records,
        i_row=kept,
        source=source[kept],
        suspect=np.full(len(kept), ""),
        skipped=skipped,
    )


def _skipped(columns: Mapping[str, Sequence[Any]]) -> dict[int, str]:
    """Return the rows that name what is not known, and what."""
    why_gpu = {name: _why_no_gpu(name) for name in set(columns["gpu"])}
    phases = columns.get("phase") or ["forward"] * len(columns["op"])
    skipped = {}
    for i, (op, gpu, dtype, phase) in enumerate(
        zip(columns["op"], columns["gpu"], columns["dtype"], phases, strict=True)
    ):
        if op not in KINDS:
            skipped[i] = f"operator {op!r} is not modelled on its own"
        elif phase != "forward":
            skipped[i] = f"phase {phase!r} is not compared yet"
        elif dtype not in _DTYPES:
            skipped[i] = f"dtype {dtype!r} is none of {', '.join(_DTYPES)}"
        elif why_gpu[gpu]:
            skipped[i] = why_gpu[gpu]
    return skipped


_DTYPES: Final = ("fp32", "bf16", "fp16")


def _why_no_gpu(name: str) -> str:
    try:
        load_gpu(name)
    except JoulecastError as error:
        return " ".join(str(error).split())
    return ""


# --- operators with power -------------------------------------------------------------------------


def _op_power_file(path: Path, columns: Mapping[str, list[str]]) -> OperatorFile:
    latency_s = _positive(path, columns, "kernel_latency_s")
    power_w = _positive(path, columns, "mean_power_w")
    found = op_power_records(columns, latency_s, power_w)
    skipped = dict(found.skipped)
    why_gpu = {name: _why_no_gpu(name) for name in set(columns["gpu"])}
    known: Booleans = np.array([not why_gpu[columns["gpu"][i]] for i in found.i_row.tolist()], dtype=np.bool_)
    skipped |= {i: why_gpu[columns["gpu"][i]] for i in found.i_row[~known].tolist()}
    if not np.any(known):
        raise RunsError(f"{path}: no operator can be predicted: {next(iter(skipped.values()))}")
    return OperatorFile(
        path=path,
        is_parquet=False,
        columns=columns,
        records=found.records.rows(known),
        i_row=found.i_row[known],
        source=_sources(columns)[found.i_row[known]],
        suspect=found.suspect[known],
        skipped=skipped,
    )


def _sources(columns: Mapping[str, list[str]]) -> Strings:
    """Return where each row comes from; ``-`` where the file does not say."""
    given = columns.get("source") or [""] * len(columns["op"])
    return np.array([text.strip() or "-" for text in given], dtype=np.str_)


def _csv_header(path: str | Path) -> list[str]:
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            return [name.strip() for name in next(csv.reader(file), [])]
    except (UnicodeDecodeError, csv.Error):  # the loader of runs says what is wrong
        return []


def _csv_columns(path: str | Path) -> dict[str, list[str]]:
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise RunsError(f"{path} is not a CSV file in UTF-8: {error}") from error
    if not rows:
        raise RunsError(f"{path} has a header and no rows: nothing to predict")
    for line, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise RunsError(f"{path} line {line}: not as many cells as columns")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _positive(path: Path, columns: Mapping[str, list[str]], name: str) -> np.ndarray[Any, Any]:
    """Return a column of numbers above 0; NaN where a cell is empty."""
    numbers = np.full(len(columns[name]), np.nan)
    for i, cell in enumerate(columns[name]):
        if not cell.strip():
            continue
        try:
            numbers[i] = float(cell)
        except ValueError:
            numbers[i] = np.nan
        if not (isfinite(numbers[i]) and numbers[i] > 0):
            raise RunsError(
                f"{path} line {i + 2}: {name} is {cell!r}, not a number above 0: "
                "correct the cell, or empty it where nothing was measured"
            )
    return numbers

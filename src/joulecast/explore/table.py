"""The table of a sweep: columns in memory, and its files.

In: columns, or a Parquet or CSV file. Out: `SweepResult`. Knows no model.
"""

import csv
import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from joulecast.errors import MissingExtraError, RunsError, UsageError
from joulecast.model.step import BOUNDS
from joulecast.results import QUANTITIES, data_frame
from joulecast.whole_file import whole_file

Column = npt.NDArray[Any]

TEXT_COLUMNS: Final = frozenset(
    (
        *("model", "gpu", "gpu_name", "parallel", "precision", "mode", "optimizer", "memory_format"),
        *("attention", "memory_verdict", "bound_by", "origin", "flags", "guesses", "notes"),
        "skipped_reason",
    )
)
BOOL_COLUMNS: Final = frozenset(("checkpointing", "clip"))
INTEGER_COLUMNS: Final = frozenset(("n_gpus", "accumulate"))

#: Every column, in the order of a file.
COLUMNS: Final = (
    *("model", "gpu", "gpu_name", "n_gpus", "parallel", "precision", "mode", "batch_per_gpu"),
    *("global_batch", "seq_len", "image_size", "optimizer", "memory_format", "attention"),
    *("checkpointing", "accumulate", "clip", "power_limit_w", "locked_sm_clock_hz", "n_sms"),
    *(f"{end}{name}" for name in QUANTITIES for end in ("", "low_", "high_")),
    *("mfu_peak_flop_per_s", "model_flop", "capacity_bytes", "memory_verdict", "bound_by"),
    *(f"{bound}_time_share_frac" for bound in BOUNDS),
    *("origin", "flags", "guesses", "notes", "skipped_reason"),
)

#: Whole numbers that a configuration may lack.
_OPTIONAL_INTEGERS: Final = frozenset(("seq_len", "image_size", "n_sms"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Predictions of many configurations, as columns.

    Attributes
    ----------
    columns : mapping of str to ndarray [config]
        Every name of `COLUMNS`. Numbers are float64 in SI units, NaN where there is none (``n_gpus`` and
        ``accumulate`` are int64); texts are object arrays of str, None where there is none; ``checkpointing``
        and ``clip`` are bool. A quantity ``x`` has its 90 % interval beside it in ``low_x`` and ``high_x``.
        ``locked_sm_clock_hz`` is the clock asked for, ``sm_clock_hz`` the one predicted. ``flags``,
        ``guesses`` and ``notes`` are joined by ``"; "``. ``skipped_reason`` is empty where there is a
        prediction; elsewhere it says why not, and all quantities are NaN.
    """

    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.columns["skipped_reason"])

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    @property
    def predicted(self) -> npt.NDArray[np.bool_]:
        """Whether each configuration could be predicted. [config]."""
        chosen: npt.NDArray[np.bool_] = self.columns["skipped_reason"] == ""
        return chosen

    def where(self, selection: npt.NDArray[Any]) -> "SweepResult":
        """Return the configurations that a mask or indices select."""
        return SweepResult(columns={name: column[selection] for name, column in self.columns.items()})

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one flat row per configuration: None where there is no value."""
        columns = {name: _plain(name, column) for name, column in self.columns.items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame`, one row per configuration.

        Raises
        ------
        MissingExtraError
            pandas is not installed.
        """
        return data_frame(self.to_rows())

    def save(self, path: str | Path) -> None:
        """Save to ``.parquet`` (extra ``data``) or ``.csv``; the old file stays whole until then.

        Raises
        ------
        UsageError
            The name ends otherwise.
        MissingExtraError
            pyarrow is not installed.
        """
        content = table_bytes(self, check_format(Path(path)))
        with whole_file(path) as partial:
            partial.write_bytes(content)


def concatenate(results: Sequence[SweepResult]) -> SweepResult:
    """Return the configurations of all results, in order."""
    return SweepResult(columns={name: np.concatenate([r[name] for r in results]) for name in COLUMNS})


def table_of(rows: Sequence[Mapping[str, Any]]) -> SweepResult:
    """Return flat rows as columns; a cell that is missing, None or empty has no value."""
    return SweepResult(columns={name: _column(name, [row.get(name) for row in rows]) for name in COLUMNS})


def _column(name: str, cells: list[Any]) -> Column:
    if name in TEXT_COLUMNS:
        column = np.empty(len(cells), dtype=object)
        column[:] = [cell or ("" if name == "skipped_reason" else None) for cell in cells]
        return column
    if name in BOOL_COLUMNS:
        return np.array([cell in (True, "True", "true") for cell in cells], dtype=np.bool_)
    numbers = np.array([np.nan if cell in (None, "") else float(cell) for cell in cells], dtype=np.float64)
    return numbers.astype(np.int64) if name in INTEGER_COLUMNS else numbers


def _plain(name: str, column: Column) -> list[Any]:
    """Return a column as a list of plain values."""
    values: list[Any] = column.tolist()
    if name in TEXT_COLUMNS or name in BOOL_COLUMNS or name in INTEGER_COLUMNS:
        return values
    number = int if name in _OPTIONAL_INTEGERS else float
    return [number(value) if value == value else None for value in values]  # noqa: PLR0124  (NaN)


def texts(values: Sequence[Any]) -> Column:
    """Return texts as an object array, whatever they are."""
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def empty_column(name: str, n_rows: int) -> Column:
    """Return a column without values."""
    return np.full(n_rows, None, dtype=object) if name in TEXT_COLUMNS else np.full(n_rows, np.nan)


# --- files ----------------------------------------------------------------------------------------

_FORMATS: Final = (".parquet", ".csv")

#: Texts repeat and numbers do not.
_PARQUET: Final[Mapping[str, Any]] = {"compression": "zstd", "use_dictionary": sorted(TEXT_COLUMNS)}


def check_format(path: Path) -> str:
    """Return the ending of a file of a sweep, if it is one that can be."""
    ending = path.suffix.lower()
    if ending not in _FORMATS:
        raise UsageError(f"{path}: a sweep is kept in a file that ends in {' or '.join(_FORMATS)}")
    return ending


def load_sweep(path: str | Path) -> SweepResult:
    """Load a sweep from a file that `SweepResult.save` or ``joulecast sweep`` wrote.

    Raises
    ------
    UsageError
        There is no such file, or its name ends otherwise.
    RunsError
        It is no file of a sweep.
    MissingExtraError
        pyarrow is not installed.
    """
    source = Path(path)
    ending = check_format(source)
    if not source.is_file():
        raise UsageError(f"no such file: {source}")
    return _read_csv(source) if ending == ".csv" else _read_parquet(source)


def table_bytes(result: SweepResult, ending: str) -> bytes:
    """Return the content of a file of a sweep.

    Raises
    ------
    MissingExtraError
        pyarrow is not installed.
    """
    if ending == ".csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(row.values() for row in result.to_rows())
        return text.getvalue().encode()
    parquet = pyarrow_parquet()
    buffer = io.BytesIO()
    parquet.write_table(arrow_table(result), buffer, **_PARQUET)
    return buffer.getvalue()


def join_files(parts: Sequence[Path], target: Path) -> None:
    """Join files of one sweep, in order, into one; the old file stays whole until then."""
    if check_format(target) == ".csv":
        with whole_file(target) as partial, partial.open("wb") as out:
            for i, part in enumerate(parts):
                with part.open("rb") as file:
                    header = file.readline()
                    out.write(b"" if i else header)
                    shutil.copyfileobj(file, out)
        return
    parquet = pyarrow_parquet()
    schema = parquet.read_schema(parts[0])
    with whole_file(target) as partial, parquet.ParquetWriter(partial, schema, **_PARQUET) as writer:
        for part in parts:
            writer.write_table(parquet.read_table(part))


def _read_csv(path: Path) -> SweepResult:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            _check_columns(path, reader.fieldnames or ())
            return table_of(list(reader))
    except (csv.Error, UnicodeDecodeError, ValueError) as error:
        raise RunsError(f"{path} is not the table of a sweep: {error}") from None


def _read_parquet(path: Path) -> SweepResult:
    parquet = pyarrow_parquet()
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise RunsError(f"{path} is not the table of a sweep: {error}") from None
    _check_columns(path, table.column_names)
    return table_of_arrow(table)


def _check_columns(path: Path, names: Sequence[str]) -> None:
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise RunsError(f"{path} is not the table of a sweep: it lacks {', '.join(missing[:5])}")


def pyarrow_parquet() -> Any:
    """Return `pyarrow.parquet`."""
    try:
        import pandas  # noqa: F401  (numbers the texts)
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError(
            "a Parquet file needs pyarrow and pandas: pip install 'joulecast[data]', or name the file .csv"
        ) from error
    return parquet


def arrow_table(result: SweepResult) -> Any:
    """Return a `pyarrow.Table`: texts as dictionaries, NaN as null."""
    import pandas as pd
    import pyarrow as pa

    arrays = []
    for name in COLUMNS:
        if name in TEXT_COLUMNS:
            number, texts = pd.factorize(result[name])
            coded = pa.array(number, type=pa.int32(), mask=number < 0)
            arrays.append(pa.DictionaryArray.from_arrays(coded, pa.array(texts, type=pa.string())))
        else:
            arrays.append(pa.array(result[name], from_pandas=True))
    return pa.table(arrays, names=list(COLUMNS))


def table_of_arrow(table: Any) -> SweepResult:
    """Return the columns of a `pyarrow.Table` that `arrow_table` made."""
    columns = {}
    for name in COLUMNS:
        column = table.column(name)
        if name in TEXT_COLUMNS:
            columns[name] = _column(name, column.to_pylist())
        else:
            columns[name] = np.asarray(column.to_numpy())
    return SweepResult(columns=columns)

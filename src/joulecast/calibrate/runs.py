"""Files of measured runs: in a CSV path, out `Run` records.

Columns and units are those of a tidy table of runs: one row per run, SI units, empty cells where nothing is
known or was measured. Reading refuses a corrupt file as a whole, with the line and column; it knows nothing
of models and cards, so a name it cannot judge is passed on.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Final

from joulecast.errors import RunsError, UsageError

if TYPE_CHECKING:
    from _csv import Reader as CsvReader

#: Columns without which a row says nothing.
REQUIRED_COLUMNS: Final = ("model", "gpu", "batch_per_gpu")

#: Measured columns, in the order of the reports.
MEASURED_COLUMNS: Final = ("step_time_s", "mean_power_w", "energy_per_step_j", "peak_memory_bytes")

#: Configuration columns that hold numbers > 0.
NUMBER_COLUMNS: Final = (
    "n_gpus",
    "batch_per_gpu",
    "seq_len",
    "image_size",
    "power_limit_w",
    "sm_clock_hz",
    "n_sms",
)

#: Meters that read the device, context and libraries included, rather than torch's allocator.
DEVICE_METERS: Final = ("NVML device used", "DCGM framebuffer used")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row of a file of runs.

    Attributes
    ----------
    line : int
        Line of the file, for messages.
    cells : mapping of str to str
        The row as it stands, unknown columns included.
    numbers : mapping of str to float
        `NUMBER_COLUMNS` that are filled in. SI units.
    measured : mapping of str to float
        `MEASURED_COLUMNS` that are filled in. SI units.
    """

    line: int
    cells: Mapping[str, str]
    numbers: Mapping[str, float]
    measured: Mapping[str, float]

    @property
    def run_id(self) -> str:
        """The row's own key, or its line."""
        return self.text("run_id") or f"line {self.line}"

    @property
    def source(self) -> str:
        """Where the row comes from; ``-`` where the file does not say."""
        return self.text("source") or "-"

    @property
    def gpu(self) -> str:
        """The card, as the file names it."""
        return self.text("gpu")

    @property
    def is_suspect(self) -> bool:
        """Whether the file gives a reason to doubt the row."""
        return bool(self.text("suspect"))

    @property
    def is_device_memory(self) -> bool:
        """Whether the memory was read from the device rather than from torch's allocator."""
        return self.text("memory_meter") in DEVICE_METERS

    def text(self, column: str) -> str:
        """Return a cell, stripped; empty where the file lacks the column."""
        return (self.cells.get(column) or "").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsFile:
    """A file of runs.

    Attributes
    ----------
    columns : tuple of str
        Its header.
    runs : tuple of Run
    """

    columns: tuple[str, ...]
    runs: tuple[Run, ...]


def load_runs(path: str | Path) -> RunsFile:
    """Load a file of runs.

    Raises
    ------
    UsageError
        There is no such file.
    RunsError
        The file cannot be read, lacks a needed column, or a cell holds what cannot be.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            columns = _header(path, reader)
            runs = tuple(_runs(path, reader, columns))
    except FileNotFoundError:
        raise UsageError(f"no such file of runs: {path}") from None
    except OSError as error:
        raise RunsError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RunsError(f"{path} is not a text file in UTF-8: give a CSV file of runs") from error
    except csv.Error as error:
        raise RunsError(f"{path} is not a CSV file: line {reader.line_num}: {error}") from error
    if not runs:
        raise RunsError(f"{path} has a header and no rows: nothing to predict")
    return RunsFile(columns=columns, runs=runs)


def _header(path: str | Path, rows: "CsvReader") -> tuple[str, ...]:
    columns = tuple(name.strip() for name in next(rows, []))
    if not columns:
        raise RunsError(f"{path} is empty: give a CSV file of runs with a header")
    missing = [name for name in REQUIRED_COLUMNS if name not in columns]
    if missing:
        raise RunsError(
            f"{path} lacks the column {', '.join(missing)}: see docs/json.md for the columns of runs"
        )
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise RunsError(f"{path} has the column {', '.join(twice)} more than once: rename or drop one")
    return columns


def _runs(path: str | Path, rows: "CsvReader", columns: tuple[str, ...]) -> Iterator[Run]:
    for cells in rows:
        line = rows.line_num
        if not cells:
            continue
        if len(cells) != len(columns):
            raise RunsError(
                f"{path} line {line}: {len(cells)} cells under {len(columns)} columns: "
                "quote cells that hold a comma"
            )
        yield _run(path, line, dict(zip(columns, cells, strict=True)))


def _run(path: str | Path, line: int, cells: Mapping[str, str]) -> Run:
    return Run(
        line=line,
        cells=cells,
        numbers=_positive(path, line, cells, NUMBER_COLUMNS),
        measured=_positive(path, line, cells, MEASURED_COLUMNS),
    )


def _positive(
    path: str | Path, line: int, cells: Mapping[str, str], columns: tuple[str, ...]
) -> dict[str, float]:
    """Return the filled-in numbers of a row; refuse text, NaN, infinities and numbers that are not > 0."""
    numbers = {}
    for column in columns:
        cell = (cells.get(column) or "").strip()
        if not cell:
            continue
        try:
            number = float(cell)
        except ValueError:
            number = float("nan")
        if not isfinite(number) or number <= 0:
            raise RunsError(
                f"{path} line {line}: {column} is {cell!r}, not a number above 0: "
                "correct the cell, or empty it where nothing is known"
            )
        numbers[column] = number
    return numbers

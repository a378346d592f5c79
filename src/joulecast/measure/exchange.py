"""Runs to and from files: the CSV of a file of runs, JSON lines, and CodeCarbon's emissions.csv.

Enters: text files. Leaves: `StoredRun`. A corrupt file is refused as a whole, with the line. It must not know
databases.
"""

import csv
import io
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Any, Final

from joulecast.errors import JoulecastError, RunsError, UsageError
from joulecast.hardware.catalogue import load_gpu
from joulecast.measure.stored import RUN_COLUMNS, RunValue, StoredRun
from joulecast.results import MEASURED_QUANTITIES, MeasuredQuantity, Measurement, RunStatus
from joulecast.units import J_PER_KWH

#: Columns without which a row says nothing.
_REQUIRED_COLUMNS: Final = ("model", "gpu", "batch_per_gpu")
#: Columns by which CodeCarbon's file is known.
_CODECARBON_COLUMNS: Final = frozenset({"run_id", "duration", "energy_consumed", "gpu_energy", "timestamp"})
#: Space of the ids of rows that have none: the same row gets the same id.
_ROW_IDS: Final = uuid.UUID("6a6f756c-6563-4173-9400-000000000001")


class RunsFormat(StrEnum):
    """Files of runs: the columns of a file of runs, one JSON record a line, what CodeCarbon writes."""

    CSV = "csv"
    JSON_LINES = "jsonl"
    CODECARBON = "codecarbon"


# --- out ------------------------------------------------------------------------------------------


def runs_csv(runs: Iterable[StoredRun]) -> str:
    """Return runs as the CSV of a file of runs, which `joulecast validate` and `calibrate` take."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(RUN_COLUMNS)
    writer.writerows(run.row.values() for run in runs)
    return text.getvalue()


def runs_json_lines(runs: Iterable[StoredRun]) -> str:
    """Return runs as JSON, one a line: nothing is left out."""
    return "".join(json.dumps(run.to_dict(), allow_nan=False) + "\n" for run in runs)


# --- in -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRuns:
    """The runs of a file, and the columns of it that a run does not have."""

    runs: tuple[StoredRun, ...]
    left_out: tuple[str, ...] = ()


def load_runs_file(path: str | Path, kind: RunsFormat | None = None) -> LoadedRuns:
    """Load the runs of a file.

    Parameters
    ----------
    path : str or Path
    kind : RunsFormat, optional
        By default what the file looks like.

    Raises
    ------
    UsageError
        There is no such file.
    RunsError
        It cannot be read, or something in it cannot be.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"no such file of runs: {path}") from None
    except OSError as error:
        raise RunsError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RunsError(f"{path} is not a text file in UTF-8") from error
    kind = kind or _kind(text)
    try:
        runs = tuple(_READERS[kind](text))
    except RunsError as error:
        raise RunsError(f"{path} {error}") from error
    if not runs:
        raise RunsError(f"{path} holds no runs")
    return LoadedRuns(runs=runs, left_out=_unknown_columns(text) if kind is RunsFormat.CSV else ())


def _kind(text: str) -> RunsFormat:
    first = text.lstrip().partition("\n")[0]
    if first.startswith("{"):
        return RunsFormat.JSON_LINES
    columns = {name.strip() for name in first.split(",")}
    return RunsFormat.CODECARBON if columns >= _CODECARBON_COLUMNS else RunsFormat.CSV


def _from_json_lines(text: str) -> Iterator[StoredRun]:
    for i_line, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            plain = json.loads(line)
            if not isinstance(plain, dict):
                raise RunsError("not a JSON object")
            yield StoredRun.from_dict(plain)
        except (RunsError, json.JSONDecodeError) as error:
            raise RunsError(f"line {i_line}: {error}") from error


def _table(text: str, required: Iterable[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Return line and cells of every row of a CSV file."""
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        columns = [name.strip() for name in next(reader, [])]
        missing = [name for name in required if name not in columns]
        if missing:
            raise RunsError(f"lacks the column {', '.join(missing)}")
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(columns):
                raise RunsError(
                    f"line {reader.line_num}: {len(cells)} cells under {len(columns)} columns: "
                    "quote cells that hold a comma"
                )
            yield reader.line_num, {c: cell.strip() for c, cell in zip(columns, cells, strict=True)}
    except csv.Error as error:
        raise RunsError(f"is not a CSV file: line {reader.line_num}: {error}") from error


def _from_csv(text: str) -> Iterator[StoredRun]:
    for line, cells in _table(text, _REQUIRED_COLUMNS):
        row = {name: _value(line, name, cells.get(name, "")) for name in RUN_COLUMNS}
        if not row["run_id"]:
            row["run_id"] = str(uuid.uuid5(_ROW_IDS, json.dumps(row)))
        yield StoredRun(row=row)


def _unknown_columns(text: str) -> tuple[str, ...]:
    columns = next(csv.reader(io.StringIO(text)))
    return tuple(name.strip() for name in columns if name.strip() not in RUN_COLUMNS)


def _value(line: int, column: str, cell: str) -> RunValue:
    """Return what a cell holds; numbers are above 0, as every quantity of a run is."""
    kind = RUN_COLUMNS[column]
    if not cell:
        return None
    if kind is str:
        return cell
    if kind is bool:
        if cell.lower() not in _TRUTH:
            raise RunsError(f"line {line}: {column} is {cell!r}, not True or False")
        return _TRUTH[cell.lower()]
    number = _number(cell)
    if number is None or number <= 0 or (kind is int and number != int(number)):
        wanted = "a whole number above 0" if kind is int else "a number above 0"
        raise RunsError(
            f"line {line}: {column} is {cell!r}, not {wanted}: "
            "correct the cell, or empty it where nothing is known"
        )
    return int(number) if kind is int else number


_TRUTH: Final = {"true": True, "false": False, "1": True, "0": False}


def _number(cell: str) -> float | None:
    """Return a finite number, None for anything else."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if isfinite(number) else None


# --- CodeCarbon -----------------------------------------------------------------------------------

_NO_STEPS: Final = MeasuredQuantity.absent(
    "CodeCarbon counts no steps", remedy="measure the steps: `joulecast measure MODEL`"
)
_NOT_KEPT: Final = MeasuredQuantity.absent("CodeCarbon's file does not hold it")


def _from_codecarbon(text: str) -> Iterator[StoredRun]:
    """Return the runs of an emissions.csv; rows of one run_id are states of one run, and the last counts."""
    last: dict[str, tuple[int, dict[str, str]]] = {}
    for line, cells in _table(text, sorted(_CODECARBON_COLUMNS)):
        if not cells["run_id"]:
            raise RunsError(f"line {line}: a row without a run_id")
        before = last.get(cells["run_id"])
        if before is None or _amount(line, cells, "duration") >= _amount(*before, "duration"):
            last[cells["run_id"]] = line, cells
    for line, cells in last.values():
        yield StoredRun.of(_codecarbon_run(line, cells), source="CodeCarbon")


def _amount(line: int, cells: Mapping[str, str], column: str, absent: float | None = None) -> float:
    """Return an amount >= 0 of a row; `absent`, if given, where the file lacks it."""
    cell = cells.get(column, "")
    if not cell and absent is not None:
        return absent
    number = _number(cell)
    if number is None or number < 0:
        raise RunsError(f"line {line}: {column} is {cell!r}, not a number of 0 or more")
    return number


def _codecarbon_run(line: int, cells: Mapping[str, str]) -> Measurement:
    """Return the record of one run.

    Notes
    -----
    CodeCarbon states durations in seconds and energies in kWh, each multiplied by the PUE of the data centre
    if one was given [1]_; the record has what the devices drew. GPU energy is NVML's counter, or polled
    power. Whether CPU energy was metered (RAPL) or guessed from a nominal power the file does not say, and
    memory is always guessed: neither becomes a measured quantity; both stay in the notes.

    References
    ----------
    .. [1] CodeCarbon 3.3.2, ``emissions_tracker.py``: ``_do_measurements``; ``external/ram.py``.
    """
    duration_s = _amount(line, cells, "duration")
    pue = _amount(line, cells, "pue", absent=1.0) or 1.0
    energy_j = {
        part: _amount(line, cells, f"{part}_energy", absent=0.0) * J_PER_KWH / pue
        for part in ("gpu", "cpu", "ram")
    }
    n_gpus = int(_amount(line, cells, "gpu_count", absent=0.0)) or None
    gpu_name = re.sub(r"^\d+ x ", "", cells.get("gpu_model", "")) or None
    gpu_energy = _codecarbon_gpu_energy(energy_j["gpu"], n_gpus)
    absent: dict[str, Any] = {
        name: _NO_STEPS if name in _OF_STEPS else _NOT_KEPT for name in MEASURED_QUANTITIES
    }
    measured = {
        "gpu_energy_j": gpu_energy,
        "cpu_energy_j": MeasuredQuantity.absent(
            "CodeCarbon's file does not say whether the CPU's energy was metered or guessed",
            remedy="see `joulecast doctor` for a counter of this machine",
        ),
        "dram_energy_j": MeasuredQuantity.absent("CodeCarbon guesses the memory's energy from its size"),
        "mean_power_w": gpu_energy.times(1 / (duration_s * (n_gpus or 1))) if duration_s else _NOT_KEPT,
    }
    return Measurement(
        run_id=cells["run_id"],
        started_at=_start(line, cells["timestamp"], duration_s),
        duration_s=duration_s,
        window_s=duration_s,
        status=RunStatus.COMPLETE,
        gpu=gpu_name and _slug(gpu_name),
        gpu_name=gpu_name,
        n_gpus=n_gpus,
        versions=_filled(cells, {"python": "python_version", "codecarbon": "codecarbon_version"}),
        host=_filled(cells, {"os": "os", "cpu": "cpu_model", "n_cpus": "cpu_count"}),
        flags=("CodeCarbon states no intervals",) if gpu_energy.value is not None else (),
        notes=_codecarbon_notes(cells, energy_j, pue),
        **(absent | measured),
    )


#: Quantities that a run without steps cannot have.
_OF_STEPS: Final = frozenset(
    "step_time_s samples_per_s tokens_per_s energy_per_step_j energy_per_sample_j samples_per_j".split()
)


def _codecarbon_gpu_energy(energy_j: float, n_gpus: int | None) -> MeasuredQuantity:
    if n_gpus is None:
        return MeasuredQuantity.absent("CodeCarbon saw no GPU")
    if energy_j == 0:
        return MeasuredQuantity.absent(
            "CodeCarbon wrote 0 kWh for its GPUs, which no GPU draws: it could not read them",
            remedy="see `joulecast doctor`",
        )
    return MeasuredQuantity(value=energy_j, low=energy_j, high=energy_j, method="codecarbon", scope="board")


def _codecarbon_notes(cells: Mapping[str, str], energy_j: Mapping[str, float], pue: float) -> tuple[str, ...]:
    notes = [
        "the start is in its machine's time zone, which the file does not state",
        f"CodeCarbon's CPU energy: {energy_j['cpu']:g} J (metered or guessed), "
        f"memory: {energy_j['ram']:g} J (guessed)",
    ]
    if pue != 1:
        notes.append(f"its energies were divided by the PUE of {pue:g} that they held")
    for label, column in (
        ("emissions in kg CO2e", "emissions"),
        ("country", "country_iso_code"),
        ("project", "project_name"),
        ("tracking mode", "tracking_mode"),
    ):
        if cells.get(column):
            notes.append(f"{label}: {cells[column]}")
    return tuple(notes)


def _filled(cells: Mapping[str, str], columns: Mapping[str, str]) -> dict[str, str]:
    return {key: cells[column] for key, column in columns.items() if cells.get(column)}


def _start(line: int, end: str, duration_s: float) -> str:
    """Return when a run began, from the time its row was written."""
    try:
        return (datetime.fromisoformat(end) - timedelta(seconds=duration_s)).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        raise RunsError(f"line {line}: timestamp is {end!r}, not a time in ISO 8601") from None


def _slug(gpu_name: str) -> str | None:
    """Return the catalogue's name of a card, None where it is not there."""
    try:
        return load_gpu(gpu_name).slug
    except JoulecastError:
        return None


_READERS: Final[Mapping[RunsFormat, Any]] = {
    RunsFormat.CSV: _from_csv,
    RunsFormat.JSON_LINES: _from_json_lines,
    RunsFormat.CODECARBON: _from_codecarbon,
}

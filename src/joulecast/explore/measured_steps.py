"""Steps already measured: a log of steps, a record of a run, or an id of the store -> `MeasuredSteps`.

Enters: the path or id a user names. Leaves: the mean step, how sure that mean is, and what ran where the
source says so. It knows no prediction.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from math import isfinite, log, sqrt
from pathlib import Path
from typing import Any, Final

import numpy as np

from joulecast.calibrate.runs import MEASURED_COLUMNS, NUMBER_COLUMNS, Run, load_runs
from joulecast.calibrate.validation import scenario_of
from joulecast.errors import MissingExtraError, RunsError, UsageError
from joulecast.results import Z90
from joulecast.scenario import Scenario
from joulecast.workload.table import Floats

#: Columns of a log of steps; the last is of all GPUs of the job, and may be missing.
STEP_COLUMNS: Final = ("step", "step_time_s", "energy_j")

#: Steps at the start that are left out of the mean, where more are there: compilation, autotuning, caches.
USUAL_WARMUP_STEPS: Final = 10
_LARGEST_WARMUP_FRAC: Final = 0.2
_FEWEST_STEPS: Final = 5
#: Steps are averaged in so many blocks, longer than the steps' memory of each other, to see how sure the mean
#: is.
_N_BLOCKS: Final = 10
_FEWEST_PER_BLOCK: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean that was measured.

    Attributes
    ----------
    value : float
    log_sd : float
        Standard deviation of its logarithm. [1]
    """

    value: float
    log_sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSteps:
    """What a meter says of a run's steps.

    Attributes
    ----------
    source : str
        For people.
    n_done : int
        Steps of the run that are over; 0 where the record is of another run of the kind.
    done_time_s, done_energy_j : float or None
        Of those, warm-up included; all GPUs; None without a meter of energy. [s], [J]
    n_averaged : int
        Steps in the means.
    step_time_s : Mean
        [s]
    energy_per_step_j : Mean or None
        Of all GPUs. [J]
    scenario : Scenario or None
        What ran, where the source says so.
    """

    source: str
    n_done: int
    done_time_s: float
    done_energy_j: float | None
    n_averaged: int
    step_time_s: Mean
    energy_per_step_j: Mean | None
    scenario: Scenario | None = None


def load_measured(text: str, *, store: str | None = None, n_warmup: int | None = None) -> MeasuredSteps:
    """Load what was measured.

    Parameters
    ----------
    text : str
        A CSV or JSON lines file of steps (`STEP_COLUMNS`); a file of runs with one row, or ``FILE#RUN_ID``; a
        JSON lines file of one record; or the id of a run in the store.
    store : str, optional
        Of the measurement store; by default its own.
    n_warmup : int, optional
        Steps at the start of a log to leave out of the mean; by default at most `USUAL_WARMUP_STEPS`.

    Raises
    ------
    UsageError
        There is no such file or run, or it holds too few steps.
    RunsError
        The file is corrupt.
    """
    name, _, run_id = text.partition("#")
    path = Path(name)
    if not path.is_file():
        if path.suffix in {".csv", ".jsonl", ".json"}:
            raise UsageError(f"no such file of measured steps or runs: {name}")
        return _from_store(text, store)
    columns, rows = _rows_of(path)
    if "step" in columns:
        return steps_measured(rows, source=path.name, n_warmup=n_warmup)
    if path.suffix == ".csv":
        return _from_runs_file(path, run_id)
    if len(rows) != 1:
        raise UsageError(f"{name} holds {len(rows)} records: give one, or a log with the column step")
    return record_measured(rows[0][1], source=path.name)


def _rows_of(path: Path) -> tuple[set[str], list[tuple[int, Mapping[str, Any]]]]:
    """Return the columns of a file's first row, and its rows with their lines."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            if path.suffix == ".csv":
                reader = csv.DictReader(file, strict=True)
                return set(reader.fieldnames or ()), [(reader.line_num, row) for row in reader]
            numbered = [(i, json.loads(line)) for i, line in enumerate(file, start=1) if line.strip()]
    except (OSError, UnicodeDecodeError, csv.Error, json.JSONDecodeError) as error:
        raise RunsError(f"cannot read {path} as steps or runs: {error}") from error
    for i_line, row in numbered:
        if not isinstance(row, dict):
            raise RunsError(f"{path} line {i_line} is no JSON object")
    return set(numbered[0][1]) if numbered else set(), numbered


# --- a log of steps -------------------------------------------------------------------------------


def steps_measured(
    rows: list[tuple[int, Mapping[str, Any]]], *, source: str, n_warmup: int | None = None
) -> MeasuredSteps:
    """Return what a log of steps says.

    Parameters
    ----------
    rows : list of (int, mapping)
        Line and cells under `STEP_COLUMNS`, by rising step.
    source : str
        For people.
    n_warmup : int, optional
    """
    steps, time_s, energy_j = _columns(rows, source)
    if n_warmup is None:
        n_warmup = min(USUAL_WARMUP_STEPS, int(len(rows) * _LARGEST_WARMUP_FRAC))
    n_averaged = len(rows) - n_warmup
    if n_averaged < _FEWEST_STEPS:
        raise UsageError(
            f"{source} has {len(rows)} steps, {n_warmup} of them warm-up: "
            f"a forecast needs at least {_FEWEST_STEPS} after it"
        )
    n_done = int(steps[-1] - steps[0]) + 1  # a log may hold every tenth step
    return MeasuredSteps(
        source=source,
        n_done=n_done,
        done_time_s=float(time_s.mean()) * n_done,
        done_energy_j=None if energy_j is None else float(energy_j.mean()) * n_done,
        n_averaged=n_averaged,
        step_time_s=block_mean(time_s[n_warmup:]),
        energy_per_step_j=None if energy_j is None else block_mean(energy_j[n_warmup:]),
    )


def _columns(rows: list[tuple[int, Mapping[str, Any]]], source: str) -> tuple[Floats, Floats, Floats | None]:
    """Return steps, times and energies [step]; no energies where the log has none."""
    if not rows:
        raise RunsError(f"{source} has no steps")
    has_energy = rows[0][1].get("energy_j") not in (None, "")
    names = STEP_COLUMNS if has_energy else STEP_COLUMNS[:2]
    values = np.array([[_number(row, name, source, line) for name in names] for line, row in rows])
    for (line, _), (last, step) in zip(rows[1:], pairwise(values[:, 0]), strict=True):
        if step <= last:
            raise RunsError(f"{source} line {line}: step {step:g} does not come after {last:g}")
    return values[:, 0], values[:, 1], values[:, 2] if has_energy else None


def _number(row: Mapping[str, Any], name: str, source: str, line: int) -> float:
    cell = row.get(name)
    try:
        value = float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = float("nan")
    if not isfinite(value) or value < 0 or (value == 0 and name != "step"):
        raise RunsError(f"{source} line {line}: {name} is {cell!r}, not a number above 0")
    return value


def block_mean(values: Floats) -> Mean:
    """Return the mean of values [step], and how sure it is although neighbours go together.

    Notes
    -----
    The values are averaged in ``n = 10`` blocks (fewer where they are few); the spread of the blocks' means
    over ``sqrt(n)`` is the deviation of the whole mean, widened by Student's t to what so few blocks can say.

    References
    ----------
    .. [1] A. M. Law, Simulation Modeling and Analysis, 5th ed., 2015, section 9.5.3 (batch means).
    """
    from scipy import stats  # takes a third of a second to load

    n_blocks = max(min(_N_BLOCKS, len(values) // _FEWEST_PER_BLOCK), 2)
    length = len(values) // n_blocks
    # the steps that fill no block are the earliest
    blocks = values[len(values) - n_blocks * length :].reshape(n_blocks, length).mean(axis=1)
    mean = float(values.mean())
    spread = float(blocks.std(ddof=1)) / sqrt(n_blocks)
    widened = spread * float(stats.t.ppf(0.95, n_blocks - 1)) / Z90
    return Mean(value=mean, log_sd=widened / mean)


# --- records --------------------------------------------------------------------------------------


def _from_runs_file(path: Path, run_id: str) -> MeasuredSteps:
    runs = load_runs(path).runs
    found = [run for run in runs if not run_id or run.run_id == run_id]
    if len(found) != 1:
        which = f"{len(found)} rows with run_id {run_id!r}" if run_id else f"{len(found)} rows"
        raise UsageError(f"{path} has {which}: name one as {path}#RUN_ID")
    (run,) = found
    return record_measured(dict(run.cells), source=f"{path.name} {run.run_id}")


def _from_store(run_id: str, url: str | None) -> MeasuredSteps:
    try:
        module = import_module("joulecast.measure.store")
    except ImportError as error:
        raise MissingExtraError(
            f"{run_id!r} is no file, and looking it up in the store needs pip install 'joulecast[measure]'"
        ) from error
    with module.Store.open(url, create=False) as store:
        stored = store.get(run_id)
    plain = dict(stored.row) | (stored.measurement.to_dict() if stored.measurement else {})
    return record_measured(plain, source=f"run {stored.run_id}")


def record_measured(record: Mapping[str, Any], *, source: str) -> MeasuredSteps:
    """Return what one record says: a row under the columns of a file of runs, or a measurement's JSON form.

    Raises
    ------
    UsageError
        It holds no step time, or not what ran.
    """
    time_s = _mean_of(record, "step_time_s")
    if time_s is None:
        raise UsageError(f"{source} has no step_time_s: a forecast needs measured steps")
    energy_j = _mean_of(record, "energy_per_step_j")
    return MeasuredSteps(
        source=source,
        n_done=0,
        done_time_s=0.0,
        done_energy_j=0.0 if energy_j else None,
        n_averaged=int(record.get("n_steps") or 0),
        step_time_s=time_s,
        energy_per_step_j=energy_j,
        scenario=_scenario(record),
    )


def _mean_of(record: Mapping[str, Any], name: str) -> Mean | None:
    """Return a quantity; its deviation from the interval, where there is one."""
    cell = record.get(name)
    if isinstance(cell, Mapping):
        value, low, high = (cell.get(key) for key in ("value", "low", "high"))
    else:
        value, low, high = cell, record.get(f"low_{name}"), record.get(f"high_{name}")
    if value in (None, ""):
        return None
    number = _number({name: value}, name, "the record", 1)
    if low in (None, "") or high in (None, ""):
        return Mean(value=number, log_sd=0.0)
    return Mean(value=number, log_sd=log(float(high) / float(low)) / (2 * Z90))


def _scenario(record: Mapping[str, Any]) -> Scenario:
    """Return what a record ran."""

    def number(name: str) -> float | None:
        cell = record.get(name)
        return None if cell in (None, "") or isinstance(cell, Mapping) else float(cell)

    cells = {
        name: "" if value is None else str(value)
        for name, value in record.items()
        if not isinstance(value, (Mapping, list, tuple))
    }
    numbers = {name: value for name in NUMBER_COLUMNS if (value := number(name)) is not None}
    numbers.setdefault("sm_clock_hz", number("locked_sm_clock_hz") or 0.0)
    numbers = {name: value for name, value in numbers.items() if value > 0}
    measured = {name: value for name in MEASURED_COLUMNS if (value := number(name)) is not None}
    found = scenario_of(Run(line=1, cells=cells, numbers=numbers, measured=measured))
    accumulate = int(number("accumulate") or 1)
    return replace(
        found,
        accumulate=accumulate,
        batch_size=(found.batch_size or 0) / accumulate,
        checkpointing=cells.get("checkpointing", "").lower() in {"true", "1"},
        clip=cells.get("clip", "").lower() in {"true", "1"},
    )

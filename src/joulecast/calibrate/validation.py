"""How far predictions are from a meter: a file of runs in, errors by source and card out.

Every row is predicted, or skipped with a reason. Rows the file marks as suspect are predicted too, and their
errors stand apart.
"""

import csv
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import nan
from pathlib import Path
from typing import Any, Final

from joulecast.calibrate.comparisons import (
    Comparisons,
    ErrorSummary,
    comparisons_of,
    error_summaries,
    overall,
    unit_warnings,
)
from joulecast.calibrate.null_model import null_memory_bytes, null_power_w, null_step_time_s
from joulecast.calibrate.runs import MEASURED_COLUMNS, Run, RunsFile, load_runs
from joulecast.errors import JoulecastError, UsageError
from joulecast.model.parameters import ParameterSet, load_parameters
from joulecast.prediction import predict_scenario
from joulecast.results import Prediction, Quantity, data_frame
from joulecast.scenario import Scenario, runs_flash, settle_gpu, settle_step, trace_key, workload_of
from joulecast.whole_file import whole_file

VALIDATION_SCHEMA: Final = "joulecast/validation/1"

#: What a file of runs calls a choice, where it differs.
_PARALLEL: Final = {"": None, "none": None, "ddp": "ddp", "dp": "ddp"}
#: Sources whose script wraps the module for data parallelism at one GPU too: their measured peak allocation
#: at one GPU equals that at two, and exceeds an unwrapped module's by one copy of the gradients
#: (docs/decisions/validation-rows.md).
_ALWAYS_WRAPPED: Final = frozenset({"willgpaik/pytorch-ddp-scaling-benchmark"})
_UNMODELLED_PARALLEL: Final = {"tp": "tensor parallelism", "pp": "pipeline parallelism"}
#: Cells that leave a choice to the model's own default.
_UNKNOWN: Final = ("", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedRun:
    """One row with its prediction, or the reason why there is none.

    Attributes
    ----------
    run : Run
    prediction : Prediction or None
    skipped_reason : str
        Empty where there is a prediction.
    null : mapping of str to float
        What the null model predicts, by measured column. SI units.
    """

    run: Run
    prediction: Prediction | None
    skipped_reason: str
    null: Mapping[str, float] = field(default_factory=dict)

    def predicted(self, column: str) -> Quantity | None:
        """Return what compares with a measured column: process memory with a device's meter."""
        if self.prediction is None:
            return None
        if column == "peak_memory_bytes" and self.run.is_device_memory:
            return self.prediction.process_bytes
        quantity: Quantity = getattr(self.prediction, column)
        return quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Predictions against a file of runs.

    Attributes
    ----------
    columns : tuple of str
        Header of the file.
    rows : tuple of ValidatedRun
        In the file's order.
    compared : Comparisons
        A row for every measured number with a prediction, suspect ones included.
    errors : tuple of ErrorSummary
        Without the suspect rows.
    errors_with_suspect : tuple of ErrorSummary
        With them; over all sources and cards together only.
    warnings : tuple of str
        Columns whose unit looks wrong.
    """

    columns: tuple[str, ...]
    rows: tuple[ValidatedRun, ...]
    compared: Comparisons
    errors: tuple[ErrorSummary, ...]
    errors_with_suspect: tuple[ErrorSummary, ...]
    warnings: tuple[str, ...] = ()

    @property
    def n_predicted(self) -> int:
        """Rows with a prediction."""
        return sum(row.prediction is not None for row in self.rows)

    @property
    def n_suspect(self) -> int:
        """Rows that the file itself doubts."""
        return sum(row.run.is_suspect for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``joulecast validate --format json``."""
        return {
            "schema": VALIDATION_SCHEMA,
            "rows": len(self.rows),
            "predicted": self.n_predicted,
            "suspect": self.n_suspect,
            "flagged": sum(bool(row.prediction and row.prediction.flags) for row in self.rows),
            "skipped": [
                {"run_id": row.run.run_id, "reason": row.skipped_reason}
                for row in self.rows
                if row.prediction is None
            ],
            "errors": [asdict(summary) for summary in self.errors],
            "errors_with_suspect": [asdict(summary) for summary in self.errors_with_suspect],
            "warnings": list(self.warnings),
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the file's rows with predictions appended, as in the CSV output."""
        return [_appended(row) for row in self.rows]

    def to_frame(self) -> Any:
        """Return `to_rows` as a `pandas.DataFrame`."""
        return data_frame(self.to_rows())


def validate(
    runs: str | Path | RunsFile,
    *,
    parameters: ParameterSet | None = None,
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Validation:
    """Predict every row of a file of runs that can be, and compare.

    Parameters
    ----------
    runs : str, Path or RunsFile
    parameters : ParameterSet, optional
        By default the shipped set.
    progress : callable, optional
        Wraps the sequence of rows while they are predicted.

    Raises
    ------
    RunsError
        The file is corrupt.
    """
    file = runs if isinstance(runs, RunsFile) else load_runs(runs)
    fitted = load_parameters() if parameters is None else parameters
    validated: dict[int, ValidatedRun] = {}
    for i_run in progress(_by_trace(file.runs)):
        validated[i_run] = validate_run(file.runs[i_run], fitted)
    rows = tuple(validated[i_run] for i_run in range(len(file.runs)))
    compared = run_comparisons(rows)
    return Validation(
        columns=file.columns,
        rows=rows,
        compared=compared,
        errors=error_summaries(compared.rows(~compared.suspect)),
        errors_with_suspect=overall(error_summaries(compared)),
        warnings=unit_warnings(compared),
    )


def _by_trace(runs: Sequence[Run]) -> list[int]:
    """Return the order of rows in which those that share a trace follow each other."""
    keys = []
    for i_run, run in enumerate(runs):
        try:
            key = repr(trace_key(settle_step(scenario_of(run)), flash=True))
        except JoulecastError:  # skipped with its reason when its turn comes
            key = ""
        keys.append((key, i_run))
    return [i_run for _, i_run in sorted(keys)]


def validate_run(run: Run, parameters: ParameterSet) -> ValidatedRun:
    """Return a row's prediction, or why there is none."""
    try:
        scenario = scenario_of(run)
        prediction = predict_scenario(scenario, parameters)
    except JoulecastError as error:
        return ValidatedRun(run=run, prediction=None, skipped_reason=" ".join(str(error).split()))
    return ValidatedRun(
        run=run, prediction=prediction, skipped_reason="", null=_null(run, scenario, prediction)
    )


def _null(run: Run, scenario: Scenario, prediction: Prediction) -> dict[str, float]:
    """Return what the null model predicts of the columns that were measured."""
    time_s = null_step_time_s(prediction.model_flop, prediction.mfu_peak_flop_per_s)
    power_w = null_power_w(prediction.power_limit_w)
    predicted = {
        "step_time_s": time_s,
        "mean_power_w": power_w,
        "energy_per_step_j": time_s * power_w * prediction.n_gpus,
    }
    if "peak_memory_bytes" in run.measured:
        load = workload_of(settle_step(scenario), flash=runs_flash(settle_gpu(scenario).gpu))
        predicted["peak_memory_bytes"] = null_memory_bytes(load)
    return {column: predicted[column] for column in run.measured}


def scenario_of(run: Run) -> Scenario:
    """Return what a row ran.

    Raises
    ------
    UsageError
        The row lacks what a prediction needs, or is split in a way that is not modelled.
    """
    parallel, n_gpus = _parallel_of(run)
    for column in ("model", "gpu", "batch_per_gpu"):
        if not run.text(column):
            raise UsageError(f"{column} is empty")
    return Scenario(
        model=run.text("model"),
        gpu=run.gpu,
        n_gpus=n_gpus,
        parallel=parallel,
        precision=run.text("precision") or "fp32",
        batch_size=run.numbers["batch_per_gpu"],
        seq_len=_whole(run, "seq_len"),
        image_size=_whole(run, "image_size"),
        optimizer=_named(run, "optimizer"),
        mode=run.text("mode") or "train",
        attention=_named(run, "attention"),
        memory_format=_named(run, "memory_format") or "contiguous",
        power_limit_w=run.numbers.get("power_limit_w"),
        sm_clock_hz=run.numbers.get("sm_clock_hz"),
        n_sms=_whole(run, "n_sms"),
        force=True,
    )


def _parallel_of(run: Run) -> tuple[str | None, int]:
    """Return kind of parallelism, None to leave it to the number of GPUs; and that number."""
    text = run.text("parallel").lower()
    kind = text.rstrip("0123456789_")
    if kind in _UNMODELLED_PARALLEL:
        raise UsageError(f"split by {_UNMODELLED_PARALLEL[kind]} ({text}), which is not modelled yet")
    if kind not in _PARALLEL:
        raise UsageError(f"unknown kind of parallelism {text!r}")
    wrapped = "ddp" if run.source in _ALWAYS_WRAPPED else _PARALLEL[kind]
    return wrapped, _whole(run, "n_gpus") or 1


def _named(run: Run, column: str) -> str | None:
    text = run.text(column)
    return None if text in _UNKNOWN else text


def _whole(run: Run, column: str) -> int | None:
    number = run.numbers.get(column)
    if number is None:
        return None
    if number != int(number):
        raise UsageError(f"{column} is {number:g}, not a whole number")
    return int(number)


# --- what is compared -----------------------------------------------------------------------------

#: Columns that rows share which differ in their power limit alone.
_ALL_BUT_THE_LIMIT: Final = (
    *("source", "model", "mode", "gpu", "n_gpus", "precision", "batch_per_gpu", "seq_len", "image_size"),
    *("optimizer", "memory_format", "attention"),
)


def run_comparisons(rows: Sequence[ValidatedRun]) -> Comparisons:
    """Return a row for every measured number of every run that has a prediction."""
    return comparisons_of(
        [
            {
                "key": row.run.run_id,
                "source": row.run.source,
                "gpu": row.run.gpu,
                "subject": row.run.text("model"),
                "quantity": column,
                "group": "|".join(row.run.text(name) for name in _ALL_BUT_THE_LIMIT),
                "n_gpus": row.run.numbers.get("n_gpus", 1.0),
                "power_limit_w": row.run.numbers.get("power_limit_w", nan),
                "suspect": row.run.is_suspect,
                "measured": measured,
                "predicted": quantity.value,
                "low": quantity.low,
                "high": quantity.high,
                "null": row.null.get(column, nan),
            }
            for row in rows
            for column, measured in row.run.measured.items()
            if (quantity := row.predicted(column)) is not None
        ]
    )


# --- PRED.csv -------------------------------------------------------------------------------------

_APPENDED: Final = (
    *(f"{prefix}_{column}" for column in MEASURED_COLUMNS for prefix in ("predicted", "low", "high")),
    "skipped_reason",
)


def _appended(row: ValidatedRun) -> dict[str, Any]:
    """Return the row as it stood, with the appended columns."""
    cells: dict[str, Any] = dict(row.run.cells)
    for column in MEASURED_COLUMNS:
        quantity = row.predicted(column)
        cells[f"predicted_{column}"] = quantity.value if quantity else ""
        cells[f"low_{column}"] = quantity.low if quantity else ""
        cells[f"high_{column}"] = quantity.high if quantity else ""
    cells["skipped_reason"] = row.skipped_reason
    return cells


def save_predictions(validation: Validation, path: str | Path) -> None:
    """Write the file of runs with predictions appended; the old file stays whole until then.

    Raises
    ------
    UsageError
        The file cannot be written.
    """
    columns = [name for name in validation.columns if name not in _APPENDED]
    write_table(path, [*columns, *_APPENDED], validation.to_rows())


def write_table(path: str | Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV; the old file stays whole until then.

    Raises
    ------
    UsageError
        The file cannot be written.
    """
    try:
        with whole_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def check_writable(path: str | Path) -> None:
    """Raise `UsageError` if a file cannot be written there: before long work, not after."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: no such folder {folder}")
    if Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"cannot write {path}: it is a folder, or its folder is read-only")

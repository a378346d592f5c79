"""How far predictions of single operators are from a meter: a file of operators in, errors by kind out.

The dispatch time of operators that were launched one by one from Python is taken from the parameters. A fit
takes it from the fastest records of the same host; here that would be a look at the answer.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from joulecast.calibrate.comparisons import (
    Comparisons,
    ErrorSummary,
    concatenate,
    error_summaries,
    overall,
    unit_warnings,
)
from joulecast.calibrate.held_out import operator_key
from joulecast.calibrate.null_model import null_latency_s, null_power_w
from joulecast.calibrate.operator_files import OperatorFile, load_operator_file
from joulecast.calibrate.operators import OperatorProblem, operator_problem
from joulecast.calibrate.ops import OperatorRecords
from joulecast.calibrate.validation import write_table
from joulecast.hardware.catalogue import load_gpu
from joulecast.hardware.spec import Gpu
from joulecast.model import power
from joulecast.model.intervals import FEATURES
from joulecast.model.parameters import ParameterSet, load_parameters
from joulecast.model.rows import Integers
from joulecast.whole_file import whole_file
from joulecast.workload.table import Floats, OpKind

OPERATOR_VALIDATION_SCHEMA: Final = "joulecast/operator-validation/1"

#: Columns that ``--out`` appends, beside ``suspect_reason`` and ``skipped_reason``.
_PREDICTED: Final = ("latency_s", "mean_power_w")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPredictions:
    """What the model says of each record; arrays [record].

    Attributes
    ----------
    latency_s, mean_power_w : tuple of ndarray
        Value, low and high. [s], [W]
    null_latency_s, null_power_w : ndarray
        [s], [W]
    """

    latency_s: tuple[Floats, Floats, Floats]
    mean_power_w: tuple[Floats, Floats, Floats]
    null_latency_s: Floats
    null_power_w: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorValidation:
    """Predictions against a file of operators.

    Attributes
    ----------
    file : OperatorFile
    predictions : OperatorPredictions
    compared : Comparisons
        A row for every measured number, suspect ones included; the subject is the kind.
    errors : tuple of ErrorSummary
        By source, card and kind, without the suspect rows.
    errors_with_suspect : tuple of ErrorSummary
        With them, over all.
    warnings : tuple of str
    """

    file: OperatorFile
    predictions: OperatorPredictions
    compared: Comparisons
    errors: tuple[ErrorSummary, ...]
    errors_with_suspect: tuple[ErrorSummary, ...]
    warnings: tuple[str, ...]

    @property
    def suspect_rows(self) -> dict[int, str]:
        """Rows that are predicted and stand apart, and why."""
        doubted = self.file.suspect != ""
        rows = zip(self.file.i_row[doubted].tolist(), self.file.suspect[doubted].tolist(), strict=True)
        return dict(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``joulecast validate --format json`` for operators."""
        return {
            "schema": OPERATOR_VALIDATION_SCHEMA,
            "rows": self.file.n_rows,
            "predicted": len(self.file.records),
            "suspect": [{"row": i, "reason": why} for i, why in sorted(self.suspect_rows.items())],
            "skipped": [{"row": i, "reason": why} for i, why in sorted(self.file.skipped.items())],
            "errors": [asdict(summary) for summary in self.errors],
            "errors_with_suspect": [asdict(summary) for summary in self.errors_with_suspect],
            "warnings": list(self.warnings),
        }


def validate_operators(
    file: str | Path | OperatorFile, *, parameters: ParameterSet | None = None
) -> OperatorValidation:
    """Predict every operator of a file that can be, and compare.

    Parameters
    ----------
    file : str, Path or OperatorFile
    parameters : ParameterSet, optional
        By default the shipped set.

    Raises
    ------
    UsageError, RunsError, MissingExtraError
        As `load_operator_file`.
    """
    loaded = file if isinstance(file, OperatorFile) else load_operator_file(file)
    fitted = load_parameters() if parameters is None else parameters
    predictions = predict_operators(loaded.records, fitted)
    compared = _compared(loaded, predictions)
    return OperatorValidation(
        file=loaded,
        predictions=predictions,
        compared=compared,
        errors=error_summaries(compared.rows(~compared.suspect), by_kind=True),
        errors_with_suspect=overall(error_summaries(compared)),
        warnings=unit_warnings(compared),
    )


def predict_operators(records: OperatorRecords, parameters: ParameterSet) -> OperatorPredictions:
    """Return latency and power of every record, with intervals.

    Notes
    -----
    The intervals are those of a step that consists of the operator.
    """
    gpus = {name: load_gpu(name) for name in np.unique(records.gpu).tolist()}
    problem = operator_problem(records, gpus)
    latency_s, mean_power_w = problem.latency_and_power(parameters.values)
    features = _features(problem, latency_s, records, gpus, parameters)
    return OperatorPredictions(
        latency_s=_with_interval(latency_s, "time", features, parameters),
        mean_power_w=_with_interval(mean_power_w, "power", features, parameters),
        null_latency_s=_null_latency_s(records, gpus),
        null_power_w=np.array([null_power_w(w) for w in problem.limit_w.tolist()]),
    )


def _with_interval(
    value: Floats, quantity: str, features: Mapping[str, Floats], parameters: ParameterSet
) -> tuple[Floats, Floats, Floats]:
    low, high = parameters.intervals.bounds(quantity, features)
    return value, value * np.exp(low), value * np.exp(high)


def _features(
    problem: OperatorProblem,
    latency_s: Floats,
    records: OperatorRecords,
    gpus: Mapping[str, Gpu],
    parameters: ParameterSet,
) -> dict[str, Floats]:
    """Return the features of a step of each operator alone. [1] [record]."""
    point = problem.operating_point(parameters.values)
    kernel_s = point.time_s / problem.rows.n_calls
    top_hz = power.free_clock_hz(problem.rows.device, parameters.values)
    kind = records.table.kind
    convolution, attention = kind == OpKind.CONVOLUTION, kind == OpKind.ATTENTION
    products = np.isin(kind, [str(OpKind.GEMM), str(OpKind.BATCHED_GEMM)])
    unseen_gpu = {name: name not in parameters.covered_gpus for name in gpus}
    known = parameters.covered_architectures
    unseen_architecture = {name: bool(known) and gpu.architecture not in known for name, gpu in gpus.items()}
    features = dict.fromkeys(FEATURES, np.zeros(len(records)))
    marks = {
        "host": np.where(records.is_eager, np.clip(1.0 - kernel_s / latency_s, 0.0, 1.0), 0.0),
        "streaming": ~(convolution | attention | products),
        "convolution": convolution,
        "attention": attention,
        "throttled": np.clip(1.0 - point.clock_hz / top_hz, 0.0, 1.0),
        "forward": np.ones(len(records)),
        "unseen_gpu": [unseen_gpu[name] for name in records.gpu.tolist()],
        "unseen_architecture": [unseen_architecture[name] for name in records.gpu.tolist()],
    }
    return features | {name: np.asarray(mark, dtype=np.float64) for name, mark in marks.items()}


def _null_latency_s(records: OperatorRecords, gpus: Mapping[str, Gpu]) -> Floats:
    latency_s = np.empty(len(records))
    for name in np.unique(records.gpu).tolist():
        for precision in np.unique(records.precision[records.gpu == name]).tolist():
            chosen: Integers = np.flatnonzero((records.gpu == name) & (records.precision == precision))
            latency_s[chosen] = null_latency_s(records.table.rows(chosen), precision, gpus[name])
    return latency_s


def _compared(file: OperatorFile, predictions: OperatorPredictions) -> Comparisons:
    records = file.records
    latency = _quantity(
        file, "latency_s", records.latency_s, predictions.latency_s, predictions.null_latency_s
    )
    powers = _quantity(
        file, "mean_power_w", records.mean_power_w, predictions.mean_power_w, predictions.null_power_w
    )
    return concatenate([latency, powers.rows(np.isfinite(powers.measured))])


def _quantity(
    file: OperatorFile, name: str, measured: Floats, predicted: tuple[Floats, Floats, Floats], null: Floats
) -> Comparisons:
    n_records = len(measured)
    return Comparisons(
        key=np.array([operator_key(i) for i in file.i_row.tolist()], dtype=np.str_),
        source=file.source,
        gpu=file.records.gpu,
        subject=file.records.table.kind,
        quantity=np.full(n_records, name),
        group=np.full(n_records, ""),
        n_gpus=np.ones(n_records),
        power_limit_w=np.full(n_records, np.nan),
        suspect=file.suspect != "",
        measured=measured,
        predicted=predicted[0],
        low=predicted[1],
        high=predicted[2],
        null=null,
    )


# --- the file with predictions --------------------------------------------------------------------


def save_operator_predictions(validation: OperatorValidation, path: str | Path) -> None:
    """Write the file of operators with predictions appended, parquet as parquet, CSV as CSV.

    The power is predicted where it was measured.

    Raises
    ------
    UsageError
        The file cannot be written.
    """
    file = validation.file
    columns: dict[str, Any] = dict(file.columns) | _appended(validation)
    if not file.is_parquet:
        cells = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        write_table(path, list(columns), cells)
        return
    from pyarrow import Table, parquet

    from joulecast.errors import UsageError

    before = parquet.read_schema(file.path)
    table = Table.from_pydict(columns)
    for name in before.names:
        table = table.set_column(
            table.column_names.index(name), before.field(name), table[name].cast(before.field(name).type)
        )
    try:
        with whole_file(path) as partial:
            parquet.write_table(table, partial)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def _appended(validation: OperatorValidation) -> dict[str, list[Any]]:
    """Return the appended columns, empty where a row has no prediction."""
    file, predictions = validation.file, validation.predictions
    rows = file.i_row.tolist()
    has_power = np.isfinite(file.records.mean_power_w)
    appended: dict[str, list[Any]] = {}
    for name in _PREDICTED:
        chosen = has_power if name == "mean_power_w" else np.ones(len(rows), dtype=np.bool_)
        values = getattr(predictions, name)
        for prefix, column in zip(("predicted", "low", "high"), values, strict=True):
            cells: list[Any] = [None] * file.n_rows
            for i, value, known in zip(rows, column.tolist(), chosen.tolist(), strict=True):
                cells[i] = value if known else None
            appended[f"{prefix}_{name}"] = cells
    for name, reasons in (
        ("suspect_reason", validation.suspect_rows),
        ("skipped_reason", validation.file.skipped),
    ):
        appended[name] = [reasons.get(i, "") for i in range(file.n_rows)]
    return appended

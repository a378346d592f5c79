"""Single-operator records (`ops.parquet`) as op tables.

In: a file with the columns of DATA.md, in any phase, of GPUs or of the processor at hand. Out:
`OperatorRecords`, one op-table row per record, with the GPU and the latency measured; and what the records of
launches and of the host say outright, as parameters. Needs pyarrow for parquet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from joulecast.errors import MissingExtraError, RunsError
from joulecast.workload.operator_table import (
    DIMENSIONS,
    HOST_PARAMETERS,
    HOST_PHASES,
    KINDS,
    operator_table,
)
from joulecast.workload.table import Floats, OpTable, Strings

__all__ = ["EAGER_SOURCE", "KINDS", "OperatorRecords", "load_operator_records", "operator_records"]

#: Part of ``source`` that marks operators launched one by one from eager Python, so that dispatch shows.
EAGER_SOURCE: Final = "NeuSight"

#: Part of ``source`` of what `joulecast bench` measured: on a GPU, launched one by one too.
OWN_SOURCE: Final = "joulecast bench"
_PROCESSOR: Final = "cpu"

#: Operators of several devices: kept in the file, and fitted by nobody yet.
COLLECTIVES: Final = ("all-reduce",)

_REQUIRED: Final = ("op", "phase", "gpu", "dtype", "latency_s", "source")
_NUMBERS: Final = ("latency_s", "mean_power_w", "power_limit_w", *DIMENSIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRecords:
    """Measured single operators; every array is [op].

    Attributes
    ----------
    table : OpTable
    operator, gpu : ndarray of str
        The file's ``op``; slug of the GPU.
    precision : ndarray of str
        The policy that makes the model take the unit that the record used.
    is_eager : ndarray of bool
        Whether launches came one by one from Python, so that dispatch is a floor of the latency.
    latency_s, mean_power_w : ndarray
        Measured; NaN where the power was not. [s], [W]
    """

    table: OpTable
    operator: Strings
    gpu: Strings
    precision: Strings
    is_eager: npt.NDArray[np.bool_]
    latency_s: Floats
    mean_power_w: Floats

    def __len__(self) -> int:
        return len(self.latency_s)

    def rows(self, selection: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> "OperatorRecords":
        """Return the selected records."""
        return OperatorRecords(
            table=self.table.rows(selection),
            operator=self.operator[selection],
            gpu=self.gpu[selection],
            precision=self.precision[selection],
            is_eager=self.is_eager[selection],
            latency_s=self.latency_s[selection],
            mean_power_w=self.mean_power_w[selection],
        )


def load_operator_records(path: str | Path) -> OperatorRecords:
    """Load the operators of a file, in all phases; launches, dispatch and collectives are left out.

    Raises
    ------
    RunsError
        The file cannot be read, lacks a column, or holds an operator or a latency that cannot be.
    MissingExtraError
        pyarrow is not installed.
    """
    columns = load_operator_columns(path)
    aside = np.isin(columns["phase"], HOST_PHASES) | np.isin(columns["op"], COLLECTIVES)
    return operator_records({name: values[~aside] for name, values in columns.items()})


def load_host_parameters(path: str | Path) -> dict[str, float]:
    """Return the parameters that a file's records of launches and dispatch measure outright. [s].

    Each is the median over its records; parameters without any are absent.

    Raises
    ------
    RunsError, MissingExtraError
        As `load_operator_records`.
    """
    columns = load_operator_columns(path)
    chosen = np.isin(columns["phase"], HOST_PHASES)
    operator, latency_s = columns["op"][chosen], columns["latency_s"][chosen]
    unknown = sorted(set(operator.tolist()) - set(HOST_PARAMETERS))
    if unknown:
        raise RunsError(f"unknown records of the host: {', '.join(unknown)}")
    return {
        HOST_PARAMETERS[name]: float(np.median(latency_s[operator == name]))
        for name in np.unique(operator).tolist()
    }


def parquet_library() -> Any:
    """Return `pyarrow.parquet`.

    Raises
    ------
    MissingExtraError
        pyarrow is not installed.
    """
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError(
            "reading parquet needs the data extra: pip install 'joulecast[data]'"
        ) from error
    return parquet


def load_operator_columns(path: str | Path) -> dict[str, Any]:
    """Return the columns of an operator file, numbers as float64 with NaN where absent.

    Raises
    ------
    RunsError, MissingExtraError
        As `load_operator_records`.
    """
    parquet = parquet_library()
    try:
        document = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise RunsError(f"cannot read operators from {path}: {error}") from error
    return operator_columns(document, path)


def operator_columns(document: Any, path: str | Path) -> dict[str, Any]:
    """Return the columns of an operator table of pyarrow, read from a path, as `load_operator_columns`."""
    missing = [name for name in _REQUIRED if name not in document.column_names]
    if missing:
        raise RunsError(f"{path} lacks the columns {', '.join(missing)}")
    columns: dict[str, Any] = {
        name: np.asarray(document[name].to_pylist(), dtype=np.str_)
        for name in ("op", "phase", "gpu", "dtype", "source")
    }
    for name in _NUMBERS:
        present = name in document.column_names
        columns[name] = (
            document[name].cast("double").to_numpy().astype(np.float64)
            if present
            else np.full(len(columns["op"]), np.nan)
        )
    return columns


def operator_records(columns: Mapping[str, Any]) -> OperatorRecords:
    """Return records from columns of equal length.

    Parameters
    ----------
    columns : mapping of str to ndarray [op]
        As in DATA.md; NaN where a dimension does not apply.
    """
    unknown = sorted(set(columns["op"].tolist()) - set(KINDS))
    if unknown:
        raise RunsError(f"unknown operators: {', '.join(unknown)}")
    latency_s = columns["latency_s"]
    if not bool(np.all(latency_s > 0)):
        row = int(np.flatnonzero(~(latency_s > 0))[0])
        raise RunsError(f"latency_s must be above 0, row {row} has {latency_s[row]!r}")
    dtype = columns["dtype"]
    policy = np.where(dtype == "fp32", "fp32-strict", np.where(dtype == "tf32", "tf32", "bf16-pure"))
    table = operator_table(columns)
    own = np.char.find(columns["source"], OWN_SOURCE) >= 0
    return OperatorRecords(
        table=table,
        operator=columns["op"],
        gpu=columns["gpu"],
        precision=policy,
        is_eager=(np.char.find(columns["source"], EAGER_SOURCE) >= 0)
        | (own & (columns["gpu"] != _PROCESSOR)),
        latency_s=latency_s / table.n_calls,  # of an optimizer's step, the mean of its calls
        mean_power_w=columns["mean_power_w"],
    )

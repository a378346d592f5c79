"""Single-operator records (`ops.parquet`) as op tables.

In: a file with the columns of DATA.md. Out: `OperatorRecords`, one op-table row per record, with the GPU and
the latency measured. Needs pyarrow for parquet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from joulecast.errors import MissingExtraError, RunsError
from joulecast.workload.table import DTYPE_BYTES, Floats, OpKind, OpTable, Phase, Strings

#: Kind of each operator of the file.
KINDS: Final[Mapping[str, OpKind]] = {
    "linear": OpKind.GEMM,
    "bmm": OpKind.BATCHED_GEMM,
    "conv": OpKind.CONVOLUTION,
    "softmax": OpKind.SOFTMAX,
    "ln": OpKind.LAYER_NORM,
    "attention-causal": OpKind.ATTENTION,
    "attention-full": OpKind.ATTENTION,
    **{op: OpKind.ELEMENTWISE for op in "add addu mul mulu div divu pow powu relu gelu tanh".split()},
}

#: Elementwise operators of two tensors: 3 streams instead of 2.
_BINARY: Final = frozenset({"add", "mul", "div", "pow"})

#: Part of ``source`` that marks operators launched one by one from eager Python, so that dispatch shows.
EAGER_SOURCE: Final = "NeuSight"

_REQUIRED: Final = ("op", "phase", "gpu", "dtype", "latency_s", "source")
_NUMBERS: Final = (
    *("latency_s", "mean_power_w", "power_limit_w"),
    *("b", "m", "n", "k", "h", "c_in", "c_out", "kernel", "size", "stride", "pad"),
    *("seq", "heads", "kv_heads", "head_dim"),
)


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
    """Load the forward records of an operator file.

    Raises
    ------
    RunsError
        The file cannot be read, lacks a column, or holds an operator or a latency that cannot be.
    MissingExtraError
        pyarrow is not installed.
    """
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError(
            "reading parquet needs the data extra: pip install 'joulecast[data]'"
        ) from error
    try:
        document = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise RunsError(f"cannot read operators from {path}: {error}") from error
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
    return operator_records(columns)


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
    policy = np.where(columns["dtype"] == "fp32", "fp32-strict", "bf16-pure")
    return OperatorRecords(
        table=_table(columns),
        operator=columns["op"],
        gpu=columns["gpu"],
        precision=policy,
        is_eager=np.char.find(columns["source"], EAGER_SOURCE) >= 0,
        latency_s=latency_s,
        mean_power_w=columns["mean_power_w"],
    )


def _table(columns: Mapping[str, Any]) -> OpTable:
    """Return the op table of the records."""
    operator = columns["op"]
    n_rows = len(operator)
    element = np.array([DTYPE_BYTES[d] for d in columns["dtype"].tolist()], dtype=np.float64)
    one, zero = np.ones(n_rows), np.zeros(n_rows)
    work: dict[str, Floats] = {name: zero.copy() for name in ("k", "flop", "read_bytes", "written_bytes")}
    work |= {name: one.copy() for name in ("batch", "m", "n", "kernel_area", "stride", "groups")}
    work |= {"group_width": zero.copy(), "causal": zero.copy()}
    for names, function in _DIMENSIONS:
        rows = np.isin(operator, names)
        part = {name: columns[name][rows] for name in (*_NUMBERS, "op")}
        for name, values in function(part, element[rows]).items():
            work[name][rows] = values
    return OpTable(
        kind=np.array([KINDS[op] for op in operator.tolist()], dtype=np.str_),
        phase=np.full(n_rows, str(Phase.FORWARD)),
        dtype=columns["dtype"],
        operator=operator,
        module=np.full(n_rows, ""),
        model_flop=work["flop"].copy(),
        n_calls=one,
        n_kernels=one.copy(),
        masked=zero,
        channels_last=zero.copy(),
        counted=one.copy(),
        **work,
    )


Part = Mapping[str, Any]


def _product(part: Part, element: Floats) -> dict[str, Floats]:
    """(m x k)(k x n), ``b`` times."""
    b, m, n, k = (part[name] for name in ("b", "m", "n", "k"))
    return {
        "batch": b,
        "m": m,
        "n": n,
        "k": k,
        "flop": 2.0 * b * m * n * k,
        "read_bytes": element * b * (m * k + k * n),
        "written_bytes": element * b * m * n,
    }


def _convolution(part: Part, element: Floats) -> dict[str, Floats]:
    """Square images and kernels, one group."""
    b, c_in, c_out, kernel, size, stride, pad = (
        part[name] for name in ("b", "c_in", "c_out", "kernel", "size", "stride", "pad")
    )
    area = kernel**2
    pixels = np.floor((size + 2.0 * pad - kernel) / stride + 1.0) ** 2
    return {
        "m": b * pixels,
        "n": c_out,
        "k": c_in * area,
        "flop": 2.0 * b * pixels * c_out * c_in * area,
        "read_bytes": element * (b * c_in * size**2 + c_out * c_in * area),
        "written_bytes": element * b * pixels * c_out,
        "kernel_area": area,
        "stride": stride,
        "group_width": c_in,
    }


def _attention(part: Part, element: Floats) -> dict[str, Floats]:
    """Fused attention; causal counts the pairs at or below the diagonal."""
    b, seq, heads, kv_heads, width = (part[name] for name in ("b", "seq", "heads", "kv_heads", "head_dim"))
    causal = part["op"] == "attention-causal"
    pairs = np.where(causal, seq * (seq + 1.0) / 2.0, seq**2)
    return {
        "batch": b * heads,
        "m": seq,
        "n": seq,
        "k": width,
        "flop": 4.0 * b * heads * pairs * width,
        "read_bytes": element * b * seq * width * (heads + 2.0 * kv_heads),
        "written_bytes": element * b * seq * width * heads,
        "causal": causal.astype(np.float64),
    }


def _rows(part: Part, element: Floats) -> dict[str, Floats]:
    """Softmax and layer norm over rows."""
    moved = element * part["b"] * part["h"]
    return {"m": part["b"], "n": part["h"], "read_bytes": moved, "written_bytes": moved}


def _elements(part: Part, element: Floats) -> dict[str, Floats]:
    """One or two tensors in, one out."""
    moved = element * part["b"] * part["h"]
    reads = np.where(np.isin(part["op"], list(_BINARY)), 2.0, 1.0)
    return {"m": part["b"] * part["h"], "read_bytes": reads * moved, "written_bytes": moved}


_DIMENSIONS: Final = (
    (["linear", "bmm"], _product),
    (["conv"], _convolution),
    (["attention-causal", "attention-full"], _attention),
    (["softmax", "ln"], _rows),
    ([op for op, kind in KINDS.items() if kind is OpKind.ELEMENTWISE], _elements),
)

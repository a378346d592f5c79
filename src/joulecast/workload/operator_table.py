"""Single operators described by their dimensions, as op tables. No torch, no file.

In: columns of an operator file (`ops.parquet`). Out: an `OpTable`, one row per operator, with the work and
the traffic that a trace of the same call records. Whoever measures operators and whoever calibrates to them
read the same rows here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from joulecast.workload.table import DTYPE_BYTES, Floats, OpKind, OpTable, Phase

#: Columns that hold numbers; NaN where one does not apply.
DIMENSIONS: Final = (
    *("b", "m", "n", "k", "h", "c_in", "c_out", "kernel", "size", "stride", "pad"),
    *("seq", "heads", "kv_heads", "head_dim", "groups", "channels_last"),
)

#: Elementwise operators of two tensors: 3 streams instead of 2.
_BINARY: Final = ("add", "mul", "div", "pow")
_ELEMENTWISE: Final = (*_BINARY, *"addu mulu divu powu relu gelu tanh dropout".split())

#: Kind of each operator of the file.
KINDS: Final[Mapping[str, OpKind]] = {
    "linear": OpKind.GEMM,
    "bmm": OpKind.BATCHED_GEMM,
    "conv": OpKind.CONVOLUTION,
    "attention-causal": OpKind.ATTENTION,
    "attention-full": OpKind.ATTENTION,
    "softmax": OpKind.SOFTMAX,
    "ln": OpKind.LAYER_NORM,
    "bn": OpKind.BATCH_NORM,
    "max-pool": OpKind.POOL,
    "embedding": OpKind.EMBEDDING,
    "sum": OpKind.REDUCTION,
    "copy": OpKind.COPY,
    "sgd": OpKind.OPTIMIZER,
    "sgd-momentum": OpKind.OPTIMIZER,
    "adamw": OpKind.OPTIMIZER,
    **dict.fromkeys(_ELEMENTWISE, OpKind.ELEMENTWISE),
}

#: Multi-tensor optimizer -> calls of one step; streams read and written by all of them.
#: Source: the trace of each in its foreach form, PyTorch 2.14.
OPTIMIZER_STREAMS: Final = {"sgd": (1, 2, 1), "sgd-momentum": (4, 7, 4), "adamw": (8, 13, 8)}

#: Phases of records that are no operators: a launch, or the host's work for one kernel or tensor.
HOST_PHASES: Final = ("launch", "dispatch")

#: Record of such a phase -> the parameter that it measures.
HOST_PARAMETERS: Final[Mapping[str, str]] = {
    "launch": "launch.kernel_s",
    "forward-kernel": "host.forward_kernel_s",
    "backward-kernel": "host.backward_kernel_s",
    "copy-kernel": "host.copy_kernel_s",
    "optimizer-kernel": "host.optimizer_kernel_s",
    "parameter-tensor": "host.parameter_tensor_s",
}

#: Phase of a kernel that computes all gradients at once: the table calls it the backward pass.
_SINGLE_BACKWARD: Final = (
    *(OpKind.SOFTMAX, OpKind.LAYER_NORM, OpKind.BATCH_NORM, OpKind.POOL, OpKind.EMBEDDING),
    *(OpKind.ELEMENTWISE, OpKind.REDUCTION, OpKind.COPY),
)
_MASK_BYTES: Final = 1.0
_INDEX_BYTES: Final = 8.0

Part = Mapping[str, Any]


def operator_table(columns: Mapping[str, Any]) -> OpTable:
    """Return the op table of single operators.

    Parameters
    ----------
    columns : mapping of str to ndarray [op]
        ``op`` (a key of `KINDS`), ``phase``, ``dtype``, and `DIMENSIONS`; a dimension that is absent is NaN.
    """
    operator = columns["op"]
    n_rows = len(operator)
    dtype = np.where(columns["dtype"] == "tf32", "fp32", columns["dtype"])
    element = np.array([DTYPE_BYTES[d] for d in dtype.tolist()], dtype=np.float64)
    given = {name: columns.get(name, np.full(n_rows, np.nan)) for name in DIMENSIONS}
    given |= {"op": operator, "phase": columns["phase"]}
    one, zero = np.ones(n_rows), np.zeros(n_rows)
    work: dict[str, Floats] = {name: zero.copy() for name in ("k", "flop", "read_bytes", "written_bytes")}
    work |= {name: one.copy() for name in ("batch", "m", "n", "kernel_area", "stride", "groups")}
    work |= {
        "group_width": zero.copy(),
        "causal": zero.copy(),
        "n_calls": one.copy(),
        "n_kernels": one.copy(),
    }
    for names, function in _FORMULAS:
        rows = np.isin(operator, names)
        part = {name: values[rows] for name, values in given.items()}
        for name, values in function(part, element[rows]).items():
            work[name][rows] = values
    kind = np.array([KINDS[op] for op in operator.tolist()], dtype=np.str_)
    single = np.isin(kind, [str(k) for k in _SINGLE_BACKWARD]) & (columns["phase"] != Phase.FORWARD)
    last = given["channels_last"]
    return OpTable(
        kind=kind,
        phase=np.where(single, str(Phase.BACKWARD), columns["phase"]),
        dtype=dtype,
        operator=operator,
        module=np.full(n_rows, ""),
        model_flop=work["flop"].copy(),
        masked=zero,
        channels_last=np.where(np.isnan(last), 0.0, last),
        counted=one.copy(),
        **work,
    )


def _product(part: Part, element: Floats) -> dict[str, Floats]:
    """(m x k)(k x n), ``b`` times; dimensions are those of the forward pass."""
    b, m, n, k = (part[name] for name in ("b", "m", "n", "k"))
    dgrad, wgrad = part["phase"] == Phase.DGRAD, part["phase"] == Phase.WGRAD
    rows = np.where(wgrad, k, m)
    rows = np.where(wgrad & (part["op"] == "linear"), n, rows)
    columns = np.where(dgrad, k, n)
    columns = np.where(wgrad & (part["op"] == "linear"), k, columns)
    depth = np.where(dgrad, n, np.where(wgrad, m, k))
    return {
        "batch": b,
        "m": rows,
        "n": columns,
        "k": depth,
        "flop": 2.0 * b * m * n * k,
        "read_bytes": element * b * (rows * depth + depth * columns),
        "written_bytes": element * b * rows * columns,
    }


def _convolution(part: Part, element: Floats) -> dict[str, Floats]:
    """Square images and kernels; rows keep the forward geometry in every phase."""
    b, c_in, c_out, kernel, size, stride, pad = (
        part[name] for name in ("b", "c_in", "c_out", "kernel", "size", "stride", "pad")
    )
    groups = np.where(np.isnan(part["groups"]), 1.0, part["groups"])
    area, width = kernel**2, c_in / groups
    pixels = np.floor((size + 2.0 * pad - kernel) / stride + 1.0) ** 2
    x, w, y = b * c_in * size**2, c_out * width * area, b * pixels * c_out
    dgrad, wgrad = part["phase"] == Phase.DGRAD, part["phase"] == Phase.WGRAD
    return {
        "batch": groups,
        "m": b * pixels,
        "n": c_out / groups,
        "k": width * area,
        "flop": 2.0 * b * pixels * c_out * width * area,
        "read_bytes": element * np.where(dgrad, y + w, np.where(wgrad, x + y, x + w)),
        "written_bytes": element * np.where(dgrad, x, np.where(wgrad, w, y)),
        "kernel_area": area,
        "stride": stride,
        "groups": groups,
        "group_width": width,
    }


def _attention(part: Part, element: Floats) -> dict[str, Floats]:
    """Fused attention; causal counts the pairs at or below the diagonal; backward is 5 products for 2."""
    b, seq, heads, kv_heads, width = (part[name] for name in ("b", "seq", "heads", "kv_heads", "head_dim"))
    causal = part["op"] == "attention-causal"
    backward = part["phase"] != Phase.FORWARD
    pairs = np.where(causal, seq * (seq + 1.0) / 2.0, seq**2)
    query, key = b * seq * width * heads, b * seq * width * kv_heads
    return {
        "batch": b * heads,
        "m": seq,
        "n": seq,
        "k": width,
        "flop": np.where(backward, 10.0, 4.0) * b * heads * pairs * width,
        "read_bytes": element * np.where(backward, 3.0 * query + 2.0 * key, query + 2.0 * key),
        "written_bytes": element * np.where(backward, query + 2.0 * key, query),
        "causal": causal.astype(np.float64),
        "n_kernels": np.where(backward, 2.0, 1.0),
    }


def _rows(part: Part, element: Floats) -> dict[str, Floats]:
    """Softmax and layer norm over rows; layer norm's three backward kernels read both tensors twice."""
    moved = element * part["b"] * part["h"]
    backward = part["phase"] != Phase.FORWARD
    norm = part["op"] == "ln"
    reads = np.where(backward, np.where(norm, 4.0, 2.0), 1.0)
    return {
        "m": part["b"],
        "n": part["h"],
        "read_bytes": reads * moved,
        "written_bytes": moved,
        "n_kernels": np.where(backward & norm, 3.0, 1.0),
    }


def _elements(part: Part, element: Floats) -> dict[str, Floats]:
    """One or two tensors in, one out; dropout has a mask; a gradient reads what was saved too."""
    n_elements = part["b"] * part["h"]
    backward = part["phase"] != Phase.FORWARD
    dropout = part["op"] == "dropout"
    reads = np.where(np.isin(part["op"], _BINARY) | (backward & ~dropout), 2.0, 1.0)
    mask = np.where(dropout, _MASK_BYTES * n_elements, 0.0)
    return {
        "m": n_elements,
        "read_bytes": reads * element * n_elements + np.where(backward, mask, 0.0),
        "written_bytes": element * n_elements + np.where(backward, 0.0, mask),
    }


def _batch_norm(part: Part, element: Floats) -> dict[str, Floats]:
    """Rows are channels; everything is read once for the statistics and once more."""
    per_channel = part["b"] * part["size"] ** 2
    moved = element * part["c_in"] * per_channel
    return {
        "m": part["c_in"],
        "n": per_channel,
        "read_bytes": np.where(part["phase"] == Phase.FORWARD, 2.0, 4.0) * moved,
        "written_bytes": moved,
    }


def _pool(part: Part, element: Floats) -> dict[str, Floats]:
    """Max pooling keeps the index of each output."""
    planes = part["b"] * part["c_in"]
    side = np.floor((part["size"] + 2.0 * part["pad"] - part["kernel"]) / part["stride"] + 1.0)
    x, y = planes * part["size"] ** 2, planes * side**2
    small = (element + _INDEX_BYTES) * y
    backward = part["phase"] != Phase.FORWARD
    return {
        "m": x,
        "read_bytes": np.where(backward, element * x + small, element * x),
        "written_bytes": np.where(backward, element * x, small),
    }


def _embedding(part: Part, element: Floats) -> dict[str, Floats]:
    """``b`` tokens, ``h`` wide, from a table of ``n`` rows; the gradient of the table is dense."""
    moved, indices = element * part["b"] * part["h"], _INDEX_BYTES * part["b"]
    table = element * part["n"] * part["h"]
    backward = part["phase"] != Phase.FORWARD
    return {
        "m": part["b"] * part["h"],
        "read_bytes": np.where(backward, 2.0 * moved + 4.0 * indices, moved + indices),
        "written_bytes": np.where(backward, table + moved + 4.0 * indices, moved),
        "n_kernels": np.where(backward, 8.0, 1.0),
    }


def _sum(part: Part, element: Floats) -> dict[str, Floats]:
    """Sum ``b`` rows of ``h`` columns over the rows, as the gradient of a bias does."""
    return {
        "m": part["h"],
        "n": part["b"],
        "read_bytes": element * part["b"] * part["h"],
        "written_bytes": element * part["h"],
    }


def _copy(part: Part, element: Floats) -> dict[str, Floats]:
    moved = element * part["b"] * part["h"]
    return {"m": part["b"] * part["h"], "read_bytes": moved, "written_bytes": moved}


def _optimizer(part: Part, element: Floats) -> dict[str, Floats]:
    """``b`` tensors of ``h`` elements; a row is the mean of the step's multi-tensor calls."""
    calls, read, written = np.array([OPTIMIZER_STREAMS[op] for op in part["op"].tolist()]).reshape(-1, 3).T
    n_elements = part["b"] * part["h"]
    return {
        "m": n_elements,
        "n": part["b"],
        "read_bytes": element * n_elements * read / calls,
        "written_bytes": element * n_elements * written / calls,
        "n_calls": calls.astype(np.float64),
    }


_FORMULAS: Final[tuple[tuple[Sequence[str], Callable[[Part, Floats], dict[str, Floats]]], ...]] = (
    (("linear", "bmm"), _product),
    (("conv",), _convolution),
    (("attention-causal", "attention-full"), _attention),
    (("softmax", "ln"), _rows),
    (("bn",), _batch_norm),
    (("max-pool",), _pool),
    (("embedding",), _embedding),
    (("sum",), _sum),
    (("copy",), _copy),
    (tuple(OPTIMIZER_STREAMS), _optimizer),
    (_ELEMENTWISE, _elements),
)

"""Operators of a benchmark that states sizes as text, with the board's power: rows -> `OperatorRecords`.

In: columns of strings with ``op``, ``gpu``, ``dtype``, ``case``. Out: records of what the text says, and why
the other rows have none. Written for the operator set of FlagPerf (Apache-2.0): every kernel is launched in a
loop for seconds, so no dispatch shows, and the power is that of the loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from joulecast.calibrate.ops import OperatorRecords
from joulecast.model.rows import Integers
from joulecast.units import MIB
from joulecast.workload.table import Floats, OpKind, OpTable, Phase, Strings


class Streams(NamedTuple):
    """Traffic of one element: tensors read, tensors written, bytes of truth values or masks, kernels."""

    read: int
    written: int
    mask_bytes: int = 0
    n_kernels: int = 1


#: Elementwise operators. ``div``, ``mul`` and ``pow`` take a number as second operand: the text does not say
#: so, but they take the time of ``abs``, not of ``add``, in every type. ``isinf`` is ``abs(x) == inf``.
#: Sources: PyTorch, aten/src/ATen/native/{BinaryOps,TensorCompare,Dropout}.cpp, torch/_refs.
_ELEMENTWISE: Final = MappingProxyType(
    {
        **dict.fromkeys(
            ("abs", "neg", "exp", "cos", "sin", "gelu", "reciprocal", "rsqrt", "bitwise_not"), Streams(1, 1)
        ),
        **dict.fromkeys(("div", "mul", "pow"), Streams(1, 1)),
        **dict.fromkeys(("relu", "sigmoid", "silu", "tanh"), Streams(1, 1)),
        **dict.fromkeys(("add", "sub", "rsub", "bitwise_and", "bitwise_or"), Streams(2, 1)),
        **dict.fromkeys(("eq", "ne", "ge", "gt", "le", "lt"), Streams(2, 0, 1)),
        **dict.fromkeys(("dropout", "native_dropout"), Streams(1, 1, 1)),
        "isnan": Streams(1, 0, 1),
        "isinf": Streams(2, 1, 1, 2),
    }
)

#: Operators that reduce all elements to one.
_REDUCTIONS: Final = ("sum", "mean", "prod", "max", "min")

_PRODUCTS: Final = ("mm", "addmm", "linear", "bmm", "mv")

#: Why a row is predicted, but stands apart.
_SUSPECT: Final = MappingProxyType(
    {
        "linear": "50 calls: the power had not settled",
        "mv": "calls of 12 us: the power is that of launching",
        **dict.fromkeys(
            ("relu", "sigmoid", "silu", "tanh", "native_dropout"),
            "takes as long as a forward and a backward pass",
        ),
    }
)

#: Why a row cannot be predicted.
_UNSAID: Final = MappingProxyType(
    {
        "softmax": "the text gives the elements, not the length of a row",
        "all": "as many kernels as the source's tensor has axes, which the text does not give",
        **dict.fromkeys(
            ("group_norm", "native_group_norm"),
            "few iterations, and the text does not give the number of groups",
        ),
        **dict.fromkeys(
            ("amax", "argmax", "log_softmax", "outer", "triu", "cross_entropy_loss"),
            "the sizes in the text do not account for its traffic: an axis is missing",
        ),
    }
)

#: Bytes and type of an element, and the policy that makes the model take the unit that the source used.
_DTYPES: Final = MappingProxyType(
    {
        "fp32": (4, "fp32", "fp32-strict"),
        "bf16": (2, "bf16", "bf16-pure"),
        "fp16": (2, "fp16", "fp16-pure"),
        "int16": (2, "int", "fp32-strict"),
        "int32": (4, "int", "fp32-strict"),
    }
)

#: Products whose "FP32" is TF32. Source: the measurements' own description (DATA.md).
_TF32_PRODUCTS: Final = ("mm",)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPowerRecords:
    """Records of the rows that the text describes.

    Attributes
    ----------
    records : OperatorRecords [record]
    i_row : ndarray of int [record]
    suspect : ndarray of str [record]
        Why the record stands apart; empty for none.
    skipped : mapping of int to str
    """

    records: OperatorRecords
    i_row: Integers
    suspect: Strings
    skipped: Mapping[int, str]


def op_power_records(
    columns: Mapping[str, Sequence[str]], latency_s: Floats, mean_power_w: Floats
) -> OpPowerRecords:
    """Return what can be predicted.

    Parameters
    ----------
    columns : mapping of str to sequence of str
        ``op``, ``gpu``, ``dtype``, ``case``. [row]
    latency_s, mean_power_w : ndarray [row]
        Measured; NaN where not. [s], [W]
    """
    skipped: dict[int, str] = {}
    works: list[dict[str, float | str]] = []
    i_row = []
    for i, (op, dtype, case) in enumerate(zip(columns["op"], columns["dtype"], columns["case"], strict=True)):
        reason = _why_not(op, dtype) or ("" if latency_s[i] > 0 else "no latency")
        sizes = sizes_of(case)
        if not reason and (missing := [name for name in _needed(op, sizes) if name not in sizes]):
            reason = f"the text {case!r} does not give {', '.join(missing)}"
        if reason:
            skipped[i] = reason
            continue
        works.append(_work(op, dtype, sizes))
        i_row.append(i)
    rows = np.array(i_row, dtype=np.int64)
    labels = {name: np.array([columns[name][i] for i in i_row], dtype=np.str_) for name in ("op", "gpu")}
    records = OperatorRecords(
        table=_table(works, labels["op"]),
        operator=labels["op"],
        gpu=labels["gpu"],
        precision=np.array([str(work["precision"]) for work in works], dtype=np.str_),
        is_eager=np.zeros(len(rows), dtype=np.bool_),
        latency_s=latency_s[rows],
        mean_power_w=mean_power_w[rows],
    )
    suspect = np.array([_SUSPECT.get(op, "") for op in labels["op"].tolist()], dtype=np.str_)
    return OpPowerRecords(records=records, i_row=rows, suspect=suspect, skipped=skipped)


def sizes_of(case: str) -> dict[str, float]:
    """Return the sizes in ``M=4096;N=4096;BS=2;ITERS=1000``; parts that are no numbers are left out."""
    sizes = {}
    for part in case.split(";"):
        name, _, text = part.partition("=")
        try:
            sizes[name.strip()] = float(text)
        except ValueError:
            continue
    return sizes


def _why_not(op: str, dtype: str) -> str:
    if op in _UNSAID:
        return _UNSAID[op]
    if op not in (*_ELEMENTWISE, *_REDUCTIONS, *_PRODUCTS):
        return f"operator {op!r} is not modelled on its own"
    return "" if dtype in _DTYPES else f"dtype {dtype!r} is none of {', '.join(_DTYPES)}"


def _needed(op: str, sizes: Mapping[str, float]) -> tuple[str, ...]:
    if op not in _PRODUCTS:
        return () if "Melements" in sizes else ("M",)
    return {"bmm": ("M", "N", "K", "BS"), "mv": ("M", "N")}.get(op, ("M", "N", "K"))


def _work(op: str, dtype: str, sizes: Mapping[str, float]) -> dict[str, float | str]:
    """Return the columns of an operator's row."""
    element, label, precision = _DTYPES[dtype]
    if op in _PRODUCTS:
        policy = "tf32" if op in _TF32_PRODUCTS and dtype == "fp32" else precision
        return {"dtype": label, "precision": policy, **_product(op, sizes, element)}
    # ``Melements``, or a lone M, counts 2**20 elements: ``isnan`` with M=1024 takes the time of 2**30.
    n_elements = sizes.get("Melements", sizes.get("M", 0.0)) * MIB
    streams = _ELEMENTWISE.get(op, Streams(1, 0))
    return {
        "kind": str(OpKind.REDUCTION if op in _REDUCTIONS else OpKind.ELEMENTWISE),
        "dtype": label,
        "precision": precision,
        "m": n_elements if op in _ELEMENTWISE else 1.0,
        "n": 1.0 if op in _ELEMENTWISE else n_elements,
        "n_kernels": float(streams.n_kernels),
        "read_bytes": n_elements * element * streams.read,
        "written_bytes": n_elements * (element * streams.written + streams.mask_bytes),
    }


def _product(op: str, sizes: Mapping[str, float], element: int) -> dict[str, float | str]:
    m, n, k = sizes["M"], sizes["N"], sizes.get("K", 0.0)
    if op == "mv":
        n, k = 1.0, n
    batch = sizes["BS"] if op == "bmm" else 1.0
    bias = m * n if op == "addmm" else 0.0
    return {
        "kind": str(OpKind.BATCHED_GEMM if op == "bmm" else OpKind.GEMM),
        "batch": batch,
        "m": m,
        "n": n,
        "k": k,
        "flop": 2.0 * batch * m * n * k,
        "read_bytes": element * (batch * (m * k + k * n) + bias),
        "written_bytes": element * batch * m * n,
    }


_ONES: Final = ("batch", "m", "n", "n_calls", "n_kernels", "kernel_area", "stride", "groups", "counted")
_ZEROS: Final = (
    *("k", "flop", "read_bytes", "written_bytes", "group_width", "causal", "masked", "channels_last"),
)


def _table(works: Sequence[Mapping[str, float | str]], operator: Strings) -> OpTable:
    def numbers(name: str, default: float) -> Floats:
        return np.array([float(work.get(name, default)) for work in works], dtype=np.float64)

    columns = {name: numbers(name, 1.0) for name in _ONES} | {name: numbers(name, 0.0) for name in _ZEROS}
    return OpTable(
        kind=np.array([str(work["kind"]) for work in works], dtype=np.str_),
        phase=np.full(len(works), str(Phase.FORWARD)),
        dtype=np.array([str(work["dtype"]) for work in works], dtype=np.str_),
        operator=operator,
        module=np.full(len(works), ""),
        model_flop=columns["flop"].copy(),
        **columns,
    )

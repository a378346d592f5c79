"""A dispatched operator call, the work of its kernels, and the register of formulas; imports no torch."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from joulecast.workload.table import (
    FIXED_COLUMNS,
    LABEL_COLUMNS,
    SCALING_COLUMNS,
    Dtype,
    OpKind,
    OpTable,
    Phase,
)

#: Dimensions of a batch of images: images, channels, height, width.
IMAGE_DIMENSIONS: Final = 4


class TensorLike(Protocol):
    """What a formula may ask of a tensor."""

    @property
    def shape(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def dtype(self) -> Any: ...  # noqa: D102
    def stride(self) -> tuple[int, ...]: ...  # noqa: D102
    def element_size(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Call:
    """One dispatched operator call.

    Attributes
    ----------
    name : str
        ATen name without overload, such as ``convolution_backward``.
    args, kwargs : tuple, dict
        As dispatched.
    outputs : tuple
        The tensors returned (``None`` where an output was not asked for).
    in_backward : bool
        Whether autograd runs it.
    weight_operand : bool
        Whether an operand is a parameter, or a cast or view of one.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Any, ...]
    in_backward: bool
    weight_operand: bool


class Work(NamedTuple):
    """One row before it is merged with its equals; columns as in `OpTable`."""

    kind: OpKind
    dtype: str
    m: float
    n: float = 1
    k: float = 0
    batch: float = 1
    flop: float = 0
    model_flop: float = 0
    read_bytes: float = 0
    written_bytes: float = 0
    n_kernels: float = 1
    phase: Phase | None = None
    kernel_area: float = 1
    stride: float = 1
    groups: float = 1
    group_width: float = 0
    causal: float = 0
    masked: float = 0
    channels_last: float = 0
    counted: float = 1


def table_of(labels: Sequence[tuple[str, ...]], work: Sequence[Work]) -> OpTable:
    """Return the table of calls that do not scale, equals merged."""
    counts = Counter(zip(labels, work, strict=True))
    keys = list(counts)
    columns: dict[str, Any] = {
        name: np.array([k[0][i] for k in keys], dtype=np.str_) for i, name in enumerate(LABEL_COLUMNS)
    }
    for name in (*SCALING_COLUMNS, *FIXED_COLUMNS):
        if name != "n_calls":
            columns[name] = np.array([getattr(k[1], name) for k in keys], dtype=np.float64)
    columns["n_calls"] = np.array([counts[k] for k in keys], dtype=np.float64)
    return OpTable(**columns)


Formula = Callable[[Call], list[Work]]

FORMULAS: Final[dict[str, Formula]] = {}

_DTYPES: Final = {
    "torch.float64": Dtype.FP64,
    "torch.float32": Dtype.FP32,
    "torch.bfloat16": Dtype.BF16,
    "torch.float16": Dtype.FP16,
    "torch.float8_e4m3fn": Dtype.FP8,
    "torch.float8_e5m2": Dtype.FP8,
}


def formula(*names: str) -> Callable[[Formula], Formula]:
    """Register a formula for ATen names (overloads share it).

    Raises
    ------
    ValueError
        If a name is registered already.
    """

    def register(function: Formula) -> Formula:
        for name in names:
            if name in FORMULAS:
                raise ValueError(f"two formulas for {name}")
            FORMULAS[name] = function
        return function

    return register


def dtype_of(tensor: TensorLike) -> str:
    """Return the `Dtype` of a tensor; every integer and boolean type is ``int``."""
    return _DTYPES.get(str(tensor.dtype), Dtype.INT)


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, by duck typing."""
    return hasattr(value, "element_size") and hasattr(value, "stride")


def tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors of arguments, lists of tensors included."""
    for value in values:
        if is_tensor(value):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def touched_bytes(tensor: TensorLike) -> float:
    """Return the distinct bytes a tensor covers: a broadcast (stride 0) dimension counts once."""
    n = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        n *= size if stride != 0 else 1
    return float(n * tensor.element_size())


def read_of(call: Call) -> float:
    """Return the bytes of all tensor arguments."""
    return sum(touched_bytes(t) for t in tensors_in((*call.args, *call.kwargs.values())))


def written_of(call: Call) -> float:
    """Return the bytes of all outputs."""
    return sum(touched_bytes(t) for t in tensors_in(call.outputs))


def numel(tensor: TensorLike) -> int:
    """Return the number of elements."""
    return prod(tensor.shape)


def is_channels_last(tensor: TensorLike) -> float:
    """Return 1 where a 4-D tensor is stored channels-last, else 0."""
    if len(tensor.shape) != IMAGE_DIMENSIONS:
        return 0.0
    strides = tensor.stride()
    return float(strides[1] == 1 and strides[3] != 1 and tensor.shape[1] > 1)


def main_tensor(call: Call) -> Any:
    """Return the tensor that names the dtype: the first floating output, else the largest argument."""
    tensors = list(tensors_in(call.outputs)) or list(tensors_in(call.args))
    floating = [t for t in tensors if dtype_of(t) != Dtype.INT]
    return (floating or tensors or [None])[0]


def streaming(call: Call, kind: OpKind, *, n_kernels: float = 1, counted: float = 1) -> list[Work]:
    """Return a kernel that reads its arguments and writes its outputs once."""
    main = main_tensor(call)
    if main is None:
        return []
    return [
        Work(
            kind=kind,
            dtype=dtype_of(main),
            m=max((numel(t) for t in tensors_in((*call.outputs, *call.args))), default=0),
            read_bytes=read_of(call),
            written_bytes=written_of(call),
            n_kernels=n_kernels,
            channels_last=is_channels_last(main),
            counted=counted,
        )
    ]

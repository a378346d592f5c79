"""Op tables: what one training step computes, as columns; knows no GPU.

`OpTable` is the interface between PyTorch and physics: one row per distinct operator call, with its
multiplicity. `StepTrace` is the same step at *any* batch size and sequence length: every column that
depends on them is a polynomial. `Workload` is what the model layer takes: an `OpTable` at one size and
the bytes the step keeps alive.

Nothing here imports torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Strings = npt.NDArray[np.str_]


class OpKind(StrEnum):
    """What a kernel does; the classes that share an efficiency function."""

    GEMM = "gemm"
    BATCHED_GEMM = "batched_gemm"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"
    COPY = "copy"
    SOFTMAX = "softmax"
    LAYER_NORM = "layer_norm"
    BATCH_NORM = "batch_norm"
    GROUP_NORM = "group_norm"
    REDUCTION = "reduction"
    POOL = "pool"
    EMBEDDING = "embedding"
    INDEX = "index"
    OPTIMIZER = "optimizer"
    OTHER = "other"


class Phase(StrEnum):
    """Where in the step a call happens. The gradient of a product splits in two."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    DGRAD = "dgrad"
    WGRAD = "wgrad"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Dtype(StrEnum):
    """Element type of a call's main operands."""

    FP64 = "fp64"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    INT = "int"


DTYPE_BYTES: Final[Mapping[str, int]] = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int": 8}

#: Columns that scale with batch B and sequence length S, in the order of `StepTrace.polynomials`.
SCALING_COLUMNS: Final = (
    "batch",
    "m",
    "n",
    "k",
    "flop",
    "model_flop",
    "read_bytes",
    "written_bytes",
)

#: Exponents (of B, of S) of the monomials of a scaling column.
MONOMIALS: Final = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2))

#: Columns that do not scale.
LABEL_COLUMNS: Final = ("kind", "phase", "dtype", "operator", "module")
FIXED_COLUMNS: Final = (
    "n_calls",
    "n_kernels",
    "kernel_area",
    "stride",
    "groups",
    "group_width",
    "causal",
    "masked",
    "channels_last",
    "counted",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTable:
    """One row per distinct operator call of a step, at one size; every array is [op].

    Work columns are *per call*; multiply by ``n_calls`` for the step.

    Attributes
    ----------
    kind, phase, dtype : ndarray of str
        Values of `OpKind`, `Phase`, `Dtype`.
    operator, module : ndarray of str
        The ATen overload, and the module path with layer indices replaced by ``*``.
    batch, m, n, k : ndarray
        Dimensions. A product of ``batch`` (M x K)(K x N) matrices; a convolution is its implicit product
        per group: ``batch`` = groups, M = images x output pixels, N = output channels per group,
        K = input channels per group x kernel area. Attention: ``batch`` = images x heads, M = queries,
        N = keys, K = head width. Norms, softmax and reductions: M rows of N columns. Optimizer: M elements in
        N tensors, K lists of them. Everything else: M elements, N = 1.
    flop : ndarray
        Work of the kernel; a multiply-add is 2. Products, convolutions and attention only. [FLOP]
    model_flop : ndarray
        Work by MFU's convention: causal attention counted whole, recomputation not at all. [FLOP]
    read_bytes, written_bytes : ndarray
        Compulsory traffic of the kernel a GPU runs. [bytes]
    n_calls, n_kernels : ndarray
        Calls of this row in one step; kernels launched by one call.
    kernel_area, stride, groups, group_width : ndarray
        Convolution geometry: kernel elements, stride, groups, input channels per group; else 1, 1, 1, 0.
    causal, masked, channels_last : ndarray
        1 where the attention is causal, where it takes a mask, where the tensor is channels-last.
    counted : ndarray
        1 where the operator has a formula, 0 where only its bytes were counted.
    """

    kind: Strings
    phase: Strings
    dtype: Strings
    operator: Strings
    module: Strings
    batch: Floats
    m: Floats
    n: Floats
    k: Floats
    flop: Floats
    model_flop: Floats
    read_bytes: Floats
    written_bytes: Floats
    n_calls: Floats
    n_kernels: Floats
    kernel_area: Floats
    stride: Floats
    groups: Floats
    group_width: Floats
    causal: Floats
    masked: Floats
    channels_last: Floats
    counted: Floats

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in _TABLE_COLUMNS}
        if len(lengths) != 1:
            raise ValueError(f"columns of unequal length: {sorted(lengths)}")
        for name in _TABLE_COLUMNS:
            getattr(self, name).setflags(write=False)

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def bytes_moved(self) -> Floats:
        """Traffic of one call. [bytes]"""
        return self.read_bytes + self.written_bytes

    def total(self, per_call: Floats) -> float:
        """Return the sum over the step of what one call of each row takes."""
        return float(np.sum(per_call * self.n_calls))

    @property
    def coverage_frac(self) -> float:
        """Share of the traffic in operators that have a formula. [1]"""
        n_bytes = self.total(self.bytes_moved)
        return self.total(self.bytes_moved * self.counted) / n_bytes if n_bytes else 1.0

    def rows(self, selection: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> "OpTable":
        """Return the table of the selected rows."""
        return OpTable(**{name: getattr(self, name)[selection] for name in _TABLE_COLUMNS})

    def repeated(self, n_times: float) -> "OpTable":
        """Return the table with every row called ``n_times`` as often."""
        return replace(self, n_calls=self.n_calls * n_times)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns by name, for a data frame."""
        return {name: getattr(self, name) for name in _TABLE_COLUMNS}


_TABLE_COLUMNS: Final = (*LABEL_COLUMNS, *SCALING_COLUMNS, *FIXED_COLUMNS)


def concatenate(*tables: OpTable) -> OpTable:
    """Return the rows of all tables, in order."""
    return OpTable(**{name: np.concatenate([getattr(t, name) for t in tables]) for name in _TABLE_COLUMNS})


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """The parameters of a module; tied ones once.

    Attributes
    ----------
    n_parameters, n_trainable : int
        Elements of all parameters and of those with ``requires_grad``.
    n_tensors : int
        Trainable parameter tensors.
    parameter_bytes, trainable_bytes, buffer_bytes : int
        Storage of parameters, of the trainable ones (= gradients) and of buffers. [bytes]
    n_shared_uses : int
        Uses of parameters beyond the first in one forward pass (ALBERT's layers, tied heads).
    """

    n_parameters: int
    n_trainable: int
    n_tensors: int
    parameter_bytes: int
    trainable_bytes: int
    buffer_bytes: int
    n_shared_uses: int = 0


def monomials(batch_size: Floats | float, seq_len: float) -> Floats:
    """Return the values of `MONOMIALS` at a size, or at many batch sizes. [term] or [term, size]"""
    powers = [np.asarray(batch_size, dtype=np.float64) ** i * float(seq_len) ** j for i, j in MONOMIALS]
    return np.stack(powers)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """Forward, loss and backward of a module at any batch size (and sequence length, if it has one).

    Attributes
    ----------
    labels : mapping of str to ndarray [op]
        `LABEL_COLUMNS`.
    fixed : mapping of str to ndarray [op]
        `FIXED_COLUMNS`.
    polynomials : ndarray [op, column, term]
        `SCALING_COLUMNS` over `MONOMIALS`.
    live_bytes : ndarray [candidate, term]
        Bytes alive beyond parameters, buffers and optimizer state at the moments that can be the peak.
    parameters : ParameterCount
    optimizers : mapping of str to OptimizerTrace
        What one optimizer step adds, by optimizer name.
    tokens_per_sample_is_seq_len : bool
        Whether a sample is a sequence.
    seq_len_range : (float, float)
        Lengths the trace is exact for; equal where it was traced at one.
    batch_exact : bool
        False where the model's work is not a polynomial in the batch size that two traces determine.
    batch_traced : float
        The batch it was traced at where `batch_exact` is False, else 0.
    features : mapping of str to float
        Structural features of the module: depth, repeated layers and the like.
    notes : tuple of str
        What the reader of a prediction must know.
    """

    labels: Mapping[str, Strings]
    fixed: Mapping[str, Floats]
    polynomials: Floats
    live_bytes: Floats
    parameters: ParameterCount
    optimizers: Mapping[str, "OptimizerTrace"]
    tokens_per_sample_is_seq_len: bool
    seq_len_range: tuple[float, float]
    batch_exact: bool = True
    batch_traced: float = 0.0
    features: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def table(self, batch_size: float, seq_len: float = 0.0) -> OpTable:
        """Return the op table at a size; exact where the trace is."""
        values = self.polynomials @ monomials(batch_size, seq_len)  # [op, column]
        scaling = {name: values[:, i] for i, name in enumerate(SCALING_COLUMNS)}
        columns: dict[str, Any] = {**self.labels, **scaling, **self.fixed}
        return OpTable(**columns)

    def scaling(self, batch_sizes: Floats, seq_len: float = 0.0) -> Floats:
        """Return the `SCALING_COLUMNS` at many batch sizes. [size, op, column]"""
        return np.moveaxis(self.polynomials @ monomials(batch_sizes, seq_len), -1, 0)

    def peak_live_bytes(self, batch_sizes: Floats, seq_len: float = 0.0) -> Floats:
        """Return the largest activation, gradient and temporary bytes alive at once. [bytes] [size]"""
        peak: Floats = np.max(self.live_bytes @ monomials(batch_sizes, seq_len), axis=0)
        return peak


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerTrace:
    """One optimizer step (clipping and scaling apart): rows, state and temporaries.

    Attributes
    ----------
    table : OpTable
        Its kernels; independent of the batch.
    state_bytes : float
        What it keeps between steps (moments, master weights). [bytes]
    temporary_bytes : float
        The most it holds at once beyond parameters, gradients and state. [bytes]
    """

    table: OpTable
    state_bytes: float
    temporary_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One step of one GPU, ready for the model layer.

    Attributes
    ----------
    table : OpTable
        All the step's rows, optimizer included.
    batch_size : float
        Samples per GPU and step (all micro-batches).
    seq_len : float
        Tokens per sample; 0 where a sample is not a sequence.
    precision : str
        The policy, as in DESIGN: ``fp32``, ``tf32``, ``bf16`` ...
    mode : str
        ``train``, ``train-no-optimizer`` or ``forward``.
    parameters : ParameterCount
    gradient_bytes : float
        What data parallelism reduces. [bytes]
    persistent_bytes : float
        Parameters, buffers, optimizer state, master weights. [bytes]
    peak_live_bytes : float
        The most alive beyond that: activations, gradients, temporaries. [bytes]
    features : mapping of str to float
        Structural features, for the calibration.
    notes : tuple of str
    """

    table: OpTable
    batch_size: float
    seq_len: float
    precision: str
    mode: str
    parameters: ParameterCount
    gradient_bytes: float
    persistent_bytes: float
    peak_live_bytes: float
    features: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workloads:
    """Steps that differ in their batch alone.

    Attributes
    ----------
    first : Workload
        At the first batch size: everything that the batch does not change.
    batch_size : ndarray [size]
        Samples per GPU and step (all micro-batches).
    scaling : ndarray [size, op, column]
        `SCALING_COLUMNS` of the rows of ``first.table``.
    peak_live_bytes : ndarray [size]
        As in `Workload`. [bytes]
    """

    first: Workload
    batch_size: Floats
    scaling: Floats
    peak_live_bytes: Floats

    def __len__(self) -> int:
        return len(self.batch_size)

    def column(self, name: str) -> Floats:
        """Return a column of `SCALING_COLUMNS`. [size, op]"""
        values: Floats = self.scaling[:, :, SCALING_COLUMNS.index(name)]
        return values


def alone(load: Workload) -> Workloads:
    """Return one step as steps of one size."""
    columns = [getattr(load.table, name) for name in SCALING_COLUMNS]
    return Workloads(
        first=load,
        batch_size=np.array([load.batch_size]),
        scaling=np.stack(columns, axis=-1)[np.newaxis],
        peak_live_bytes=np.array([load.peak_live_bytes]),
    )

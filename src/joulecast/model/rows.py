"""An op table on a GPU as numbers: what the time and power models compute with.

In: an `OpTable`, the precision policy, a `Gpu`. Out: `Rows`, numeric arrays [op]; rows of several tables and
GPUs concatenate, so that a fit evaluates thousands of steps in one pass. Knows no parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from joulecast.hardware.spec import Gpu
from joulecast.model.definitions import BANDWIDTH_CLASSES, PROCESS_NODES
from joulecast.model.paths import family_of, row_paths, unit_flop_per_clock
from joulecast.workload.table import (
    DTYPE_BYTES,
    SCALING_COLUMNS,
    Dtype,
    Floats,
    OpKind,
    OpTable,
    Phase,
    Workloads,
)

Booleans = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]
Selection = Booleans | Integers

#: Number of each kind in ``Rows.kind``.
KIND_NUMBER: Final[Mapping[str, int]] = {str(kind): i for i, kind in enumerate(OpKind)}

#: Architectures with HBM, by prefix of their id. Source: memory types of `gpus.csv`.
HBM_ARCHITECTURES: Final = (
    *("pascal-gp100", "volta", "ampere-ga100", "hopper"),
    *("blackwell-gb10", "blackwell-gb11", "cdna"),
)

#: Data-centre boards with GDDR memory: ECC is on by default and takes its share of the bandwidth.
#: Source: NVIDIA's product briefs of these boards.
INLINE_ECC_BOARDS: Final = frozenset({"p4", "t4", "a10", "a10g", "a40", "l4", "l40", "l40s"})

#: Process by prefix of the architecture id. Sources: vendors' architecture whitepapers; 7 nm where unknown.
PROCESS: Final[Mapping[str, str]] = {
    "pascal": "tsmc16",
    "volta": "tsmc12",
    "turing": "tsmc12",
    "ampere-ga10x": "samsung8",
    "ada": "tsmc5",
    "hopper": "tsmc5",
    "blackwell": "tsmc5",
    "cdna2": "tsmc6",
    "cdna3": "tsmc5",
    "cdna4": "tsmc3",
}

#: Number of each process in ``Device.process``; TSMC's 7 nm, the unit of energy, comes last.
PROCESS_NUMBER: Final[Mapping[str, int]] = {name: i for i, name in enumerate((*PROCESS_NODES, "tsmc7"))}

#: Kinds whose efficiency differs between forward and backward.
_BY_PHASE: Final = frozenset({OpKind.SOFTMAX, OpKind.LAYER_NORM, OpKind.BATCH_NORM, OpKind.POOL})
_BACKWARD_PHASES: Final = (str(Phase.BACKWARD), str(Phase.DGRAD), str(Phase.WGRAD))
_CLASS_NUMBER: Final = {name: i for i, name in enumerate(BANDWIDTH_CLASSES)}


class _Columns:
    """Records of arrays along one axis: selection and concatenation; single values stay single."""

    __slots__ = ()

    def take(self, selection: Selection) -> Self:
        """Return the selected rows."""
        return type(self)(**{f.name: _taken(getattr(self, f.name), selection) for f in fields(self)})  # type: ignore[arg-type]

    @classmethod
    def concatenate(cls, parts: "list[Self]", lengths: list[int]) -> Self:
        """Return the rows of all parts, in order; single values are repeated."""
        return cls(
            **{
                f.name: _concatenated([getattr(part, f.name) for part in parts], lengths)
                for f in fields(cls)  # type: ignore[arg-type]
            }
        )


def _taken(value: Any, selection: Selection) -> Any:
    if isinstance(value, _Columns):
        return value.take(selection)
    return value[..., selection] if np.ndim(value) else value


def _concatenated(values: list[Any], lengths: list[int]) -> Any:
    if isinstance(values[0], _Columns):
        return type(values[0]).concatenate(values, lengths)
    return np.concatenate([np.broadcast_to(v, (n,)) for v, n in zip(values, lengths, strict=True)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(_Columns):
    """What a GPU is to its rows; single values for one GPU, [op] for rows of several.

    Attributes
    ----------
    n_sms, vector_flop_per_clock : ndarray
        Multiprocessors; FP32 work of all vector units in a clock. [1], [FLOP]
    dual_issue, wide_issue : ndarray
        1 where an SM has 128 FP32 lanes, of which half share issue with integer work, or none does. [1]
    fixed_batched_tile : ndarray
        1 where cuBLAS takes its tallest tiles for FP32 batched products: Ampere and newer. [1]
    bandwidth_bytes_per_s, l2_bytes : ndarray
        Device memory rate; last-level cache. [bytes/s], [bytes]
    gddr, inline_ecc : ndarray
        1 where memory is not HBM; where ECC shares its bandwidth. [1]
    process : ndarray
        `PROCESS_NUMBER` of the chip. [1]
    boost_clock_hz, min_clock_hz, max_clock_hz, flat_clock_hz : ndarray
        Clocks; up to the last, voltage stays at its floor. [Hz]
    voltage_max_ratio : ndarray
        Voltage at the highest clock over its floor. [1]
    voltage_known : ndarray
        1 where both come from a measurement, not a guess. [1]
    idle_power_w, waiting_power_w, board_power_w : ndarray
        No process; waiting for the host; the board's default limit. [W]
    """

    n_sms: Floats
    vector_flop_per_clock: Floats
    dual_issue: Floats
    wide_issue: Floats
    fixed_batched_tile: Floats
    bandwidth_bytes_per_s: Floats
    l2_bytes: Floats
    gddr: Floats
    inline_ecc: Floats
    process: Floats
    boost_clock_hz: Floats
    min_clock_hz: Floats
    max_clock_hz: Floats
    flat_clock_hz: Floats
    voltage_max_ratio: Floats
    voltage_known: Floats
    idle_power_w: Floats
    waiting_power_w: Floats
    board_power_w: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(_Columns):
    """Rows of op tables on GPUs; every array is [op], columns of the table as in `OpTable`.

    Attributes
    ----------
    kind : ndarray of int
        `KIND_NUMBER`.
    bandwidth_class : ndarray of int
        Index into `BANDWIDTH_CLASSES`.
    family : ndarray of int
        Index into `PATH_FAMILIES`.
    dgrad, wgrad, backward : ndarray of bool
        Phase; ``backward`` holds for both gradients too.
    bf16, fp32 : ndarray of bool
        Type of the operands.
    element_bytes : ndarray
        Of the operands. [bytes]
    flop_per_clock : ndarray
        Work of the row's unit in a clock, all SMs. [FLOP]
    device : Device
    """

    kind: Integers
    bandwidth_class: Integers
    family: Integers
    dgrad: Booleans
    wgrad: Booleans
    backward: Booleans
    bf16: Booleans
    fp32: Booleans
    element_bytes: Floats
    batch: Floats
    m: Floats
    n: Floats
    k: Floats
    flop: Floats
    read_bytes: Floats
    written_bytes: Floats
    n_calls: Floats
    n_kernels: Floats
    kernel_area: Floats
    stride: Floats
    groups: Floats
    group_width: Floats
    masked: Floats
    channels_last: Floats
    flop_per_clock: Floats
    device: Device

    def __len__(self) -> int:
        return len(self.kind)

    def of_kind(self, kind: str) -> Booleans:
        """Return which rows are of a kind. [op]."""
        chosen: Booleans = self.kind == KIND_NUMBER[kind]
        return chosen


_SAME_COLUMNS: Final = (
    *("batch", "m", "n", "k", "flop", "read_bytes", "written_bytes", "n_calls", "n_kernels"),
    *("kernel_area", "stride", "groups", "group_width", "masked", "channels_last"),
)


def rows_of(table: OpTable, precision: str, gpu: Gpu) -> Rows:
    """Return the rows of a table on a GPU under a precision policy. [op]."""
    names, inverse = np.unique(row_paths(table, precision, gpu), return_inverse=True)
    paths = [str(name) for name in names]
    phases = table.phase.tolist()
    dtypes = table.dtype.tolist()
    return Rows(
        kind=np.array([KIND_NUMBER[kind] for kind in table.kind.tolist()], dtype=np.int64),
        bandwidth_class=_bandwidth_class(table),
        family=np.array([family_of(path) for path in paths], dtype=np.int64)[inverse],
        dgrad=np.array([phase == Phase.DGRAD for phase in phases], dtype=np.bool_),
        wgrad=np.array([phase == Phase.WGRAD for phase in phases], dtype=np.bool_),
        backward=np.array([phase in _BACKWARD_PHASES for phase in phases], dtype=np.bool_),
        bf16=np.array([dtype == Dtype.BF16 for dtype in dtypes], dtype=np.bool_),
        fp32=np.array([dtype == Dtype.FP32 for dtype in dtypes], dtype=np.bool_),
        element_bytes=np.array([DTYPE_BYTES[dtype] for dtype in dtypes], dtype=np.float64),
        flop_per_clock=np.array([unit_flop_per_clock(path, gpu) for path in paths])[inverse],
        device=device_of(gpu),
        **{name: getattr(table, name) for name in _SAME_COLUMNS},
    )


def rows_of_sizes(loads: Workloads, gpu: Gpu) -> Rows:
    """Return the rows of steps that differ in their batch alone, one step after another. [size x op]."""
    rows = rows_of(loads.first.table, loads.first.precision, gpu)
    n_sizes = len(loads)
    tiled = {
        f.name: np.tile(getattr(rows, f.name), n_sizes) for f in fields(rows) if f.name not in _NOT_TILED
    }
    scaled: dict[str, Any] = {name: loads.column(name).ravel() for name in _SCALED_COLUMNS}
    return Rows(**tiled, **scaled, device=rows.device)


_SCALED_COLUMNS: Final = tuple(name for name in SCALING_COLUMNS if name in _SAME_COLUMNS)
_NOT_TILED: Final = (*_SCALED_COLUMNS, "device")


def concatenate_rows(parts: list[Rows]) -> Rows:
    """Return the rows of all parts, in order. [op]."""
    return Rows.concatenate(parts, [len(part) for part in parts])


#: 128 FP32 lanes times a multiply-add.
_WIDE_FLOP_PER_CLOCK: Final = 256.0

#: Architectures whose 128-lane SMs have integer lanes beside them. Source: NVIDIA H100 whitepaper, figure 7.
_OWN_INTEGER_LANES: Final = ("hopper",)


def device_of(gpu: Gpu) -> Device:
    """Return what a GPU is to its rows."""
    vector = gpu.flop_per_clock_per_sm["fp32_vector"]
    nvidia = gpu.vendor.lower() == "nvidia"
    lanes = gpu.as_built("flop_per_clock_per_sm.fp32_vector", vector)
    wide = nvidia and lanes >= _WIDE_FLOP_PER_CLOCK and not gpu.architecture.startswith("pascal")
    shares_issue = wide and not gpu.architecture.startswith(_OWN_INTEGER_LANES)
    process = (name for prefix, name in PROCESS.items() if gpu.architecture.startswith(prefix))
    numbers = {
        "n_sms": gpu.n_sms,
        "vector_flop_per_clock": gpu.n_sms * vector,
        "dual_issue": shares_issue,
        "wide_issue": wide and not shares_issue,
        "fixed_batched_tile": nvidia and gpu.flop_per_clock_per_sm.get("tf32_tensor", 0.0) > 0,
        "bandwidth_bytes_per_s": gpu.bandwidth_bytes_per_s,
        "l2_bytes": gpu.l2_bytes,
        "gddr": not gpu.architecture.startswith(HBM_ARCHITECTURES),
        "inline_ecc": gpu.board in INLINE_ECC_BOARDS,
        "process": PROCESS_NUMBER[next(process, "tsmc7")],
        "boost_clock_hz": gpu.boost_clock_hz,
        "min_clock_hz": gpu.min_clock_hz,
        "max_clock_hz": gpu.max_clock_hz,
        "flat_clock_hz": gpu.voltage_flat_clock_frac * gpu.max_clock_hz,
        "voltage_max_ratio": gpu.voltage_max_ratio,
        "voltage_known": bool(gpu.facts)
        and not {"voltage_max_ratio", "voltage_flat_clock_frac"} & set(gpu.guesses),
        "idle_power_w": gpu.idle_power_w,
        "waiting_power_w": gpu.waiting_power_w,
        "board_power_w": gpu.as_built("power_limit_w", gpu.power_limit_w),
    }
    return Device(**{name: np.array(float(value)) for name, value in numbers.items()})


def _bandwidth_class(table: OpTable) -> Integers:
    """Return the index into `BANDWIDTH_CLASSES` of every row. [op]."""
    depthwise = (table.groups > 1) & (table.group_width <= 1)
    labels = zip(
        table.kind.tolist(),
        table.phase.tolist(),
        (table.channels_last > 0).tolist(),
        depthwise.tolist(),
        (table.dtype != Dtype.FP32).tolist(),
        strict=True,
    )
    return np.array([_CLASS_NUMBER[_class_name(*label)] for label in labels], dtype=np.int64)


def _class_name(kind: str, phase: str, channels_last: bool, depthwise: bool, short: bool) -> str:
    """Return the bandwidth class of a row; ``short`` types have fewer than 32 bits."""
    if kind == OpKind.ELEMENTWISE and short and phase in _BACKWARD_PHASES:
        return "elementwise_backward_16bit"
    if kind in (OpKind.GEMM, OpKind.BATCHED_GEMM):
        return "product"
    if kind == OpKind.CONVOLUTION and depthwise:
        return f"depthwise_{phase}" if phase in (Phase.DGRAD, Phase.WGRAD) else "depthwise"
    if kind in _BY_PHASE:
        name = f"{kind}_{'backward' if phase in _BACKWARD_PHASES else 'forward'}"
        return f"{name}_channels_last" if kind == OpKind.BATCH_NORM and channels_last else name
    return kind if kind in _CLASS_NUMBER else "other"

"""Time of every kernel at a clock: roofline with saturation, waves, launch cost.

In: `Rows`, parameters. Out: `Costs`, the parts of each row's time that go with 1/clock, with memory, and with
neither; `kernel_time_s` joins them at a clock. Knows no power, no host.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from joulecast.model import products
from joulecast.model.definitions import BANDWIDTH_CLASSES
from joulecast.model.paths import TENSOR16
from joulecast.model.rows import Integers, Rows, Selection
from joulecast.workload.table import Floats, OpKind

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Parts of one call's time; every array is [op] or [config, op].

    Attributes
    ----------
    compute_cycles : ndarray
        Clock cycles on the arithmetic unit, all SMs at work. [cycle]
    memory_s : ndarray
        Traffic over the bandwidth reached, at full clock. [s]
    overhead_s : ndarray
        Launch and ramp of the call's kernels. [s]
    bytes_moved : ndarray
        Traffic, layout copies included. [bytes]
    sharpness : float
        Exponent of the smooth maximum. [1]
    boost_clock_hz : ndarray
        Clock against which bandwidth is judged. [Hz]
    memory_knee : float
        Clock over boost below which bandwidth falls. [1]
    """

    compute_cycles: Floats
    memory_s: Floats
    overhead_s: Floats
    bytes_moved: Floats
    sharpness: float
    boost_clock_hz: Floats
    memory_knee: float

    def take(self, selection: Selection) -> "Costs":
        """Return the costs of the selected rows."""
        boost_hz = self.boost_clock_hz
        return Costs(
            compute_cycles=self.compute_cycles[..., selection],
            memory_s=self.memory_s[..., selection],
            overhead_s=self.overhead_s[..., selection],
            bytes_moved=self.bytes_moved[..., selection],
            sharpness=self.sharpness,
            boost_clock_hz=boost_hz[..., selection] if np.ndim(boost_hz) else boost_hz,
            memory_knee=self.memory_knee,
        )


#: Rows of one kind, with where they stand in the rows.
Parts = Mapping[str, tuple[Integers, Rows]]


def product_parts(rows: Rows) -> Parts:
    """Return the rows that need an arithmetic unit, by kind; a fit does this once."""
    selections = {kind: np.flatnonzero(rows.of_kind(kind)) for kind in _CYCLES}
    return {kind: (chosen, rows.take(chosen)) for kind, chosen in selections.items() if chosen.size}


def row_costs(rows: Rows, values: Values, parts: Parts | None = None) -> Costs:
    """Return the parts of the time of one call of each row.

    Parameters
    ----------
    rows : Rows [op]
    values : mapping
        Parameters.
    parts : mapping or None
        `product_parts` of the rows, where it is at hand.
    """
    moved = traffic_bytes(rows, values)
    share = bandwidth_share(rows, values)
    memory_s = moved / (rows.device.bandwidth_bytes_per_s * share * l2_gain(moved, rows, values))
    ramp_s = values["launch.kernel_s"] + np.where(moved > 0, values["bandwidth.ramp_s"], 0.0)
    extra_s = np.where(rows.of_kind(OpKind.ATTENTION), values["attention.overhead_s"], 0.0)
    return Costs(
        compute_cycles=compute_cycles(rows, values, product_parts(rows) if parts is None else parts),
        memory_s=memory_s,
        overhead_s=rows.n_kernels * ramp_s + extra_s,
        bytes_moved=moved,
        sharpness=values["bandwidth.sharpness"],
        boost_clock_hz=rows.device.boost_clock_hz,
        memory_knee=values["clock.memory_knee"],
    )


_CYCLES: Final[Mapping[str, Callable[[Rows, Values], Floats]]] = {
    OpKind.GEMM: products.product_cycles,
    OpKind.BATCHED_GEMM: products.product_cycles,
    OpKind.CONVOLUTION: products.convolution_cycles,
    OpKind.ATTENTION: products.attention_cycles,
    OpKind.BATCH_NORM: products.batch_norm_cycles,
}


def compute_cycles(rows: Rows, values: Values, parts: Parts) -> Floats:
    """Return the cycles each call needs on the SMs; 0 for memory-bound kinds. [cycle] [op]."""
    found = {kind: _CYCLES[kind](chosen, values) for kind, (_, chosen) in parts.items()}
    population = np.broadcast_shapes(*(cycles.shape[:-1] for cycles in found.values()))
    every = np.zeros((*population, len(rows)))
    for kind, cycles in found.items():
        every[..., parts[kind][0]] = cycles
    return every


def traffic_bytes(rows: Rows, values: Values) -> Floats:
    """Return the traffic of one call: compulsory, layout copies, and rows read again. [bytes] [op].

    Notes
    -----
    cuDNN's 16-bit tensor kernels want channels-last: contiguous operands and results are copied.
    """
    moved = rows.read_bytes + rows.written_bytes + reread_bytes(rows, values) - kept_bytes(rows, values)
    copied = (rows.of_kind(OpKind.CONVOLUTION)) & (rows.channels_last <= 0) & ~products.is_depthwise(rows)
    copied = copied & (rows.family == TENSOR16)
    moved = moved + np.where(rows.of_kind(OpKind.CONVOLUTION), products.winograd_bytes(rows, values), 0.0)
    return moved * np.where(copied, 1.0 + 2.0 * values["convolution.layout_traffic"], 1.0)


def reread_bytes(rows: Rows, values: Values) -> Floats:
    """Return what layer norm and long softmax rows fetch again from memory, forward. [bytes] [op].

    Notes
    -----
    These kernels pass over a row more than once (mean, then values; maximum, sum, then values). The rows in
    flight, ``SMs x rows_in_flight x row bytes``, stay in L2 as far as they fit: ``x^2 / (1 + x^2)`` is lost.
    """
    forward = ~rows.backward
    long_softmax = (rows.of_kind(OpKind.SOFTMAX)) & (rows.n > _SOFTMAX_REGISTER_COLUMNS)
    passes = np.where(rows.of_kind(OpKind.LAYER_NORM), 1.0, np.where(long_softmax, 2.0, 0.0)) * forward
    row_bytes = rows.read_bytes / np.maximum(rows.m, 1.0)
    in_flight = np.minimum(rows.device.n_sms * values["bandwidth.rows_in_flight"], rows.m) * row_bytes
    filled = in_flight / (values["bandwidth.l2_share"] * rows.device.l2_bytes)
    lost: Floats = passes * rows.read_bytes * filled**2 / (1.0 + filled**2)
    return lost


def kept_bytes(rows: Rows, values: Values) -> Floats:
    """Return what batch norm's second pass, half of its reads, finds on the chip. [bytes] [op]."""
    from_memory = np.where(
        rows.channels_last > 0,
        values["batch_norm.reread_share_channels_last"],
        values["batch_norm.reread_share"],
    )
    return np.where(rows.of_kind(OpKind.BATCH_NORM), 0.5 * rows.read_bytes * (1.0 - from_memory), 0.0)


#: Rows that PyTorch's softmax keeps in registers. [1]
#: Source: PyTorch, aten/src/ATen/native/cuda/SoftMax.cu (``dim_size <= 1024``).
_SOFTMAX_REGISTER_COLUMNS: Final = 1024


def l2_resident(moved_bytes: Floats, rows: Rows, values: Values) -> Floats:
    """Return the part of a working set that L2 serves: near 1 where it fits. [1] [op]."""
    filled = moved_bytes / (values["bandwidth.l2_share"] * rows.device.l2_bytes)
    resident: Floats = 1.0 / (1.0 + filled**2)
    return resident


def l2_gain(moved_bytes: Floats, rows: Rows, values: Values) -> Floats:
    """Return the rate of a working set over that of memory: above 1 where it fits into L2. [1] [op]."""
    resident = l2_resident(moved_bytes, rows, values)
    return 1.0 / (1.0 - resident * (1.0 - 1.0 / values["bandwidth.l2_gain"]))


def bandwidth_share(rows: Rows, values: Values) -> Floats:
    """Return the share of memory bandwidth that each row reaches at large sizes. [1] [op].

    Notes
    -----
    Batch norm in bf16 is PyTorch's own kernel, slower than cuDNN's: ResNet-152 takes 17 % longer
    in bf16 than in fp16 on an A100.
    """
    names = [f"bandwidth.{name}" for name in BANDWIDTH_CLASSES]
    share = products.chosen_values(values, names, rows.bandwidth_class)
    native_norm = rows.of_kind(OpKind.BATCH_NORM) & rows.bf16
    share = share / np.where(native_norm, values["batch_norm.bf16_ratio"], 1.0)
    return share * np.where(rows.device.inline_ecc > 0, values["bandwidth.ecc_ratio"], 1.0)


def memory_slowdown(costs: Costs, clock_hz: Floats | float) -> Floats:
    """Return memory time at a clock over that at full clock; grows below the knee. [1].

    ``(1 + (knee boost / f)^8)^(1/8)``: 1 above the knee, in proportion to 1/f far below it.
    """
    x = costs.memory_knee * costs.boost_clock_hz / clock_hz
    slowdown: Floats = (1.0 + x**8) ** 0.125
    return slowdown


def kernel_time_s(costs: Costs, clock_hz: Floats | float) -> Floats:
    """Return the time of one call of each row at a clock. [s].

    Parameters
    ----------
    costs : Costs [op]
    clock_hz : float or ndarray
        SM clock, per row or one. [Hz]

    Notes
    -----
    ``((cycles / f)^p + memory^p)^(1/p) + overhead``: never below either bound.
    """
    compute_s = costs.compute_cycles / clock_hz
    memory_s = costs.memory_s * memory_slowdown(costs, clock_hz)
    return smooth_maximum(compute_s, memory_s, costs.sharpness) + costs.overhead_s


def smooth_maximum(a: Floats | float, b: Floats | float, sharpness: float) -> Floats:
    """Return ``(a^p + b^p)^(1/p)``: at least the larger, at most 2^(1/p) of it."""
    larger = np.maximum(a, b)
    ratio = np.minimum(a, b) / np.where(larger > 0, larger, 1.0)
    joined: Floats = larger * (1.0 + ratio**sharpness) ** (1.0 / sharpness)
    return joined


#: What can bind a row, in the order of `bound_number`.
ROW_BOUNDS: Final = ("compute", "memory", "launch")


def bound_number(costs: Costs, clock_hz: Floats | float) -> Integers:
    """Return what binds each row at a clock: an index into `ROW_BOUNDS`. [op]."""
    compute_s = costs.compute_cycles / clock_hz
    memory_s = costs.memory_s * memory_slowdown(costs, clock_hz)
    later: Integers = np.where(memory_s >= costs.overhead_s, 1, 2)
    return np.where(compute_s >= np.maximum(memory_s, costs.overhead_s), 0, later)


def row_bound(costs: Costs, clock_hz: Floats | float) -> npt.NDArray[np.str_]:
    """Return what binds each row at a clock: ``compute``, ``memory`` or ``launch``. [op]."""
    bound: npt.NDArray[np.str_] = np.array(ROW_BOUNDS)[bound_number(costs, clock_hz)]
    return bound

"""The list of the model's parameters: name, starting value, unit, bounds, meaning. No I/O.

Names are ``PART.WHAT``; parts follow the modules: ``product`` ``convolution`` ``attention`` (products.py),
``bandwidth`` ``launch`` ``clock`` (time.py), ``host`` (host.py), ``power``, ``comm``, ``memory``.
Starting values come from DESIGN.md's physics and from the shared operators; a fit replaces them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the model.

    Attributes
    ----------
    name : str
    value : float
        Where a fit starts. [unit]
    unit : str
        SI unit, ``1`` where dimensionless.
    low, high : float
        Bounds of a fit and of a file. [unit]
    meaning : str
    """

    name: str
    value: float
    unit: str
    low: float
    high: float
    meaning: str


#: Families of arithmetic paths that share an efficiency; the order is that of the arrays in products.py.
PATH_FAMILIES: Final = ("vector", "tf32", "tensor16")

#: Memory-bound classes: kind, or kind and phase, or kind, phase and format.
BANDWIDTH_CLASSES: Final = {
    "elementwise": (0.84, "elementwise kernels on 32-bit types"),
    "elementwise_backward_16bit": (0.7, "elementwise kernels on 16-bit gradients"),
    "copy": (0.85, "copies, casts, concatenations"),
    "softmax_forward": (0.68, "softmax forward"),
    "softmax_backward": (0.85, "softmax backward"),
    "layer_norm_forward": (0.6, "layer norm forward"),
    "layer_norm_backward": (0.85, "layer norm backward"),
    "batch_norm_forward": (0.85, "batch norm forward, contiguous"),
    "batch_norm_backward": (0.8, "batch norm backward, contiguous"),
    "batch_norm_forward_channels_last": (0.85, "batch norm forward, channels-last"),
    "batch_norm_backward_channels_last": (0.85, "batch norm backward, channels-last"),
    "group_norm": (0.55, "group norm"),
    "reduction": (0.85, "reductions"),
    "pool_forward": (0.6, "pooling and resizing forward"),
    "pool_backward": (0.32, "pooling and resizing backward"),
    "embedding": (0.45, "embedding look-up and gradient"),
    "index": (0.45, "gather and scatter"),
    "optimizer": (0.8, "multi-tensor optimizer kernels"),
    "other": (0.6, "operators without a formula"),
    "product": (0.77, "operands and results of products"),
    "convolution": (0.73, "operands and results of convolutions"),
    "depthwise": (0.81, "depthwise convolution forward"),
    "depthwise_dgrad": (0.51, "depthwise convolution, data gradient"),
    "depthwise_wgrad": (0.2, "depthwise convolution, weight gradient"),
    "attention": (0.3, "operands and results of fused attention"),
}


def _fraction(name: str, value: float, meaning: str, low: float = 0.02) -> Parameter:
    return Parameter(name, value, "1", low, 1.0, meaning)


#: The best that streaming kernels reach on any card of `ops.parquet` and `power_facts.csv`. [1]
_LARGEST_SHARE: Final = 0.95


def _bandwidth() -> Iterator[Parameter]:
    for name, (value, what) in BANDWIDTH_CLASSES.items():
        meaning = f"largest share of memory bandwidth: {what}"
        yield Parameter(f"bandwidth.{name}", value, "1", 0.02, _LARGEST_SHARE, meaning)
    yield _fraction(
        "bandwidth.ecc_ratio", 0.9, "bandwidth share of GDDR data-centre boards, which keep ECC in line", 0.5
    )
    yield Parameter(
        "batch_norm.forward_cycles",
        0.48,
        "cycle",
        0.0,
        20.0,
        "SM cycles per element, contiguous batch norm forward",
    )
    yield Parameter(
        "batch_norm.backward_cycles",
        3.0,
        "cycle",
        0.0,
        20.0,
        "SM cycles per element, contiguous batch norm backward",
    )
    yield _fraction("batch_norm.reread_share", 0.31, "second pass that goes to memory, contiguous", 0.0)
    yield _fraction(
        "batch_norm.reread_share_channels_last", 0.8, "second pass that goes to memory, channels-last", 0.0
    )
    yield Parameter(
        "batch_norm.channel_half",
        0.7,
        "1",
        0.0,
        20.0,
        "channels per SM at half rate: a block takes a channel",
    )
    yield Parameter(
        "batch_norm.bf16_ratio",
        1.5,
        "1",
        1.0,
        5.0,
        "time of batch norm in bf16 (not cuDNN's) over other types",
    )
    yield Parameter(
        "bandwidth.ramp_s", 2.5e-06, "s", 0.0, 5e-6, "latency of a kernel's traffic: bytes_half / bandwidth"
    )
    yield Parameter(
        "bandwidth.l2_gain", 1.3, "1", 1.0, 6.0, "rate of a working set inside L2 over memory bandwidth"
    )
    yield Parameter("bandwidth.l2_share", 0.56, "1", 0.05, 2.0, "part of L2 that a working set may fill")
    yield Parameter(
        "bandwidth.rows_in_flight", 2.0, "1", 0.5, 64.0, "rows of a norm or softmax an SM works on at once"
    )
    yield Parameter(
        "bandwidth.sharpness", 2.5, "1", 1.0, 30.0, "exponent of the smooth maximum of compute and memory"
    )
    yield Parameter(
        "launch.kernel_s", 1.3e-06, "s", 1e-7, 6e-6, "least time of a kernel on the GPU, gap included"
    )


_FAMILY_NAMES: Final = {
    "vector": "FP32 vector units",
    "tf32": "TF32 tensor units",
    "tensor16": "16-bit tensor units",
}


def _products() -> Iterator[Parameter]:
    starts = {"vector": (0.97, 84.0, 4.5), "tf32": (0.80, 120.0, 60.0), "tensor16": (0.97, 180.0, 170.0)}
    for family, (efficiency, k_half, tile_half) in starts.items():
        on = f"on {_FAMILY_NAMES[family]}"
        yield _fraction(
            f"product.{family}.efficiency", efficiency, f"share of peak of endless products {on}", 0.3
        )
        yield Parameter(f"product.{family}.k_half", k_half, "1", 0.0, 2000.0, f"depth K at half rate {on}")
        yield Parameter(
            f"product.{family}.tile_half", tile_half, "1", 0.0, 1000.0, f"tile edge at half rate {on}"
        )
    yield _fraction(
        "product.dual_issue_ratio", 0.58, "FP32 rate of 128-lane SMs that share issue with integer work", 0.4
    )
    yield _fraction(
        "product.wide_issue_ratio", 0.75, "FP32 rate of 128-lane SMs with integer lanes beside them", 0.4
    )
    yield Parameter(
        "product.resident_outputs", 16384.0, "1", 1024.0, 65536.0, "outputs that an SM works on at once"
    )
    yield _fraction("product.batched_ratio", 0.9, "rate of batched products relative to single ones", 0.3)
    yield _fraction(
        "product.wave_share", 0.64, "share of wave quantisation that shows; the rest is averaged", 0.0
    )
    yield _fraction("product.wave_tail", 0.25, "waves lost at the end of a product", 0.0)
    yield Parameter(
        "product.odd_cost",
        1.0,
        "1",
        0.0,
        8.0,
        "added tensor time where a dimension is no multiple of 16 bytes, at an A100's rate",
    )
    yield Parameter(
        "product.split_half", 2700.0, "1", 8.0, 4096.0, "least depth K of one part of a split product"
    )


def _convolutions() -> Iterator[Parameter]:
    starts = {"vector": (0.80, 0.70, 0.80), "tf32": (0.55, 0.60, 0.45), "tensor16": (0.65, 0.80, 0.80)}
    for family, values in starts.items():
        for phase, value in zip(("forward", "dgrad", "wgrad"), values, strict=True):
            meaning = f"share of peak of endless convolutions, {phase}, on {_FAMILY_NAMES[family]}"
            yield _fraction(f"convolution.{family}.{phase}", value, meaning, 0.05)
    for family, value in (("vector", 20.0), ("tf32", 30.0), ("tensor16", 55.0)):
        meaning = f"depth K at half rate of convolutions on {_FAMILY_NAMES[family]}"
        yield Parameter(f"convolution.{family}.k_half", value, "1", 0.0, 1000.0, meaning)
    yield _fraction("convolution.pointwise_ratio", 0.98, "rate of 1x1 relative to larger kernels", 0.3)
    yield _fraction("convolution.stride_ratio", 0.88, "gradient rate of strided relative to dense ones", 0.2)
    yield _fraction(
        "convolution.contiguous_ratio", 0.95, "tensor rate in contiguous relative to channels-last", 0.2
    )
    yield Parameter(
        "convolution.layout_traffic", 0.37, "1", 0.0, 4.0, "16-bit contiguous: copies of operands and result"
    )
    yield Parameter(
        "convolution.winograd_gain", 1.9, "1", 1.0, 2.25, "largest saving of Winograd, 3x3 FP32 vector"
    )
    yield Parameter(
        "convolution.winograd_half", 8.0, "1", 1.0, 400.0, "channels at half of Winograd's saving"
    )
    yield Parameter(
        "convolution.winograd_traffic",
        10.0,
        "1",
        0.0,
        20.0,
        "traffic of transformed weights over the weights'",
    )
    yield _fraction(
        "convolution.alignment_ratio",
        0.5,
        "tensor rate in channels-last where channels are no multiple of 8",
        0.1,
    )
    yield Parameter(
        "convolution.group_half", 11.0, "1", 1.0, 400.0, "channels of a group at half of the grouped rate"
    )
    yield _fraction("convolution.grouped_ratio", 0.35, "rate of grouped relative to dense, contiguous", 0.02)
    yield Parameter(
        "convolution.group_half_channels_last",
        4.0,
        "1",
        0.0,
        400.0,
        "channels of a group at half of the grouped rate, channels-last",
    )
    yield _fraction(
        "convolution.grouped_ratio_channels_last",
        0.15,
        "rate of grouped relative to dense, channels-last",
        0.01,
    )
    yield _fraction(
        "convolution.depthwise_rate", 0.076, "share of vector peak of depthwise convolutions, 16 bit", 0.01
    )
    yield _fraction(
        "convolution.depthwise_fp32_rate", 0.076, "share of vector peak of depthwise convolutions, FP32", 0.01
    )


def _attention() -> Iterator[Parameter]:
    yield _fraction("attention.forward", 0.71, "tensor share of peak in fused attention, forward", 0.2)
    yield _fraction("attention.backward", 0.7, "tensor share of peak in fused attention, backward", 0.1)
    yield _fraction(
        "attention.efficient_ratio", 0.8, "rate of the memory-efficient relative to the flash kernel", 0.1
    )
    yield _fraction("attention.vector", 0.45, "share of vector peak in fused attention in FP32", 0.05)
    yield Parameter("attention.score_cycles", 3.6e-17, "cycle", 0.0, 1.0, "SM cycles of softmax per score")
    yield Parameter(
        "attention.overhead_s",
        8.2e-06,
        "s",
        0.0,
        3e-5,
        "beyond a kernel's launch, per call of fused attention",
    )
    yield Parameter("attention.width_half", 40.0, "1", 0.0, 200.0, "head width at half rate")
    yield Parameter("attention.key_half", 190.0, "1", 0.0, 2000.0, "keys at half rate")


def _clock_and_host() -> Iterator[Parameter]:
    yield _fraction("clock.headroom", 0.8, "where a free clock lies between boost and maximum", 0.0)
    yield Parameter(
        "clock.memory_knee", 0.8, "1", 0.05, 1.0, "clock, over boost, below which bandwidth falls"
    )
    yield Parameter(
        "host.forward_kernel_s", 2.2e-5, "s", 5e-7, 1e-4, "dispatch of one forward kernel by eager PyTorch"
    )
    yield Parameter(
        "host.backward_kernel_s", 4e-5, "s", 5e-7, 1e-4, "dispatch of one backward kernel by autograd"
    )
    yield Parameter("host.copy_kernel_s", 7e-6, "s", 5e-7, 1e-4, "dispatch of one copy or cast")
    yield Parameter(
        "host.optimizer_kernel_s", 1.2e-05, "s", 5e-7, 2e-4, "dispatch of one multi-tensor kernel"
    )
    yield Parameter(
        "host.parameter_tensor_s", 1.5e-06, "s", 0.0, 5e-5, "optimizer bookkeeping per parameter tensor"
    )
    yield Parameter("host.step_s", 0.001, "s", 0.0, 5e-2, "per step: data loader hand-over, loss, loop")
    yield Parameter(
        "host.data_parallel_ratio", 1.6, "1", 1.0, 4.0, "dispatch time with data parallelism over without"
    )
    yield Parameter(
        "host.sharpness", 6.0, "1", 1.0, 30.0, "exponent of the smooth maximum of kernels and dispatch"
    )


#: Processes that chips are made in beside TSMC's 7 nm, whose energy is the unit.
PROCESS_NODES: Final = {
    "tsmc16": (1.6, "Pascal (TSMC 16FF+)"),
    "tsmc12": (2.2, "Volta, Turing (TSMC 12FFN)"),
    "samsung8": (1.8, "GA10x Ampere (Samsung 8N)"),
    "tsmc6": (0.9, "CDNA 2 (TSMC N6)"),
    "tsmc5": (1.2, "Ada, Hopper, Blackwell, CDNA 3 (TSMC 4N, 4NP, N5)"),
    "tsmc3": (0.55, "CDNA 4 (TSMC N3)"),
}


def _power() -> Iterator[Parameter]:
    yield Parameter(
        "power.tensor16_j_per_flop", 5.9e-13, "J/FLOP", 1e-13, 1e-11, "16-bit tensor work, 7 nm, low voltage"
    )
    yield Parameter(
        "power.tf32_j_per_flop", 1.6e-12, "J/FLOP", 1e-13, 2e-11, "TF32 tensor work, 7 nm, low voltage"
    )
    yield Parameter(
        "power.vector_j_per_flop", 4.9e-12, "J/FLOP", 1e-12, 1e-10, "FP32 vector work, 7 nm, low voltage"
    )
    yield Parameter("power.j_per_byte", 1.1e-10, "J/byte", 1e-11, 1e-9, "memory traffic, HBM, 7 nm")
    yield Parameter(
        "power.l2_share", 0.4, "1", 0.0, 1.0, "energy of a byte that L2 serves over one from memory"
    )
    yield Parameter(
        "power.attention_ratio", 1.4, "1", 0.5, 3.0, "energy per FLOP of fused attention over products'"
    )
    yield Parameter(
        "power.gddr_working_ratio", 0.7, "1", 0.0, 2.0, "working share of GDDR boards over that of HBM boards"
    )
    yield Parameter("power.gddr_ratio", 0.9, "1", 0.7, 1.5, "energy per byte of GDDR over HBM")
    for node, (ratio, chips) in PROCESS_NODES.items():
        yield Parameter(
            f"power.{node}_ratio", ratio, "1", 0.2, 5.0, f"energy per FLOP over TSMC 7 nm's: {chips}"
        )
    yield Parameter(
        "power.working_limit_share",
        0.33,
        "1",
        0.0,
        0.6,
        "power of a card at work whatever it computes, at the highest clock, over the board's limit",
    )
    for node, (_, chips) in {**PROCESS_NODES, "tsmc7": (1.0, "GA100 Ampere (TSMC N7)")}.items():
        yield Parameter(
            f"power.{node}_voltage_max_ratio",
            1.35,
            "1",
            1.05,
            1.8,
            f"voltage at the highest clock over its floor, where unmeasured: {chips}",
        )
        yield Parameter(
            f"power.{node}_voltage_flat_share",
            0.65,
            "1",
            0.2,
            0.95,
            f"clock, over the highest, where voltage leaves its floor, where unmeasured: {chips}",
        )
    yield Parameter(
        "power.voltage_exponent",
        1.3,
        "1",
        1.0,
        5.0,
        "how voltage rises from its floor with the clock, where unmeasured: 1 is a line",
    )
    yield Parameter(
        "power.waiting_constant_share",
        0.8,
        "1",
        0.0,
        1.0,
        "part of waiting beyond idle that the clock does not change",
    )
    yield Parameter("power.limit_ratio", 0.98, "1", 0.8, 1.0, "short-window power that a limit lets through")


def _communication() -> Iterator[Parameter]:
    yield _fraction(
        "comm.link_ratio", 0.98, "all-reduce rate in training over the link's measured bus bandwidth", 0.1
    )
    yield _fraction("comm.pcie_ratio", 0.8, "the same where the ring runs over PCIe", 0.05)
    yield Parameter(
        "comm.half_bytes", 4.2e6, "byte", 0.0, 1e8, "buffer of an all-reduce at half of what small ones lose"
    )
    yield Parameter("comm.latency_s", 5.3e-6, "s", 1e-6, 2e-4, "latency of one all-reduce")
    yield Parameter("comm.hop_s", 8.6e-7, "s", 0.0, 1e-4, "latency added by every step of the ring")
    yield _fraction("comm.overlap", 0.85, "part of the backward pass that can hide communication", 0.0)
    yield Parameter("comm.contention", 0.1, "1", 0.0, 1.0, "slow-down of kernels while communication runs")
    yield Parameter(
        "comm.bucket_bytes", 26000000.0, "byte", 1e6, 1e9, "size of DDP's buckets (PyTorch: 25 MiB)"
    )


#: Floors of single operators launched one by one from Python, by operator class. [s]
BENCH_CLASSES: Final = {
    "elementwise": 2.9e-05,
    "softmax": 3.4e-05,
    "layer_norm": 4.7e-05,
    "gemm": 6.9e-05,
    "batched_gemm": 3.5e-05,
    "convolution": 6.5e-05,
    "attention": 4e-05,
}


def _bench() -> Iterator[Parameter]:
    for name, value in BENCH_CLASSES.items():
        yield Parameter(
            f"bench.{name}_s", value, "s", 0.0, 2e-4, f"dispatch of one {name} timed alone, eager Python"
        )
    yield Parameter("bench.visible_share", 0.5, "1", 0.0, 1.0, "part of it that no kernel hides")


def _memory() -> Iterator[Parameter]:
    yield Parameter(
        "memory.workspace_bytes", 8500000.0, "byte", 0.0, 1e9, "library workspaces inside the allocator"
    )
    yield Parameter("memory.fragmentation", 0.03, "1", 0.0, 1.0, "reserve beyond the peak allocation")
    yield Parameter(
        "memory.context_bytes", 500000000.0, "byte", 1e8, 4e9, "context and libraries of one process"
    )
    yield Parameter(
        "memory.data_parallel_bytes",
        400000000.0,
        "byte",
        0.0,
        4e9,
        "NCCL's buffers and context of one process",
    )


PARAMETERS: Final[tuple[Parameter, ...]] = tuple(
    chain(
        _products(),
        _convolutions(),
        _attention(),
        _bandwidth(),
        _clock_and_host(),
        _power(),
        _communication(),
        _bench(),
        _memory(),
    )
)

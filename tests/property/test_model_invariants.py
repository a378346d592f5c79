"""Invariants of the model: bounds, monotony, additivity, scaling, power, memory."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.hardware.catalogue import load_gpu
from joulecast.model.host import Host
from joulecast.model.parameters import initial_parameters, load_parameters
from joulecast.model.paths import row_paths, unit_flop_per_clock
from joulecast.model.rows import rows_of
from joulecast.model.step import BOUNDS, StepPrediction, predict_step
from joulecast.model.time import kernel_time_s, row_costs
from joulecast.workload.calls import Work, table_of
from joulecast.workload.table import (
    DTYPE_BYTES,
    OpKind,
    OpTable,
    ParameterCount,
    Phase,
    Workload,
    concatenate,
)

PARAMETERS = load_parameters()
GPUS = tuple(
    load_gpu(slug) for slug in ("a100-sxm4-80gb", "v100-sxm2-16gb", "t4", "rtx-3090", "h100-sxm5-80gb")
)

DIMENSION = st.integers(1, 4096)
PHASES = (Phase.FORWARD, Phase.DGRAD, Phase.WGRAD)
ELEMENTWISE_KINDS = tuple(
    kind
    for kind in OpKind
    if kind not in (OpKind.GEMM, OpKind.BATCHED_GEMM, OpKind.CONVOLUTION, OpKind.ATTENTION)
)

#: Winograd saves at most this factor of nominal work; L2 lends at most its gain of bandwidth.
WINOGRAD = 2.25
L2_GAIN = PARAMETERS.values["bandwidth.l2_gain"]


def one_row(kind: str, phase: str, dtype: str, n_calls: float = 1.0, **columns: float) -> OpTable:
    work = Work(kind=kind, dtype=dtype, **{"m": 1.0, "model_flop": columns.get("flop", 0.0), **columns})
    return table_of([(kind, phase, dtype, "op", "*")], [work]).repeated(n_calls)


@st.composite
def products(draw: st.DrawFn) -> OpTable:
    b, m, n, k = draw(st.integers(1, 64)), draw(DIMENSION), draw(DIMENSION), draw(DIMENSION)
    dtype = draw(st.sampled_from(["fp32", "bf16", "fp16"]))
    size = DTYPE_BYTES[dtype]
    return one_row(
        OpKind.BATCHED_GEMM if b > 1 else OpKind.GEMM,
        draw(st.sampled_from(PHASES)),
        dtype,
        batch=b,
        m=m,
        n=n,
        k=k,
        flop=2.0 * b * m * n * k,
        read_bytes=size * b * (m * k + k * n),
        written_bytes=size * b * m * n,
        n_calls=draw(st.integers(1, 50)),
    )


@st.composite
def convolutions(draw: st.DrawFn) -> OpTable:
    pixels, width, outputs = (
        draw(st.integers(1, 200_000)),
        draw(st.integers(1, 512)),
        draw(st.integers(1, 512)),
    )
    groups, area = draw(st.sampled_from([1, 1, 1, 4, 32])), draw(st.sampled_from([1, 9, 49]))
    dtype = draw(st.sampled_from(["fp32", "bf16", "fp16"]))
    size = DTYPE_BYTES[dtype]
    stride = draw(st.sampled_from([1, 2]))
    return one_row(
        OpKind.CONVOLUTION,
        draw(st.sampled_from(PHASES)),
        dtype,
        batch=groups,
        m=pixels,
        n=outputs,
        k=width * area,
        flop=2.0 * groups * pixels * outputs * width * area,
        read_bytes=size * groups * (pixels * stride**2 * width + outputs * width * area),
        written_bytes=size * groups * pixels * outputs,
        kernel_area=area,
        stride=stride,
        groups=groups,
        group_width=width,
        channels_last=draw(st.sampled_from([0.0, 1.0])),
        n_calls=draw(st.integers(1, 20)),
    )


@st.composite
def attentions(draw: st.DrawFn) -> OpTable:
    heads, queries, width = (
        draw(st.integers(1, 512)),
        draw(st.integers(1, 4096)),
        draw(st.sampled_from([32, 64, 128])),
    )
    backward = draw(st.booleans())
    dtype = draw(st.sampled_from(["fp32", "bf16", "fp16"]))
    moved = float(DTYPE_BYTES[dtype] * heads * queries * width)
    return one_row(
        OpKind.ATTENTION,
        Phase.DGRAD if backward else Phase.FORWARD,
        dtype,
        batch=heads,
        m=queries,
        n=queries,
        k=width,
        flop=(10.0 if backward else 4.0) * heads * queries**2 * width,
        read_bytes=3 * moved,
        written_bytes=moved,
        masked=draw(st.sampled_from([0.0, 1.0])),
    )


@st.composite
def streams(draw: st.DrawFn) -> OpTable:
    m, n = draw(st.integers(1, 1_000_000)), draw(st.integers(1, 4096))
    dtype = draw(st.sampled_from(["fp32", "bf16", "fp16", "int"]))
    size = DTYPE_BYTES[dtype]
    return one_row(
        draw(st.sampled_from(ELEMENTWISE_KINDS)),
        draw(st.sampled_from([Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER])),
        dtype,
        m=m,
        n=n,
        read_bytes=2.0 * size * m * n,
        written_bytes=1.0 * size * m * n,
        channels_last=draw(st.sampled_from([0.0, 1.0])),
        n_kernels=draw(st.integers(1, 8)),
        n_calls=draw(st.integers(1, 20)),
    )


ROWS = st.one_of(products(), convolutions(), attentions(), streams())
TABLES = st.lists(ROWS, min_size=1, max_size=8).map(lambda rows: concatenate(*rows))
CARDS = st.sampled_from(GPUS)
PRECISIONS = st.sampled_from(["fp32", "fp32-strict", "tf32", "bf16", "fp16"])


def step_of(table: OpTable, precision: str = "fp32") -> Workload:
    return Workload(
        table=table,
        batch_size=8.0,
        seq_len=0.0,
        precision=precision,
        mode="train",
        parameters=ParameterCount(
            n_parameters=10**7,
            n_trainable=10**7,
            n_tensors=100,
            parameter_bytes=4 * 10**7,
            trainable_bytes=4 * 10**7,
            buffer_bytes=0,
        ),
        gradient_bytes=4e7,
        persistent_bytes=1.2e8,
        peak_live_bytes=5e8,
    )


def predicted(table: OpTable, gpu=GPUS[0], precision: str = "fp32", **conditions) -> StepPrediction:
    return predict_step(step_of(table, precision), gpu, PARAMETERS, **conditions)


def row_times_s(table: OpTable, gpu, precision: str, values=None) -> np.ndarray:
    rows = rows_of(table, precision, gpu)
    return kernel_time_s(row_costs(rows, values or PARAMETERS.values), gpu.max_clock_hz)


@given(table=TABLES, gpu=CARDS, precision=PRECISIONS)
def test_time_is_at_least_work_over_peak_and_traffic_over_bandwidth(table, gpu, precision):
    times_s = row_times_s(table, gpu, precision)
    peaks = (
        np.array([unit_flop_per_clock(str(p), gpu) for p in row_paths(table, precision, gpu)])
        * gpu.max_clock_hz
    )
    depthwise = (table.groups > 1) & (table.group_width <= 1)
    peaks = np.where(depthwise, gpu.peak_flop_per_s("fp32_vector", gpu.max_clock_hz), peaks)
    three_by_three = (table.kernel_area == 9) & (table.dtype == "fp32")
    work = table.flop / np.where(three_by_three, WINOGRAD, 1.0)
    assert np.all(times_s >= work / peaks * (1 - 1e-12))
    second_pass = np.where(table.kind == OpKind.BATCH_NORM, 0.5 * table.read_bytes, 0.0)
    compulsory = table.bytes_moved - second_pass
    assert np.all(times_s >= compulsory / (gpu.bandwidth_bytes_per_s * L2_GAIN) * (1 - 1e-12))
    large = compulsory > 40 * gpu.l2_bytes
    assert np.all(times_s[large] >= 0.999 * (compulsory / gpu.bandwidth_bytes_per_s)[large])


@given(table=TABLES, gpu=CARDS, precision=PRECISIONS, factor=st.floats(1.0, 8.0))
def test_more_calls_take_longer(table, gpu, precision, factor):
    once = predicted(table, gpu, precision)
    more = predicted(table.repeated(factor), gpu, precision)
    assert more.kernel_time_s >= once.kernel_time_s * (1 - 1e-9)


@given(
    table=products(),
    gpu=CARDS,
    precision=PRECISIONS,
    column=st.sampled_from(["m", "n", "k"]),
    factor=st.integers(2, 4),
)
def test_larger_products_take_longer(table, gpu, precision, column, factor):
    """Whole multiples: other sizes may fall on better tiles or alignments."""
    size = DTYPE_BYTES[str(table.dtype[0])]
    grown = replace(table, **{column: getattr(table, column) * factor})
    b, m, n, k = (getattr(grown, name) for name in ("batch", "m", "n", "k"))
    grown = replace(
        grown,
        flop=2.0 * b * m * n * k,
        read_bytes=size * b * (m * k + k * n),
        written_bytes=size * b * m * n,
    )
    ratio = row_times_s(grown, gpu, precision)[0] / row_times_s(table, gpu, precision)[0]
    aligned_at_last = (table.k[0] * size) % 16 or (table.n[0] * size) % 16
    assert ratio >= (0.3 if aligned_at_last else 0.999)


@given(table=TABLES, precision=PRECISIONS, factor=st.floats(1.0, 4.0))
def test_faster_cards_take_no_longer(table, precision, factor):
    gpu = GPUS[0]
    rates = {path: rate * factor for path, rate in gpu.flop_per_clock_per_sm.items()}
    faster = replace(gpu, flop_per_clock_per_sm=rates)
    wider = replace(gpu, bandwidth_bytes_per_s=gpu.bandwidth_bytes_per_s * factor)
    times_s = row_times_s(table, gpu, precision)
    ratio = np.where(table.dtype == "fp32", PARAMETERS.values["product.dual_issue_ratio"], 1.0)  # wider SMs
    assert np.all(row_times_s(table, faster, precision) * ratio <= times_s * (1 + 1e-9))
    assert np.all(row_times_s(table, wider, precision) <= times_s * (1 + 1e-9))


@given(a=TABLES, b=TABLES, gpu=CARDS, precision=PRECISIONS)
def test_concatenation_adds_kernel_times(a, b, gpu, precision):
    unlimited = {"power_limit_w": 1e9}
    joined = predicted(concatenate(a, b), gpu, precision, **unlimited).kernel_time_s
    parts = [predicted(t, gpu, precision, **unlimited).kernel_time_s for t in (a, b)]
    assert joined == pytest.approx(sum(parts), rel=1e-9)


@given(table=TABLES, gpu=CARDS, precision=PRECISIONS, seed=st.integers(0, 1000))
def test_order_of_rows_is_irrelevant(table, gpu, precision, seed):
    order = np.random.default_rng(seed).permutation(len(table))
    a, b = predicted(table, gpu, precision), predicted(table.rows(order), gpu, precision)
    assert b.step_time_s == pytest.approx(a.step_time_s, rel=1e-6)
    assert b.energy_per_step_j == pytest.approx(a.energy_per_step_j, rel=1e-6)
    np.testing.assert_allclose(b.op_time_s, a.op_time_s[order], rtol=1e-6)


@given(table=TABLES, gpu=CARDS, precision=PRECISIONS, share=st.floats(0.05, 1.2))
def test_power_lies_between_idle_and_limit_unless_flagged(table, gpu, precision, share):
    limit_w = share * gpu.power_limit_w
    step = predicted(table, gpu, precision, power_limit_w=limit_w)
    assert step.mean_power_w >= gpu.idle_power_w * (1 - 1e-9)
    exceeded = any("exceeded" in flag for flag in step.flags)
    assert exceeded or step.mean_power_w <= limit_w * (1 + 1e-6) or gpu.waiting_power_w > limit_w


@given(table=TABLES, gpu=CARDS, precision=PRECISIONS, n_gpus=st.sampled_from([1, 2, 4, 8]))
def test_energy_is_power_times_time(table, gpu, precision, n_gpus):
    step = predicted(table, gpu, precision, n_gpus=n_gpus)
    assert step.energy_per_step_j == pytest.approx(n_gpus * step.mean_power_w * step.step_time_s, rel=1e-12)
    assert sum(step.time_share_by_bound.values()) == pytest.approx(1.0, abs=1e-6)
    assert step.bound_by in BOUNDS


@given(table=TABLES, gpu=CARDS, precision=PRECISIONS)
def test_one_gpu_does_not_communicate(table, gpu, precision):
    one, four = predicted(table, gpu, precision), predicted(table, gpu, precision, n_gpus=4)
    assert one.communication_time_s == 0.0
    assert one.time_share_by_bound["communication"] == 0.0
    assert four.communication_time_s > 0.0
    assert four.step_time_s >= one.step_time_s


@given(
    persistent=st.floats(0, 1e11),
    live=st.floats(0, 1e11),
    gradients=st.floats(0, 1e10),
    n_gpus=st.sampled_from([1, 2, 8]),
)
def test_memory_is_nested_and_holds_what_lives(persistent, live, gradients, n_gpus):
    workload = replace(
        step_of(one_row(OpKind.COPY, Phase.FORWARD, "fp32", read_bytes=4e6, written_bytes=4e6)),
        persistent_bytes=persistent,
        peak_live_bytes=live,
        gradient_bytes=gradients,
    )
    step = predict_step(workload, GPUS[0], PARAMETERS, n_gpus=n_gpus)
    assert persistent + live <= step.allocated_bytes <= step.reserved_bytes <= step.process_bytes


@given(table=TABLES, precision=PRECISIONS, factor=st.floats(0.25, 4.0))
@settings(max_examples=50)
def test_scaling_rates_and_overheads_scales_time(table, precision, factor):
    gpu = GPUS[0]
    faster = replace(
        gpu,
        flop_per_clock_per_sm={k: v * factor for k, v in gpu.flop_per_clock_per_sm.items()},
        bandwidth_bytes_per_s=gpu.bandwidth_bytes_per_s * factor,
    )
    start = {name: value for name, value in initial_parameters().values.items()}
    start["product.dual_issue_ratio"] = 1.0
    start["attention.score_cycles"] = 0.0
    for name in start:  # what takes clocks whatever the unit could have computed in them
        if name.endswith(("k_half", "tile_half", "odd_cost")):
            start[name] = 0.0
    short = {**start}
    overheads = ("launch.kernel_s", "bandwidth.ramp_s", "attention.overhead_s")
    for name in (*overheads, "batch_norm.forward_cycles", "batch_norm.backward_cycles"):
        short[name] = start[name] / factor
    slow, fast = (row_times_s(table, card, precision, v) for card, v in ((gpu, start), (faster, short)))
    np.testing.assert_allclose(fast, slow / factor, rtol=1e-9)


@given(table=TABLES, gpu=CARDS, factor=st.floats(1.0, 3.0))
def test_slower_hosts_take_no_less(table, gpu, factor):
    costs = {
        "forward_kernel_s": 1e-5,
        "backward_kernel_s": 1e-5,
        "optimizer_kernel_s": 2e-5,
        "copy_kernel_s": 5e-6,
        "parameter_tensor_s": 1e-6,
        "step_s": 1e-3,
    }
    fast = Host(**costs, data_parallel_ratio=1.2)
    slow = Host(**{name: value * factor for name, value in costs.items()}, data_parallel_ratio=1.2)
    assert predicted(table, gpu, host=slow).step_time_s >= predicted(table, gpu, host=fast).step_time_s * (
        1 - 1e-9
    )


@given(table=TABLES, gpu=CARDS, precision=PRECISIONS)
def test_lower_limits_take_no_less_time(table, gpu, precision):
    limits_w = [gpu.power_limit_w * share for share in (0.4, 0.7, 1.0)]
    times_s = [predicted(table, gpu, precision, power_limit_w=w).step_time_s for w in limits_w]
    assert times_s[0] >= times_s[1] * (1 - 1e-6)
    assert times_s[1] >= times_s[2] * (1 - 1e-6)

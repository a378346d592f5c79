from dataclasses import replace

import numpy as np
import pytest

import joulecast
from joulecast.hardware.catalogue import load_gpu
from joulecast.model import clock, power
from joulecast.model.rows import device_of, rows_of
from joulecast.model.time import row_costs
from joulecast.workload.table import OpKind


def alone(table, gpu, values, *, limit_w, top_hz=1.41e9, precision="fp32", other_s=0.0):
    rows = rows_of(table, precision, gpu)
    costs = row_costs(rows, values)
    steps = np.zeros(len(rows), dtype=np.int64)
    conditions = clock.Conditions(
        top_clock_hz=np.array([top_hz]),
        limit_w=np.array([limit_w]),
        other_time_s=np.array([other_s]),
        waiting_power_w=np.array([gpu.waiting_power_w]),
        limit_ratio=values["power.limit_ratio"],
    )
    labels = clock.row_labels(rows.kind, rows.family, costs, top_hz)
    return clock.operating_point(power.kernels_of(rows, costs, values), labels, steps, conditions)


def test_voltage_is_flat_then_rises_to_the_measured_ratio(plain, a100):
    device = device_of(a100)
    flat_hz = a100.voltage_flat_clock_frac * a100.max_clock_hz
    assert power.voltage_squared_ratio(0.5 * flat_hz, device, plain) == pytest.approx(1.0)
    assert power.voltage_squared_ratio(flat_hz, device, plain) == pytest.approx(1.0)
    top = power.voltage_squared_ratio(a100.max_clock_hz, device, plain)
    assert top == pytest.approx(a100.voltage_max_ratio**2)


def test_an_unmeasured_voltage_is_a_parameter(plain):
    gpu = load_gpu("t4")
    values = {
        **plain,
        "power.tsmc12_voltage_max_ratio": 1.4,
        "power.tsmc12_voltage_flat_share": 0.5,
        "power.voltage_exponent": 1.0,
    }
    device = device_of(gpu)
    assert power.voltage_squared_ratio(0.5 * gpu.max_clock_hz, device, values) == pytest.approx(1.0)
    assert power.voltage_squared_ratio(0.75 * gpu.max_clock_hz, device, values) == pytest.approx(1.2**2)


def test_waiting_power_is_the_cards_own_at_full_clock(plain, a100):
    device = device_of(a100)
    assert power.waiting_power_w(a100.max_clock_hz, device, plain) == pytest.approx(a100.waiting_power_w)
    slow = power.waiting_power_w(a100.min_clock_hz, device, plain)
    assert a100.idle_power_w < slow < a100.waiting_power_w


def test_the_free_clock_lies_between_boost_and_maximum(plain):
    gpu = replace(load_gpu("a100-sxm4-80gb"), boost_clock_hz=1.0e9, max_clock_hz=1.4e9)
    assert power.free_clock_hz(gpu, {**plain, "clock.headroom": 0.25}) == pytest.approx(1.1e9)


def test_power_is_static_plus_work_plus_traffic(gemm, plain, a100):
    """At 1.0 GHz voltage is at its floor: a product at peak costs 1 pJ per FLOP and 100 pJ per byte."""
    values = {
        **plain,
        "power.tensor16_j_per_flop": 1e-12,
        "power.j_per_byte": 100e-12,
        "power.working_limit_share": 0.0,
        "power.l2_share": 1.0,
    }
    table = gemm(8192, 8192, 8192, "bf16")
    point = alone(table, a100, values, limit_w=1e6, top_hz=1.0e9, precision="bf16")
    work_j = 2 * 8192**3 * 1e-12 + float(table.bytes_moved[0]) * 100e-12
    static_w = float(power.waiting_power_w(1.0e9, device_of(a100), values))
    assert point.energy_j == pytest.approx(work_j + static_w * point.time_s)


def test_the_process_scales_energy(gemm, plain):
    values = {**plain, "power.samsung8_ratio": 2.0, "power.tsmc5_ratio": 0.5}
    energies = {}
    for slug in ("a100-sxm4-80gb", "a40", "l40s"):
        rows = rows_of(gemm(1024, 1024, 1024, "bf16"), "bf16", load_gpu(slug))
        energies[slug] = float(power.kernels_of(rows, row_costs(rows, values), values).core_j[0])
    assert energies["a40"] == pytest.approx(2.0 * energies["a100-sxm4-80gb"])
    assert energies["l40s"] == pytest.approx(0.5 * energies["a100-sxm4-80gb"])


def test_a_limit_lowers_the_clock_to_meet_it(gemm, plain, a100):
    values = {**plain, "power.tensor16_j_per_flop": 1e-12, "power.limit_ratio": 1.0}
    table = gemm(8192, 8192, 8192, "bf16")
    point = alone(table, a100, values, limit_w=250.0, precision="bf16")
    assert point.clock_hz[0] < 1.41e9
    assert float(point.energy_j[0] / point.time_s[0]) == pytest.approx(250.0, rel=1e-4)
    assert not point.exceeds_limit.any()


def test_waiting_for_the_host_leaves_room_below_the_limit(gemm, plain, a100):
    values = {**plain, "power.tensor16_j_per_flop": 1e-12}
    table = gemm(8192, 8192, 8192, "bf16")
    busy = alone(table, a100, values, limit_w=250.0, precision="bf16")
    waiting = alone(table, a100, values, limit_w=250.0, precision="bf16", other_s=4 * float(busy.time_s[0]))
    assert waiting.clock_hz[0] > busy.clock_hz[0]


def test_duty_grows_as_clocks_fall(gemm, plain, a100):
    """A host a little slower than the kernels at full clock does not hide them at the limited one."""
    values = {**plain, "power.tensor16_j_per_flop": 2e-12, "power.limit_ratio": 1.0}
    table = gemm(8192, 8192, 8192, "bf16")
    free = alone(table, a100, values, limit_w=1e6, precision="bf16")
    point = alone(table, a100, values, limit_w=250.0, precision="bf16", other_s=1.2 * float(free.time_s[0]))
    assert float(point.energy_j[0] / point.time_s[0]) <= 250.0 * 1.001


def test_a_limit_below_the_lowest_clock_is_exceeded(gemm, plain, a100):
    point = alone(gemm(8192, 8192, 8192), a100, plain, limit_w=20.0)
    assert point.exceeds_limit.all()
    assert point.clock_hz[0] == pytest.approx(a100.min_clock_hz)


def test_bytes_from_l2_cost_less(stream, plain, a100):
    values = {**plain, "power.l2_share": 0.5}
    small, large = (rows_of(stream(n), "fp32", a100) for n in (1e3, 1e9))
    per_byte = [
        float(power.kernels_of(r, row_costs(r, values), values).memory_j[0] / r.read_bytes[0])
        for r in (small, large)
    ]
    assert per_byte[0] == pytest.approx(0.5 * per_byte[1], rel=1e-2)


def test_winograd_and_attention_have_their_own_energy(row, plain):
    gpu = load_gpu("v100-sxm2-16gb")
    work = {
        "m": 1e6,
        "n": 256,
        "k": 2304,
        "flop": 2.0 * 1e6 * 256 * 2304,
        "kernel_area": 9,
        "group_width": 256,
    }
    values = {**plain, "convolution.winograd_gain": 2.0, "convolution.winograd_half": 1.0}
    rows = rows_of(row(OpKind.CONVOLUTION, **work), "fp32", gpu)
    saved = power.kernels_of(rows, row_costs(rows, values), values).core_j
    full = power.kernels_of(rows, row_costs(rows, plain), {**plain, "convolution.winograd_gain": 1.0}).core_j
    assert full / saved == pytest.approx(1 + (256 / 257) ** 2)


@pytest.mark.parametrize(
    "gpu", ["h20-96gb", "h100-pcie-80gb", "a40", "t4", "v100-pcie-32gb", "a100-pcie-40gb"]
)
@pytest.mark.parametrize(("model", "precision"), [("bert-base", "bf16"), ("resnet50", "fp32")])
def test_the_mean_keeps_the_lowest_limit_unless_the_lowest_clock_exceeds_it(gpu, model, precision):
    limit_w = load_gpu(gpu).min_power_limit_w
    options = {"gpu": gpu, "precision": precision, "batch_size": 64}
    (limited,) = joulecast.predict(model, power_limit_w=limit_w, **options)
    (slowest,) = joulecast.predict(model, sm_clock_hz=load_gpu(gpu).min_clock_hz, **options)

    if limited.mean_power_w.value > limit_w * 1.001:
        assert slowest.mean_power_w.value > limit_w
        assert any("exceeded" in flag for flag in limited.flags)
    else:
        assert not any("exceeded" in flag for flag in limited.flags)

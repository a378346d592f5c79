from dataclasses import replace

import numpy as np
import pytest

from joulecast.hardware.catalogue import load_gpu
from joulecast.model.batch import Step, batch_of, step_costs
from joulecast.model.host import Host
from joulecast.model.parameters import initial_parameters, load_parameters
from joulecast.model.step import predict_step
from joulecast.workload.table import Phase, concatenate

SLOW_HOST = Host(
    forward_kernel_s=1.0,
    backward_kernel_s=1.0,
    optimizer_kernel_s=1.0,
    copy_kernel_s=1.0,
    parameter_tensor_s=0.0,
    step_s=0.0,
    data_parallel_ratio=1.0,
    origin="measured",
)


@pytest.fixture
def step(workload, gemm, stream):
    phases = (Phase.FORWARD, Phase.DGRAD, Phase.WGRAD)
    products = [gemm(4096, 4096, 4096, "bf16", phase, n_calls=12) for phase in phases]
    return workload(concatenate(*products, stream(1e8, n_calls=10)), "bf16")


def test_a_slow_host_bounds_the_step_and_the_card_waits(step, a100):
    found = predict_step(step, a100, load_parameters(), host=SLOW_HOST)
    assert found.bound_by == "host"
    assert found.dispatch_time_s == pytest.approx(46.0)
    assert found.step_time_s == pytest.approx(46.0, rel=1e-3)
    assert found.mean_power_w == pytest.approx(a100.waiting_power_w, rel=0.05)


def test_a_locked_clock_is_kept(step, a100):
    found = predict_step(step, a100, load_parameters(), sm_clock_hz=0.9e9)
    assert found.sm_clock_hz == pytest.approx(0.9e9)


def test_compute_time_goes_with_the_clock(workload, gemm, a100):
    step = workload(gemm(8192, 8192, 8192, "bf16"), "bf16")
    slow, fast = (
        predict_step(step, a100, load_parameters(), sm_clock_hz=hz, power_limit_w=1e6)
        for hz in (0.7e9, 1.4e9)
    )
    assert slow.kernel_time_s / fast.kernel_time_s == pytest.approx(2.0, rel=0.02)


def test_data_parallelism_shows_communication_and_multiplies_energy(step, a100):
    one, eight = (predict_step(step, a100, load_parameters(), n_gpus=n) for n in (1, 8))
    assert one.communication_time_s == 0.0
    assert eight.communication_time_s > 0.0
    assert eight.energy_per_step_j == pytest.approx(8 * eight.mean_power_w * eight.step_time_s)
    assert eight.allocated_bytes == pytest.approx(one.allocated_bytes + step.gradient_bytes)


def test_the_wrapper_at_one_gpu_keeps_buckets_but_reduces_nothing(step, a100):
    plain, wrapped = (predict_step(step, a100, load_parameters(), data_parallel=x) for x in (False, True))
    assert wrapped.allocated_bytes == pytest.approx(plain.allocated_bytes + step.gradient_bytes)
    assert wrapped.communication_time_s == 0.0


def test_a_forward_pass_reduces_no_gradients(workload, stream, a100):
    forward = workload(stream(1e8), mode="forward")
    assert predict_step(forward, a100, load_parameters(), n_gpus=8).communication_time_s == 0.0


def test_an_empty_step_costs_its_dispatch(workload, stream, a100):
    empty = workload(stream(1e3).rows(np.array([], dtype=np.int64)))
    found = predict_step(empty, a100, load_parameters())
    assert found.kernel_time_s == 0.0
    assert found.step_time_s == pytest.approx(found.dispatch_time_s)
    assert found.bound_by == "host"


@pytest.mark.parametrize(
    ("gpu", "precision", "conditions", "flag"),
    [
        ("a100-sxm4-80gb", "bf16", {"power_limit_w": 30.0}, "it is exceeded"),
        ("a100-sxm4-80gb", "bf16", {"power_limit_w": 600.0}, "outside 100-400 W"),
        ("a100-sxm4-80gb", "bf16", {"sm_clock_hz": 2.5e9}, "clock outside the range"),
        ("t4", "bf16", {}, "no bf16 tensor units"),
        ("t4", "tf32", {}, "no TF32"),
    ],
)
def test_what_the_reader_must_know_is_flagged(step, gpu, precision, conditions, flag):
    found = predict_step(replace(step, precision=precision), load_gpu(gpu), load_parameters(), **conditions)
    assert any(flag in text for text in found.flags)


def test_what_the_fit_has_not_seen_is_flagged(step, a100):
    parameters = replace(initial_parameters(), covered_gpus=("t4",), covered_precisions=("fp32",))
    flags = predict_step(step, a100, parameters).flags
    assert any("a100-sxm4-80gb is outside the calibration" in flag for flag in flags)
    assert any("precision bf16 is outside the calibration" in flag for flag in flags)


def test_a_batch_gives_each_step_what_it_gets_alone(step, workload, stream, a100):
    values = load_parameters().values
    steps = [
        Step(workload=step, gpu=a100, n_gpus=4, power_limit_w=250.0),
        Step(workload=workload(stream(1e7)), gpu=load_gpu("t4"), sm_clock_hz=0.8e9),
        Step(workload=step, gpu=load_gpu("rtx-3090")),
    ]
    together = step_costs(batch_of(steps), values)
    for i, one in enumerate(steps):
        alone = step_costs(batch_of([one]), values)
        assert together.step_time_s[i] == pytest.approx(alone.step_time_s[0], rel=1e-6)
        assert together.mean_power_w[i] == pytest.approx(alone.mean_power_w[0], rel=1e-6)

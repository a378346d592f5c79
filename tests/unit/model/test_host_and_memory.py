from dataclasses import replace

import pytest

from joulecast.model.host import Host, Launches, default_host, dispatch_time_s, launches_of
from joulecast.model.memory import LARGE_SEGMENT_BYTES, SEGMENT_ROUNDING_BYTES, memory_use
from joulecast.workload.table import OpKind, Phase, concatenate

HOST = Host(
    forward_kernel_s=1e-5,
    backward_kernel_s=2e-5,
    optimizer_kernel_s=3e-5,
    copy_kernel_s=5e-6,
    parameter_tensor_s=1e-6,
    step_s=1e-3,
    data_parallel_ratio=1.5,
)


def test_launches_are_counted_by_phase(row):
    table = concatenate(
        row(OpKind.GEMM, n_calls=3, n_kernels=2),
        row(OpKind.GEMM, phase=Phase.RECOMPUTE, n_calls=1),
        row(OpKind.GEMM, phase=Phase.WGRAD, n_calls=4),
        row(OpKind.ELEMENTWISE, phase=Phase.BACKWARD, n_calls=5),
        row(OpKind.COPY, phase=Phase.BACKWARD, n_calls=8),
        row(OpKind.COPY, phase=Phase.FORWARD, n_calls=3),
        row(OpKind.OPTIMIZER, phase=Phase.OPTIMIZER, n_kernels=6),
    )
    assert launches_of(table, 10) == Launches(
        forward=7.0, backward=9.0, optimizer=6.0, copies=11.0, tensors=10
    )


def test_dispatch_adds_up():
    launches = Launches(forward=100.0, backward=200.0, optimizer=10.0, copies=20.0, tensors=50.0)
    expected = 1e-3 + 1e-3 + 4e-3 + 3e-4 + 1e-4 + 5e-5
    assert dispatch_time_s(launches, HOST) == pytest.approx(expected)
    assert dispatch_time_s(launches, HOST, 8) == pytest.approx(1.5 * expected)


def test_the_default_host_is_that_of_the_parameters(plain):
    host = default_host(plain)
    assert host.origin == "guess"
    assert host.forward_kernel_s == plain["host.forward_kernel_s"]


def test_memory_adds_up(workload, stream, plain):
    values = {
        **plain,
        "memory.workspace_bytes": 1e6,
        "memory.fragmentation": 0.0,
        "memory.context_bytes": 4e8,
        "memory.data_parallel_bytes": 3e8,
    }
    step = workload(stream(1e3), persistent_bytes=1e9, peak_live_bytes=2e9, gradient_bytes=5e8)
    one, wrapped = memory_use(step, values), memory_use(step, values, data_parallel=True)
    assert one.allocated_bytes == pytest.approx(3.001e9)
    assert wrapped.allocated_bytes == pytest.approx(3.501e9)
    assert one.reserved_bytes % SEGMENT_ROUNDING_BYTES == 0
    assert 0 <= one.reserved_bytes - one.allocated_bytes < SEGMENT_ROUNDING_BYTES
    assert one.process_bytes == pytest.approx(one.reserved_bytes + 4e8)
    assert wrapped.process_bytes == pytest.approx(wrapped.reserved_bytes + 7e8)


def test_the_least_reserve_is_one_segment(workload, stream, plain):
    values = {**plain, "memory.workspace_bytes": 0.0}
    step = replace(workload(stream(1)), persistent_bytes=0.0, peak_live_bytes=1.0)
    assert memory_use(step, values).reserved_bytes == LARGE_SEGMENT_BYTES

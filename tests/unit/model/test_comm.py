import numpy as np
import pytest

from joulecast.hardware.catalogue import load_gpu
from joulecast.hardware.spec import Link
from joulecast.model import comm

LINK = Link(kind="nvlink", bytes_per_s=300e9, allreduce_busbw_frac=0.8, is_guess=False)


@pytest.fixture
def values(plain):
    return {
        **plain,
        "comm.link_ratio": 1.0,
        "comm.pcie_ratio": 0.5,
        "comm.latency_s": 1e-5,
        "comm.hop_s": 1e-6,
        "comm.bucket_bytes": 25e6,
        "comm.half_bytes": 0.0,
        "comm.overlap": 1.0,
        "comm.contention": 0.1,
    }


def test_a_ring_moves_twice_the_buffer_less_one_part(values):
    """8 GPUs: 2 x 7 / 8 x 240 MB over 240 GB/s, 14 hops, one latency."""
    found = comm.allreduce_time_s(np.array([240e6]), comm.ring_of(8, LINK), values)
    assert found == pytest.approx(1.75e-3 + 14e-6 + 1e-5)


def test_small_buffers_reach_a_third_of_the_rate(values):
    values = {**values, "comm.half_bytes": 4e6, "comm.latency_s": 0.0, "comm.hop_s": 0.0}
    small, middle, large = comm.allreduce_time_s(np.array([1e2, 4e6, 1e12]), comm.ring_of(8, LINK), values)
    assert small / 1e2 == pytest.approx(3 * large / 1e12, rel=1e-3)
    assert middle / 4e6 == pytest.approx(2 * large / 1e12, rel=1e-3)


def test_pcie_has_its_own_rate(values):
    link = Link(kind="pcie", bytes_per_s=300e9, allreduce_busbw_frac=0.8, is_guess=False)
    found = comm.allreduce_time_s(np.array([240e6]), comm.ring_of(8, link), values)
    assert found == pytest.approx(3.5e-3 + 24e-6)


def test_one_gpu_reduces_nothing(values):
    ring = comm.ring_of(1, load_gpu("t4").link_between(1))
    assert comm.gradient_reduction_s(np.array([1e9]), ring, values) == (0.0, 0.0)


def test_buckets_share_the_gradients(values):
    all_s, last_s = comm.gradient_reduction_s(np.array([100e6]), comm.ring_of(4, LINK), values)
    assert all_s == pytest.approx(4 * last_s)


def test_the_backward_pass_hides_all_but_the_last_bucket(values):
    all_s, last_s = np.array([4e-3]), np.array([1e-3])
    assert comm.exposed_time_s(all_s, last_s, np.array([10e-3]), values) == pytest.approx(1e-3)
    assert comm.exposed_time_s(all_s, last_s, np.array([1e-3]), values) == pytest.approx(3e-3)
    assert comm.contention_s(all_s, np.array([10e-3]), values) == pytest.approx(4e-4)
    assert comm.contention_s(all_s, np.array([2e-3]), values) == pytest.approx(2e-4)

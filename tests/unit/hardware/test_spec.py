import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, replace
from math import inf, nan

import pytest

from joulecast.errors import CatalogueError, PowerLimitError, UsageError
from joulecast.hardware import Fact, FactKind, Gpu, LinkReach, load_gpu


@pytest.fixture
def gpu() -> Gpu:
    """A card with round numbers: 10 SMs at 1 GHz."""
    return Gpu(
        slug="round",
        name="Round",
        vendor="none",
        architecture="none",
        compute_capability="0",
        n_sms=10,
        boost_clock_hz=1e9,
        min_clock_hz=2e8,
        max_clock_hz=1.2e9,
        flop_per_clock_per_sm={"fp32_vector": 100.0, "bf16_tensor": 1000.0},
        peak_clock_hz={"bf16_tensor": 9e8},
        memory_bytes=8e9,
        bandwidth_bytes_per_s=1e11,
        l2_bytes=4e6,
        power_limit_w=100.0,
        min_power_limit_w=50.0,
        max_power_limit_w=120.0,
        idle_power_w=10.0,
        waiting_power_w=20.0,
        voltage_flat_clock_frac=0.75,
        voltage_max_ratio=1.25,
        link_kind="nvlink-bridge",
        link_bytes_per_s=5e10,
        link_reach=LinkReach.PAIR,
        pcie_bytes_per_s=2e10,
        allreduce_busbw_frac={2: 0.7},
        pcie_allreduce_busbw_frac={2: 0.6, 4: 0.4},
        facts={"link.allreduce_busbw_frac.2": Fact(value=0.7, source="s", kind=FactKind.MEASURED)},
    )


def test_peak_is_sms_times_rate_times_clock(gpu: Gpu) -> None:
    assert gpu.peak_flop_per_s("fp32_vector") == 1e12  # no clock of its own: boost
    assert gpu.peak_flop_per_s("bf16_tensor") == 9e12
    assert gpu.peak_flop_per_s("bf16_tensor", 5e8) == 5e12
    assert gpu.peak_flop_per_s("tf32_tensor") == 0.0
    with pytest.raises(UsageError, match="no unit 'bf17'"):
        gpu.peak_flop_per_s("bf17")


def test_with_sms(gpu: Gpu) -> None:
    half = gpu.with_sms(5)
    assert half.n_sms == 5
    assert half.peak_flop_per_s("fp32_vector") == gpu.peak_flop_per_s("fp32_vector") / 2
    assert half.bandwidth_bytes_per_s == gpu.bandwidth_bytes_per_s
    for n_sms in (0, -1, 11):
        with pytest.raises(UsageError, match="1 to 10 SMs"):
            gpu.with_sms(n_sms)


def test_bridge_joins_two_cards_only(gpu: Gpu) -> None:
    alone, pair, unbridged, four = (
        gpu.link_between(1),
        gpu.link_between(2),
        gpu.link_between(2, bridged=False),
        gpu.link_between(4),
    )
    assert (alone.kind, alone.bytes_per_s) == ("none", inf)
    assert (pair.kind, pair.bytes_per_s, pair.allreduce_busbw_frac) == ("nvlink-bridge", 5e10, 0.7)
    assert not pair.is_guess
    assert (unbridged.kind, unbridged.bytes_per_s, unbridged.allreduce_busbw_frac) == ("pcie", 2e10, 0.6)
    assert (four.kind, four.allreduce_busbw_frac, four.is_guess) == ("pcie", 0.4, True)


def test_link_takes_the_nearest_listed_count_below(gpu: Gpu) -> None:
    assert gpu.link_between(3).allreduce_busbw_frac == 0.6
    assert gpu.link_between(64).allreduce_busbw_frac == 0.4
    board = replace(gpu, link_reach=LinkReach.NODE, link_kind="nvlink", allreduce_busbw_frac={4: 0.8})
    assert board.link_between(2).allreduce_busbw_frac == 0.8
    assert board.link_between(16).kind == "nvlink"


def test_link_of_nothing_is_refused(gpu: Gpu) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        gpu.link_between(0)
    with pytest.raises(UsageError, match="stands alone"):
        replace(gpu, link_kind="none", link_reach=LinkReach.NONE).link_between(2)


def test_ranges_are_named(gpu: Gpu) -> None:
    gpu.check_power_limit_w(50)
    gpu.check_power_limit_w(120)
    with pytest.raises(PowerLimitError, match=r"49 W is outside the range of round: 50 to 120 W$"):
        gpu.check_power_limit_w(49)
    gpu.check_clock_hz(1.2e9)
    with pytest.raises(PowerLimitError, match=r"1300 MHz is outside .* 200 to 1200 MHz$"):
        gpu.check_clock_hz(1.3e9)
    with pytest.raises(PowerLimitError):
        gpu.check_clock_hz(nan)


def test_guessed_ranges_say_so() -> None:
    with pytest.raises(
        PowerLimitError, match=r"200 to 350 W \(min_power_limit_w, max_power_limit_w is a guess\)"
    ):
        load_gpu("h100-pcie-80gb").check_power_limit_w(100)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"power_limit_w": -5.0}, "power_limit_w must be a number above 0"),
        ({"memory_bytes": 0.0}, "memory_bytes"),
        ({"bandwidth_bytes_per_s": nan}, "bandwidth_bytes_per_s"),
        ({"base_clock_hz": inf}, "base_clock_hz"),
        ({"flop_per_clock_per_sm": {"int4": 1.0}}, "flop_per_clock_per_sm.int4 is no unit"),
        ({"flop_per_clock_per_sm": {"fp32_vector": -1.0}}, "flop_per_clock_per_sm.fp32_vector"),
        ({"allreduce_busbw_frac": {2: 0.0}}, "allreduce_busbw_frac.2"),
        ({"min_power_limit_w": 110.0}, r"min_power_limit_w \(110\) must not exceed power_limit_w \(100\)"),
        ({"boost_clock_hz": 1.3e9}, "boost_clock_hz"),
        ({"idle_power_w": 30.0}, "idle_power_w"),
        ({"voltage_flat_clock_frac": 1.1}, "voltage_flat_clock_frac"),
        ({"voltage_max_ratio": 0.9}, "voltage_max_ratio"),
    ],
)
def test_impossible_cards_are_refused(gpu: Gpu, change: dict[str, object], key: str) -> None:
    with pytest.raises(CatalogueError, match=key):
        replace(gpu, **change)  # type: ignore[arg-type]


def test_record_is_frozen_hashable_and_travels(gpu: Gpu) -> None:
    with pytest.raises(FrozenInstanceError):
        gpu.n_sms = 3  # type: ignore[misc]
    assert len({gpu, gpu.with_sms(5), gpu.with_sms(10)}) == 2
    assert pickle.loads(pickle.dumps(gpu)) == gpu
    assert copy.deepcopy(gpu) == gpu
    assert asdict(gpu)["n_sms"] == 10


def test_guesses_and_description() -> None:
    card = load_gpu("p4")
    assert "min_power_limit_w" in card.guesses
    assert "n_sms" not in card.guesses
    assert card.describe() == "Tesla P4: 20 SMs at 1063 MHz, 9 GB at 192 GB/s, 75 W"

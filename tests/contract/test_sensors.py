"""What every sensor must do: the scripted GPUs of zeus, RAPL on a fake sysfs as zeus reads it, a recording.

Time is scripted too, so that 100 W for 10 s are 1000 J.
"""

import builtins
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from joulecast.errors import SensorUnavailableError
from joulecast.measure import sensors
from joulecast.measure.energy import Series, WindowEnergy, window_energy
from joulecast.measure.recording import Recording, ReplaySensor
from joulecast.measure.sensors import Component, GpuSensor, RaplSensor, Reading, visible_gpus
from joulecast.measure.window import Sampler

pytest.importorskip("zeus")
from zeus.device.cpu import rapl
from zeus.device.gpu import ZeusGPULostError, ZeusGPUNoPermissionError, ZeusGPUNotSupportedError

POWER_W = 100.0
ROUND_S = 0.1
N_ROUNDS = 101
SPAN_S = ROUND_S * (N_ROUNDS - 1)


class Clock:
    """Monotonic time that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class ScriptedGpu:
    """A zeus GPU that draws 100 W and says what it is told to say; zeus speaks in mJ and mW."""

    def __init__(self, clock: Clock, index: int = 0, name: str = "NVIDIA T4") -> None:
        self.gpu_index = index
        self.handle = f"GPU-{'abcdef'[index] * 8}"
        self._clock = clock
        self._name = name
        self.power_w: float | None = POWER_W
        self.has_counter = True
        self.counter: Callable[[], float] = lambda: POWER_W * (self._clock.now_s - 1000.0)
        self.lost_at_s = float("inf")

    def _alive(self) -> None:
        if self._clock.now_s >= self.lost_at_s:
            raise ZeusGPULostError("GPU is lost")

    def get_name(self) -> str:
        return self._name

    def get_power_management_limit(self) -> int:
        return 250_000

    def supports_get_total_energy_consumption(self) -> bool:
        return self.has_counter

    def get_total_energy_consumption(self) -> int:
        self._alive()
        return round(self.counter() * 1000)

    def get_instant_power_usage(self) -> int:
        self._alive()
        if self.power_w is None:
            raise ZeusGPUNotSupportedError("no power")
        return round(self.power_w * 1000)

    get_average_power_usage = get_instant_power_usage

    def get_gpu_temperature(self) -> int:
        self._alive()
        return 55


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(sensors, "time", clock)
    return clock


@pytest.fixture
def cards(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[ScriptedGpu]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cards = [ScriptedGpu(clock, 0), ScriptedGpu(clock, 1)]
    monkeypatch.setattr(sensors, "_zeus_gpus", lambda: list(cards))
    monkeypatch.setattr(sensors, "gpu_uuid", lambda card: card.handle)
    return cards


class Sysfs:
    """A powercap tree with one package of 100 W and its memory of 10 W, whose counters wrap."""

    RANGE_UJ = 65_000_000  # wraps every 0.65 s at 100 W

    def __init__(self, root: Path, clock: Clock) -> None:
        self._clock = clock
        self.package = root / "intel-rapl:0"
        self.dram = self.package / "intel-rapl:0:1"
        for folder, name in ((self.package, "package-0"), (self.dram, "dram")):
            folder.mkdir(parents=True)
            (folder / "name").write_text(name + "\n")
            (folder / "max_energy_range_uj").write_text(f"{self.RANGE_UJ}\n")
        self.tick()

    def tick(self) -> None:
        for folder, power_w in ((self.package, POWER_W), (self.dram, POWER_W / 10)):
            counted_uj = round(power_w * (self._clock.now_s - 990.0) * 1e6)
            (folder / "energy_uj").write_text(f"{counted_uj % self.RANGE_UJ}\n")


@pytest.fixture
def sysfs(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sysfs]:
    root = tmp_path / "intel-rapl"
    monkeypatch.setattr(rapl, "RAPL_DIR", str(root))
    made = Sysfs(root, clock)
    rapl.rapl_is_available.cache_clear()
    yield made
    rapl.rapl_is_available.cache_clear()


@pytest.fixture(params=["scripted GPU", "RAPL", "recording"])
def subject(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> SimpleNamespace:
    """Return each kind of sensor, scripted to see 100 W, and what moves its world on."""
    if request.param == "RAPL":
        sysfs = request.getfixturevalue("sysfs")
        return SimpleNamespace(sensor=RaplSensor(), component=Component.CPU, tick=sysfs.tick)
    request.getfixturevalue("cards").pop()
    if request.param == "scripted GPU":
        return SimpleNamespace(sensor=GpuSensor(), component=Component.GPU, tick=lambda: None)
    path = tmp_path / "recording.jsonl"
    with Recording(path) as recording:
        _sampled(GpuSensor(), clock, recorder=recording)
    return SimpleNamespace(sensor=ReplaySensor(path), component=Component.GPU, tick=lambda: None)


def _sampled(
    sensor: Any,
    clock: Clock,
    *,
    tick: Callable[[], None] = lambda: None,
    n_rounds: int = N_ROUNDS,
    recorder: Any = None,
) -> Sampler:
    with Sampler([sensor], on_thread=False, recorder=recorder) as sampler:
        for i in range(n_rounds):
            if i:
                clock.now_s += ROUND_S
                tick()
            sampler.mark()
    return sampler


def _energy(series: Series, **options: Any) -> WindowEnergy:
    return window_energy(series, float(series.time_s[0]), float(series.time_s[-1]), **options)


def _only(sampler: Sampler, component: Component) -> Series:
    (series,) = sampler.of(component)
    return series


# --- the contract ---------------------------------------------------------------------------------


def test_channels_are_unique_and_say_what_they_cover(subject):
    channels = subject.sensor.open()
    assert len({c.device for c in channels}) == len(channels) > 0
    assert all(c.scope and c.update_s > 0 and c.averaging_s > 0 and c.gain_frac > 0 for c in channels)


def test_every_channel_gives_one_reading_per_round(subject):
    channels = subject.sensor.open()
    assert [r.device for r in subject.sensor.read()] == [c.device for c in channels]


def test_what_a_sensor_does_not_say_is_none(subject):
    subject.sensor.open()
    for reading in subject.sensor.read():
        assert reading.used_bytes is None
        assert reading.sm_clock_hz is None
        assert 0.0 not in (reading.power_w, reading.temperature_c)


def test_the_energy_of_100_w_for_10_s_is_1000_j(subject, clock):
    found = _energy(_only(_sampled(subject.sensor, clock, tick=subject.tick), subject.component))
    assert found.energy_j == pytest.approx(POWER_W * SPAN_S)
    assert found.low_j < POWER_W * SPAN_S < found.high_j
    assert found.method == "counter"
    assert found.sampling_hz == pytest.approx(10, rel=0.02)
    assert not found.flags


def test_a_closed_sensor_opens_again(subject):
    first = subject.sensor.open()
    subject.sensor.close()
    assert subject.sensor.open() == first
    assert subject.sensor.read()


# --- GPUs -----------------------------------------------------------------------------------------


def test_without_a_counter_power_is_polled_and_it_is_said(cards, clock):
    cards.pop().has_counter = False
    cards[0].has_counter = False
    found = _energy(_only(_sampled(GpuSensor(), clock), Component.GPU))
    assert found.method == "polled"
    assert found.energy_j == pytest.approx(POWER_W * SPAN_S)
    assert any("no energy counter" in flag for flag in found.flags)


def test_without_power_the_counter_is_enough(cards, clock):
    cards.pop()
    cards[0].power_w = None
    found = _energy(_only(_sampled(GpuSensor(), clock), Component.GPU))
    assert (found.method, found.energy_j) == ("counter", pytest.approx(POWER_W * SPAN_S))
    assert not found.flags


def test_with_neither_energy_is_absent_with_a_reason_not_zero(cards, clock):
    cards.pop()
    cards[0].power_w, cards[0].has_counter = None, False
    found = _energy(_only(_sampled(GpuSensor(), clock), Component.GPU))
    assert found.energy_j is None
    assert "no energy counter" in found.reason


def test_a_board_that_says_0_w_says_nothing(cards):
    cards[0].power_w = 0.0
    sensor = GpuSensor(["0"])
    sensor.open()
    assert sensor.read()[0].power_w is None


def test_a_counter_and_power_that_disagree_are_flagged(cards, clock):
    cards.pop()
    cards[0].power_w = 150.0
    found = _energy(_only(_sampled(GpuSensor(), clock), Component.GPU))
    assert found.energy_j == pytest.approx(POWER_W * SPAN_S)
    assert any("1000 J, polled power 1500 J" in flag for flag in found.flags)


def test_a_counter_that_was_set_back_is_not_believed(cards, clock):
    cards.pop()
    cards[0].counter = lambda: (POWER_W * (clock.now_s - 1000.0)) % 300.0  # no range is known
    found = _energy(_only(_sampled(GpuSensor(), clock), Component.GPU))
    assert found.method == "polled"
    assert found.energy_j == pytest.approx(POWER_W * SPAN_S)
    assert any("set back" in flag for flag in found.flags)


def test_a_card_lost_in_the_middle_is_reported_and_the_others_go_on(cards, clock):
    cards[0].lost_at_s = clock.now_s + SPAN_S / 2
    lost, well = _sampled(GpuSensor(), clock).of(Component.GPU)
    found = _energy(lost)
    assert found.energy_j is None
    assert "GPU is lost" in found.reason
    assert _energy(well).energy_j == pytest.approx(POWER_W * SPAN_S)


def test_no_permission_says_what_to_do(monkeypatch):
    def refuse() -> list[Any]:
        raise ZeusGPUNoPermissionError("Insufficient Permissions")

    monkeypatch.setattr(sensors, "_zeus_gpus", refuse)
    with pytest.raises(SensorUnavailableError, match="Insufficient Permissions") as caught:
        GpuSensor().open()
    assert "zeusd" in caught.value.remedy


def test_a_sensor_that_raises_does_not_end_the_run(clock):
    class Broken:
        def open(self) -> tuple[Any, ...]:
            return ()

        def read(self) -> tuple[Reading, ...]:
            raise ZeroDivisionError("a bug")

        def close(self) -> None: ...

    sampler = _sampled(Broken(), clock, n_rounds=3)
    assert sampler.flags == ["Broken failed: a bug"]


# --- which cards ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("", ()),
        ("0,1", ("0", "1")),
        ("2,-1,3", ("2",)),
        ("GPU-aaaa, GPU-bbbb", ("GPU-aaaa", "GPU-bbbb")),
        ("MIG-GPU-aaaa/1/0", ("MIG-GPU-aaaa/1/0",)),
        ("0,0", ("0",)),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(value, expected):
    assert visible_gpus([] if value is None else [("CUDA_VISIBLE_DEVICES", value)]) == expected


@pytest.mark.parametrize("named", [["1"], ["GPU-bbbbbbbb"], ["GPU-bbb"], ["1", "GPU-bbbbbbbb", "1"]])
def test_a_card_counts_once_however_it_is_named(cards, named):
    assert [c.device for c in GpuSensor(named).open()] == ["gpu:GPU-bbbbbbbb"]


def test_the_environment_decides_by_default(cards, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bbbbbbbb")
    assert [c.device for c in GpuSensor().open()] == ["gpu:GPU-bbbbbbbb"]


def test_a_slice_is_read_as_the_whole_card_and_says_so(cards, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-GPU-aaaaaaaa/1/0,MIG-GPU-aaaaaaaa/2/0")
    (channel,) = GpuSensor().open()
    assert (channel.device, channel.scope) == ("gpu:GPU-aaaaaaaa", "whole card")


@pytest.mark.parametrize(("named", "message"), [(["7"], "names '7'"), ([], "no GPU is visible")])
def test_a_card_that_is_not_there_is_refused(cards, named, message):
    with pytest.raises(SensorUnavailableError, match=message):
        GpuSensor(named).open()


# --- RAPL -----------------------------------------------------------------------------------------


def test_the_memory_has_a_channel_of_its_own(sysfs, clock):
    sampler = _sampled(RaplSensor(), clock, tick=sysfs.tick)
    found = _energy(_only(sampler, Component.DRAM))
    assert found.energy_j == pytest.approx(POWER_W / 10 * SPAN_S)


def test_counters_that_wrap_many_times_lose_nothing(sysfs, clock):
    series = _only(_sampled(RaplSensor(), clock, tick=sysfs.tick), Component.CPU)
    assert (np.diff(series.energy_j) < 0).sum() >= 15  # it did wrap
    assert _energy(series).energy_j == pytest.approx(POWER_W * SPAN_S)


def test_no_process_is_started_to_count_wraps(sysfs):
    sensor = RaplSensor()
    sensor.open()
    sensor.read()
    assert not any(
        "spawn" in type(p).__name__.lower() for p in __import__("multiprocessing").active_children()
    )


def test_counters_that_only_root_may_read_say_so(sysfs, monkeypatch):
    def refuse(path: str, *args: Any, **options: Any) -> Any:
        if str(path).endswith("energy_uj"):
            raise PermissionError(13, "Permission denied")
        return builtins.open(path, *args, **options)

    monkeypatch.setattr(rapl, "open", refuse, raising=False)
    with pytest.raises(SensorUnavailableError) as caught:
        RaplSensor().open()
    assert "chmod a+r" in caught.value.remedy


def test_a_machine_without_rapl_says_so(tmp_path, monkeypatch):
    for name in ("RAPL_DIR", "CONTAINER_RAPL_DIR"):
        monkeypatch.setattr(rapl, name, str(tmp_path / "nothing"))
    rapl.rapl_is_available.cache_clear()
    with pytest.raises(SensorUnavailableError, match="RAPL is not supported") as caught:
        RaplSensor().open()
    assert "virtual machine" in caught.value.remedy
    rapl.rapl_is_available.cache_clear()


# --- clocks ---------------------------------------------------------------------------------------


def test_readings_from_before_the_last_are_left_out(cards, clock):
    cards.pop()
    with Sampler([GpuSensor()], on_thread=False) as sampler:
        for step_s in (0.1, 0.1, -5.0, 5.1, 0.1):
            sampler.mark()
            clock.now_s += step_s
        sampler.mark()
    assert (np.diff(_only(sampler, Component.GPU).time_s) > 0).all()
    assert any("clock went back" in flag for flag in sampler.flags)


def test_a_gap_between_readings_is_flagged_and_the_counter_bridges_it(cards, clock):
    cards.pop()
    with Sampler([GpuSensor()], on_thread=False) as sampler:
        for i in range(50):
            sampler.mark()
            clock.now_s += 30.0 if i == 20 else ROUND_S
    series = _only(sampler, Component.GPU)
    found = _energy(series)
    assert found.energy_j == pytest.approx(POWER_W * (series.time_s[-1] - series.time_s[0]))
    assert any("not read for 30.0 s" in flag for flag in found.flags)


def test_a_replay_that_has_ended_says_so(cards, clock, tmp_path):
    path = tmp_path / "recording.jsonl"
    with Recording(path) as recording:
        _sampled(GpuSensor(["0"]), clock, n_rounds=2, recorder=recording)
    sensor = ReplaySensor(path)
    sensor.open()
    sensor.read(), sensor.read()
    assert sensor.read()[0].error == "the recording has ended"


def test_a_recording_that_was_cut_off_replays_up_to_there(cards, clock, tmp_path):
    path = tmp_path / "recording.jsonl"
    with Recording(path) as recording:
        _sampled(GpuSensor(["0"]), clock, n_rounds=5, recorder=recording)
    path.write_bytes(path.read_bytes()[:-40])
    sensor = ReplaySensor(path)
    sensor.open()
    assert len(sensor) == 4


def test_what_is_no_recording_is_refused(tmp_path):
    path = tmp_path / "other.json"
    path.write_text("{}\n")
    with pytest.raises(SensorUnavailableError, match="no recording"):
        ReplaySensor(path).open()


# --- part-time sensors ----------------------------------------------------------------------------


def _looked_w(
    step_time_s: float, phase_s: float, time_s: np.ndarray, high_w: float, low_w: float
) -> np.ndarray:
    """Return the mean power that a sensor sees in the 25 ms from each of its looks on."""
    fine_s = (np.arange(1009) + 0.5) / 1009 * 0.025
    moments = (time_s[:, None] + fine_s + phase_s) % step_time_s
    return np.where(moments < 0.3 * step_time_s, high_w, low_w).mean(axis=1)


@pytest.mark.parametrize("step_time_s", [0.010, 0.037, 0.0999, 0.100, 0.150, 0.200, 0.333, 0.5, 0.77])
@pytest.mark.parametrize("phase_frac", [0.0, 0.2, 0.5, 0.9])
def test_the_interval_of_a_part_time_sensor_covers_the_truth(step_time_s, phase_frac):
    """A step draws 400 W for 30 % of its time and 100 W else; the sensor looks 25 of 100 ms."""
    high_w, low_w = 400.0, 100.0
    duration_s = 20.0
    time_s = np.arange(0.0, duration_s + 0.05, 0.1)
    power_w = _looked_w(step_time_s, phase_frac * step_time_s, time_s, high_w, low_w)
    update_s, averaging_s = sensors.sampling_of("NVIDIA A100-SXM4-80GB")
    channel = sensors.Channel(
        device="gpu:0",
        component=Component.GPU,
        name="NVIDIA A100-SXM4-80GB",
        scope="board",
        update_s=update_s,
        averaging_s=averaging_s,
        gain_frac=0.0,
        power_limit_w=400.0,
    )
    nothing = np.full_like(time_s, np.nan)
    series = Series(
        channel=channel,
        time_s=time_s,
        energy_j=np.concatenate(([0.0], np.cumsum(power_w[:-1] * 0.1))),
        power_w=power_w,
        temperature_c=nothing,
        sm_clock_hz=nothing,
        used_bytes=nothing,
        error="",
    )
    found = window_energy(series, 0.0, duration_s, step_time_s=step_time_s, idle_power_w=60.0)
    truth_j = (0.3 * high_w + 0.7 * low_w) * duration_s
    assert found.low_j <= truth_j <= found.high_j


def test_a_full_time_sensor_has_the_narrower_interval(cards, clock, monkeypatch):
    widths = []
    for name in ("NVIDIA T4", "NVIDIA H100 80GB HBM3"):
        cards[:] = [ScriptedGpu(clock, 0, name)]
        found = _energy(_only(_sampled(GpuSensor(), clock), Component.GPU), step_time_s=0.1)
        widths.append(found.high_j - found.low_j)
    assert widths[1] > 2 * widths[0]

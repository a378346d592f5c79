"""A training loop metered from inside."""

import time

import pytest

import joulecast
from joulecast.errors import SensorUnavailableError
from joulecast.results import RunStatus


def _loop(meter: joulecast.Meter, n_steps: int, step_time_s: float = 0.005) -> None:
    for _ in range(n_steps):
        time.sleep(step_time_s)
        meter.step()


def test_steps_after_the_warm_up_are_measured(two_gpus):
    with joulecast.Meter(
        batch_size=32, n_warmup=5, sensors=(two_gpus,), model="mine", precision="bf16"
    ) as meter:
        _loop(meter, 25)
    m = meter.measurement
    assert (m.n_steps, m.n_warmup_steps, m.status) == (20, 5, RunStatus.COMPLETE)
    assert (m.model, m.precision, m.global_batch, m.n_gpus) == ("mine", "bf16", 32, 2)
    assert m.samples_per_s.value == pytest.approx(32 / m.step_time_s.value)
    assert m.mean_power_w.value == pytest.approx(150)


def test_without_sensors_there_is_still_the_time():
    with joulecast.Meter(sensors=(), n_warmup=0) as meter:
        _loop(meter, 21)
    assert 0.005 <= meter.measurement.step_time_s.value < 0.05
    assert meter.measurement.energy_per_step_j.value is None
    assert meter.measurement.energy_per_step_j.reason
    assert "say it: Meter(batch_size=...)" in meter.measurement.samples_per_s.remedy


def test_a_sensor_that_is_not_there_is_the_reason(two_gpus):
    two_gpus.unavailable = SensorUnavailableError("the driver sleeps", "wake it")
    with joulecast.Meter(sensors=(two_gpus,), n_warmup=0) as meter:
        _loop(meter, 3)
    assert meter.measurement.status is RunStatus.COMPLETE
    assert meter.measurement.mean_power_w.value is None


def test_a_loop_that_raises_keeps_what_there_was_and_raises_on(two_gpus):
    meter = joulecast.Meter(sensors=(two_gpus,), n_warmup=0)

    def loop_with_a_bug() -> None:
        with meter:
            _loop(meter, 4)
            raise ZeroDivisionError("a bug of mine")

    with pytest.raises(ZeroDivisionError):
        loop_with_a_bug()
    assert meter.measurement.status is RunStatus.FAILED
    assert meter.measurement.error == "ZeroDivisionError: a bug of mine"
    assert meter.measurement.n_steps == 3
    assert two_gpus.closed == 1


def test_a_loop_shorter_than_the_warm_up_says_so(two_gpus):
    with joulecast.Meter(sensors=(two_gpus,), n_warmup=10) as meter:
        _loop(meter, 2)
    assert "before the first whole window" in meter.measurement.step_time_s.reason


def test_one_rank_of_a_node_measures(two_gpus, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    with joulecast.Meter(sensors=(two_gpus,)) as meter:
        _loop(meter, 5)
    assert meter.measurement is None
    assert two_gpus.now_s == 0  # it was never read


def test_many_steps_make_few_windows(two_gpus, monkeypatch):
    monkeypatch.setattr("joulecast.measure.meter._SHORTEST_WINDOW_S", 0.001)
    with joulecast.Meter(sensors=(), n_warmup=0) as meter:
        _loop(meter, 300, 0.001)
    assert 10 <= meter.measurement.n_repeats <= 41
    assert meter.measurement.n_steps == 299

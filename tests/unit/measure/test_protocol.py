"""When measuring begins and ends, on a clock that the test moves."""

from collections.abc import Callable, Iterator
from itertools import chain, repeat

import pytest

from joulecast.measure.protocol import Plan, Protocol, Steps, mean_interval, standard_error_frac


class World:
    """Steps that take the times given, then the last of them for ever; a mark costs nothing."""

    def __init__(self, *times_s: float) -> None:
        self.now_s = 100.0
        self.n_steps = 0
        self._times_s: Iterator[float] = chain(times_s, repeat(times_s[-1]))

    def step(self) -> None:
        self.n_steps += 1
        self.now_s += next(self._times_s)

    def mark(self) -> float:
        return self.now_s

    def run(self, plan: Plan, **options: Callable[..., object]) -> Steps:
        return Protocol(self.step, mark=self.mark, **options).run(plan)


def test_equal_steps_need_the_fewest_repeats():
    world = World(0.1)
    found = world.run(Plan(seconds=60, window_s=0.5, min_repeats=5))
    assert [r.n_steps for r in found.repeats] == [5] * 5
    assert all(r.step_time_s == pytest.approx(0.1) for r in found.repeats)
    assert not found.flags


def test_windows_touch_and_count_every_step():
    world = World(0.1)
    found = world.run(Plan(seconds=5))
    for one, other in zip(found.repeats, found.repeats[1:], strict=False):
        assert one.end_s == other.start_s
    assert found.n_warmup_steps + sum(r.n_steps for r in found.repeats) == world.n_steps


def test_windows_grow_when_steps_get_faster_after_all():
    found = World(*[0.5] * 8, 0.1).run(Plan(seconds=10, window_s=0.5))
    assert {r.n_steps for r in found.repeats[3:]} == {5}


def test_a_window_is_never_shorter_than_the_sensor_needs():
    found = World(0.3).run(Plan(seconds=30, window_s=2.0))
    assert all(r.end_s - r.start_s >= 2.0 for r in found.repeats)


def test_slow_first_steps_are_not_measured():
    found = World(*[1.0] * 4, 0.1).run(Plan(seconds=60))
    assert found.n_warmup_steps > 6
    assert all(r.step_time_s == pytest.approx(0.1) for r in found.repeats)
    assert not found.flags


def test_steps_that_never_settle_are_measured_and_flagged():
    world = World(*[0.5 / 1.05**i for i in range(50)])
    found = world.run(Plan(seconds=12))
    assert "steps still get faster" in found.flags[0]


def test_a_gpu_that_warms_up_is_waited_for():
    world = World(0.1)
    found = world.run(
        Plan(seconds=100, temperature_s=5.0), temperature_c=lambda: min(30 + 2 * (world.now_s - 100), 60.0)
    )
    assert found.repeats[0].start_s > 100 + 15 + 3.5
    assert not found.flags


def test_time_ends_a_run_whose_steps_vary():
    world = World(*([0.1] * 5 + [0.3] * 5) * 100)
    found = world.run(Plan(seconds=20, window_s=0.5, error_frac=0.0001))
    assert 20 <= world.now_s - 100 < 24
    assert standard_error_frac([r.step_time_s for r in found.repeats]) > 0.0001


def test_a_step_longer_than_the_time_given_still_has_a_spread():
    found = World(30.0).run(Plan(seconds=1))
    assert len(found.repeats) == 2
    assert "too few steps" in found.flags[0]


def test_what_there_is_is_given_out_after_every_repeat():
    seen: list[int] = []
    found = World(0.1).run(Plan(seconds=5), on_repeat=lambda steps: seen.append(len(steps.repeats)))
    assert seen == list(range(1, len(found.repeats) + 1))


def test_every_decision_is_agreed_on():
    """A rank that is told what another decided runs as many steps, whatever its own clock says."""
    decided: list[float] = []

    def lead(number: float) -> float:
        decided.append(number)
        return number

    leader, follower = World(0.1), World(0.137, 0.09)
    first = leader.run(Plan(seconds=5), agree=lead)
    replay = iter(decided)
    second = follower.run(Plan(seconds=5), agree=lambda _: next(replay))
    assert leader.n_steps == follower.n_steps
    assert [r.n_steps for r in first.repeats] == [r.n_steps for r in second.repeats]


def test_the_interval_of_a_mean_is_students():
    # mean 2, s = 1, n = 3: t(0.95, 2) = 2.920, half = 2.920 / sqrt(3)
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - 1.6859, 2 + 1.6859), rel=1e-3)
    assert standard_error_frac([1.0, 2.0, 3.0]) == pytest.approx(1 / 3**0.5 / 2)
    assert standard_error_frac([1.0]) == float("inf")

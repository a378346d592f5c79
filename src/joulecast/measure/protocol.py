"""When to start measuring, how often, and when to stop: control alone, no device and no sensor.

::

    |- idle -|-- warm-up: until steady --|- repeat 1 -|- repeat 2 -| ... until the mean is known, or time is
             first step                  mark         mark         mark             up
             (steps and, on GPUs, temperature)

Every repeat is a window of whole steps, long enough for the sensor; windows touch, so that the edges of all
but the first and the last cancel. Enters: a step as a function. Leaves: the windows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt
from typing import Final

import numpy as np

#: Steps of the first look, which sets how many make a window.
_FEWEST_STEPS: Final = 3
#: One repeat has no spread.
_FEWEST_REPEATS: Final = 2
#: Warm-up compares the last so many groups of steps.
_STEADY_GROUPS: Final = 3
#: The warm-up may take this share of the time at most.
_WARMUP_FRAC: Final = 0.4
#: A group of steps in the warm-up lasts about this long. [s]
_GROUP_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long to look, and how well the mean should be known.

    Attributes
    ----------
    seconds : float
        For warm-up and repeats together; a repeat that has begun ends. [s]
    window_s : float
        The least that a repeat lasts, for the sensor's sake. [s]
    min_repeats : int
    error_frac : float
        Stop when the standard error of the mean step time is below this share of it. [1]
    steady_frac : float
        Groups of warm-up steps that differ by less are steady. [1]
    steady_temperature_c : float
        Temperature that moves by less in `temperature_s` is steady. [degC]
    temperature_s : float
        [s]
    """

    seconds: float = 20.0
    window_s: float = 0.5
    min_repeats: int = 5
    error_frac: float = 0.01
    steady_frac: float = 0.03
    steady_temperature_c: float = 2.0
    temperature_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One window of steps.

    Attributes
    ----------
    start_s, end_s : float
        Monotonic clock. [s]
    n_steps : int
    """

    start_s: float
    end_s: float
    n_steps: int

    @property
    def step_time_s(self) -> float:
        """Mean of its steps. [s]"""
        return (self.end_s - self.start_s) / self.n_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """All windows of a run.

    Attributes
    ----------
    repeats : tuple of Repeat
    n_warmup_steps : int
    flags : tuple of str
        What was not reached.
    """

    repeats: tuple[Repeat, ...]
    n_warmup_steps: int
    flags: tuple[str, ...] = ()


def standard_error_frac(values: Sequence[float]) -> float:
    """Return the standard error of the mean over it; infinite for one value. [1]"""
    if len(values) < 2:  # noqa: PLR2004  (one value has no spread)
        return inf
    return float(np.std(values, ddof=1) / sqrt(len(values)) / np.mean(values))


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of repeats and its 90 % interval by Student's t; of one value, that value."""
    mean = float(np.mean(values))
    if len(values) < 2:  # noqa: PLR2004
        return mean, mean, mean
    from scipy.stats import t as student

    half = float(student.ppf(0.95, len(values) - 1)) * standard_error_frac(values) * mean
    return mean, mean - half, mean + half


class Protocol:
    """Runs a step until it is known how long it takes.

    Parameters
    ----------
    step : callable
        One whole step; it may return before the device has finished.
    finish : callable
        Returns when the device has finished all steps.
    mark : callable
        Reads the sensors and returns the time. [s]
    agree : callable
        Makes a number that one rank has decided the same on all.
    temperature_c : callable
        Highest of all GPUs, None where nobody knows. [degC]
    on_repeat : callable
        Takes what there is after each repeat: to keep it.
    """

    def __init__(
        self,
        step: Callable[[], None],
        *,
        mark: Callable[[], float],
        finish: Callable[[], None] = lambda: None,
        agree: Callable[[float], float] = lambda number: number,
        temperature_c: Callable[[], float | None] = lambda: None,
        on_repeat: Callable[[Steps], None] = lambda _: None,
    ) -> None:
        self._step = step
        self._finish = finish
        self._mark = mark
        self._agree = agree
        self._temperature_c = temperature_c
        self._on_repeat = on_repeat

    def run(self, plan: Plan) -> Steps:
        """Warm up, repeat, and return the windows."""
        start_s = self._mark()
        step_time_s, n_warmup_steps, flags = self._warm_up(plan, start_s)
        n_steps = self._steps_of(plan.window_s, step_time_s)
        repeats: list[Repeat] = []
        edge_s = self._mark()
        while True:
            end_s = self._run_steps(n_steps)
            repeats.append(Repeat(start_s=edge_s, end_s=end_s, n_steps=n_steps))
            edge_s = end_s
            # steps may still have got faster: a window must not be too short for the sensor
            n_steps = max(n_steps, self._steps_of(plan.window_s, repeats[-1].step_time_s))
            found = Steps(repeats=tuple(repeats), n_warmup_steps=n_warmup_steps, flags=flags)
            self._on_repeat(found)
            error_frac = standard_error_frac([repeat.step_time_s for repeat in repeats])
            is_known = len(repeats) >= plan.min_repeats and error_frac <= plan.error_frac
            is_over = end_s - start_s >= plan.seconds and len(repeats) >= _FEWEST_REPEATS
            if self._agree(float(is_known or is_over)):
                return found

    def _steps_of(self, window_s: float, step_time_s: float) -> int:
        """Return how many steps make a window, on all ranks."""
        return int(self._agree(ceil(round(window_s / step_time_s, 3))))

    def _run_steps(self, n_steps: int) -> float:
        for _ in range(n_steps):
            self._step()
        self._finish()
        return self._mark()

    def _warm_up(self, plan: Plan, start_s: float) -> tuple[float, int, tuple[str, ...]]:
        """Run steps until they are steady; return their time, their number, and what was not reached."""
        limit_s = _WARMUP_FRAC * plan.seconds
        begin_s = self._mark()
        edge_s = self._run_steps(_FEWEST_STEPS)
        step_time_s = (edge_s - begin_s) / _FEWEST_STEPS
        n_done = _FEWEST_STEPS
        groups: list[float] = []
        temperatures = [(edge_s, self._temperature_c())]
        while True:
            n_steps = int(self._agree(max(round(_GROUP_S / step_time_s), 1)))
            end_s = self._run_steps(n_steps)
            step_time_s = (end_s - edge_s) / n_steps
            groups.append(step_time_s)
            n_done += n_steps
            edge_s = end_s
            temperatures.append((end_s, self._temperature_c()))
            moving = _moving(groups, temperatures, plan)
            is_over = end_s - start_s >= limit_s
            if self._agree(float(not moving or is_over)):
                late = f"not steady when measuring began: {', '.join(moving)}" if moving else ""
                return step_time_s, n_done, ((late,) if late else ())


def _moving(
    groups: Sequence[float], temperatures: Sequence[tuple[float, float | None]], plan: Plan
) -> tuple[str, ...]:
    """Return what still changes: step time, temperature."""
    moving: tuple[str, ...] = ()
    last = groups[-_STEADY_GROUPS:]
    if len(last) < _STEADY_GROUPS:
        moving += ("too few steps",)
    elif max(last) - min(last) > plan.steady_frac * min(last) and last[-1] < last[0]:
        moving += ("steps still get faster",)
    end_s = temperatures[-1][0]
    recent = [t for time_s, t in temperatures if time_s >= end_s - plan.temperature_s and t is not None]
    covered = end_s - temperatures[0][0] >= plan.temperature_s
    if recent and not (covered and max(recent) - min(recent) < plan.steady_temperature_c):
        moving += ("temperature",)
    return moving

"""The clock that a power limit leaves, solved on kernels grouped by class.

In: `Kernels` at any clock, the class of each row, `Conditions`. Out: the clock of each class, and the time
and energy it leads to. Time and power are one problem: a limit lowers the clock, the clock lowers power and
stretches compute. Rows of a class that need no arithmetic unit count as one, so that the search for the clock
sees few rows, however many the step has.
"""

from dataclasses import dataclass
from typing import Final, Protocol, Self

import numpy as np

from joulecast.model.power import Kernels
from joulecast.model.rows import Booleans, Integers
from joulecast.model.time import Costs, kernel_time_s, memory_slowdown
from joulecast.workload.table import Floats

#: Excess over the power allowed at which a search ends, relative; and steps it never takes in practice. [1]
_SEARCH_TOLERANCE: Final = 1e-12
_MOST_SEARCH_STEPS: Final = 60
_TINY: Final = 1e-300
_N_DUTY_STEPS: Final = 4
_DUTY_TOLERANCE: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What holds clocks down; every array is [step].

    Attributes
    ----------
    top_clock_hz : ndarray
        The free or locked clock. [Hz]
    limit_w : ndarray
        Power limit of the board. [W]
    other_time_s : ndarray
        What the step takes at least, whatever the kernels: dispatch. [s]
    waiting_power_w : ndarray
        Draw of the card while it waits. [W]
    limit_ratio : float
        Short-window power that a limit lets through, over the limit. [1]
    """

    top_clock_hz: Floats
    limit_w: Floats
    other_time_s: Floats
    waiting_power_w: Floats
    limit_ratio: float

    def take(self, steps: Integers) -> "Conditions":
        """Return the conditions of the selected steps."""
        return Conditions(
            top_clock_hz=self.top_clock_hz[steps],
            limit_w=self.limit_w[steps],
            other_time_s=self.other_time_s[steps],
            waiting_power_w=self.waiting_power_w[steps],
            limit_ratio=self.limit_ratio,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """Clock, time and energy of kernels.

    Attributes
    ----------
    clock_hz : ndarray [op]
        SM clock while each row runs. [Hz]
    time_s, energy_j : ndarray [op]
        All calls of each row, static share included. [s], [J]
    exceeds_limit : ndarray of bool [step]
        Whether the step draws more than the limit with every class at the lowest clock.
    """

    clock_hz: Floats
    time_s: Floats
    energy_j: Floats
    exceeds_limit: Booleans


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Kernels of steps by class, a phase of the step with a power of its own.

    Attributes
    ----------
    n_calls : ndarray [part]
        Calls of each part: a row that needs an arithmetic unit, or all the others of a class as one. [1]
    costs : Costs [part]
    class_of : ndarray of int [part]
        Ascending. [1]
    backward : ndarray of bool [part]
        Whether it belongs to the backward pass.
    energies : Kernels [class]
        All rows of a class as one: their energy, given their time and clock.
    step_of : ndarray of int [class]
        Ascending. [1]
    n_steps : int
        [1]
    """

    n_calls: Floats
    costs: Costs
    class_of: Integers
    backward: Booleans
    energies: Kernels
    step_of: Integers
    n_steps: int

    def part_time_s(self, clock_hz: Floats) -> Floats:
        """Return the time of each part with its class at a clock [class]. [s] [part]."""
        return self.n_calls * kernel_time_s(self.costs, clock_hz[self.class_of])

    def by_class(self, of_parts: Floats) -> Floats:
        """Return the sum over the parts of each class. [class]."""
        return sums(of_parts, self.class_of, len(self.step_of))

    def time_s(self, clock_hz: Floats) -> Floats:
        """Return the time of each class at its clock. [s] [class]."""
        return self.by_class(self.part_time_s(clock_hz))

    def by_step(self, of_classes: Floats) -> Floats:
        """Return the sum over the classes of each step. [step]."""
        return sums(of_classes, self.step_of, self.n_steps)

    def of_steps(self, steps: Integers) -> "Phases":
        """Return the phases of some steps, in the order given; a step may come more than once."""
        if len(steps) == self.n_steps and bool(np.all(steps == np.arange(self.n_steps))):
            return self
        chosen, step_of = ragged(np.bincount(self.step_of, minlength=self.n_steps), steps)
        return self._of_classes(chosen, step_of, len(steps))

    def of_classes(self, chosen: Integers) -> "Phases":
        """Return some classes alone; steps keep their numbers."""
        return self._of_classes(chosen, self.step_of[chosen], self.n_steps)

    def _of_classes(self, chosen: Integers, step_of: Integers, n_steps: int) -> "Phases":
        parts, class_of = ragged(np.bincount(self.class_of, minlength=len(self.step_of)), chosen)
        return Phases(
            n_calls=self.n_calls[parts],
            costs=self.costs.take(parts),
            class_of=class_of,
            backward=self.backward[parts],
            energies=self.energies.take(chosen),
            step_of=step_of,
            n_steps=n_steps,
        )


def sums(values: Floats, groups: Integers, n_groups: int) -> Floats:
    """Return the sum of the values of each group. [group]."""
    return np.bincount(groups, weights=values, minlength=n_groups).astype(np.float64)


def ragged(lengths: Integers, chosen: Integers) -> tuple[Integers, Integers]:
    """Return the members of some groups one after another, and which choice each belongs to."""
    starts = np.cumsum(lengths) - lengths
    taken = lengths[chosen]
    choice = np.repeat(np.arange(len(chosen)), taken)
    first = np.cumsum(taken) - taken
    members: Integers = np.arange(len(choice)) - first[choice] + starts[chosen][choice]
    return members, choice


#: Kinds of rows are fewer, and so are path families. [1]
_MOST_KINDS: Final = 32
_MOST_FAMILIES: Final = 4


def row_labels(kind: Integers, family: Integers, costs: Costs, clock_hz: Floats | float) -> Integers:
    """Return what tells the classes of a step apart: kind, path family, whether compute binds. [op]."""
    compute_s = costs.compute_cycles / clock_hz
    by_compute = compute_s > np.maximum(costs.memory_s, costs.overhead_s)
    labels: Integers = (kind * _MOST_FAMILIES + family) * 2 + by_compute
    return labels


_MOST_LABELS: Final = _MOST_KINDS * _MOST_FAMILIES * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPhases:
    """Phases, and which of them each row belongs to.

    Attributes
    ----------
    phases : Phases
    class_of_row : ndarray of int [op]
        Class within its step, from 0. [1]
    """

    phases: Phases
    class_of_row: Integers


def phases_of(
    kernels: Kernels, labels: Integers, steps: Integers, backward: Booleans, n_steps: int, top_hz: Floats
) -> RowPhases:
    """Return the phases of steps.

    Parameters
    ----------
    kernels : Kernels [op]
    labels : ndarray of int [op]
        `row_labels`. [1]
    steps : ndarray of int [op]
        Step of each row, ascending. [1]
    backward : ndarray of bool [op]
    n_steps : int
        [1]
    top_hz : ndarray [op]
        The highest clock that the row may run at. [Hz]
    """
    by_step = steps * _MOST_LABELS + labels
    first, classes = np.unique(by_step, return_index=True, return_inverse=True)[1:]
    part_label = _part_labels(kernels, classes, backward, top_hz)
    part_first, part_of = np.unique(part_label, return_index=True, return_inverse=True)[1:]
    parts = kernels.joined(part_of, part_first)
    phases = Phases(
        n_calls=parts.n_calls,
        costs=parts.costs,
        class_of=classes[part_first],
        backward=backward[part_first],
        energies=kernels.joined(classes, first),
        step_of=steps[first],
        n_steps=n_steps,
    )
    first_class = np.searchsorted(phases.step_of, np.arange(n_steps))  # [step]
    return RowPhases(phases=phases, class_of_row=classes - first_class[steps])


def _part_labels(kernels: Kernels, classes: Integers, backward: Booleans, top_hz: Floats) -> Integers:
    """Return labels [op], class first, that rows share only where one kernel can stand for them.

    Notes
    -----
    Without arithmetic, time is ``memory x slowdown(f) + overhead``: it adds up. Rows bound by memory at every
    clock stay apart from those bound by their launch at every clock, and from those that change over.
    """
    costs, lowest_hz = kernels.costs, kernels.device.min_clock_hz
    memory = costs.memory_s * memory_slowdown(costs, top_hz) >= costs.overhead_s
    launch = costs.memory_s * memory_slowdown(costs, np.minimum(lowest_hz, top_hz)) < costs.overhead_s
    alone = (costs.compute_cycles > 0) | ~(memory | launch)
    n_rows = len(classes)
    group = np.where(alone, np.arange(n_rows) + 4, 2 * backward + memory)
    labels: Integers = classes * (n_rows + 4) + group
    return labels


def solved_clocks_hz(phases: Phases, conditions: Conditions) -> tuple[Floats, Booleans]:
    """Return the clock of each class under a power limit [class], and which steps exceed it all the same.

    Parameters
    ----------
    phases : Phases
    conditions : Conditions

    Notes
    -----
    Each class is a phase of its step with a power of its own; its clock is the highest at which
    ``duty x (static + energy / time) + (1 - duty) x waiting`` stays within ``limit x limit_ratio``, found for
    all classes at once. Duty is the busy share of the step, and grows as clocks fall. Where a class exceeds
    the limit at its lowest clock, the others make room: their clocks fall until the step's mean keeps the
    limit, or all run at the lowest.
    """
    clock_hz = conditions.top_clock_hz[phases.step_of]
    exceeds = np.zeros(phases.n_steps, dtype=np.bool_)
    duty = _duty(phases, phases.time_s(clock_hz), conditions)
    moving = np.arange(phases.n_steps)  # [step] whose duty is not settled
    for _ in range(_N_DUTY_STEPS):
        some, here = phases.of_steps(moving), conditions.take(moving)
        some_hz, exceeds[moving] = _class_clocks_hz(some, here, duty[moving])
        clock_hz[_members(phases.step_of, moving, phases.n_steps)] = some_hz
        grown = np.maximum(duty[moving], _duty(some, some.time_s(some_hz), here))
        still = grown > duty[moving] * (1.0 + _DUTY_TOLERANCE)
        moving = moving[still]
        if not moving.size:
            break
        duty[moving] = grown[still]
    over = np.flatnonzero(exceeds)
    if over.size:
        members = _members(phases.step_of, over, phases.n_steps)
        clock_hz[members], exceeds[over] = _within_mean_limit(
            phases.of_steps(over), conditions.take(over), clock_hz[members]
        )
    return clock_hz, exceeds


def _members(step_of: Integers, steps: Integers, n_steps: int) -> Integers:
    """Return the classes of some steps, in order. [class]."""
    chosen = np.zeros(n_steps, dtype=np.bool_)
    chosen[steps] = True
    members: Integers = np.flatnonzero(chosen[step_of])
    return members


def operating_point(
    kernels: Kernels, labels: Integers, steps: Integers, conditions: Conditions
) -> OperatingPoint:
    """Return clock, time and energy of every row; see `solved_clocks_hz`.

    Parameters
    ----------
    kernels : Kernels [op]
    labels : ndarray of int [op]
        `row_labels`. [1]
    steps : ndarray of int [op]
        Step of each row, from 0, ascending. [1]
    conditions : Conditions
    """
    n_steps = len(conditions.limit_w)
    backward = np.zeros(len(labels), dtype=np.bool_)
    top_hz = conditions.top_clock_hz[steps]
    grouped = phases_of(kernels, labels, steps, backward, n_steps, top_hz)
    class_hz, exceeds = solved_clocks_hz(grouped.phases, conditions)
    first_class = np.searchsorted(grouped.phases.step_of, np.arange(n_steps))  # [step]
    clock_hz = class_hz[grouped.class_of_row + first_class[steps]]
    time_s = kernels.time_s(clock_hz)
    return OperatingPoint(
        clock_hz=clock_hz,
        time_s=time_s,
        energy_j=kernels.energy_j(clock_hz, time_s),
        exceeds_limit=exceeds,
    )


def _duty(phases: Phases, time_s: Floats, conditions: Conditions) -> Floats:
    """Return the busy share of each step. [1] [step]."""
    busy_s = phases.by_step(time_s)
    return busy_s / np.maximum(np.maximum(busy_s, conditions.other_time_s), _TINY)


class _Limited(Protocol):
    """What a limit holds down, and by how much it exceeds what is allowed at a clock."""

    def excess(self, clock_hz: Floats) -> Floats:
        """Return log(power / allowed) of each at a clock, rising with it. [1]."""
        ...

    def of(self, chosen: Integers) -> Self:
        """Return the chosen ones alone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Classes:
    """Classes, each under the power allowed while it runs. [class]."""

    phases: Phases
    allowed_w: Floats

    def excess(self, clock_hz: Floats) -> Floats:
        time_s = self.phases.time_s(clock_hz)
        busy_w = self.phases.energies.energy_j(clock_hz, time_s) / np.maximum(time_s, _TINY)
        return np.log(np.maximum(busy_w, _TINY) / self.allowed_w)

    def of(self, chosen: Integers) -> "_Classes":
        return _Classes(phases=self.phases.of_classes(chosen), allowed_w=self.allowed_w[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Means:
    """Steps whose classes run at their own clock or a common one, whichever is lower. [step]."""

    phases: Phases
    conditions: Conditions
    own_hz: Floats

    def capped_hz(self, cap_hz: Floats) -> Floats:
        """Return the clock of each class under a cap of its step. [Hz] [class]."""
        return np.minimum(self.own_hz, cap_hz[self.phases.step_of])

    def excess(self, clock_hz: Floats) -> Floats:
        capped_hz = self.capped_hz(clock_hz)
        time_s = self.phases.time_s(capped_hz)
        busy_s = self.phases.by_step(time_s)
        busy_j = self.phases.by_step(self.phases.energies.energy_j(capped_hz, time_s))
        total_s = np.maximum(np.maximum(busy_s, self.conditions.other_time_s), _TINY)
        mean_w = (busy_j + (total_s - busy_s) * self.conditions.waiting_power_w) / total_s
        return np.log(np.maximum(mean_w, _TINY) / (self.conditions.limit_w * self.conditions.limit_ratio))

    def of(self, chosen: Integers) -> "_Means":
        members = _members(self.phases.step_of, chosen, self.phases.n_steps)
        return _Means(
            phases=self.phases.of_steps(chosen),
            conditions=self.conditions.take(chosen),
            own_hz=self.own_hz[members],
        )


def _class_clocks_hz(phases: Phases, conditions: Conditions, duty: Floats) -> tuple[Floats, Booleans]:
    """Return the highest clock of each class within its power [class], and which steps cannot keep it."""
    step_of = phases.step_of
    allowed_w = conditions.limit_w * conditions.limit_ratio - (1.0 - duty) * conditions.waiting_power_w
    busy_w = np.maximum(allowed_w / np.maximum(duty, _TINY), _TINY)[step_of]  # [class]
    clock_hz = conditions.top_clock_hz[step_of]
    every = _Classes(phases=phases, allowed_w=busy_w)
    at_top = every.excess(clock_hz)
    bound = np.flatnonzero(at_top > 0.0)
    exceeds = np.zeros(phases.n_steps, dtype=np.bool_)
    if bound.size:
        limited = every.of(bound)
        lowest_hz = np.minimum(limited.phases.energies.device.min_clock_hz, clock_hz[bound])
        clock_hz[bound], fits = _highest_within(limited, lowest_hz, clock_hz[bound], at_top[bound])
        exceeds[step_of[bound[~fits]]] = True
    return clock_hz, exceeds


def _within_mean_limit(phases: Phases, conditions: Conditions, clock_hz: Floats) -> tuple[Floats, Booleans]:
    """Return clocks [class] capped so that the mean of each step keeps the limit, and which cannot."""
    top_hz = conditions.top_clock_hz
    lowest_hz = np.zeros(phases.n_steps)
    lowest_hz[phases.step_of] = phases.energies.device.min_clock_hz
    means = _Means(phases=phases, conditions=conditions, own_hz=clock_hz)
    at_top = means.excess(top_hz)
    needed = np.flatnonzero(at_top > 0.0)
    cap_hz, exceeds = top_hz.copy(), np.zeros(phases.n_steps, dtype=np.bool_)
    if needed.size:
        lowest_hz = np.minimum(lowest_hz, top_hz)[needed]
        cap_hz[needed], fits = _highest_within(means.of(needed), lowest_hz, top_hz[needed], at_top[needed])
        exceeds[needed] = ~fits
    return means.capped_hz(cap_hz), exceeds


def _highest_within(
    limited: _Limited, low_hz: Floats, high_hz: Floats, at_high: Floats
) -> tuple[Floats, Booleans]:
    """Return the highest clocks at which nothing is in excess, else the lowest; and which fit there. [Hz].

    Parameters
    ----------
    limited : _Limited
    low_hz, high_hz : ndarray
        Lowest clocks, and higher ones at which all are in excess. [Hz]
    at_high : ndarray
        Excess there. [1]

    Notes
    -----
    False position on the logarithms, the Illinois way: power nearly follows a power of the clock, so a chord
    comes close at once; halving the value of an end that stays keeps both ends moving [1]_. Each search ends
    by itself, so that company changes no result.

    References
    ----------
    .. [1] M. Dowell, P. Jarratt, "A modified regula falsi method for computing the root of an equation", BIT
       11, 1971, doi 10.1007/BF01934364.
    """
    at_low = limited.excess(low_hz)
    fits = at_low <= 0.0
    found_hz = low_hz.copy()
    ends = np.stack([np.log(low_hz), np.log(high_hz), at_low, at_high, np.zeros(len(low_hz))])
    going = np.flatnonzero(fits)  # searches that have not ended
    limited, ends = limited.of(going), ends[:, going]
    open_ = np.ones(len(going), dtype=np.bool_)
    for _ in range(_MOST_SEARCH_STEPS):
        low, high, at_low, at_high, last = ends
        middle = high - at_high / np.maximum(at_high - at_low, _TINY) * (high - low)
        found = limited.excess(np.exp(middle))
        over = found > 0.0
        ends = np.stack(
            [
                np.where(over, low, middle),
                np.where(over, middle, high),
                np.where(over, np.where(last > 0, 0.5 * at_low, at_low), found),
                np.where(over, found, np.where(last < 0, 0.5 * at_high, at_high)),
                np.where(over, 1.0, -1.0),  # which end moved
            ]
        )
        close = np.abs(found) <= _SEARCH_TOLERANCE
        found_hz[going[open_]] = np.exp(np.where(close, middle, ends[0]))[open_]
        open_ &= ~close
        n_open = int(np.count_nonzero(open_))
        if n_open == 0:
            break
        if 2 * n_open <= len(going):
            still = np.flatnonzero(open_)
            limited, ends, going, open_ = limited.of(still), ends[:, still], going[still], open_[still]
    return found_hz, fits

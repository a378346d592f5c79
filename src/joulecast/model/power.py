"""Power, and the clock that goes with it: static + energy per FLOP + energy per byte, under a limit.

In: `Rows` and their `Costs`, limits. Out: the clock of each class of kernels, time and energy. Time and power
are one problem: a limit lowers the clock, the clock lowers power and stretches compute.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from joulecast.hardware.spec import Gpu
from joulecast.model.definitions import PATH_FAMILIES, PROCESS_NODES
from joulecast.model.products import chosen_values, winograd_gain
from joulecast.model.rows import PROCESS_NUMBER, Booleans, Device, Integers, Rows, Selection
from joulecast.model.time import Costs, kernel_time_s, l2_resident
from joulecast.workload.table import Floats, OpKind

Values = Mapping[str, float]

_N_BISECTIONS: Final = 24
_N_DUTY_STEPS: Final = 4
_DUTY_TOLERANCE: Final = 1e-6


def free_clock_hz(gpu: Gpu | Device, values: Values) -> Floats:
    """Return the clock without limit or lock: between boost and maximum. [Hz]."""
    clock_hz: Floats = np.asarray(
        gpu.boost_clock_hz + values["clock.headroom"] * (gpu.max_clock_hz - gpu.boost_clock_hz)
    )
    return clock_hz


def voltage_squared_ratio(clock_hz: Floats | float, device: Device, values: Values) -> Floats:
    """Return core voltage squared over that of its floor. [1].

    Parameters
    ----------
    clock_hz : float or ndarray
        SM clock. [Hz]
    device : Device
        Names where voltage leaves its floor and what it is at the highest clock.
    values : mapping
        Parameters.

    Notes
    -----
    Flat up to a share of the highest clock, then linear in the clock; both from the card where measured. Else
    from the process that its chip is made in, and rising with a power of the clock.
    """
    known = device.voltage_known > 0
    flat_share = by_process("power.{}_voltage_flat_share", device, values)
    flat_hz = np.where(known, device.flat_clock_hz, flat_share * device.max_clock_hz)
    highest = np.where(
        known, device.voltage_max_ratio, by_process("power.{}_voltage_max_ratio", device, values)
    )
    above = np.maximum(0.0, np.asarray(clock_hz) - flat_hz) / np.maximum(device.max_clock_hz - flat_hz, 1.0)
    bend = np.where(known, 1.0, values["power.voltage_exponent"])
    ratio: Floats = (1.0 + (highest - 1.0) * above**bend) ** 2
    return ratio


def by_process(pattern: str, device: Device, values: Values) -> Floats:
    """Return a parameter of the process of each chip; ``pattern`` holds ``{}`` for its name."""
    names = [pattern.format(name) for name in PROCESS_NUMBER]
    return chosen_values(values, names, device.process.astype(np.int64))


def waiting_power_w(clock_hz: Floats | float, device: Device, values: Values) -> Floats:
    """Return what a card draws at a clock without work. [W].

    Parameters
    ----------
    clock_hz : float or ndarray
        SM clock. [Hz]
    device : Device
        Names power when idle, and when waiting at the highest clock.
    values : mapping
        Parameters.

    Notes
    -----
    From idle to waiting: one part goes with the clock, the other, leakage, with voltage squared.
    """
    top = np.maximum(voltage_squared_ratio(device.max_clock_hz, device, values) - 1.0, 1e-9)
    leakage = (voltage_squared_ratio(clock_hz, device, values) - 1.0) / top
    share = values["power.leakage_share"]
    rise = (1.0 - share) * np.asarray(clock_hz) / device.max_clock_hz + share * leakage
    power_w: Floats = device.idle_power_w + (device.waiting_power_w - device.idle_power_w) * rise
    return power_w


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Kernels that can run at any clock; every array is [op].

    Attributes
    ----------
    n_calls : ndarray
        Calls of each row. [1]
    costs : Costs
    core_j : ndarray
        Energy of one call's arithmetic at the voltage floor. [J]
    memory_j : ndarray
        Energy of one call's traffic. [J]
    device : Device
    values : mapping
        Parameters.
    """

    n_calls: Floats
    costs: Costs
    core_j: Floats
    memory_j: Floats
    device: Device
    values: Values

    def take(self, selection: Selection) -> "Kernels":
        """Return the selected rows."""
        return Kernels(
            n_calls=self.n_calls[selection],
            costs=self.costs.take(selection),
            core_j=self.core_j[selection],
            memory_j=self.memory_j[selection],
            device=self.device.take(selection),
            values=self.values,
        )

    def time_s(self, clock_hz: Floats | float) -> Floats:
        """Return the time of all calls of each row at a clock. [s] [op]."""
        return self.n_calls * kernel_time_s(self.costs, clock_hz)

    def energy_j(self, clock_hz: Floats | float, time_s: Floats) -> Floats:
        """Return the energy of all calls of each row at a clock, static share included. [J] [op].

        Notes
        -----
        While a kernel starts and ends the card waits; while it works, schedulers, caches and the clock
        tree run whatever the kernel does: a share of the board's limit at the highest clock, in
        proportion to ``f V^2`` below.
        """
        voltage = voltage_squared_ratio(clock_hz, self.device, self.values)
        highest = voltage_squared_ratio(self.device.max_clock_hz, self.device, self.values)
        switching = clock_hz / self.device.max_clock_hz * voltage / highest
        working_s = np.maximum(time_s - self.n_calls * self.costs.overhead_s, 0.0)
        share = self.values["power.working_limit_share"] * np.where(
            self.device.gddr > 0, self.values["power.gddr_working_ratio"], 1.0
        )
        working_w = share * self.device.board_power_w * switching
        waiting_w = waiting_power_w(clock_hz, self.device, self.values)
        dynamic_j = self.core_j * voltage + self.memory_j
        return self.n_calls * dynamic_j + waiting_w * time_s + working_w * working_s


def kernels_of(rows: Rows, costs: Costs, values: Values) -> Kernels:
    """Return the kernels of rows, with the energy of one call beyond static power.

    Notes
    -----
    Energy per FLOP belongs to the path and to the process the chip is made in: the same chip on boards with
    other limits keeps it. Work that Winograd saves costs nothing.
    """
    per_flop = chosen_values(values, [f"power.{name}_j_per_flop" for name in PATH_FAMILIES], rows.family)
    ratios = np.array([*(values[f"power.{name}_ratio"] for name in PROCESS_NODES), 1.0])
    node = ratios[rows.device.process.astype(np.int64)]
    saving = np.where(rows.of_kind(OpKind.CONVOLUTION), winograd_gain(rows, values), 1.0)
    per_byte = values["power.j_per_byte"] * np.where(rows.device.gddr > 0, values["power.gddr_ratio"], 1.0)
    from_l2 = l2_resident(costs.bytes_moved, rows, values) * (1.0 - values["power.l2_share"])
    softmax = np.where(rows.of_kind(OpKind.ATTENTION), values["power.attention_ratio"], 1.0)
    return Kernels(
        n_calls=rows.n_calls,
        costs=costs,
        core_j=rows.flop / saving * per_flop * node * softmax,
        memory_j=costs.bytes_moved * per_byte * (1.0 - from_l2),
        device=rows.device,
        values=values,
    )


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
    """

    top_clock_hz: Floats
    limit_w: Floats
    other_time_s: Floats
    waiting_power_w: Floats


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


def row_classes(rows: Rows, costs: Costs, clock_hz: Floats | float, steps: Integers) -> Integers:
    """Return the class of each row: its step, kind, path family and whether compute binds it. [op]."""
    compute_s = costs.compute_cycles / clock_hz
    by_compute = compute_s > np.maximum(costs.memory_s, costs.overhead_s)
    label = ((steps * 32 + rows.kind) * 4 + rows.family) * 2 + by_compute
    classes: Integers = np.unique(label, return_inverse=True)[1]
    return classes


def operating_point(
    kernels: Kernels, classes: Integers, steps: Integers, conditions: Conditions
) -> OperatingPoint:
    """Return the clock of each class under a power limit, and the time and energy it leads to.

    Parameters
    ----------
    kernels : Kernels
    classes, steps : ndarray [op]
        Class and step of each row, from 0. [1]
    conditions : Conditions

    Notes
    -----
    Each class is a phase of its step with a power of its own; its clock is the highest at which
    ``duty x (static + energy / time) + (1 - duty) x waiting`` stays within ``limit x limit_ratio``, found by
    bisection for all classes at once. Duty is the busy share of the step, and grows as clocks fall. Where a
    class exceeds the limit at its lowest clock, the others make room: their clocks fall until the step's mean
    keeps the limit, or all run at the lowest.
    """
    n_steps = len(conditions.limit_w)
    clock_hz = conditions.top_clock_hz[steps]
    exceeds = np.zeros(n_steps, dtype=np.bool_)
    time_s = kernels.time_s(clock_hz)
    duty = _duty(time_s, steps, conditions)
    for _ in range(_N_DUTY_STEPS):
        clock_hz, exceeds = _class_clocks_hz(kernels, classes, steps, conditions, duty)
        time_s = kernels.time_s(clock_hz)
        grown = np.maximum(duty, _duty(time_s, steps, conditions))
        if bool(np.all(grown <= duty * (1.0 + _DUTY_TOLERANCE))):
            break
        duty = grown
    if bool(np.any(exceeds)):
        clock_hz, exceeds = _within_mean_limit(kernels, steps, conditions, clock_hz, exceeds)
        time_s = kernels.time_s(clock_hz)
    return OperatingPoint(
        clock_hz=clock_hz,
        time_s=time_s,
        energy_j=kernels.energy_j(clock_hz, time_s),
        exceeds_limit=exceeds,
    )


def _within_mean_limit(
    kernels: Kernels, steps: Integers, conditions: Conditions, clock_hz: Floats, exceeds: Booleans
) -> tuple[Floats, Booleans]:
    """Return clocks capped so that the mean of the steps in question keeps the limit, and which cannot."""
    n_steps = len(conditions.limit_w)
    lowest_hz = np.zeros(n_steps)
    np.maximum.at(lowest_hz, steps, np.broadcast_to(kernels.device.min_clock_hz, clock_hz.shape))
    lowest_hz = np.minimum(lowest_hz, conditions.top_clock_hz)

    def fits(cap_hz: Floats) -> Booleans:
        by_row_hz = np.minimum(clock_hz, cap_hz[steps])
        time_s = kernels.time_s(by_row_hz)
        busy_s = np.bincount(steps, weights=time_s, minlength=n_steps)
        busy_j = np.bincount(steps, weights=kernels.energy_j(by_row_hz, time_s), minlength=n_steps)
        total_s = np.maximum(busy_s, conditions.other_time_s)
        within: Booleans = busy_j + (total_s - busy_s) * conditions.waiting_power_w <= (
            conditions.limit_w * kernels.values["power.limit_ratio"] * total_s
        )
        return within

    top_hz = conditions.top_clock_hz
    needed = exceeds & ~fits(top_hz)
    cap_hz = np.where(needed, _bisected(fits, lowest_hz, top_hz), top_hz)
    return np.minimum(clock_hz, cap_hz[steps]), exceeds & ~fits(lowest_hz)


def _duty(time_s: Floats, steps: Integers, conditions: Conditions) -> Floats:
    """Return the busy share of each step. [1] [step]."""
    busy_s = np.bincount(steps, weights=time_s, minlength=len(conditions.limit_w))
    return busy_s / np.maximum(np.maximum(busy_s, conditions.other_time_s), 1e-300)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Power of each class, averaged with the waiting around it; arrays [class]."""

    kernels: Kernels
    classes: Integers
    duty: Floats
    waiting_power_w: Floats
    allowed_w: Floats

    def fits(self, clock_hz: Floats) -> Booleans:
        """Return which classes stay within the power allowed at a clock. [class]."""
        n_classes = len(self.allowed_w)
        by_row_hz = clock_hz[self.classes]
        time_s = self.kernels.time_s(by_row_hz)
        energy_j = self.kernels.energy_j(by_row_hz, time_s)
        total_s = np.bincount(self.classes, weights=time_s, minlength=n_classes)
        total_j = np.bincount(self.classes, weights=energy_j, minlength=n_classes)
        busy_w = total_j / np.maximum(total_s, 1e-300)
        within: Booleans = self.duty * busy_w + (1.0 - self.duty) * self.waiting_power_w <= self.allowed_w
        return within

    def of(self, chosen: Integers) -> "_Window":
        """Return the window of some classes, with their rows only."""
        number = np.full(len(self.allowed_w), -1)
        number[chosen] = np.arange(len(chosen))
        rows = np.flatnonzero(number[self.classes] >= 0)
        return _Window(
            kernels=self.kernels.take(rows),
            classes=number[self.classes[rows]],
            duty=self.duty[chosen],
            waiting_power_w=self.waiting_power_w[chosen],
            allowed_w=self.allowed_w[chosen],
        )


def _class_clocks_hz(
    kernels: Kernels, classes: Integers, steps: Integers, conditions: Conditions, duty: Floats
) -> tuple[Floats, Booleans]:
    """Return the highest clock within the power allowed of each row's class, and which steps exceed it."""
    n_classes = int(classes.max()) + 1 if classes.size else 0
    step_of = np.zeros(n_classes, dtype=np.int64)  # [class]
    step_of[classes] = steps
    lowest_hz = np.zeros(n_classes)
    lowest_hz[classes] = kernels.device.min_clock_hz
    clock_hz = conditions.top_clock_hz[step_of]
    window = _Window(
        kernels=kernels,
        classes=classes,
        duty=duty[step_of],
        waiting_power_w=conditions.waiting_power_w[step_of],
        allowed_w=conditions.limit_w[step_of] * kernels.values["power.limit_ratio"],
    )
    exceeds = np.zeros(len(conditions.limit_w), dtype=np.bool_)
    bound = np.flatnonzero(~window.fits(clock_hz))
    if bound.size:
        lowest = np.minimum(lowest_hz[bound], clock_hz[bound])
        limited = window.of(bound)
        exceeds[step_of[bound[~limited.fits(lowest)]]] = True
        clock_hz[bound] = _bisected(limited.fits, lowest, clock_hz[bound])
    return clock_hz[classes], exceeds


def _bisected(fits: Callable[[Floats], Booleans], low_hz: Floats, high_hz: Floats) -> Floats:
    """Return the highest clocks found that fit, else the lowest. [Hz]."""
    for _ in range(_N_BISECTIONS):
        middle = 0.5 * (low_hz + high_hz)
        kept = fits(middle)
        low_hz, high_hz = np.where(kept, middle, low_hz), np.where(kept, high_hz, middle)
    return low_hz

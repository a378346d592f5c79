"""Power at a clock: static + energy per FLOP + energy per byte.

In: `Rows` and their `Costs`. Out: `Kernels`, whose time and energy can be had at any clock; `clock` finds the
one that a limit leaves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from joulecast.hardware.spec import Gpu
from joulecast.model.definitions import PATH_FAMILIES, PROCESS_NODES
from joulecast.model.products import chosen_values, winograd_gain
from joulecast.model.rows import PROCESS_NUMBER, Device, Integers, Rows, Selection
from joulecast.model.time import Costs, kernel_time_s, l2_resident
from joulecast.workload.table import Floats, OpKind

Values = Mapping[str, float]


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
    From idle to waiting: one part, memory at its rate and the board's regulators, whatever the clock; the
    other switches with it, as ``f V^2``.
    """
    highest = voltage_squared_ratio(device.max_clock_hz, device, values)
    voltage = voltage_squared_ratio(clock_hz, device, values)
    switching = np.asarray(clock_hz) / device.max_clock_hz * voltage / highest
    share = values["power.waiting_constant_share"]
    rise = share + (1.0 - share) * switching
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

    def joined(self, labels: Integers, first: Integers) -> "Kernels":
        """Return the rows of each label as one kernel, called once, on the card of the first of them.

        Parameters
        ----------
        labels : ndarray of int [op]
            From 0; equal for rows of one card that run at one clock. [1]
        first : ndarray of int [label]
            A row of each label. [1]

        Notes
        -----
        Their energy at a clock, given their time, is exact; so is their time, but for rows that need an
        arithmetic unit and are not alone.
        """

        def summed(per_call: Floats) -> Floats:
            total = np.bincount(labels, weights=self.n_calls * per_call, minlength=len(first))
            return total.astype(np.float64)

        costs = self.costs
        return Kernels(
            n_calls=np.ones(len(first)),
            costs=replace(
                costs.take(first),
                compute_cycles=summed(costs.compute_cycles),
                memory_s=summed(costs.memory_s),
                overhead_s=summed(costs.overhead_s),
                bytes_moved=summed(costs.bytes_moved),
            ),
            core_j=summed(self.core_j),
            memory_j=summed(self.memory_j),
            device=self.device.take(first),
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

"""Time, clock, power and energy of many steps at once: the equations, in order.

In: `Batch`, the rows of one or thousands of steps on their GPUs under their conditions; parameters. Out:
`StepCosts`, arrays [step]. A prediction is a batch of one; a fit evaluates all its runs in one pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.hardware.spec import Gpu
from joulecast.model import comm, power
from joulecast.model.host import Host, Launches, default_host, dispatch_time_s, launches_of
from joulecast.model.rows import Device, Integers, Rows, concatenate_rows, device_of, rows_of
from joulecast.model.time import Costs, Parts, product_parts, row_costs, smooth_maximum
from joulecast.workload.table import Floats, Workload

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step under its conditions.

    Attributes
    ----------
    workload : Workload
    gpu : Gpu
    n_gpus : int
        GPUs in data parallel. [1]
    power_limit_w : float or None
        Limit of the board; None for its default. [W]
    sm_clock_hz : float or None
        Locked clock; None for a free one. [Hz]
    """

    workload: Workload
    gpu: Gpu
    n_gpus: int = 1
    power_limit_w: float | None = None
    sm_clock_hz: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Steps as numbers; arrays [op] and [step].

    Attributes
    ----------
    rows : Rows [op]
    parts : mapping
        `product_parts` of the rows.
    steps : ndarray of int [op]
        Step of each row. [1]
    device : Device [step]
    launches : Launches [step]
    ring : Ring [step]
    reduced_bytes : ndarray [step]
        Gradients that data parallelism reduces; 0 in a forward pass. [bytes]
    limit_w : ndarray [step]
        Power limit. [W]
    locked_clock_hz : ndarray [step]
        Locked clock; NaN for a free one. [Hz]
    """

    rows: Rows
    parts: Parts
    steps: Integers
    device: Device
    launches: Launches
    ring: comm.Ring
    reduced_bytes: Floats
    limit_w: Floats
    locked_clock_hz: Floats

    def __len__(self) -> int:
        return len(self.limit_w)


def batch_of(steps: Sequence[Step]) -> Batch:
    """Return steps as one batch."""
    rows = [rows_of(s.workload.table, s.workload.precision, s.gpu) for s in steps]
    launches = [launches_of(s.workload.table, _optimized_tensors(s.workload)) for s in steps]
    rings = [comm.ring_of(s.n_gpus, s.gpu.link_between(s.n_gpus)) for s in steps]
    joined = rows[0] if len(rows) == 1 else concatenate_rows(rows)
    return Batch(
        rows=joined,
        parts=product_parts(joined),
        steps=np.repeat(np.arange(len(steps)), [len(part) for part in rows]),
        device=Device.concatenate([device_of(s.gpu) for s in steps], [1] * len(steps)),
        launches=Launches(
            forward=np.array([x.forward for x in launches]),
            backward=np.array([x.backward for x in launches]),
            optimizer=np.array([x.optimizer for x in launches]),
            copies=np.array([x.copies for x in launches]),
            tensors=np.array([x.tensors for x in launches]),
        ),
        ring=comm.Ring(
            n_gpus=np.concatenate([ring.n_gpus for ring in rings]),
            bus_bytes_per_s=np.concatenate([ring.bus_bytes_per_s for ring in rings]),
            over_pcie=np.concatenate([ring.over_pcie for ring in rings]),
        ),
        reduced_bytes=np.array(
            [0.0 if s.workload.mode == "forward" else s.workload.gradient_bytes for s in steps]
        ),
        limit_w=np.array(
            [s.gpu.power_limit_w if s.power_limit_w is None else s.power_limit_w for s in steps]
        ),
        locked_clock_hz=np.array([np.nan if s.sm_clock_hz is None else s.sm_clock_hz for s in steps]),
    )


def _optimized_tensors(workload: Workload) -> float:
    """Return the trainable tensors an optimizer walks over. [1]."""
    return float(workload.parameters.n_tensors) if workload.mode == "train" else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """What steps take; arrays [step] unless they say [op].

    Attributes
    ----------
    step_time_s, kernel_time_s, dispatch_time_s, exposed_time_s : ndarray
        The step; its kernels; the host alone; communication that shows. [s]
    energy_j : ndarray
        Of one GPU. [J]
    costs : Costs [op]
    point : OperatingPoint [op]
    """

    step_time_s: Floats
    kernel_time_s: Floats
    dispatch_time_s: Floats
    exposed_time_s: Floats
    energy_j: Floats
    costs: Costs
    point: power.OperatingPoint

    @property
    def mean_power_w(self) -> Floats:
        """Mean power of one GPU. [W] [step]."""
        return self.energy_j / self.step_time_s


def step_costs(batch: Batch, values: Values, host: Host | None = None) -> StepCosts:
    """Return time, clock, power and energy of every step.

    Parameters
    ----------
    batch : Batch
    values : mapping
        Parameters.
    host : Host or None
        What dispatches; None for the host of the parameters.

    Notes
    -----
    ``step = smooth maximum(kernels + exposed communication, dispatch)``; energy is that of the kernels, and
    of waiting in between.
    """
    dispatch_s = dispatch_time_s(batch.launches, host or default_host(values), batch.ring.n_gpus)
    costs = row_costs(batch.rows, values, batch.parts)
    point = _operating_point(batch, costs, values, dispatch_s)

    kernels_s = _by_step(point.time_s, batch)
    backward_s = _by_step(np.where(batch.rows.backward, point.time_s, 0.0), batch)
    all_s, last_s = comm.gradient_reduction_s(batch.reduced_bytes, batch.ring, values)
    exposed_s = comm.exposed_time_s(all_s, last_s, backward_s, values)
    busy_s = kernels_s + comm.contention_s(all_s, backward_s, values)
    step_s = smooth_maximum(busy_s + exposed_s, dispatch_s, values["host.sharpness"])
    waiting_j = (step_s - kernels_s) * power.waiting_power_w(
        top_clock_hz(batch, values), batch.device, values
    )
    return StepCosts(
        step_time_s=step_s,
        kernel_time_s=busy_s,
        dispatch_time_s=dispatch_s,
        exposed_time_s=exposed_s,
        energy_j=_by_step(point.energy_j, batch) + waiting_j,
        costs=costs,
        point=point,
    )


def _by_step(values_of_rows: Floats, batch: Batch) -> Floats:
    """Return the sum over the rows of each step."""
    return np.bincount(batch.steps, weights=values_of_rows, minlength=len(batch)).astype(np.float64)


def top_clock_hz(batch: Batch, values: Values) -> Floats:
    """Return the locked clock where there is one, else the free one. [Hz] [step]."""
    free_hz = power.free_clock_hz(batch.device, values)
    return np.where(np.isnan(batch.locked_clock_hz), free_hz, batch.locked_clock_hz)


def _operating_point(batch: Batch, costs: Costs, values: Values, dispatch_s: Floats) -> power.OperatingPoint:
    """Return clock, time and energy of all rows."""
    top_hz = top_clock_hz(batch, values)
    conditions = power.Conditions(
        top_clock_hz=top_hz,
        limit_w=batch.limit_w,
        other_time_s=dispatch_s,
        waiting_power_w=power.waiting_power_w(top_hz, batch.device, values),
    )
    classes = power.row_classes(batch.rows, costs, top_hz[batch.steps], batch.steps)
    kernels = power.kernels_of(batch.rows, costs, values)
    return power.operating_point(kernels, classes, batch.steps, conditions)

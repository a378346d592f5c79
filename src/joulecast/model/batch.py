"""Time, clock, power and energy of many steps at once: the equations, in order.

In: `Batch`, the rows of one or thousands of loads on their GPUs and the conditions of the steps that run
them; parameters. Out: `StepCosts`, arrays [step]. A prediction is a batch of one; a fit evaluates all its
runs in one pass; a sweep its blocks. Steps that differ in limit, clock or number of GPUs alone share the rows
of one load, and those that run alike share the clock solved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.hardware.spec import Gpu
from joulecast.model import clock, comm, power
from joulecast.model.host import Host, Launches, default_host, dispatch_time_s, launches_of
from joulecast.model.rows import Booleans, Device, Integers, Rows, concatenate_rows, device_of, rows_of_sizes
from joulecast.model.time import (
    ROW_BOUNDS,
    Costs,
    Parts,
    bound_number,
    product_parts,
    row_costs,
    smooth_maximum,
)
from joulecast.workload.table import Floats, Workload, Workloads, alone

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
class Loads:
    """What single GPUs compute in a step; arrays [op] and [load].

    Attributes
    ----------
    rows : Rows [op]
    parts : mapping
        `product_parts` of the rows.
    load_of : ndarray of int [op]
        Load of each row, ascending. [1]
    device : Device [load]
    launches : Launches [load]
    reduced_bytes, gradient_bytes : ndarray [load]
        Gradients that data parallelism reduces, 0 in a forward pass; that it keeps in buckets. [bytes]
    kept_bytes : ndarray [load]
        What the step keeps alive at its peak. [bytes]
    """

    rows: Rows
    parts: Parts
    load_of: Integers
    device: Device
    launches: Launches
    reduced_bytes: Floats
    gradient_bytes: Floats
    kept_bytes: Floats

    def __len__(self) -> int:
        return len(self.reduced_bytes)


def loads_of(workloads: Sequence[tuple[Workloads, Gpu]]) -> Loads:
    """Return workloads on their GPUs as loads, size by size."""
    rows = [rows_of_sizes(load, gpu) for load, gpu in workloads]
    joined = rows[0] if len(rows) == 1 else concatenate_rows(rows)
    n_sizes = [len(load) for load, _ in workloads]
    n_rows = np.repeat([len(load.first.table) for load, _ in workloads], n_sizes)
    launches = [launches_of(load.first.table, _optimized_tensors(load.first)) for load, _ in workloads]
    reduced = [0.0 if w.first.mode == "forward" else w.first.gradient_bytes for w, _ in workloads]
    return Loads(
        rows=joined,
        parts=product_parts(joined),
        load_of=np.repeat(np.arange(sum(n_sizes)), n_rows),
        device=Device.concatenate([device_of(gpu) for _, gpu in workloads], n_sizes),
        launches=Launches(
            forward=np.repeat([x.forward for x in launches], n_sizes),
            backward=np.repeat([x.backward for x in launches], n_sizes),
            optimizer=np.repeat([x.optimizer for x in launches], n_sizes),
            copies=np.repeat([x.copies for x in launches], n_sizes),
            tensors=np.repeat([x.tensors for x in launches], n_sizes),
        ),
        reduced_bytes=np.repeat(reduced, n_sizes),
        gradient_bytes=np.repeat([load.first.gradient_bytes for load, _ in workloads], n_sizes),
        kept_bytes=np.concatenate(
            [load.first.persistent_bytes + load.peak_live_bytes for load, _ in workloads]
        ),
    )


def _optimized_tensors(workload: Workload) -> float:
    """Return the trainable tensors an optimizer walks over. [1]."""
    return float(workload.parameters.n_tensors) if workload.mode == "train" else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Steps as numbers; arrays [step].

    Attributes
    ----------
    loads : Loads
    load : ndarray of int [step]
        What each step runs. [1]
    ring : Ring [step]
    limit_w : ndarray [step]
        Power limit. [W]
    locked_clock_hz : ndarray [step]
        Locked clock; NaN for a free one. [Hz]
    """

    loads: Loads
    load: Integers
    ring: comm.Ring
    limit_w: Floats
    locked_clock_hz: Floats

    def __len__(self) -> int:
        return len(self.limit_w)


def batch_of(steps: Sequence[Step]) -> Batch:
    """Return steps as one batch."""
    numbers: dict[tuple[int, int], int] = {}
    load = [numbers.setdefault((id(s.workload), id(s.gpu)), len(numbers)) for s in steps]
    first = np.unique(load, return_index=True)[1]
    rings = [comm.ring_of(s.n_gpus, s.gpu.link_between(s.n_gpus)) for s in steps]
    return Batch(
        loads=loads_of([(alone(steps[i].workload), steps[i].gpu) for i in first]),
        load=np.array(load),
        ring=comm.Ring(
            n_gpus=np.concatenate([ring.n_gpus for ring in rings]),
            bus_bytes_per_s=np.concatenate([ring.bus_bytes_per_s for ring in rings]),
            over_pcie=np.concatenate([ring.over_pcie for ring in rings]),
        ),
        limit_w=np.array(
            [s.gpu.power_limit_w if s.power_limit_w is None else s.power_limit_w for s in steps]
        ),
        locked_clock_hz=np.array([np.nan if s.sm_clock_hz is None else s.sm_clock_hz for s in steps]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """The rows of one step at its clocks; arrays [op].

    Attributes
    ----------
    costs : Costs
    clock_hz, time_s, energy_j : ndarray [op]
        SM clock while a row runs; all its calls. [Hz], [s], [J]
    """

    costs: Costs
    clock_hz: Floats
    time_s: Floats
    energy_j: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """What steps take; arrays [step] unless they say otherwise.

    Attributes
    ----------
    step_time_s, kernel_time_s, dispatch_time_s, exposed_time_s : ndarray
        The step; its kernels; the host alone; communication that shows. [s]
    energy_j : ndarray
        Of one GPU. [J]
    sm_clock_hz : ndarray
        Mean over kernel time. [Hz]
    bound_time_s : ndarray [step, bound]
        Kernel time by what binds it, in the order of `ROW_BOUNDS`. [s]
    exceeds_limit : ndarray of bool
        Whether the limit is below what the lowest clock draws.
    operating : Operating
        The kernels and their clocks.
    """

    step_time_s: Floats
    kernel_time_s: Floats
    dispatch_time_s: Floats
    exposed_time_s: Floats
    energy_j: Floats
    sm_clock_hz: Floats
    bound_time_s: Floats
    exceeds_limit: Booleans
    operating: "Operating"

    @property
    def mean_power_w(self) -> Floats:
        """Mean power of one GPU. [W] [step]."""
        return self.energy_j / self.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Operating:
    """Kernels at the clocks solved for them; a run is a load under a highest clock.

    Attributes
    ----------
    kernels : Kernels [row of a run]
    rows : ndarray of int [row of a run]
        Row of the loads. [1]
    top_clock_hz : ndarray [row of a run]
        Highest clock of the run. [Hz]
    class_of : ndarray of int [row of a run]
        Class within its run. [1]
    run_of_row : ndarray of int [row of a run]
        Ascending. [1]
    run_of_point, point_of : ndarray of int [point], [step]
        What each operating point runs; where each step operates. [1]
    phases : Phases [point]
    clock_hz : ndarray [class of a point]
        [Hz]
    exceeds_limit : ndarray of bool [point]
    """

    kernels: power.Kernels
    rows: Integers
    top_clock_hz: Floats
    class_of: Integers
    run_of_row: Integers
    run_of_point: Integers
    point_of: Integers
    phases: clock.Phases
    clock_hz: Floats
    exceeds_limit: Booleans

    def operators(self, step: int) -> Operators:
        """Return the rows of one step at its clocks. [op]."""
        point = self.point_of[step]
        rows = np.flatnonzero(self.run_of_row == self.run_of_point[point])
        of_point_hz = self.clock_hz[self.phases.step_of == point]
        clock_hz = of_point_hz[self.class_of[rows]]
        kernels = self.kernels.take(rows)
        time_s = kernels.time_s(clock_hz)
        return Operators(
            costs=kernels.costs,
            clock_hz=clock_hz,
            time_s=time_s,
            energy_j=kernels.energy_j(clock_hz, time_s),
        )


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
    dispatch_s = dispatch_time_s(
        batch.loads.launches.take(batch.load), host or default_host(values), batch.ring.n_gpus
    )
    device = batch.loads.device.take(batch.load)
    top_hz = top_clock_hz(batch, values)
    waiting_w = power.waiting_power_w(top_hz, device, values)
    operating = _operating(batch, values, top_hz, waiting_w, dispatch_s)
    totals = _totals(operating)

    kernels_s = totals.kernel_s[operating.point_of]
    backward_s = totals.backward_s[operating.point_of]
    all_s, last_s = comm.gradient_reduction_s(batch.loads.reduced_bytes[batch.load], batch.ring, values)
    exposed_s = comm.exposed_time_s(all_s, last_s, backward_s, values)
    busy_s = kernels_s + comm.contention_s(all_s, backward_s, values)
    step_s = smooth_maximum(busy_s + exposed_s, dispatch_s, values["host.sharpness"])
    clock_time = totals.clock_time[operating.point_of]
    return StepCosts(
        step_time_s=step_s,
        kernel_time_s=busy_s,
        dispatch_time_s=dispatch_s,
        exposed_time_s=exposed_s,
        energy_j=totals.energy_j[operating.point_of] + (step_s - kernels_s) * waiting_w,
        sm_clock_hz=np.where(kernels_s > 0, clock_time / np.where(kernels_s > 0, kernels_s, 1.0), top_hz),
        bound_time_s=totals.bound_s[operating.point_of],
        exceeds_limit=operating.exceeds_limit[operating.point_of],
        operating=operating,
    )


def top_clock_hz(batch: Batch, values: Values) -> Floats:
    """Return the locked clock where there is one, else the free one. [Hz] [step]."""
    free_hz = power.free_clock_hz(batch.loads.device, values)[batch.load]
    return np.where(np.isnan(batch.locked_clock_hz), free_hz, batch.locked_clock_hz)


def _operating(
    batch: Batch, values: Values, top_hz: Floats, waiting_w: Floats, dispatch_s: Floats
) -> Operating:
    """Return the kernels of all runs, and their clocks at all operating points."""
    loads = batch.loads
    costs = row_costs(loads.rows, values, loads.parts)
    run_step, run_of = _distinct(batch.load, top_hz)
    rows, run_of_row = clock.ragged(np.bincount(loads.load_of, minlength=len(loads)), batch.load[run_step])
    kernels = power.kernels_of(loads.rows, costs, values).take(rows)
    row_top_hz = top_hz[run_step][run_of_row]
    labels = clock.row_labels(loads.rows.kind[rows], loads.rows.family[rows], kernels.costs, row_top_hz)
    by_run = clock.phases_of(
        kernels, labels, run_of_row, loads.rows.backward[rows], len(run_step), row_top_hz
    )
    at_top_s = by_run.phases.by_step(by_run.phases.time_s(top_hz[run_step][by_run.phases.step_of]))
    # a host that kernels outlast at full clock is outlasted at any
    other_s = np.where(dispatch_s <= at_top_s[run_of], 0.0, dispatch_s)
    point_step, point_of = _distinct(run_of, batch.limit_w, other_s)
    phases = by_run.phases.of_steps(run_of[point_step])
    conditions = clock.Conditions(
        top_clock_hz=top_hz[point_step],
        limit_w=batch.limit_w[point_step],
        other_time_s=other_s[point_step],
        waiting_power_w=waiting_w[point_step],
        limit_ratio=values["power.limit_ratio"],
    )
    clock_hz, exceeds = clock.solved_clocks_hz(phases, conditions)
    return Operating(
        kernels=kernels,
        rows=rows,
        top_clock_hz=row_top_hz,
        class_of=by_run.class_of_row,
        run_of_row=run_of_row,
        run_of_point=run_of[point_step],
        point_of=point_of,
        phases=phases,
        clock_hz=clock_hz,
        exceeds_limit=exceeds,
    )


def _distinct(first: Integers, *others: Floats) -> tuple[Integers, Integers]:
    """Return where each distinct combination first occurs, ordered, and which of them each element is."""
    label = first
    for other in others:
        values, number = np.unique(other, return_inverse=True)
        label = label * len(values) + number
    where, inverse = np.unique(label, return_index=True, return_inverse=True)[1:]
    return where, inverse


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    """Sums over the kernels of operating points; arrays [point]."""

    kernel_s: Floats
    backward_s: Floats
    energy_j: Floats
    clock_time: Floats
    bound_s: Floats


def _totals(operating: Operating) -> _Totals:
    """Return the sums over the kernels of each operating point."""
    phases, clock_hz = operating.phases, operating.clock_hz
    part_s = phases.part_time_s(clock_hz)
    class_s = phases.by_class(part_s)
    point_of_part = phases.step_of[phases.class_of]
    bounds = point_of_part * len(ROW_BOUNDS) + bound_number(phases.costs, clock_hz[phases.class_of])
    n_points = phases.n_steps
    return _Totals(
        kernel_s=phases.by_step(class_s),
        backward_s=clock.sums(part_s * phases.backward, point_of_part, n_points),
        energy_j=phases.by_step(phases.energies.energy_j(clock_hz, class_s)),
        clock_time=phases.by_step(class_s * clock_hz),
        bound_s=clock.sums(part_s, bounds, n_points * len(ROW_BOUNDS)).reshape(n_points, len(ROW_BOUNDS)),
    )

"""Predict one training step: time, clock and power, energy, memory.

In: a `Workload`, a `Gpu`, parameters, the conditions. Out: `StepPrediction`. Reads like the equations; each
line's formula stands in the module it calls. Knows no model names, no files, no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from joulecast.hardware.spec import Gpu
from joulecast.model.batch import Batch, Step, StepCosts, batch_of, step_costs
from joulecast.model.host import Host
from joulecast.model.intervals import step_features
from joulecast.model.memory import MemoryUse, memory_of
from joulecast.model.parameters import ParameterSet
from joulecast.model.rows import Booleans, Integers
from joulecast.model.time import ROW_BOUNDS, row_bound
from joulecast.workload.table import Dtype, Floats, Workload

BOUNDS: Final = (*ROW_BOUNDS, "host", "communication")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """One step on one GPU of the job, and what it costs on all of them.

    Attributes
    ----------
    step_time_s : float
        [s]
    mean_power_w : float
        Per GPU. [W]
    energy_per_step_j : float
        All GPUs. [J]
    sm_clock_hz : float
        Mean over kernel time. [Hz]
    allocated_bytes, reserved_bytes, process_bytes : float
        Peak per GPU. [bytes]
    bound_by : str
        One of `BOUNDS`.
    time_share_by_bound : mapping of str to float
        Share of the step by what binds it; sums to 1. [1]
    kernel_time_s, dispatch_time_s, communication_time_s : float
        Kernels alone, the host alone, communication that shows. [s]
    op_time_s, op_energy_j : ndarray [op]
        All calls of each row. [s], [J]
    op_bound : ndarray of str [op]
        ``compute``, ``memory`` or ``launch``.
    features : mapping of str to float
        `intervals.STRUCTURE` of the step. [1]
    flags : tuple of str
        What the reader must know.
    """

    step_time_s: float
    mean_power_w: float
    energy_per_step_j: float
    sm_clock_hz: float
    allocated_bytes: float
    reserved_bytes: float
    process_bytes: float
    bound_by: str
    time_share_by_bound: Mapping[str, float]
    kernel_time_s: float
    dispatch_time_s: float
    communication_time_s: float
    op_time_s: Floats
    op_energy_j: Floats
    op_bound: npt.NDArray[np.str_]
    features: Mapping[str, float]
    flags: tuple[str, ...]


def predict_step(
    workload: Workload,
    gpu: Gpu,
    parameters: ParameterSet,
    *,
    n_gpus: int = 1,
    data_parallel: bool | None = None,
    power_limit_w: float | None = None,
    sm_clock_hz: float | None = None,
    host: Host | None = None,
) -> StepPrediction:
    """Return time, power, energy and memory of one step.

    Parameters
    ----------
    workload : Workload
        One step of one GPU.
    gpu : Gpu
    parameters : ParameterSet
    n_gpus : int
        GPUs in data parallel. [1]
    data_parallel : bool or None
        Whether the module is wrapped for data parallelism; None where there are several GPUs.
    power_limit_w : float or None
        Limit of the board; None for its default. [W]
    sm_clock_hz : float or None
        Locked clock; None for a free one. [Hz]
    host : Host or None
        What dispatches; None for the host of the parameters.
    """
    batch = batch_of(
        [
            Step(
                workload=workload,
                gpu=gpu,
                n_gpus=n_gpus,
                power_limit_w=power_limit_w,
                sm_clock_hz=sm_clock_hz,
            )
        ]
    )
    wrapped = np.array([n_gpus > 1 if data_parallel is None else data_parallel])
    return one_step(predict_steps(batch, parameters, wrapped, host), batch, workload, gpu, parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPredictions:
    """Many steps and what they cost; arrays [step].

    Attributes
    ----------
    costs : StepCosts
    energy_per_step_j : ndarray
        All GPUs. [J]
    memory : MemoryUse
        Peak per GPU. [bytes]
    time_shares : ndarray [step, bound]
        Share of the step by what binds it, in the order of `BOUNDS`; sums to 1. [1]
    bound : ndarray of int
        What takes the largest share: an index into `BOUNDS`.
    features : mapping of str to ndarray
        Of structure, that intervals follow; see `intervals.STRUCTURE`. [1]
    """

    costs: StepCosts
    energy_per_step_j: Floats
    memory: MemoryUse
    time_shares: Floats
    bound: Integers
    features: Mapping[str, Floats]


def predict_steps(
    batch: Batch, parameters: ParameterSet, data_parallel: Booleans, host: Host | None = None
) -> StepPredictions:
    """Return time, power, energy and memory of many steps.

    Parameters
    ----------
    batch : Batch
    parameters : ParameterSet
    data_parallel : ndarray of bool [step]
        Whether the module is wrapped for data parallelism.
    host : Host or None
        What dispatches; None for the host of the parameters.
    """
    costs = step_costs(batch, parameters.values, host)
    kept_bytes, gradient_bytes = (
        of_loads[batch.load] for of_loads in (batch.loads.kept_bytes, batch.loads.gradient_bytes)
    )
    shares = _time_shares(costs)
    return StepPredictions(
        costs=costs,
        energy_per_step_j=costs.energy_j * batch.ring.n_gpus,
        memory=memory_of(kept_bytes, gradient_bytes, data_parallel, parameters.values),
        time_shares=shares,
        bound=np.argmax(shares, axis=-1),
        features=step_features(batch, costs, parameters.values),
    )


def scaled_steps(
    found: StepPredictions, time_ratio: Floats | float, power_ratio: Floats | float
) -> StepPredictions:
    """Return steps with factors on time and power, as a user's own calibration may have. [1] [step]."""
    if bool(np.all(np.equal(time_ratio, 1.0) & np.equal(power_ratio, 1.0))):
        return found
    costs = found.costs
    bound_ratio = np.asarray(time_ratio)[..., np.newaxis]
    return replace(
        found,
        energy_per_step_j=found.energy_per_step_j * time_ratio * power_ratio,
        costs=replace(
            costs,
            step_time_s=costs.step_time_s * time_ratio,
            kernel_time_s=costs.kernel_time_s * time_ratio,
            dispatch_time_s=costs.dispatch_time_s * time_ratio,
            exposed_time_s=costs.exposed_time_s * time_ratio,
            energy_j=costs.energy_j * time_ratio * power_ratio,
            bound_time_s=costs.bound_time_s * bound_ratio,
        ),
    )


def one_step(
    found: StepPredictions, batch: Batch, workload: Workload, gpu: Gpu, parameters: ParameterSet
) -> StepPrediction:
    """Return the only step of a batch, with its operators.

    Parameters
    ----------
    found : StepPredictions
    batch : Batch
    workload : Workload
    gpu : Gpu
    parameters : ParameterSet
    """
    rows = found.costs.operating.operators(0)
    locked_hz = float(batch.locked_clock_hz[0])
    flags = step_flags(
        workload,
        gpu,
        parameters,
        limit_w=float(batch.limit_w[0]),
        sm_clock_hz=None if np.isnan(locked_hz) else locked_hz,
        exceeds_limit=bool(found.costs.exceeds_limit[0]),
    )
    return StepPrediction(
        step_time_s=float(found.costs.step_time_s[0]),
        mean_power_w=float(found.costs.mean_power_w[0]),
        energy_per_step_j=float(found.energy_per_step_j[0]),
        sm_clock_hz=float(found.costs.sm_clock_hz[0]),
        allocated_bytes=float(found.memory.allocated_bytes[0]),
        reserved_bytes=float(found.memory.reserved_bytes[0]),
        process_bytes=float(found.memory.process_bytes[0]),
        bound_by=BOUNDS[int(found.bound[0])],
        time_share_by_bound=dict(zip(BOUNDS, found.time_shares[0].tolist(), strict=True)),
        kernel_time_s=float(found.costs.kernel_time_s[0]),
        dispatch_time_s=float(found.costs.dispatch_time_s[0]),
        communication_time_s=float(found.costs.exposed_time_s[0]),
        op_time_s=rows.time_s,
        op_energy_j=rows.energy_j,
        op_bound=row_bound(rows.costs, rows.clock_hz),
        features={name: float(value[0]) for name, value in found.features.items()},
        flags=flags,
    )


def _time_shares(costs: StepCosts) -> Floats:
    """Return the share of each step by what binds it; sums to 1. [1] [step, bound]."""
    by_rows_s = np.maximum(np.sum(costs.bound_time_s, axis=-1), 1e-300)
    by_rows = costs.bound_time_s * (costs.kernel_time_s / by_rows_s)[:, np.newaxis]
    host_s = np.maximum(costs.step_time_s - costs.kernel_time_s - costs.exposed_time_s, 0.0)
    times_s = np.column_stack([by_rows, host_s, costs.exposed_time_s])
    return times_s / costs.step_time_s[:, np.newaxis]


def step_flags(
    workload: Workload,
    gpu: Gpu,
    parameters: ParameterSet,
    *,
    limit_w: float,
    sm_clock_hz: float | None,
    exceeds_limit: bool,
) -> tuple[str, ...]:
    """Return what the reader of the prediction must know.

    Parameters
    ----------
    workload : Workload
    gpu : Gpu
    parameters : ParameterSet
    limit_w : float
        Power limit in force. [W]
    sm_clock_hz : float or None
        Locked clock; None for a free one. [Hz]
    exceeds_limit : bool
        Whether the limit is below what the lowest clock draws.
    """
    table = workload.table
    flags = []
    if exceeds_limit:
        flags.append(f"the power limit of {limit_w:g} W is below what the lowest clock draws: it is exceeded")
    if not gpu.min_power_limit_w <= limit_w <= gpu.max_power_limit_w:
        flags.append(
            f"power limit outside {gpu.min_power_limit_w:g}-{gpu.max_power_limit_w:g} W of {gpu.slug}"
        )
    if sm_clock_hz is not None and not gpu.min_clock_hz <= sm_clock_hz <= gpu.max_clock_hz:
        flags.append(f"clock outside the range of {gpu.slug}")
    for dtype in (Dtype.BF16, Dtype.FP16):
        used = bool(np.any((table.dtype == dtype) & (table.flop > 0)))
        if used and not gpu.flop_per_clock_per_sm.get(f"{dtype}_tensor", 0.0):
            flags.append(f"{gpu.slug} has no {dtype} tensor units: products run on its vector units")
    if workload.precision == "tf32" and not gpu.flop_per_clock_per_sm.get("tf32_tensor", 0.0):
        flags.append(f"{gpu.slug} has no TF32: FP32 is used")
    if parameters.covered_gpus and gpu.slug not in parameters.covered_gpus:
        flags.append(f"{gpu.slug} is outside the calibration")
    if parameters.covered_precisions and workload.precision not in parameters.covered_precisions:
        flags.append(f"precision {workload.precision} is outside the calibration")
    return tuple(flags)

"""Predict one training step: time, clock and power, energy, memory.

In: a `Workload`, a `Gpu`, parameters, the conditions. Out: `StepPrediction`. Reads like the equations; each
line's formula stands in the module it calls. Knows no model names, no files, no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from joulecast.hardware.spec import Gpu
from joulecast.model.batch import Step, batch_of, step_costs, top_clock_hz
from joulecast.model.host import Host
from joulecast.model.intervals import step_features
from joulecast.model.memory import memory_use
from joulecast.model.parameters import ParameterSet
from joulecast.model.power import OperatingPoint
from joulecast.model.time import row_bound
from joulecast.workload.table import Dtype, Floats, Workload

BOUNDS: Final = ("compute", "memory", "launch", "host", "communication")


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
    values = parameters.values
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
    costs = step_costs(batch, values, host)
    step_s, energy_j = float(costs.step_time_s[0]), float(costs.energy_j[0])
    kernel_s, exposed_s = float(costs.kernel_time_s[0]), float(costs.exposed_time_s[0])
    point = costs.point
    use = memory_use(workload, values, data_parallel=n_gpus > 1 if data_parallel is None else data_parallel)
    op_bound = row_bound(costs.costs, point.clock_hz)
    shares = _time_shares(op_bound, point.time_s, kernel_s, exposed_s, step_s)
    return StepPrediction(
        step_time_s=step_s,
        mean_power_w=energy_j / step_s,
        energy_per_step_j=energy_j * n_gpus,
        sm_clock_hz=_mean_clock_hz(point, float(top_clock_hz(batch, values)[0])),
        allocated_bytes=use.allocated_bytes,
        reserved_bytes=use.reserved_bytes,
        process_bytes=use.process_bytes,
        bound_by=max(BOUNDS, key=lambda bound: shares[bound]),
        time_share_by_bound=shares,
        kernel_time_s=kernel_s,
        dispatch_time_s=float(costs.dispatch_time_s[0]),
        communication_time_s=exposed_s,
        op_time_s=point.time_s,
        op_energy_j=point.energy_j,
        op_bound=op_bound,
        features={name: float(value[0]) for name, value in step_features(batch, costs, values).items()},
        flags=_flags(workload, gpu, parameters, point, float(batch.limit_w[0]), sm_clock_hz),
    )


def _mean_clock_hz(point: OperatingPoint, top_hz: float) -> float:
    """Return the clock averaged over kernel time. [Hz]."""
    total_s = float(np.sum(point.time_s))
    return float(np.sum(point.clock_hz * point.time_s)) / total_s if total_s > 0 else top_hz


def _time_shares(
    op_bound: npt.NDArray[np.str_], op_time_s: Floats, kernel_s: float, exposed_s: float, step_s: float
) -> dict[str, float]:
    """Return the share of the step by what binds it; sums to 1. [1]."""
    by_rows = {bound: float(np.sum(op_time_s[op_bound == bound])) for bound in BOUNDS[:3]}
    scale = kernel_s / max(sum(by_rows.values()), 1e-300)
    times_s = {bound: time_s * scale for bound, time_s in by_rows.items()}
    times_s["communication"] = exposed_s
    times_s["host"] = max(step_s - kernel_s - exposed_s, 0.0)
    return {bound: times_s[bound] / step_s for bound in BOUNDS}


def _flags(
    workload: Workload,
    gpu: Gpu,
    parameters: ParameterSet,
    point: OperatingPoint,
    limit_w: float,
    sm_clock_hz: float | None,
) -> tuple[str, ...]:
    """Return what the reader of the prediction must know."""
    table = workload.table
    flags = []
    if bool(np.any(point.exceeds_limit)):
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

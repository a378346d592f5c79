"""Time the host needs to dispatch a step, kernel by kernel, as eager PyTorch does.

In: kernels by phase, a `Host`. Out: seconds. Knows no GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from joulecast.workload.table import Floats, OpKind, OpTable, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What one process needs to dispatch.

    Attributes
    ----------
    forward_kernel_s, backward_kernel_s, optimizer_kernel_s : float
        Per kernel launched, by phase. [s]
    copy_kernel_s : float
        Per copy or cast of the forward and backward pass: autocast's come without a module. [s]
    parameter_tensor_s : float
        Optimizer bookkeeping per trainable tensor. [s]
    step_s : float
        Per step, whatever it holds. [s]
    data_parallel_ratio : float
        Dispatch time with data parallelism over without. [1]
    origin : str
        ``guess``, ``calibrated`` or ``measured``.
    """

    forward_kernel_s: float
    backward_kernel_s: float
    optimizer_kernel_s: float
    copy_kernel_s: float
    parameter_tensor_s: float
    step_s: float
    data_parallel_ratio: float
    origin: str = "guess"


def default_host(values: Mapping[str, float], origin: str = "guess") -> Host:
    """Return the host of a parameter set."""
    return Host(
        forward_kernel_s=values["host.forward_kernel_s"],
        backward_kernel_s=values["host.backward_kernel_s"],
        optimizer_kernel_s=values["host.optimizer_kernel_s"],
        copy_kernel_s=values["host.copy_kernel_s"],
        parameter_tensor_s=values["host.parameter_tensor_s"],
        step_s=values["host.step_s"],
        data_parallel_ratio=values["host.data_parallel_ratio"],
        origin=origin,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """What the host has to do in a step; floats, or arrays [step].

    Attributes
    ----------
    forward, backward, optimizer : float or ndarray
        Kernels by phase, copies apart; recomputation counts as forward. [1]
    copies : float or ndarray
        Copies and casts of the forward and backward pass. [1]
    tensors : float or ndarray
        Trainable tensors the optimizer walks over; 0 without an optimizer. [1]
    """

    forward: Floats | float
    backward: Floats | float
    optimizer: Floats | float
    copies: Floats | float
    tensors: Floats | float

    def take(self, chosen: npt.NDArray[np.int64]) -> "Launches":
        """Return the selected steps of arrays [step]."""
        return Launches(**{f.name: np.asarray(getattr(self, f.name))[chosen] for f in fields(self)})


def launches_of(table: OpTable, n_tensors: float = 0.0) -> Launches:
    """Return the launches of one step.

    Parameters
    ----------
    table : OpTable [op]
    n_tensors : float
        Trainable tensors the optimizer walks over. [1]
    """
    launched = table.n_calls * table.n_kernels
    optimizer = (table.phase == Phase.OPTIMIZER) | (table.kind == OpKind.OPTIMIZER)
    copy = (table.kind == OpKind.COPY) & ~optimizer
    forward = ((table.phase == Phase.FORWARD) | (table.phase == Phase.RECOMPUTE)) & ~(optimizer | copy)
    return Launches(
        forward=float(np.sum(launched[forward])),
        backward=float(np.sum(launched[~(forward | optimizer | copy)])),
        optimizer=float(np.sum(launched[optimizer])),
        copies=float(np.sum(launched[copy])),
        tensors=n_tensors,
    )


def dispatch_time_s(launches: Launches, host: Host, n_gpus: Floats | float = 1.0) -> Floats:
    """Return the time the host needs to dispatch one step. [s] [step].

    Parameters
    ----------
    launches : Launches
    host : Host
    n_gpus : float or ndarray [step]
        GPUs of the job; above 1 data parallelism adds its own work. [1]
    """
    time_s = (
        host.step_s
        + launches.forward * host.forward_kernel_s
        + launches.backward * host.backward_kernel_s
        + launches.optimizer * host.optimizer_kernel_s
        + launches.copies * host.copy_kernel_s
        + launches.tensors * host.parameter_tensor_s
    )
    return np.asarray(time_s) * np.where(np.asarray(n_gpus) > 1, host.data_parallel_ratio, 1.0)

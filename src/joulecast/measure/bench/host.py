"""Launches and the host: records of one number each. Needs torch."""

from collections.abc import Callable

import torch
from torch import nn

from joulecast.measure.bench.kernels import tiny_chain, tiny_tensors
from joulecast.measure.bench.timing import Timer
from joulecast.model.host import Launches, launches_of
from joulecast.scenario import Scenario, own_module, settle_step, workload_of
from joulecast.workload.operator_table import OPTIMIZER_STREAMS
from joulecast.workload.optimizers import make_optimizer
from joulecast.workload.traffic import multi_tensor_launches

_N_COPIES = 64
_FEW, _MANY = 16, 256


def host_latency_s(op: str, device: torch.device, timer: Timer) -> float:
    """Return what one launch, kernel or tensor takes. [s]

    Parameters
    ----------
    op : str
        A key of `HOST_PARAMETERS`.
    device : torch.device
    timer : Timer
    """
    measured: dict[str, Callable[[torch.device, Timer], float]] = {
        "launch": _launch_s,
        "forward-kernel": _forward_s,
        "backward-kernel": _backward_s,
        "copy-kernel": _copy_s,
        "optimizer-kernel": lambda d, t: _optimizer_s(d, t)[0],
        "parameter-tensor": lambda d, t: _optimizer_s(d, t)[1],
    }
    return max(measured[op](device, timer), 1e-9)


def _launch_s(device: torch.device, timer: Timer) -> float:
    """Return the least time of a kernel; on a GPU replayed from a graph, which leaves the host out. [s]"""
    x = torch.zeros(1, device=device)
    if device.type != "cuda":
        return timer.time(lambda: x.add_(1)).latency_s
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_N_COPIES):
            x.add_(1)
    return timer.time(graph.replay).latency_s / _N_COPIES


def _chain_launches() -> Launches:
    """Return the launches of the tiny network's step, as a prediction counts them."""
    chain, x = tiny_chain(torch.device("cpu"))
    own, batch_size = own_module(chain, x, lambda y, _: y.sum())
    scenario = Scenario(model=own.name, gpu="cpu", mode="train-no-optimizer", batch_size=batch_size)
    return launches_of(workload_of(settle_step(scenario, own), own=own).table)


def _forward_s(device: torch.device, timer: Timer) -> float:
    chain, x = tiny_chain(device)
    return timer.host_time(lambda: chain(x)).latency_s / float(_chain_launches().forward)


def _backward_s(device: torch.device, timer: Timer) -> float:
    chain, x = tiny_chain(device)
    loss = chain(x).sum()
    inputs = list(chain.parameters())
    launches = _chain_launches()
    taken = timer.host_time(lambda: torch.autograd.grad(loss, inputs, retain_graph=True))
    return taken.latency_s / float(launches.backward)


def _copy_s(device: torch.device, timer: Timer) -> float:
    x = torch.zeros(8, device=device)
    return timer.host_time(lambda: [x.to(torch.bfloat16) for _ in range(_N_COPIES)]).latency_s / _N_COPIES


def _optimizer_s(device: torch.device, timer: Timer) -> tuple[float, float]:
    """Return the host's time for one multi-tensor kernel and for one tensor of SGD with momentum. [s]

    Notes
    -----
    Steps over few and many tensors differ in both; ``time = kernels a + tensors b`` for the two numbers of
    tensors, the kernels as `traffic.multi_tensor_launches` counts them.
    """
    times, kernels = [], []
    n_calls = OPTIMIZER_STREAMS["sgd-momentum"][0]
    for n_tensors in (_FEW, _MANY):
        tensors: list[nn.Parameter] = list(tiny_tensors(n_tensors, device))
        step = make_optimizer("sgd-momentum", tensors).step
        times.append(timer.host_time(step).latency_s)
        kernels.append(n_calls * multi_tensor_launches([8.0] * n_tensors, 2))
    determinant = kernels[0] * _MANY - kernels[1] * _FEW
    per_kernel_s = (times[0] * _MANY - times[1] * _FEW) / determinant
    per_tensor_s = (kernels[0] * times[1] - kernels[1] * times[0]) / determinant
    return max(per_kernel_s, 0.0), max(per_tensor_s, 0.0)

"""One optimizer step on fake parameters -> `OptimizerTrace`.

The optimizer is PyTorch's own, in its foreach form (what CUDA runs by default) or fused where the name
says so. It steps twice: the first step makes its state, the second is recorded. An optimizer that treats
every element alike is recorded over one small parameter and scaled to all: the same calls over longer
lists. One that looks at shapes (Adafactor) is recorded over them all.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from joulecast.workload.calls import Work, table_of
from joulecast.workload.policies import checked_optimizer
from joulecast.workload.recorder import Recorder, Recording
from joulecast.workload.table import (
    OpKind,
    OptimizerTrace,
    Phase,
    concatenate,
)
from joulecast.workload.traffic import multi_tensor_launches

_CONSTRUCTORS: Final[dict[str, Callable[..., torch.optim.Optimizer]]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-4, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, foreach=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, foreach=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, foreach=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, foreach=True),
    "fused-adam": lambda p: torch.optim.Adam(p, fused=True),
    "fused-adamw": lambda p: torch.optim.AdamW(p, fused=True),
}


def make_optimizer(name: str, parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    """Return the optimizer that a name means, over these parameters.

    Raises
    ------
    UsageError
        If it is unknown or refused.
    """
    return _CONSTRUCTORS[checked_optimizer(name)](parameters)


#: Optimizers whose state depends on the shapes of parameters.
SHAPE_DEPENDENT: Final = frozenset({"adafactor"})

_SAMPLE_ELEMENTS: Final = 2.0


def trace_optimizer(
    shapes: Sequence[tuple[int, ...]],
    name: str,
    dtype: torch.dtype,
    model_dtype: torch.dtype | None = None,
) -> OptimizerTrace:
    """Return one step of an optimizer over parameters of these shapes.

    Parameters
    ----------
    shapes : sequence of tuple
        Shapes of the trainable parameters.
    name : str
        One of `policies.OPTIMIZERS`.
    dtype : torch.dtype
        Type of what the optimizer updates.
    model_dtype : torch.dtype, optional
        Type of the module whose FP32 masters these are: then gradients are copied in and weights out.

    Raises
    ------
    UsageError
        If the optimizer is unknown or refused.
    """
    checked_optimizer(name)
    if not shapes:
        return OptimizerTrace(table=table_of([], []), state_bytes=0.0, temporary_bytes=0.0)
    if name in SHAPE_DEPENDENT:
        step = _recorded_step(shapes, name, dtype)
    else:
        step = _scaled(_recorded_step([(int(_SAMPLE_ELEMENTS),)], name, dtype), shapes)
    return step if model_dtype is None else _with_masters(step, shapes, model_dtype)


def _recorded_step(shapes: Sequence[tuple[int, ...]], name: str, dtype: torch.dtype) -> OptimizerTrace:
    with FakeTensorMode():
        parameters = [torch.empty(shape, dtype=dtype, requires_grad=True) for shape in shapes]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        optimizer = _CONSTRUCTORS[name](parameters)
        resident = [*parameters, *(p.grad for p in parameters if p.grad is not None)]
        with Recorder({}, resident, Phase.OPTIMIZER, scalar=1.0):
            optimizer.step()
        state = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
        recorder = Recorder({}, [*resident, *state], Phase.OPTIMIZER, scalar=1.0)
        with recorder:
            optimizer.step()
    recording = recorder.recording
    return OptimizerTrace(
        table=table_of(recording.labels, recording.work),
        state_bytes=float(sum(t.numel() * t.element_size() for t in state if t.numel() > 1)),
        temporary_bytes=_peak_bytes(recording),
    )


def _scaled(step: OptimizerTrace, shapes: Sequence[tuple[int, ...]]) -> OptimizerTrace:
    """Return the step over all parameters from the step over the sample."""
    sizes = [float(prod(shape)) for shape in shapes]
    ratio = sum(sizes) / _SAMPLE_ELEMENTS
    table = step.table
    return OptimizerTrace(
        table=replace(
            table,
            m=table.m * ratio,
            n=np.full(len(table), float(len(sizes))),
            read_bytes=table.read_bytes * ratio,
            written_bytes=table.written_bytes * ratio,
            n_kernels=np.array([multi_tensor_launches(sizes, int(k)) for k in table.k], dtype=np.float64),
        ),
        state_bytes=step.state_bytes * ratio,
        temporary_bytes=step.temporary_bytes * ratio,
    )


def _peak_bytes(recording: Recording) -> float:
    sizes = np.array(recording.born_bytes)
    events = np.array(recording.events, dtype=np.int64)
    if not len(events):
        return 0.0
    return float(np.max(np.cumsum(np.where(events >= 0, sizes[events], -sizes[~events]))))


def _with_masters(
    step: OptimizerTrace, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype
) -> OptimizerTrace:
    """Add FP32 masters: gradients copied to FP32 before the step, weights copied back after."""
    sizes = [float(prod(shape)) for shape in shapes]
    total = sum(sizes)
    narrow, wide = dtype.itemsize * total, 4.0 * total
    launches = multi_tensor_launches(sizes, 2)
    copy = Work(kind=OpKind.OPTIMIZER, dtype="fp32", m=total, n=len(sizes), k=2, n_kernels=launches)
    copies = [
        copy._replace(read_bytes=narrow, written_bytes=wide),
        copy._replace(read_bytes=wide, written_bytes=narrow),
    ]
    labels = [(OpKind.OPTIMIZER, Phase.OPTIMIZER, "fp32", "master_copy", "")] * 2
    return OptimizerTrace(
        table=concatenate(step.table, table_of(labels, copies)),
        state_bytes=step.state_bytes + wide,
        temporary_bytes=step.temporary_bytes + wide,
    )

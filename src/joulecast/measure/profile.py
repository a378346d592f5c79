"""Where the time of a real step goes: torch's profiler -> operators by stage. Needs torch.

On a CPU an operator's time is what it and the operators inside it took themselves; on a GPU it is that of the
kernels they launched. An operator belongs to the outermost one whose name says what it computes: a copy
inside a product is the product's. What lies between operators (Python, autograd's bookkeeping) is no
operator's.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch

from joulecast.measure.comparison import OperatorTimes, Stage, StepProfile
from joulecast.units import MICRO
from joulecast.workload.table import OpKind

#: Steps before the profile, and in it.
_N_WARMUP: Final = 2
N_STEPS: Final = 3

#: Operators that decide by themselves which kernels run; what is inside them is theirs.
_COMPOSITES: Final[Mapping[str, OpKind]] = {
    "scaled_dot_product_attention": OpKind.ATTENTION,
    "batch_norm": OpKind.BATCH_NORM,
    "layer_norm": OpKind.LAYER_NORM,
    "group_norm": OpKind.GROUP_NORM,
    "dropout": OpKind.ELEMENTWISE,
    "embedding": OpKind.EMBEDDING,
    "embedding_backward": OpKind.EMBEDDING,
    "max_pool2d": OpKind.POOL,
    "avg_pool2d": OpKind.POOL,
    "adaptive_avg_pool2d": OpKind.POOL,
}
#: Operators that a GPU's step may lack, because it runs others in their place.
_OTHERS: Final[Mapping[str, OpKind]] = {
    "bmm": OpKind.BATCHED_GEMM,
    "baddbmm": OpKind.BATCHED_GEMM,
    "mm": OpKind.GEMM,
    "addmm": OpKind.GEMM,
    "_softmax": OpKind.SOFTMAX,
    "_safe_softmax": OpKind.SOFTMAX,
    "_softmax_backward_data": OpKind.SOFTMAX,
    "sum": OpKind.REDUCTION,
    "mean": OpKind.REDUCTION,
    "copy_": OpKind.COPY,
    "clone": OpKind.COPY,
    "add": OpKind.ELEMENTWISE,
    "mul": OpKind.ELEMENTWISE,
    "div": OpKind.ELEMENTWISE,
}
_BACKWARD: Final = "autograd::engine::evaluate_function"
_OPTIMIZER: Final = "Optimizer.step"
_LOADER: Final = "enumerate(DataLoader)"
_TO_DEVICE: Final = "Memcpy HtoD"


def profile_step(
    run: Callable[[], None],
    finish: Callable[[], None],
    kinds: Mapping[str, str],
    *,
    is_cuda: bool,
    n_steps: int = N_STEPS,
) -> StepProfile:
    """Profile steps and return where the time of one goes, their mean.

    Parameters
    ----------
    run, finish : callable
        Run a step; wait until the device has run all.
    kinds : mapping of str to str
        Operator of the op table -> its kind.
    is_cuda : bool
        Whether kernels' times are what counts.
    n_steps : int
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if is_cuda:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    for _ in range(_N_WARMUP):
        run()
    finish()
    with warnings.catch_warnings():
        # the profiler warns of its own internals
        warnings.simplefilter("ignore")
        with torch.profiler.profile(activities=activities) as profiler:
            for _ in range(n_steps):
                with torch.profiler.record_function(_STEP):
                    run()
                    finish()
        events = list(profiler.events())
    return profile_of_events(events, kinds, is_cuda=is_cuda, n_steps=n_steps)


_STEP: Final = "joulecast step"


def profile_of_events(
    events: list[Any], kinds: Mapping[str, str], *, is_cuda: bool, n_steps: int
) -> StepProfile:
    """Return the profile of steps that the profiler's events tell of.

    Parameters
    ----------
    events : list
        With ``name``, ``cpu_parent``, ``time_range``, ``self_cpu_time_total`` and ``kernels``; times in us.
    kinds, is_cuda, n_steps :
        As in `profile_step`.
    """
    time_s: dict[tuple[str, str, Stage], float] = defaultdict(float)
    calls: dict[tuple[str, str, Stage], set[int]] = defaultdict(set)
    n_kernels: dict[tuple[str, str, Stage], int] = defaultdict(int)
    updates = _updates(events)
    for event in events:
        lineage = tuple(_lineage(event))
        owner = _owner(lineage, kinds)
        spent_us = sum(k.duration for k in event.kernels) if is_cuda else event.self_cpu_time_total
        if owner is None or spent_us <= 0:
            continue
        operator = _base(owner.name)
        stage = _stage(lineage, updates)
        kind = _kind(operator, kinds) or OpKind.OTHER
        if stage is Stage.OPTIMIZER and kind != OpKind.OTHER:
            kind = OpKind.OPTIMIZER
        key = (operator, str(kind), stage)
        time_s[key] += spent_us * MICRO
        calls[key].add(owner.id)
        n_kernels[key] += len(event.kernels)
    return StepProfile(
        operators=tuple(
            OperatorTimes(
                operator=key[0],
                kind=key[1],
                stage=key[2],
                time_s=spent_s / n_steps,
                n_calls=len(calls[key]) / n_steps,
                n_kernels=n_kernels[key] / n_steps,
            )
            for key, spent_s in sorted(time_s.items(), key=lambda item: -item[1])
        ),
        step_time_s=_total_us(events, lambda e: e.name == _STEP) * MICRO / n_steps,
        input_time_s=_total_us(events, lambda e: e.name.startswith((_LOADER, _TO_DEVICE))) * MICRO / n_steps,
        has_kernels=is_cuda,
    )


def _lineage(event: Any) -> Iterator[Any]:
    """Return the event and what it happened inside of, innermost first."""
    while event is not None:
        yield event
        event = event.cpu_parent


def _base(name: str) -> str:
    return name.removeprefix("aten::")


def _kind(operator: str, kinds: Mapping[str, str]) -> str | None:
    for name in (operator, operator.rstrip("_")):
        found = kinds.get(name) or _COMPOSITES.get(name) or _OTHERS.get(name)
        if found:
            return str(found)
    return None


def _owner(lineage: tuple[Any, ...], kinds: Mapping[str, str]) -> Any | None:
    """Return the outermost operator with a kind, else the innermost; None outside of operators."""
    operators = [event for event in lineage if event.name.startswith("aten::")]
    known = [event for event in operators if _kind(_base(event.name), kinds)]
    if known:
        return known[-1]
    return operators[0] if operators and lineage[0] is operators[0] else None


def _updates(events: list[Any]) -> tuple[tuple[float, float], ...]:
    """Return when the update of every step begins and ends: from when its last gradient is there. [us]"""
    ends = [event.time_range.end for event in events if event.name.startswith(_BACKWARD)]
    updates = []
    for step in (event.time_range for event in events if event.name == _STEP):
        inside = [end for end in ends if step.start <= end <= step.end]
        updates.append((max(inside, default=step.end), step.end))
    return tuple(updates)


def _stage(lineage: tuple[Any, ...], updates: tuple[tuple[float, float], ...]) -> Stage:
    if any(event.name.startswith(_BACKWARD) for event in lineage):
        return Stage.BACKWARD
    begun = lineage[0].time_range.start
    if any(event.name.startswith(_OPTIMIZER) for event in lineage) or any(
        start <= begun <= end for start, end in updates
    ):
        return Stage.OPTIMIZER
    return Stage.FORWARD


def _total_us(events: list[Any], chosen: Callable[[Any], bool]) -> float:
    return float(sum(event.time_range.elapsed_us() for event in events if chosen(event)))

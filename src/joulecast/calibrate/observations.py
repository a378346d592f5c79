"""What one's own measurements hold, and the stages that they allow.

In: records of steps, operators, memory. Out: `OwnStage`: candidates for a fit, and the values to fit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from joulecast.calibrate.dataset import StepRecord
from joulecast.calibrate.memory import MemoryRecord, memory_records
from joulecast.calibrate.memory import log_ratios as memory_log_ratios
from joulecast.calibrate.operators import (
    OPERATOR_STAGES,
    OperatorProblem,
    observed_floors_s,
    operator_problem,
    sampled,
)
from joulecast.calibrate.ops import OperatorRecords
from joulecast.calibrate.posterior import Folds, Observations, folds_of
from joulecast.calibrate.runs import Run
from joulecast.calibrate.stages import Values
from joulecast.calibrate.steps import StepProblem, centred, step_problem
from joulecast.errors import RunsError
from joulecast.hardware.catalogue import load_gpu
from joulecast.model.definitions import BANDWIDTH_CLASSES, PARAMETERS, PATH_FAMILIES
from joulecast.workload.table import Floats

#: Most folds of rows held out; fewer configurations than this are each left out once.
MOST_FOLDS: Final = 12

#: Operators of each kind and GPU.
_OPERATORS_PER_GROUP: Final = 100


def parameters_named(part: str, *endings: str) -> tuple[str, ...]:
    """Return the parameters of a part of the model with one of the endings."""
    return tuple(p.name for p in PARAMETERS if p.name.startswith(part) and p.name.endswith(endings))


#: Stages on steps: parameters in the order in which they are tried, scales first; and how far one is trusted
#: to lie from its start, over its value. [1] (guess)
GROUPS: Final[Mapping[str, tuple[float, tuple[str, ...]]]] = {
    "host": (
        0.5,
        (
            *("host.forward_kernel_s", "host.backward_kernel_s", "host.step_s", "host.optimizer_kernel_s"),
            *("host.copy_kernel_s", "host.parameter_tensor_s", "host.data_parallel_ratio"),
        ),
    ),
    "bandwidth": (0.2, tuple(f"bandwidth.{name}" for name in BANDWIDTH_CLASSES)),
    "efficiency": (
        0.2,
        (
            *(f"product.{family}.efficiency" for family in PATH_FAMILIES),
            *(f"convolution.{family}.{p}" for family in PATH_FAMILIES for p in ("forward", "dgrad", "wgrad")),
            *("attention.forward", "attention.backward", "convolution.depthwise_rate"),
            *("convolution.grouped_ratio", "batch_norm.forward_cycles", "batch_norm.backward_cycles"),
            *("launch.kernel_s", "clock.headroom"),
        ),
    ),
    "power": (
        0.3,
        (
            *parameters_named("power.", "j_per_byte", "limit_share", "j_per_flop"),
            *parameters_named("power.", "limit_ratio", "max_ratio", "flat_share"),
        ),
    ),
    "communication": (0.3, ("comm.link_ratio", "comm.pcie_ratio", "comm.overlap", "comm.contention")),
}
#: The parameters of each group that set its scale. One stage fits those of all groups together, before the
#: groups one by one: a processor slower than its sheet must not pass for one with less bandwidth.
SCALES: Final[Mapping[str, tuple[str, ...]]] = {
    "host": ("host.forward_kernel_s",),
    "bandwidth": (
        *parameters_named("bandwidth.elementwise", ""),
        *("bandwidth.convolution", "bandwidth.product"),
        *("bandwidth.batch_norm_backward", "bandwidth.layer_norm_backward", "bandwidth.optimizer"),
    ),
    "efficiency": (
        *(f"product.{family}.efficiency" for family in PATH_FAMILIES),
        *(f"convolution.{family}.forward" for family in PATH_FAMILIES),
        "attention.forward",
    ),
    "power": parameters_named("power.", "j_per_byte", "limit_share", "j_per_flop"),
}

#: What moves in proportion in that stage; the stages after it may part them.
FOLLOWERS: Final[Mapping[str, tuple[str, ...]]] = {
    "host.forward_kernel_s": ("host.backward_kernel_s", "host.copy_kernel_s", "host.optimizer_kernel_s"),
    "attention.forward": ("attention.backward",),
    **{
        f"convolution.{family}.forward": (f"convolution.{family}.dgrad", f"convolution.{family}.wgrad")
        for family in PATH_FAMILIES
    },
}
SCALES_STAGE: Final = "scales"
_SCALE_PRIOR: Final = 0.25

MEMORY_GROUP: Final = (
    0.3,
    ("memory.context_bytes", "memory.data_parallel_bytes", "memory.fragmentation"),
)
OPERATOR_PRIOR: Final = 0.3
STAGE_NAMES: Final = ("operators", *GROUPS, "memory")


# --- what was measured ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepObservations:
    """Times, then powers, of steps, where they were measured.

    Attributes
    ----------
    problem : StepProblem
    fold : ndarray of int [observation]
    """

    problem: StepProblem
    fold: Folds

    def log_ratios(self, values: Values) -> Floats:
        """Return log(measured / predicted). [1] [observation]."""
        time, mean_power = self.problem.log_ratios(values)
        both: Floats = np.concatenate([centred(time, self.problem.group), mean_power])
        return both[np.isfinite(both)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorObservations:
    """Latencies, then powers, of operators.

    Attributes
    ----------
    problem : OperatorProblem
    fold : ndarray of int [observation]
    """

    problem: OperatorProblem
    fold: Folds

    def log_ratios(self, values: Values) -> Floats:
        """Return log(measured / predicted). [1] [observation]."""
        return self.problem.residuals(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryObservations:
    """Peaks of processes.

    Attributes
    ----------
    records : tuple of MemoryRecord
    fold : ndarray of int [observation]
    """

    records: tuple[MemoryRecord, ...]
    fold: Folds

    def log_ratios(self, values: Values) -> Floats:
        """Return log(measured / predicted). [1] [observation]."""
        return memory_log_ratios(self.records, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStage:
    """A stage before it runs.

    Attributes
    ----------
    name : str
    parameters : tuple of str
        Candidates, in the order in which they are tried.
    relative : float
        Prior standard deviation over the value. [1]
    observations : Observations
    followers : mapping of str to tuple of str
        Parameters that move in proportion to a candidate.
    """

    name: str
    parameters: tuple[str, ...]
    relative: float
    observations: Observations
    followers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def configuration_of(record: StepRecord) -> tuple[object, ...]:
    """Return what two steps of the same configuration share."""
    step = record.step
    load = step.workload
    sizes = (
        load.batch_size,
        load.seq_len,
        float(load.table.total(load.table.flop)),
        load.precision,
        load.mode,
    )
    return (record.model, step.gpu.slug, step.n_gpus, step.power_limit_w, step.sm_clock_hz, *sizes)


def planned_stages(
    runs: Sequence[Run],
    records: Sequence[StepRecord],
    operators: OperatorRecords | None,
    only: Sequence[str],
    seed: int,
    widening: float = 1.0,
) -> list[OwnStage]:
    """Return the stages that the measurements allow.

    Parameters
    ----------
    runs : sequence of Run
        For their memory.
    records : sequence of StepRecord
    operators : OperatorRecords or None
    only : sequence of str
        Of `STAGE_NAMES`; empty for all.
    seed : int
        Of the folds.
    widening : float
        Of all priors. [1]

    Raises
    ------
    RunsError
        The measurements hold nothing for any of them.
    """
    wanted = set(only or STAGE_NAMES)
    planned: list[OwnStage] = []
    if operators is not None and "operators" in wanted:
        planned += _operator_stages(operators, seed)
    if records:
        observed = step_observations(records, seed)
        scales = [names for group, names in SCALES.items() if group in wanted]
        if len(scales) > 1:
            planned.append(
                OwnStage(
                    name=SCALES_STAGE,
                    parameters=tuple(name for names in scales for name in names),
                    relative=_SCALE_PRIOR,
                    observations=observed,
                    followers=FOLLOWERS,
                )
            )
        planned += [
            OwnStage(name=name, parameters=names, relative=relative, observations=observed)
            for name, (relative, names) in GROUPS.items()
            if name in wanted
        ]
    memory = memory_records(runs) if "memory" in wanted else []
    if memory:
        relative, names = MEMORY_GROUP
        fold = folds_of(range(len(memory)), seed, MOST_FOLDS)
        planned.append(
            OwnStage(
                name="memory",
                parameters=names,
                relative=relative,
                observations=MemoryObservations(records=tuple(memory), fold=fold),
            )
        )
    if not planned:
        raise RunsError(f"the measurements hold nothing for the stages {', '.join(sorted(wanted))}")
    return [replace(stage, relative=widening * stage.relative) for stage in planned]


def step_folds(records: Sequence[StepRecord], seed: int) -> Folds:
    """Return the fold of each step; runs of one configuration share it. [record]."""
    return folds_of([configuration_of(record) for record in records], seed, MOST_FOLDS)


def step_observations(records: Sequence[StepRecord], seed: int) -> StepObservations:
    """Return the measured values of steps."""
    problem = step_problem(records)
    fold = step_folds(records, seed)
    measured = [np.isfinite(problem.step_time_s), np.isfinite(problem.mean_power_w)]
    return StepObservations(problem=problem, fold=np.concatenate([fold[chosen] for chosen in measured]))


def _operator_stages(operators: OperatorRecords, seed: int) -> list[OwnStage]:
    """Return the stages on single operators."""
    gpus = {slug: load_gpu(slug) for slug in np.unique(operators.gpu).tolist()}
    few = sampled(operators, _OPERATORS_PER_GROUP, seed)
    planned = []
    for name, (kinds, names) in OPERATOR_STAGES.items():
        chosen = few.rows(np.isin(few.table.kind, [str(kind) for kind in kinds]))
        if not len(chosen):
            continue
        problem = operator_problem(chosen, gpus, observed_floors_s(chosen))
        fold = folds_of(range(len(chosen)), seed, MOST_FOLDS)
        fold = np.concatenate([fold, fold[np.isfinite(problem.mean_power_w)]])
        observed = OperatorObservations(problem=problem, fold=fold)
        planned.append(
            OwnStage(
                name=f"operators: {name}",
                parameters=names,
                relative=OPERATOR_PRIOR,
                observations=observed,
            )
        )
    return planned

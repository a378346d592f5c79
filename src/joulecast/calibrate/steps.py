"""Fit the parameters that whole steps determine.

In: `StepRecord` lists. Out: `StageResult`, and the quantiles of what is left. Time and power are fitted
together, since a power limit couples them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from joulecast.calibrate.dataset import StepRecord, fold_label, weighted
from joulecast.calibrate.folds import Fold, belongs, dealt, folds_of, values_without
from joulecast.calibrate.stages import JointProblem, Problem, Stage, StageResult, Values, fit_stage
from joulecast.model.batch import Batch, batch_of, step_costs
from joulecast.model.definitions import PATH_FAMILIES
from joulecast.model.parameters import ResidualQuantiles
from joulecast.model.rows import Integers
from joulecast.workload.table import Floats, Strings


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProblem:
    """Measured steps; arrays [step].

    Attributes
    ----------
    batch : Batch
    step_time_s, mean_power_w : ndarray
        Measured; NaN where not. [s], [W]
    weight : ndarray
        Of each row. [1]
    group : ndarray of int
        Where only ratios of time count: the group within which; -1 elsewhere. [1]
    labels : ndarray of str
        `fold_label` of each step.
    power_weight : float
        Of power beside time; 0 leaves power out. [1]
    time_weight : float
        Of time; 0 leaves time out. [1]
    """

    batch: Batch
    step_time_s: Floats
    mean_power_w: Floats
    weight: Floats
    group: Integers
    labels: Strings
    time_weight: float = 1.0
    power_weight: float = 1.0

    def log_ratios(self, values: Values) -> tuple[Floats, Floats]:
        """Return log(measured / predicted) of time and of power; NaN where not measured. [step]."""
        costs = step_costs(self.batch, values)
        return np.log(self.step_time_s / costs.step_time_s), np.log(self.mean_power_w / costs.mean_power_w)

    def errors(self, values: Values) -> tuple[Floats, Floats]:
        """Return the absolute relative errors of time and power that count, and their weights. [1] [row]."""
        time, mean_power = self.log_ratios(values)
        ratios = np.concatenate([centred(time, self.group), mean_power])
        known = np.isfinite(ratios)
        return np.abs(np.expm1(-ratios[known])), np.concatenate([self.weight, self.weight])[known]

    def residuals(self, values: Values) -> Floats:
        """Return weighted log ratios of what is measured. [row]."""
        time, mean_power = self.log_ratios(values)
        time = centred(time, self.group)
        joined: Floats = np.concatenate(
            [self.time_weight * self.weight * time, self.power_weight * self.weight * mean_power]
        )
        measured: Floats = joined[np.isfinite(joined)]
        return measured

    def groups(self) -> Strings:
        """Return the label of each residual; see `Problem`. [row]."""
        measured = np.isfinite(np.concatenate([self.step_time_s, self.mean_power_w]))
        labels: Strings = np.concatenate([self.labels, self.labels])[measured]
        return labels


def centred(log_ratios: Floats, group: Integers) -> Floats:
    """Return log ratios less the mean of their group; those of group -1 as they are. [1]."""
    grouped = (group >= 0) & np.isfinite(log_ratios)
    if not bool(np.any(grouped)):
        return log_ratios
    total = np.bincount(group[grouped], weights=log_ratios[grouped])
    count = np.maximum(np.bincount(group[grouped]), 1)
    result: Floats = log_ratios.copy()
    result[grouped] -= (total / count)[group[grouped]]
    return result


def step_problem(
    records: Sequence[StepRecord], *, time_weight: float = 1.0, power_weight: float = 1.0
) -> StepProblem:
    """Return the problem of some records."""
    number: dict[str, int] = {}
    return StepProblem(
        batch=batch_of([record.step for record in records]),
        step_time_s=np.array([record.step_time_s for record in records]),
        mean_power_w=np.array([record.mean_power_w for record in records]),
        weight=np.array(weighted(records)),
        group=np.array(
            [number.setdefault(r.relative_to, len(number)) if r.relative_to else -1 for r in records]
        ),
        labels=np.array([fold_label(record) for record in records], dtype=np.str_),
        time_weight=time_weight,
        power_weight=power_weight,
    )


#: Parameters that whole steps determine, in the order in which stages free them: what all models share;
#: what the kernels of some architectures have of their own (grouped and depthwise convolutions, batch norm,
#: pooling, fused attention); what a precision has of its own.
BASE_PARAMETERS: Final = (
    *("host.forward_kernel_s", "host.backward_kernel_s", "host.copy_kernel_s", "host.data_parallel_ratio"),
    *("clock.memory_knee", "clock.headroom"),
    *("bandwidth.l2_gain", "bandwidth.l2_share", "bandwidth.ramp_s"),
    *("bandwidth.copy", "bandwidth.reduction", "bandwidth.convolution"),
    *("bandwidth.softmax_backward", "bandwidth.layer_norm_backward"),
    *(f"convolution.vector.{what}" for what in ("forward", "dgrad", "wgrad", "k_half")),
    *("convolution.pointwise_ratio", "convolution.stride_ratio", "convolution.contiguous_ratio"),
    *("product.dual_issue_ratio", "product.wide_issue_ratio"),
)
CLASS_PARAMETERS: Final = (
    *("convolution.group_half", "convolution.grouped_ratio"),
    *("convolution.group_half_channels_last", "convolution.grouped_ratio_channels_last"),
    *("convolution.depthwise_rate", "convolution.depthwise_fp32_rate"),
    *("bandwidth.depthwise", "bandwidth.depthwise_dgrad", "bandwidth.depthwise_wgrad"),
    *("batch_norm.forward_cycles", "batch_norm.backward_cycles", "batch_norm.channel_half"),
    *("batch_norm.reread_share", "batch_norm.reread_share_channels_last"),
    *("bandwidth.batch_norm_forward", "bandwidth.batch_norm_backward"),
    *("bandwidth.batch_norm_forward_channels_last", "bandwidth.batch_norm_backward_channels_last"),
    *("bandwidth.pool_forward", "bandwidth.pool_backward"),
    *("attention.backward", "attention.efficient_ratio"),
)
PRECISION_PARAMETERS: Final = (
    *(f"convolution.{f}.{p}" for f in ("tf32", "tensor16") for p in ("forward", "dgrad", "wgrad", "k_half")),
    *("convolution.layout_traffic", "convolution.alignment_ratio"),
    *("product.tf32.efficiency", "product.tf32.k_half", "product.tf32.tile_half"),
    *("batch_norm.bf16_ratio", "bandwidth.elementwise_backward_16bit"),
)
STEP_TIME_PARAMETERS: Final = (*BASE_PARAMETERS, *CLASS_PARAMETERS, *PRECISION_PARAMETERS)

STEP_POWER_PARAMETERS: Final = (
    *(f"power.{family}_j_per_flop" for family in PATH_FAMILIES),
    *("power.j_per_byte", "power.gddr_ratio", "power.l2_share"),
    *("power.tsmc12_ratio", "power.samsung8_ratio"),
    *(
        "power.working_limit_share",
        "power.gddr_working_ratio",
        "power.waiting_constant_share",
        "power.limit_ratio",
    ),
    "power.voltage_exponent",
    *(
        f"power.{node}_voltage_{what}"
        for node in ("tsmc12", "samsung8")
        for what in ("max_ratio", "flat_share")
    ),
)


#: Weight of one operator beside one step in the joint stages. [1]
_OPERATOR_WEIGHT: Final = 0.4

#: Pull towards the definitions: with less, cards that lack a fold's data drift from what the others say. [1]
_PRIOR_WEIGHT: Final = 0.25

#: Large folds of each kind that decide whether a stage is kept. [1]
_DECIDING_FOLDS: Final = 12


def fit_steps(
    records: Sequence[StepRecord],
    values: Values,
    *,
    operators: Problem | None = None,
    operator_parameters: tuple[str, ...] = (),
    n_evaluations: int = 10,
    earlier: Sequence[StageResult] = (),
    progress: Callable[[str], None] | None = None,
) -> list[StageResult]:
    """Return the results of the stages on whole steps, each kept only if the held-out error falls.

    Parameters
    ----------
    records : sequence of StepRecord
    values : mapping
        All parameters, where to start.
    operators : Problem or None
        Operators that the stages fit beside the steps.
    operator_parameters : tuple of str
        Parameters that those determine.
    n_evaluations : int
        Most gradients of a stage. [1]
    earlier : sequence of StageResult
        Stages before these: what their folds leave out stays left out.
    progress : callable or None
        Told each stage's line.

    Notes
    -----
    Power; then the refinement: base, architecture class, precision; then all at once. A stage that does not
    lower the error on GPUs and families left out (`held_out_error`) is reported and undone.
    """
    problem: Problem = step_problem(records)
    if operators is not None:
        problem = JointProblem(problems=(problem, operators), weights=(1.0, _OPERATOR_WEIGHT))
    judged = left_out_problems(records, dealt(folds_of(records), _DECIDING_FOLDS))
    stages = {
        "power": STEP_POWER_PARAMETERS,
        "base": BASE_PARAMETERS,
        "architecture class": CLASS_PARAMETERS,
        "precision": PRECISION_PARAMETERS,
        "together": (*STEP_TIME_PARAMETERS, *STEP_POWER_PARAMETERS, *operator_parameters),
    }
    current = dict(values)
    results: list[StageResult] = []
    held_out = held_out_error(judged, current, earlier)
    for name, parameters in stages.items():
        stage = Stage(
            name=name,
            parameters=parameters,
            problem=problem,
            n_evaluations=n_evaluations,
            prior_weight=_PRIOR_WEIGHT,
        )
        found = fit_stage(stage, current)
        tried = {**current, **found.values}
        after = held_out_error(judged, tried, [*earlier, *results, found])
        result = replace(found, held_out_before=held_out, held_out_after=after, kept=not after >= held_out)
        results.append(result)
        if result.kept:
            current, held_out = tried, after
        if progress is not None:
            progress(stage_line(result))
    return results


def stage_line(result: StageResult) -> str:
    """Return what a stage did, in a line."""
    held_out = f"held out {result.held_out_before:.1%} -> {result.held_out_after:.1%}"
    kept = "" if result.kept else ", not kept"
    return f"{result.name}: in sample {result.error_before:.1%} -> {result.error_after:.1%}, {held_out}{kept}"


def left_out_problems(records: Sequence[StepRecord], folds: Sequence[Fold]) -> list[tuple[Fold, StepProblem]]:
    """Return what each fold leaves out, as a problem; folds that leave nothing out are absent."""
    mine = [(fold, [record for record in records if belongs(record, fold)]) for fold in folds]
    return [(fold, step_problem(some)) for fold, some in mine if some]


def held_out_error(
    judged: Sequence[tuple[Fold, StepProblem]], values: Values, results: Sequence[StageResult]
) -> float:
    """Return the mean absolute relative error of time and power on what each fold leaves out. [1].

    Parameters
    ----------
    judged : sequence of (Fold, StepProblem)
        See `left_out_problems`.
    values : mapping
        All parameters as fitted.
    results : sequence of StageResult
        The stages that led there.
    """
    found = [problem.errors(values_without(fold, values, results)) for fold, problem in judged]
    if not sum(len(size) for size, _ in found):
        return math.nan
    sizes, weights = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return float(np.average(sizes, weights=weights))


def thinned(records: Sequence[StepRecord], n_per_source: int, seed: int) -> list[StepRecord]:
    """Return at most ``n_per_source`` measured records of each source, drawn with a seed."""
    random = np.random.default_rng(seed)
    by_source: dict[str, list[StepRecord]] = {}
    for record in records:
        if np.isfinite(record.step_time_s) or np.isfinite(record.mean_power_w):
            by_source.setdefault(record.source, []).append(record)
    return [
        group[i]
        for _, group in sorted(by_source.items())
        for i in sorted(random.permutation(len(group))[:n_per_source].tolist())
    ]


def step_residuals(
    records: Sequence[StepRecord], values: Values, coverage: str
) -> dict[str, ResidualQuantiles]:
    """Return quantiles of log(measured / predicted) of time, power and energy, by ``QUANTITY.COVERAGE``. [1]

    Parameters
    ----------
    records : sequence of StepRecord
    values : mapping
        Parameters.
    coverage : str
        ``seen`` or ``unseen``.
    """
    problem = step_problem(records)
    time, mean_power = problem.log_ratios(values)
    time[problem.group >= 0] = np.nan  # input pipelines are not the model's error
    by_quantity = {"time": time, "power": mean_power, "energy": time + mean_power}
    return {
        f"{quantity}.{coverage}": residual_quantiles(ratios[np.isfinite(ratios)])
        for quantity, ratios in by_quantity.items()
        if int(np.sum(np.isfinite(ratios))) >= FEWEST_RESIDUALS
    }


FEWEST_RESIDUALS: Final = 20


def residual_quantiles(log_ratios: Sequence[float] | Floats) -> ResidualQuantiles:
    """Return the 5, 50 and 95 % quantiles of log(measured / predicted). [1]."""
    low, median, high = np.quantile(np.asarray(log_ratios), [0.05, 0.5, 0.95]).tolist()
    return ResidualQuantiles(low=low, median=median, high=high, n_rows=len(log_ratios))

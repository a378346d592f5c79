"""Fit the parameters that whole steps determine.

In: `StepRecord` lists. Out: `StageResult`, and the quantiles of what is left. Time and power are fitted
together, since a power limit couples them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from joulecast.calibrate.dataset import StepRecord, weighted
from joulecast.calibrate.stages import JointProblem, Problem, Stage, StageResult, Values, fit_stage
from joulecast.model.batch import Batch, batch_of, step_costs
from joulecast.model.definitions import BANDWIDTH_CLASSES, PATH_FAMILIES
from joulecast.model.parameters import ResidualQuantiles
from joulecast.model.rows import Integers
from joulecast.workload.table import Floats


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
    time_weight: float = 1.0
    power_weight: float = 1.0

    def log_ratios(self, values: Values) -> tuple[Floats, Floats]:
        """Return log(measured / predicted) of time and of power; NaN where not measured. [step]."""
        costs = step_costs(self.batch, values)
        return np.log(self.step_time_s / costs.step_time_s), np.log(self.mean_power_w / costs.mean_power_w)

    def residuals(self, values: Values) -> Floats:
        """Return weighted log ratios of what is measured. [row]."""
        time, mean_power = self.log_ratios(values)
        time = centred(time, self.group)
        joined: Floats = np.concatenate(
            [self.time_weight * self.weight * time, self.power_weight * self.weight * mean_power]
        )
        measured: Floats = joined[np.isfinite(joined)]
        return measured


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
        time_weight=time_weight,
        power_weight=power_weight,
    )


#: Classes that single operators determine, or that no source shows apart from what runs beside them.
_HELD_BANDWIDTHS: Final = (
    *("elementwise", "softmax_forward", "layer_norm_forward", "product", "attention"),
    *("optimizer", "other", "group_norm", "embedding", "index"),
)

#: Parameters that whole steps determine, beside those that single operators do.
STEP_TIME_PARAMETERS: Final = (
    *(f"convolution.{f}.{p}" for f in PATH_FAMILIES for p in ("forward", "dgrad", "wgrad", "k_half")),
    *(f"convolution.{p}_ratio" for p in ("pointwise", "stride", "contiguous", "grouped", "alignment")),
    *("convolution.layout_traffic", "convolution.group_half", "convolution.depthwise_rate"),
    *("product.tf32.efficiency", "product.tf32.k_half", "product.dual_issue_ratio"),
    *("batch_norm.forward_cycles", "batch_norm.backward_cycles", "batch_norm.channel_half"),
    *("batch_norm.bf16_ratio", "batch_norm.reread_share", "batch_norm.reread_share_channels_last"),
    *(f"bandwidth.{name}" for name in BANDWIDTH_CLASSES if name not in _HELD_BANDWIDTHS),
    *("bandwidth.l2_gain", "bandwidth.l2_share", "bandwidth.ramp_s"),
    *("attention.backward", "attention.efficient_ratio"),
    *("host.forward_kernel_s", "host.backward_kernel_s", "host.copy_kernel_s", "host.data_parallel_ratio"),
    *("clock.memory_knee", "clock.headroom"),
)

STEP_POWER_PARAMETERS: Final = (
    *(f"power.{family}_j_per_flop" for family in PATH_FAMILIES),
    *("power.j_per_byte", "power.gddr_ratio", "power.l2_share"),
    *("power.tsmc12_ratio", "power.samsung8_ratio"),
    *("power.static_limit_share", "power.leakage_share", "power.limit_ratio"),
    *("power.voltage_max_ratio", "power.voltage_flat_share"),
)


#: Weight of one operator beside one step in the joint stage. [1]
_OPERATOR_WEIGHT: Final = 0.4


def fit_steps(
    records: Sequence[StepRecord],
    values: Values,
    *,
    operators: Problem | None = None,
    operator_parameters: tuple[str, ...] = (),
    n_evaluations: int = 10,
    progress: Callable[[str], None] | None = None,
) -> list[StageResult]:
    """Return the results of the stages on whole steps: power, then time and power together.

    Parameters
    ----------
    records : sequence of StepRecord
    values : mapping
        All parameters, where to start.
    operators : Problem or None
        Operators that both stages fit beside the steps.
    operator_parameters : tuple of str
        Parameters that those determine.
    n_evaluations : int
        Most gradients of a stage. [1]
    progress : callable or None
        Told each stage's line.
    """
    problem: Problem = step_problem(records)
    if operators is not None:
        problem = JointProblem(problems=(problem, operators), weights=(1.0, _OPERATOR_WEIGHT))
    current = dict(values)
    results = []
    both = (*STEP_TIME_PARAMETERS, *STEP_POWER_PARAMETERS, *operator_parameters)
    for name, parameters in (("power", STEP_POWER_PARAMETERS), ("time and power", both)):
        stage = Stage(name=name, parameters=parameters, problem=problem, n_evaluations=n_evaluations)
        result = fit_stage(stage, current)
        current.update(result.values)
        results.append(result)
        if progress is not None:
            progress(f"{name}: mean error {result.error_before:.1%} -> {result.error_after:.1%}")
    return results


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


def gpu_folds(records: Sequence[StepRecord], n_folds: int) -> list[frozenset[str]]:
    """Return the GPUs in groups of about equal records; each group is left out once."""
    counts: dict[str, int] = {}
    for record in records:
        counts[record.step.gpu.slug] = counts.get(record.step.gpu.slug, 0) + 1
    folds: list[set[str]] = [set() for _ in range(n_folds)]
    sizes = [0] * n_folds
    for slug in sorted(counts, key=lambda name: (-counts[name], name)):
        smallest = sizes.index(min(sizes))
        folds[smallest].add(slug)
        sizes[smallest] += counts[slug]
    return [frozenset(fold) for fold in folds if fold]


def residual_quantiles(log_ratios: Sequence[float] | Floats) -> ResidualQuantiles:
    """Return the 5, 50 and 95 % quantiles of log(measured / predicted). [1]."""
    low, median, high = np.quantile(np.asarray(log_ratios), [0.05, 0.5, 0.95]).tolist()
    return ResidualQuantiles(low=low, median=median, high=high, n_rows=len(log_ratios))

"""The paper's own method, in sample: for comparison with its figures, not for prediction.

Base model by differential evolution, then a factor for each model, then one for each precision, all judged on
the rows that they were fitted to. In: a file of runs, the set to start from. Out: `AsPublished`.

References
----------
.. [1] A Framework for Analytical Performance and Energy Prediction of DL Training on GPUs, SBAC-PAD 2025,
   doi 10.1109/sbac-pad66369.2025.00028: abstract.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

import joulecast
from joulecast.calibrate.checks import check_enough, check_measured
from joulecast.calibrate.dataset import StepRecord, records_of_runs
from joulecast.calibrate.explain import plain_stage
from joulecast.calibrate.intervals import conditions_of
from joulecast.calibrate.observations import parameters_named, step_observations
from joulecast.calibrate.posterior import prior_of, slopes
from joulecast.calibrate.runs import load_runs
from joulecast.calibrate.stages import Values, mean_error
from joulecast.calibrate.steps import StepProblem, step_problem
from joulecast.model.coverage import with_coverage
from joulecast.model.definitions import PATH_FAMILIES
from joulecast.model.parameters import ParameterSet, Scalars, StageRecord, definition
from joulecast.workload.table import Floats

AS_PUBLISHED_SCHEMA: Final = "joulecast/as-published/1"

#: What the abstract of [1]_ states: mean relative errors of time, of power, and overall. [1]
PUBLISHED: Final = {"time": 0.0305, "power": 0.0578, "overall": 0.0414}

#: Parameters of the base model: the saturation of products and convolutions, memory, host, power.
BASE_PARAMETERS: Final = (
    *(f"product.{family}.{what}" for family in PATH_FAMILIES for what in ("efficiency", "k_half")),
    *(f"convolution.{f}.{what}" for f in PATH_FAMILIES for what in ("forward", "dgrad", "wgrad", "k_half")),
    *("attention.forward", "attention.backward"),
    *("bandwidth.elementwise", "bandwidth.copy", "bandwidth.convolution", "bandwidth.layer_norm_backward"),
    *("bandwidth.batch_norm_backward", "bandwidth.batch_norm_backward_channels_last"),
    *("host.forward_kernel_s", "host.backward_kernel_s", "host.data_parallel_ratio", "comm.overlap"),
    *parameters_named("power.", "j_per_flop", "j_per_byte", "limit_share", "limit_ratio"),
)

#: Members of the population per parameter, and generations. [1]
_POPULATION: Final = 4
_GENERATIONS: Final = 40

#: A parameter takes part if moving it by a tenth moves some prediction by this. [1]
_LEAST_EFFECT: Final = 1e-3

#: The search spans the start times and over this, within bounds. [1]
_SPAN: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AsPublished:
    """What the paper's method reaches on some runs, in sample.

    Attributes
    ----------
    parameters : ParameterSet
        With `model_scalars` and `precision_scalars`; its intervals are the start's: none is set in sample.
    n_runs : int
        That were used.
    errors : mapping of str to float
        Mean relative error in sample of ``time``, ``power``, ``energy`` and ``overall``: the mean over all
        values of time and power. [1]
    skipped : mapping of str to str
        Run -> why it was not used.
    """

    parameters: ParameterSet
    n_runs: int
    errors: dict[str, float]
    skipped: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``joulecast calibrate --preset as-published --format json``."""
        return {
            "schema": AS_PUBLISHED_SCHEMA,
            "runs": self.n_runs,
            "errors": self.errors,
            "published": PUBLISHED,
            "stages": [plain_stage(stage) for stage in self.parameters.stages],
            "skipped": self.skipped,
        }


def fit_as_published(
    runs_path: str | Path,
    start: ParameterSet,
    *,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> AsPublished:
    """Return a set fitted and judged in sample, as the paper's is.

    Parameters
    ----------
    runs_path : str or Path
    start : ParameterSet
        Its values of what the base model does not fit.
    seed : int
        Of the differential evolution.
    progress : callable or None
        Told a line per stage.

    Raises
    ------
    UsageError, RunsError
        The runs cannot be read, or too few can be used.
    """
    tell = progress or (lambda line: None)
    file = load_runs(runs_path)
    check_measured(file)
    records, skipped = records_of_runs(file.runs)
    check_enough(len({(r.model, r.step.gpu.slug, r.step.workload.batch_size) for r in records}), skipped)
    problem = step_problem(records)
    names = active_parameters(records, start.values, seed)
    found = evolved(problem, start.values, names, seed)
    values = {**start.values, **found}
    stages = [_stage("base model", problem.log_ratios(start.values), problem.log_ratios(values), names)]
    tell(_line(stages[-1]))
    models = [record.model for record in records]
    precisions = [record.step.workload.precision for record in records]
    ratios = problem.log_ratios(values)
    scalars: list[dict[str, Scalars]] = []
    for name, keys in (("model-specific scalars", models), ("precision-specific terms", precisions)):
        factors, after = _scalars(keys, ratios)
        stages.append(_stage(name, ratios, after, tuple(factors)))
        tell(_line(stages[-1]))
        scalars.append(factors)
        ratios = after
    parameters = replace(
        with_coverage(start, [conditions_of(record) for record in records]),
        values=values,
        model_scalars=scalars[0],
        precision_scalars=scalars[1],
        stages=tuple(stages),
        provenance={
            "made by": f"joulecast calibrate --preset as-published, {joulecast.__version__}",
            "data": f"{len(records)} runs, in sample",
            "seed": str(seed),
        },
    )
    return AsPublished(
        parameters=parameters, n_runs=len(records), errors=in_sample_errors(*ratios), skipped=skipped
    )


def in_sample_errors(time: Floats, mean_power: Floats) -> dict[str, float]:
    """Return mean relative errors of log ratios; ``overall`` is over all times and powers. [1]."""
    parts = {"time": time, "power": mean_power, "energy": time + mean_power}
    parts["overall"] = np.concatenate([time, mean_power])
    return {name: mean_error(ratios[np.isfinite(ratios)]) for name, ratios in parts.items()}


def active_parameters(records: Sequence[StepRecord], values: Values, seed: int) -> tuple[str, ...]:
    """Return the base model's parameters that move any prediction of the records."""
    prior = prior_of(BASE_PARAMETERS, values, 0.1)
    effect = np.max(np.abs(slopes(step_observations(records, seed), values, prior)), axis=0)
    return tuple(name for name, size in zip(BASE_PARAMETERS, effect, strict=True) if size > _LEAST_EFFECT)


def evolved(problem: StepProblem, values: Values, names: Sequence[str], seed: int) -> dict[str, float]:
    """Return the parameters that differential evolution finds.

    Notes
    -----
    The objective is the mean of ``|log(measured / predicted)|`` over all times and powers.
    """
    from scipy.optimize import differential_evolution

    start = np.array([values[name] for name in names])
    bounds = [
        (
            max(definition(n).low, v / _SPAN),
            max(min(definition(n).high, v * _SPAN), definition(n).low + 1e-12),
        )
        for n, v in zip(names, start.tolist(), strict=True)
    ]

    def loss(candidate: Floats) -> float:
        ratios = np.concatenate(
            problem.log_ratios({**values, **dict(zip(names, candidate.tolist(), strict=True))})
        )
        return float(np.nanmean(np.abs(ratios)))

    result = differential_evolution(
        loss,
        bounds,
        x0=np.clip(start, *np.array(bounds).T),
        popsize=_POPULATION,
        maxiter=_GENERATIONS,
        seed=seed,
        polish=False,
        tol=1e-3,
    )
    return dict(zip(names, np.asarray(result.x).tolist(), strict=True))


Ratios = tuple[Floats, Floats]


def _scalars(keys: Sequence[str], ratios: Ratios) -> tuple[dict[str, Scalars], Ratios]:
    """Return the median factor of each key, and the ratios after it."""
    labels = np.array(keys)
    time, mean_power = ratios[0].copy(), ratios[1].copy()
    found: dict[str, Scalars] = {}
    for name in np.unique(labels).tolist():
        mine = labels == name
        factors = [_median_factor(part[mine]) for part in (time, mean_power)]
        found[name] = Scalars(time=factors[0], power=factors[1], n_rows=int(np.sum(mine)))
        time[mine] -= np.log(factors[0])
        mean_power[mine] -= np.log(factors[1])
    return found, (time, mean_power)


def _median_factor(log_ratios: Floats) -> float:
    measured = log_ratios[np.isfinite(log_ratios)]
    return float(np.exp(np.median(measured))) if len(measured) else 1.0


def _stage(name: str, before: Ratios, after: Ratios, parameters: Sequence[str]) -> StageRecord:
    return StageRecord(
        name=name,
        parameters=tuple(parameters),
        n_rows=int(sum(np.sum(np.isfinite(part)) for part in before)),
        error_before=in_sample_errors(*before)["overall"],
        error_after=in_sample_errors(*after)["overall"],
        reason="in sample: nothing was held out",
    )


def _line(stage: StageRecord) -> str:
    return f"{stage.name}: error in sample {stage.error_before:.2%} -> {stage.error_after:.2%}"

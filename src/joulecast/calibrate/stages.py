"""One stage of a fit: a few named parameters, robustly, to measurements.

In: a `Problem`, all parameters, the names to fit. Out: `StageResult`. Knows neither operators nor steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from joulecast.model.parameters import definition
from joulecast.workload.table import Floats

Values = Mapping[str, float]

#: Log ratio at which the loss turns from squares to absolute values. [1]
_LOSS_SCALE: Final = 0.15
_RELATIVE_STEP: Final = 3e-3
_BOUND_TOLERANCE: Final = 1e-3
_EDGE: Final = 1e-5


class Problem(Protocol):
    """Measurements that a stage fits."""

    def residuals(self, values: Values) -> Floats:
        """Return weighted log(measured / predicted). [row]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JointProblem:
    """Several problems as one.

    Attributes
    ----------
    problems : tuple of Problem
    weights : tuple of float
        Of the residuals of each. [1]
    """

    problems: tuple[Problem, ...]
    weights: tuple[float, ...]

    def residuals(self, values: Values) -> Floats:
        """Return the weighted residuals of all problems, in order. [row]."""
        parts = [w * p.residuals(values) for p, w in zip(self.problems, self.weights, strict=True)]
        return np.concatenate(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of a fit: these parameters, to these measurements.

    Attributes
    ----------
    name : str
    parameters : tuple of str
    problem : Problem
    n_evaluations : int
        Most evaluations of the gradient. [1]
    prior_weight : float
        Pull towards the value of the definition, per unit of log ratio: what the data do not determine stays.
        [1]
    """

    name: str
    parameters: tuple[str, ...]
    problem: Problem
    n_evaluations: int = 30
    prior_weight: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """What a stage did.

    Attributes
    ----------
    name : str
    values : mapping of str to float
        Fitted values of its parameters.
    error_before, error_after : float
        Mean absolute relative error. [1]
    at_bound : tuple of str
        Parameters that ended at a bound.
    """

    name: str
    values: Mapping[str, float]
    error_before: float
    error_after: float
    at_bound: tuple[str, ...]


def fit_stage(stage: Stage, values: Values) -> StageResult:
    """Return the parameters of a stage that fit best, the others held.

    Parameters
    ----------
    stage : Stage
    values : mapping
        All parameters, where to start.
    """
    from scipy.optimize import least_squares

    names = stage.parameters
    low = np.array([definition(name).low for name in names])
    span = np.array([definition(name).high for name in names]) - low
    expected = (np.array([definition(name).value for name in names]) - low) / span
    start = np.clip((np.array([values[name] for name in names]) - low) / span, _EDGE, 1.0 - _EDGE)

    def named(u: Floats) -> dict[str, float]:
        return dict(zip(names, (low + span * np.clip(u, 0.0, 1.0)).tolist(), strict=True))

    def objective(u: Floats) -> Floats:
        return stage.problem.residuals({**values, **named(u)})

    def with_prior(u: Floats) -> Floats:
        pull = stage.prior_weight * np.log((u + _BOUND_TOLERANCE) / (expected + _BOUND_TOLERANCE))
        return np.concatenate([objective(u), pull])

    # In shares of each parameter's range: scipy's steps are absolute near bounds, and joules are small.
    result = least_squares(
        with_prior,
        start,
        bounds=(np.zeros(len(names)), np.ones(len(names))),
        loss="soft_l1",
        f_scale=_LOSS_SCALE,
        x_scale=np.maximum(start, _BOUND_TOLERANCE),
        diff_step=_RELATIVE_STEP,
        max_nfev=stage.n_evaluations,
    )
    near = (result.x < _BOUND_TOLERANCE) | (result.x > 1.0 - _BOUND_TOLERANCE)
    return StageResult(
        name=stage.name,
        values=named(result.x),
        error_before=mean_error(objective(start)),
        error_after=mean_error(objective(result.x)),
        at_bound=tuple(name for name, hit in zip(names, near, strict=True) if hit),
    )


def mean_error(log_ratios: Floats) -> float:
    """Return the mean absolute relative error of log(measured / predicted). [1]."""
    return float(np.mean(np.abs(np.exp(-log_ratios) - 1.0))) if log_ratios.size else float("nan")

"""One stage of a fit: a few named parameters, robustly, to measurements.

In: a `Problem`, all parameters, the names to fit. Out: `StageResult`. Knows neither operators nor steps.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from joulecast.calibrate.evolution import LOSS_SCALE
from joulecast.model.parameters import definition
from joulecast.model.rows import Booleans
from joulecast.workload.table import Floats, Strings

Values = Mapping[str, float]

_RELATIVE_STEP: Final = 3e-3
_BOUND_TOLERANCE: Final = 1e-3
_EDGE: Final = 1e-5
_MIDDLE: Final = 0.5
_N_THREADS: Final = 2


class Problem(Protocol):
    """Measurements that a stage fits."""

    def residuals(self, values: Values) -> Floats:
        """Return weighted log(measured / predicted). [row]."""
        ...

    def groups(self) -> Strings:
        """Return the fold's label of each residual: what is left out together. [row]."""
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

    def groups(self) -> Strings:
        """Return the labels of all problems, in order. [row]."""
        return np.concatenate([problem.groups() for problem in self.problems])


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
class Linearised:
    """A stage's problem near its solution, robust weights taken in: what leaving rows out starts from.

    Attributes
    ----------
    names : tuple of str
        Parameters.
    shares : ndarray [parameter]
        The solution, in shares of each range. [1]
    residuals : ndarray [row]
        Those of the measurements, then the pulls of the prior. [1]
    slopes : ndarray [row, parameter]
        Derivatives of the residuals. [1]
    groups : ndarray of str [row]
        Fold's label of each residual; empty for the prior's.
    """

    names: tuple[str, ...]
    shares: Floats
    residuals: Floats
    slopes: Floats
    groups: Strings

    def without(self, left_out: Booleans) -> dict[str, float]:
        """Return the parameters that fit the other rows best, to first order.

        Parameters
        ----------
        left_out : ndarray of bool [row]

        Notes
        -----
        One Gauss-Newton step from the common solution over the rows that stay, within the bounds and at
        most by half or double: the one-step jackknife [1]_. A refit for each of some forty GPUs and sixty
        families would take hours.

        References
        ----------
        .. [1] Efron, The Jackknife, the Bootstrap and Other Resampling Plans, SIAM 1982, chapter 3;
           Beirami et al., On optimal generalizability in parametric learning, NeurIPS 2017.
        """
        from scipy.optimize import lsq_linear

        kept = ~left_out
        low = np.maximum(0.5 * self.shares, 0.0) - self.shares - _EDGE
        high = np.minimum(2.0 * self.shares + _BOUND_TOLERANCE, 1.0) - self.shares + _EDGE
        step = lsq_linear(self.slopes[kept], -self.residuals[kept], bounds=(low, high)).x
        return _named(self.names, self.shares + step)


def _named(names: Sequence[str], shares: Floats) -> dict[str, float]:
    """Return parameters from shares of their ranges."""
    found = {}
    for name, share in zip(names, np.clip(shares, 0.0, 1.0).tolist(), strict=True):
        bounds = definition(name)
        found[name] = bounds.low + (bounds.high - bounds.low) * share
    return found


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
    n_rows : int
        Measured values that the stage fitted. [1]
    linearised : Linearised or None
        The problem near the solution.
    held_out_before, held_out_after : float
        Mean absolute relative error of rows left out, group by group; NaN where nobody asked. [1]
    kept : bool
        Whether the fit goes on from its values.
    """

    name: str
    values: Mapping[str, float]
    error_before: float
    error_after: float
    at_bound: tuple[str, ...]
    n_rows: int = 0
    linearised: Linearised | None = None
    held_out_before: float = math.nan
    held_out_after: float = math.nan
    kept: bool = True


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

    def objective(u: Floats) -> Floats:
        return stage.problem.residuals({**values, **_named(names, u)})

    def with_prior(u: Floats) -> Floats:
        pull = stage.prior_weight * np.log((u + _BOUND_TOLERANCE) / (expected + _BOUND_TOLERANCE))
        return np.concatenate([objective(u), pull])

    # In shares of each parameter's range: scipy's steps are absolute near bounds, and joules are small.
    result = least_squares(
        with_prior,
        start,
        jac=lambda u: slopes(with_prior, u),
        bounds=(np.zeros(len(names)), np.ones(len(names))),
        loss="soft_l1",
        f_scale=LOSS_SCALE,
        x_scale=np.maximum(start, _BOUND_TOLERANCE),
        max_nfev=stage.n_evaluations,
    )
    near = (result.x < _BOUND_TOLERANCE) | (result.x > 1.0 - _BOUND_TOLERANCE)
    n_rows = len(result.fun) - len(names)
    return StageResult(
        name=stage.name,
        values=_named(names, result.x),
        error_before=mean_error(objective(start)),
        error_after=mean_error(result.fun[:n_rows]),
        at_bound=tuple(name for name, hit in zip(names, near, strict=True) if hit),
        n_rows=n_rows,
        linearised=Linearised(
            names=names,
            shares=result.x,
            residuals=_as_squares(result.fun),
            slopes=result.jac,
            groups=np.concatenate([stage.problem.groups(), np.full(len(names), "")]),
        ),
    )


def _as_squares(residuals: Floats) -> Floats:
    """Return residuals as scipy scales them to make its robust loss, soft_l1, a sum of squares. [row].

    ``f rho' / sqrt(rho' + 2 rho'' f^2)``, with ``z = (f / scale)^2``, ``rho' = (1 + z)^(-1/2)``: the
    derivatives that scipy returns are scaled by the root alone.
    """
    z = (residuals / LOSS_SCALE) ** 2
    scaled: Floats = residuals * (1.0 + z) ** 0.25
    return scaled


def slopes(residuals: Callable[[Floats], Floats], u: Floats) -> Floats:
    """Return the derivatives of residuals by forward differences, two columns at a time. [row, parameter].

    Parameters
    ----------
    residuals : callable
    u : ndarray [parameter]
        Values in shares of each range. [1]
    """
    here = residuals(u)

    def slope(i: int) -> Floats:
        away = 1.0 if u[i] <= _MIDDLE else -1.0  # from the nearer bound
        step = _RELATIVE_STEP * u[i] * away
        moved = u.copy()
        moved[i] += step
        column: Floats = (residuals(moved) - here) / step
        return column

    with ThreadPoolExecutor(_N_THREADS) as pool:  # numpy leaves the interpreter's lock in long loops
        return np.stack(list(pool.map(slope, range(len(u)))), axis=1)


def mean_error(log_ratios: Floats) -> float:
    """Return the mean absolute relative error of log(measured / predicted). [1]."""
    return float(np.mean(np.abs(np.exp(-log_ratios) - 1.0))) if log_ratios.size else float("nan")

"""A few parameters to a few measurements: what the data determine, and by how much they move.

In: measured values as log ratios of the parameters, where each parameter starts and how far it may be trusted
to lie from there. Out: which parameters the data tell apart, and their most probable values. Knows neither
steps nor operators.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np

from joulecast.calibrate.stages import Values
from joulecast.model.parameters import definition
from joulecast.model.rows import Booleans, Integers
from joulecast.workload.table import Floats

Folds = Integers

#: Spread of log(measured / predicted) that no parameter explains: noise of a run, and what the model lacks.
#: [1] (guess, from repeats in the public runs: 1-5 %)
NOISE: Final = 0.05

#: A parameter is determined if the data narrow what is known of it to this share of before: two that only act
#: together are each known to 1 / sqrt(2) of it at best, and must not pass. [1]
NARROWING: Final = 0.7

#: A parameter starts this far from its lower bound at least, in shares of its range, for its prior. [1]
_LEAST_SHARE: Final = 0.02

_STEP: Final = 0.05  # of the prior's standard deviation, for derivatives
_N_ITERATIONS: Final = 4
_HALVINGS: Final = (1.0, 0.5, 0.25)


class Observations(Protocol):
    """Measured values."""

    @property
    def fold(self) -> Folds:
        """What is held out together. [observation]."""
        ...

    def log_ratios(self, values: Values) -> Floats:
        """Return log(measured / predicted). [1] [observation]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Parameters of a stage, where they start and how far they may go; arrays [parameter].

    Attributes
    ----------
    names : tuple of str
    centre, spread : ndarray
        Start, and the standard deviation around it. [unit of each]
    followers : mapping of str to mapping of str to float
        Parameters that move in proportion to one of `names`, and where they start. [unit of each]
    """

    names: tuple[str, ...]
    centre: Floats
    spread: Floats
    followers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def chosen(self, names: Sequence[str]) -> "Prior":
        """Return the prior of some of the parameters."""
        index = [self.names.index(name) for name in names]
        return replace(self, names=tuple(names), centre=self.centre[index], spread=self.spread[index])

    @property
    def moved(self) -> tuple[str, ...]:
        """Every parameter that moves."""
        return (*self.names, *(f for name in self.names for f in self.followers.get(name, {})))

    def positions(self, values: Values) -> Floats:
        """Return values in standard deviations from the centre. [1] [parameter]."""
        return (np.array([values[name] for name in self.names]) - self.centre) / self.spread

    def values(self, positions: Floats) -> dict[str, float]:
        """Return the values at positions, kept within bounds."""
        raw = self.centre + self.spread * positions
        found = dict(zip(self.names, raw.tolist(), strict=True))
        for name, centre in zip(self.names, self.centre.tolist(), strict=True):
            for follower, start in self.followers.get(name, {}).items():
                found[follower] = start * found[name] / centre
        return {
            name: float(np.clip(value, definition(name).low, definition(name).high))
            for name, value in found.items()
        }

    def limits(self) -> tuple[Floats, Floats]:
        """Return the positions of the bounds. [1] [parameter]."""
        low = np.array([definition(name).low for name in self.names])
        high = np.array([definition(name).high for name in self.names])
        return (low - self.centre) / self.spread, (high - self.centre) / self.spread


def prior_of(
    names: Sequence[str],
    start: Values,
    relative: float,
    followers: Mapping[str, Sequence[str]] | None = None,
) -> Prior:
    """Return a prior around a start.

    Parameters
    ----------
    names : sequence of str
    start : mapping
    followers : mapping of str to sequence of str, optional
        Parameters that move in proportion to one of `names`.
    relative : float
        Standard deviation over the value; of a value near its lower bound, over 2 % of its range. [1]
    """
    centre = np.array([start[name] for name in names])
    span = np.array([definition(name).high - definition(name).low for name in names])
    return Prior(
        names=tuple(names),
        centre=centre,
        spread=relative * np.maximum(np.abs(centre), _LEAST_SHARE * span),
        followers={
            name: {follower: start[follower] for follower in tied} for name, tied in (followers or {}).items()
        },
    )


def slopes(observations: Observations, values: Values, prior: Prior) -> Floats:
    """Return d log ratio / d position. [1] [observation, parameter]."""
    base = observations.log_ratios(values)
    position = prior.positions(values)
    low, high = prior.limits()
    columns = []
    for i in range(len(prior.names)):
        step = _STEP if position[i] + _STEP <= high[i] else -_STEP
        moved = position.copy()
        moved[i] = np.clip(position[i] + step, low[i], high[i])
        difference = observations.log_ratios({**values, **prior.values(moved)}) - base
        columns.append(difference / (moved[i] - position[i]))
    return np.column_stack(columns) if columns else np.empty((len(base), 0))


def determined(slope: Floats, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return which parameters the observations determine, and why the others are left.

    Parameters
    ----------
    slope : ndarray [observation, parameter]
        See `slopes`.
    names : sequence of str

    Notes
    -----
    Those that the data say most of are tried first. With unit priors, the posterior covariance of the chosen
    ones is ``inv(G'G / noise**2 + 1)``. A parameter is chosen if its standard deviation, given those already
    chosen, is below `NARROWING`. One parameter at most per two observations.
    """
    information = slope.T @ slope / NOISE**2  # [parameter, parameter]
    chosen: list[int] = []
    left: dict[str, str] = {}
    for i in np.argsort(-np.round(np.diag(information), 6), kind="stable").tolist():
        name = names[i]
        alone = float(1.0 / np.sqrt(1.0 + information[i, i]))
        index = [*chosen, i]
        covariance = np.linalg.inv(information[np.ix_(index, index)] + np.eye(len(index)))
        spread = float(np.sqrt(covariance[-1, -1]))
        if alone > _UNTOUCHED_SPREAD:
            left[name] = UNTOUCHED
        elif alone >= NARROWING:
            left[name] = f"the data narrow it to {alone:.0%} of what was known before, {NARROWING:.0%} needed"
        elif spread >= NARROWING:
            left[name] = f"cannot be told from {_likest(information, i, chosen, names)}"
        elif len(chosen) >= max(len(slope) // 2, 1):
            left[name] = f"{len(slope)} measured values determine no more than {len(chosen)} parameters"
        else:
            chosen.append(i)
    return [names[i] for i in chosen], left


#: Standard deviation over the prior's from which no value depends on a parameter. [1]
_UNTOUCHED_SPREAD: Final = 0.995

#: Why such a parameter is left.
UNTOUCHED: Final = "no measured value depends on it"


def _likest(information: Floats, i: int, chosen: Sequence[int], names: Sequence[str]) -> str:
    """Return the chosen parameter whose effect is most like that of ``i``."""
    size = np.sqrt(np.diag(information))
    return names[max(chosen, key=lambda j: abs(information[i, j]) / (size[i] * size[j]))]


def most_probable(
    observations: Observations, values: Values, prior: Prior, slope: Floats
) -> dict[str, float]:
    """Return the parameters that explain the observations best, given where they started.

    Parameters
    ----------
    observations : Observations
    values : mapping
        All parameters, where to start.
    prior : Prior
        Of the parameters that move.
    slope : ndarray [observation, parameter]
        At the start; taken anew after each step that helped.

    Notes
    -----
    Gauss-Newton on ``sum(rho(r / noise)) + sum(position**2)`` with the pseudo-Huber ``rho``.
    """
    current = dict(values)
    ratios = observations.log_ratios(current)
    best = _objective(ratios, prior.positions(current))
    everything = np.ones(len(ratios), dtype=np.bool_)
    for _ in range(_N_ITERATIONS):
        step = _newton_step(ratios, slope, prior, prior.positions(current), everything)
        for share in _HALVINGS:
            tried = {**current, **prior.values(prior.positions(current) + share * step)}
            found = observations.log_ratios(tried)
            value = _objective(found, prior.positions(tried))
            if value < best:
                break
        else:
            break
        improved = best - value
        current, ratios, best = tried, found, value
        if improved < _SMALL_GAIN * best:
            break
        slope = slopes(observations, current, prior)
    return {name: current[name] for name in prior.moved}


_SMALL_GAIN: Final = 1e-3


def stepped(
    observations: Observations, values: Values, prior: Prior, slope: Floats, training: Booleans
) -> dict[str, float]:
    """Return the parameters after two steps with given slopes, from the training observations alone."""
    current = dict(values)
    for _ in range(2):
        ratios = observations.log_ratios(current)
        position = prior.positions(current)
        step = _newton_step(ratios, slope, prior, position, training)
        current.update(prior.values(position + step))
    return {name: current[name] for name in prior.moved}


def _newton_step(ratios: Floats, slope: Floats, prior: Prior, position: Floats, training: Booleans) -> Floats:
    """Return the step to the minimum of the linearised objective, within bounds. [1] [parameter]."""
    from scipy.optimize import lsq_linear

    weight = np.sqrt(_robust_weight(ratios)) * training / NOISE  # [observation]
    matrix = np.vstack([slope * weight[:, None], np.eye(len(position))])
    target = -np.concatenate([ratios * weight, position])
    low, high = prior.limits()
    room = 1e-9  # the solver wants low < high
    step: Floats = lsq_linear(matrix, target, bounds=(low - position - room, high - position + room)).x
    return step


#: Log ratio at which a value starts to count less: an outlier, not noise. [1]
_OUTLIER: Final = 0.2


def _robust_weight(ratios: Floats) -> Floats:
    weight: Floats = 1.0 / np.sqrt(1.0 + (ratios / _OUTLIER) ** 2)
    return weight


def _objective(ratios: Floats, position: Floats) -> float:
    rho = 2.0 * (np.sqrt(1.0 + (ratios / _OUTLIER) ** 2) - 1.0) * (_OUTLIER / NOISE) ** 2
    return float(np.sum(rho) + np.sum(position**2))


def folds_of(keys: Sequence[object], seed: int, most: int) -> Folds:
    """Return the fold of each key: equal keys share one; each its own while there are few. [key]."""
    numbers: dict[object, int] = {}
    index = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    shuffled = np.random.default_rng(seed).permutation(len(numbers))
    folds: Folds = (shuffled % min(most, max(len(numbers), 1)))[index]
    return folds


def named_slopes(slope: Floats, names: Sequence[str], chosen: Sequence[str]) -> Floats:
    """Return the columns of some parameters. [observation, parameter]."""
    return slope[:, [list(names).index(name) for name in chosen]]

"""Fit intervals that hold on what a fit has not seen: split conformal, scaled by features.

In: residuals of rows that were held out, with their features. Out: `IntervalModel`, and how wide and how
often right it is by source.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from joulecast.calibrate.dataset import StepRecord
from joulecast.calibrate.stages import Values
from joulecast.calibrate.steps import step_problem
from joulecast.model.batch import step_costs
from joulecast.model.coverage import Conditions, conditions, novelty, outside
from joulecast.model.intervals import (
    FEATURES,
    NOVELTY,
    PARTS,
    QUANTITIES,
    STRUCTURE,
    Features,
    IntervalModel,
    Spread,
    guessed_spread,
    step_features,
)
from joulecast.model.parameters import ParameterSet
from joulecast.model.rows import Booleans
from joulecast.workload.table import Floats, Strings

#: Share of rows that an interval is to hold, and the least share in any one source. [1]
COVERAGE: Final = 0.9
LEAST_SOURCE_COVERAGE: Final = 0.75

#: Fewer rows leave a quantity's interval a guess: the 5 % quantile of 19 rows is their smallest. [1]
FEWEST_ROWS: Final = 20

#: Sources with fewer rows than this are not judged alone. [1]
_FEWEST_OF_SOURCE: Final = 8

#: Parts that the groups are dealt into: scores come from scales fitted to the other parts. [1]
_N_PARTS: Final = 5

#: Pull of a feature's weight towards 0, in rows. [1]
_RIDGE: Final = 10.0

#: Residuals smaller than this count as this: rounding in a source is no skill of the model. [1]
_SMALLEST_RESIDUAL: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRows:
    """Residuals of rows that the fit behind them had not seen; arrays [row].

    Attributes
    ----------
    quantity : ndarray of str
        One of `QUANTITIES`.
    log_ratio : ndarray
        log(measured / predicted). [1]
    features : mapping of str to ndarray
        All of `FEATURES`. [1]
    source : ndarray of str
        Where the row comes from.
    group : ndarray of str
        What is held out together: rows of a group share a part.
    """

    quantity: Strings
    log_ratio: Floats
    features: Features
    source: Strings
    group: Strings

    def __len__(self) -> int:
        return len(self.log_ratio)

    def rows(self, chosen: Booleans) -> "HeldOutRows":
        """Return the chosen rows."""
        return HeldOutRows(
            quantity=self.quantity[chosen],
            log_ratio=self.log_ratio[chosen],
            features={name: column[chosen] for name, column in self.features.items()},
            source=self.source[chosen],
            group=self.group[chosen],
        )

    def of(self, quantity: str) -> "HeldOutRows":
        """Return the rows of a quantity that hold a number."""
        return self.rows((self.quantity == quantity) & np.isfinite(self.log_ratio))


def concatenate_held_out(parts: Sequence[HeldOutRows]) -> HeldOutRows:
    """Return the rows of all parts, in order."""
    return HeldOutRows(
        quantity=np.concatenate([part.quantity for part in parts]),
        log_ratio=np.concatenate([part.log_ratio for part in parts]),
        features={name: np.concatenate([part.features[name] for part in parts]) for name in FEATURES},
        source=np.concatenate([part.source for part in parts]),
        group=np.concatenate([part.group for part in parts]),
    )


def conditions_of(record: StepRecord) -> Conditions:
    """Return the conditions of a measured step."""
    step = record.step
    return conditions(
        step.workload,
        step.gpu,
        n_gpus=step.n_gpus,
        power_limit_w=step.power_limit_w,
        sm_clock_hz=step.sm_clock_hz,
    )


def held_out_steps(records: Sequence[StepRecord], values: Values, seen: ParameterSet) -> HeldOutRows:
    """Return time, power and energy of steps that a fit has not seen; a group is a model.

    Rows are all times, then all powers, then all energies, each in the order of the records.

    Parameters
    ----------
    records : sequence of StepRecord
        Held out.
    values : mapping
        Parameters fitted without them.
    seen : ParameterSet
        That covers what the fit had, see `coverage.with_coverage`; its values play no part.
    """
    problem = step_problem(records)
    costs = step_costs(problem.batch, values)
    marks = [novelty(outside(conditions_of(record), seen)) for record in records]
    features = step_features(problem.batch, costs, values)
    features |= {name: np.array([mark[name] for mark in marks]) for name in NOVELTY}
    time = np.log(problem.step_time_s / costs.step_time_s)
    power = np.log(problem.mean_power_w / costs.mean_power_w)
    labels = {
        "source": np.array([record.source for record in records], dtype=np.str_),
        "group": np.array([record.model for record in records], dtype=np.str_),
    }
    return concatenate_held_out(
        [
            HeldOutRows(quantity=np.full(len(records), name), log_ratio=ratio, features=features, **labels)
            for name, ratio in (("time", time), ("power", power), ("energy", time + power))
        ]
    )


def without_pipelines(rows: HeldOutRows, records: Sequence[StepRecord]) -> HeldOutRows:
    """Return rows of `held_out_steps` with NaN where a time holds more than the step.

    Input pipelines are not the model's error: intervals must not widen for them.
    """
    others = np.array([bool(record.relative_to) for record in records] * 3)
    hidden = others & (rows.quantity != "power")
    return replace(rows, log_ratio=np.where(hidden, np.nan, rows.log_ratio))


def held_out_memory(quantity: str, log_ratios: Floats, sources: Sequence[str]) -> HeldOutRows:
    """Return rows of ``memory`` or ``process``, whose intervals no feature of a step moves.

    Parameters
    ----------
    quantity : str
    log_ratios : ndarray [row]
        log(measured / predicted). [1]
    sources : sequence of str
        A group is a source: another software generation.
    """
    names = np.array(list(sources), dtype=np.str_)
    return HeldOutRows(
        quantity=np.full(len(names), quantity),
        log_ratio=log_ratios,
        features=dict.fromkeys(FEATURES, np.zeros(len(names))),
        source=names,
        group=names,
    )


def fit_intervals(rows: HeldOutRows) -> IntervalModel:
    """Return the intervals that held-out residuals ask for.

    Parameters
    ----------
    rows : HeldOutRows
        Of any quantities; one with fewer rows than `FEWEST_ROWS` keeps its guess, marked by ``n_rows = 0``.

    Notes
    -----
    1. The scale ``sigma(features)`` maximises the likelihood of a Laplace distribution of ``|r|``: it
       minimises ``sum(log sigma + |r| / sigma)``, which is convex in the weights. Sources count as the square
       root of their rows; weights of what is unseen are >= 0.
    2. Scores are ``r / sigma`` with the sigma of the other parts, so that no row sets its own scale [1]_.
    3. The interval takes the conformal 5 and 95 % quantiles of the scores, each side its own, and moves
       out as far as the source that it serves worst needs for 75 %.

    References
    ----------
    .. [1] Lei, G'Sell, Rinaldo, Tibshirani, Wasserman, Distribution-free predictive inference for regression,
       JASA 113 (2018), doi 10.1080/01621459.2017.1307116, section 5.2 (locally weighted conformal).
    """
    spreads: dict[str, Spread] = {}
    for quantity in QUANTITIES:  # parts come before what combines them
        chosen = rows.of(quantity)
        if len(chosen) < FEWEST_ROWS:
            spreads[quantity] = guessed_spread(quantity)
        elif quantity in PARTS:
            sigma = IntervalModel(spreads=spreads).scale(quantity, chosen.features)
            spreads[quantity] = _spread(0.0, {}, chosen, chosen.log_ratio / sigma)
        else:
            intercept, weights = fit_scale(chosen)
            spreads[quantity] = _spread(intercept, weights, chosen, _crossed_scores(chosen))
    return IntervalModel(spreads=spreads)


def _spread(intercept: float, weights: Mapping[str, float], rows: HeldOutRows, scores: Floats) -> Spread:
    low, high = conformal_quantiles(scores, source_weights(rows.source))
    low, high = _wide_enough(min(low, 0.0), max(high, 0.0), scores, rows.source)
    return Spread(intercept=intercept, weights=weights, low=low, high=high, n_rows=len(rows))


def source_weights(source: Strings) -> Floats:
    """Return weights that let a source count as the square root of its rows; mean 1. [row]."""
    _, inverse, counts = np.unique(source, return_inverse=True, return_counts=True)
    raw = 1.0 / np.sqrt(counts)[inverse]
    weights: Floats = raw / np.mean(raw)
    return weights


# --- scale ----------------------------------------------------------------------------------------


def fit_scale(rows: HeldOutRows) -> tuple[float, dict[str, float]]:
    """Return intercept and weights of log sigma. [1], [1]."""
    from scipy.optimize import minimize

    names = [name for name in FEATURES if np.ptp(rows.features[name]) > 0]
    design = np.column_stack([np.ones(len(rows)), *(rows.features[name] for name in names)])  # [row, weight]
    size = np.maximum(np.abs(rows.log_ratio), _SMALLEST_RESIDUAL)
    weight = source_weights(rows.source)
    penalty = np.array([0.0, *([_RIDGE] * len(names))])

    def loss(w: Floats) -> tuple[float, Floats]:
        exponent = design @ w
        relative = size * np.exp(-exponent)
        value = float(np.sum(weight * (exponent + relative)) + np.sum(penalty * w**2))
        return value, design.T @ (weight * (1.0 - relative)) + 2.0 * penalty * w

    start = np.zeros(len(names) + 1)
    start[0] = np.log(np.average(size, weights=weight))
    bounds = [(None, None), *((0.0, None) if name in NOVELTY else (None, None) for name in names)]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x.tolist()
    weights = dict(zip(names, found[1:], strict=True))
    always = [name for name in NOVELTY if np.all(rows.features[name] == 1)]
    return found[0], _with_unseen(weights | dict.fromkeys(always, 0.0))


def _with_unseen(weights: dict[str, float]) -> dict[str, float]:
    """Return the weights with a widening for what no held-out row shows, too.

    Such a novelty, a size outside all runs for one, widens as much as the most that was measured of another,
    and at least as the guess. One that every row shows is in the intercept.
    """
    largest = max([_LEAST_WIDENING, *(weights.get(name, 0.0) for name in NOVELTY)])
    kept = {name: weights[name] for name in STRUCTURE if name in weights}
    return kept | {name: weights.get(name, largest) for name in NOVELTY}


#: Log of the least widening by a novelty that no held-out row shows: 1.26 times. [1] (guess)
_LEAST_WIDENING: Final = 0.23


def _crossed_scores(rows: HeldOutRows) -> Floats:
    """Return the residuals over scales that the rows' own groups did not fit. [1] [row]."""
    names = np.unique(rows.group)
    if len(names) < _N_PARTS:  # too few groups to do without one: the scale is one number, or nearly
        intercept, weights = fit_scale(rows)
        return rows.log_ratio / _sigma(rows, intercept, weights)
    part = np.searchsorted(names, rows.group) % _N_PARTS  # [row]
    scores = np.empty(len(rows))
    for number in range(_N_PARTS):
        inside = part == number
        intercept, weights = fit_scale(rows.rows(~inside))
        scores[inside] = rows.log_ratio[inside] / _sigma(rows.rows(inside), intercept, weights)
    return scores


def _sigma(rows: HeldOutRows, intercept: float, weights: Mapping[str, float]) -> Floats:
    exponent = intercept + sum(weight * rows.features[name] for name, weight in weights.items())
    return np.asarray(np.exp(exponent))


# --- quantiles ------------------------------------------------------------------------------------


def conformal_quantiles(scores: Floats, weights: Floats | None = None) -> tuple[float, float]:
    """Return the scores that leave 5 % below and 5 % above, counting one row to come. [1].

    Parameters
    ----------
    scores : ndarray [row]
    weights : ndarray [row], optional
        Of the rows; the row to come counts as their mean.

    Notes
    -----
    Unweighted it is the ``ceil((n + 1) (1 - a))``-th smallest score with ``a`` = 5 % on each side; with too
    few rows for that, the extreme score.
    """
    tail = (1.0 - COVERAGE) / 2.0
    high = _upper_quantile(scores, weights, 1.0 - tail)
    return -_upper_quantile(-scores, weights, 1.0 - tail), high


def _upper_quantile(scores: Floats, weights: Floats | None, level: float) -> float:
    order = np.argsort(scores)
    weight = np.ones(len(scores)) if weights is None else weights[order]
    needed = level * (np.sum(weight) + np.mean(weight))
    first = int(np.searchsorted(np.cumsum(weight), needed * (1.0 - 1e-12)))
    return float(scores[order[min(first, len(scores) - 1)]])


def _wide_enough(low: float, high: float, scores: Floats, source: Strings) -> tuple[float, float]:
    """Return the quantiles moved out so that every source has its least share inside.

    The side that the source leans to moves, and no further than needed.
    """
    for name in np.unique(source).tolist():
        mine = scores[source == name]
        n_needed = int(np.ceil(LEAST_SOURCE_COVERAGE * len(mine)))
        if len(mine) < _FEWEST_OF_SOURCE or int(np.sum((low <= mine) & (mine <= high))) >= n_needed:
            continue
        if np.median(mine) >= 0:
            high = max(high, _nth_inside(mine, low, n_needed))
        else:
            low = min(low, -_nth_inside(-mine, -high, n_needed))
    return low, high


def _nth_inside(scores: Floats, low: float, n_needed: int) -> float:
    """Return the upper bound that lets ``n_needed`` scores in, or all those above the lower bound."""
    above = np.sort(scores[scores >= low])
    return float(above[min(n_needed, len(above)) - 1]) if len(above) else 0.0


# --- how good they are ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalQuality:
    """How often intervals hold and how wide they are, over the rows of a source.

    Attributes
    ----------
    quantity, source : str
        ``*`` for all sources.
    n_rows : int
    coverage : float
        Share of the rows inside. [1]
    median_high_over_low : float
        [1]
    """

    quantity: str
    source: str
    n_rows: int
    coverage: float
    median_high_over_low: float


def interval_quality(rows: HeldOutRows, intervals: IntervalModel) -> list[IntervalQuality]:
    """Return coverage and width by quantity and source, all sources first."""
    found = []
    for quantity in QUANTITIES:
        chosen = rows.of(quantity)
        if not len(chosen):
            continue
        low, high = intervals.bounds(quantity, chosen.features)
        inside = (low <= chosen.log_ratio) & (chosen.log_ratio <= high)
        for source in ("*", *np.unique(chosen.source).tolist()):
            mine = np.ones(len(chosen), dtype=np.bool_) if source == "*" else chosen.source == source
            found.append(
                IntervalQuality(
                    quantity=quantity,
                    source=source,
                    n_rows=int(np.sum(mine)),
                    coverage=float(np.mean(inside[mine])),
                    median_high_over_low=float(np.exp(np.median((high - low)[mine]))),
                )
            )
    return found

"""What a step owes to each property of its card, and which changes would make it so much better.

In: a `Scenario`. Out: `Elasticity` of time, power and energy to each property; `Lever`, a property or a pair
of them and how far it must change. Every number comes from predictions of cards that do not exist, by the
code that predicts those that do.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import exp, inf, log
from typing import Final

import numpy as np

from joulecast.errors import UsageError
from joulecast.hardware.changes import PROPERTIES, Change, parse_changes
from joulecast.hardware.spec import Gpu
from joulecast.model.parameters import ParameterSet, load_parameters
from joulecast.prediction import predict_scenario
from joulecast.results import Prediction
from joulecast.scenario import Scenario, settle_gpu

SENSITIVITY_SCHEMA: Final = "joulecast/sensitivity/1"

#: Step of the differences, up and down. [1]
_STEP: Final = 0.02

#: How far a property is changed at most, up or down, and in how many steps. [1]
MOST_FACTOR: Final = 8.0
_N_FACTORS: Final = 7
_N_BISECTIONS: Final = 12

#: What can be asked for: a quantity of a prediction that should grow.
TARGETS: Final = ("samples_per_j", "samples_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Elasticity:
    """Relative change of a step over that of a property, both small.

    Attributes
    ----------
    name, meaning : str
        Of the property.
    time, power, energy : float
        -1: inversely proportional; 0: no effect. The energy is that of all GPUs. [1]
    """

    name: str
    meaning: str
    time: float
    power: float
    energy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """Properties changed by a common factor, and what it brings.

    Attributes
    ----------
    changes : tuple of Change
        The smallest that reach what was asked for; else those that bring most.
    gain : float
        The target over what it is now. [1]
    reached : bool
        Whether that is what was asked for.
    """

    changes: tuple[Change, ...]
    gain: float
    reached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """One step, and what it owes to its card.

    Attributes
    ----------
    base : Prediction
    elasticities : tuple of Elasticity
        That of energy largest first.
    target : str
        One of `TARGETS`.
    ratio : float
        How much more of it is asked for. [1]
    levers : tuple of Lever
        Single properties, those that reach it first, then by how little they must change.
    pairs : tuple of Lever
        Pairs that reach it, where neither alone does.
    """

    base: Prediction
    elasticities: tuple[Elasticity, ...]
    target: str
    ratio: float
    levers: tuple[Lever, ...]
    pairs: tuple[Lever, ...]


def sensitivity(
    scenario: Scenario,
    *,
    target: str = "samples_per_j",
    ratio: float = 2.0,
    parameters: ParameterSet | None = None,
) -> Sensitivity:
    """Return what a step owes to each property of its card, and what would make it so much better.

    Parameters
    ----------
    scenario : Scenario
        A card of its own or one that was changed already.
    target : str
        One of `TARGETS`.
    ratio : float
        How much more of it is wanted. [1]
    parameters : ParameterSet, optional
        By default the shipped set.

    Raises
    ------
    UsageError
        The scenario cannot be, or the ratio is not above 1.

    Notes
    -----
    Elasticities are central differences of logarithms at 2 % up and down. The levers hold all else fixed, the
    power limit too, and stop at a factor of 8: a bound of the search, not of physics.
    """
    if target not in TARGETS:
        raise UsageError(f"unknown target {target!r}: one of {', '.join(TARGETS)}")
    if not 1 < ratio < inf:
        raise UsageError(f"{ratio:g} times: ask for more than 1")
    fitted = load_parameters() if parameters is None else parameters
    base = predict_scenario(scenario, fitted)
    search = _Search(
        scenario=scenario, parameters=fitted, target=target, ratio=ratio, base=_value(base, target)
    )
    names = _applicable(settle_gpu(scenario).gpu, scenario.n_gpus)
    singles = search.levers([(name,) for name in names])
    short = [lever for lever in singles if not lever.reached and lever.gain > 1.0]
    pairs = search.levers(
        [(a.changes[0].name, b.changes[0].name) for a, b in combinations(short, 2)],
        {lever.changes[0].name: lever.changes[0].factor or 1.0 for lever in short},
    )
    return Sensitivity(
        base=base,
        elasticities=tuple(
            sorted(
                (_elasticity(scenario, fitted, name, base) for name in names), key=lambda e: -abs(e.energy)
            )
        ),
        target=target,
        ratio=ratio,
        levers=tuple(sorted(singles, key=_order)),
        pairs=tuple(sorted((lever for lever in pairs if lever.reached), key=_order)),
    )


def _order(lever: Lever) -> tuple[bool, float]:
    """Return what sorts levers: those that reach first, then how far they go, or how little they bring."""
    far = max(abs(log(change.factor or 1.0)) for change in lever.changes)
    return (not lever.reached, far if lever.reached else -lever.gain)


def _value(prediction: Prediction, target: str) -> float:
    return float(getattr(prediction, target).value)


def _applicable(gpu: Gpu, n_gpus: int) -> tuple[str, ...]:
    """Return the properties that the card has and a job of so many may feel."""
    return tuple(
        name
        for name, known in PROPERTIES.items()
        if known.read(gpu) > 0 and (name != "link" or n_gpus > 1) and name != "memory"
    )


def _changed(scenario: Scenario, changes: Iterable[Change]) -> Scenario:
    """Return the scenario on a card with further changes; the power limit asked for, or in force, stays."""
    every = [*parse_changes(scenario.hardware or ""), *changes]
    limited = any(change.name == "power_limit" for change in changes)
    limit_w = scenario.power_limit_w or settle_gpu(scenario).power_limit_w
    return replace(
        scenario,
        hardware=",".join(map(str, every)),
        power_limit_w=None if limited else limit_w,
    )


def _elasticity(scenario: Scenario, parameters: ParameterSet, name: str, base: Prediction) -> Elasticity:
    """Return the elasticities of a step to one property."""
    gpu = settle_gpu(scenario).gpu
    known, logs = PROPERTIES[name], []
    for factor in (1.0 - _STEP, 1.0 + _STEP):
        change = Change(name=name, factor=factor)
        other = predict_scenario(_changed(scenario, [change]), parameters)
        logs.append(
            [
                log(known.read(change.applied(gpu))),
                log(other.step_time_s.value),
                log(other.mean_power_w.value),
                log(other.energy_per_step_j.value),
            ]
        )
    across = np.diff(np.array(logs), axis=0)[0]
    time, power, energy = (across[1:] / across[0]).tolist()
    return Elasticity(name=name, meaning=known.meaning, time=time, power=power, energy=energy)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """The search for changes that bring so much more of a target."""

    scenario: Scenario
    parameters: ParameterSet
    target: str
    ratio: float
    base: float

    def gain(self, changes: Sequence[Change]) -> float:
        """Return the target on a changed card over what it is now; 0 where there can be no such card. [1]."""
        try:
            changed = predict_scenario(_changed(self.scenario, changes), self.parameters)
        except UsageError:
            return 0.0
        return _value(changed, self.target) / self.base

    def levers(
        self, names: Sequence[tuple[str, ...]], directions: Mapping[str, float] | None = None
    ) -> list[Lever]:
        """Return what changing some properties together brings; each up or down, or as directed."""
        return [self._lever(group, directions or {}) for group in names]

    def _lever(self, names: tuple[str, ...], directions: Mapping[str, float]) -> Lever:
        signs = [1.0 if directions.get(name, 2.0) > 1 else -1.0 for name in names]
        both = [signs] if directions else [signs, [-sign for sign in signs]]
        best: Lever | None = None
        for way in both:
            found = self._one_way(names, way)
            if best is None or _order(found) < _order(best):
                best = found
        assert best is not None
        return best

    def _one_way(self, names: tuple[str, ...], signs: Sequence[float]) -> Lever:
        """Return the smallest common factor, one way, that reaches the ratio; else the best."""

        def at(stretch: float) -> tuple[Change, ...]:
            return tuple(
                Change(name=name, factor=_rounded(exp(sign * stretch)))
                for name, sign in zip(names, signs, strict=True)
            )

        stretches = np.linspace(0.0, log(MOST_FACTOR), _N_FACTORS)[1:].tolist()
        best, below = (1.0, at(stretches[0])), 0.0
        for stretch in stretches:
            gain = self.gain(at(stretch))
            if gain >= self.ratio:
                changes = at(self._bisected(at, below, stretch))
                return Lever(changes=changes, gain=self.gain(changes), reached=True)
            if gain > best[0]:
                best = (gain, at(stretch))
            if gain == 0.0:
                break
            below = stretch
        return Lever(changes=best[1], gain=best[0], reached=False)

    def _bisected(self, at: Callable[[float], tuple[Change, ...]], below: float, reached: float) -> float:
        """Return the smallest stretch between two that reaches the ratio."""
        for _ in range(_N_BISECTIONS):
            middle = 0.5 * (below + reached)
            if self.gain(at(middle)) >= self.ratio:
                reached = middle
            else:
                below = middle
        return reached


def _rounded(factor: float) -> float:
    """Return a factor with the digits that its text shows."""
    return float(f"{factor:g}")

"""Search a stage's whole range by differential evolution, before slopes refine what it finds.

In: a problem that judges a population of parameter sets in one array pass. Out: the best set found. Least
squares alone stays in the valley where it starts; saturation constants trade against each other in several.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from joulecast.model.parameters import definition
from joulecast.workload.table import Floats

Values = Mapping[str, float]


class PopulationProblem(Protocol):
    """Measurements that judge many parameter sets at once."""

    def losses(self, values: Mapping[str, Any]) -> Floats:
        """Return the mean loss of each set. [population].

        Parameters
        ----------
        values : mapping
            Numbers, or arrays [population, 1] of the parameters that vary.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How far an evolution goes.

    Attributes
    ----------
    seed : int
        Of every draw.
    population_per_parameter : int
        Sets in the population for each parameter. [1]
    n_generations : int
        Most generations. [1]
    tolerance : float
        Spread of the population's losses over their mean at which it stops early. [1]
    """

    seed: int = 0
    population_per_parameter: int = 6
    n_generations: int = 40
    tolerance: float = 0.02


#: Loss below which a log ratio counts as a square, above as an absolute value. [1]
LOSS_SCALE: Final = 0.15


def robust_loss(log_ratios: Floats) -> Floats:
    """Return ``sqrt(1 + (r / scale)^2) - 1``, averaged over rows. [...]."""
    mean: Floats = np.mean(np.sqrt(1.0 + (log_ratios / LOSS_SCALE) ** 2) - 1.0, axis=-1)
    return mean


def evolve(
    problem: PopulationProblem,
    names: Sequence[str],
    values: Values,
    search: Search,
    *,
    progress: Callable[[str], None] | None = None,
) -> dict[str, float]:
    """Return the values of some parameters that scipy's differential evolution finds best.

    Parameters
    ----------
    problem : PopulationProblem
    names : sequence of str
        Parameters that vary within their bounds.
    values : mapping
        All parameters; the start is a member of the first population.
    search : Search
    progress : callable or None
        Told a line per ten generations.
    """
    from scipy.optimize import differential_evolution

    low = np.array([definition(name).low for name in names])
    span = np.array([definition(name).high for name in names]) - low
    start = np.clip((np.array([values[name] for name in names]) - low) / span, 0.0, 1.0)

    def losses(shares: Floats) -> Floats:  # [parameter, population], as scipy hands it over
        sets = low[:, None] + span[:, None] * shares
        return problem.losses({**values, **{name: sets[i][:, None] for i, name in enumerate(names)}})

    generation = 0

    def tell(intermediate_result: Any) -> None:
        nonlocal generation
        generation += 1
        if progress is not None and generation % 10 == 0:
            progress(f"  generation {generation}: loss {intermediate_result.fun:.4f}")

    found = differential_evolution(
        losses,
        [(0.0, 1.0)] * len(names),
        x0=start,
        rng=np.random.default_rng(search.seed),
        popsize=search.population_per_parameter,
        maxiter=search.n_generations,
        tol=search.tolerance,
        vectorized=True,
        updating="deferred",
        polish=False,
        callback=tell,
    )
    return dict(zip(names, (low + span * found.x).tolist(), strict=True))

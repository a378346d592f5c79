"""How sure a ranking of configurations is: draws of the prediction's errors, and how often one stays best.

In: labels of the configurations. Out: standard normal draws of the errors of time and energy [draw, config].
Pure functions on arrays; the random generator is an argument.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from joulecast.workload.table import Floats

#: Share of the variance of a log error that configurations have in common, level by level: those of one
#: model; of one model and card; with the precision; that differ in power limit and clock alone. The rest is
#: a configuration's own. Intraclass correlations of the residuals on public runs, rounded
#: (``scripts/measure_error_correlation``): time 0.64, 0.72, 0.80, 0.91; energy 0.70, 0.77, 0.78, 0.85.
SHARED_FRACS: Final = (0.65, 0.75, 0.79, 0.88)

#: Correlation of the errors of time and energy of one step, from the same command: 0.96.
TIME_ENERGY_CORRELATION: Final = 0.95


def draw_errors(
    levels: Sequence[npt.NDArray[Any]], *, n_draws: int, random: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return standard normal draws of the log errors of time and of energy, each [draw, config].

    Parameters
    ----------
    levels : sequence of ndarray [config]
        Labels of each level of `SHARED_FRACS`, coarsest first; configurations with one label share that part.
    n_draws : int
    random : numpy.random.Generator

    Notes
    -----
    ``z = sum over levels of sqrt(share) x z[label]``, each z[label] standard normal, drawn once per label;
    the shares are the steps of `SHARED_FRACS`, with a configuration's own last, and sum to 1. Nested: a label
    of a finer level counts together with those of the coarser ones.
    """
    shares = np.diff([0.0, *SHARED_FRACS, 1.0])
    groups = _nested(levels)
    time_z, other_z = (_shared(groups, shares, n_draws, random) for _ in range(2))
    r = TIME_ENERGY_CORRELATION
    return time_z, r * time_z + np.sqrt(1 - r**2) * other_z


def _nested(levels: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[np.int64]]:
    """Return group numbers [config] of each level within the coarser ones, and at last of each its own."""
    n_configs = len(levels[0])
    groups = []
    current = np.zeros(n_configs, dtype=np.int64)
    for labels in levels:
        _, codes = np.unique(labels.astype(str), return_inverse=True)
        _, current = np.unique(current * (codes.max(initial=0) + 1) + codes, return_inverse=True)
        groups.append(current)
    return [*groups, np.arange(n_configs)]


def _shared(
    groups: Sequence[npt.NDArray[np.int64]], shares: Floats, n_draws: int, random: np.random.Generator
) -> Floats:
    """Return standard normal draws [draw, config] that have the shares in common."""
    total = np.zeros((n_draws, len(groups[0])))
    for group, share in zip(groups, shares, strict=True):
        total += np.sqrt(share) * random.standard_normal((n_draws, int(group.max()) + 1))[:, group]
    return total

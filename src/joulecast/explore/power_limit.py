"""The power limit that saves most energy: chosen by prediction, judged by measurement.

In: measured runs that differ in their power limit alone. Out: per group, the limit that a prediction would
choose among the measured ones, and what the meter says of it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from joulecast.calibrate.runs import Run
from joulecast.calibrate.validation import scenario_of
from joulecast.errors import JoulecastError
from joulecast.hardware.catalogue import load_gpu
from joulecast.model.parameters import ParameterSet, load_parameters
from joulecast.prediction import predict_scenario
from joulecast.workload.table import Floats

#: Columns in which the runs of a group agree; they differ in ``power_limit_w``.
GROUP_COLUMNS: Final = (
    "source",
    "gpu",
    "model",
    "mode",
    "precision",
    "n_gpus",
    "batch_per_gpu",
    "seq_len",
    "image_size",
    "optimizer",
    "memory_format",
    "attention",
    "sm_clock_hz",
    "torch_version",
)

#: A group says something about limits only where its measured power varies by more than this. [1]
LEAST_POWER_SPREAD_FRAC: Final = 0.08


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitGroup:
    """Runs of one workload at several power limits.

    Attributes
    ----------
    runs : tuple of Run
        By rising limit.
    limits_w, measured_energy_j, predicted_energy_j : ndarray [limit]
        Limit per GPU; energy of a step, of all GPUs. [W], [J], [J]
    max_limit_w : float
        The highest the card may be set to. [W]
    """

    runs: tuple[Run, ...]
    limits_w: Floats
    measured_energy_j: Floats
    predicted_energy_j: Floats
    max_limit_w: float

    @property
    def chosen_limit_w(self) -> float:
        """The measured limit of least predicted energy. [W]."""
        return float(self.limits_w[np.argmin(self.predicted_energy_j)])

    @property
    def best_limit_w(self) -> float:
        """The limit of least measured energy. [W]."""
        return float(self.limits_w[np.argmin(self.measured_energy_j)])

    @property
    def excess_frac(self) -> float:
        """Measured energy at the chosen limit over the least measured, less 1. [1]."""
        return self._excess_frac(int(np.argmin(self.predicted_energy_j)))

    def excess_at_frac(self, limit_frac: float) -> float:
        """Return the same for the measured limit nearest to a share of the highest limit. [1]."""
        return self._excess_frac(int(np.argmin(np.abs(self.limits_w - limit_frac * self.max_limit_w))))

    def _excess_frac(self, i_limit: int) -> float:
        return float(self.measured_energy_j[i_limit] / self.measured_energy_j.min()) - 1.0


def limit_groups(
    runs: Iterable[Run],
    *,
    parameters: ParameterSet | None = None,
    progress: Callable[[Sequence[tuple[Run, ...]]], Iterable[tuple[Run, ...]]] = iter,
) -> list[LimitGroup]:
    """Return the groups of runs whose measured power varies with the limit, predicted.

    Parameters
    ----------
    runs : iterable of Run
        Those without power, energy or limit, doubtful ones and what cannot be predicted are left out.
    parameters : ParameterSet, optional
        By default the shipped set.
    progress : callable, optional
        Wraps the sequence of groups while they are predicted.
    """
    fitted = load_parameters() if parameters is None else parameters
    groups = []
    for members in progress(_varying(runs)):
        try:
            predicted = [
                predict_scenario(scenario_of(run), fitted).energy_per_step_j.value for run in members
            ]
        except JoulecastError:
            continue
        groups.append(
            LimitGroup(
                runs=members,
                limits_w=np.array([run.numbers["power_limit_w"] for run in members]),
                measured_energy_j=np.array([run.measured["energy_per_step_j"] for run in members]),
                predicted_energy_j=np.array(predicted),
                max_limit_w=load_gpu(members[0].gpu).max_power_limit_w,
            )
        )
    return groups


def _varying(runs: Iterable[Run]) -> list[tuple[Run, ...]]:
    """Return the groups, each by rising limit, whose measured power varies enough."""
    groups: dict[tuple[str, ...], dict[float, Run]] = defaultdict(dict)
    for run in runs:
        measured = {"mean_power_w", "energy_per_step_j"} <= set(run.measured)
        if measured and "power_limit_w" in run.numbers and not run.is_suspect:
            key = tuple(run.text(column) for column in GROUP_COLUMNS)
            groups[key].setdefault(run.numbers["power_limit_w"], run)
    return [
        tuple(by_limit[limit_w] for limit_w in sorted(by_limit))
        for by_limit in groups.values()
        if _power_spread_frac(by_limit.values()) > LEAST_POWER_SPREAD_FRAC
    ]


def _power_spread_frac(runs: Iterable[Run]) -> float:
    power_w = [run.measured["mean_power_w"] for run in runs]
    return max(power_w) / min(power_w) - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitScore:
    """How good the chosen limits of many groups are, by the meter.

    Attributes
    ----------
    n_groups : int
    within_3_percent_frac : float
        Share of groups whose excess is at most 3 %. [1]
    mean_excess_frac, max_excess_frac : float
        Over the groups. [1]
    constant_limit_frac, constant_excess_frac : float
        The one share of the highest limit that is best on average, chosen with the measurements in hand, and
        its mean excess. [1]
    """

    n_groups: int
    within_3_percent_frac: float
    mean_excess_frac: float
    max_excess_frac: float
    constant_limit_frac: float
    constant_excess_frac: float


#: What a recommended limit may cost beyond the best.
GOOD_EXCESS_FRAC: Final = 0.03


def score(groups: Sequence[LimitGroup]) -> LimitScore:
    """Return the score of groups, beside that of the best constant share of the highest limit."""
    excess = np.array([group.excess_frac for group in groups])  # [group]
    fracs = sorted({float(limit_w / group.max_limit_w) for group in groups for limit_w in group.limits_w})
    means = [float(np.mean([group.excess_at_frac(frac) for group in groups])) for frac in fracs]
    i_best = int(np.argmin(means))
    return LimitScore(
        n_groups=len(groups),
        within_3_percent_frac=float(np.mean(excess <= GOOD_EXCESS_FRAC)),
        mean_excess_frac=float(excess.mean()),
        max_excess_frac=float(excess.max()),
        constant_limit_frac=fracs[i_best],
        constant_excess_frac=means[i_best],
    )

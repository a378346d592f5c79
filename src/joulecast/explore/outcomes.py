"""Whole runs of many configurations at once: columns of a sweep -> time, energy, CO2e and money [config].

The same equations as `whole_run.run_cost`, for training steps alone, on arrays. Without a plan everything is
of one sample.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.errors import UsageError
from joulecast.explore.carbon import IntensitySeries
from joulecast.explore.request import Objective, Request
from joulecast.explore.table import SweepResult
from joulecast.hardware.spec import Gpu
from joulecast.results import Z90, Origin, Quantity
from joulecast.workload.table import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What configurations take; arrays [..., config].

    Attributes
    ----------
    time_s : ndarray
        From start to end. [s]
    gpu_energy_j, energy_j : ndarray
        Of the job's GPUs; of all that the site names, times its PUE. [J]
    co2e_kg, cost : ndarray or None
        None where the site says nothing about it. [kg], [currency]
    """

    time_s: Floats
    gpu_energy_j: Floats
    energy_j: Floats
    co2e_kg: Floats | None
    cost: Floats | None

    def of(self, objective: Objective) -> Floats:
        """Return what an objective makes small."""
        values = {
            Objective.TIME: self.time_s,
            Objective.ENERGY: self.energy_j,
            Objective.COST: self.cost,
            Objective.CO2E: self.co2e_kg,
            Objective.ENERGY_DELAY: self.energy_j * self.time_s,
        }[objective]
        assert values is not None  # a request has what its objective needs
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Predicted configurations, and what a run of each consists of; arrays [config].

    Attributes
    ----------
    table : SweepResult
        Predicted rows alone.
    n_steps : ndarray
        Optimizer steps of the run; of one sample where there is no plan. [1]
    least_step_time_s : ndarray
        What the input pipeline allows. [s]
    waiting_power_w, rest_power_w : ndarray
        Of the job's GPUs when they wait; of idle GPUs and the rest of the node. [W]
    pue : float
        [1]
    intensity_kg_per_j : ndarray or None
        Mean over the hours of each run. [kg/J]
    price_per_s, price_per_j : ndarray or None, float
        Of the job's GPUs, and of energy at the meter. [currency/s], [currency/J]
    """

    table: SweepResult
    n_steps: Floats
    least_step_time_s: Floats
    waiting_power_w: Floats
    rest_power_w: Floats
    pue: float
    intensity_kg_per_j: Floats | None
    price_per_s: Floats | None
    price_per_j: float

    def __len__(self) -> int:
        return len(self.table)

    def outcomes(self, time_factor: Floats | float = 1.0, energy_factor: Floats | float = 1.0) -> Outcomes:
        """Return what the configurations take, where step time and energy are off by factors.

        Parameters
        ----------
        time_factor, energy_factor : ndarray [..., config] or float
        """
        step_s = self.table["step_time_s"] * time_factor
        paced_s = np.maximum(step_s, self.least_step_time_s)
        step_j = self.table["energy_per_step_j"] * energy_factor + (paced_s - step_s) * self.waiting_power_w
        time_s, gpu_energy_j = paced_s * self.n_steps, step_j * self.n_steps
        energy_j = (gpu_energy_j + time_s * self.rest_power_w) * self.pue
        cost = None
        if self.price_per_s is not None:
            cost = energy_j * self.price_per_j + time_s * self.price_per_s
        return Outcomes(
            time_s=time_s,
            gpu_energy_j=gpu_energy_j,
            energy_j=energy_j,
            co2e_kg=None if self.intensity_kg_per_j is None else energy_j * self.intensity_kg_per_j,
            cost=cost,
        )

    def at(self, time_z: Floats | float, energy_z: Floats | float) -> Outcomes:
        """Return the outcomes where time and energy are so many deviations above what is predicted.

        Parameters
        ----------
        time_z, energy_z : ndarray [..., config] or float
            Of the logarithm, in deviations: `Z90` is the upper end of the 90 % interval. [1]
        """
        return self.outcomes(
            _factor(self.table, "step_time_s", time_z), _factor(self.table, "energy_per_step_j", energy_z)
        )

    def quantities(self, i_config: int) -> dict[str, Quantity]:
        """Return one configuration's outcomes with their 90 % intervals, by field of `Outcomes`."""
        one = self.where(np.array([i_config]))
        low, value, high = (one.at(z, z) for z in (-Z90, 0.0, Z90))
        origin = Origin(str(one.table["origin"][0]))
        found = {}
        for name in ("time_s", "gpu_energy_j", "energy_j", "co2e_kg", "cost"):
            ends = [getattr(outcome, name) for outcome in (low, value, high)]
            if ends[1] is not None:
                numbers = sorted(float(end[0]) for end in ends)
                found[name] = Quantity(
                    value=float(ends[1][0]), low=numbers[0], high=numbers[2], origin=origin
                )
        return found

    def where(self, selection: npt.NDArray[Any]) -> "Candidates":
        """Return the configurations that a mask or indices select."""
        return Candidates(
            table=self.table.where(selection),
            n_steps=self.n_steps[selection],
            least_step_time_s=self.least_step_time_s[selection],
            waiting_power_w=self.waiting_power_w[selection],
            rest_power_w=self.rest_power_w[selection],
            pue=self.pue,
            intensity_kg_per_j=None
            if self.intensity_kg_per_j is None
            else self.intensity_kg_per_j[selection],
            price_per_s=None if self.price_per_s is None else self.price_per_s[selection],
            price_per_j=self.price_per_j,
        )


def _chosen(values: Floats | None, selection: npt.NDArray[Any]) -> Floats | None:
    return None if values is None else values[selection]


def _factor(table: SweepResult, name: str, z: Floats | float) -> Floats:
    """Return what a quantity is off by at so many deviations; each side has the deviation of its own end."""
    up = np.log(table[f"high_{name}"] / table[name]) / Z90
    down = np.log(table[name] / table[f"low_{name}"]) / Z90
    factor: Floats = np.exp(np.where(np.asarray(z) > 0, up, down) * z)
    return factor


def candidates(table: SweepResult, request: Request, gpus: Mapping[str, Gpu]) -> Candidates:
    """Return the candidates of a request.

    Parameters
    ----------
    table : SweepResult
        Predicted rows alone.
    request : Request
    gpus : mapping of str to Gpu
        By slug.

    Raises
    ------
    UsageError
        The plan does not apply to a model, or a card lacks a price.
    """
    site, plan = request.site, request.plan
    n_gpus = table["n_gpus"]
    idle_w = _by_label(table["gpu"], lambda slug: gpus[slug].idle_power_w)
    n_idle = 0 if site.node_gpus is None else np.maximum(site.node_gpus - n_gpus, 0)
    rate = plan.loader_samples_per_s if plan is not None else None
    found = Candidates(
        table=table,
        n_steps=_steps(table, request),
        least_step_time_s=np.zeros(len(table)) if rate is None else table["global_batch"] / rate,
        waiting_power_w=n_gpus * _by_label(table["gpu"], lambda slug: gpus[slug].waiting_power_w),
        rest_power_w=n_idle * idle_w + (site.host_power_w or 0.0),
        pue=1.0 if site.pue is None else site.pue,
        intensity_kg_per_j=None,
        price_per_s=None if site.prices is None else n_gpus * _by_label(table["gpu"], _price_of(request)),
        price_per_j=(site.prices and site.prices.energy_price_per_j) or 0.0,
    )
    return _with_intensity(found, request)


def _steps(table: SweepResult, request: Request) -> Floats:
    """Return the steps expected of each configuration's run, or those of a sample. [1] [config]."""
    plan = request.plan
    if plan is None:
        one: Floats = 1.0 / table["global_batch"]
        return one
    sizes = np.stack([table["global_batch"], table["seq_len"]], axis=1)
    distinct, rows_of = np.unique(sizes, axis=0, return_inverse=True)
    steps = [
        plan.steps(float(batch), None if np.isnan(seq_len) else int(seq_len))[1] * plan.n_trials
        for batch, seq_len in distinct
    ]
    return np.array(steps, dtype=np.float64)[rows_of.reshape(-1)]


def _price_of(request: Request) -> Callable[[str], float]:
    """Return a caller that gives a card's price by slug; 0 where electricity alone is paid. [currency/s]."""
    prices = request.site.prices
    assert prices is not None

    def price(slug: str) -> float:
        found = prices.of_gpu(slug)
        if found is None and prices.gpu_price_per_s_by_gpu:
            raise UsageError(f"no price of a GPU-hour is given for {slug}, and there is one for other cards")
        return found or 0.0

    return price


def _by_label(labels: npt.NDArray[Any], value: Callable[[str], float]) -> Floats:
    """Return a value for every label. [config]."""
    of_label = {label: value(label) for label in dict.fromkeys(labels.tolist())}
    return np.array([of_label[label] for label in labels.tolist()], dtype=np.float64)


def _with_intensity(found: Candidates, request: Request) -> Candidates:
    """Return the candidates with the mean intensity over the hours of each."""
    grid = request.site.grid
    if grid is None:
        return found
    times_s = found.outcomes().time_s
    if isinstance(grid, IntensitySeries) and request.site.start is not None and request.plan is not None:
        values = [grid.over(_exact(time_s), request.site.start).kg_per_j for time_s in times_s.tolist()]
    else:
        values = [grid.over(_exact(float(times_s[0]))).kg_per_j] * len(times_s)
    return replace(found, intensity_kg_per_j=np.array(values, dtype=np.float64))


def _exact(time_s: float) -> Quantity:
    return Quantity(value=time_s, low=time_s, high=time_s, origin=Origin.CALIBRATED)

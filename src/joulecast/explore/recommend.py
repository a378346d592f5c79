"""The best configuration under limits: what wins, why, what each limit costs, and how sure that is.

In: a `Request`. Out: `Recommendation`. Sweeps the candidates, leaves out what may not fit the memory, keeps
the limits, and ranks the rest by the objective.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from joulecast.errors import UsageError
from joulecast.explore.advice import infeasible, nothing_fits
from joulecast.explore.outcomes import Candidates, candidates
from joulecast.explore.pareto import Booleans, pareto_front
from joulecast.explore.ranking import draw_errors
from joulecast.explore.request import RUN_LIMITS, Request
from joulecast.explore.sweep import sweep
from joulecast.explore.table import SweepResult
from joulecast.hardware.catalogue import load_gpu
from joulecast.hardware.spec import Gpu
from joulecast.model.parameters import ParameterSet, load_parameters
from joulecast.results import Quantity
from joulecast.workload.table import Floats

Indices = npt.NDArray[np.intp]

RECOMMENDATION_SCHEMA: Final = "joulecast/recommendation/1"

#: What distinguishes configurations: columns of a sweep, in the order they are named to people.
AXES: Final = (
    "model",
    "gpu",
    "n_gpus",
    "precision",
    "batch_per_gpu",
    "accumulate",
    "checkpointing",
    "seq_len",
    "image_size",
    "optimizer",
    "attention",
    "memory_format",
    "clip",
    "n_sms",
    "locked_sm_clock_hz",
    "power_limit_w",
)
#: Axes that do not change the work of a step: configurations that differ in these alone err alike.
_OF_THE_CARD: Final = ("power_limit_w", "locked_sm_clock_hz")

#: Contenders that the draws rank: those of least objective. The others hardly win.
_MOST_CONTENDERS: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One configuration and what it takes.

    Attributes
    ----------
    row : mapping
        Its row of the sweep: configuration, and the quantities of a step.
    objective : float
        What the request makes small, as predicted. SI units.
    time_s, gpu_energy_j, energy_j : Quantity
        Of the run, or of a sample where the request has no run; energy of the GPUs, and at the meter.
    co2e_kg, cost : Quantity or None
    node_power_w : float
        Upper end of what the node draws, averaged over a step. [W]
    """

    row: Mapping[str, Any]
    objective: float
    time_s: Quantity
    gpu_energy_j: Quantity
    energy_j: Quantity
    co2e_kg: Quantity | None
    cost: Quantity | None
    node_power_w: float

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: its axes, quantities of a step and of the run."""
        kept = {name: self.row[name] for name in (*AXES, "global_batch", "bound_by", "origin")}
        step = ("step_time_s", "mean_power_w", "energy_per_step_j", "process_bytes", "samples_per_j")
        kept |= {f"{end}{name}": self.row[f"{end}{name}"] for name in step for end in ("", "low_", "high_")}
        quantities = ("time_s", "gpu_energy_j", "energy_j", "co2e_kg", "cost")
        kept |= {name: (q := getattr(self, name)) and q.to_dict() for name in quantities}
        return kept | {"objective": self.objective, "node_power_w": self.node_power_w}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the objective would be otherwise.

    Attributes
    ----------
    what : str
        An axis with another value, or a limit that is lifted.
    other : Alternative
        The best there would be.
    objective_ratio : float
        Its objective over the chosen one's. [1]
    """

    what: str
    other: Alternative
    objective_ratio: float

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"what": self.what, "objective_ratio": self.objective_ratio, "other": self.other.to_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Certainty:
    """How sure the ranking is, by draws of the errors; see `ranking.draw_errors`.

    Attributes
    ----------
    n_draws, n_contenders : int
    best_frac : float
        Share of the draws in which the choice is best. [1]
    median_excess_frac, p90_excess_frac : float
        How far the choice lies above the best of a draw: median and 90 % quantile. [1]
    same_axis_frac : mapping of str to float
        Share of the draws whose best has the choice's value of an axis. [1]
    kept_frac : mapping of str to float
        Share of the draws in which the choice keeps a limit of the run. [1]
    """

    n_draws: int
    n_contenders: int
    best_frac: float
    median_excess_frac: float
    p90_excess_frac: float
    same_axis_frac: Mapping[str, float]
    kept_frac: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The choice, and what to think of it.

    Attributes
    ----------
    request : Request
    n_candidates, n_predicted, n_fitting, n_feasible : int
        Asked for; that can be; whose memory fits by the upper end of its interval; that keep all limits.
    chosen : Alternative
    gpu : Gpu
        Its card.
    front : tuple of Alternative
        Feasible ones that no other beats in time, energy and money at once, by rising time.
    reasons : tuple of Comparison
        Per axis that has a choice: the best with another value.
    limit_costs : tuple of Comparison
        Per limit: the best without it.
    certainty : Certainty
    flags, guesses : tuple of str
        Of the chosen prediction.
    """

    request: Request
    n_candidates: int
    n_predicted: int
    n_fitting: int
    n_feasible: int
    chosen: Alternative
    gpu: Gpu
    front: tuple[Alternative, ...]
    reasons: tuple[Comparison, ...]
    limit_costs: tuple[Comparison, ...]
    certainty: Certainty
    flags: tuple[str, ...]
    guesses: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``joulecast recommend --format json``."""
        c = self.certainty
        grid = self.request.site.grid
        return {
            "schema": RECOMMENDATION_SCHEMA,
            "objective": str(self.request.objective),
            "of": "run" if self.request.plan else "sample",
            "candidates": self.request.candidates.to_dict(),
            "limits": {name: getattr(self.request.limits, name) for name in self.request.limits.given()},
            "confidence_frac": self.request.confidence_frac,
            "n_candidates": self.n_candidates,
            "n_predicted": self.n_predicted,
            "n_fitting": self.n_fitting,
            "n_feasible": self.n_feasible,
            "chosen": self.chosen.to_dict(),
            "front": [alternative.to_dict() for alternative in self.front],
            "reasons": [reason.to_dict() for reason in self.reasons],
            "limit_costs": [cost.to_dict() for cost in self.limit_costs],
            "certainty": {name: getattr(c, name) for name in Certainty.__dataclass_fields__},
            "intensity_source": grid.source if grid else None,
            "currency": self.request.site.prices.currency if self.request.site.prices else "",
            "flags": list(self.flags),
            "guesses": list(self.guesses),
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one flat row per configuration of the front, the choice marked."""
        members = (*self.front, *([] if self.chosen in self.front else [self.chosen]))
        return [{"chosen": member == self.chosen, **_flat(member.to_dict())} for member in members]


def _flat(plain: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, Mapping):
            row |= {name: value["value"], f"low_{name}": value["low"], f"high_{name}": value["high"]}
        else:
            row[name] = value
    return row


def recommend(
    request: Request,
    *,
    parameters: ParameterSet | None = None,
    sweeper: Callable[..., SweepResult] = sweep,
) -> Recommendation:
    """Return the best configuration under the limits of a request.

    Parameters
    ----------
    request : Request
    parameters : ParameterSet, optional
        By default the shipped set.
    sweeper : callable, optional
        Predicts the candidates: one that shows progress, say.

    Raises
    ------
    UsageError
        No candidate can be predicted.
    NothingFitsError
        None fits the memory; says the smallest change that would.
    InfeasibleError
        None keeps all limits; says which contradict each other, and the nearest.
    """
    fitted = load_parameters() if parameters is None else parameters
    table = sweeper(request.candidates, parameters=fitted)
    if not table.predicted.any():
        raise UsageError(f"none of the {len(table)} candidates can be: {table['skipped_reason'][0]}")
    predicted = table.where(table.predicted)
    asked = {load_gpu(name).slug: name for name in request.candidates.axes["gpu"]}
    gpus = {slug: load_gpu(name) for slug, name in asked.items()}
    fits = predicted["high_process_bytes"] <= memory_bytes(predicted, request)
    if not fits.any():
        raise nothing_fits(predicted, request, fitted, gpus)
    fitting = candidates(predicted.where(fits), request, gpus)
    excess = limit_excess(fitting, request)
    feasible = within(excess, len(fitting))
    if not feasible.any():
        raise infeasible(fitting, request, excess)
    ranked = _ranked(fitting, request)
    (chosen, *_) = ranked[feasible[ranked]]
    row = fitting.table.where(np.array([chosen])).to_rows()[0]
    return Recommendation(
        request=request,
        n_candidates=len(table),
        n_predicted=len(predicted),
        n_fitting=len(fitting),
        n_feasible=int(feasible.sum()),
        chosen=alternative(fitting, request, chosen),
        gpu=gpus[row["gpu"]],
        front=_front(fitting, request, feasible),
        reasons=_reasons(fitting, request, feasible, ranked, chosen),
        limit_costs=_limit_costs(fitting, request, excess, ranked, chosen),
        certainty=certainty(fitting, request, feasible, ranked, chosen),
        flags=_split(row["flags"]),
        guesses=_split(row["guesses"]),
    )


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(text.split("; ")) if text else ()


# --- limits ---------------------------------------------------------------------------------------


def memory_bytes(table: SweepResult, request: Request) -> Floats:
    """Return the memory that each configuration may use. [bytes] [config]."""
    limit = request.limits.memory_bytes
    capacity: Floats = table["capacity_bytes"]
    return capacity if limit is None else np.minimum(capacity, limit)


def node_power_w(found: Candidates) -> Floats:
    """Return the upper end of a node's power averaged over a step. [W] [config]."""
    power_w: Floats = found.table["n_gpus"] * found.table["high_mean_power_w"] + found.rest_power_w
    return power_w


def limit_excess(found: Candidates, request: Request) -> dict[str, Floats]:
    """Return, by limit that is given, what each configuration takes over it; at most 1 keeps it. [config].

    Time, energy, CO2e and money are taken at the request's confidence; power at the upper end of its
    interval.
    """
    limits, table = request.limits, found.table
    z = NormalDist().inv_cdf(request.confidence_frac)
    outcomes = found.at(z, z)
    values: dict[str, Floats | None] = {
        "run_time_s": outcomes.time_s,
        "energy_j": outcomes.energy_j,
        "co2e_kg": outcomes.co2e_kg,
        "cost": outcomes.cost,
        "node_power_w": node_power_w(found),
        "rack_power_w": node_power_w(found) * limits.rack_nodes,
        "memory_bytes": table["high_process_bytes"],
        "n_gpus": table["n_gpus"],
        "max_global_batch": table["global_batch"],
    }
    excess = {}
    for name in limits.given():
        if name == "min_global_batch":
            excess[name] = getattr(limits, name) / table["global_batch"]
        elif (value := values[name]) is not None:
            excess[name] = value / getattr(limits, name)
    if request.site.node_gpus is not None:
        excess["n_gpus"] = np.maximum(
            excess.get("n_gpus", np.zeros(len(table))), table["n_gpus"] / request.site.node_gpus
        )
    return excess


def within(excess: Mapping[str, Floats], n_configs: int, but: str = "") -> Booleans:
    """Return which configurations keep all limits, one left out. [config]."""
    kept = np.ones(n_configs, dtype=np.bool_)
    for name, values in excess.items():
        if name != but:
            kept &= values <= 1
    return kept


# --- choice ---------------------------------------------------------------------------------------


def _ranked(found: Candidates, request: Request) -> Indices:
    """Return the configurations by rising objective.

    Equals go by energy, time and GPUs; then by falling power limit, because one that does not bind saves
    nothing.
    """
    outcomes = found.outcomes()
    keys = (
        -found.table["power_limit_w"],
        found.table["n_gpus"],
        _rounded(outcomes.time_s),
        _rounded(outcomes.energy_j),
        _rounded(outcomes.of(request.objective)),
    )
    return np.lexsort(keys)


def _rounded(values: Floats) -> Floats:
    """Return logarithms to a millionth: what differs by less is the arithmetic's rounding."""
    return np.asarray(np.round(np.log(np.maximum(values, 1e-300)), 6), dtype=np.float64)


def alternative(found: Candidates, request: Request, i_config: int) -> Alternative:
    """Return one configuration with its intervals."""
    one = found.where(np.array([i_config]))
    quantities = found.quantities(i_config)
    return Alternative(
        row=one.table.to_rows()[0],
        objective=float(one.outcomes().of(request.objective)[0]),
        time_s=quantities["time_s"],
        gpu_energy_j=quantities["gpu_energy_j"],
        energy_j=quantities["energy_j"],
        co2e_kg=quantities.get("co2e_kg"),
        cost=quantities.get("cost"),
        node_power_w=float(node_power_w(one)[0]),
    )


def _front(found: Candidates, request: Request, feasible: Booleans) -> tuple[Alternative, ...]:
    kept = np.flatnonzero(feasible)
    outcomes = found.where(kept).outcomes()
    counts = [outcomes.time_s, outcomes.energy_j, *([] if outcomes.cost is None else [outcomes.cost])]
    # configurations that rounding alone tells apart are one point of the front
    values = np.stack([_rounded(count) for count in counts], axis=1)
    _, firsts = np.unique(values, axis=0, return_index=True)  # by rising time
    on_front = firsts[pareto_front(values[firsts])]
    return tuple(alternative(found, request, int(i)) for i in kept[on_front])


def _reasons(
    found: Candidates, request: Request, feasible: Booleans, ranked: Indices, chosen: int
) -> tuple[Comparison, ...]:
    """Return, per axis that has a choice, the best feasible configuration with another value."""
    base = float(found.outcomes().of(request.objective)[chosen])
    reasons = []
    for axis in _varying(request):
        others = feasible & _differs(found.table[axis], chosen)
        if axis == "power_limit_w":
            # the neighbouring limit says little: what the highest one would take does
            others &= found.table[axis] == _highest_limit_w(found, chosen)
        contenders = ranked[others[ranked]]
        if len(contenders):
            other = alternative(found, request, int(contenders[0]))
            reasons.append(Comparison(what=axis, other=other, objective_ratio=other.objective / base))
    return tuple(reasons)


#: Keys of a space whose column has another name.
_COLUMN_OF_KEY: Final = {
    "global_batch": "batch_per_gpu",
    "power_limit_frac": "power_limit_w",
    "sm_clock_hz": "locked_sm_clock_hz",
}


def _varying(request: Request) -> tuple[str, ...]:
    """Return the axes along which the request has a choice."""
    asked = {
        _COLUMN_OF_KEY.get(key, key) for key, values in request.candidates.axes.items() if len(values) > 1
    }
    return tuple(axis for axis in AXES if axis in asked)


def _highest_limit_w(found: Candidates, chosen: int) -> float:
    same_gpu = found.table["gpu"] == found.table["gpu"][chosen]
    return float(found.table["power_limit_w"][same_gpu].max())


def _differs(column: Floats, chosen: int) -> Booleans:
    """Return which rows have another value; NaN equals NaN."""
    texts = column.astype(str)
    other: Booleans = texts != texts[chosen]
    return other


def _limit_costs(
    found: Candidates,
    request: Request,
    excess: Mapping[str, Floats],
    ranked: Indices,
    chosen: int,
) -> tuple[Comparison, ...]:
    """Return, per limit, the best configuration without it."""
    base = float(found.outcomes().of(request.objective)[chosen])
    costs = []
    for name in excess:
        free = within(excess, len(found), but=name)
        other = alternative(found, request, int(ranked[free[ranked]][0]))
        costs.append(Comparison(what=name, other=other, objective_ratio=other.objective / base))
    return tuple(costs)


# --- how sure -------------------------------------------------------------------------------------


def certainty(
    found: Candidates, request: Request, feasible: Booleans, ranked: Indices, chosen: int
) -> Certainty:
    """Return how often the choice stays best, and keeps the limits of the run, over draws of the errors."""
    contenders = ranked[feasible[ranked]][:_MOST_CONTENDERS]
    field_of = found.where(contenders)
    time_z, energy_z = draw_errors(
        _levels(field_of.table), n_draws=request.n_draws, random=np.random.default_rng(request.seed)
    )
    outcomes = field_of.at(time_z, energy_z)
    objective = outcomes.of(request.objective)  # [draw, config]
    best = objective.min(axis=1)
    excess = objective[:, 0] / best - 1  # the choice comes first
    winners = np.argmin(objective, axis=1)
    limits = {name: getattr(request.limits, name) for name in RUN_LIMITS}
    taken = {
        "run_time_s": outcomes.time_s,
        "energy_j": outcomes.energy_j,
        "co2e_kg": outcomes.co2e_kg,
        "cost": outcomes.cost,
    }
    return Certainty(
        n_draws=request.n_draws,
        n_contenders=len(contenders),
        best_frac=float(np.mean(excess <= _ROUNDING)),
        median_excess_frac=float(np.median(excess)),
        p90_excess_frac=float(np.quantile(excess, 0.9)),
        same_axis_frac={
            axis: float(np.mean(~_differs(field_of.table[axis], 0)[winners])) for axis in _varying(request)
        },
        kept_frac={
            name: float(np.mean(values[:, 0] <= limits[name]))
            for name, values in taken.items()
            if values is not None and limits[name] is not None
        },
    )


#: Excess that is the arithmetic's rounding. [1]
_ROUNDING: Final = 1e-9


def _levels(table: SweepResult) -> list[Any]:
    """Return the labels of `ranking.SHARED_FRACS`: model; card; precision; all but limit and clock."""
    setup = [axis for axis in AXES if axis not in _OF_THE_CARD]
    joined = np.array(
        ["|".join(parts) for parts in zip(*(table[axis].astype(str) for axis in setup), strict=True)]
    )
    return [table["model"], table["gpu"], table["precision"], joined]

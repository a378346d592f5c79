"""What a recommendation is asked for: candidates, a run, limits, an objective; from a TOML file or in code.

In: a path, or fields. Out: `Request`. Knows no prediction.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Any, Final

from joulecast.errors import UnknownNameError, UsageError
from joulecast.explore.carbon import load_grid
from joulecast.explore.prices import prices
from joulecast.explore.space import KEYS, Space, space_of
from joulecast.explore.whole_run import Embodied, Site, TrainingPlan
from joulecast.hardware.catalogue import load_gpu
from joulecast.units import GIB, J_PER_KWH, SECONDS_PER_HOUR


class Objective(StrEnum):
    """What to make small."""

    TIME = "time"
    ENERGY = "energy"
    COST = "cost"
    CO2E = "co2e"
    ENERGY_DELAY = "energy-delay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a configuration must keep; None for what is free.

    Attributes
    ----------
    run_time_s, energy_j, co2e_kg, cost : float or None
        Of the whole run, as `RunCost` counts them: time to the end, energy at the meter. [s], [J], [kg],
        [currency]
    node_power_w : float or None
        What the node draws at most, averaged over a step: GPUs, idle GPUs, rest of the node. [W]
    rack_power_w, rack_nodes : float or None, int
        The same for so many nodes that run the job each. [W], [1]
    memory_bytes : float or None
        Per GPU, where less than the card's is to be used. [bytes]
    n_gpus : int or None
        GPUs there are.
    min_global_batch, max_global_batch : float or None
        Samples of an optimizer step.
    """

    run_time_s: float | None = None
    energy_j: float | None = None
    co2e_kg: float | None = None
    cost: float | None = None
    node_power_w: float | None = None
    rack_power_w: float | None = None
    rack_nodes: int = 1
    memory_bytes: float | None = None
    n_gpus: int | None = None
    min_global_batch: float | None = None
    max_global_batch: float | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None and not 0 < value < inf:
                raise UsageError(f"a limit of {value:g} on {LIMIT_WORDS.get(f.name, f.name)} cannot be kept")

    def given(self) -> tuple[str, ...]:
        """Return the names of the limits that are set."""
        return tuple(name for name in LIMIT_WORDS if getattr(self, name) is not None)


#: Limits by their words for people.
LIMIT_WORDS: Final[Mapping[str, str]] = {
    "run_time_s": "deadline",
    "energy_j": "energy",
    "co2e_kg": "CO2e",
    "cost": "money",
    "node_power_w": "power of the node",
    "rack_power_w": "power of the rack",
    "memory_bytes": "memory",
    "n_gpus": "GPUs available",
    "min_global_batch": "least global batch",
    "max_global_batch": "most global batch",
}
#: Limits that hold for a whole run, and what a site must say for them.
RUN_LIMITS: Final = ("run_time_s", "energy_j", "co2e_kg", "cost")

#: Confidence of the predicted value itself. [1]
PREDICTED_FRAC: Final = 0.5

#: Candidates where the request does not name them.
DEFAULT_CANDIDATES: Final[Mapping[str, Any]] = {
    "precision": ["fp32", "tf32", "bf16"],
    "batch_per_gpu": "8:256:x2",
    "power_limit_frac": "0.4:1:0.05",
}
#: Micro-batches that are tried where the global batch is fixed.
USUAL_ACCUMULATE: Final = "1:16:x2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A question to `recommend`.

    Attributes
    ----------
    candidates : Space
    objective : Objective
    limits : Limits
    plan : TrainingPlan or None
        The whole run; None compares a sample's time, energy and money. Evaluation and checkpoints do not
        count here: they are alike for all candidates.
    site : Site
    confidence_frac : float
        How sure limits on time, energy, CO2e and money must be kept. [1]
    n_draws, seed : int
        Of the ranking's draws.
    """

    candidates: Space
    objective: Objective = Objective.ENERGY
    limits: Limits = field(default_factory=Limits)
    plan: TrainingPlan | None = None
    site: Site = field(default_factory=Site)
    confidence_frac: float = PREDICTED_FRAC
    n_draws: int = 4000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.confidence_frac < 1:
            raise UsageError(f"a confidence of {self.confidence_frac:g} cannot be: give 0.5 to 0.99")
        for name in RUN_LIMITS:
            if getattr(self.limits, name) is not None and self.plan is None:
                raise UsageError(
                    f"a limit on {LIMIT_WORDS[name]} is one of a whole run: give its samples or tokens"
                )
        needs_grid = self.objective is Objective.CO2E or self.limits.co2e_kg is not None
        if needs_grid and self.site.grid is None:
            raise UsageError("CO2e needs the grid: a country, a number in gCO2e/kWh or a file")
        needs_prices = self.objective is Objective.COST or self.limits.cost is not None
        if needs_prices and not (self.site.prices and self.site.prices.any_given):
            raise UsageError("money needs prices: of electricity, of GPU-hours or both")


def candidates_of(given: Mapping[str, Any], limits: Limits) -> Space:
    """Return the space of candidates, with the usual values for what is not named.

    Parameters
    ----------
    given : mapping
        Keys of a space (`space.KEYS`).
    limits : Limits
        The GPUs there are bound the counts that are tried.
    """
    asked = dict(given)
    for key, usual in DEFAULT_CANDIDATES.items():
        named = key in asked or any(other in asked for other in _INSTEAD.get(key, ()))
        if not named:
            asked[key] = usual
    if "global_batch" in asked and "accumulate" not in asked:
        asked["accumulate"] = USUAL_ACCUMULATE
    if "n_gpus" not in asked:
        asked["n_gpus"] = [n for n in (1, 2, 4, 8) if limits.n_gpus is None or n <= limits.n_gpus]
    return space_of(asked)


#: Keys that say the same in another way.
_INSTEAD: Final[Mapping[str, tuple[str, ...]]] = {
    "batch_per_gpu": ("global_batch",),
    "power_limit_frac": ("power_limit_w",),
}


# --- a file ---------------------------------------------------------------------------------------

#: Tables of the file, with their keys; those of ``candidates`` are the keys of a space.
_RUN_KEYS: Final = ("samples", "epochs", "tokens", "stop_epochs", "loader_samples_per_s", "trials")
_LIMIT_KEYS: Final[Mapping[str, tuple[str, float]]] = {
    "deadline_h": ("run_time_s", SECONDS_PER_HOUR),
    "energy_kwh": ("energy_j", J_PER_KWH),
    "co2e_kg": ("co2e_kg", 1.0),
    "cost": ("cost", 1.0),
    "node_power_w": ("node_power_w", 1.0),
    "rack_power_w": ("rack_power_w", 1.0),
    "rack_nodes": ("rack_nodes", 1),
    "memory_gib": ("memory_bytes", GIB),
    "gpus": ("n_gpus", 1),
    "min_global_batch": ("min_global_batch", 1.0),
    "max_global_batch": ("max_global_batch", 1.0),
}
_SITE_KEYS: Final = (
    "pue",
    "node_gpus",
    "host_power_w",
    "grid",
    "start",
    "price_per_kwh",
    "price_per_gpu_hour",
    "currency",
    "embodied_gpu_kg",
    "gpu_lifetime_h",
)
_TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "candidates": tuple(KEYS),
    "run": _RUN_KEYS,
    "limits": tuple(_LIMIT_KEYS),
    "site": _SITE_KEYS,
}
_TOP_KEYS: Final = ("objective", "confidence", "draws", "seed", *_TABLES)


def load_request(path: str | Path) -> Request:
    """Load a request from a TOML file.

    Raises
    ------
    UsageError
        There is no such file, it is no TOML, a key is unknown (with the near misses) or a value cannot be;
        the message names the file.
    """
    document = load_document(path)
    try:
        return request_of(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def load_document(path: str | Path) -> dict[str, Any]:
    """Load the tables of a request's file, to be changed before `request_of` reads them."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def request_of(
    document: Mapping[str, Any], *, plan: TrainingPlan | None = None, site: Site | None = None
) -> Request:
    """Return the request of a parsed file, every key checked.

    Parameters
    ----------
    document : mapping
        The tables of the file.
    plan, site : optional
        Instead of the tables ``run`` and ``site``.
    """
    _check_keys("key", document, _TOP_KEYS)
    tables = {name: _table(document, name) for name in _TABLES}
    for name, known in _TABLES.items():
        _check_keys(f"key of [{name}]", tables[name], known)
    limits = _limits_of(tables["limits"])
    chosen = {name: kind(document[key]) for key, (name, kind) in _SETTINGS.items() if key in document}
    if plan is None and tables["run"]:
        plan = _plan_of(tables["run"])
    return Request(
        candidates=candidates_of(tables["candidates"], limits),
        limits=limits,
        plan=plan,
        site=_site_of(tables["site"]) if site is None else site,
        **chosen,
    )


def objective_of(name: str) -> Objective:
    """Return an objective by name."""
    try:
        return Objective(name)
    except ValueError:
        raise UnknownNameError(
            "objective", str(name), list(Objective), f"(one of {', '.join(Objective)})"
        ) from None


_SETTINGS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "objective": ("objective", objective_of),
    "confidence": ("confidence_frac", lambda value: _number("confidence", value)),
    "draws": ("n_draws", lambda value: int(_number("draws", value))),
    "seed": ("seed", lambda value: int(_number("seed", value))),
}


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, Mapping):
        raise UsageError(f"{name} must be a table, [{name}]")
    return table


def _check_keys(what: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise UnknownNameError(what, key, known, f"(known are {', '.join(known)})")


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{key} must be a number, got {value!r}")
    return value


def _limits_of(table: Mapping[str, Any]) -> Limits:
    limits: dict[str, Any] = {}
    for key, value in table.items():
        name, factor = _LIMIT_KEYS[key]
        limits[name] = _number(key, value) * factor
    return Limits(**limits)


def _plan_of(table: Mapping[str, Any]) -> TrainingPlan:
    stop = table.get("stop_epochs")
    if stop is not None and (not isinstance(stop, list) or len(stop) != 2):  # noqa: PLR2004 (a range)
        raise UsageError(f"stop_epochs must be the fewest and the most epochs, [8, 24], got {stop!r}")
    numbers = {key: _number(key, value) for key, value in table.items() if key != "stop_epochs"}
    return TrainingPlan(
        n_samples=None if "samples" not in numbers else int(numbers["samples"]),
        n_epochs=int(numbers.get("epochs", 1)),
        n_tokens=numbers.get("tokens"),
        stop_epochs=None
        if stop is None
        else (_number("stop_epochs", stop[0]), _number("stop_epochs", stop[1])),
        loader_samples_per_s=numbers.get("loader_samples_per_s"),
        n_trials=int(numbers.get("trials", 1)),
    )


def _site_of(table: Mapping[str, Any]) -> Site:
    embodied, lifetime = (table.get(key) for key in ("embodied_gpu_kg", "gpu_lifetime_h"))
    if (embodied is None) != (lifetime is None):
        raise UsageError("embodied_gpu_kg and gpu_lifetime_h go together")
    start, grid = table.get("start"), table.get("grid")
    if start is not None and not isinstance(start, datetime):
        raise UsageError(f"start must be a TOML date-time, 2026-03-01T08:00:00, got {start!r}")
    paid = any(key in table for key in ("price_per_kwh", "price_per_gpu_hour"))
    gpu_hour = table.get("price_per_gpu_hour")
    by_gpu = gpu_hour if isinstance(gpu_hour, Mapping) else {}
    numbers: dict[str, Any] = {
        key: _number(key, table[key]) for key in ("pue", "node_gpus", "host_power_w") if key in table
    }
    return Site(
        **numbers,
        grid=None if grid is None else load_grid(str(grid)),
        start=start,
        prices=prices(
            per_kwh=None
            if "price_per_kwh" not in table
            else _number("price_per_kwh", table["price_per_kwh"]),
            per_gpu_hour=None if gpu_hour is None or by_gpu else _number("price_per_gpu_hour", gpu_hour),
            per_gpu_hour_by_gpu={
                load_gpu(name).slug: _number(f"price_per_gpu_hour.{name}", price)
                for name, price in by_gpu.items()
            },
            currency=str(table.get("currency", "")),
        )
        if paid
        else None,
        embodied=None
        if embodied is None
        else Embodied(
            gpu_kg=_number("embodied_gpu_kg", embodied),
            lifetime_s=_number("gpu_lifetime_h", lifetime) * SECONDS_PER_HOUR,
        ),
    )

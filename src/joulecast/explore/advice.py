"""Where nothing can be recommended: which limits contradict each other, what is nearest, what would fit.

In: candidates and how far they exceed the limits, or predictions that do not fit the memory. Out: the error
to raise, with the data to act on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any, Final

import numpy as np

from joulecast.errors import InfeasibleError, JoulecastError, NothingFitsError
from joulecast.explore.outcomes import Candidates
from joulecast.explore.request import LIMIT_WORDS, PREDICTED_FRAC, Request
from joulecast.explore.space import scenario_of
from joulecast.explore.table import SweepResult
from joulecast.hardware.catalogue import gpu_slugs, load_gpu
from joulecast.hardware.spec import Gpu
from joulecast.model.parameters import ParameterSet
from joulecast.prediction import predict_scenario
from joulecast.scenario import Scenario
from joulecast.units import GIB, J_PER_KWH, SECONDS_PER_HOUR
from joulecast.workload.table import Floats

#: Unit of each limit for people, and what it is in SI.
LIMIT_UNITS: Final[Mapping[str, tuple[float, str]]] = {
    "run_time_s": (SECONDS_PER_HOUR, " h"),
    "energy_j": (J_PER_KWH, " kWh"),
    "co2e_kg": (1.0, " kg"),
    "cost": (1.0, ""),
    "node_power_w": (1.0, " W"),
    "rack_power_w": (1.0, " W"),
    "memory_bytes": (GIB, " GiB"),
    "n_gpus": (1, ""),
    "min_global_batch": (1, ""),
    "max_global_batch": (1, ""),
}


def limit_text(name: str, value: float) -> str:
    """Return a limit in words: ``deadline 2 h``."""
    factor, unit = LIMIT_UNITS[name]
    return f"{LIMIT_WORDS[name]} {_digits(value / factor)}{unit}"


def _digits(value: float) -> str:
    """Return a number with three digits and no exponent where it is large."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 (three digits)


def configuration_text(row: Mapping[str, Any], *, with_model: bool = False) -> str:
    """Return a row of a sweep as people name it."""
    accumulate = f" in {row['accumulate']} micro-batches" if row["accumulate"] > 1 else ""
    parts = [
        f"{row['n_gpus']} x {row['gpu']}",
        row["precision"],
        f"batch {row['batch_per_gpu']:g} per GPU{accumulate}",
        *(["checkpointing"] if row["checkpointing"] else []),
        f"limit {row['power_limit_w']:.0f} W",
    ]
    return ", ".join(([f"{row['model']} on"] if with_model else []) + parts).replace(" on, ", " on ")


# --- limits that contradict each other ------------------------------------------------------------


def conflicting(excess: Mapping[str, Floats]) -> tuple[str, ...]:
    """Return the fewest limits that no configuration keeps together.

    Parameters
    ----------
    excess : mapping of str to ndarray [config]
        What each takes over the limit; at most 1 keeps it.
    """
    for size in range(1, len(excess) + 1):
        for names in combinations(excess, size):
            if not np.all([excess[name] <= 1 for name in names], axis=0).any():
                return names
    raise ValueError("some configuration keeps all limits")


def nearest(excess: Mapping[str, Floats]) -> int:
    """Return the configuration whose worst excess is least."""
    return int(np.argmin(np.max(list(excess.values()), axis=0)))


def infeasible(found: Candidates, request: Request, excess: Mapping[str, Floats]) -> InfeasibleError:
    """Return the error that names the limits, and the nearest configuration with what it takes."""
    names = conflicting(excess)
    i_nearest = nearest(excess)
    row = found.table.where(np.array([i_nearest])).to_rows()[0]
    missed = [name for name in excess if excess[name][i_nearest] > 1]
    message = (
        f"{_conflict(names, request, excess)}; of {len(found)} configurations that fit the memory the "
        f"nearest, {configuration_text(row, with_model=True)}, misses "
        f"{_missed(missed, request, excess, i_nearest)}"
    )
    return InfeasibleError(message, names)


def _conflict(names: tuple[str, ...], request: Request, excess: Mapping[str, Floats]) -> str:
    """Return which limits cannot be kept, at which confidence, and the best there is of a single one."""
    confidence = request.confidence_frac
    sure = "" if confidence == PREDICTED_FRAC else f" at {100 * confidence:.0f} % confidence"
    *others, last = (_asked(name, request) for name in names)
    if others:
        return f"{', '.join(others)} and {last} contradict each other{sure}"
    (name,) = names
    return f"{last} cannot be kept{sure}: the best there is, is {_taken(name, request, excess[name].min())}"


def _asked(name: str, request: Request) -> str:
    value = getattr(request.limits, name)
    return limit_text(name, request.site.node_gpus or 0 if value is None else value)


def _missed(names: list[str], request: Request, excess: Mapping[str, Floats], i_config: int) -> str:
    """Return the limits that a configuration misses, and by how much."""
    texts = []
    for name in names:
        ratio = float(excess[name][i_config])
        over = f"{100 * (ratio - 1):+.1f} %"
        texts.append(f"{LIMIT_WORDS[name]} with {_taken(name, request, ratio)} ({over})")
    return ", ".join(texts)


def _taken(name: str, request: Request, ratio: float) -> str:
    """Return what is taken at so many times a limit, with its unit."""
    limit = getattr(request.limits, name) or request.site.node_gpus or 0
    factor, unit = LIMIT_UNITS[name]
    taken = limit / ratio if name == "min_global_batch" else limit * ratio
    return f"{_digits(taken / factor)}{unit}"


# --- nothing fits the memory ----------------------------------------------------------------------

#: Precisions that need less memory, in the order to try.
_SMALLER_PRECISIONS: Final = ("bf16", "bf16-pure")


def nothing_fits(
    table: SweepResult, request: Request, parameters: ParameterSet, gpus: Mapping[str, Gpu]
) -> NothingFitsError:
    """Return the error that says the smallest changes that would make a configuration fit.

    Parameters
    ----------
    table : SweepResult
        Predicted rows, none of which fits.
    request : Request
    parameters : ParameterSet
    gpus : mapping of str to Gpu
        By slug.
    """
    capacity = table["capacity_bytes"]
    if request.limits.memory_bytes is not None:
        capacity = np.minimum(capacity, request.limits.memory_bytes)
    i_least = int(np.argmin(table["high_process_bytes"] / capacity))
    row = table.where(np.array([i_least])).to_rows()[0]
    room, need = float(capacity[i_least]), row["high_process_bytes"]
    asked = {load_gpu(name).slug: name for name in request.candidates.axes["gpu"]}
    scenario = scenario_of_row(row, asked)
    cards = _cards_like(gpus[row["gpu"]], row["n_gpus"])
    changes = (*_changes(scenario, parameters, room), *_on_larger_card(cards, need))
    if not changes and cards:
        largest = cards[-1]
        changes = tuple(
            f"{change} on {_card_text(largest)}"
            for change in _changes(scenario, parameters, largest.memory_bytes)
        )
    remedy = f"it would fit {'; or '.join(changes)}" if changes else "no change of it helps"
    message = (
        f"none of {len(table)} configurations fits the memory: the least that one needs is up to "
        f"{need / GIB:.3g} GiB of {room / GIB:.3g} GiB ({configuration_text(row, with_model=True)}); {remedy}"
    )
    return NothingFitsError(message, changes)


def scenario_of_row(row: Mapping[str, Any], asked: Mapping[str, str]) -> Scenario:
    """Return the scenario of a row of a sweep.

    Parameters
    ----------
    row : mapping
    asked : mapping of str to str
        The name a card was asked for by, by slug: a card from a file is not in the catalogue.
    """
    keys = (
        *("model", "n_sms", "mode", "precision", "optimizer", "attention", "memory_format", "checkpointing"),
        *("clip", "image_size", "seq_len", "accumulate", "batch_per_gpu", "parallel", "n_gpus"),
    )
    return scenario_of(
        {
            **{key: row[key] for key in keys},
            "gpu": asked[row["gpu"]],
            "power_limit_w": row["power_limit_w"],
            "sm_clock_hz": row["locked_sm_clock_hz"],
            "force": True,
        }
    )


def _changes(scenario: Scenario, parameters: ParameterSet, room: float) -> Iterator[str]:
    """Yield the changes of the step that make it fit: each alone, or where none does, the first together.

    Each change has ways, the mildest first: ever smaller micro-batches, checkpointing, precisions.
    """

    def fits(changed: Scenario) -> bool:
        try:
            return predict_scenario(changed, parameters).process_bytes.high <= room
        except JoulecastError:
            return False

    ways = _ways(scenario)
    found = False
    for n_changes in range(1, len(ways) + 1):
        for chosen in combinations(ways, n_changes):
            for steps in product(*chosen):
                words, changes = [step[0] for step in steps], [step[1] for step in steps]
                if fits(replace(scenario, **{k: v for change in changes for k, v in change.items()})):
                    yield " and ".join(words)
                    found = True
                    break
            if found and n_changes > 1:
                return
        if found:
            return


def _ways(scenario: Scenario) -> list[list[tuple[str, dict[str, Any]]]]:
    """Return the changes worth a try, each as ways in words and fields of the scenario."""
    batches = []
    batch, n_micro = scenario.batch_size or 1, scenario.accumulate
    while batch % 2 == 0:
        batch, n_micro = batch / 2, n_micro * 2
        change = {"batch_size": batch, "accumulate": n_micro}
        batches.append((f"with batch {batch:g} in {n_micro} micro-batches", change))
    checkpointing = [] if scenario.checkpointing else [("with checkpointing", {"checkpointing": True})]
    precisions = [
        (f"in {precision}", {"precision": precision})
        for precision in _SMALLER_PRECISIONS
        if precision != scenario.precision
    ]
    return [ways for ways in (batches, checkpointing, precisions) if ways]


def _cards_like(gpu: Gpu, n_gpus: int) -> list[Gpu]:
    """Return the cards of a vendor that can be joined, by rising memory."""
    cards = [
        card for card in map(load_gpu, gpu_slugs()) if card.vendor == gpu.vendor and _joins(card, n_gpus)
    ]
    return sorted(cards, key=lambda card: (card.memory_bytes, card.power_limit_w))


def _on_larger_card(cards: Sequence[Gpu], need: float) -> Iterator[str]:
    """Yield the smallest card that would hold it."""
    large = [card for card in cards if card.memory_bytes >= need]
    if large:
        yield f"on {_card_text(large[0])}"


def _card_text(card: Gpu) -> str:
    return f"{card.slug} ({card.memory_bytes / GIB:.3g} GiB)"


def _joins(card: Gpu, n_gpus: int) -> bool:
    try:
        card.link_between(n_gpus)
    except JoulecastError:
        return False
    return True

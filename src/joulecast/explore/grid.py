"""A block of a space, evaluated at once: settle its families, run the model on arrays, name the columns.

In: a `Space`, parameters, the block. Out: `SweepResult`. A family is all configurations that differ
in batch, number of GPUs, limits and clocks alone: it is settled once, by the code that settles a single
prediction, and its batches come from one trace.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from joulecast.errors import UnknownNameError, UsageError
from joulecast.estimates import (
    VERDICTS,
    Circumstances,
    Estimate,
    estimates,
    interval_ratios,
    memory_verdicts,
)
from joulecast.explore.space import Integers, Space, batch_size_of
from joulecast.explore.table import COLUMNS, TEXT_COLUMNS, Column, SweepResult
from joulecast.hardware.spec import Gpu
from joulecast.model.batch import Batch, loads_of
from joulecast.model.comm import Ring, ring_of
from joulecast.model.coverage import beyond_ranges, conditions, novelty, outside
from joulecast.model.parameters import ParameterSet
from joulecast.model.rows import Booleans
from joulecast.model.step import BOUNDS, StepPredictions, predict_steps, scaled_steps, step_flags
from joulecast.prediction import (
    Factors,
    beyond_flags,
    guesses_of,
    ideal_time_s,
    scalars_of,
    uncounted_flags,
)
from joulecast.results import Origin
from joulecast.scenario import (
    DEFAULT_BATCH_SIZE,
    Scenario,
    SettledStep,
    runs_flash,
    settle_gpu,
    settle_step,
    workload_of,
    workloads_of,
)
from joulecast.workload.table import Floats, Workloads, alone

#: Keys that a family has one value of.
_FAMILY_KEYS: Final = (
    *("model", "gpu", "hardware", "n_sms", "mode", "precision", "optimizer", "attention"),
    *("memory_format", "checkpointing", "clip", "image_size", "seq_len", "accumulate", "force"),
)

#: Families that are kept at hand.
_MOST_FAMILIES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """What the configurations of a family share, or why there are none.

    Attributes
    ----------
    asked : mapping
        Values of `_FAMILY_KEYS`.
    gpu, step : Gpu, SettledStep or None
    reason : str
        Why it cannot be predicted; empty where it can.
    """

    asked: Mapping[str, Any]
    gpu: Gpu | None = None
    step: SettledStep | None = None
    reason: str = ""


@dataclass(slots=True)
class Grid:
    """Evaluates blocks of a space; keeps the families of the last ones.

    Attributes
    ----------
    space : Space
    parameters : ParameterSet
    """

    space: Space
    parameters: ParameterSet
    _families: dict[int, _Family] = field(default_factory=dict)
    _cards: dict[tuple[int, ...], Ring | str] = field(default_factory=dict)

    def block(self, start: int, stop: int) -> SweepResult:
        """Return the predictions of the configurations from ``start`` up to ``stop``.

        Raises
        ------
        UnknownNameError
            A model or a card is unknown.
        """
        block = _Block.of(self, start, stop)
        columns = block.configuration_columns()
        good = np.flatnonzero(block.reasons == "")
        for name in COLUMNS:
            if name not in columns:
                columns[name] = _empty(name, len(block))
        if good.size:
            for name, values in _predicted(block, good).items():
                columns[name][good] = values
        columns["skipped_reason"] = block.reasons
        return SweepResult(columns={name: columns[name] for name in COLUMNS})

    def family(self, number: int) -> _Family:
        """Return a family by its number: the position of its values, the last key fastest."""
        if number not in self._families:
            if len(self._families) >= _MOST_FAMILIES:
                self._families.clear()
            self._families[number] = self._settled(number)
        return self._families[number]

    def _settled(self, number: int) -> _Family:
        keys, shape = self.family_axes()
        places = np.unravel_index(number, shape) if keys else ()
        chosen = {key: self.space.axes[key][i] for key, i in zip(keys, places, strict=True)}
        asked = {key: value for key, value in chosen.items() if value is not None}
        try:
            scenario = Scenario(**asked)
            gpu = settle_gpu(scenario).gpu
            step = settle_step(scenario)
        except UnknownNameError:
            raise
        except UsageError as error:
            return _Family(asked=asked, reason=_one_line(error))
        return _Family(asked=asked, gpu=gpu, step=step)

    def family_axes(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the keys that families differ in, and how many values each has."""
        keys = tuple(key for key in _FAMILY_KEYS if key in self.space.axes)
        return keys, tuple(len(self.space.axes[key]) for key in keys)

    def ring(self, key: tuple[int, ...], family: _Family, n_gpus: int, parallel: str | None) -> Ring | str:
        """Return what joins the GPUs of a job of a family's card, or why they cannot."""
        if key not in self._cards:
            try:
                asked = {
                    k: family.asked[k] for k in ("model", "gpu", "hardware", "n_sms") if k in family.asked
                }
                cards = settle_gpu(Scenario(**asked, n_gpus=n_gpus, parallel=parallel))
                self._cards[key] = ring_of(n_gpus, cards.gpu.link_between(n_gpus))
            except UsageError as error:
                self._cards[key] = _one_line(error)
        return self._cards[key]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _empty(name: str, n: int) -> Column:
    """Return a column without values."""
    return np.full(n, None, dtype=object) if name in TEXT_COLUMNS else np.full(n, nan)


def _texts(values: Sequence[Any]) -> Column:
    """Return texts as an object array, whatever they are."""
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


@dataclass(slots=True)
class _Block:
    """Configurations as asked for; arrays [config] unless they say [family]."""

    grid: Grid
    families: list[_Family]
    family_of: Integers
    n_gpus: Integers
    parallel: Column
    micro_batch: Floats
    limit_w: Floats
    locked_hz: Floats
    rings: list[Ring | None]
    ring_number: Integers
    reasons: Column

    def __len__(self) -> int:
        return len(self.family_of)

    @classmethod
    def of(cls, grid: Grid, start: int, stop: int) -> "_Block":
        """Return the block, with the reason of what cannot be."""
        axes, positions = grid.space.axes, grid.space.positions(start, stop)
        n = len(next(iter(positions.values())))
        keys, shape = grid.family_axes()
        number = np.ravel_multi_index([positions[key] for key in keys], shape)
        numbers, family_of = np.unique(number, return_inverse=True)

        def column(key: str, default: float) -> Floats:
            values = [nan if value is None else float(value) for value in axes.get(key, (default,))]
            return np.array(values)[positions.get(key, np.zeros(n, dtype=np.int64))]

        parallel = _texts(axes.get("parallel", (None,)))[
            positions.get("parallel", np.zeros(n, dtype=np.int64))
        ]
        block = cls(
            grid=grid,
            families=[grid.family(int(i)) for i in numbers],
            family_of=family_of,
            n_gpus=np.where(np.isnan(column("n_gpus", 1)), 1, column("n_gpus", 1)).astype(np.int64),
            parallel=parallel,
            micro_batch=np.empty(0),
            limit_w=column("power_limit_w", nan),
            locked_hz=column("sm_clock_hz", nan),
            rings=[],
            ring_number=np.empty(0, dtype=np.int64),
            reasons=_texts([""] * n),
        )
        block._take_batches(column("batch_per_gpu", nan), column("global_batch", nan))
        block._take_cards(column("power_limit_frac", nan), numbers)
        block._refuse(np.arange(n), family_of, [family.reason for family in block.families])
        return block

    def of_family(self, values: Sequence[float]) -> Floats:
        """Return a number of each family for its configurations. [config]."""
        return np.array(values, dtype=np.float64)[self.family_of]

    def _refuse(self, where: Integers, number: Integers, reasons: Sequence[str]) -> None:
        """Note why some configurations cannot be predicted, where no reason stands yet."""
        given = _texts(reasons)[number]
        new = (self.reasons[where] == "") & (given != "")
        self.reasons[where[new]] = given[new]

    def _take_batches(self, per_gpu: Floats, of_job: Floats) -> None:
        accumulate = self.of_family([float(family.asked.get("accumulate", 1)) for family in self.families])
        per_gpu = np.where(np.isnan(of_job), per_gpu, of_job / self.n_gpus)
        micro = np.where(np.isnan(per_gpu), float(DEFAULT_BATCH_SIZE), per_gpu / accumulate)
        self.micro_batch = np.floor(micro)
        bad = np.flatnonzero(micro != self.micro_batch)
        if not bad.size:
            return
        asked = np.stack([per_gpu, of_job, self.n_gpus, accumulate], axis=-1)[bad]
        distinct, number = np.unique(asked, axis=0, return_inverse=True)
        self._refuse(bad, number.ravel(), [_batch_reason(*row) for row in distinct.tolist()])

    def _take_cards(self, fraction: Floats, family_numbers: Integers) -> None:
        """Fill in limits and rings, and refuse what the cards cannot do."""
        known = [family.gpu for family in self.families]
        highest_w = self.of_family([gpu.max_power_limit_w if gpu else nan for gpu in known])
        lowest_w = self.of_family([gpu.min_power_limit_w if gpu else nan for gpu in known])
        default_w = self.of_family([gpu.power_limit_w if gpu else nan for gpu in known])
        asked_w = np.where(np.isnan(fraction), self.limit_w, fraction * highest_w)
        self.limit_w = np.where(np.isnan(asked_w), default_w, asked_w)
        forced = self.of_family([float(bool(family.asked.get("force"))) for family in self.families]) > 0
        self._take_rings(family_numbers)
        over = (asked_w < lowest_w) | (asked_w > highest_w)
        self._refuse_range(over & ~forced, asked_w, "power_limit_w")
        low_hz = self.of_family([gpu.min_clock_hz if gpu else nan for gpu in known])
        high_hz = self.of_family([gpu.max_clock_hz if gpu else nan for gpu in known])
        off = (self.locked_hz < low_hz) | (self.locked_hz > high_hz)
        self._refuse_range(off & ~forced, self.locked_hz, "sm_clock_hz")

    def _refuse_range(self, bad: Booleans, values: Floats, key: str) -> None:
        """Refuse values beyond the card's range, in the words of a single prediction."""
        where = np.flatnonzero(bad)
        if not where.size:
            return
        pairs = np.stack([self.family_of[where].astype(np.float64), values[where]], axis=-1)
        distinct, number = np.unique(pairs, axis=0, return_inverse=True)
        reasons = []
        for i, value in distinct.tolist():
            asked = self.families[int(i)].asked
            names = ("model", "gpu", "hardware", "n_sms")
            reasons.append(_reason({**{k: asked[k] for k in names if k in asked}, key: value}))
        self._refuse(where, number.ravel(), reasons)

    def _take_rings(self, family_numbers: Integers) -> None:
        choices, parallel_number = np.unique(self.parallel.astype(str), return_inverse=True)
        pairs = np.stack([self.family_of, self.n_gpus, parallel_number], axis=-1)
        distinct, number = np.unique(pairs, axis=0, return_inverse=True)
        rings: list[Ring | None] = []
        reasons = []
        for i, n_gpus, p in distinct.tolist():
            family = self.families[i]
            kind = None if choices[p] == "None" else str(choices[p])
            key = (int(family_numbers[i]), n_gpus, -1 if kind is None else ("none", "ddp").index(kind))
            ring = "" if family.gpu is None else self.grid.ring(key, family, n_gpus, kind)
            rings.append(ring if isinstance(ring, Ring) else None)
            reasons.append(ring if isinstance(ring, str) else "")
        self.rings, self.ring_number = rings, number.ravel()
        self._refuse(np.arange(len(self)), self.ring_number, reasons)

    def wrapped(self) -> Booleans:
        """Return whether the module is wrapped for data parallelism. [config]."""
        chosen: Booleans = (self.parallel == "ddp") | ((self.parallel == None) & (self.n_gpus > 1))  # noqa: E711
        return chosen

    def configuration_columns(self) -> dict[str, Column]:
        """Return the columns that echo what was asked."""
        accumulate = self.of_family([float(family.asked.get("accumulate", 1)) for family in self.families])
        per_gpu = self.micro_batch * accumulate
        columns: dict[str, Column] = {
            "n_gpus": self.n_gpus,
            "parallel": np.where(self.wrapped(), "ddp", "none").astype(object),
            "batch_per_gpu": per_gpu,
            "global_batch": per_gpu * self.n_gpus,
            "accumulate": accumulate.astype(np.int64),
            "power_limit_w": self.limit_w,
            "locked_sm_clock_hz": self.locked_hz,
        }
        for name in _FAMILY_COLUMNS:
            values = [_family_value(family, name) for family in self.families]
            if name in TEXT_COLUMNS:
                columns[name] = _texts(values)[self.family_of]
            elif name in ("checkpointing", "clip"):
                columns[name] = np.array([bool(value) for value in values])[self.family_of]
            else:
                columns[name] = self.of_family([nan if value is None else value for value in values])
        return columns


_FAMILY_COLUMNS: Final = (
    *("model", "gpu", "gpu_name", "n_sms", "precision", "mode", "seq_len", "image_size", "optimizer"),
    *("memory_format", "attention", "checkpointing", "clip"),
)


def _family_value(family: _Family, name: str) -> Any:
    """Return one column of a family: as settled, else as asked."""
    if family.step is None or family.gpu is None:
        return family.asked.get(name)
    of_gpu = {"gpu": family.gpu.slug, "gpu_name": family.gpu.name, "n_sms": family.gpu.n_sms}
    return of_gpu[name] if name in of_gpu else getattr(family.step, name)


def _batch_reason(per_gpu: float, of_job: float, n_gpus: float, accumulate: float) -> str:
    asked = {"n_gpus": int(n_gpus), "accumulate": int(accumulate)}
    batch = {"batch_per_gpu": per_gpu} if np.isnan(of_job) else {"global_batch": of_job}
    try:
        batch_size_of({**asked, **batch})
    except UsageError as error:
        return _one_line(error)
    raise AssertionError("a batch that divides was taken for one that does not")


def _reason(asked: Mapping[str, Any]) -> str:
    try:
        settle_gpu(Scenario(**asked))
    except UsageError as error:
        return _one_line(error)
    raise AssertionError("a card that can was taken for one that cannot")


# --- prediction -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Workloads of one family in a block, and what follows from them alone; arrays [size]."""

    family: _Family
    number: int
    loads: Workloads
    gpu: Gpu
    step: SettledStep
    ideal_time_s: Floats
    model_flop: Floats
    coverage_frac: Floats

    @classmethod
    def of(cls, family: _Family, number: int, loads: Workloads) -> "_Run":
        """Return the run of a family that could be settled."""
        assert family.gpu is not None
        assert family.step is not None
        ideal_s, flop = ideal_time_s(loads, family.gpu)
        return cls(
            family=family,
            number=number,
            loads=loads,
            gpu=family.gpu,
            step=family.step,
            ideal_time_s=ideal_s,
            model_flop=flop,
            coverage_frac=_coverage_frac(loads),
        )


def _coverage_frac(loads: Workloads) -> Floats:
    """Return the share of the traffic in operators that have a formula. [1] [size]."""
    table = loads.first.table
    moved = (loads.column("read_bytes") + loads.column("written_bytes")) * table.n_calls  # [size, op]
    total = moved.sum(axis=-1)
    return np.where(total > 0, moved @ table.counted / np.where(total > 0, total, 1.0), 1.0)


def _runs(block: _Block, good: Integers) -> tuple[list[_Run], Integers]:
    """Return the workloads of configurations, and the load of each: -1 where it cannot be. [config]."""
    load = np.full(len(good), -1)
    runs: list[_Run] = []
    n_loads = 0
    for number in np.unique(block.family_of[good]).tolist():
        mine = np.flatnonzero(block.family_of[good] == number)
        sizes, which = np.unique(block.micro_batch[good[mine]], return_inverse=True)
        family = block.families[number]
        for chosen, loads in _workloads(block, good[mine], family, sizes, which):
            place = np.full(len(sizes), -1)
            place[chosen] = n_loads + np.arange(len(chosen))
            load[mine] = np.maximum(load[mine], place[which])
            runs.append(_Run.of(family, number, loads))
            n_loads += len(chosen)
    return runs, load


def _workloads(
    block: _Block, where: Integers, family: _Family, sizes: Floats, which: Integers
) -> list[tuple[Integers, Workloads]]:
    """Return workloads of a family, with the indices of their sizes; refuses what cannot be traced."""
    assert family.gpu is not None
    assert family.step is not None
    flash = runs_flash(family.gpu)
    try:
        together = workloads_of(family.step, sizes, flash=flash)
    except UsageError as error:
        block._refuse(where, np.zeros(len(where), dtype=np.int64), [_one_line(error)])
        return []
    if together is not None:
        return [(np.arange(len(sizes)), together)]
    found = []
    for i, size in enumerate(sizes.tolist()):
        try:
            load = workload_of(family.step.at(size), flash=flash)
        except UsageError as error:
            mine = where[which == i]
            block._refuse(mine, np.zeros(len(mine), dtype=np.int64), [_one_line(error)])
            continue
        found.append((np.array([i]), alone(load)))
    return found


def _predicted(block: _Block, good: Integers) -> dict[str, Column]:
    """Return the columns of a block's predictions; NaN where a trace refused. [good]."""
    runs, load = _runs(block, good)
    taken = np.flatnonzero(load >= 0)
    if not taken.size:
        return {}
    where, load = good[taken], load[taken]
    rings = [block.rings[i] for i in range(len(block.rings))]
    ring = _stacked(rings, block.ring_number[where])
    locked_hz = block.locked_hz[where]
    batch = Batch(
        loads=loads_of([(run.loads, run.gpu) for run in runs]),
        load=load,
        ring=ring,
        limit_w=block.limit_w[where],
        locked_clock_hz=locked_hz,
    )
    parameters = block.grid.parameters
    run_of = np.repeat(np.arange(len(runs)), [len(run.loads) for run in runs])[load]
    factors = [_factors(parameters, run) for run in runs]
    found = scaled_steps(
        predict_steps(batch, parameters, block.wrapped()[where]),
        np.array([factor.time for factor in factors])[run_of],
        np.array([factor.power for factor in factors])[run_of],
    )
    around = _circumstances(runs, run_of, batch)
    asked = _Asked.of(parameters, runs, run_of, batch)
    by_name = estimates(found, around, interval_ratios(parameters, found.features, asked.novelty))
    columns = {**_numbers(by_name), **_facts(runs, run_of, load, around)}
    columns |= _verdicts(found, by_name["process_bytes"], around)
    columns |= _words(parameters, asked, batch, found)
    if len(taken) == len(good):
        return columns
    return {name: _spread(name, column, taken, len(good)) for name, column in columns.items()}


def _spread(name: str, column: Column, taken: Integers, n: int) -> Column:
    whole = _empty(name, n)
    whole[taken] = column
    return whole


def _stacked(rings: Sequence[Ring | None], number: Integers) -> Ring:
    """Return the rings of configurations. [config]."""

    def column(name: str) -> Floats:
        return np.array([nan if ring is None else float(getattr(ring, name)[0]) for ring in rings])[number]

    return Ring(
        n_gpus=column("n_gpus"), bus_bytes_per_s=column("bus_bytes_per_s"), over_pcie=column("over_pcie")
    )


def _factors(parameters: ParameterSet, run: _Run) -> Factors:
    """Return the factors of a user's own calibration on a run."""
    return scalars_of(parameters, run.step.model, run.step.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a block asks of a calibration; arrays [config].

    Attributes
    ----------
    runs, run_of : list of _Run, ndarray of int
    batch_size : ndarray
        Samples per GPU. [1]
    beyond : ndarray of bool
        Whether a size lies outside the calibration's.
    novelty : mapping of str to ndarray
        As `coverage.novelty`. [1]
    calibrated : ndarray of bool
        Whether nothing is new.
    """

    runs: Sequence[_Run]
    run_of: Integers
    batch_size: Floats
    beyond: Booleans
    novelty: Mapping[str, Floats]
    calibrated: Booleans

    @classmethod
    def of(cls, parameters: ParameterSet, runs: Sequence[_Run], run_of: Integers, batch: Batch) -> "_Asked":
        batch_size = np.concatenate([run.loads.batch_size for run in runs])[batch.load]
        plain = [conditions(run.loads.first, run.gpu) for run in runs]
        marks = [novelty(outside(asked, parameters)) for asked in plain]
        limit_w, max_hz = (
            np.array([getattr(run.gpu, name) for run in runs])[run_of]
            for name in ("power_limit_w", "max_clock_hz")
        )
        sizes = {
            "n_gpus": batch.ring.n_gpus,
            "limit_ratio": np.where(batch.limit_w == limit_w, nan, batch.limit_w / limit_w),
            "clock_ratio": batch.locked_clock_hz / max_hz,
            "sms_ratio": np.array([asked.sizes.get("sms_ratio", nan) for asked in plain])[run_of],
        }
        classes = np.array([asked.model_class for asked in plain])[run_of]
        for name in np.unique(classes).tolist():
            sizes[f"batch_per_gpu.{name}"] = np.where(classes == name, batch_size, nan)
        beyond = (
            beyond_ranges(sizes, parameters) if parameters.covered_gpus else np.zeros(len(run_of), np.bool_)
        )
        columns = {name: np.array([mark[name] for mark in marks])[run_of] for name in marks[0]}
        columns["unseen_range"] = beyond.astype(np.float64)
        return cls(
            runs=runs,
            run_of=run_of,
            batch_size=batch_size,
            beyond=beyond,
            novelty=columns,
            calibrated=~np.any(np.stack(list(columns.values())) > 0, axis=0),
        )


def _circumstances(runs: Sequence[_Run], run_of: Integers, batch: Batch) -> Circumstances:
    """Return what the quantities of a block follow from. [config]."""

    def of_run(values: Sequence[float]) -> Floats:
        return np.array(values, dtype=np.float64)[run_of]

    def of_load(values: Sequence[Floats]) -> Floats:
        return np.concatenate(values)[batch.load]

    top_hz = of_run([run.gpu.max_clock_hz for run in runs])
    return Circumstances(
        n_gpus=batch.ring.n_gpus,
        n_samples=of_load([run.loads.batch_size for run in runs]) * batch.ring.n_gpus,
        seq_len=of_run([run.loads.first.seq_len or nan for run in runs]),
        idle_power_w=of_run([run.gpu.idle_power_w for run in runs]),
        power_limit_w=batch.limit_w,
        min_clock_hz=of_run([run.gpu.min_clock_hz for run in runs]),
        top_clock_hz=np.where(np.isnan(batch.locked_clock_hz), top_hz, batch.locked_clock_hz),
        memory_bytes=of_run([run.gpu.memory_bytes for run in runs]),
        ideal_time_s=of_load([run.ideal_time_s for run in runs]),
        coverage_frac=of_load([run.coverage_frac for run in runs]),
    )


def _numbers(by_name: Mapping[str, Estimate]) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for name, estimate in by_name.items():
        columns |= {name: estimate.value, f"low_{name}": estimate.low, f"high_{name}": estimate.high}
    return columns


def _facts(
    runs: Sequence[_Run], run_of: Integers, load: Integers, around: Circumstances
) -> dict[str, Column]:
    """Return columns that follow from the work and the card."""
    flop = np.concatenate([run.model_flop for run in runs])[load]
    worked = flop > 0
    return {
        "seq_len": np.array([float(run.loads.first.seq_len) or nan for run in runs])[run_of],
        "mfu_peak_flop_per_s": np.where(worked, flop / np.where(worked, around.ideal_time_s, 1.0), 0.0),
        "model_flop": flop,
        "capacity_bytes": around.memory_bytes,
    }


def _verdicts(found: StepPredictions, process: Estimate, around: Circumstances) -> dict[str, Column]:
    """Return columns of judgement."""
    words = _texts([str(verdict) for verdict in VERDICTS])
    shares = {f"{bound}_time_share_frac": found.time_shares[:, i] for i, bound in enumerate(BOUNDS)}
    return {
        "memory_verdict": words[memory_verdicts(process, around.memory_bytes)],
        "bound_by": _texts(BOUNDS)[found.bound],
        **shares,
    }


def _words(
    parameters: ParameterSet, asked: _Asked, batch: Batch, found: StepPredictions
) -> dict[str, Column]:
    """Return the columns of texts that people must read."""
    runs, run_of = asked.runs, asked.run_of
    several = batch.ring.n_gpus > 1
    guesses = [("; ".join(guesses_of(run.gpu, 1)), "; ".join(guesses_of(run.gpu, 2))) for run in runs]
    origins = _texts([str(Origin.DATASHEET), str(Origin.CALIBRATED)])
    return {
        "origin": origins[asked.calibrated.astype(np.int64)],
        "notes": _texts(["; ".join(run.loads.first.notes) or None for run in runs])[run_of],
        "guesses": np.where(
            several,
            _texts([pair[1] or None for pair in guesses])[run_of],
            _texts([pair[0] or None for pair in guesses])[run_of],
        ),
        "flags": _flags(parameters, asked, batch, found),
    }


def _flags(parameters: ParameterSet, asked: _Asked, batch: Batch, found: StepPredictions) -> Column:
    """Return the flags of every configuration, joined: made once for those that share them."""
    runs, run_of = asked.runs, asked.run_of
    exceeds = found.costs.exceeds_limit
    low_w, high_w = (
        np.array([getattr(run.gpu, f"{end}_power_limit_w") for run in runs]) for end in ("min", "max")
    )
    low_hz, high_hz = (
        np.array([getattr(run.gpu, f"{end}_clock_hz") for run in runs]) for end in ("min", "max")
    )
    off_limit = (batch.limit_w < low_w[run_of]) | (batch.limit_w > high_w[run_of])
    off_clock = (batch.locked_clock_hz < low_hz[run_of]) | (batch.locked_clock_hz > high_hz[run_of])
    cases = np.stack(
        [
            run_of.astype(np.float64),
            np.where(exceeds | asked.beyond, batch.limit_w, -1.0),
            exceeds.astype(np.float64),
            off_limit.astype(np.float64),
            np.where(off_clock | asked.beyond, np.nan_to_num(batch.locked_clock_hz, nan=-1.0), -1.0),
            np.where(asked.beyond, batch.ring.n_gpus, -1.0),
            np.where(asked.beyond, asked.batch_size, -1.0),
        ],
        axis=-1,
    )
    first, number = _distinct_rows(cases)
    texts = []
    for i in first.tolist():
        run = runs[run_of[i]]
        locked_hz = float(batch.locked_clock_hz[i])
        flags = step_flags(
            run.loads.first,
            run.gpu,
            parameters,
            limit_w=float(batch.limit_w[i]),
            sm_clock_hz=locked_hz if off_clock[i] else None,
            exceeds_limit=bool(exceeds[i]),
        )
        size = conditions(
            run.loads.first,
            run.gpu,
            n_gpus=int(batch.ring.n_gpus[i]),
            power_limit_w=float(batch.limit_w[i]),
            sm_clock_hz=None if np.isnan(locked_hz) else locked_hz,
            batch_size=float(asked.batch_size[i]),
        )
        every = (
            *run.step.flags,
            *flags,
            *_factors(parameters, run).flags,
            *beyond_flags(outside(size, parameters)),
            *uncounted_flags(run.loads.first.table),
        )
        texts.append("; ".join(every) or None)
    return _texts(texts)[number]


def _distinct_rows(rows: npt.NDArray[np.float64]) -> tuple[Integers, Integers]:
    """Return where each distinct row first occurs, and which of them each row is."""
    label = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        values, number = np.unique(column, return_inverse=True)
        label = label * len(values) + number
    first, inverse = np.unique(label, return_index=True, return_inverse=True)[1:]
    return first, inverse

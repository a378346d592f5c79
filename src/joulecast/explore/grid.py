"""A block of a space, evaluated at once: the model on arrays, and columns by name.

In: a `Space`, parameters, the range of configurations. Out: `SweepResult`. The batches of a family come from
one trace; configurations that differ in limit, clock or number of GPUs share its rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
import numpy.typing as npt

from joulecast.errors import UsageError
from joulecast.estimates import (
    VERDICTS,
    Circumstances,
    Estimate,
    estimates,
    interval_ratios,
    memory_verdicts,
)
from joulecast.explore.blocks import Block
from joulecast.explore.families import Families, Family, one_line
from joulecast.explore.space import Integers, Space
from joulecast.explore.table import COLUMNS, Column, SweepResult, empty_column, texts
from joulecast.hardware.spec import Gpu
from joulecast.model.batch import Batch, loads_of
from joulecast.model.comm import Ring
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
from joulecast.scenario import SettledStep, runs_flash, workload_of, workloads_of
from joulecast.workload.table import Floats, Workloads, alone


class Grid:
    """Evaluates blocks of a space; keeps what the last ones were settled to.

    Parameters
    ----------
    space : Space
    parameters : ParameterSet
    """

    def __init__(self, space: Space, parameters: ParameterSet) -> None:
        self.space = space
        self.parameters = parameters
        self._families = Families(space)

    def block(self, start: int, stop: int) -> SweepResult:
        """Return the predictions of the configurations from ``start`` up to ``stop``.

        Raises
        ------
        UnknownNameError
            A model or a card is unknown.
        """
        block = Block.of(self._families, start, stop)
        columns = block.configuration_columns()
        good = np.flatnonzero(block.reasons == "")
        for name in COLUMNS:
            if name not in columns:
                columns[name] = empty_column(name, len(block))
        if good.size:
            for name, values in _predicted(block, good, self.parameters).items():
                columns[name][good] = values
        columns["skipped_reason"] = block.reasons
        return SweepResult(columns={name: columns[name] for name in COLUMNS})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Workloads of one family in a block, and what follows from them alone; arrays [size]."""

    family: Family
    number: int
    loads: Workloads
    gpu: Gpu
    step: SettledStep
    ideal_time_s: Floats
    model_flop: Floats
    coverage_frac: Floats

    @classmethod
    def of(cls, family: Family, number: int, loads: Workloads) -> "_Run":
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


def _runs(block: Block, good: Integers) -> tuple[list[_Run], Integers]:
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
    block: Block, where: Integers, family: Family, sizes: Floats, which: Integers
) -> list[tuple[Integers, Workloads]]:
    """Return workloads of a family, with the indices of their sizes; refuses what cannot be traced."""
    assert family.gpu is not None
    assert family.step is not None
    flash = runs_flash(family.gpu)
    try:
        together = workloads_of(family.step, sizes, flash=flash)
    except UsageError as error:
        block.refuse(where, np.zeros(len(where), dtype=np.int64), [one_line(error)])
        return []
    if together is not None:
        return [(np.arange(len(sizes)), together)]
    found = []
    for i, size in enumerate(sizes.tolist()):
        try:
            load = workload_of(family.step.at(size), flash=flash)
        except UsageError as error:
            mine = where[which == i]
            block.refuse(mine, np.zeros(len(mine), dtype=np.int64), [one_line(error)])
            continue
        found.append((np.array([i]), alone(load)))
    return found


def _predicted(block: Block, good: Integers, parameters: ParameterSet) -> dict[str, Column]:
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
    whole = empty_column(name, n)
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
    words = texts([str(verdict) for verdict in VERDICTS])
    shares = {f"{bound}_time_share_frac": found.time_shares[:, i] for i, bound in enumerate(BOUNDS)}
    return {
        "memory_verdict": words[memory_verdicts(process, around.memory_bytes)],
        "bound_by": texts(BOUNDS)[found.bound],
        **shares,
    }


def _words(
    parameters: ParameterSet, asked: _Asked, batch: Batch, found: StepPredictions
) -> dict[str, Column]:
    """Return the columns of texts that people must read."""
    runs, run_of = asked.runs, asked.run_of
    several = batch.ring.n_gpus > 1
    guesses = [("; ".join(guesses_of(run.gpu, 1)), "; ".join(guesses_of(run.gpu, 2))) for run in runs]
    origins = texts([str(Origin.DATASHEET), str(Origin.CALIBRATED)])
    return {
        "origin": origins[asked.calibrated.astype(np.int64)],
        "notes": texts(["; ".join(run.loads.first.notes) or None for run in runs])[run_of],
        "guesses": np.where(
            several,
            texts([pair[1] or None for pair in guesses])[run_of],
            texts([pair[0] or None for pair in guesses])[run_of],
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
    lines = []
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
        lines.append("; ".join(every) or None)
    return texts(lines)[number]


def _distinct_rows(rows: npt.NDArray[np.float64]) -> tuple[Integers, Integers]:
    """Return where each distinct row first occurs, and which of them each row is."""
    label = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        values, number = np.unique(column, return_inverse=True)
        label = label * len(values) + number
    first, inverse = np.unique(label, return_index=True, return_inverse=True)[1:]
    return first, inverse

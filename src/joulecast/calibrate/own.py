"""Calibrate a parameter set to one's own runs: from a handful to all of them.

In: a file of runs, operators if there are any, the set to start from. Out: `OwnCalibration`: the set, what
each stage gained, which parameters the data left alone and why, named notices. Everything is pulled towards
the start, so that a few runs change little but what they show.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

import joulecast
from joulecast.calibrate.checkpoint import Progress, checkpoint_key, resumed, save_checkpoint
from joulecast.calibrate.checks import (
    Notice,
    check_enough,
    check_measured,
    check_units,
    configuration,
    contradictions,
    one_gpu,
    unknown_columns,
)
from joulecast.calibrate.dataset import StepRecord, records_of_runs
from joulecast.calibrate.explain import plain_stage
from joulecast.calibrate.intervals import (
    FEWEST_ROWS,
    conditions_of,
    conformal_quantiles,
    held_out_steps,
)
from joulecast.calibrate.memory import log_ratios as memory_log_ratios
from joulecast.calibrate.memory import memory_records
from joulecast.calibrate.observations import MOST_FOLDS, STAGE_NAMES, OwnStage, planned_stages, step_folds
from joulecast.calibrate.ops import OperatorRecords, load_operator_records
from joulecast.calibrate.posterior import (
    Observations,
    determined,
    most_probable,
    named_slopes,
    prior_of,
    slopes,
    stepped,
)
from joulecast.calibrate.runs import Run, load_runs
from joulecast.calibrate.scalars import per_model_scalars
from joulecast.calibrate.stages import Values, mean_error
from joulecast.calibrate.steps import step_problem
from joulecast.errors import UsageError
from joulecast.hardware.catalogue import load_gpu
from joulecast.model.coverage import with_coverage
from joulecast.model.intervals import IntervalModel
from joulecast.model.parameters import ParameterSet, StageRecord, definition
from joulecast.workload.table import Floats

CALIBRATION_SCHEMA: Final = "joulecast/calibration/1"

# --- the whole ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOptions:
    """How a calibration of one's own runs.

    Attributes
    ----------
    only : tuple of str
        Of `STAGE_NAMES`; empty for all.
    per_model : bool
        Whether a last stage may give each model a factor of its own.
    seed : int
        Of the folds.
    """

    only: tuple[str, ...] = ()
    per_model: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = sorted(set(self.only) - set(STAGE_NAMES))
        if unknown:
            raise UsageError(f"unknown stage {', '.join(unknown)}: choose of {', '.join(STAGE_NAMES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCalibration:
    """What came of it.

    Attributes
    ----------
    parameters : ParameterSet
        With a `StageRecord` for each stage.
    left : mapping of str to str
        Parameter -> why the data do not determine it.
    changed : mapping of str to (float, float)
        Parameter -> value before and after.
    notices : tuple of Notice
    n_runs, n_used : int
        Rows of the file; rows that could be used.
    skipped : mapping of str to str
        Run -> why it could not.
    """

    parameters: ParameterSet
    left: Mapping[str, str]
    changed: Mapping[str, tuple[float, float]]
    notices: tuple[Notice, ...]
    n_runs: int
    n_used: int
    skipped: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``joulecast calibrate --format json``."""
        return {
            "schema": CALIBRATION_SCHEMA,
            "runs": self.n_runs,
            "used": self.n_used,
            "stages": [plain_stage(stage) for stage in self.parameters.stages],
            "changed": {name: {"before": a, "after": b} for name, (a, b) in self.changed.items()},
            "left": dict(self.left),
            "notices": [{"name": notice.name, "text": notice.text} for notice in self.notices],
            "skipped": [{"run_id": run, "reason": reason} for run, reason in self.skipped.items()],
        }


def calibrate_own(
    runs_path: str | Path | None,
    start: ParameterSet,
    options: OwnOptions,
    *,
    operators_path: str | Path | None = None,
    checkpoint: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> OwnCalibration:
    """Return a set calibrated to one's own measurements.

    Parameters
    ----------
    runs_path : str, Path or None
        CSV of runs; None where there are only operators.
    start : ParameterSet
        Where every parameter starts, and what it is pulled towards.
    options : OwnOptions
    operators_path : str, Path or None
        Parquet of single operators.
    checkpoint : Path or None
        File that holds what is done after each stage; a calibration with the same inputs goes on from it.
        Remove it once the set is saved.
    progress : callable or None
        Told a line per stage.

    Raises
    ------
    UsageError, RunsError
        The measurements cannot be read or used; the message says what to do.
    """
    if runs_path is None and operators_path is None:
        raise UsageError("name the measurements: --runs RUNS.csv, --ops OPS.parquet, or both")
    tell = progress or (lambda line: None)
    runs, notices, records, skipped = _usable(runs_path, start)
    operators = None if operators_path is None else load_operator_records(operators_path)
    planned = planned_stages(
        runs, records, operators, options.only, options.seed, _widening(records, operators, start)
    )
    state = Progress(values=dict(start.values), fold_values=[dict(start.values) for _ in range(MOST_FOLDS)])
    key = checkpoint_key((runs_path, operators_path), start.values, asdict(options))
    if checkpoint is not None:
        state = resumed(checkpoint, key, state, tell)
    done = {record.name for record in state.stages}
    for stage in planned:
        if stage.name in done:
            continue
        tell(_line(run_stage(stage, start.values, state)))
        if checkpoint is not None:
            save_checkpoint(checkpoint, key, state)
    parameters = _finished(start, state, records, operators, options, tell)
    return OwnCalibration(
        parameters=parameters,
        left=dict(state.left),
        changed={
            name: (start.values[name], value)
            for name, value in parameters.values.items()
            if value != start.values[name]
        },
        notices=tuple(notices),
        n_runs=len(runs),
        n_used=len(records),
        skipped=skipped,
    )


#: How much wider the priors are on cards that the start has not seen: what it says of efficiencies there is
#: carried over from others. [1] (guess)
_UNSEEN_WIDENING: Final = 3.0


def _widening(records: Sequence[StepRecord], operators: OperatorRecords | None, start: ParameterSet) -> float:
    slugs = {record.step.gpu.slug for record in records}
    slugs |= set(np.unique(operators.gpu).tolist()) if operators is not None else set()
    return 1.0 if slugs & set(start.covered_gpus) else _UNSEEN_WIDENING


Usable = tuple[tuple[Run, ...], list[Notice], list[StepRecord], dict[str, str]]


def _usable(runs_path: str | Path | None, start: ParameterSet) -> Usable:
    """Return the runs, notices about them, their records, and why others have none."""
    if runs_path is None:
        return (), [], [], {}
    file = load_runs(runs_path)
    check_measured(file)
    records, skipped = records_of_runs(file.runs)
    by_id = {run.run_id: run for run in file.runs}
    used = [by_id[record.run_id] for record in records]
    check_enough(len({configuration(run) for run in used}), skipped)
    _check_units(used, records, start)
    slugs = [record.step.gpu.slug for record in records]
    notices = [*unknown_columns(file), *contradictions(used), *one_gpu(slugs)]
    return file.runs, notices, records, skipped


def _check_units(runs: Sequence[Run], records: Sequence[StepRecord], start: ParameterSet) -> None:
    """Raise `RunsError` where times, powers or memories are of another unit."""
    problem = step_problem(records)
    measured = problem.log_ratios(start.values)
    for column, ratio, values in (
        ("step_time_s", measured[0], problem.step_time_s),
        ("mean_power_w", measured[1], problem.mean_power_w),
    ):
        chosen = np.flatnonzero(np.isfinite(ratio))
        if len(chosen):
            check_units([runs[i] for i in chosen.tolist()], column, (values / np.exp(ratio))[chosen])
    with_memory = [run for run in runs if run.is_device_memory and "peak_memory_bytes" in run.measured]
    memory = memory_records(with_memory)
    if len(memory) == len(with_memory) and memory:
        peaks = np.array([record.peak_bytes for record in memory])
        check_units(with_memory, "peak_memory_bytes", peaks / np.exp(memory_log_ratios(memory, start.values)))


# --- a stage --------------------------------------------------------------------------------------


def run_stage(stage: OwnStage, start: Values, state: Progress) -> StageRecord:
    """Run a stage; keep what it finds if the error of rows held out falls.

    Parameters
    ----------
    stage : OwnStage
    start : mapping
        What every parameter is pulled towards.
    state : Progress
        Changed: values and those without each fold where the stage is kept; records in any case.
    """
    observed = stage.observations
    before = observed.log_ratios(state.values)
    whole = prior_of(stage.parameters, start, stage.relative, stage.followers)
    slope = slopes(observed, state.values, whole)
    chosen, left = determined(slope, stage.parameters)
    state.left.update(left)
    held_before = _held_out(observed, state.fold_values)
    outcome = StageRecord(
        name=stage.name,
        parameters=tuple(chosen),
        n_rows=len(before),
        error_before=mean_error(before),
        error_after=mean_error(before),
        held_out_before=mean_error(held_before),
        held_out_after=mean_error(held_before),
        kept=False,
        reason="the data determine none of its parameters",
    )
    if chosen:
        prior = whole.chosen(chosen)
        outcome = replace(outcome, parameters=prior.moved)
        found = most_probable(observed, state.values, prior, named_slopes(slope, stage.parameters, chosen))
        slope_there = slopes(observed, {**state.values, **found}, prior)
        without = [
            {**values, **stepped(observed, values, prior, slope_there, observed.fold != number)}
            if np.any(observed.fold == number)
            else {**values, **found}
            for number, values in enumerate(state.fold_values)
        ]
        held_after = mean_error(_held_out(observed, without))
        kept = held_after < outcome.held_out_before
        outcome = replace(
            outcome,
            error_after=mean_error(observed.log_ratios({**state.values, **found})),
            held_out_after=held_after,
            kept=kept,
            reason=f"the held-out error {'falls' if kept else 'does not fall'}",
        )
        if kept:
            state.left = {name: why for name, why in state.left.items() if name not in found}
            state.values.update(found)
            state.fold_values = without
    state.stages.append(outcome)
    return outcome


def _held_out(observed: Observations, fold_values: Sequence[Values]) -> Floats:
    """Return the log ratios of each fold by the parameters that have not seen it. [1] [observation]."""
    ratios = np.empty(len(observed.fold))
    for number in np.unique(observed.fold).tolist():
        inside = observed.fold == number
        ratios[inside] = observed.log_ratios(fold_values[number])[inside]
    return ratios


def _line(record: StageRecord) -> str:
    kept = "kept" if record.kept else "left out"
    return (
        f"{record.name}: held-out error {record.held_out_before:.1%} -> {record.held_out_after:.1%}, {kept}: "
        f"{record.reason} ({len(record.parameters)} parameters, {record.n_rows} values)"
    )


# --- scalars, intervals, coverage -----------------------------------------------------------------


def _finished(
    start: ParameterSet,
    state: Progress,
    records: Sequence[StepRecord],
    operators: OperatorRecords | None,
    options: OwnOptions,
    tell: Callable[[str], None],
) -> ParameterSet:
    """Return the set: values, scalars, intervals, coverage, what each stage did."""
    result = replace(start, values=dict(state.values), model_scalars={}, precision_scalars={})
    ratios = _held_out_ratios(records, state, options.seed) if records else (np.empty(0), np.empty(0))
    if options.per_model and records:
        scalars, record, ratios = per_model_scalars(records, state.values, ratios)
        state.stages.append(record)
        tell(_line(record))
        if record.kept:
            result = replace(result, model_scalars=scalars)
    if records:
        result = replace(result, intervals=_own_intervals(result, records, ratios))
    return replace(
        _covering(result, start, records, operators, state),
        stages=tuple(state.stages),
        provenance=_provenance(start, records, operators, options, state),
    )


def _held_out_ratios(records: Sequence[StepRecord], state: Progress, seed: int) -> tuple[Floats, Floats]:
    """Return log ratios of time and power of each record, by parameters that have not seen it. [record]."""
    problem = step_problem(records)
    fold = step_folds(records, seed)
    time, mean_power = np.full(len(records), np.nan), np.full(len(records), np.nan)
    for number in np.unique(fold).tolist():
        inside = fold == number
        by_time, by_power = problem.log_ratios(state.fold_values[number])
        time[inside], mean_power[inside] = by_time[inside], by_power[inside]
    return np.where(problem.group >= 0, np.nan, time), mean_power


def _own_intervals(
    result: ParameterSet, records: Sequence[StepRecord], ratios: tuple[Floats, Floats]
) -> IntervalModel:
    """Return the start's intervals, their quantiles set by one's own rows held out where there are enough."""
    covered = with_coverage(result, [conditions_of(record) for record in records])
    rows = held_out_steps(records, result.values, covered)
    time, mean_power = ratios
    spreads = dict(result.intervals.spreads)
    for quantity, ratio in (("time", time), ("power", mean_power), ("energy", time + mean_power)):
        chosen = np.isfinite(ratio)
        if int(np.sum(chosen)) < FEWEST_ROWS:
            continue
        features = {name: column[: len(records)][chosen] for name, column in rows.features.items()}
        low, high = conformal_quantiles(ratio[chosen] / result.intervals.scale(quantity, features))
        spreads[quantity] = replace(spreads[quantity], low=low, high=high, n_rows=int(np.sum(chosen)))
    return IntervalModel(spreads=spreads)


def _covering(
    result: ParameterSet,
    start: ParameterSet,
    records: Sequence[StepRecord],
    operators: OperatorRecords | None,
    state: Progress,
) -> ParameterSet:
    """Return the set with what it covers: one's own cards; the start's too where only the host changed."""
    seen = with_coverage(result, [conditions_of(record) for record in records])
    slugs = {*seen.covered_gpus, *(np.unique(operators.gpu).tolist() if operators is not None else ())}
    architectures = {load_gpu(slug).architecture for slug in slugs - set(seen.covered_gpus)}
    changed = {name for name, value in state.values.items() if value != start.values[name]}
    keeps_cards = all(name.startswith(("host.", "memory.", "bench.")) for name in changed)
    joined = {
        "covered_architectures": architectures | set(seen.covered_architectures),
        "covered_gpus": slugs,
        "covered_precisions": set(seen.covered_precisions) | set(start.covered_precisions),
        "covered_classes": set(seen.covered_classes) | set(start.covered_classes),
    }
    if keeps_cards:
        for name in ("covered_gpus", "covered_architectures"):
            joined[name] |= set(getattr(start, name))
    bounds = dict(start.covered_ranges)
    for name, (low, high) in seen.covered_ranges.items():
        old_low, old_high = bounds.get(name, (low, high))
        bounds[name] = (min(low, old_low), max(high, old_high))
    return replace(
        result,
        covered_ranges=bounds,
        covered_gpus=tuple(sorted(joined["covered_gpus"])),
        covered_architectures=tuple(sorted(joined["covered_architectures"])),
        covered_precisions=tuple(sorted(joined["covered_precisions"])),
        covered_classes=tuple(sorted(joined["covered_classes"])),
    )


def _provenance(
    start: ParameterSet,
    records: Sequence[StepRecord],
    operators: OperatorRecords | None,
    options: OwnOptions,
    state: Progress,
) -> dict[str, str]:
    n_operators = 0 if operators is None else len(operators)
    at_bound = [
        name
        for stage in state.stages
        if stage.kept
        for name in stage.parameters
        if name in state.values and _at_bound(name, state.values[name])
    ]
    found = {
        "made by": f"joulecast calibrate {joulecast.__version__}",
        "data": f"{len(records)} runs, {n_operators} operators",
        "start": start.provenance.get("data", start.provenance.get("origin", "unknown")),
        "seed": str(options.seed),
    }
    if at_bound:
        found["at bound"] = ", ".join(dict.fromkeys(at_bound))
    return found


_AT_BOUND: Final = 1e-3


def _at_bound(name: str, value: float) -> bool:
    p = definition(name)
    return min(value - p.low, p.high - value) < _AT_BOUND * (p.high - p.low)


def checkpoint_beside(out: Path) -> Path:
    """Return where the checkpoint of a set lies."""
    return out.with_name(out.name + ".checkpoint.json")

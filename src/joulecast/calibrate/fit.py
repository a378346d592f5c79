"""Fit the shipped parameter set to public operators and steps, in stages, with what it says held out.

In: `OperatorRecords`, `StepRecord` lists, memory records. Out: `Fitted`: the set, with provenance, coverage
and intervals, and the predictions of every row by a fit without its GPU or its family.

``python -m joulecast.calibrate.fit --data DIR --out FILE --held-out FILE`` writes both (``make calibrate``).
"""

import argparse
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

import joulecast
from joulecast.calibrate.dataset import StepRecord, records_of_runs
from joulecast.calibrate.evolution import Search
from joulecast.calibrate.folds import folds_of
from joulecast.calibrate.held_out import HeldOutPrediction, save_held_out
from joulecast.calibrate.intervals import concatenate_held_out, conditions_of, fit_intervals
from joulecast.calibrate.memory import MemoryRecord, fit_memory, memory_records, memory_residuals
from joulecast.calibrate.operators import PRODUCT_PARAMETERS, fit_operators, product_problem, sampled
from joulecast.calibrate.ops import OperatorRecords, load_operator_records
from joulecast.calibrate.runs import Run, load_runs
from joulecast.calibrate.stages import StageResult, Values
from joulecast.calibrate.steps import fit_steps, step_residuals, thinned
from joulecast.calibrate.unseen import memory_held_out, operators_held_out, steps_held_out
from joulecast.hardware.catalogue import load_gpu
from joulecast.hardware.spec import Gpu
from joulecast.model.coverage import with_coverage
from joulecast.model.parameters import (
    ParameterSet,
    StageRecord,
    initial_parameters,
    load_parameters,
    save_parameters,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """How a fit runs.

    Attributes
    ----------
    seed : int
        Of every draw.
    operators_per_group, steps_per_source : int
        Most records of an operator on a GPU, and of a source. [1]
    n_evaluations : int
        Most gradients of a stage on whole steps. [1]
    """

    seed: int = 0
    operators_per_group: int = 200
    steps_per_source: int = 90
    n_evaluations: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What a fit gives.

    Attributes
    ----------
    parameters : ParameterSet
    held_out : tuple of HeldOutPrediction
        Every row by a fit that had not seen its GPU, or its family of models.
    """

    parameters: ParameterSet
    held_out: tuple[HeldOutPrediction, ...]


#: Operators of each kind and GPU in the stages on whole steps. [1]
_JOINT_OPERATORS_PER_GROUP = 60


def fit(
    operators: OperatorRecords,
    steps: Sequence[StepRecord],
    memory: Sequence[MemoryRecord],
    options: FitOptions,
    *,
    provenance: Mapping[str, str],
    progress: Callable[[str], None] | None = None,
) -> Fitted:
    """Return a set fitted to a draw of operators and steps, and all steps held out.

    Parameters
    ----------
    operators : OperatorRecords
    steps : sequence of StepRecord
        All usable; `FitOptions` says how many are drawn.
    memory : sequence of MemoryRecord
    options : FitOptions
    provenance : mapping of str to str
        What the set should say of where it comes from.
    progress : callable or None
        Told a line per stage.
    """
    gpus = {slug: load_gpu(slug) for slug in np.unique(operators.gpu).tolist()}
    few = sampled(operators, options.operators_per_group, options.seed)
    chosen = thinned(steps, options.steps_per_source, options.seed)
    start = initial_parameters()
    values, results = _fitted(few, chosen, gpus, start.values, options, progress)
    values |= fit_memory(memory, values)
    if progress is not None:
        progress("holding out every GPU and every family of models")
    conditions = [conditions_of(record) for record in steps]
    bare = with_coverage(replace(start, values=values), conditions)
    unseen = [
        *steps_held_out(steps, conditions, folds_of(steps), bare, results),
        *memory_held_out(memory, values),
    ]
    parameters = replace(
        bare,
        intervals=fit_intervals(concatenate_held_out([part.rows for part in unseen])),
        residuals={
            **start.residuals,
            **step_residuals(chosen, values, "seen"),
            **memory_residuals(memory, values),
        },
        covered_gpus=tuple(sorted({*bare.covered_gpus, *gpus})),
        stages=tuple(_stage_record(result) for result in results),
        provenance={**provenance, "seed": str(options.seed)},
    )
    return Fitted(
        parameters=parameters,
        held_out=(
            *(row for part in unseen for row in part.predictions(parameters.intervals)),
            *operators_held_out(operators, parameters, results),
        ),
    )


def _fitted(
    operators: OperatorRecords,
    steps: Sequence[StepRecord],
    gpus: Mapping[str, Gpu],
    start: Values,
    options: FitOptions,
    progress: Callable[[str], None] | None,
) -> tuple[dict[str, float], list[StageResult]]:
    """Return all parameters after the stages on operators, then on steps."""
    values = dict(start)
    results = fit_operators(operators, gpus, values, search=Search(seed=options.seed), progress=progress)
    for result in results:
        values.update(result.values)
    for result in fit_steps(
        steps,
        values,
        operators=product_problem(sampled(operators, _JOINT_OPERATORS_PER_GROUP, options.seed), gpus),
        operator_parameters=PRODUCT_PARAMETERS,
        n_evaluations=options.n_evaluations,
        earlier=results,
        progress=progress,
    ):
        results = [*results, result]
        if result.kept:
            values.update(result.values)
    return values, results


def _stage_record(result: StageResult) -> StageRecord:
    """Return what the set says of a stage."""
    at_bound = f"at bound: {', '.join(result.at_bound)}" if result.at_bound else ""
    return StageRecord(
        name=result.name,
        parameters=tuple(result.values),
        n_rows=result.n_rows,
        error_before=result.error_before,
        error_after=result.error_after,
        held_out_before=result.held_out_before,
        held_out_after=result.held_out_after,
        kept=result.kept,
        reason=at_bound if result.kept else "the held-out error did not fall",
    )


def checksum(path: Path) -> str:
    """Return the first 16 hexadecimal digits of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def with_memory(parameters: ParameterSet, memory: Sequence[MemoryRecord]) -> ParameterSet:
    """Return a set with its memory parameters and their residuals fitted anew, all else as it is."""
    values = {**parameters.values, **fit_memory(memory, parameters.values)}
    residuals = {**parameters.residuals, **memory_residuals(memory, values)}
    return replace(parameters, values=values, residuals=residuals)


def usable_steps(runs: Sequence[Run], tell: Callable[[str], None]) -> list[StepRecord]:
    """Return the records of all runs that state a time or a power, those that share a trace together."""
    measured = [run for run in runs if {"step_time_s", "mean_power_w"} & set(run.measured)]
    keys = ("model", "precision", "mode", "memory_format", "attention", "seq_len", "image_size")
    ordered = sorted(measured, key=lambda run: (*(run.text(key) for key in keys), run.run_id))
    steps, skipped = records_of_runs(ordered, progress=lambda run_id: tell(f"\r{run_id} "))
    tell(f"\n{len(steps)} steps, {len(skipped)} left out\n")
    return steps


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit a set to the public measurements of a folder and write it."""
    parser = argparse.ArgumentParser(prog="python -m joulecast.calibrate.fit", description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with ops.parquet and runs.csv")
    parser.add_argument("--out", type=Path, required=True, help="parameter set to write")
    parser.add_argument("--held-out", type=Path, help="CSV file of held-out predictions to write")
    parser.add_argument(
        "--only-memory", action="store_true", help="keep the shipped set, but fit its memory parameters anew"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    def tell(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    runs = load_runs(options.data / "runs.csv").runs
    memory = memory_records(runs)
    if options.only_memory:
        save_parameters(with_memory(load_parameters(), memory), options.out)
        return
    steps = usable_steps(runs, tell)
    fitted = fit(
        load_operator_records(options.data / "ops.parquet"),
        steps,
        memory,
        FitOptions(seed=options.seed),
        provenance={
            "data": ", ".join(
                f"{name} {checksum(options.data / name)}" for name in ("ops.parquet", "runs.csv")
            ),
            "version": joulecast.__version__,
            "date": datetime.now(UTC).date().isoformat(),
            "steps": f"{len(steps)} of {len(runs)} runs can be used",
        },
        progress=lambda line: tell(f"{line}\n"),
    )
    save_parameters(fitted.parameters, options.out)
    if options.held_out is not None:
        save_held_out(fitted.held_out, options.held_out)


if __name__ == "__main__":
    main()

"""Fit a parameter set to measured operators and steps, in stages.

In: `OperatorRecords`, `StepRecord` lists. Out: a `ParameterSet` with provenance, coverage and residuals.

``python -m joulecast.calibrate.fit --data DIR --out FILE`` writes a set.
"""

import argparse
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from joulecast.calibrate.dataset import StepRecord, records_of_runs
from joulecast.calibrate.memory import MemoryRecord, fit_memory, memory_records, memory_residuals
from joulecast.calibrate.operators import PRODUCT_PARAMETERS, fit_operators, product_problem, sampled
from joulecast.calibrate.ops import OperatorRecords, load_operator_records
from joulecast.calibrate.runs import Run, load_runs
from joulecast.calibrate.stages import StageResult, Values, mean_error
from joulecast.calibrate.steps import (
    FEWEST_RESIDUALS,
    fit_steps,
    gpu_folds,
    residual_quantiles,
    step_problem,
    step_residuals,
    thinned,
)
from joulecast.hardware.catalogue import load_gpu
from joulecast.hardware.spec import Gpu
from joulecast.model.parameters import (
    ParameterSet,
    ResidualQuantiles,
    initial_parameters,
    load_parameters,
    save_parameters,
)
from joulecast.workload.table import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """How a fit runs.

    Attributes
    ----------
    seed : int
        Of every draw.
    operators_per_group, steps_per_source : int
        Most records of an operator on a GPU, and of a source. [1]
    n_folds : int
        Groups of GPUs left out in turn for the intervals; 0 keeps guessed intervals on unseen GPUs. [1]
    """

    seed: int = 0
    operators_per_group: int = 200
    steps_per_source: int = 90
    n_folds: int = 3


def fit(
    operators: OperatorRecords,
    steps: Sequence[StepRecord],
    memory: Sequence[MemoryRecord],
    options: FitOptions,
    *,
    provenance: Mapping[str, str],
    progress: Callable[[str], None] | None = None,
) -> ParameterSet:
    """Return a set fitted to operators and steps, with residuals on GPUs seen and unseen.

    Parameters
    ----------
    operators : OperatorRecords
    steps : sequence of StepRecord
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
    values, results = _fitted(few, chosen, gpus, start.values, progress)
    values |= fit_memory(memory, values)
    residuals = dict(start.residuals) | step_residuals(chosen, values, "seen")
    residuals |= memory_residuals(memory, values)
    residuals |= _unseen_residuals(few, chosen, gpus, options, progress)
    errors = {
        f"error: {r.name}": f"{r.error_after:.3f}, before {r.error_before:.3f}"
        for r in results
        if np.isfinite(r.error_after)
    }
    bounds = {f"at bound: {r.name}": ", ".join(r.at_bound) for r in results if r.at_bound}
    return ParameterSet(
        values=values,
        provenance={**provenance, "seed": str(options.seed), **errors, **bounds},
        residuals=residuals,
        covered_gpus=tuple(sorted({r.step.gpu.slug for r in chosen} | set(gpus))),
        covered_precisions=tuple(sorted({r.step.workload.precision for r in chosen})),
    )


#: Operators of each kind and GPU in the stages on whole steps. [1]
_JOINT_OPERATORS_PER_GROUP = 60


def _fitted(
    operators: OperatorRecords,
    steps: Sequence[StepRecord],
    gpus: Mapping[str, Gpu],
    start: Values,
    progress: Callable[[str], None] | None,
    left_out: frozenset[str] = frozenset(),
) -> tuple[dict[str, float], list[StageResult]]:
    """Return all parameters after both groups of stages."""
    values = dict(start)
    results = fit_operators(operators, gpus, values, left_out=left_out, progress=progress)
    for result in results:
        values.update(result.values)
    seen = [record for record in steps if record.step.gpu.slug not in left_out]
    joint = product_problem(sampled(operators, _JOINT_OPERATORS_PER_GROUP, 0), gpus, left_out)
    for result in fit_steps(
        seen, values, operators=joint, operator_parameters=PRODUCT_PARAMETERS, progress=progress
    ):
        values.update(result.values)
        results.append(result)
    return values, results


def _unseen_residuals(
    operators: OperatorRecords,
    steps: Sequence[StepRecord],
    gpus: Mapping[str, Gpu],
    options: FitOptions,
    progress: Callable[[str], None] | None,
) -> dict[str, ResidualQuantiles]:
    """Return the quantiles over GPUs left out of the fit, group by group."""
    ratios: dict[str, list[Floats]] = {"time": [], "power": [], "energy": []}
    for fold in gpu_folds(steps, options.n_folds) if options.n_folds else []:
        values, _ = _fitted(operators, steps, gpus, initial_parameters().values, None, fold)
        problem = step_problem([record for record in steps if record.step.gpu.slug in fold])
        time, mean_power = problem.log_ratios(values)
        time[problem.group >= 0] = np.nan
        for name, found in (("time", time), ("power", mean_power), ("energy", time + mean_power)):
            ratios[name].append(found[np.isfinite(found)])
        if progress is not None:
            progress(f"left out {', '.join(sorted(fold))}: time {mean_error(ratios['time'][-1]):.1%}")
    joined = {name: np.concatenate(parts) for name, parts in ratios.items() if parts}
    return {
        f"{name}.unseen": residual_quantiles(found)
        for name, found in joined.items()
        if len(found) >= FEWEST_RESIDUALS
    }


def thinned_runs(runs: Sequence[Run], n_per_source: int, seed: int) -> list[Run]:
    """Return at most ``n_per_source`` usable runs of each source, drawn with a seed, by model."""
    random = np.random.default_rng(seed)
    by_source: dict[str, list[Run]] = {}
    for run in runs:
        if not run.is_suspect and {"step_time_s", "mean_power_w"} & set(run.measured):
            by_source.setdefault(run.source, []).append(run)
    drawn = [
        group[i]
        for _, group in sorted(by_source.items())
        for i in random.permutation(len(group))[:n_per_source].tolist()
    ]
    keys = ("model", "precision", "mode", "memory_format", "attention", "seq_len", "image_size")
    return sorted(drawn, key=lambda run: (*(run.text(key) for key in keys), run.run_id))


def checksum(path: Path) -> str:
    """Return the first 16 hexadecimal digits of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def with_memory(parameters: ParameterSet, memory: Sequence[MemoryRecord]) -> ParameterSet:
    """Return a set with its memory parameters and their residuals fitted anew, all else as it is."""
    values = {**parameters.values, **fit_memory(memory, parameters.values)}
    residuals = {**parameters.residuals, **memory_residuals(memory, values)}
    return replace(parameters, values=values, residuals=residuals)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit a set to the public measurements of a folder and write it."""
    parser = argparse.ArgumentParser(prog="python -m joulecast.calibrate.fit", description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with ops.parquet and runs.csv")
    parser.add_argument("--out", type=Path, required=True, help="parameter set to write")
    parser.add_argument(
        "--only-memory", action="store_true", help="keep the shipped set, but fit its memory parameters anew"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folds", type=int, default=3, help="groups of GPUs left out for the intervals")
    options = parser.parse_args(arguments)

    def tell(text: str) -> None:
        sys.stderr.write(text)

    all_runs = load_runs(options.data / "runs.csv").runs
    memory = memory_records(all_runs)
    if options.only_memory:
        save_parameters(with_memory(load_parameters(), memory), options.out)
        return
    operators = load_operator_records(options.data / "ops.parquet")
    runs = thinned_runs(all_runs, FitOptions().steps_per_source, options.seed)
    steps, skipped = records_of_runs(runs, progress=lambda run_id: tell(f"\r{run_id} "))
    tell(f"\n{len(steps)} steps, {len(skipped)} left out\n")
    provenance = {
        "data": ", ".join(f"{name} {checksum(options.data / name)}" for name in ("ops.parquet", "runs.csv")),
        "date": datetime.now(UTC).date().isoformat(),
        "steps": f"{len(steps)} of {len(runs)} runs drawn could be used",
    }
    fitted = fit(
        operators,
        steps,
        memory,
        FitOptions(seed=options.seed, n_folds=options.folds),
        provenance=provenance,
        progress=lambda line: tell(f"{line}\n"),
    )
    save_parameters(fitted, options.out)


if __name__ == "__main__":
    main()

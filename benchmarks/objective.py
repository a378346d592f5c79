#!/usr/bin/env python3
"""Time one evaluation of the objective over the operators that a fit draws, and one of a whole population.

Usage: benchmarks/objective.py OPS.parquet
"""

import sys
import time
from pathlib import Path

import numpy as np

from joulecast.calibrate.fit import FitOptions
from joulecast.calibrate.operators import observed_floors_s, operator_problem, population_of, sampled
from joulecast.calibrate.ops import load_operator_records
from joulecast.hardware.catalogue import load_gpu
from joulecast.model.parameters import load_parameters

N_REPEATS = 7
N_SETS = 60


def best_s(action: object, *arguments: object) -> float:
    """Return the shortest of a few timings. [s]."""
    assert callable(action)
    found = []
    for _ in range(N_REPEATS):
        start = time.perf_counter()
        action(*arguments)
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    """Print the times."""
    records = load_operator_records(Path(sys.argv[1]))
    gpus = {slug: load_gpu(slug) for slug in np.unique(records.gpu).tolist()}
    values = load_parameters().values
    for name, some in (
        ("operators a fit draws", sampled(records, FitOptions().operators_per_group, 0)),
        ("all operators", records),
    ):
        population = population_of(operator_problem(some, gpus, observed_floors_s(some)), values)
        one_s = best_s(population.losses, {**values, "product.wave_tail": np.array([[0.1]])})
        print(f"{name}: {len(some)} rows, {1e3 * one_s:.1f} ms an evaluation")
    few = sampled(records, 50, 0)
    population = population_of(operator_problem(few, gpus, observed_floors_s(few)), values)
    sets = np.linspace(0.0, 1.0, N_SETS)[:, None]
    all_s = best_s(population.losses, {**values, "product.wave_tail": sets})
    print(f"a population of {N_SETS} over {len(few)} rows: {1e3 * all_s:.0f} ms in one pass")


if __name__ == "__main__":
    main()

"""Configurations per second and peak memory of a sweep of BERT-base kept in a Parquet file.

The grid is precision x batch x GPUs x power limit x clock on an A100, on two processes. Asserts the targets:
50 000 configurations a second on two cores, by CPU time, because a busy machine only adds to the wall's; and
memory that does not grow with their number. Beside it stands what `llm-analysis` takes for one configuration
of BERT-base, where it is installed: ``pip install --no-deps llm-analysis fire termcolor six`` (its own pins
hold back transformers). Calculon, the other analytical model of training, is not on the package index: the
package of that name there is another.
"""

import contextlib
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

N_BATCHES: Final = (15, 150)
OWN_STEPS: Final = 0
LEAST_RATE: Final = 50_000
MOST_GROWTH: Final = 1.3
N_PROCESSES: Final = 2
N_REPEATS: Final = 20
KIB: Final = 1024  # ru_maxrss is in KiB on Linux


def space(n_batches: int) -> dict[str, Any]:
    """Return the grid with so many batch sizes: 6 696 configurations for each."""
    return {
        "model": "bert-base",
        "gpu": "a100-sxm4-40gb",
        "precision": ["fp32", "tf32", "bf16"],
        "batch_per_gpu": {"start": 1, "stop": n_batches, "step": 1},
        "n_gpus": [1, 2, 4, 8],
        "power_limit_w": {"start": 100, "stop": 400, "step": 10},
        "sm_clock_hz": ["default", {"start": 6e8, "stop": 1.4e9, "step": 5e7}],
    }


def own_steps() -> dict[str, Any]:
    """Return a grid whose configurations share no rows: each is a step of its own."""
    return {
        "model": "bert-base",
        "gpu": ["a100-sxm4-40gb", "t4", "h100-sxm5-80gb"],
        "precision": ["fp32", "bf16"],
        "seq_len": {"start": 32, "stop": 512, "step": 32},
        "batch_per_gpu": {"start": 1, "stop": 512, "step": 1},
    }


def measure(n_batches: int) -> None:
    """Sweep in this process and its children; print configurations, seconds and bytes."""
    from joulecast.explore.sweep import in_processes, save_sweep

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.parquet"
        start_s = time.perf_counter()
        grid = own_steps() if n_batches == OWN_STEPS else space(n_batches)
        n = save_sweep(grid, path, spread=in_processes(N_PROCESSES))
        wall_s = time.perf_counter() - start_s
        size_bytes = path.stat().st_size
    own, child = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu_s = own.ru_utime + own.ru_stime + child.ru_utime + child.ru_stime
    print(n, wall_s, cpu_s, own.ru_maxrss * KIB, child.ru_maxrss * KIB, size_bytes)


def of_llm_analysis() -> float | None:
    """Return the time `llm-analysis` takes for one training configuration of BERT-base. [s]."""
    try:
        from llm_analysis import analysis, config
    except ImportError:
        return None
    analysis.logger.setLevel("ERROR")
    start_s = time.perf_counter()
    for batch in range(1, N_REPEATS + 1):
        with contextlib.redirect_stdout(None):
            analysis.LLMAnalysis(
                config.get_model_config_by_name("bert-base-uncased"),
                config.get_gpu_config_by_name("a100-sxm-40gb"),
                flops_efficiency=0.5,
                hbm_memory_efficiency=0.8,
            ).training(batch_size_per_gpu=batch, gradient_accumulation_steps=1, seq_len=128)
    return (time.perf_counter() - start_s) / N_REPEATS


def main() -> None:
    """Measure, print and judge."""
    memory = []
    rates = []
    for n_batches in (*N_BATCHES, OWN_STEPS):
        done = subprocess.run(
            [sys.executable, __file__, str(n_batches)], capture_output=True, text=True, check=True
        )
        n, wall_s, cpu_s, own_bytes, child_bytes, size_bytes = map(float, done.stdout.split())
        what = "steps of their own" if n_batches == OWN_STEPS else "configurations"
        print(
            f"{n:.0f} {what} in {wall_s:.1f} s on {N_PROCESSES} processes: {n / wall_s:.0f}/s, "
            f"{n / cpu_s:.0f} per CPU second; peak memory {own_bytes / 1e6:.0f} MB here, "
            f"{child_bytes / 1e6:.0f} MB in a process; file {size_bytes / n:.0f} bytes each"
        )
        if n_batches != OWN_STEPS:
            rates.append(n / cpu_s * N_PROCESSES)
            memory.append((own_bytes, child_bytes))
    other_s = of_llm_analysis()
    print(
        "llm-analysis is not installed"
        if other_s is None
        else f"llm-analysis: {other_s * 1e3:.2f} ms a configuration, {1 / other_s:.0f} a second"
    )
    grown = [after / before for before, after in zip(*memory, strict=True)]
    if rates[-1] < LEAST_RATE or max(grown) > MOST_GROWTH:
        raise SystemExit("over the target")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(int(sys.argv[1]))
    else:
        main()

"""Job scripts that run what was recommended.

In: a `Recommendation`. Out: the text of a script for torchrun or Slurm. It starts the user's own script and
hands the configuration over in the environment; what a user may not be allowed to do stands there as a
comment.
"""

import re
from enum import StrEnum
from math import ceil
from typing import Final

from joulecast.explore.advice import configuration_text, limit_text
from joulecast.explore.recommend import Recommendation
from joulecast.results import Quantity
from joulecast.units import J_PER_KWH, MEGA, SECONDS_PER_HOUR, SECONDS_PER_MINUTE


class Launcher(StrEnum):
    """What starts the job."""

    TORCHRUN = "torchrun"
    SLURM = "slurm"


#: What PyTorch reads to treat FP32 products as a precision means. Source: PyTorch, aten/src/ATen/Context.cpp
#: (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE); NVIDIA cuBLAS and cuDNN documentation (NVIDIA_TF32_OVERRIDE).
_PRECISION_ENVIRONMENT: Final = {
    "tf32": "export TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1",
    "fp32-strict": "export NVIDIA_TF32_OVERRIDE=0",
}


def job_script(found: Recommendation, launcher: Launcher, *, wrap: bool = False) -> str:
    """Return the script of a job.

    Parameters
    ----------
    found : Recommendation
    launcher : Launcher
    wrap : bool
        Whether to measure the run on the way, by ``joulecast measure``.
    """
    lines = [
        "#!/usr/bin/env bash",
        *(_slurm_lines(found) if launcher is Launcher.SLURM else ()),
        *_comments(found),
        "set -euo pipefail",
        "",
        *_power_lines(found),
        *_environment(found),
        "",
        "# your training script reads these, or takes its arguments behind this script's name",
        *_command(found, launcher, wrap),
    ]
    return "\n".join(lines) + "\n"


def _comments(found: Recommendation) -> list[str]:
    request, chosen = found.request, found.chosen
    memory_frac = chosen.row["high_process_bytes"] / chosen.row["capacity_bytes"]
    unit = "the whole run" if request.plan else "one sample"
    lines = [
        f"# joulecast recommend, least {request.objective}: {chosen.row['model']}",
        f"# on {configuration_text(chosen.row)}",
        f"# predicted for {unit}: {_range(chosen.time_s, SECONDS_PER_HOUR, 'h')}, "
        f"{_range(chosen.energy_j, J_PER_KWH, 'kWh')}",
        f"# memory: at most {memory_frac:.0%} of the card",
        f"# power of the node: at most {chosen.node_power_w:.0f} W, averaged over a step",
    ]
    limits = request.limits
    lines += [f"# limit: {limit_text(name, getattr(limits, name))}" for name in limits.given()]
    return [*lines, ""]


def _range(quantity: Quantity, factor: float, unit: str) -> str:
    low, value, high = (x / factor for x in (quantity.low, quantity.value, quantity.high))
    return f"{value:.3g} {unit} ({low:.3g} - {high:.3g})"


def _slurm_lines(found: Recommendation) -> list[str]:
    row = found.chosen.row
    lines = [
        f"#SBATCH --job-name={re.sub('[^A-Za-z0-9._-]+', '-', row['model'].partition('#')[0])}",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={row['n_gpus']}",
    ]
    if found.request.plan is not None:
        lines.append(f"#SBATCH --time={slurm_time(found.chosen.time_s.high)}")
    return lines


def slurm_time(time_s: float) -> str:
    """Return days-hours:minutes:seconds that the upper end of the run's time needs."""
    n_minutes = ceil(time_s / SECONDS_PER_MINUTE)
    n_hours, minutes = divmod(n_minutes, 60)
    days, hours = divmod(n_hours, 24)
    return f"{days}-{hours:02d}:{minutes:02d}:00"


def _power_lines(found: Recommendation) -> list[str]:
    row, gpu = found.chosen.row, found.gpu
    limit_w = row["power_limit_w"]
    lines = []
    if round(limit_w) != round(gpu.power_limit_w):
        lines += [
            f"# the recommended power limit needs root (the card's own is {gpu.power_limit_w:.0f} W):",
            f"# sudo nvidia-smi --power-limit={limit_w:.0f}"
            if gpu.vendor.lower() == "nvidia"
            else f"# sudo amd-smi set --power-cap {limit_w:.0f}",
        ]
    clock_hz = row["locked_sm_clock_hz"]
    if clock_hz is not None and gpu.vendor.lower() == "nvidia":
        clock_mhz = f"{clock_hz / MEGA:.0f}"
        lines.append(f"# sudo nvidia-smi --lock-gpu-clocks={clock_mhz},{clock_mhz}")
    return lines


def _environment(found: Recommendation) -> list[str]:
    row = found.chosen.row
    micro_batch = row["batch_per_gpu"] / row["accumulate"]
    lines = [
        f"export PRECISION={row['precision']}",
        f"export MICRO_BATCH_SIZE={micro_batch:g} GRADIENT_ACCUMULATION_STEPS={row['accumulate']}",
        f"export ACTIVATION_CHECKPOINTING={int(row['checkpointing'])}",
    ]
    if row["seq_len"]:
        lines.append(f"export SEQUENCE_LENGTH={row['seq_len']}")
    precision = _PRECISION_ENVIRONMENT.get(row["precision"])
    return lines + ([precision] if precision else [])


def _command(found: Recommendation, launcher: Launcher, wrap: bool) -> list[str]:
    torchrun = f"torchrun --standalone --nproc-per-node={found.chosen.row['n_gpus']}"
    measure = "joulecast measure -- "
    prefix = ("srun " if launcher is Launcher.SLURM else "") + (measure if wrap else "")
    lines = [f'{prefix}{torchrun} "${{TRAINING_SCRIPT:-train.py}}" "$@"']
    if not wrap:
        lines.insert(0, f"# to measure the run: joulecast measure -- {torchrun} ...")
    return lines

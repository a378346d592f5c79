"""What someone predicts who knows the sheet of a card and nothing else.

In: counts of work, facts of a card. Out: time, power, memory by one constant each. An error that is no
smaller than this model's owes nothing to the physics.

Each constant holds for all sources, cards, models and precisions. Both shares were set once, to the median
over the sources of public runs (over the kinds of public operators) of each one's median of ``ideal /
measured``: the null model has seen all the rows that it is compared on, which favours it.
"""

from typing import Final

import numpy as np

from joulecast.hardware.spec import Gpu
from joulecast.model.paths import row_paths, unit_flop_per_clock
from joulecast.workload.table import Floats, OpTable, Workload

#: Share of the precision's peak that any step reaches. [1]
STEP_PEAK_SHARE: Final = 0.19

#: Share of its roofline that any single operator reaches. [1]
OPERATOR_ROOFLINE_SHARE: Final = 0.35

#: Share of the power limit that any work draws. [1]
LIMIT_SHARE: Final = 0.8


def null_step_time_s(model_flop: float, peak_flop_per_s: float) -> float:
    """Return ``work / (share x peak)``, whatever the limit, the clock and the number of GPUs. [s].

    Parameters
    ----------
    model_flop : float
        Of one GPU's step. [FLOP]
    peak_flop_per_s : float
        Dense peak of the units that the precision uses; 0 gives NaN. [FLOP/s]
    """
    return model_flop / (STEP_PEAK_SHARE * peak_flop_per_s) if peak_flop_per_s > 0 else float("nan")


def null_power_w(limit_w: float) -> float:
    """Return ``share x limit``. [W]."""
    return LIMIT_SHARE * limit_w


def null_memory_bytes(load: Workload) -> float:
    """Return weights, buffers, optimizer state and, in training, gradients: no activations. [bytes]."""
    gradient_bytes = 0.0 if load.mode == "forward" else load.gradient_bytes
    return load.persistent_bytes + gradient_bytes


def null_latency_s(table: OpTable, precision: str, gpu: Gpu) -> Floats:
    """Return ``max(work / peak, traffic / bandwidth) / share`` of every row, one call. [s] [op]."""
    paths = row_paths(table, precision, gpu)
    peaks = {
        path: unit_flop_per_clock(path, gpu) * gpu.peak_clock_hz.get(path, gpu.boost_clock_hz)
        for path in np.unique(paths).tolist()
    }
    peak_flop_per_s = np.array([peaks[path] for path in paths.tolist()], dtype=np.float64)  # [op]
    moved_bytes = table.read_bytes + table.written_bytes
    ideal_s: Floats = np.maximum(table.flop / peak_flop_per_s, moved_bytes / gpu.bandwidth_bytes_per_s)
    return ideal_s / OPERATOR_ROOFLINE_SHARE

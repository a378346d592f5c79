"""Fit what a process holds beyond the peak of its allocator.

In: runs whose peak a device's meter read. Out: the fragmentation, and the quantiles of what is left. The
context is a fact of the software (about 0.5 GB with lazily loaded kernels, 1.2-2.2 GB before) and stays; the
allocator's own peak has no fitted parameter, and its interval stays a guess: 20 rows of two models are too
few to say.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from joulecast.calibrate.runs import Run
from joulecast.calibrate.steps import FEWEST_RESIDUALS, residual_quantiles
from joulecast.calibrate.validation import scenario_of
from joulecast.errors import JoulecastError
from joulecast.model.definitions import PARAMETERS
from joulecast.model.memory import memory_use
from joulecast.model.parameters import ResidualQuantiles
from joulecast.scenario import runs_flash, settle_gpu, settle_step, workload_of
from joulecast.workload.table import Floats, Workload

Values = Mapping[str, float]

MEMORY_PARAMETERS: Final = ("memory.fragmentation",)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """One measured peak.

    Attributes
    ----------
    run_id, source, model, gpu : str
        Key of the row; where it comes from; canonical name of the model; slug of the card.
    workload : Workload
    data_parallel : bool
        Whether the module was wrapped for data parallelism.
    peak_bytes : float
        Read by a device's meter, context included. [bytes]
    """

    run_id: str
    source: str
    model: str
    gpu: str
    workload: Workload
    data_parallel: bool
    peak_bytes: float


def memory_records(runs: Iterable[Run]) -> list[MemoryRecord]:
    """Return the records of the runs with a device's reading that can be predicted."""
    records = []
    for run in runs:
        if run.is_suspect or not run.is_device_memory or "peak_memory_bytes" not in run.measured:
            continue
        try:
            scenario = scenario_of(run)
            cards = settle_gpu(scenario)
            settled = settle_step(scenario)
            load = workload_of(settled, flash=runs_flash(cards.gpu))
        except JoulecastError:  # `validate` says why; here it is only a row less
            continue
        records.append(
            MemoryRecord(
                run_id=run.run_id,
                source=run.source,
                model=settled.model,
                gpu=cards.gpu.slug,
                workload=load,
                data_parallel=cards.parallel == "ddp",
                peak_bytes=run.measured["peak_memory_bytes"],
            )
        )
    return records


def log_ratios(records: Sequence[MemoryRecord], values: Values) -> Floats:
    """Return log(measured / predicted) of the process's bytes. [record]"""
    predicted = np.array(
        [memory_use(r.workload, values, data_parallel=r.data_parallel).process_bytes for r in records]
    )
    ratios: Floats = np.log(np.array([record.peak_bytes for record in records]) / predicted)
    return ratios


def fit_memory(records: Sequence[MemoryRecord], values: Values) -> dict[str, float]:
    """Return the memory parameters that fit best; none where there are too few records."""
    from scipy.optimize import least_squares

    if len(records) < FEWEST_RESIDUALS:
        return {}
    bounds = {p.name: (p.low, p.high) for p in PARAMETERS if p.name in MEMORY_PARAMETERS}
    low = np.array([bounds[name][0] for name in MEMORY_PARAMETERS])
    span = np.array([bounds[name][1] for name in MEMORY_PARAMETERS]) - low

    def named(shares: Floats) -> dict[str, float]:
        return dict(zip(MEMORY_PARAMETERS, (low + span * shares).tolist(), strict=True))

    start = (np.array([values[name] for name in MEMORY_PARAMETERS]) - low) / span
    found = least_squares(
        lambda shares: log_ratios(records, {**values, **named(shares)}),
        start,
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=0.05,
        diff_step=1e-2,  # segments round the reserve: smaller steps see no slope
    )
    return named(found.x)


def left_out_by_source(
    records: Sequence[MemoryRecord], values: Values
) -> list[tuple[str, list[MemoryRecord], Floats]]:
    """Return every source, its records, and their log ratios by the fit without it.

    A source left out is another software generation, with another context.
    """
    found = []
    for source in sorted({record.source for record in records}):
        others = [record for record in records if record.source != source]
        mine = [record for record in records if record.source == source]
        found.append((source, mine, log_ratios(mine, {**values, **fit_memory(others, values)})))
    return found


def memory_residuals(records: Sequence[MemoryRecord], values: Values) -> dict[str, ResidualQuantiles]:
    """Return quantiles by ``process.CLASS``; those of unseen hardware are held out by source."""
    if len(records) < FEWEST_RESIDUALS:
        return {}
    parts = [ratios for _, _, ratios in left_out_by_source(records, values)]
    return {
        "process.seen": residual_quantiles(log_ratios(records, values)),
        "process.unseen": residual_quantiles(np.concatenate(parts)),
    }

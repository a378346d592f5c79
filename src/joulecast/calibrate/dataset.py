"""Measured runs joined to workloads and GPUs: what a fit takes.

In: runs (`runs.py`). Out: `StepRecord`, one per run that can be traced and is not doubtful, and the reasons
why the others are not. Tracing needs the torch extra unless the op table is packaged or cached.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from joulecast.calibrate.runs import Run
from joulecast.calibrate.validation import scenario_of
from joulecast.errors import JoulecastError
from joulecast.model.batch import Step
from joulecast.scenario import runs_flash, settle_gpu, settle_step, workload_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One measured step.

    Attributes
    ----------
    run_id, source, model : str
        Key of the row; where it comes from; canonical name of the model.
    step : Step
        What ran, on what, under which conditions.
    step_time_s, mean_power_w : float
        Measured, per GPU; NaN where not. [s], [W]
    relative_to : str
        Where the time includes more than the step (input pipelines): the group of runs whose ratios alone are
        meaningful; else empty.
    weight : float
        Of the row in a fit: sources count alike, whatever their size. [1]
    """

    run_id: str
    source: str
    model: str
    step: Step
    step_time_s: float
    mean_power_w: float
    relative_to: str = ""
    weight: float = 1.0


def records_of_runs(
    runs: Iterable[Run], *, progress: Callable[[str], None] | None = None
) -> tuple[list[StepRecord], dict[str, str]]:
    """Return the records of the runs, and by ``run_id`` why a run gives none.

    Parameters
    ----------
    runs : iterable of Run
    progress : callable or None
        Told the key of each run before it is traced.
    """
    records: list[StepRecord] = []
    skipped: dict[str, str] = {}
    for run in runs:
        if run.is_suspect:
            skipped[run.run_id] = f"suspect: {run.text('suspect')}"
            continue
        if progress is not None:
            progress(run.run_id)
        try:
            records.append(_record(run))
        except JoulecastError as error:
            skipped[run.run_id] = " ".join(str(error).split())
    return records, skipped


def _record(run: Run) -> StepRecord:
    """Return the record of one run."""
    scenario = scenario_of(run)
    settled = settle_step(scenario)
    cards = settle_gpu(scenario)
    step = Step(
        workload=workload_of(settled, flash=runs_flash(cards.gpu)),
        gpu=cards.gpu,
        n_gpus=cards.n_gpus,
        power_limit_w=cards.power_limit_w,
        sm_clock_hz=cards.locked_sm_clock_hz,
    )
    return StepRecord(
        run_id=run.run_id,
        source=run.source,
        model=settled.model,
        step=step,
        step_time_s=run.measured.get("step_time_s", math.nan),
        mean_power_w=run.measured.get("mean_power_w", math.nan),
        relative_to=relative_group(run),
        weight=next((w for name, w in TRUST.items() if run.source.startswith(name)), 1.0),
    )


#: How much a source's runs count beside others', by what is known of how they were taken (DATA.md of the
#: measurements): synthetic data on the GPU and observed clocks count more; noisy small batches, an input
#: pipeline inside, or another software's fused kernels less.
TRUST: Final = {
    "willgpaik/": 2.0,
    "NeuSight": 1.3,
    "ml-energy/zeus": 0.8,
    "mila-iqia/": 0.7,
    "lambdal/": 0.8,
}

#: Sources whose times hold the input pipeline, too: power and ratios between limits are to be trusted more.
RELATIVE_SOURCES: Final = ("ml-energy/zeus",)


def relative_group(run: Run) -> str:
    """Return the group of runs that differ in power limit alone, where only their ratios are meaningful."""
    if not run.source.startswith(RELATIVE_SOURCES):
        return ""
    columns = ("source", "model", "gpu", "precision", "batch_per_gpu", "n_gpus", "optimizer")
    return "|".join(run.text(column) for column in columns)


#: Marks of where timm's weights came from, not of an architecture.
_WEIGHTS_FROM: Final = ("tf_", "gluon_", "legacy_", "ssl_", "swsl_", "ig_")


def family_of(model: str) -> str:
    """Return the family of a canonical model name: what is left out together to hold a model out.

    A name of timm counts by the letters it begins with, whoever trained its weights:
    ``timm/tf_efficientnetv2_s`` is of ``timm/efficientnetv``. Elsewhere it is the name without its task.
    """
    library, _, name = model.partition("/")
    if library != "timm":
        return model.split("#", maxsplit=1)[0]
    for prefix in _WEIGHTS_FROM:
        name = name.removeprefix(prefix)
    found = re.match(r"[a-z]+", name)
    return f"timm/{found.group() if found else name}"


def fold_label(record: StepRecord) -> str:
    """Return ``GPU#FAMILY`` of a record."""
    return f"{record.step.gpu.slug}#{family_of(record.model)}"


def weighted(records: Sequence[StepRecord]) -> list[float]:
    """Return a weight per record so that sources count alike: 1 / sqrt(rows of the source), mean 1. [1]."""
    counts: dict[str, int] = {}
    for record in records:
        counts[record.source] = counts.get(record.source, 0) + 1
    raw = [record.weight / math.sqrt(counts[record.source]) for record in records]
    mean = sum(raw) / len(raw) if raw else 1.0
    return [weight / mean for weight in raw]

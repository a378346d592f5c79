"""Predict every measured row by a fit that had not seen its GPU or family: what a set may claim elsewhere.

In: records, folds, stage results. Out: `HeldOut`, residuals with their features for the intervals, and the
numbers for the page of accuracy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from joulecast.calibrate.dataset import StepRecord, fold_label
from joulecast.calibrate.folds import Fold, belongs, values_without
from joulecast.calibrate.held_out import HeldOutPrediction, operator_key
from joulecast.calibrate.intervals import HeldOutRows, held_out_memory, held_out_steps, without_pipelines
from joulecast.calibrate.memory import MemoryRecord, left_out_by_source
from joulecast.calibrate.operator_validation import predict_operators
from joulecast.calibrate.operators import i_sampled
from joulecast.calibrate.ops import OperatorRecords
from joulecast.calibrate.stages import StageResult, Values
from joulecast.model.coverage import Conditions, with_coverage
from joulecast.model.intervals import IntervalModel
from joulecast.model.parameters import ParameterSet
from joulecast.workload.table import Floats

#: Column of each quantity of an interval.
_COLUMNS: Final = {
    "time": "step_time_s",
    "power": "mean_power_w",
    "energy": "energy_per_step_j",
    "process": "peak_memory_bytes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What one fold left out; arrays are those of `rows`.

    Attributes
    ----------
    rows : HeldOutRows
        For the intervals.
    log_ratio : ndarray
        log(measured / predicted), that of times with an input pipeline included. [1]
    key, gpu, subject : tuple of str
        Of each row; the last is its model.
    measured : ndarray
        [SI]
    group_left_out, kind : str
        Of the fold.
    """

    rows: HeldOutRows
    log_ratio: Floats
    key: tuple[str, ...]
    gpu: tuple[str, ...]
    subject: tuple[str, ...]
    measured: Floats
    group_left_out: str
    kind: str

    def predictions(self, intervals: IntervalModel) -> list[HeldOutPrediction]:
        """Return the rows that are measured as numbers with their intervals."""
        found = []
        for quantity in np.unique(self.rows.quantity).tolist():
            chosen = np.flatnonzero((self.rows.quantity == quantity) & np.isfinite(self.log_ratio))
            features = {name: column[chosen] for name, column in self.rows.features.items()}
            low, high = intervals.bounds(quantity, features)
            for i, offsets in zip(
                chosen.tolist(), zip(low.tolist(), high.tolist(), strict=True), strict=True
            ):
                predicted = float(self.measured[i] / np.exp(self.log_ratio[i]))
                found.append(
                    HeldOutPrediction(
                        key=self.key[i],
                        source=str(self.rows.source[i]),
                        gpu=self.gpu[i],
                        subject=self.subject[i],
                        group_left_out=self.group_left_out,
                        kind=self.kind,
                        quantity=_COLUMNS[quantity],
                        measured=float(self.measured[i]),
                        predicted=predicted,
                        low=predicted * float(np.exp(offsets[0])),
                        high=predicted * float(np.exp(offsets[1])),
                    )
                )
        return found


def steps_held_out(
    records: Sequence[StepRecord],
    conditions: Sequence[Conditions],
    folds: Sequence[Fold],
    parameters: ParameterSet,
    results: Sequence[StageResult],
) -> list[HeldOut]:
    """Return time, power and energy of every record by the fit without its fold.

    Parameters
    ----------
    records : sequence of StepRecord
    conditions : sequence of Conditions
        Of the records.
    folds : sequence of Fold
    parameters : ParameterSet
        As fitted; its coverage plays no part.
    results : sequence of StageResult
        The stages that led there.
    """
    labels = np.array([fold_label(record) for record in records], dtype=np.str_)
    found = []
    for fold in folds:
        mine = [record for record in records if belongs(record, fold)]
        if not mine:
            continue
        left_out = fold.leaves_out(labels)
        seen = with_coverage(
            parameters, [c for c, gone in zip(conditions, left_out.tolist(), strict=True) if not gone]
        )
        values = values_without(fold, parameters.values, results)
        every = held_out_steps(mine, values, seen)
        step_time_s = np.array([record.step_time_s for record in mine])
        mean_power_w = np.array([record.mean_power_w for record in mine])
        n_gpus = np.array([float(record.step.n_gpus) for record in mine])
        found.append(
            HeldOut(
                rows=without_pipelines(every, mine),
                log_ratio=every.log_ratio,
                key=tuple(record.run_id for record in mine) * 3,
                gpu=tuple(record.step.gpu.slug for record in mine) * 3,
                subject=tuple(record.model for record in mine) * 3,
                measured=np.concatenate([step_time_s, mean_power_w, step_time_s * mean_power_w * n_gpus]),
                group_left_out=fold.name,
                kind=fold.kind,
            )
        )
    return found


def memory_held_out(records: Sequence[MemoryRecord], values: Values) -> list[HeldOut]:
    """Return the process's bytes of every record by the fit without its source.

    Another source is another software generation, with another context.
    """
    return [
        HeldOut(
            rows=held_out_memory("process", ratios, [source] * len(mine)),
            log_ratio=ratios,
            key=tuple(record.run_id for record in mine),
            gpu=tuple(record.gpu for record in mine),
            subject=tuple(record.model for record in mine),
            measured=np.array([record.peak_bytes for record in mine]),
            group_left_out=source,
            kind="family",
        )
        for source, mine, ratios in left_out_by_source(records, values)
    ]


OPERATOR_SOURCE: Final = "ops.parquet"

#: Operators of each kind and GPU whose held-out predictions are written. [1]
_WRITTEN_PER_GROUP: Final = 40


def operators_held_out(
    records: OperatorRecords,
    parameters: ParameterSet,
    results: Sequence[StageResult],
    *,
    seed: int = 0,
) -> list[HeldOutPrediction]:
    """Return the latency of a draw of operators by the fit without their GPU."""
    i_drawn = i_sampled(records, _WRITTEN_PER_GROUP, seed)
    drawn = records.rows(i_drawn)
    found = []
    for slug in np.unique(drawn.gpu).tolist():
        i_mine = np.flatnonzero(drawn.gpu == slug)
        mine = drawn.rows(i_mine)
        values = values_without(Fold(kind="gpu", members=frozenset([slug])), parameters.values, results)
        others = tuple(name for name in parameters.covered_gpus if name != slug)
        without = replace(parameters, values=values, covered_gpus=others)
        latency_s, low_s, high_s = predict_operators(mine, without).latency_s
        found += [
            HeldOutPrediction(
                key=operator_key(int(i_drawn[i_mine[i]])),
                source=OPERATOR_SOURCE,
                gpu=slug,
                subject=str(mine.table.kind[i]),
                group_left_out=slug,
                kind="gpu",
                quantity="latency_s",
                measured=float(mine.latency_s[i]),
                predicted=float(latency_s[i]),
                low=float(low_s[i]),
                high=float(high_s[i]),
            )
            for i in range(len(mine))
        ]
    return found

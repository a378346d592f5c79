"""Factors of one model or one precision: a user's own last stage, never part of the shipped set.

In: records, their log ratios. Out: `Scalars` by name, and what they gain on rows held out.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from joulecast.calibrate.dataset import StepRecord
from joulecast.calibrate.observations import configuration_of
from joulecast.calibrate.stages import Values, mean_error
from joulecast.calibrate.steps import step_problem
from joulecast.model.parameters import Scalars, StageRecord
from joulecast.workload.table import Floats

#: Prior standard deviation of a scalar's logarithm, and the noise of a run. [1] (guess)
_SCALAR_SPREAD: Final = 0.1
_SCALAR_NOISE: Final = 0.05


def per_model_scalars(
    records: Sequence[StepRecord], values: Values, held_out: tuple[Floats, Floats]
) -> tuple[dict[str, Scalars], StageRecord, tuple[Floats, Floats]]:
    """Return factors on time and power by model, what they gain, and the ratios of rows held out with them.

    Parameters
    ----------
    records : sequence of StepRecord
    values : mapping
        Parameters.
    held_out : (ndarray, ndarray) [record]
        log(measured / predicted) of time and power by parameters that have not seen the record. [1]

    Notes
    -----
    The log of a scalar is the mean log ratio of its model, pulled to 0 as by a quarter of a run at ratio 1; a
    row held out has the scalar of the model's other configurations.
    """
    time, mean_power = step_problem(records).log_ratios(values)
    scalars: dict[str, Scalars] = {}
    after = tuple(ratios.copy() for ratios in held_out)
    models = np.array([record.model for record in records])
    keys = [configuration_of(record) for record in records]
    pull = (_SCALAR_NOISE / _SCALAR_SPREAD) ** 2
    for model in np.unique(models).tolist():
        mine = np.flatnonzero(models == model).tolist()
        scalars[model] = Scalars(
            time=_scalar(time[mine], pull), power=_scalar(mean_power[mine], pull), n_rows=len(mine)
        )
        for i in mine:
            others = [j for j in mine if keys[j] != keys[i]]
            for ratios, corrected in zip(held_out, after, strict=True):
                corrected[i] -= np.log(_scalar(ratios[others], pull))
    joined_before, joined_after = (np.concatenate(pair) for pair in (held_out, after))
    measured = np.isfinite(joined_before)
    fitted = np.concatenate([time, mean_power])
    with_scalars = fitted - np.log(
        [*(scalars[m].time for m in models.tolist()), *(scalars[m].power for m in models.tolist())]
    )
    record = StageRecord(
        name="per-model scalars",
        parameters=tuple(scalars),
        n_rows=int(np.sum(measured)),
        error_before=mean_error(fitted[np.isfinite(fitted)]),
        error_after=mean_error(with_scalars[np.isfinite(with_scalars)]),
        held_out_before=mean_error(joined_before[measured]),
        held_out_after=mean_error(joined_after[measured]),
    )
    kept = record.held_out_after < record.held_out_before
    reason = f"the held-out error {'falls' if kept else 'does not fall'}"
    record = replace(record, kept=kept, reason=reason)
    return scalars, record, ((after[0], after[1]) if kept else held_out)


def _scalar(ratios: Floats, pull: float) -> float:
    """Return the factor that log ratios ask for; 1 without any."""
    measured = ratios[np.isfinite(ratios)]
    return float(np.exp(np.sum(measured) / (len(measured) + pull)))

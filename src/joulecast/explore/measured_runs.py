"""Measured runs beside predictions of the same step.

In: predictions, and runs of a file or of the measurement store. Out: pairs. It predicts nothing anew.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from joulecast.calibrate.runs import MEASURED_COLUMNS, NUMBER_COLUMNS, Run
from joulecast.calibrate.validation import scenario_of
from joulecast.errors import JoulecastError, MissingExtraError, UsageError
from joulecast.results import Prediction
from joulecast.scenario import settle_gpu, settle_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One measured run and the prediction of its step.

    Attributes
    ----------
    run : Run
    prediction : Prediction
    """

    run: Run
    prediction: Prediction


#: What a run and a prediction agree in.
_KEY: Final = (
    "model",
    "gpu",
    "n_gpus",
    "precision",
    "mode",
    "batch_per_gpu",
    "seq_len",
    "image_size",
    "optimizer",
    "memory_format",
    "attention",
    "power_limit_w",
    "locked_sm_clock_hz",
    "n_sms",
)


def beside(predictions: Sequence[Prediction], runs: Iterable[Run]) -> tuple[Beside, ...]:
    """Return the runs that measured a predicted step, in the order of the predictions.

    Doubtful runs, and those whose step cannot be told, are left out.
    """
    measured: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        key = None if run.is_suspect else _key_of(run)
        if key is not None:
            measured.setdefault(key, []).append(run)
    return tuple(
        Beside(run=run, prediction=p)
        for p in predictions
        for run in measured.get(tuple(getattr(p, name) for name in _KEY), ())
    )


def _key_of(run: Run) -> tuple[Any, ...] | None:
    try:
        scenario = scenario_of(run)
        step, cards = settle_step(scenario), settle_gpu(scenario)
    except JoulecastError:
        return None
    settled = {
        "batch_per_gpu": step.batch_size * step.accumulate,
        "gpu": cards.gpu.slug,
        "n_gpus": cards.n_gpus,
        "power_limit_w": cards.power_limit_w,
        "locked_sm_clock_hz": cards.locked_sm_clock_hz,
        "n_sms": cards.gpu.n_sms,
    }
    return tuple(settled[name] if name in settled else getattr(step, name) for name in _KEY)


def stored_runs(url: str | None = None) -> tuple[Run, ...]:
    """Return the runs of the measurement store; none where there is no store and none was named.

    Parameters
    ----------
    url : str, optional
        Of the store; by default the usual one.

    Raises
    ------
    MissingExtraError
        A store was named, and reading it needs a package.
    JoulecastError
        The store cannot be read.
    """
    try:
        module = import_module("joulecast.measure.store")
    except ImportError as error:
        if url is None:
            return ()
        raise MissingExtraError("a store of runs needs pip install 'joulecast[measure]'") from error
    try:
        with module.Store.open(url, create=False) as store:
            return tuple(_run(row) for row in store)
    except UsageError:
        if url is None:  # nothing was measured here yet
            return ()
        raise


def _run(row: Mapping[str, Any]) -> Run:
    """Return a row of a store as a run; what a meter did not say is left out."""
    cells = {name: "" if value is None else str(value) for name, value in row.items()}
    return Run(
        line=0,
        cells=cells,
        numbers=_above_0(row, NUMBER_COLUMNS),
        measured=_above_0(row, MEASURED_COLUMNS),
    )


def _above_0(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    values = {name: row.get(name) for name in names}
    return {
        name: float(value) for name, value in values.items() if isinstance(value, (int, float)) and value > 0
    }

"""Comparisons of runs: of a stored one with what was predicted for it, and of a step that is run now."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from joulecast.errors import MissingExtraError, UnstableMeasurementError, UsageError
from joulecast.measure.comparison import (
    COMPARED,
    STAGE_OF,
    Comparison,
    MeasuredValue,
    Stage,
    StepProfile,
    compare,
)
from joulecast.measure.session import measure
from joulecast.measure.stored import StoredRun
from joulecast.model.parameters import ParameterSet
from joulecast.prediction import predict_scenario
from joulecast.results import Measurement, RunStatus
from joulecast.scenario import Scenario, settle_step, workload_of

#: Columns of a file of runs that `COMPARED` calls something else.
_COLUMN_OF: Final = {"allocated_bytes": "peak_memory_bytes", "sm_clock_hz": None}
#: Cells that leave a choice to the model's own default.
_UNKNOWN: Final = (None, "", "unknown")


def compare_run(run: StoredRun, parameters: ParameterSet) -> Comparison:
    """Compare a stored run with the prediction of its step.

    Raises
    ------
    UsageError
        It was measured whole, or something in it cannot be predicted.
    """
    m = run.measurement
    prediction = predict_scenario(scenario_of(run), parameters)
    notes = [] if m is None or m.status is RunStatus.COMPLETE else [f"the run is {m.status}: {m.error}"]
    return compare(run.run_id, prediction, measured_values(run), notes=notes)


def compare_step(
    model: str,
    parameters: ParameterSet,
    *,
    device: str | None = None,
    gpu: str | None = None,
    seconds: float = 20.0,
    store_url: str | None = None,
    **options: Any,
) -> Comparison:
    """Measure a step on the device at hand, profile it, and compare both with its prediction.

    Parameters
    ----------
    model : str
    parameters : ParameterSet
    device : str, optional
        As `measure` takes it.
    gpu : str, optional
        The card to predict, where the catalogue does not know that of the driver.
    seconds : float
        For the measurement; the profile comes on top. [s]
    store_url : str, optional
        Where to keep the run.
    **options
        Further fields of `Scenario`.

    Raises
    ------
    JoulecastError
        The step cannot be measured or predicted.
    """
    notes = []
    try:
        found = measure(
            model,
            device=device,
            seconds=seconds,
            store_url=store_url,
            max_error_frac=_MOST_ERROR_FRAC,
            **options,
        )
    except UnstableMeasurementError as error:
        found = _record(error)
        notes.append(str(error))
    card = gpu or found.gpu
    if card is None:
        raise UsageError(f"{found.gpu_name} is not in the catalogue: name its like with --gpu")
    scenario = Scenario(model=model, gpu=card, **options)
    prediction = predict_scenario(
        replace(scenario, power_limit_w=found.power_limit_w, force=True), parameters
    )
    run = StoredRun.of(found)
    profile, calls = _profile(scenario, device)
    return compare(run.run_id, prediction, measured_values(run), profile, calls, notes)


#: A standard error beyond which a step is not worth comparing. [1]
_MOST_ERROR_FRAC: Final = 0.25


def _record(error: UnstableMeasurementError) -> Measurement:
    assert isinstance(error.measurement, Measurement)
    return error.measurement


def _profile(scenario: Scenario, device: str | None) -> tuple[StepProfile, Mapping[tuple[str, Stage], float]]:
    """Profile the step of a scenario; return also the calls that its op table counts."""
    try:
        from joulecast.measure.devices import find_device
        from joulecast.measure.profile import profile_step
        from joulecast.measure.run import RealStep
    except ImportError as error:
        raise MissingExtraError("profiling a step needs torch: pip install 'joulecast[torch]'") from error
    found = find_device(device)
    step = settle_step(scenario)
    table = workload_of(step).table
    kinds = dict(zip(table.operator.tolist(), table.kind.tolist(), strict=True))
    calls: dict[tuple[str, Stage], float] = {}
    rows = zip(table.kind.tolist(), table.phase.tolist(), table.n_calls.tolist(), strict=True)
    for kind, phase, n_calls in rows:
        key = (kind, STAGE_OF[phase])
        calls[key] = calls.get(key, 0.0) + n_calls
    real = RealStep(step, found.torch_device, force=scenario.force)
    try:
        return profile_step(real, real.finish, kinds, is_cuda=found.is_cuda), calls
    finally:
        real.close()


def measured_values(run: StoredRun) -> dict[str, MeasuredValue]:
    """Return what a run says under the names of `COMPARED`: its record, or its row."""
    values = {}
    for name in COMPARED:
        if run.measurement is not None:
            q = getattr(run.measurement, name)
            values[name] = MeasuredValue(value=q.value, low=q.low, high=q.high, reason=q.reason)
        else:
            column = _COLUMN_OF.get(name, name)
            value = run.row.get(column) if column else None
            known = isinstance(value, (int, float)) and not _is_other_memory(run, name)
            values[name] = MeasuredValue(
                value=float(value) if known and value is not None else None,
                reason="" if known else "the file of runs does not hold it",
            )
    if run.measurement is None and _is_device_memory(run):
        value = run.row["peak_memory_bytes"]
        values["process_bytes"] = MeasuredValue(
            value=float(value) if value else None, reason="not in the file"
        )
    return values


def _is_device_memory(run: StoredRun) -> bool:
    """Whether the memory was read from the device: context and libraries are in it."""
    return "used" in str(run.row["memory_meter"] or "")


def _is_other_memory(run: StoredRun, name: str) -> bool:
    return name == "allocated_bytes" and _is_device_memory(run)


def scenario_of(run: StoredRun) -> Scenario:
    """Return what a stored run ran.

    Raises
    ------
    UsageError
        It does not say, or ran what is not predicted.
    """
    m, row = run.measurement, run.row
    for column in ("model", "gpu", "batch_per_gpu"):
        if row[column] in _UNKNOWN:
            whole = "it was measured whole" if m is not None and m.command else f"its {column} is not known"
            raise UsageError(f"run {run.run_id} has no prediction: {whole}")
    accumulate = (m.accumulate if m else None) or 1
    given: dict[str, Any] = {
        name: row[name]
        for name in (
            "mode", "precision", "n_gpus", "parallel", "seq_len", "image_size", "optimizer", "memory_format",
            "attention", "power_limit_w", "sm_clock_hz", "n_sms",
        )
        if row[name] not in _UNKNOWN
    }  # fmt: skip
    if row["n_sms"] is not None and m is not None:
        given.pop("n_sms", None)  # all of the card's own
    return Scenario(
        model=str(row["model"]),
        gpu=str(row["gpu"]),
        batch_size=float(row["batch_per_gpu"] or 0) / accumulate,
        accumulate=accumulate,
        checkpointing=bool(m and m.checkpointing),
        clip=bool(m and m.clip),
        force=True,
        **given,
    )

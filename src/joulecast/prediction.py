"""One question -> one answer: a `Scenario` in, a `Prediction` out.

The model layer predicts values; here each gets its interval and origin, and the derived figures people ask
for. Prints nothing and knows no measurement.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from math import exp
from typing import Any, Final

import numpy as np

from joulecast.characterisation import uncounted
from joulecast.errors import UsageError
from joulecast.hardware.spec import Gpu
from joulecast.model.coverage import conditions, novelty, outside
from joulecast.model.parameters import ParameterSet, load_parameters
from joulecast.model.paths import row_paths, unit_flop_per_clock
from joulecast.model.step import StepPrediction, predict_step
from joulecast.results import MemoryVerdict, OpGroup, Origin, Prediction, Predictions, Quantity
from joulecast.scenario import (
    ECHOED,
    OwnModule,
    Scenario,
    SettledGpu,
    SettledStep,
    own_module,
    runs_flash,
    settle_gpu,
    settle_step,
    workload_of,
)
from joulecast.workload.table import OpTable, Workload


def predict(
    model: Any,
    inputs: Any = None,
    *,
    gpu: str | Iterable[str],
    precision: str | Iterable[str] = "fp32",
    parameters: ParameterSet | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    **options: Any,
) -> Predictions:
    """Predict a step of every combination of models, GPUs and precisions.

    Parameters
    ----------
    model : str, iterable of str or nn.Module
        Names as in `Scenario`, or a module in hand (which needs the ``torch`` extra and `inputs`).
    inputs : optional
        Of a module, as `joulecast.trace` takes them.
    gpu, precision : str or iterable of str
        As in `Scenario`.
    parameters : ParameterSet, optional
        By default the shipped set.
    loss : callable, optional
        Of a module whose output has no ``.loss``.
    **options
        Further fields of `Scenario`.

    Returns
    -------
    Predictions
        Models outermost, precisions innermost.

    Raises
    ------
    JoulecastError
        The first combination that cannot be predicted.
    """
    fitted = load_parameters() if parameters is None else parameters
    unknown = sorted(set(options) - {f.name for f in fields(Scenario)})
    if unknown:
        raise UsageError(f"unknown option {', '.join(unknown)}; see joulecast.Scenario")
    own = None
    if _is_module(model):
        own, batch_size = own_module(model, inputs, loss)
        model = own.name
        options.setdefault("batch_size", batch_size)
    scenarios = [
        Scenario(model=m, gpu=g, precision=p, **options)
        for m, g, p in product(_each(model), _each(gpu), _each(precision))
    ]
    return Predictions([predict_scenario(s, fitted, own) for s in scenarios])


def _is_module(model: Any) -> bool:
    """Whether it is a module, without importing torch to ask: a name is a string, names are strings."""
    return hasattr(model, "named_parameters")


def _each(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def predict_scenario(
    scenario: Scenario, parameters: ParameterSet, own: OwnModule | None = None
) -> Prediction:
    """Predict one step, with intervals and origins; ``own`` is a module in hand instead of the name."""
    cards = settle_gpu(scenario)
    step = settle_step(scenario, own)
    load = workload_of(step, flash=runs_flash(cards.gpu), own=own)
    predicted = predict_step(
        load,
        cards.gpu,
        parameters,
        n_gpus=cards.n_gpus,
        power_limit_w=cards.power_limit_w,
        sm_clock_hz=cards.locked_sm_clock_hz,
        data_parallel=cards.parallel == "ddp",
    )
    if parameters.model_scalars or parameters.precision_scalars:
        predicted = _scaled(predicted, parameters, step.model, step.precision)
    asked = conditions(
        load,
        cards.gpu,
        n_gpus=cards.n_gpus,
        power_limit_w=cards.power_limit_w,
        sm_clock_hz=cards.locked_sm_clock_hz,
    )
    beyond = outside(asked, parameters)
    estimate = _Estimator(parameters, predicted.features, beyond)
    return Prediction(
        **_configuration(step, cards, load),
        **_rates(cards, load, predicted, estimate),
        **_memory(cards.gpu, predicted, estimate),
        **_utilisation(load, cards.gpu, predicted, estimate),
        bound_by=str(predicted.bound_by),
        time_share_by_bound={str(k): float(v) for k, v in predicted.time_share_by_bound.items()},
        op_groups=op_groups(load.table, predicted),
        coverage=_exact(load.table.coverage_frac),
        flags=(
            *step.flags,
            *predicted.flags,
            *(line for name, line in beyond.items() if name not in _SAID),
            *(f"{name} has no formula: only its bytes are counted" for name in uncounted(load.table)),
        ),
        guesses=_guesses(cards),
        notes=load.notes,
    )


#: Facts of a card that no prediction takes, and those that only a job of several cards takes.
_UNUSED_FACTS: Final = ("per_sm.", "published_")
_LINK_FACTS: Final = ("link.", "pcie.")


def _guesses(cards: SettledGpu) -> tuple[str, ...]:
    """Return the guessed facts that this prediction took."""
    unused = _UNUSED_FACTS if cards.n_gpus > 1 else (*_UNUSED_FACTS, *_LINK_FACTS)
    return tuple(key for key in cards.gpu.guesses if not key.startswith(unused))


class _Estimator:
    """Turns predicted values into quantities with the set's intervals."""

    def __init__(
        self, parameters: ParameterSet, features: Mapping[str, float], beyond: Mapping[str, str]
    ) -> None:
        self._intervals = parameters.intervals
        self._features = {name: np.asarray(value) for name, value in {**features, **novelty(beyond)}.items()}
        self.origin = Origin.DATASHEET if beyond else Origin.CALIBRATED

    def __call__(self, value: float, quantity: str) -> Quantity:
        low, high = self._intervals.bounds(quantity, self._features)
        return Quantity(
            value=float(value), low=value * exp(float(low)), high=value * exp(float(high)), origin=self.origin
        )


def _scaled(
    predicted: StepPrediction, parameters: ParameterSet, model: str, precision: str
) -> StepPrediction:
    """Return a step with the scalars of its model and its precision applied, and a flag for each."""
    found = {
        f"model {model}": parameters.model_scalars.get(model),
        f"precision {precision}": parameters.precision_scalars.get(precision),
    }
    time_ratio = power_ratio = 1.0
    flags = list(predicted.flags)
    for what, scalars in found.items():
        if scalars is None:
            continue
        time_ratio, power_ratio = time_ratio * scalars.time, power_ratio * scalars.power
        flags.append(
            f"scalar of {what}: time x {scalars.time:.3f}, power x {scalars.power:.3f}, "
            f"from {scalars.n_rows} runs"
        )
    return replace(
        predicted,
        step_time_s=predicted.step_time_s * time_ratio,
        mean_power_w=predicted.mean_power_w * power_ratio,
        energy_per_step_j=predicted.energy_per_step_j * time_ratio * power_ratio,
        kernel_time_s=predicted.kernel_time_s * time_ratio,
        dispatch_time_s=predicted.dispatch_time_s * time_ratio,
        communication_time_s=predicted.communication_time_s * time_ratio,
        op_time_s=predicted.op_time_s * time_ratio,
        op_energy_j=predicted.op_energy_j * time_ratio * power_ratio,
        flags=tuple(flags),
    )


#: What `predict_step` says itself.
_SAID: Final = ("unseen_gpu", "unseen_precision")


def _exact(value: float) -> Quantity:
    return Quantity(value=value, low=value, high=value, origin=Origin.DATASHEET)


def _configuration(step: SettledStep, cards: SettledGpu, load: Workload) -> dict[str, Any]:
    """Return the fields of a prediction that echo what was asked."""
    return {
        **{name: getattr(step, name) for name in ECHOED},
        "seq_len": int(load.seq_len) or None,
        "gpu": cards.gpu.slug,
        "gpu_name": cards.gpu.name,
        "n_gpus": cards.n_gpus,
        "parallel": cards.parallel,
        "batch_per_gpu": step.batch_size * step.accumulate,
        "global_batch": step.batch_size * step.accumulate * cards.n_gpus,
        "power_limit_w": cards.power_limit_w,
        "locked_sm_clock_hz": cards.locked_sm_clock_hz,
        "n_sms": cards.gpu.n_sms,
    }


def _rates(cards: SettledGpu, load: Workload, step: StepPrediction, estimate: _Estimator) -> dict[str, Any]:
    """Return time, throughput, power and energy."""
    n_samples = load.batch_size * cards.n_gpus
    time = estimate(step.step_time_s, "time")
    energy = estimate(step.energy_per_step_j, "energy")
    power = estimate(step.mean_power_w, "power")
    # the clock is solved with the power, and no run of the calibration states it alone
    clock = estimate(step.sm_clock_hz, "power")
    top_clock_hz = cards.locked_sm_clock_hz or cards.gpu.max_clock_hz
    return {
        "step_time_s": time,
        "samples_per_s": time.into(n_samples),
        "tokens_per_s": time.into(n_samples * load.seq_len) if load.seq_len else None,
        "mean_power_w": _within(power, cards.gpu.idle_power_w, cards.power_limit_w),
        "energy_per_step_j": energy,
        "energy_per_sample_j": energy.times(1 / n_samples),
        "samples_per_j": energy.into(n_samples),
        "sm_clock_hz": _within(clock, cards.gpu.min_clock_hz, top_clock_hz),
    }


def _within(quantity: Quantity, low: float, high: float) -> Quantity:
    """Return the quantity with its interval cut at bounds that hold always."""
    return replace(
        quantity,
        low=min(max(quantity.low, low), quantity.value),
        high=max(min(quantity.high, high), quantity.value),
    )


def _memory(gpu: Gpu, step: StepPrediction, estimate: _Estimator) -> dict[str, Any]:
    """Return the three readings of memory, and whether the last fits the card."""
    process = estimate(step.process_bytes, "process")
    if process.high <= gpu.memory_bytes:
        verdict = MemoryVerdict.FITS
    elif process.value <= gpu.memory_bytes:
        verdict = MemoryVerdict.MAY_NOT_FIT
    else:
        verdict = MemoryVerdict.DOES_NOT_FIT
    return {
        "allocated_bytes": estimate(step.allocated_bytes, "memory"),
        "reserved_bytes": estimate(step.reserved_bytes, "process"),
        "process_bytes": process,
        "capacity_bytes": gpu.memory_bytes,
        "memory_verdict": verdict,
    }


def _utilisation(load: Workload, gpu: Gpu, step: StepPrediction, estimate: _Estimator) -> dict[str, Any]:
    """Return MFU and what it divides by.

    Notes
    -----
    The denominator is the dense published peak of the unit that each operator may use under the policy,
    weighted by work: ``sum(flop) / sum(flop / peak)``. It is the plain peak wherever one unit does all.
    """
    table = load.table
    flop = table.model_flop * table.n_calls  # [op]
    total = float(flop.sum())
    if total == 0:
        return {"mfu": None, "mfu_peak_flop_per_s": 0.0, "mfu_paths": {}, "model_flop": 0.0}
    paths = row_paths(table, load.precision, gpu)
    flop_of = {path: float(flop[paths == path].sum()) for path in sorted(set(paths.tolist()))}
    flop_of = {path: work for path, work in flop_of.items() if work > 0}
    ideal_time_s = sum(work / _peak_flop_per_s(path, gpu) for path, work in flop_of.items())
    return {
        "mfu": _within(estimate(step.step_time_s, "time").into(ideal_time_s), 0.0, 1.0),
        "mfu_peak_flop_per_s": total / ideal_time_s,
        "mfu_paths": {path: work / total for path, work in flop_of.items()},
        "model_flop": total,
    }


def _peak_flop_per_s(path: str, gpu: Gpu) -> float:
    """Return the published dense peak of a path. [FLOP/s]"""
    clock_hz = gpu.peak_clock_hz.get(path, gpu.boost_clock_hz)
    return unit_flop_per_clock(path, gpu) * clock_hz


def op_groups(table: OpTable, step: StepPrediction) -> tuple[OpGroup, ...]:
    """Return time and energy by kind and phase, costliest first."""
    keys = np.char.add(np.char.add(table.kind, "|"), table.phase)  # [op]
    total_time_s = float(step.op_time_s.sum()) or 1.0
    total_energy_j = float(step.op_energy_j.sum()) or 1.0
    groups = []
    for key in sorted(set(keys.tolist())):
        chosen = keys == key
        time_s, energy_j = step.op_time_s[chosen], step.op_energy_j[chosen]
        kind, phase = key.split("|")
        bounds = np.asarray(step.op_bound)[chosen]
        n_calls = table.n_calls[chosen]
        groups.append(
            OpGroup(
                kind=kind,
                phase=phase,
                time_s=float(time_s.sum()),
                energy_j=float(energy_j.sum()),
                time_share_frac=float(time_s.sum()) / total_time_s,
                energy_share_frac=float(energy_j.sum()) / total_energy_j,
                n_kernels=float((table.n_kernels[chosen] * n_calls).sum()),
                flop=float((table.flop[chosen] * n_calls).sum()),
                bytes_moved=float((table.bytes_moved[chosen] * n_calls).sum()),
                bound_by=_longest(bounds.tolist(), time_s.tolist()),
            )
        )
    return tuple(sorted(groups, key=lambda group: -group.time_s))


def _longest(bounds: Sequence[str], time_s: Sequence[float]) -> str:
    """Return what bounds the most time."""
    total_s: dict[str, float] = {}
    for bound, spent_s in zip(bounds, time_s, strict=True):
        total_s[bound] = total_s.get(bound, 0.0) + spent_s
    return max(total_s, key=lambda bound: total_s[bound])

"""One question -> one answer: a `Scenario` in, a `Prediction` out.

The model layer predicts values; here each gets its interval and origin, and the derived figures people ask
for. Prints nothing and knows no measurement.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from math import isnan, nan, prod
from typing import Any, Final

import numpy as np

from joulecast.characterisation import uncounted
from joulecast.errors import UsageError
from joulecast.estimates import (
    VERDICTS,
    Circumstances,
    Estimate,
    estimates,
    interval_ratios,
    memory_verdicts,
)
from joulecast.hardware.spec import Gpu
from joulecast.model.batch import Step, batch_of
from joulecast.model.coverage import conditions, novelty, outside
from joulecast.model.parameters import ParameterSet, load_parameters
from joulecast.model.paths import row_paths, unit_flop_per_clock
from joulecast.model.step import StepPrediction, one_step, predict_steps, scaled_steps
from joulecast.results import OpGroup, Origin, Prediction, Predictions, Quantity
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
from joulecast.workload.table import Floats, OpTable, Workload, Workloads, alone


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
    batch = batch_of(
        [
            Step(
                workload=load,
                gpu=cards.gpu,
                n_gpus=cards.n_gpus,
                power_limit_w=cards.power_limit_w,
                sm_clock_hz=cards.locked_sm_clock_hz,
            )
        ]
    )
    factors = scalars_of(parameters, step.model, step.precision)
    found = scaled_steps(
        predict_steps(batch, parameters, np.array([cards.parallel == "ddp"])), factors.time, factors.power
    )
    predicted = one_step(found, batch, load, cards.gpu, parameters)
    asked = conditions(
        load,
        cards.gpu,
        n_gpus=cards.n_gpus,
        power_limit_w=cards.power_limit_w,
        sm_clock_hz=cards.locked_sm_clock_hz,
    )
    beyond = outside(asked, parameters)
    origin = origin_of(beyond)
    ratios = interval_ratios(
        parameters, found.features, {name: np.array([mark]) for name, mark in novelty(beyond).items()}
    )
    around = _circumstances(cards, load)
    by_name = estimates(found, around, ratios)
    quantities: dict[str, Any] = {name: _quantity(estimate, origin) for name, estimate in by_name.items()}
    verdict = VERDICTS[int(memory_verdicts(by_name["process_bytes"], around.memory_bytes)[0])]
    del quantities["peak_memory_bytes"]  # another name of the allocated bytes
    return Prediction(
        **_configuration(step, cards, load),
        **{**quantities, "coverage": _exact(load.table.coverage_frac)},
        **_utilisation(load, cards.gpu),
        capacity_bytes=cards.gpu.memory_bytes,
        memory_verdict=verdict,
        bound_by=str(predicted.bound_by),
        time_share_by_bound=dict(predicted.time_share_by_bound),
        op_groups=op_groups(load.table, predicted),
        flags=(
            *step.flags,
            *predicted.flags,
            *factors.flags,
            *beyond_flags(beyond),
            *uncounted_flags(load.table),
        ),
        guesses=guesses_of(cards.gpu, cards.n_gpus),
        notes=load.notes,
    )


def uncounted_flags(table: OpTable) -> tuple[str, ...]:
    """Return a line for every operator that has no formula."""
    return tuple(f"{name} has no formula: only its bytes are counted" for name in uncounted(table))


def origin_of(beyond: Mapping[str, str]) -> Origin:
    """Return where a prediction comes from, by what it asks beyond the calibration."""
    return Origin.DATASHEET if beyond else Origin.CALIBRATED


#: What `step_flags` says itself.
_SAID: Final = ("unseen_gpu", "unseen_precision")


def beyond_flags(beyond: Mapping[str, str]) -> tuple[str, ...]:
    """Return the lines of what lies beyond the calibration that `step_flags` does not say."""
    return tuple(line for name, line in beyond.items() if name not in _SAID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Factors on time and power from a user's own calibration, and what to say of them.

    Attributes
    ----------
    time, power : float
        [1]
    flags : tuple of str
    """

    time: float
    power: float
    flags: tuple[str, ...]


def scalars_of(parameters: ParameterSet, model: str, precision: str) -> Factors:
    """Return the factors of a model and a precision; 1 where the set has none."""
    found = {
        f"model {model}": parameters.model_scalars.get(model),
        f"precision {precision}": parameters.precision_scalars.get(precision),
    }
    known = {what: scalars for what, scalars in found.items() if scalars is not None}
    return Factors(
        time=prod(scalars.time for scalars in known.values()),
        power=prod(scalars.power for scalars in known.values()),
        flags=tuple(
            f"scalar of {what}: time x {scalars.time:.3f}, power x {scalars.power:.3f}, "
            f"from {scalars.n_rows} runs"
            for what, scalars in known.items()
        ),
    )


#: Facts of a card that no prediction takes, and those that only a job of several cards takes.
_UNUSED_FACTS: Final = ("per_sm.", "published_")
_LINK_FACTS: Final = ("link.", "pcie.")


def guesses_of(gpu: Gpu, n_gpus: int) -> tuple[str, ...]:
    """Return the guessed facts that a prediction takes."""
    unused = _UNUSED_FACTS if n_gpus > 1 else (*_UNUSED_FACTS, *_LINK_FACTS)
    return tuple(key for key in gpu.guesses if not key.startswith(unused))


def _quantity(estimate: Estimate, origin: Origin) -> Quantity | None:
    """Return the only step of an estimate; None where it has no value."""
    value, low, high = (float(part[0]) for part in (estimate.value, estimate.low, estimate.high))
    return None if isnan(value) else Quantity(value=value, low=low, high=high, origin=origin)


def _circumstances(cards: SettledGpu, load: Workload) -> Circumstances:
    """Return what the quantities of one step follow from."""
    gpu = cards.gpu

    def one(value: float) -> Floats:
        return np.array([float(value)])

    return Circumstances(
        n_gpus=one(cards.n_gpus),
        n_samples=one(load.batch_size * cards.n_gpus),
        seq_len=one(load.seq_len or nan),
        idle_power_w=one(gpu.idle_power_w),
        power_limit_w=one(cards.power_limit_w),
        min_clock_hz=one(gpu.min_clock_hz),
        top_clock_hz=one(cards.locked_sm_clock_hz or gpu.max_clock_hz),
        memory_bytes=one(gpu.memory_bytes),
        ideal_time_s=ideal_time_s(alone(load), gpu)[0],
        coverage_frac=one(load.table.coverage_frac),
    )


def ideal_time_s(loads: Workloads, gpu: Gpu) -> tuple[Floats, Floats]:
    """Return the time of all model FLOP at their peaks, NaN where there are none; and the FLOP. [size].

    Notes
    -----
    The peak is the dense published one of the unit that each operator may use under the policy, so that MFU's
    denominator is weighted by work: ``sum(flop) / sum(flop / peak)``. It is the plain peak wherever one unit
    does all.
    """
    table = loads.first.table
    paths = row_paths(table, loads.first.precision, gpu)
    peak = {path: _peak_flop_per_s(path, gpu) for path in set(paths.tolist())}
    per_flop_s = np.array([1.0 / peak[path] for path in paths.tolist()])
    flop = loads.column("model_flop") * table.n_calls  # [size, op]
    total = flop.sum(axis=-1)
    return np.where(total > 0, flop @ per_flop_s, nan), total


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


def _utilisation(load: Workload, gpu: Gpu) -> dict[str, Any]:
    """Return what MFU divides by, and the units that the work goes to."""
    table = load.table
    flop = table.model_flop * table.n_calls  # [op]
    ideal_s, total = (float(part[0]) for part in ideal_time_s(alone(load), gpu))
    if total == 0:
        return {"mfu_peak_flop_per_s": 0.0, "mfu_paths": {}, "model_flop": 0.0}
    paths = row_paths(table, load.precision, gpu)
    flop_of = {path: float(flop[paths == path].sum()) for path in sorted(set(paths.tolist()))}
    return {
        "mfu_peak_flop_per_s": total / ideal_s,
        "mfu_paths": {path: work / total for path, work in flop_of.items() if work > 0},
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

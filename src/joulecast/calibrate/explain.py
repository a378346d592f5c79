"""What a parameter set says: its values, how much each matters, how it was fitted, what it covers.

In: a `ParameterSet`. Out: `Explanation`. Elasticities are of a stated mix of packaged workloads, so they need
no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from joulecast.model.batch import Batch, Step, batch_of, step_costs
from joulecast.model.definitions import PARAMETERS
from joulecast.model.intervals import Spread
from joulecast.model.parameters import ParameterSet, StageRecord
from joulecast.scenario import Scenario, runs_flash, settle_gpu, settle_step, workload_of

EXPLANATION_SCHEMA: Final = "joulecast/parameters/1"

#: The mix that sensitivities are of: model, precision, samples per GPU, GPUs; each on all of `MIX_GPUS`.
MIX: Final = (
    ("resnet50", "fp32", 64, 1),
    ("resnet50", "bf16", 64, 4),
    ("vgg16", "fp32", 32, 1),
    ("bert-base", "fp32-strict", 16, 1),
    ("bert-base", "bf16", 32, 4),
    ("distilbert", "tf32", 32, 1),
    ("albert", "bf16", 8, 1),
    ("tinyllama", "bf16", 2, 1),
)
MIX_GPUS: Final = ("a100-sxm4-80gb", "rtx-3090", "v100-sxm2-16gb", "h100-sxm5-80gb")

_STEP: Final = 0.02
_AT_BOUND: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterLine:
    """One parameter of a set.

    Attributes
    ----------
    name, unit, meaning : str
    value, low, high : float
        [unit]
    at_bound : bool
        Whether the value lies at a bound: the data ask for more, or do not ask.
    time_elasticity, power_elasticity : float
        Relative change of step time and mean power per relative change of the parameter, mean of the mix. [1]
    largest : float
        The largest of either in size, of any one step of the mix. [1]
    """

    name: str
    value: float
    unit: str
    low: float
    high: float
    meaning: str
    at_bound: bool
    time_elasticity: float
    power_elasticity: float
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a set says.

    Attributes
    ----------
    parameters : tuple of ParameterLine
    stages : tuple of StageRecord
    intervals : mapping of str to Spread
    provenance : mapping of str to str
    coverage : mapping of str to tuple or mapping
    scalars : mapping of str to float
        ``model NAME: time`` and so on, where the set has any. [1]
    mix : str
        What the elasticities are of.
    """

    parameters: tuple[ParameterLine, ...]
    stages: tuple[StageRecord, ...]
    intervals: Mapping[str, Spread]
    provenance: Mapping[str, str]
    coverage: Mapping[str, Any]
    scalars: Mapping[str, float]
    mix: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``joulecast calibrate --explain --format json``."""
        return {
            "schema": EXPLANATION_SCHEMA,
            **{key: value for key, value in _finite(asdict(self)).items()},
        }


def plain_stage(stage: StageRecord) -> dict[str, Any]:
    """Return a stage in plain types, null where a number is unknown."""
    plain: dict[str, Any] = _finite(asdict(stage))
    return plain


def _finite(value: Any) -> Any:
    """Return a document with null instead of NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def explain(parameters: ParameterSet) -> Explanation:
    """Return what a set says, with the elasticity of predictions over `MIX`."""
    batch = mix()
    return Explanation(
        parameters=tuple(_lines(parameters, batch)),
        stages=parameters.stages,
        intervals=parameters.intervals.spreads,
        provenance=parameters.provenance,
        coverage={
            "gpus": parameters.covered_gpus,
            "architectures": parameters.covered_architectures,
            "precisions": parameters.covered_precisions,
            "classes": parameters.covered_classes,
            "ranges": dict(parameters.covered_ranges),
        },
        scalars={
            f"{kind} {name}: {quantity}": getattr(scalars, quantity)
            for kind, found in (
                ("model", parameters.model_scalars),
                ("precision", parameters.precision_scalars),
            )
            for name, scalars in found.items()
            for quantity in ("time", "power")
        },
        mix=f"{', '.join(f'{m} {p} batch {b} on {n}' for m, p, b, n in MIX)}; each on {', '.join(MIX_GPUS)}",
    )


def mix(gpus: Sequence[str] = MIX_GPUS) -> Batch:
    """Return the steps that sensitivities are of."""
    steps = []
    for gpu in gpus:
        for model, precision, batch_size, n_gpus in MIX:
            scenario = Scenario(
                model=model, gpu=gpu, precision=precision, batch_size=batch_size, n_gpus=n_gpus
            )
            cards = settle_gpu(scenario)
            load = workload_of(settle_step(scenario), flash=runs_flash(cards.gpu))
            steps.append(Step(workload=load, gpu=cards.gpu, n_gpus=n_gpus))
    return batch_of(steps)


def _lines(parameters: ParameterSet, batch: Batch) -> list[ParameterLine]:
    lines = []
    for p in PARAMETERS:
        value = parameters.values[p.name]
        time, power = elasticities(p.name, parameters, batch)
        lines.append(
            ParameterLine(
                name=p.name,
                value=value,
                unit=p.unit,
                low=p.low,
                high=p.high,
                meaning=p.meaning,
                at_bound=min(value - p.low, p.high - value) < _AT_BOUND * (p.high - p.low),
                time_elasticity=float(np.mean(time)),
                power_elasticity=float(np.mean(power)),
                largest=float(max(np.max(np.abs(time)), np.max(np.abs(power)))),
            )
        )
    return lines


def elasticities(name: str, parameters: ParameterSet, batch: Batch) -> tuple[Any, Any]:
    """Return d log time / d log parameter and d log power / d log parameter. [1] [step].

    Notes
    -----
    Central differences over 2 % each way; the equations hold on both sides of a bound of the fit.
    """
    value = parameters.values[name]
    if value == 0.0:
        return np.zeros(len(batch)), np.zeros(len(batch))
    found = []
    for factor in (1.0 + _STEP, 1.0 - _STEP):
        costs = step_costs(batch, {**parameters.values, name: value * factor})
        found.append((np.log(costs.step_time_s), np.log(costs.mean_power_w)))
    width = np.log((1.0 + _STEP) / (1.0 - _STEP))
    (time_up, power_up), (time_down, power_down) = found
    return (time_up - time_down) / width, (power_up - power_down) / width

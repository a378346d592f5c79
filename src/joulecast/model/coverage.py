"""What a parameter set has seen, and what a step asks beyond it.

In: the card, sizes and table of a step; a `ParameterSet`. Out: features of novelty for the intervals, and a
line for each. Knows no measurement.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from joulecast.hardware.spec import Gpu
from joulecast.model.intervals import NOVELTY
from joulecast.model.parameters import ParameterSet
from joulecast.model.rows import Booleans
from joulecast.workload.table import Floats, OpKind, OpTable, Workload

#: Share of the work from which a kind of operator makes a class of models: depthwise convolutions do little
#: work and take long. [1]
_DEPTHWISE_SHARE: Final = 0.005
_GROUPED_SHARE: Final = 0.05
_MIXED_SHARE: Final = 0.1

MODEL_CLASSES: Final[Mapping[str, str]] = {
    "depthwise convolution": "more than 0.5 % of the work in depthwise convolutions",
    "grouped convolution": "more than 5 % in grouped convolutions",
    "convolution and attention": "more than 10 % in convolutions, and attention",
    "convolution": "more than 10 % in convolutions",
    "attention": "attention, fused or of batched products",
    "products": "anything else",
}


def model_class(table: OpTable) -> str:
    """Return which of `MODEL_CLASSES` a step is, by the structure of its table alone."""
    work = table.flop * table.n_calls  # [op]
    total = max(float(work.sum()), 1e-300)
    convolution, grouped = table.kind == OpKind.CONVOLUTION, table.groups > 1
    depthwise = convolution & grouped & (table.group_width <= 1)
    attends = np.isin(table.kind, [OpKind.ATTENTION, OpKind.BATCHED_GEMM])
    share = {
        name: float(work[chosen].sum()) / total
        for name, chosen in (
            ("depthwise", depthwise),
            ("grouped", convolution & grouped & ~depthwise),
            ("convolution", convolution),
            ("attention", attends),
        )
    }
    if share["depthwise"] > _DEPTHWISE_SHARE:
        return "depthwise convolution"
    if share["grouped"] > _GROUPED_SHARE:
        return "grouped convolution"
    if share["convolution"] > _MIXED_SHARE:
        return "convolution and attention" if share["attention"] > 0 else "convolution"
    return "attention" if share["attention"] > 0 else "products"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a set has to have seen for a step to lie inside it.

    Attributes
    ----------
    gpu, architecture, precision, model_class : str
    sizes : mapping of str to float
        Those that apply: samples per GPU by class, GPUs, and, where they are not the card's own, limit, clock
        and multiprocessors over the card's. [1]
    """

    gpu: str
    architecture: str
    precision: str
    model_class: str
    sizes: Mapping[str, float]


def conditions(
    workload: Workload,
    gpu: Gpu,
    *,
    n_gpus: int = 1,
    power_limit_w: float | None = None,
    sm_clock_hz: float | None = None,
    batch_size: float | None = None,
) -> Conditions:
    """Return the conditions of a step.

    Parameters
    ----------
    workload : Workload
    gpu : Gpu
    n_gpus : int
    power_limit_w, sm_clock_hz : float or None
        None for the card's own. [W], [Hz]
    batch_size : float or None
        Samples per GPU; None for the workload's. [1]
    """
    name = model_class(workload.table)
    samples = workload.batch_size if batch_size is None else batch_size
    sizes = {f"batch_per_gpu.{name}": float(samples), "n_gpus": float(n_gpus)}
    if power_limit_w is not None and power_limit_w != gpu.power_limit_w:
        sizes["limit_ratio"] = power_limit_w / gpu.power_limit_w
    if sm_clock_hz is not None:
        sizes["clock_ratio"] = sm_clock_hz / gpu.max_clock_hz
    whole = gpu.facts["n_sms"].value if "n_sms" in gpu.facts else gpu.n_sms
    if whole != gpu.n_sms:
        sizes["sms_ratio"] = gpu.n_sms / float(whole)
    return Conditions(
        gpu=gpu.slug,
        architecture=gpu.architecture,
        precision=workload.precision,
        model_class=name,
        sizes=sizes,
    )


_SIZE_NAMES: Final = {
    "batch_per_gpu": "samples per GPU of models of {class_}",
    "n_gpus": "GPUs",
    "limit_ratio": "power limit over the card's own",
    "clock_ratio": "locked clock over the highest",
    "sms_ratio": "multiprocessors over the card's own",
}

#: Sizes may leave the range by this share before they count as outside. [1]
_TOLERANCE: Final = 0.02


def outside(asked: Conditions, parameters: ParameterSet) -> dict[str, str]:
    """Return what a step asks beyond a set: kind of novelty -> a line that says so.

    Parameters
    ----------
    asked : Conditions
    parameters : ParameterSet
        What it does not record, such as classes, is not judged; but one that covers no GPU covers nothing.
    """
    if not parameters.covered_gpus:
        return {"unseen_gpu": "the parameters are not calibrated"}
    found: dict[str, str] = {}
    for name, value, covered in (
        ("unseen_gpu", asked.gpu, parameters.covered_gpus),
        ("unseen_architecture", asked.architecture, parameters.covered_architectures),
        ("unseen_precision", asked.precision, parameters.covered_precisions),
        ("unseen_class", asked.model_class, parameters.covered_classes),
    ):
        if covered and value not in covered:
            what = name.removeprefix("unseen_").replace("class", "models of")
            found[name] = f"{what} {value} is outside the calibration"
    beyond = _beyond(asked, parameters) if parameters.covered_ranges else []
    if beyond:
        found["unseen_range"] = f"{'; '.join(beyond)}: outside the calibration"
    return found


def _beyond(asked: Conditions, parameters: ParameterSet) -> list[str]:
    """Return a line for every size outside its range."""
    lines = []
    for key, value in asked.sizes.items():
        name, _, class_ = key.partition(".")
        what = _SIZE_NAMES[name].format(class_=class_)
        if key not in parameters.covered_ranges:
            if not class_:  # an unseen class says so itself
                lines.append(f"{what} {value:.3g}, of which no run shows any but 1")
            continue
        low, high = parameters.covered_ranges[key]
        if not low * (1.0 - _TOLERANCE) <= value <= high * (1.0 + _TOLERANCE):
            lines.append(f"{what} {value:.3g}, runs show {low:.3g} to {high:.3g}")
    return lines


def beyond_ranges(sizes: Mapping[str, Floats], parameters: ParameterSet) -> Booleans:
    """Return which of many steps have a size outside its range, as `outside` judges one. [step].

    Parameters
    ----------
    sizes : mapping of str to ndarray [step]
        By the names of `Conditions.sizes`; NaN where a size does not apply. [1]
    parameters : ParameterSet
    """
    beyond = np.zeros(len(next(iter(sizes.values()))), dtype=np.bool_)
    if not parameters.covered_ranges:
        return beyond
    for key, value in sizes.items():
        if key in parameters.covered_ranges:
            low, high = parameters.covered_ranges[key]
            beyond |= (value < low * (1.0 - _TOLERANCE)) | (value > high * (1.0 + _TOLERANCE))
        elif "." not in key:  # an unseen class says so itself
            beyond |= ~np.isnan(value)
    return beyond


def novelty(found: Mapping[str, str]) -> dict[str, float]:
    """Return the features of novelty of what `outside` found. [1]."""
    return {name: float(name in found) for name in NOVELTY}


def ranges(seen: Iterable[Conditions]) -> dict[str, tuple[float, float]]:
    """Return the least and the most of every size."""
    values: dict[str, list[float]] = {}
    for one in seen:
        for name, value in one.sizes.items():
            values.setdefault(name, []).append(value)
    return {name: (min(found), max(found)) for name, found in sorted(values.items())}


def with_coverage(parameters: ParameterSet, seen: Iterable[Conditions]) -> ParameterSet:
    """Return a set that covers the conditions and nothing else."""
    all_seen = list(seen)
    return replace(
        parameters,
        covered_gpus=tuple(sorted({c.gpu for c in all_seen})),
        covered_architectures=tuple(sorted({c.architecture for c in all_seen})),
        covered_precisions=tuple(sorted({c.precision for c in all_seen})),
        covered_classes=tuple(sorted({c.model_class for c in all_seen})),
        covered_ranges=ranges(all_seen),
    )

"""Fit a parameter set to what `joulecast bench` measured on one device.

A card that nobody has calibrated, or the processor at hand. In: an operator file with all phases. Out: a
`ParameterSet` for that device. Its stages are wider than those on the public operators, which are forward
passes of a few kinds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from joulecast.calibrate.operators import observed_floors_s, operator_problem
from joulecast.calibrate.ops import OperatorRecords, load_host_parameters, load_operator_records
from joulecast.calibrate.stages import Problem, Stage, StageResult, Values, fit_stage
from joulecast.errors import RunsError
from joulecast.hardware.catalogue import load_gpu
from joulecast.model.definitions import BANDWIDTH_CLASSES
from joulecast.model.parameters import ParameterSet, definition
from joulecast.workload.table import OpKind

BENCH_FIT_SCHEMA: Final = "joulecast/bench-fit/1"

_STREAMING: Final = (
    *(OpKind.ELEMENTWISE, OpKind.COPY, OpKind.SOFTMAX, OpKind.LAYER_NORM, OpKind.BATCH_NORM),
    *(OpKind.REDUCTION, OpKind.POOL, OpKind.EMBEDDING, OpKind.OPTIMIZER),
)
_PRODUCT_CLASSES: Final = (
    *("product", "convolution", "attention"),
    *("depthwise", "depthwise_dgrad", "depthwise_wgrad"),
)
_FAMILIES: Final = ("vector", "tf32", "tensor16")

#: Stage -> the kinds of its records, and the parameters that they can determine.
BENCH_STAGES: Final[Mapping[str, tuple[tuple[OpKind, ...], tuple[str, ...]]]] = {
    "streams": (
        _STREAMING,
        (
            *(f"bandwidth.{name}" for name in BANDWIDTH_CLASSES if name not in _PRODUCT_CLASSES),
            *("bandwidth.l2_gain", "bandwidth.l2_share", "bandwidth.ramp_s", "bandwidth.rows_in_flight"),
            *("batch_norm.forward_cycles", "batch_norm.backward_cycles", "batch_norm.bf16_ratio"),
        ),
    ),
    "products": (
        (OpKind.GEMM, OpKind.BATCHED_GEMM),
        (
            *(
                f"product.{family}.{what}"
                for family in _FAMILIES
                for what in ("efficiency", "k_half", "tile_half")
            ),
            *("product.batched_ratio", "bandwidth.product", "bandwidth.sharpness"),
        ),
    ),
    "convolutions": (
        (OpKind.CONVOLUTION,),
        (
            *(
                f"convolution.{family}.{what}"
                for family in _FAMILIES
                for what in ("forward", "dgrad", "wgrad", "k_half")
            ),
            *("convolution.pointwise_ratio", "convolution.stride_ratio", "convolution.layout_traffic"),
            *("convolution.winograd_gain", "convolution.winograd_half", "convolution.winograd_traffic"),
            *("convolution.depthwise_rate", "convolution.depthwise_fp32_rate"),
            *("bandwidth.convolution", "bandwidth.depthwise"),
            *("bandwidth.depthwise_dgrad", "bandwidth.depthwise_wgrad"),
        ),
    ),
    "attention": (
        (OpKind.ATTENTION,),
        (
            *("attention.forward", "attention.backward", "attention.vector"),
            *("attention.width_half", "attention.key_half", "attention.overhead_s", "bandwidth.attention"),
        ),
    ),
}

#: What a processor's libraries allocate for themselves is outside of PyTorch's allocator, which cuts no
#: blocks into pieces either; a prediction of its peak has neither.
_PROCESSOR_FACTS: Final = {"memory.workspace_bytes": 0.0}
_PROCESSOR: Final = "cpu"

_LEAST_EFFECT: Final = 1e-3  # of a log ratio, of a step of 5 % in a parameter
_STEP: Final = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFit:
    """A set fitted to one device's operators.

    Attributes
    ----------
    parameters : ParameterSet
    gpu : str
        Slug of the device.
    stages : tuple of StageResult
        Error of the operators before and after, in sample.
    """

    parameters: ParameterSet
    gpu: str
    stages: tuple[StageResult, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``joulecast calibrate --preset bench --format json``."""
        return {
            "schema": BENCH_FIT_SCHEMA,
            "gpu": self.gpu,
            "stages": [
                {
                    "name": stage.name,
                    "n_rows": stage.n_rows,
                    "error_before": stage.error_before,
                    "error_after": stage.error_after,
                    "changed": dict(stage.values),
                    "at_bound": list(stage.at_bound),
                }
                for stage in self.stages
            ],
        }


def fit_bench(
    path: str | Path, start: ParameterSet, *, progress: Callable[[str], None] | None = None
) -> BenchFit:
    """Return a set fitted to the operators of one device.

    Parameters
    ----------
    path : str or Path
        An operator file of one device.
    start : ParameterSet
        Parameters that the operators do not determine stay as they are there.
    progress : callable, optional
        Told a line per stage.

    Raises
    ------
    RunsError
        The file cannot be read, or holds several devices or none.
    """
    records = load_operator_records(path)
    slugs = np.unique(records.gpu).tolist()
    if len(slugs) != 1:
        held = ", ".join(slugs) or "none"
        raise RunsError(f"{path} must hold the operators of one device to fit a set for it; it has {held}")
    values = {**start.values, **_host_values(path)}
    results = []
    for name, (kinds, parameters) in BENCH_STAGES.items():
        chosen = records.rows(np.isin(records.table.kind, [str(kind) for kind in kinds]))
        if not len(chosen):
            continue
        result = _fitted(name, chosen, parameters, values, slugs[0])
        values.update(result.values)
        results.append(result)
        if progress is not None:
            progress(
                f"{name}: {len(chosen)} records, error {result.error_before:.1%} -> {result.error_after:.1%}"
            )
    if slugs[0] == _PROCESSOR:
        values.update(_PROCESSOR_FACTS)
    return BenchFit(
        parameters=_set(start, values, records, slugs[0]), gpu=str(slugs[0]), stages=tuple(results)
    )


def _host_values(path: str | Path) -> dict[str, float]:
    """Return what launches and dispatch say outright, kept within bounds."""
    return {
        name: float(np.clip(value, definition(name).low, definition(name).high))
        for name, value in load_host_parameters(path).items()
    }


def _fitted(
    name: str, records: OperatorRecords, parameters: tuple[str, ...], values: Values, slug: str
) -> StageResult:
    """Return a stage on those of its parameters that change anything."""
    problem = operator_problem(records, {slug: load_gpu(slug)}, observed_floors_s(records))
    chosen = tuple(parameter for parameter in parameters if _matters(problem, parameter, values))
    return fit_stage(Stage(name=name, parameters=chosen, problem=problem, n_evaluations=60), values)


def _matters(problem: Problem, parameter: str, values: Values) -> bool:
    """Whether a small step of a parameter changes what is predicted of any record."""
    p = definition(parameter)
    stepped = values[parameter] * _STEP + (p.high - p.low) * (_STEP - 1.0) * 0.1
    if stepped > p.high:
        stepped = values[parameter] / _STEP
    change = problem.residuals({**values, parameter: stepped}) - problem.residuals(values)
    return bool(np.max(np.abs(change)) > _LEAST_EFFECT)


def _set(start: ParameterSet, values: Values, records: OperatorRecords, slug: str) -> ParameterSet:
    """Return the set, which covers this device alone."""
    return replace(
        start,
        values=dict(values),
        covered_gpus=(slug,),
        covered_precisions=tuple(sorted(set(start.covered_precisions) | set(records.precision.tolist()))),
        provenance={
            "data": f"{len(records)} operators of {slug}, joulecast bench",
            "date": datetime.now(UTC).date().isoformat(),
            "start": start.provenance.get("data", "unknown"),
        },
    )

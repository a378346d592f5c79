"""A prediction beside a measurement: quantities, stages, groups of operators, and what explains the rest.

Enters: a `Prediction`, what was measured, and where the time of a real step went. Leaves: a `Comparison`.
Pure arithmetic: it runs nothing and reads nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final

from joulecast.results import OpGroup, Prediction, Quantity
from joulecast.units import MILLI
from joulecast.workload.table import OpKind, Phase


class Stage(StrEnum):
    """A part of the step that a profile tells apart."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


#: Phase of the op table -> stage; what is recomputed is recomputed in the backward pass.
STAGE_OF: Final[Mapping[str, Stage]] = {
    Phase.FORWARD: Stage.FORWARD,
    Phase.RECOMPUTE: Stage.BACKWARD,
    Phase.DGRAD: Stage.BACKWARD,
    Phase.WGRAD: Stage.BACKWARD,
    Phase.BACKWARD: Stage.BACKWARD,
    Phase.OPTIMIZER: Stage.OPTIMIZER,
}

#: Quantities that both sides have, in the order they are printed.
COMPARED: Final = (
    "step_time_s",
    "samples_per_s",
    "mean_power_w",
    "energy_per_step_j",
    "energy_per_sample_j",
    "samples_per_j",
    "allocated_bytes",
    "reserved_bytes",
    "process_bytes",
    "sm_clock_hz",
)

#: Kinds whose kernels a compiler, or a fused operator, melts into one.
_FUSIBLE: Final = frozenset(
    {OpKind.ELEMENTWISE, OpKind.COPY, OpKind.SOFTMAX, OpKind.LAYER_NORM, OpKind.REDUCTION, OpKind.OPTIMIZER}
)
#: What attention is made of where no kernel fuses it.
_UNFUSED_ATTENTION: Final = frozenset({OpKind.BATCHED_GEMM, OpKind.SOFTMAX})


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTimes:
    """An operator of a profiled step.

    Attributes
    ----------
    operator, kind : str
        ATen name; kind of the op table.
    stage : Stage
    time_s, n_calls, n_kernels : float
        Of one step; kernels are 0 on a CPU. [s], [1], [1]
    """

    operator: str
    kind: str
    stage: Stage
    time_s: float
    n_calls: float
    n_kernels: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """Where the time of one real step goes.

    Attributes
    ----------
    operators : tuple of OperatorTimes
    step_time_s : float
        From its start to its end, with the profiler on. [s]
    input_time_s : float
        In the data loader, and copying to the device. [s]
    has_kernels : bool
        Whether times are those of a GPU's kernels.
    """

    operators: tuple[OperatorTimes, ...]
    step_time_s: float
    input_time_s: float
    has_kernels: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredValue:
    """What was measured under a name of `COMPARED`, or why nothing was.

    Attributes
    ----------
    value, low, high : float or None
        In the SI unit that the name says; no interval where none is known.
    reason : str
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedQuantity:
    """A quantity on both sides.

    Attributes
    ----------
    name : str
    predicted : Quantity
    measured : MeasuredValue
    """

    name: str
    predicted: Quantity
    measured: MeasuredValue

    @property
    def error_frac(self) -> float | None:
        """Predicted over measured, less 1; None where nothing was measured. [1]"""
        return None if not self.measured.value else self.predicted.value / self.measured.value - 1

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured value lies in the predicted interval; None where nothing was measured."""
        if self.measured.value is None:
            return None
        return self.predicted.low <= self.measured.value <= self.predicted.high


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTime:
    """Time of operators on both sides: of a stage (`kind` is empty), or of a kind in it.

    Attributes
    ----------
    kind : str
    stage : Stage
    predicted_s, measured_s : float
        [s]
    n_predicted, n_measured : float
        Kernels on a GPU, else operator calls. [1]
    """

    kind: str
    stage: Stage
    predicted_s: float
    measured_s: float
    n_predicted: float
    n_measured: float

    @property
    def residual_s(self) -> float:
        """Measured less predicted. [s]"""
        return self.measured_s - self.predicted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What may explain a part of the residual of the step time.

    Attributes
    ----------
    name : str
        ``clock``, ``host``, ``missing fusion``, ``input pipeline`` or ``operators``.
    residual_s : float or None
        Measured less predicted time that it explains; None where nothing tells. [s]
    evidence : str
        The numbers that say so, or why nothing tells.
    """

    name: str
    residual_s: float | None
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A prediction beside a measurement.

    Attributes
    ----------
    run_id : str
    prediction : Prediction
    quantities : tuple of ComparedQuantity
    stages, groups : tuple of ComparedTime
        Largest first; empty without a profile.
    causes : tuple of Cause
        What explains most of the residual first.
    notes : tuple of str
    """

    SCHEMA: ClassVar[str] = "joulecast/comparison/1"

    run_id: str
    prediction: Prediction
    quantities: tuple[ComparedQuantity, ...]
    stages: tuple[ComparedTime, ...]
    groups: tuple[ComparedTime, ...]
    causes: tuple[Cause, ...]
    notes: tuple[str, ...] = ()

    @property
    def residual_s(self) -> float | None:
        """Measured less predicted step time. [s]"""
        step = next(q for q in self.quantities if q.name == "step_time_s")
        return None if step.measured.value is None else step.measured.value - step.predicted.value

    @property
    def likely_cause(self) -> Cause | None:
        """What explains most of the residual, if anything does."""
        residual_s = self.residual_s
        if residual_s is None:
            return None
        return next((c for c in self.causes if (c.residual_s or 0.0) * residual_s > 0), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``joulecast compare``."""
        cause = self.likely_cause
        return {
            "schema": self.SCHEMA,
            "run_id": self.run_id,
            "quantities": [
                {
                    "name": q.name,
                    "predicted": q.predicted.to_dict(),
                    "measured": asdict(q.measured),
                    "error_frac": q.error_frac,
                    "is_inside": q.is_inside,
                }
                for q in self.quantities
            ],
            "stages": [asdict(time) for time in self.stages],
            "groups": [asdict(time) for time in self.groups],
            "residual_s": self.residual_s,
            "likely_cause": cause and cause.name,
            "causes": [asdict(cause) for cause in self.causes],
            "notes": list(self.notes),
            "prediction": self.prediction.to_dict(),
        }


def compare(
    run_id: str,
    prediction: Prediction,
    measured: Mapping[str, MeasuredValue],
    profile: StepProfile | None = None,
    calls: Mapping[tuple[str, Stage], float] | None = None,
    notes: Sequence[str] = (),
) -> Comparison:
    """Put a prediction beside what was measured.

    Parameters
    ----------
    run_id : str
    prediction : Prediction
    measured : mapping of str to MeasuredValue
        By the names of `COMPARED`.
    profile : StepProfile, optional
        Of the step that was measured.
    calls : mapping of (kind, stage) to float, optional
        Operator calls of the op table, to count against a profile without kernels. [1]
    notes : sequence of str

    Notes
    -----
    The profiler slows the step. Its times are scaled by the step time without it over that with it.
    """
    quantities = tuple(
        ComparedQuantity(
            name=name,
            predicted=getattr(prediction, name),
            measured=measured.get(name) or MeasuredValue(value=None, reason="not in the record"),
        )
        for name in COMPARED
    )
    step_s = measured["step_time_s"].value if "step_time_s" in measured else None
    groups: tuple[ComparedTime, ...] = ()
    if profile is not None and step_s is not None:
        scale = step_s / profile.step_time_s
        groups = _groups(prediction.op_groups, profile, scale, calls or {})
        notes = (*notes, f"times of operators are the profiler's, times {scale:.2f}: it slowed the step")
    causes = _causes(prediction, measured, profile, groups)
    return Comparison(
        run_id=run_id,
        prediction=prediction,
        quantities=quantities,
        stages=_stages(groups),
        groups=groups,
        causes=causes,
        notes=tuple(notes),
    )


def _groups(
    predicted: Iterable[OpGroup],
    profile: StepProfile,
    scale: float,
    calls: Mapping[tuple[str, Stage], float],
) -> tuple[ComparedTime, ...]:
    """Return the times of every kind in every stage, largest first."""
    sums: dict[tuple[str, Stage], list[float]] = {}
    for group in predicted:
        key = (group.kind, STAGE_OF[group.phase])
        parts = sums.setdefault(key, [0.0, 0.0, 0.0, 0.0])
        parts[0] += group.time_s
        parts[2] += group.n_kernels if profile.has_kernels else 0.0
    for operator in profile.operators:
        parts = sums.setdefault((operator.kind, operator.stage), [0.0, 0.0, 0.0, 0.0])
        parts[1] += operator.time_s * scale
        parts[3] += operator.n_kernels if profile.has_kernels else operator.n_calls
    if not profile.has_kernels:
        for key, n_calls in calls.items():
            sums.setdefault(key, [0.0, 0.0, 0.0, 0.0])[2] += n_calls
    times = [
        ComparedTime(
            kind=kind, stage=stage, predicted_s=p[0], measured_s=p[1], n_predicted=p[2], n_measured=p[3]
        )
        for (kind, stage), p in sums.items()
    ]
    return tuple(sorted(times, key=lambda time: -max(time.predicted_s, time.measured_s)))


def _stages(groups: Sequence[ComparedTime]) -> tuple[ComparedTime, ...]:
    found = [stage for stage in Stage if any(group.stage is stage for group in groups)]
    return tuple(
        ComparedTime(
            kind="",
            stage=stage,
            predicted_s=sum(g.predicted_s for g in groups if g.stage is stage),
            measured_s=sum(g.measured_s for g in groups if g.stage is stage),
            n_predicted=sum(g.n_predicted for g in groups if g.stage is stage),
            n_measured=sum(g.n_measured for g in groups if g.stage is stage),
        )
        for stage in found
    )


# --- causes ---------------------------------------------------------------------------------------


def _causes(
    prediction: Prediction,
    measured: Mapping[str, MeasuredValue],
    profile: StepProfile | None,
    groups: Sequence[ComparedTime],
) -> tuple[Cause, ...]:
    """Return the causes that were looked at, what explains most of the residual first.

    Notes
    -----
    They are estimates of parts of one residual, not a decomposition: a clock lower than predicted slows the
    operators too. So what the clock explains is taken off what the operators do.
    """
    step = measured.get("step_time_s")
    if step is None or step.value is None:
        return ()
    clock = _clock(prediction, measured.get("sm_clock_hz"))
    causes = [clock]
    if profile is None:
        reason = "no profile of the run: `joulecast compare MODEL` takes one"
        causes += [
            Cause(name=name, residual_s=None, evidence=reason)
            for name in ("host", "missing fusion", "input pipeline", "operators")
        ]
        return _sorted(causes, step.value - prediction.step_time_s.value)
    fusion = _fusion(groups)
    scale = step.value / profile.step_time_s
    inputs = Cause(
        name="input pipeline",
        residual_s=profile.input_time_s * scale,
        evidence=f"{_shown(profile.input_time_s * scale)} in the data loader and in copies to the device",
    )
    explained_s = (clock.residual_s or 0.0) + (fusion.residual_s or 0.0)
    causes += [
        _host(prediction, step.value, groups, inputs.residual_s or 0.0),
        fusion,
        inputs,
        _operators(groups, explained_s),
    ]
    return _sorted(causes, step.value - prediction.step_time_s.value)


def _sorted(causes: Sequence[Cause], residual_s: float) -> tuple[Cause, ...]:
    sign = 1.0 if residual_s >= 0 else -1.0
    return tuple(sorted(causes, key=lambda cause: -sign * (cause.residual_s or 0.0)))


def _clock(prediction: Prediction, measured: MeasuredValue | None) -> Cause:
    """Time that scales with the clock, at the clock that was seen."""
    if measured is None or not measured.value:
        return Cause(
            name="clock", residual_s=None, evidence=(measured and measured.reason) or "no clock was measured"
        )
    share = prediction.time_share_by_bound.get("compute", 0.0)
    ratio = prediction.sm_clock_hz.value / measured.value
    return Cause(
        name="clock",
        residual_s=prediction.step_time_s.value * share * (ratio - 1),
        evidence=(
            f"it ran at 1/{ratio:.3f} of the predicted clock, and {share:.0%} of the step is bound by compute"
        ),
    )


def _host(prediction: Prediction, step_s: float, groups: Sequence[ComparedTime], input_s: float) -> Cause:
    """Time between operators beyond what was predicted."""
    busy_s = sum(group.measured_s for group in groups)
    predicted_busy_s = sum(group.predicted_s for group in groups)
    between_s = max(step_s - busy_s - input_s, 0.0)
    predicted_s = max(prediction.step_time_s.value - predicted_busy_s, 0.0)
    return Cause(
        name="host",
        residual_s=between_s - predicted_s,
        evidence=(
            f"outside of operators: {_shown(between_s)} of {_shown(step_s)} measured, "
            f"{_shown(predicted_s)} of {_shown(prediction.step_time_s.value)} predicted"
        ),
    )


def _fusion(groups: Sequence[ComparedTime]) -> Cause:
    """Time of kernels beyond those that were counted, of kinds that can be fused; negative if fewer ran."""
    worst: tuple[float, str] = (0.0, "as many small kernels ran as were counted")
    total_s = 0.0
    for group in groups:
        if group.kind in _FUSIBLE and group.n_predicted > 0 and group.n_measured > 0:
            more = group.n_measured / group.n_predicted
            part_s = group.measured_s * (1 - 1 / more) if more > 1 else group.predicted_s * (more - 1)
            part_s = max(min(part_s, max(group.residual_s, 0.0)), min(group.residual_s, 0.0))
            total_s += part_s
            text = (
                f"{group.kind} {group.stage}: {group.n_measured:.0f} ran, "
                f"{group.n_predicted:.0f} were counted"
            )
            worst = max(worst, (abs(part_s), text))
    for stage in Stage:
        fused_s = sum(g.predicted_s for g in groups if g.kind == OpKind.ATTENTION and g.stage is stage)
        ran_s = sum(g.measured_s for g in groups if g.kind == OpKind.ATTENTION and g.stage is stage)
        pieces_s = sum(
            g.measured_s
            for g in groups
            if g.kind in _UNFUSED_ATTENTION and g.stage is stage and g.n_predicted == 0
        )
        if fused_s > 0 and pieces_s > ran_s:
            part_s = pieces_s + ran_s - fused_s
            total_s += part_s
            text = (
                f"attention {stage} ran as products and softmax in {_shown(pieces_s)}, "
                f"{_shown(fused_s)} were predicted for a fused kernel"
            )
            worst = max(worst, (abs(part_s), text))
    return Cause(name="missing fusion", residual_s=total_s, evidence=worst[1])


def _operators(groups: Sequence[ComparedTime], explained_s: float) -> Cause:
    """Return what is left of the operators' residual, with the group that is furthest off."""
    total_s = sum(group.residual_s for group in groups) - explained_s
    sign = 1.0 if total_s >= 0 else -1.0
    worst = max(groups, key=lambda group: sign * group.residual_s)
    return Cause(
        name="operators",
        residual_s=total_s,
        evidence=(
            f"{worst.kind} {worst.stage} took {_shown(worst.measured_s)}, "
            f"{_shown(worst.predicted_s)} were predicted"
        ),
    )


def _shown(time_s: float) -> str:
    return f"{time_s:.3g} s" if time_s >= 1 else f"{round(time_s / MILLI, 3):.3g} ms"

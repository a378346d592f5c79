"""The trade-offs of precision, card count, parameter sharing, batch and power limit, for any models.

In: models with their batches, a card, counts, precisions. Out: `Study`, the predictions, and what follows
from them: gains, sharing, scaling, power limits. Knows no text and no figure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import log2
from typing import Any, Final

from joulecast.errors import UsageError
from joulecast.explore.anatomy import Anatomy, anatomy
from joulecast.explore.ranking import SHARED_FRACS
from joulecast.explore.table import SweepResult, table_of
from joulecast.hardware.catalogue import load_gpu
from joulecast.hardware.spec import Gpu
from joulecast.model.parameters import ParameterSet, load_parameters
from joulecast.prediction import predict_scenario
from joulecast.results import MemoryVerdict, Prediction, Predictions, Quantity
from joulecast.scenario import Scenario

DEFAULT_PRECISIONS: Final = ("fp32", "tf32", "bf16")

#: Samples per GPU where nobody says: the largest power of two up to this that fits in every precision.
MOST_DEFAULT_BATCH_SIZE: Final = 32

#: Batches of a curve: powers of two around the study's own, so many below and above.
_N_BATCHES_BELOW: Final = 3
_N_BATCHES_ABOVE: Final = 3

#: Points of a power-limit curve over the card's range.
_N_LIMITS: Final = 13

#: Share of the error that two predictions have in common: those of one model and card; of one precision too;
#: of all but the power limit. Those of two models share none that is known.
_, SHARED_BY_CARD, SHARED_BY_PRECISION, SHARED_BY_LIMIT = SHARED_FRACS

Progress = Callable[[Sequence[Scenario]], Iterable[Scenario]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """What is studied.

    Attributes
    ----------
    models : tuple of str
        Names as in `Scenario`.
    gpu : str
    n_gpus : tuple of int
        Cards in the job; the first is the one that scaling is judged by.
    precisions : tuple of str
        The first is the baseline of gains.
    batch_size, seq_len : mapping of str to int
        By model; a model that is not there takes the key ``""``, then a default.
    options : mapping of str to object
        Further fields of `Scenario`, for all.
    """

    models: tuple[str, ...]
    gpu: str
    n_gpus: tuple[int, ...] = (1,)
    precisions: tuple[str, ...] = DEFAULT_PRECISIONS
    batch_size: Mapping[str, int] = field(default_factory=dict)
    seq_len: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("models", "n_gpus", "precisions"):
            values = getattr(self, name)
            if not values:
                raise UsageError(f"a study needs {name.replace('_', ' ')}: none given")
            if len(set(values)) != len(values):
                raise UsageError(f"{name.replace('_', ' ')} given twice: {', '.join(map(str, values))}")
        for name in ("batch_size", "seq_len"):
            stray = sorted(set(getattr(self, name)) - {"", *self.models})
            if stray:
                raise UsageError(f"{name.replace('_', ' ')} given for {', '.join(stray)}, not in the study")
        unknown = sorted(set(self.options) - {f.name for f in fields(Scenario)})
        if unknown:
            raise UsageError(f"unknown option {', '.join(unknown)}; see joulecast.Scenario")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Predictions of a plan.

    Attributes
    ----------
    plan : StudyPlan
    gpu : Gpu
    labels : mapping of str to str
        Canonical name of a model -> the name it was asked for by.
    points : Predictions
        Every model, count of cards and precision, at the study's batch.
    batch_curve, limit_curve : Predictions
        The first count of cards, every model and precision: over batches, and over power limits.
    anatomies : mapping of (str, str) to Anatomy
        The first count of cards, by canonical model and precision.
    """

    plan: StudyPlan
    gpu: Gpu
    labels: Mapping[str, str]
    points: Predictions
    batch_curve: Predictions
    limit_curve: Predictions
    anatomies: Mapping[tuple[str, str], Anatomy]

    @property
    def models(self) -> tuple[str, ...]:
        """Canonical names, in the order of the plan."""
        return tuple(self.labels)

    def point(self, model: str, precision: str, n_gpus: int | None = None) -> Prediction:
        """Return the prediction of one model; the first count of cards where none is said."""
        wanted = (model, precision, self.plan.n_gpus[0] if n_gpus is None else n_gpus)
        return next(p for p in self.points if (p.model, p.precision, p.n_gpus) == wanted)

    def curve(self, curve: Predictions, model: str, precision: str) -> tuple[Prediction, ...]:
        """Return the part of a curve that belongs to one model and precision."""
        return tuple(p for p in curve if (p.model, p.precision) == (model, precision))

    def table(self) -> SweepResult:
        """Return every distinct prediction as a row of a sweep's table."""
        rows = {}
        for p in (*self.points, *self.batch_curve, *self.limit_curve):
            shares = {f"{bound}_time_share_frac": share for bound, share in p.time_share_by_bound.items()}
            row = {**p.to_row(), **shares}
            rows[tuple(row[column] for column in _KEY_COLUMNS)] = row
        return table_of(list(rows.values()))


_KEY_COLUMNS: Final = ("model", "n_gpus", "precision", "batch_per_gpu", "power_limit_w")


# --- running it -----------------------------------------------------------------------------------


def study(plan: StudyPlan, *, parameters: ParameterSet | None = None, progress: Progress = iter) -> Study:
    """Predict a plan.

    Parameters
    ----------
    plan : StudyPlan
    parameters : ParameterSet, optional
        By default the shipped set.
    progress : callable, optional
        Wraps the sequence of scenarios while they are predicted.

    Raises
    ------
    JoulecastError
        A model or card is unknown, or an option cannot be.
    """
    fitted = load_parameters() if parameters is None else parameters
    gpu = load_gpu(plan.gpu)
    bases = {model: _base(plan, model, fitted) for model in plan.models}
    points = [
        _with(base, n_gpus=n, precision=precision)
        for base in bases.values()
        for n in plan.n_gpus
        for precision in plan.precisions
    ]
    batches = [
        _with(base, batch_size=batch, precision=precision)
        for base in bases.values()
        for precision in plan.precisions
        for batch in _batches_around(int(base.batch_size or 1))
    ]
    limits = [
        _with(base, power_limit_w=limit_w, precision=precision)
        for base in bases.values()
        for precision in plan.precisions
        for limit_w in _limits(gpu, base.power_limit_w)
    ]
    predictions = [predict_scenario(scenario, fitted) for scenario in progress([*points, *batches, *limits])]
    by_model = {p.model: s.model for p, s in zip(predictions[: len(points)], points, strict=True)}
    if len(by_model) < len(plan.models):
        raise UsageError(f"two names for one model: {', '.join(plan.models)}")
    anatomies = {
        (p.model, p.precision): anatomy(s, fitted)
        for p, s in zip(predictions[: len(points)], points, strict=True)
        if p.n_gpus == plan.n_gpus[0]
    }
    n_points, n_batches = len(points), len(batches)
    return Study(
        plan=plan,
        gpu=gpu,
        labels=by_model,
        points=Predictions(predictions[:n_points]),
        batch_curve=Predictions(predictions[n_points : n_points + n_batches]),
        limit_curve=Predictions(predictions[n_points + n_batches :]),
        anatomies=anatomies,
    )


def _with(base: Scenario, **changes: Any) -> Scenario:
    """Return a scenario with some fields changed; not `replace`, which a type checker cannot follow."""
    return Scenario(**{f.name: changes.get(f.name, getattr(base, f.name)) for f in fields(Scenario)})


def _base(plan: StudyPlan, model: str, parameters: ParameterSet) -> Scenario:
    """Return the scenario of a model in the first count and precision, its batch settled."""
    scenario = Scenario(
        model=model,
        gpu=plan.gpu,
        n_gpus=plan.n_gpus[0],
        precision=plan.precisions[0],
        batch_size=plan.batch_size.get(model, plan.batch_size.get("")),
        seq_len=plan.seq_len.get(model, plan.seq_len.get("")),
        **plan.options,
    )
    if scenario.batch_size is not None:
        return scenario
    return _with(scenario, batch_size=_default_batch_size(plan, scenario, parameters))


def _default_batch_size(plan: StudyPlan, scenario: Scenario, parameters: ParameterSet) -> int:
    """Return the largest power of two that is expected to fit in every precision; 1 where none does."""
    batch_size = MOST_DEFAULT_BATCH_SIZE
    while batch_size > 1:
        tried = [
            _with(scenario, batch_size=batch_size, precision=precision, n_gpus=max(plan.n_gpus))
            for precision in plan.precisions
        ]
        verdicts = {predict_scenario(one, parameters).memory_verdict for one in tried}
        if MemoryVerdict.DOES_NOT_FIT not in verdicts:
            break
        batch_size //= 2
    return batch_size


def _batches_around(batch_size: int) -> list[int]:
    """Return the batch and powers of two of it, rising."""
    n_below = min(_N_BATCHES_BELOW, int(log2(batch_size)))
    return [max(1, int(batch_size * 2.0**i)) for i in range(-n_below, _N_BATCHES_ABOVE + 1)]


def _limits(gpu: Gpu, asked_w: float | None) -> list[float]:
    """Return power limits over the card's range, the one in force among them, rising. [W]."""
    low_w, high_w = gpu.min_power_limit_w, gpu.max_power_limit_w
    steps = [low_w + (high_w - low_w) * i / (_N_LIMITS - 1) for i in range(_N_LIMITS)]
    return sorted({*steps, asked_w or gpu.power_limit_w})


# --- what follows ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """One precision against the baseline, same model and cards.

    Attributes
    ----------
    model, precision, baseline : str
    n_gpus : int
    time_ratio, energy_ratio : Quantity
        Baseline over the precision: above 1 is a gain. [1]
    baseline_share, share : mapping of str to float or None
        What bounds the step before and after, see `Anatomy.time_share`; None but for the first count.
    """

    model: str
    precision: str
    baseline: str
    n_gpus: int
    time_ratio: Quantity
    energy_ratio: Quantity
    baseline_share: Mapping[str, float] | None
    share: Mapping[str, float] | None


def gains(found: Study) -> tuple[Gain, ...]:
    """Return every precision against the first, model by model and count by count."""
    baseline, *others = found.plan.precisions
    return tuple(
        _gain(found, model, precision, baseline, n_gpus)
        for model in found.models
        for n_gpus in found.plan.n_gpus
        for precision in others
    )


def _gain(found: Study, model: str, precision: str, baseline: str, n_gpus: int) -> Gain:
    before, after = (found.point(model, name, n_gpus) for name in (baseline, precision))
    is_first = n_gpus == found.plan.n_gpus[0]
    return Gain(
        model=model,
        precision=precision,
        baseline=baseline,
        n_gpus=n_gpus,
        time_ratio=before.step_time_s.over(after.step_time_s, SHARED_BY_CARD),
        energy_ratio=before.energy_per_step_j.over(after.energy_per_step_j, SHARED_BY_CARD),
        baseline_share=found.anatomies[model, baseline].time_share if is_first else None,
        share=found.anatomies[model, precision].time_share if is_first else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What one model's parameters cost, at the study's batch and baseline precision.

    Attributes
    ----------
    model : str
    n_parameters, n_shared_uses : int
        Shared ones once; uses beyond the first in one forward pass. [1]
    flop_per_sample : float
        [FLOP]
    activation_bytes : float
        Alive at the peak. [bytes]
    prediction : Prediction
        The baseline precision on the first count of cards.
    """

    model: str
    n_parameters: int
    n_shared_uses: int
    flop_per_sample: float
    activation_bytes: float
    prediction: Prediction


def sharing_of(parts: Anatomy, prediction: Prediction) -> Sharing:
    """Return what the parameters of one step cost."""
    return Sharing(
        model=prediction.model,
        n_parameters=parts.parameters.n_parameters,
        n_shared_uses=parts.parameters.n_shared_uses,
        flop_per_sample=float(parts.flop.sum()) / prediction.batch_per_gpu,
        activation_bytes=parts.activation_bytes,
        prediction=prediction,
    )


def comparable(rows: Iterable[Sharing]) -> tuple[Sharing, ...]:
    """Return the largest set of sequence models at one batch and length; the first of equal ones."""
    sets: dict[tuple[float, int], list[Sharing]] = {}
    for row in rows:
        p = row.prediction
        if p.seq_len is not None:
            sets.setdefault((p.batch_per_gpu, p.seq_len), []).append(row)
    largest: list[Sharing] = []
    for alike in sets.values():
        largest = alike if len(alike) > len(largest) else largest
    return tuple(largest)


def sharing(found: Study, precision: str | None = None) -> tuple[Sharing, ...]:
    """Return the sequence models of the study that compare; by default in the baseline precision."""
    name = precision or found.plan.precisions[0]
    return comparable(
        sharing_of(found.anatomies[model, name], found.point(model, name)) for model in found.models
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """More cards at the same batch per card, against the first count.

    Attributes
    ----------
    model, precision : str
    n_gpus : int
    time_efficiency, energy_efficiency : Quantity
        Throughput per card, and samples per joule, over those of the first count. [1]
    communication_frac, host_frac : float
        Shares of the step that show as communication, and as waiting for the host. [1]
    """

    model: str
    precision: str
    n_gpus: int
    time_efficiency: Quantity
    energy_efficiency: Quantity
    communication_frac: float
    host_frac: float


def scaling(found: Study) -> tuple[Scaling, ...]:
    """Return the efficiency of every larger count of cards."""
    rows = []
    for model in found.models:
        for precision in found.plan.precisions:
            one = found.point(model, precision)
            for n_gpus in found.plan.n_gpus[1:]:
                many = found.point(model, precision, n_gpus)
                rows.append(
                    Scaling(
                        model=model,
                        precision=precision,
                        n_gpus=n_gpus,
                        time_efficiency=one.step_time_s.over(many.step_time_s, SHARED_BY_PRECISION),
                        energy_efficiency=one.energy_per_sample_j.over(
                            many.energy_per_sample_j, SHARED_BY_PRECISION
                        ),
                        communication_frac=many.time_share_by_bound["communication"],
                        host_frac=many.time_share_by_bound["host"],
                    )
                )
    return tuple(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChoice:
    """The power limit of least energy per step, against the limit in force.

    Attributes
    ----------
    model, precision : str
    chosen, default : Prediction
        At the limit of least energy, and at the one in force.
    """

    model: str
    precision: str
    chosen: Prediction
    default: Prediction

    @property
    def energy_ratio(self) -> Quantity:
        """Energy per step at the chosen limit over that at the one in force. [1]."""
        return self.chosen.energy_per_step_j.over(self.default.energy_per_step_j, self._shared_frac)

    @property
    def time_ratio(self) -> Quantity:
        """Step time at the chosen limit over that at the one in force. [1]."""
        return self.chosen.step_time_s.over(self.default.step_time_s, self._shared_frac)

    @property
    def _shared_frac(self) -> float:
        return 1.0 if self.chosen.power_limit_w == self.default.power_limit_w else SHARED_BY_LIMIT


def limit_choices(found: Study) -> tuple[LimitChoice, ...]:
    """Return the choice of every model and precision; of equal energies the highest limit."""
    choices = []
    for model in found.models:
        for precision in found.plan.precisions:
            curve = found.curve(found.limit_curve, model, precision)
            chosen = min(curve, key=lambda p: (round(p.energy_per_step_j.value, 9), -p.power_limit_w))
            choices.append(
                LimitChoice(
                    model=model,
                    precision=precision,
                    chosen=chosen,
                    default=found.point(model, precision),
                )
            )
    return tuple(choices)

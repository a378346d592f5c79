"""A whole training run: steps, evaluation, checkpoints and waiting -> hours, energy, CO2e and money.

In: the prediction of a step, what the run consists of (`TrainingPlan`) and where it runs (`Site`). Out:
`RunCost`. The intervals take errors to go together: the low ends of all parts add up, and so do the high
ones.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from datetime import datetime
from itertools import product
from math import ceil, inf, isfinite
from typing import Any, Final

from joulecast.errors import UsageError
from joulecast.explore.carbon import Grid, Intensity
from joulecast.explore.prices import Prices
from joulecast.hardware.spec import Gpu
from joulecast.model.parameters import ParameterSet, load_parameters
from joulecast.prediction import predict_scenario
from joulecast.results import Prediction, Quantity
from joulecast.scenario import Scenario, runs_flash, settle_gpu, settle_step, workload_of

COST_SCHEMA: Final = "joulecast/cost/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """What a run does.

    Attributes
    ----------
    n_samples : int or None
        Samples of an epoch; the last batch of an epoch counts whole. Either this or `n_tokens`.
    n_epochs : int
        Epochs, at most.
    stop_epochs : tuple of float or None
        Fewest and most epochs after which early stopping ends the run; their mean is expected.
    n_tokens : float or None
        Tokens in all, of a model that reads sequences.
    eval_samples : int
        Samples of one evaluation pass, forward alone.
    n_evaluations : int or None
        Passes; None for one after each epoch.
    n_checkpoints : int
        Checkpoints in all; parameters, buffers and optimizer state each time, while the GPUs wait.
    checkpoint_bytes_per_s : float or None
        Rate at which one is written. [bytes/s]
    loader_samples_per_s : float or None
        The most samples that the input pipeline delivers to the whole job. [1/s]
    n_trials : int
        Runs like it, one after another.
    """

    n_samples: int | None = None
    n_epochs: int = 1
    stop_epochs: tuple[float, float] | None = None
    n_tokens: float | None = None
    eval_samples: int = 0
    n_evaluations: int | None = None
    n_checkpoints: int = 0
    checkpoint_bytes_per_s: float | None = None
    loader_samples_per_s: float | None = None
    n_trials: int = 1

    def __post_init__(self) -> None:
        _check_plan(self)

    def epochs(self) -> tuple[float, float, float]:
        """Return the fewest, the expected and the most epochs. [1]."""
        if self.stop_epochs is None:
            return self.n_epochs, self.n_epochs, self.n_epochs
        low, high = self.stop_epochs
        return low, (low + high) / 2, high

    def steps(self, global_batch: float, seq_len: int | None) -> tuple[float, float, float]:
        """Return the fewest, the expected and the most optimizer steps of one trial. [1].

        Raises
        ------
        UsageError
            Tokens are given and the model reads none.
        """
        if self.n_tokens is not None:
            if seq_len is None:
                raise UsageError(
                    "tokens are given, and the model reads no sequences: give samples and epochs"
                )
            n_steps = ceil(self.n_tokens / (global_batch * seq_len))
            return n_steps, n_steps, n_steps
        per_epoch = ceil((self.n_samples or 0) / global_batch)
        low, expected, high = self.epochs()
        return per_epoch * low, per_epoch * expected, per_epoch * high

    def evaluations(self) -> tuple[float, float, float]:
        """Return the fewest, the expected and the most evaluation passes of one trial. [1]."""
        if self.eval_samples == 0:
            return 0, 0, 0
        if self.n_evaluations is None:
            return self.epochs()
        return self.n_evaluations, self.n_evaluations, self.n_evaluations


_COUNTS: Final = {"n_samples": 1, "n_epochs": 1, "n_trials": 1, "n_tokens": 1}
_AT_LEAST_0: Final = ("eval_samples", "n_evaluations", "n_checkpoints")


def _check_plan(plan: TrainingPlan) -> None:
    """Raise for a plan that says too little, or what cannot be."""
    if (plan.n_samples is None) == (plan.n_tokens is None):
        raise UsageError("say how long the run is: either samples (with epochs) or tokens")
    for name, least in (*_COUNTS.items(), *((name, 0) for name in _AT_LEAST_0)):
        value = getattr(plan, name)
        if value is not None and not least <= value < inf:
            raise UsageError(f"{name} is {value:g}: it must be at least {least}")
    for name in ("checkpoint_bytes_per_s", "loader_samples_per_s"):
        rate = getattr(plan, name)
        if rate is not None and not 0 < rate < inf:
            raise UsageError(f"{name} is {rate:g}: it must be above 0")
    if plan.stop_epochs is not None:
        low, high = plan.stop_epochs
        if not 0 < low <= high <= plan.n_epochs:
            raise UsageError(
                f"early stopping after {low:g} to {high:g} of {plan.n_epochs} epochs cannot be: "
                "the first must not exceed the second, nor the second the epochs"
            )
    if plan.n_tokens is not None and (plan.n_epochs > 1 or plan.stop_epochs):
        raise UsageError("tokens are those of the whole run: leave out epochs")
    if plan.n_tokens is not None and plan.eval_samples and plan.n_evaluations is None:
        raise UsageError("a run of so many tokens has no epochs: say how many evaluation passes it makes")
    if plan.n_checkpoints and plan.checkpoint_bytes_per_s is None:
        raise UsageError("checkpoints need the rate at which one is written")


@dataclass(frozen=True, slots=True, kw_only=True)
class Embodied:
    """What making one GPU emitted, and how long it serves.

    Attributes
    ----------
    gpu_kg : float
        Of one GPU; the user's figure. [kg]
    lifetime_s : float
        Time in use over which it is spread. [s]
    """

    gpu_kg: float
    lifetime_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.gpu_kg < inf and 0 < self.lifetime_s < inf):
            raise UsageError("the embodied share needs kg of 0 or more and a lifetime above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a run happens, as far as the user says; nothing is assumed for the rest.

    Attributes
    ----------
    pue : float or None
        Facility energy over energy of the machines (ISO/IEC 30134-2). [1]
    node_gpus : int or None
        GPUs of the node or nodes that the job keeps, idle ones included.
    host_power_w : float or None
        What the rest of the node draws: CPUs, memory, fans. [W]
    grid : Grid or None
        Greenhouse gases of the electricity.
    start : datetime or None
        When the run starts, for a series of intensities.
    prices : Prices or None
    embodied : Embodied or None
    """

    pue: float | None = None
    node_gpus: int | None = None
    host_power_w: float | None = None
    grid: Grid | None = None
    start: datetime | None = None
    prices: Prices | None = None
    embodied: Embodied | None = None

    def __post_init__(self) -> None:
        if self.pue is not None and not (isfinite(self.pue) and self.pue >= 1):
            raise UsageError(f"a PUE of {self.pue:g} cannot be: it is 1 or more")
        if self.host_power_w is not None and not 0 <= self.host_power_w < inf:
            raise UsageError(f"the rest of a node cannot draw {self.host_power_w:g} W")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """One kind of work of a run, all trials.

    Attributes
    ----------
    name : str
        ``done``, ``training``, ``evaluation`` or ``checkpoints``.
    n_steps : float
        Steps expected, or checkpoints.
    time_s, energy_j : Quantity
        Energy of the job's GPUs. [s], [J]
    """

    name: str
    n_steps: float
    time_s: Quantity
    energy_j: Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What a whole run takes.

    Attributes
    ----------
    training : Prediction
        The step it consists of.
    plan : TrainingPlan
    site : Site
    n_steps, low_n_steps, high_n_steps : float
        Optimizer steps of all trials; early stopping makes the range.
    parts : tuple of RunPart
    run_time_s : Quantity
        From start to end. [s]
    gpu_time_s : Quantity
        That times the GPUs of the job. [s]
    gpu_energy_j : Quantity
        Of the job's GPUs. [J]
    node_energy_j : Quantity or None
        Of idle GPUs and the rest of the node, where the site names them. [J]
    facility_energy_j : Quantity
        All of that times the PUE, or alone where there is none. [J]
    intensity : Intensity or None
    co2e_kg : Quantity or None
        Of the facility's energy. [kg]
    embodied_co2e_kg : Quantity or None
        The run's share of making its GPUs; not part of `co2e_kg`. [kg]
    electricity_cost, gpu_cost, cost : Quantity or None
        Of the facility's energy; of the GPUs' time; both. [currency]
    flags : tuple of str
        What the reader must know.
    """

    training: Prediction
    plan: TrainingPlan
    site: Site
    n_steps: float
    low_n_steps: float
    high_n_steps: float
    parts: tuple[RunPart, ...]
    run_time_s: Quantity
    gpu_time_s: Quantity
    gpu_energy_j: Quantity
    node_energy_j: Quantity | None
    facility_energy_j: Quantity
    intensity: Intensity | None
    co2e_kg: Quantity | None
    embodied_co2e_kg: Quantity | None
    electricity_cost: Quantity | None
    gpu_cost: Quantity | None
    cost: Quantity | None
    flags: tuple[str, ...] = field(default=())

    @property
    def currency(self) -> str:
        """Of the costs; empty where the user names none."""
        return self.site.prices.currency if self.site.prices else ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: plain types, SI units."""
        p = self.training
        plain: dict[str, Any] = {name: getattr(p, name) for name in _ECHOED}
        plain |= {name: getattr(self, name) for name in ("n_steps", "low_n_steps", "high_n_steps")}
        for name in QUANTITIES:
            quantity = getattr(self, name)
            plain[name] = quantity and quantity.to_dict()
        plain["parts"] = [
            {
                "name": part.name,
                "n_steps": part.n_steps,
                "time_s": part.time_s.to_dict(),
                "energy_j": part.energy_j.to_dict(),
            }
            for part in self.parts
        ]
        return plain | self._surroundings() | {"flags": list(self.flags), "guesses": list(p.guesses)}

    def to_row(self) -> dict[str, Any]:
        """Return one flat row: a quantity ``x`` becomes ``x``, ``low_x``, ``high_x``."""
        row: dict[str, Any] = {name: getattr(self.training, name) for name in _ECHOED}
        row |= {name: getattr(self, name) for name in ("n_steps", "low_n_steps", "high_n_steps")}
        for name in QUANTITIES:
            quantity = getattr(self, name)
            row[name] = quantity and quantity.value
            row[f"low_{name}"] = quantity and quantity.low
            row[f"high_{name}"] = quantity and quantity.high
        return row | self._surroundings() | {"origin": str(self.run_time_s.origin)}

    def _surroundings(self) -> dict[str, Any]:
        i = self.intensity
        return {
            "n_trials": self.plan.n_trials,
            "pue": self.site.pue,
            "intensity_kg_per_j": i and i.kg_per_j,
            "low_intensity_kg_per_j": i and i.low_kg_per_j,
            "high_intensity_kg_per_j": i and i.high_kg_per_j,
            "intensity_source": i and i.source,
            "intensity_year": i and i.year,
            "currency": self.currency,
        }


#: The quantities of a run, in the order they are printed.
QUANTITIES: Final = (
    "run_time_s",
    "gpu_time_s",
    "gpu_energy_j",
    "node_energy_j",
    "facility_energy_j",
    "co2e_kg",
    "embodied_co2e_kg",
    "electricity_cost",
    "gpu_cost",
    "cost",
)
_ECHOED: Final = (
    "model",
    "gpu",
    "n_gpus",
    "precision",
    "batch_per_gpu",
    "global_batch",
    "seq_len",
    "power_limit_w",
)


def cost(
    model: str | Iterable[str],
    *,
    gpu: str | Iterable[str],
    precision: str | Iterable[str] = "fp32",
    plan: TrainingPlan,
    site: Site | None = None,
    parameters: ParameterSet | None = None,
    **options: Any,
) -> tuple[RunCost, ...]:
    """Return what a whole run takes, for every combination of models, GPUs and precisions.

    Parameters
    ----------
    model, gpu, precision : str or iterable of str
        As in `joulecast.predict`.
    plan : TrainingPlan
    site : Site, optional
        By default nothing beyond the GPUs' own energy is known.
    parameters : ParameterSet, optional
        By default the shipped set.
    **options
        Further fields of `Scenario`.

    Raises
    ------
    JoulecastError
        A combination cannot be predicted, or the plan does not apply to it.
    """
    fitted = load_parameters() if parameters is None else parameters
    names = [(names,) if isinstance(names, str) else tuple(names) for names in (model, gpu, precision)]
    return tuple(
        run_cost(
            run_inputs(Scenario(model=m, gpu=g, precision=p, **options), plan, fitted), plan, site or Site()
        )
        for m, g, p in product(*names)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """What the cost of a run is made of, whatever the site.

    Attributes
    ----------
    training : Prediction
        Of an optimizer step.
    gpu : Gpu
        Its card.
    evaluation : Prediction or None
        Of a forward step; None where the plan has no evaluation.
    checkpoint_bytes : float
        Size of one checkpoint; 0 where the plan has none. [bytes]
    """

    training: Prediction
    gpu: Gpu
    evaluation: Prediction | None = None
    checkpoint_bytes: float = 0.0


def run_inputs(scenario: Scenario, plan: TrainingPlan, parameters: ParameterSet) -> RunInputs:
    """Predict the steps of a run."""
    training = predict_scenario(scenario, parameters)
    gpu = settle_gpu(scenario).gpu
    evaluation = None
    if plan.eval_samples:
        evaluation = predict_scenario(_evaluation_of(scenario, training), parameters)
    checkpoint_bytes = 0.0
    if plan.n_checkpoints:
        checkpoint_bytes = workload_of(settle_step(scenario), flash=runs_flash(gpu)).persistent_bytes
    return RunInputs(training=training, gpu=gpu, evaluation=evaluation, checkpoint_bytes=checkpoint_bytes)


def _evaluation_of(scenario: Scenario, training: Prediction) -> Scenario:
    """Return the forward pass of the same model with its task, at the same batch."""
    kept = {f.name: getattr(scenario, f.name) for f in fields(scenario)}
    return Scenario(
        **{
            **kept,
            # without its task a name means the bare body in a forward pass
            "model": training.model if "#" in training.model else scenario.model,
            "mode": "forward",
            "optimizer": None,
            "checkpointing": False,
            "clip": False,
            "accumulate": 1,
        }
    )


def run_cost(inputs: RunInputs, plan: TrainingPlan, site: Site, done: RunPart | None = None) -> RunCost:
    """Return what a run takes.

    Parameters
    ----------
    inputs : RunInputs
    plan : TrainingPlan
    site : Site
    done : RunPart or None
        Training steps that are over: they replace as many of the plan's.

    Notes
    -----
    ``time = sum of steps x max(step time, samples / loader rate) + checkpoints x bytes / rate``;
    ``energy of the GPUs = sum of steps x (energy of a step + waiting) + checkpoints x waiting``, where
    waiting is the card's waiting power over the time that the loader or the disk adds;
    ``facility = (GPUs + idle GPUs + rest of the node) x PUE``.
    """
    training, gpu = inputs.training, inputs.gpu
    n_done = done.n_steps if done else 0.0
    low, expected, high = (
        max(n * plan.n_trials, n_done) for n in plan.steps(training.global_batch, training.seq_len)
    )
    ahead = _parts_ahead(inputs, plan, (low - n_done, expected - n_done, high - n_done))
    parts = ([done] if done else []) + ahead
    run_time_s, gpu_energy_j = parts[0].time_s, parts[0].energy_j
    for part in parts[1:]:
        run_time_s, gpu_energy_j = run_time_s.plus(part.time_s), gpu_energy_j.plus(part.energy_j)
    node_energy_j = _node_energy_j(run_time_s, training.n_gpus, site, gpu)
    machines_j = gpu_energy_j if node_energy_j is None else gpu_energy_j.plus(node_energy_j)
    facility_energy_j = machines_j.times(1.0 if site.pue is None else site.pue)
    return RunCost(
        training=training,
        plan=plan,
        site=site,
        n_steps=expected,
        low_n_steps=low,
        high_n_steps=high,
        parts=tuple(parts),
        run_time_s=run_time_s,
        gpu_time_s=run_time_s.times(training.n_gpus),
        gpu_energy_j=gpu_energy_j,
        node_energy_j=node_energy_j,
        facility_energy_j=facility_energy_j,
        **_priced(run_time_s, facility_energy_j, training, site),
        flags=(*training.flags, *_run_flags(inputs, plan, site)),
    )


def _parts_ahead(inputs: RunInputs, plan: TrainingPlan, n_steps: tuple[float, float, float]) -> list[RunPart]:
    """Return training for so many steps (fewest, expected, most), evaluation and checkpoints."""
    training, evaluation, gpu = inputs.training, inputs.evaluation, inputs.gpu
    parts = [_steps_part("training", training, n_steps, plan, gpu)]
    if plan.eval_samples and evaluation is not None:
        per_pass = ceil(plan.eval_samples / evaluation.global_batch)
        few, some, many = (per_pass * n * plan.n_trials for n in plan.evaluations())
        parts.append(_steps_part("evaluation", evaluation, (few, some, many), plan, gpu))
    if plan.n_checkpoints and plan.checkpoint_bytes_per_s is not None:
        one_s = inputs.checkpoint_bytes / plan.checkpoint_bytes_per_s
        parts.append(_checkpoints_part(training, plan, gpu, one_s))
    return parts


def _steps_part(
    name: str, step: Prediction, counts: tuple[float, float, float], plan: TrainingPlan, gpu: Gpu
) -> RunPart:
    """Return time and energy of so many steps (fewest, expected, most), the loader's floor included."""
    floor_s = 0.0
    if plan.loader_samples_per_s is not None:
        floor_s = step.global_batch / plan.loader_samples_per_s
    time_s = _at_least(step.step_time_s, floor_s)
    waiting_s = Quantity(
        value=max(floor_s - step.step_time_s.value, 0.0),
        low=max(floor_s - step.step_time_s.high, 0.0),
        high=max(floor_s - step.step_time_s.low, 0.0),
        origin=step.step_time_s.origin,
    )
    energy_j = step.energy_per_step_j.plus(waiting_s.times(gpu.waiting_power_w * step.n_gpus))
    low, expected, high = counts
    return RunPart(
        name=name,
        n_steps=expected,
        time_s=_repeated(time_s, low, expected, high),
        energy_j=_repeated(energy_j, low, expected, high),
    )


def _checkpoints_part(step: Prediction, plan: TrainingPlan, gpu: Gpu, one_s: float) -> RunPart:
    n_checkpoints = plan.n_checkpoints * plan.n_trials
    total_s = one_s * n_checkpoints
    time_s = Quantity(value=total_s, low=total_s, high=total_s, origin=step.step_time_s.origin)
    return RunPart(
        name="checkpoints",
        n_steps=n_checkpoints,
        time_s=time_s,
        energy_j=time_s.times(gpu.waiting_power_w * step.n_gpus),
    )


def _at_least(quantity: Quantity, floor: float) -> Quantity:
    return Quantity(
        value=max(quantity.value, floor),
        low=max(quantity.low, floor),
        high=max(quantity.high, floor),
        origin=quantity.origin,
    )


def _repeated(quantity: Quantity, low: float, expected: float, high: float) -> Quantity:
    """Return the quantity taken so often; the ends of both ranges meet."""
    return Quantity(
        value=quantity.value * expected,
        low=quantity.low * low,
        high=quantity.high * high,
        origin=quantity.origin,
    )


def _node_energy_j(run_time_s: Quantity, n_gpus: int, site: Site, gpu: Gpu) -> Quantity | None:
    """Return the energy of idle GPUs and of the rest of the node; None where the site names neither."""
    if site.node_gpus is not None and site.node_gpus < n_gpus:
        raise UsageError(f"a job of {n_gpus} GPUs does not run on a node of {site.node_gpus}")
    if site.node_gpus is None and site.host_power_w is None:
        return None
    n_idle = (site.node_gpus or n_gpus) - n_gpus
    return run_time_s.times(n_idle * gpu.idle_power_w + (site.host_power_w or 0.0))


def _priced(run_time_s: Quantity, facility_j: Quantity, step: Prediction, site: Site) -> dict[str, Any]:
    """Return CO2e and money; None for what the site says nothing about."""
    intensity = site.grid.over(run_time_s, site.start) if site.grid else None
    gpu_time_s = run_time_s.times(step.n_gpus)
    embodied = site.embodied and gpu_time_s.times(site.embodied.gpu_kg / site.embodied.lifetime_s)
    prices = site.prices or Prices()
    per_s = prices.of_gpu(step.gpu)
    electricity = None if prices.energy_price_per_j is None else facility_j.times(prices.energy_price_per_j)
    rent = None if per_s is None else gpu_time_s.times(per_s)
    return {
        "intensity": intensity,
        "co2e_kg": intensity and intensity.of(facility_j),
        "embodied_co2e_kg": embodied,
        "electricity_cost": electricity,
        "gpu_cost": rent,
        "cost": electricity.plus(rent) if electricity and rent else electricity or rent,
    }


def _run_flags(inputs: RunInputs, plan: TrainingPlan, site: Site) -> tuple[str, ...]:
    """Return what the reader of a run must know beyond its step."""
    training, evaluation = inputs.training, inputs.evaluation
    flags = [f"memory: {training.memory_verdict}"] if training.memory_verdict != "fits" else []
    for name, step in (("training", training), ("evaluation", evaluation)):
        rate = plan.loader_samples_per_s
        if step is not None and rate is not None and step.global_batch / rate > step.step_time_s.value:
            flags.append(
                f"the data loader bounds {name}: {step.global_batch / rate:.3g} s a step instead of "
                f"{step.step_time_s.value:.3g} s"
            )
    if site.pue is None:
        flags.append("no PUE given: cooling and power conversion are not counted")
    if site.host_power_w is None:
        flags.append("no power of the node's CPUs, memory and fans given: not counted")
    return tuple(flags)

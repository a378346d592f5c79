"""Results people see: every number with its interval and where it comes from.

Field names are those of the columns of a file of runs, and a `Measurement` has those of a `Prediction`: they
compare. `Predictions.to_dict` is the JSON of ``joulecast predict``; ``docs/json.md`` describes it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from math import ceil, exp, inf, log, sqrt
from typing import Any, ClassVar, Final, overload

from joulecast.errors import MissingExtraError, RunsError, UsageError


class Origin(StrEnum):
    """Where a number comes from.

    ``measured`` by a meter; ``calibrated``: predicted with parameters fitted to measurements that cover the
    GPU's kind and the precision; ``datasheet``: predicted from published facts and counting, with parameters
    carried over from other hardware.
    """

    MEASURED = "measured"
    CALIBRATED = "calibrated"
    DATASHEET = "datasheet"


def weakest(*origins: Origin) -> Origin:
    """Return the least sure of some origins, for what is made of them all."""
    return max(origins, key=list(Origin).index)


#: Quantile of the normal distribution at the ends of a 90 % interval.
Z90: Final = 1.6448536269514722


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A number, the 90 % interval around it, and its origin.

    Attributes
    ----------
    value, low, high : float
        In the SI unit that the name of the field says; ``low <= value <= high``.
    origin : Origin
    """

    value: float
    low: float
    high: float
    origin: Origin

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"interval [{self.low}, {self.high}] does not hold {self.value}")

    @property
    def log_sd(self) -> float:
        """Standard deviation of the logarithm of a log-normal variable with this interval. [1]"""
        return log(self.high / self.low) / (2 * Z90)

    def times(self, factor: float) -> "Quantity":
        """Return the quantity scaled by an exact factor >= 0."""
        return Quantity(
            value=self.value * factor, low=self.low * factor, high=self.high * factor, origin=self.origin
        )

    def plus(self, other: "Quantity") -> "Quantity":
        """Return the sum of two quantities whose errors go together: the ends of the intervals add."""
        return Quantity(
            value=self.value + other.value,
            low=self.low + other.low,
            high=self.high + other.high,
            origin=weakest(self.origin, other.origin),
        )

    def into(self, numerator: float) -> "Quantity":
        """Return an exact numerator divided by the quantity; the interval turns round."""
        return Quantity(
            value=numerator / self.value,
            low=numerator / self.high,
            high=numerator / self.low if self.low > 0 else inf,
            origin=self.origin,
        )

    def over(self, other: "Quantity", shared_frac: float = 0.0) -> "Quantity":
        """Return the ratio to another quantity, both above 0.

        Parameters
        ----------
        other : Quantity
        shared_frac : float
            Share of the variance of the two log errors that is one and the same error. [1]

        Notes
        -----
        On the log scale, with half widths a and b on the two sides that widen the ratio, c and d on the two
        that an error in common moves it by: ``sqrt((1 - shared) (a^2 + b^2) + shared (c - d)^2)``, which is
        ``sqrt(a^2 + b^2 - 2 shared a b)`` for intervals of equal sides.
        """
        value = self.value / other.value
        up = _half_width(self._ends(), other._ends(), shared_frac)
        down = _half_width(other._ends(), self._ends(), shared_frac)
        origin = weakest(self.origin, other.origin)
        return Quantity(value=value, low=value * exp(-down), high=value * exp(up), origin=origin)

    def _ends(self) -> tuple[float, float]:
        """Return how far the interval reaches down and up on the log scale."""
        return _log_ratio(self.value, self.low), _log_ratio(self.high, self.value)

    def to_dict(self) -> dict[str, float | str]:
        """Return the JSON form."""
        return {"value": self.value, "low": self.low, "high": self.high, "origin": str(self.origin)}


def _log_ratio(larger: float, smaller: float) -> float:
    """Return ``log(larger / smaller)``; infinite where the smaller is 0."""
    return log(larger / smaller) if smaller > 0 else inf


def _half_width(over: tuple[float, float], under: tuple[float, float], shared_frac: float) -> float:
    """Return how far up a log ratio reaches; both with what they reach down and up."""
    (over_down, over_up), (under_down, under_up) = over, under
    if inf in (over_up, under_down):
        return inf
    apart = (1 - shared_frac) * (over_up**2 + under_down**2)
    # what both have in common moves them up together, or down together
    together = max(over_up - under_up, under_down - over_down, 0.0)
    return sqrt(apart + shared_frac * together**2)


class MemoryVerdict(StrEnum):
    """Whether the process fits the card's memory, judged by the interval of its bytes."""

    FITS = "fits"
    MAY_NOT_FIT = "may not fit"
    DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGroup:
    """The operators of one kind and phase, of one GPU and step.

    Attributes
    ----------
    kind, phase : str
    time_s, energy_j : float
        Kernel time; energy of the card while they run. [s], [J]
    time_share_frac, energy_share_frac : float
        Of all groups.
    n_kernels, flop, bytes_moved : float
        Kernels launched; work; traffic. [1], [FLOP], [bytes]
    bound_by : str
        What bounds most of its time: ``compute`` or ``memory``.
    """

    kind: str
    phase: str
    time_s: float
    energy_j: float
    time_share_frac: float
    energy_share_frac: float
    n_kernels: float
    flop: float
    bytes_moved: float
    bound_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """A whole training run of steps like the predicted one, one GPU or many.

    Attributes
    ----------
    n_samples, n_epochs, n_steps : int
        Samples per epoch; epochs; optimizer steps in all.
    run_time_s, run_energy_j : Quantity
        Of all steps; all GPUs, GPUs only. [s], [J]
    """

    n_samples: int
    n_epochs: int
    n_steps: int
    run_time_s: Quantity
    run_energy_j: Quantity


#: The quantities of a prediction, in the order they are printed.
QUANTITIES: Final = (
    "step_time_s",
    "samples_per_s",
    "tokens_per_s",
    "mean_power_w",
    "energy_per_step_j",
    "energy_per_sample_j",
    "samples_per_j",
    "mfu",
    "peak_memory_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "process_bytes",
    "sm_clock_hz",
    "coverage",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What one training step takes, on what, and how sure that is.

    Attributes
    ----------
    model, gpu, gpu_name : str
        Canonical name of the model; slug and full name of the card.
    n_gpus, parallel : int, str
        Cards in the job; ``none`` or ``ddp``.
    precision, mode : str
        The policy; ``train``, ``train-no-optimizer`` or ``forward``.
    batch_per_gpu, global_batch : float
        Samples per step of one GPU and of all.
    seq_len, image_size : int or None
        Tokens per sample; pixels of a side. None where the model has none.
    optimizer, attention : str or None
        None where the step has none.
    memory_format : str
    checkpointing, clip : bool
        Activation checkpointing; gradient clipping.
    accumulate : int
        Micro-batches per step.
    power_limit_w : float
        The limit in force, per GPU. [W]
    locked_sm_clock_hz : float or None
        The clock asked for, if any. [Hz]
    n_sms : int
        Multiprocessors in use.
    step_time_s, samples_per_s, tokens_per_s : Quantity
        Per step; of all GPUs together. `tokens_per_s` is None where a sample is not a sequence.
    mean_power_w : Quantity
        Per GPU. [W]
    energy_per_step_j, energy_per_sample_j, samples_per_j : Quantity
        Of all GPUs.
    mfu : Quantity or None
        Model FLOP per second over `mfu_peak_flop_per_s`. None where nothing is multiplied.
    mfu_peak_flop_per_s : float
        Dense published peak of the units that the policy sends the work to, weighted by work. [FLOP/s]
    mfu_paths : mapping of str to float
        Share of the model FLOP by unit.
    model_flop : float
        Work of one GPU's step by MFU's convention: causal attention whole, recomputation not. [FLOP]
    allocated_bytes, reserved_bytes, process_bytes : Quantity
        torch's peak allocation, its reservation, and with the context. Per GPU. [bytes]
    capacity_bytes : float
        Memory of the card. [bytes]
    memory_verdict : MemoryVerdict
    sm_clock_hz : Quantity
        Clock the card settles at. [Hz]
    bound_by : str
        ``compute``, ``memory``, ``launch``, ``host`` or ``communication``.
    time_share_by_bound : mapping of str to float
    coverage : Quantity
        Share of the traffic in operators that have a formula.
    op_groups : tuple of OpGroup
        Costliest first.
    flags, guesses, notes : tuple of str
        Warnings about this prediction; guessed facts it used; what the trace says.
    whole_run : WholeRun or None
    """

    model: str
    gpu: str
    gpu_name: str
    n_gpus: int
    parallel: str
    precision: str
    mode: str
    batch_per_gpu: float
    global_batch: float
    seq_len: int | None
    image_size: int | None
    optimizer: str | None
    memory_format: str
    attention: str | None
    checkpointing: bool
    accumulate: int
    clip: bool
    power_limit_w: float
    locked_sm_clock_hz: float | None
    n_sms: int
    step_time_s: Quantity
    samples_per_s: Quantity
    tokens_per_s: Quantity | None
    mean_power_w: Quantity
    energy_per_step_j: Quantity
    energy_per_sample_j: Quantity
    samples_per_j: Quantity
    mfu: Quantity | None
    mfu_peak_flop_per_s: float
    mfu_paths: dict[str, float]
    model_flop: float
    allocated_bytes: Quantity
    reserved_bytes: Quantity
    process_bytes: Quantity
    capacity_bytes: float
    memory_verdict: MemoryVerdict
    sm_clock_hz: Quantity
    bound_by: str
    time_share_by_bound: dict[str, float]
    coverage: Quantity
    op_groups: tuple[OpGroup, ...]
    flags: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    whole_run: WholeRun | None = field(default=None)

    @property
    def peak_memory_bytes(self) -> Quantity:
        """Peak allocation, as ``torch.cuda.max_memory_allocated`` states it. [bytes]"""
        return self.allocated_bytes

    def forecast(self, *, n_samples: int, n_epochs: int = 1) -> WholeRun:
        """Return time and energy of a whole run; the last batch of an epoch counts whole."""
        if n_samples < 1 or n_epochs < 1:
            raise UsageError(f"{n_samples} samples and {n_epochs} epochs: both must be at least 1")
        n_steps = ceil(n_samples / self.global_batch) * n_epochs
        return WholeRun(
            n_samples=n_samples,
            n_epochs=n_epochs,
            n_steps=n_steps,
            run_time_s=self.step_time_s.times(n_steps),
            run_energy_j=self.energy_per_step_j.times(n_steps),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: plain types, SI units."""
        plain: dict[str, Any] = {}
        for f in fields(self):
            plain[f.name] = _plain(getattr(self, f.name))
            if f.name == "samples_per_j":
                plain["peak_memory_bytes"] = self.peak_memory_bytes.to_dict()
        return plain

    def to_row(self) -> dict[str, Any]:
        """Return one flat row: a quantity ``x`` becomes ``x``, ``low_x``, ``high_x``."""
        row: dict[str, Any] = {}
        for name, value in self.to_dict().items():
            if name in QUANTITIES:
                row[name] = value and value["value"]
                row[f"low_{name}"] = value and value["low"]
                row[f"high_{name}"] = value and value["high"]
            elif isinstance(value, list) and all(isinstance(item, str) for item in value):
                row[name] = "; ".join(value)
            elif not isinstance(value, (dict, list)) and name != "whole_run":
                row[name] = value
        if self.whole_run is not None:
            row["n_steps"] = self.whole_run.n_steps
            row["run_time_s"] = self.whole_run.run_time_s.value
            row["run_energy_j"] = self.whole_run.run_energy_j.value
        row["origin"] = str(self.step_time_s.origin)
        return row


def _plain(value: Any) -> Any:
    if isinstance(value, (Quantity, MeasuredQuantity)):
        return value.to_dict()
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, (OpGroup, WholeRun)):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


class Predictions(Sequence[Prediction]):
    """Predictions in the order asked for: models, then GPUs, then precisions."""

    SCHEMA: Final = "joulecast/predictions/1"

    def __init__(self, predictions: Sequence[Prediction]) -> None:
        self._predictions = tuple(predictions)

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> "Predictions": ...
    def __getitem__(self, index: int | slice) -> "Prediction | Predictions":
        if isinstance(index, slice):
            return Predictions(self._predictions[index])
        return self._predictions[index]

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self._predictions)

    def __len__(self) -> int:
        return len(self._predictions)

    def __repr__(self) -> str:
        return f"Predictions({list(self._predictions)!r})"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``joulecast predict --format json``."""
        return {"schema": self.SCHEMA, "predictions": [p.to_dict() for p in self._predictions]}

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one flat row per prediction, as in the CSV output."""
        return [p.to_row() for p in self._predictions]

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame`, one row per prediction.

        Raises
        ------
        MissingExtraError
            pandas is not installed.
        """
        return data_frame(self.to_rows())


def data_frame(rows: Sequence[dict[str, Any]]) -> Any:
    """Return rows as a `pandas.DataFrame`."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError(
            "a data frame needs pandas: pip install 'joulecast[data]', or use .to_rows()"
        ) from error
    return pd.DataFrame(list(rows))


class RunStatus(StrEnum):
    """How a measured run ended.

    ``partial``: stopped from outside, or still going when the record was last written; ``failed``: it raised,
    or its command returned another exit code than 0.
    """

    COMPLETE = "complete"
    PARTIAL = "partial"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredQuantity:
    """What a meter said, or why it said nothing.

    Attributes
    ----------
    value, low, high : float or None
        In the SI unit that the name of the field says, with its 90 % interval; all None where not measured.
    method : str
        How it was read: ``counter``, ``polled``, ``clock``, ``allocator``, ``profile``; empty if absent.
    scope : str
        What it covers: ``board``, ``package``, ``DRAM``, ``process``, ``device``, ``step``; empty if absent.
    sampling_hz : float or None
        How often the sensor was read; None where nothing is sampled. [Hz]
    reason, remedy : str
        Why it is absent, and what would make it present; empty where it is there.
    origin : Origin
    """

    value: float | None
    low: float | None
    high: float | None
    method: str = ""
    scope: str = ""
    sampling_hz: float | None = None
    reason: str = ""
    remedy: str = ""
    origin: Origin = Origin.MEASURED

    def __post_init__(self) -> None:
        if self.value is None:
            if not self.reason or self.low is not None or self.high is not None:
                raise ValueError("an absent quantity has a reason and no interval")
        elif self.low is None or self.high is None or not self.low <= self.value <= self.high:
            raise ValueError(f"interval [{self.low}, {self.high}] does not hold {self.value}")

    @classmethod
    def absent(cls, reason: str, remedy: str = "") -> "MeasuredQuantity":
        """Return a quantity that was not measured."""
        return cls(value=None, low=None, high=None, reason=reason, remedy=remedy)

    @property
    def quantity(self) -> Quantity | None:
        """The number alone, as a prediction states it; None where not measured."""
        if self.value is None or self.low is None or self.high is None:
            return None
        return Quantity(value=self.value, low=self.low, high=self.high, origin=self.origin)

    def times(self, factor: float) -> "MeasuredQuantity":
        """Return the quantity scaled by an exact factor >= 0; absent stays absent."""
        return self._with(self.quantity and self.quantity.times(factor))

    def into(self, numerator: float) -> "MeasuredQuantity":
        """Return an exact numerator divided by the quantity; absent stays absent."""
        return self._with(self.quantity and self.quantity.into(numerator))

    def _with(self, quantity: Quantity | None) -> "MeasuredQuantity":
        if quantity is None:
            return self
        return replace(self, value=quantity.value, low=quantity.low, high=quantity.high)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "MeasuredQuantity":
        """Return the quantity of a JSON form; keys of later versions are ignored."""
        known = {f.name: plain[f.name] for f in fields(cls) if f.name in plain}
        return cls(**(known | {"origin": Origin(plain.get("origin", Origin.MEASURED))}))


#: The quantities of a measurement, in the order they are printed; those of a prediction under its names.
MEASURED_QUANTITIES: Final = (
    "step_time_s",
    "samples_per_s",
    "tokens_per_s",
    "mean_power_w",
    "energy_per_step_j",
    "energy_per_sample_j",
    "samples_per_j",
    "allocated_bytes",
    "reserved_bytes",
    "process_bytes",
    "sm_clock_hz",
    "temperature_c",
    "idle_power_w",
    "gpu_energy_j",
    "cpu_energy_j",
    "dram_energy_j",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one run took, by meters; fields are named as in `Prediction`.

    A wrapped command is measured whole: it has no model, no steps and no quantities per step.

    Attributes
    ----------
    run_id : str
        UUID.
    started_at : str
        ISO 8601, UTC.
    duration_s : float
        From the first warm-up step to the end, or of the command. [s]
    status : RunStatus
    exit_code : int or None
        Of a wrapped command.
    error : str
        What ended a run that failed; empty otherwise.
    command : tuple of str or None
        The wrapped command.
    model, gpu, precision, mode, parallel, memory_format : str or None
        As in `Prediction`; None where a command's is not known, or the card is not in the catalogue.
    gpu_name : str or None
        As the driver says.
    n_gpus : int or None
        Devices in the job, all nodes.
    batch_per_gpu, global_batch, seq_len, image_size, optimizer, attention, checkpointing, accumulate, clip :
        As in `Prediction`; None where not known.
    power_limit_w, locked_sm_clock_hz : float or None
        In force, per GPU; the clock that was asked for. [W], [Hz]
    n_sms : int or None
    window_s : float
        Length of the windows in which energy was taken, all repeats. [s]
    n_steps, n_repeats, n_warmup_steps : int
        Steps in those windows; windows; steps before them.
    repeat_step_time_s : tuple of float
        Mean step time of each window: the spread. [s]
    repeat_energy_per_step_j : tuple of float
        Energy per step of each window, all GPUs; empty without a sensor. [J]
    step_time_s, samples_per_s, tokens_per_s : MeasuredQuantity
    mean_power_w : MeasuredQuantity
        Per GPU. [W]
    energy_per_step_j, energy_per_sample_j, samples_per_j : MeasuredQuantity
        All GPUs.
    allocated_bytes, reserved_bytes, process_bytes : MeasuredQuantity
        Allocator's peak, its reservation, what the device lost to the process; of the fullest GPU. [bytes]
    sm_clock_hz, temperature_c, idle_power_w : MeasuredQuantity
        Mean over the windows; highest; before the run, per GPU. [Hz], [degC], [W]
    gpu_energy_j, cpu_energy_j, dram_energy_j : MeasuredQuantity
        Of all windows; all GPUs, processor packages, memory of all nodes. [J]
    memory_meter : str
        What `allocated_bytes` is, as in a file of runs.
    driver : str or None
    versions : mapping of str to str
        Of python, torch, CUDA, zeus, joulecast, whatever was there.
    host : mapping of str to str
        ``hostname``, ``os``, ``cpu``, ``n_cpus``.
    nodes : tuple of str
        Host names of the nodes that were added, each once.
    job_id : str or None
        What the nodes of one job share.
    flags, notes : tuple of str
        Reasons for doubt; what else is known.
    """

    SCHEMA: ClassVar[str] = "joulecast/measurement/1"

    run_id: str
    started_at: str
    duration_s: float
    status: RunStatus
    exit_code: int | None = None
    error: str = ""
    command: tuple[str, ...] | None = None
    model: str | None = None
    gpu: str | None = None
    gpu_name: str | None = None
    n_gpus: int | None = None
    parallel: str | None = None
    precision: str | None = None
    mode: str | None = None
    batch_per_gpu: float | None = None
    global_batch: float | None = None
    seq_len: int | None = None
    image_size: int | None = None
    optimizer: str | None = None
    memory_format: str | None = None
    attention: str | None = None
    checkpointing: bool | None = None
    accumulate: int | None = None
    clip: bool | None = None
    power_limit_w: float | None = None
    locked_sm_clock_hz: float | None = None
    n_sms: int | None = None
    window_s: float = 0.0
    n_steps: int = 0
    n_repeats: int = 0
    n_warmup_steps: int = 0
    repeat_step_time_s: tuple[float, ...] = ()
    repeat_energy_per_step_j: tuple[float, ...] = ()
    step_time_s: MeasuredQuantity
    samples_per_s: MeasuredQuantity
    tokens_per_s: MeasuredQuantity
    mean_power_w: MeasuredQuantity
    energy_per_step_j: MeasuredQuantity
    energy_per_sample_j: MeasuredQuantity
    samples_per_j: MeasuredQuantity
    allocated_bytes: MeasuredQuantity
    reserved_bytes: MeasuredQuantity
    process_bytes: MeasuredQuantity
    sm_clock_hz: MeasuredQuantity
    temperature_c: MeasuredQuantity
    idle_power_w: MeasuredQuantity
    gpu_energy_j: MeasuredQuantity
    cpu_energy_j: MeasuredQuantity
    dram_energy_j: MeasuredQuantity
    memory_meter: str = ""
    driver: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    host: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    job_id: str | None = None
    flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def peak_memory_bytes(self) -> MeasuredQuantity:
        """Peak allocation, as ``torch.cuda.max_memory_allocated`` states it. [bytes]"""
        return self.allocated_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: plain types, SI units, and the schema's name."""
        return {"schema": self.SCHEMA} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Measurement":
        """Return the measurement of a JSON form; keys added within the version are ignored.

        Raises
        ------
        RunsError
            It is of another schema, lacks a key, or a value cannot be.
        """
        schema = plain.get("schema")
        if schema != cls.SCHEMA:
            raise RunsError(f"a record of {schema!r}, not {cls.SCHEMA!r}: a newer joulecast may read it")
        given: dict[str, Any] = {f.name: plain[f.name] for f in fields(cls) if f.name in plain}
        try:
            for name, value in given.items():
                if name in MEASURED_QUANTITIES:
                    given[name] = MeasuredQuantity.from_dict(value)
                elif isinstance(value, list):
                    given[name] = tuple(value)
            return cls(**(given | {"status": RunStatus(given["status"])}))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunsError(f"a corrupt record of a run: {error}") from error

    def to_row(self) -> dict[str, Any]:
        """Return the row of a file of runs, ``None`` where nothing is known."""
        return {
            "run_id": self.run_id,
            "source": "joulecast",
            "licence": None,
            "source_ref": self.started_at,
            "model": self.model,
            "mode": self.mode,
            "gpu": self.gpu or self.gpu_name,
            "n_gpus": self.n_gpus,
            "parallel": self.parallel,
            "precision": self.precision,
            "batch_per_gpu": self.batch_per_gpu,
            "global_batch": self.global_batch,
            "seq_len": self.seq_len,
            "image_size": self.image_size,
            "optimizer": self.optimizer,
            "memory_format": self.memory_format,
            "attention": self.attention,
            "compile": None if self.model is None else False,
            "power_limit_w": self.power_limit_w,
            "sm_clock_hz": self.locked_sm_clock_hz,
            "n_sms": self.n_sms,
            "step_time_s": self.step_time_s.value,
            "samples_per_s": self.samples_per_s.value,
            "mean_power_w": self.mean_power_w.value,
            "energy_per_step_j": self.energy_per_step_j.value,
            "peak_memory_bytes": self.peak_memory_bytes.value,
            "memory_meter": self.memory_meter or None,
            "generation": None,
            "torch_version": self.versions.get("torch"),
            "suspect": "; ".join(self.doubts) or None,
            "note": "; ".join((*self.flags, *self.notes)) or None,
        }

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons to leave the run out of fits: a bad end, or steps that no file of runs describes."""
        reasons = [] if self.status is RunStatus.COMPLETE else [f"{self.status} run"]
        if self.accumulate not in {None, 1}:
            reasons.append(f"{self.accumulate} micro-batches per step")
        if self.checkpointing:
            reasons.append("activation checkpointing")
        return tuple(reasons)

"""Results people see: every number with its interval and where it comes from.

Field names are those of the columns of a file of runs, so that a prediction and a measurement compare.
`Predictions.to_dict` is the JSON of ``joulecast predict``; ``docs/json.md`` describes it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import ceil, exp, inf, log, sqrt
from typing import Any, Final, overload

from joulecast.errors import MissingExtraError, UsageError


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
    if isinstance(value, Quantity):
        return value.to_dict()
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, (OpGroup, WholeRun)):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
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

"""What a sweep runs over: every combination of the values of some keys, counted but never listed.

Keys are the columns of a file of runs. In: a TOML file, or a mapping of keys to values, lists and ranges.
Out: `Space`, which gives its scenarios one by one and its columns block by block.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import floor, isfinite, log, prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from joulecast.errors import UnknownNameError, UsageError
from joulecast.hardware.catalogue import load_gpu
from joulecast.hardware.changes import parse_changes
from joulecast.scenario import DEFAULT_BATCH_SIZE, Scenario, settle_gpu, settle_step

Integers = npt.NDArray[np.int64]

#: Keys of a space and the type of their values, slowest first: what differs in the last four alone shares
#: the rows of one step.
KEYS: Final[Mapping[str, type]] = {
    "model": str,
    "gpu": str,
    "hardware": str,
    "n_sms": int,
    "mode": str,
    "precision": str,
    "optimizer": str,
    "attention": str,
    "memory_format": str,
    "checkpointing": bool,
    "clip": bool,
    "image_size": int,
    "seq_len": int,
    "accumulate": int,
    "batch_per_gpu": float,
    "global_batch": float,
    "parallel": str,
    "n_gpus": int,
    "power_limit_w": float,
    "power_limit_frac": float,
    "sm_clock_hz": float,
    "force": bool,
}

#: Configurations that people and programs are shown at once; a file holds any number.
MOST_SHOWN: Final = 20_000

#: Keys that change what a step meets, not what it computes.
_SHARING: Final = ("parallel", "n_gpus", "power_limit_w", "power_limit_frac", "sm_clock_hz")

REQUIRED_KEYS: Final = ("model", "gpu")

#: A value that leaves the choice to the model or the card, as leaving out the key does.
DEFAULT: Final = "default"

#: Two ways to say one thing.
_EXCLUSIVE: Final = (("batch_per_gpu", "global_batch"), ("power_limit_w", "power_limit_frac"))

#: Values of one range: beyond it is a slip of the pen.
_MOST_VALUES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Every combination of the values of some keys.

    Attributes
    ----------
    axes : mapping of str to tuple
        Distinct values by key, in the order of `KEYS`; the last varies fastest. None leaves the choice open.
    """

    axes: Mapping[str, tuple[Any, ...]]

    def __len__(self) -> int:
        return prod(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values of each key. [1]."""
        return tuple(len(values) for values in self.axes.values())

    @property
    def n_sharing_a_load(self) -> int:
        """Configurations that differ in what needs no rows of its own alone. [1]."""
        return prod(len(self.axes.get(key, (None,))) for key in _SHARING)

    def positions(self, start: int, stop: int) -> dict[str, Integers]:
        """Return, by key, the index into its values of each configuration of a block. [config]."""
        indices = np.unravel_index(np.arange(start, min(stop, len(self))), self.shape)
        return {key: np.asarray(index) for key, index in zip(self.axes, indices, strict=True)}

    def configuration(self, index: int) -> dict[str, Any]:
        """Return the values of one configuration by key."""
        places = np.unravel_index(index, self.shape)
        return {key: values[i] for (key, values), i in zip(self.axes.items(), places, strict=True)}

    def configurations(self) -> Iterator[dict[str, Any]]:
        """Yield the values of every configuration by key."""
        return (self.configuration(i) for i in range(len(self)))

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the JSON form."""
        return {
            key: [DEFAULT if value is None else value for value in values]
            for key, values in self.axes.items()
        }


def space_of(values: Mapping[str, Any]) -> Space:
    """Return the space of some keys.

    Parameters
    ----------
    values : mapping
        By key of `KEYS`: one value, a list, a range as ``{start, stop, step}`` or ``{start, stop, factor}``
        (both ends counted), or one as text, ``"100:400:10"`` or ``"8:1024:x2"``; ``"default"`` leaves a
        choice to the model or the card.

    Raises
    ------
    UsageError
        A key is unknown or missing, a value is of the wrong kind, or nothing is left.
    """
    for key in values:
        if key not in KEYS:
            raise UnknownNameError("key of a space", key, KEYS, f"(known are {', '.join(KEYS)})")
    for key in REQUIRED_KEYS:
        if key not in values:
            raise UsageError(f"the space is empty: it has no {key}")
    for one, other in _EXCLUSIVE:
        if one in values and other in values:
            raise UsageError(f"{one} and {other} say the same twice: give one of them")
    axes = {key: _axis(key, values[key]) for key in KEYS if key in values}
    for key, axis in axes.items():
        if not axis:
            raise UsageError(f"the space is empty: {key} has no value")
    return Space(axes=axes)


def load_space(path: str | Path) -> Space:
    """Load a space from a TOML file.

    Raises
    ------
    UsageError
        There is no such file, it is not TOML, or it is no space; the message names the file.
    """
    try:
        with Path(path).open("rb") as stream:
            values = tomllib.load(stream)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return space_of(values)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _axis(key: str, given: Any) -> tuple[Any, ...]:
    """Return the distinct values of a key, in the order given."""
    items = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    values = [value for item in items for value in _values(key, item)]
    return tuple(dict.fromkeys(values))


def _values(key: str, item: Any) -> Sequence[Any]:
    """Return the values of one item: itself, or those of a range."""
    kind = KEYS[key]
    if item == DEFAULT and isinstance(item, str):
        return [None]
    if kind in (int, float):
        if isinstance(item, Mapping):
            return _range(key, item)
        if isinstance(item, str):
            return _text_range(key, item)
    return [_checked(key, item)]


def _checked(key: str, item: Any) -> Any:
    """Return a value if it is of its key's type."""
    kind = KEYS[key]
    if kind is bool or kind is str:
        if isinstance(item, kind):
            return item
        raise UsageError(f"{key}: must be {'true or false' if kind is bool else 'a text'}, got {item!r}")
    if isinstance(item, bool) or not isinstance(item, int | float) or not isfinite(item) or item <= 0:
        raise UsageError(f"{key}: must be a number above 0, got {item!r}")
    if kind is int and item != int(item):
        raise UsageError(f"{key}: must be a whole number, got {item!r}")
    return kind(item)


def _text_range(key: str, text: str) -> list[Any]:
    """Return the values of ``start:stop:step``, ``start:stop:xFACTOR`` or of one number."""
    parts = text.split(":")
    try:
        if len(parts) == 1:
            return [_checked(key, float(text))]
        start, stop, step = parts
        word = "factor" if step.startswith("x") else "step"
        table = {"start": float(start), "stop": float(stop), word: float(step.removeprefix("x"))}
    except ValueError:
        raise UsageError(
            f"{key}: {text!r} is neither a number nor a range such as 100:400:10 or 8:1024:x2"
        ) from None
    return _range(key, table)


def _range(key: str, table: Mapping[str, Any]) -> list[Any]:
    """Return the values of a range, both ends counted."""
    if set(table) not in ({"start", "stop", "step"}, {"start", "stop", "factor"}):
        raise UsageError(f"{key}: a range has start, stop and either step or factor, got {dict(table)}")
    numbers = {name: _positive(key, name, value) for name, value in table.items()}
    start, stop = numbers["start"], numbers["stop"]
    if stop < start:
        raise UsageError(f"{key}: the range ends at {stop:g}, before its start {start:g}")
    if "factor" in numbers:
        if numbers["factor"] <= 1:
            raise UsageError(f"{key}: the factor of a range must be above 1, got {numbers['factor']:g}")
        n_steps = floor(log(stop / start) / log(numbers["factor"]) + _SLACK)
    else:
        n_steps = floor((stop - start) / numbers["step"] + _SLACK)
    if n_steps >= _MOST_VALUES:
        raise UsageError(f"{key}: the range holds more than {_MOST_VALUES} values")
    if "factor" in numbers:
        values = [start * numbers["factor"] ** i for i in range(n_steps + 1)]
    else:
        values = [start + numbers["step"] * i for i in range(n_steps + 1)]
    return [_checked(key, round(value, 9)) for value in values]


#: Part of a step that rounding may cost a range its end. [1]
_SLACK: Final = 1e-9


def _positive(key: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
        raise UsageError(f"{key}: {name} of the range must be a number above 0, got {value!r}")
    return float(value)


def check_space(space: Space) -> None:
    """Raise for a value that no configuration can have, such as a name that is not known.

    Raises
    ------
    UnknownNameError
        A model, a card or a choice is unknown.
    UsageError
        Another value cannot be.
    """
    for key in ("mode", "precision", "optimizer", "attention", "memory_format", "parallel"):
        for value in space.axes.get(key, ()):
            Scenario(**{"model": "-", "gpu": "-", key: value})
    for gpu in space.axes["gpu"]:
        load_gpu(gpu)
    for changes in space.axes.get("hardware", ()):
        parse_changes(changes or "")
    for model, mode in product(space.axes["model"], space.axes.get("mode", ("train",))):
        settle_step(Scenario(model=model, gpu="-", mode=mode or "train"))


def batch_size_of(configuration: Mapping[str, Any]) -> float:
    """Return the samples of one micro-batch on one GPU. [1].

    Raises
    ------
    UsageError
        The batch does not divide into GPUs and whole micro-batches.
    """
    n_gpus, accumulate = configuration.get("n_gpus") or 1, configuration.get("accumulate") or 1
    global_batch = configuration.get("global_batch")
    per_gpu = configuration.get("batch_per_gpu") if global_batch is None else global_batch / n_gpus
    if per_gpu is None:
        return DEFAULT_BATCH_SIZE
    batch_size = float(per_gpu / accumulate)
    if batch_size != int(batch_size):
        whole = (
            f"{per_gpu:g} samples" if global_batch is None else f"{global_batch:g} samples on {n_gpus} GPUs"
        )
        raise UsageError(f"{whole} do not divide into whole micro-batches, {accumulate} a step")
    return batch_size


def scenario_of(configuration: Mapping[str, Any]) -> Scenario:
    """Return the scenario of one configuration.

    Raises
    ------
    UsageError
        Its parts contradict each other.
    """
    asked = {key: value for key, value in configuration.items() if value is not None}
    batch_size = batch_size_of(asked)
    for key in ("batch_per_gpu", "global_batch"):
        asked.pop(key, None)
    fraction = asked.pop("power_limit_frac", None)
    if fraction is not None:
        cards = settle_gpu(Scenario(model=asked["model"], gpu=asked["gpu"], hardware=asked.get("hardware")))
        asked["power_limit_w"] = fraction * cards.gpu.max_power_limit_w
    return Scenario(batch_size=batch_size, **asked)

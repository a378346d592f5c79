"""Cards that do not exist: a card of the catalogue with some of its properties changed.

Enters: a `Gpu`, and texts such as ``peak_bf16=+20%`` or ``bandwidth=2x``. Leaves: another `Gpu`, named after
the changes, or a `UsageError` in one line. Knows no model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final

from joulecast.errors import CatalogueError, UnknownNameError, UsageError
from joulecast.hardware.spec import Gpu
from joulecast.units import PERCENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """A property that can be changed.

    Attributes
    ----------
    meaning, unit : str
    read : callable
        Of a card; 0 where it has none.
    write : callable
        The card with another value.
    """

    meaning: str
    unit: str
    read: Callable[[Gpu], float]
    write: Callable[[Gpu, float], Gpu]


def _peak(path: str, what: str) -> Property:
    """Return the dense peak of a unit: its work per clock changes, not the clock."""

    def write(gpu: Gpu, value: float) -> Gpu:
        per_clock = gpu.flop_per_clock_per_sm[path] * value / gpu.peak_flop_per_s(path)
        return replace(gpu, flop_per_clock_per_sm={**gpu.flop_per_clock_per_sm, path: per_clock})

    return Property(
        meaning=f"dense peak of the {what} units",
        unit="FLOP/s",
        read=lambda gpu: gpu.peak_flop_per_s(path),
        write=write,
    )


def _field(name: str, meaning: str, unit: str) -> Property:
    """Return a property that is one number of the card."""
    return Property(
        meaning=meaning,
        unit=unit,
        read=lambda gpu: float(getattr(gpu, name)),
        write=lambda gpu, value: replace(gpu, **_changed(name, value)),
    )


def _changed(name: str, value: float) -> dict[str, Any]:
    return {name: value}


def _with_sms(gpu: Gpu, value: float) -> Gpu:
    return replace(gpu, n_sms=max(round(value), 1))


def _with_clock(gpu: Gpu, boost_hz: float) -> Gpu:
    """Return the card with all its clocks but the lowest scaled alike."""
    ratio = boost_hz / gpu.boost_clock_hz
    base_hz = gpu.base_clock_hz and gpu.base_clock_hz * ratio
    return replace(
        gpu,
        boost_clock_hz=boost_hz,
        max_clock_hz=gpu.max_clock_hz * ratio,
        base_clock_hz=base_hz,
        min_clock_hz=min(gpu.min_clock_hz, boost_hz),
        peak_clock_hz={path: clock_hz * ratio for path, clock_hz in gpu.peak_clock_hz.items()},
    )


def _with_power_limit(gpu: Gpu, limit_w: float) -> Gpu:
    """Return the card with another default limit, its range stretched to hold it."""
    return replace(
        gpu,
        power_limit_w=limit_w,
        min_power_limit_w=min(gpu.min_power_limit_w, limit_w),
        max_power_limit_w=gpu.max_power_limit_w * limit_w / gpu.power_limit_w,
    )


def _with_idle(gpu: Gpu, idle_w: float) -> Gpu:
    """Return the card with what it draws without work scaled, idle and waiting alike."""
    return replace(gpu, idle_power_w=idle_w, waiting_power_w=gpu.waiting_power_w * idle_w / gpu.idle_power_w)


#: What can be changed, by name.
PROPERTIES: Final[Mapping[str, Property]] = {
    "peak_fp32": _peak("fp32_vector", "FP32 vector"),
    "peak_tf32": _peak("tf32_tensor", "TF32 tensor"),
    "peak_bf16": _peak("bf16_tensor", "BF16 tensor"),
    "peak_fp16": _peak("fp16_tensor", "FP16 tensor"),
    "peak_fp64": _peak("fp64_vector", "FP64 vector"),
    "bandwidth": _field("bandwidth_bytes_per_s", "device memory bandwidth", "bytes/s"),
    "l2": _field("l2_bytes", "last-level cache", "bytes"),
    "memory": _field("memory_bytes", "device memory", "bytes"),
    "sms": Property(
        meaning="multiprocessors, each as before",
        unit="1",
        read=lambda gpu: float(gpu.n_sms),
        write=_with_sms,
    ),
    "clock": Property(
        meaning="boost clock, and with it the highest",
        unit="Hz",
        read=lambda gpu: gpu.boost_clock_hz,
        write=_with_clock,
    ),
    "power_limit": Property(
        meaning="default power limit of the board",
        unit="W",
        read=lambda gpu: gpu.power_limit_w,
        write=_with_power_limit,
    ),
    "idle_power": Property(
        meaning="power without work",
        unit="W",
        read=lambda gpu: gpu.idle_power_w,
        write=_with_idle,
    ),
    "link": _field("link_bytes_per_s", "link to the other GPUs, each direction", "bytes/s"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One property and what becomes of it.

    Attributes
    ----------
    name : str
        Of `PROPERTIES`.
    factor : float or None
        Times what the card has. [1]
    value : float or None
        Instead of it, in the property's SI unit.
    """

    name: str
    factor: float | None = None
    value: float | None = None

    def __str__(self) -> str:
        """Return the text that `parse_changes` reads."""
        return f"{self.name}={self.value:g}" if self.factor is None else f"{self.name}={self.factor:g}x"

    def applied(self, gpu: Gpu) -> Gpu:
        """Return the card with the property changed.

        Raises
        ------
        UsageError
            The card has no such property, or cannot be with that value.
        """
        known = PROPERTIES[self.name]
        had = known.read(gpu)
        if had == 0:
            raise UsageError(f"{gpu.slug} has no {known.meaning}: {self.name} cannot be changed")
        try:
            return known.write(gpu, had * self.factor if self.factor is not None else self.value or had)
        except CatalogueError as error:
            raise UsageError(f"{gpu.slug} cannot be with {self}: {error}") from None


def parse_changes(text: str) -> tuple[Change, ...]:
    """Return the changes of a text: ``NAME=+20%``, ``NAME=2x`` or ``NAME=VALUE`` (SI), separated by commas.

    Raises
    ------
    UnknownNameError
        A property is not known.
    UsageError
        What becomes of it cannot be read.
    """
    return tuple(_parsed(part.strip()) for part in text.split(",") if part.strip())


def _parsed(text: str) -> Change:
    name, equals, amount = (part.strip() for part in text.partition("="))
    if not equals:
        raise UsageError(f"{text!r} changes nothing: write it as bandwidth=2x, peak_bf16=+20% or l2=8e7")
    if name not in PROPERTIES:
        raise UnknownNameError("hardware property", name, PROPERTIES, f"(one of {', '.join(PROPERTIES)})")
    try:
        if amount.endswith("%"):
            change = Change(name=name, factor=1.0 + float(amount[:-1]) * PERCENT)
        elif amount.endswith("x"):
            change = Change(name=name, factor=float(amount[:-1]))
        else:
            change = Change(name=name, value=float(amount))
    except ValueError:
        raise UsageError(
            f"{name}: {amount!r} is neither a factor (2x), a percentage (+20%) nor a number in "
            f"{PROPERTIES[name].unit}"
        ) from None
    amount_is = change.value if change.factor is None else change.factor
    if amount_is is None or not isfinite(amount_is) or amount_is <= 0:
        raise UsageError(f"{name}: {amount} leaves nothing of it")
    return change


def changed_gpu(gpu: Gpu, changes: tuple[Change, ...]) -> Gpu:
    """Return a card with some properties changed; its slug names the changes.

    Raises
    ------
    UsageError
        The card has no such property, or cannot be with that value.
    """
    if not changes:
        return gpu
    changed = gpu
    for change in changes:
        changed = change.applied(changed)
    label = ",".join(str(change) for change in changes)
    return replace(changed, slug=f"{gpu.slug}[{label}]", name=f"{gpu.name} with {label}")

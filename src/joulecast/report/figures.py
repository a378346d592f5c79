"""Numbers as people read them: SI in, text out."""

from collections.abc import Sequence
from typing import Final

from joulecast.results import Quantity
from joulecast.units import (
    GIB,
    GIGA,
    J_PER_KWH,
    KIB,
    KILO,
    MEGA,
    MIB,
    MICRO,
    MILLI,
    PERCENT,
    SECONDS_PER_HOUR,
    TERA,
)

_PREFIXES: Final = (
    (TERA, "T"),
    (GIGA, "G"),
    (MEGA, "M"),
    (KILO, "k"),
    (1.0, ""),
    (MILLI, "m"),
    (MICRO, "u"),
)

#: Intervals of any length use this many significant digits.
_DIGITS: Final = 3


def digits(value: float, n_digits: int = _DIGITS) -> str:
    """Return a number with so many significant digits and no exponent where one can read it."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{n_digits - 1}e}")
    magnitude = len(str(int(abs(rounded))))
    if abs(rounded) >= 1:
        return f"{rounded:.{max(n_digits - magnitude, 0)}f}"
    return f"{rounded:.{n_digits}g}"


def count(value: float) -> str:
    """Return a whole number without decimals, and any other with as many as it needs."""
    return f"{value:.0f}" if value == int(value) else f"{value:g}"


def with_prefix(value: float, unit: str) -> str:
    """Return a number with the SI prefix that makes it readable: ``26.6 ms``, ``8.18 GFLOP``."""
    if value == 0:
        return f"0 {unit}"
    for factor, prefix in _PREFIXES:
        # 999.6 shows as 1000 of the smaller prefix: judge by what is shown
        if abs(float(digits(value))) >= factor:
            return f"{digits(value / factor)} {prefix}{unit}"
    return f"{digits(value)} {unit}"


def gibibytes(value_bytes: float) -> str:
    """Return bytes in GiB, small ones in MiB or KiB."""
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB")):
        if value_bytes >= factor / 10:
            return f"{digits(value_bytes / factor)} {unit}"
    return f"{digits(value_bytes / KIB)} KiB"


def megahertz(value_hz: float) -> str:
    """Return a clock in MHz."""
    return f"{value_hz / MEGA:.0f} MHz"


def percent(value_frac: float) -> str:
    """Return a share in percent."""
    return f"{value_frac / PERCENT:.1f} %"


def hours(value_s: float) -> str:
    """Return a long time in hours."""
    return f"{digits(value_s / SECONDS_PER_HOUR)} h"


def kilowatt_hours(value_j: float) -> str:
    """Return a large energy in kWh."""
    return f"{digits(value_j / J_PER_KWH)} kWh"


def interval(quantity: Quantity, factor: float, n_digits: int = _DIGITS) -> str:
    """Return ``low - high`` in units of a factor."""
    return f"{digits(quantity.low / factor, n_digits)} - {digits(quantity.high / factor, n_digits)}"


def prefix_of(value: float) -> tuple[float, str]:
    """Return factor and letter of the prefix that makes a value readable."""
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return factor, prefix
    return 1.0, ""


def ranged(quantity: Quantity, unit: str) -> tuple[str, str]:
    """Return value with prefix and unit, and the interval in the same unit."""
    factor, prefix = prefix_of(quantity.value)
    return f"{digits(quantity.value / factor)} {prefix}{unit}", interval(quantity, factor)


def joined(shares: Sequence[tuple[str, float]]) -> str:
    """Return ``compute 71.0 %, memory 21.3 %`` of the shares that show."""
    return ", ".join(f"{name} {percent(share)}" for name, share in shares if share >= PERCENT / 2)

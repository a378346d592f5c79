"""Readings of one channel -> energy of a window, with its interval. Pure functions on arrays.

::

    counter   |--*------*------*------*------*--|      read at the edges and in between
    window       [start                     end]
    sensor    ##......##......##......##......##       a part-time one looks at ## alone

The counter counts; polled power, integrated, is the check on it and the stand-in where there is none.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from joulecast.measure.sensors import Channel

Floats = NDArray[np.float64]

#: Quantile of the normal distribution for a two-sided 90 % interval.
_Z90: Final = 1.645
#: Counter and polled power are said to disagree beyond this. [1]
DISAGREEMENT_FRAC: Final = 0.10
#: A gap between readings this many times the usual one is reported.
_GAP_RATIO: Final = 10.0
_SMALLEST_GAP_S: Final = 1.0
_FEWEST_SAMPLES: Final = 2
#: Phases that a step is divided into, moments per look of a sensor, and looks that are followed.
_N_PHASES: Final = 64
_PER_LOOK: Final = 256
_MOST_LOOKS: Final = 1000
#: Phases that nobody looked at are free: which way they go must not hang on the last digit.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What a channel said over time; NaN where it said nothing.

    Attributes
    ----------
    channel : Channel
    time_s, energy_j, power_w, temperature_c, sm_clock_hz, used_bytes : ndarray [sample]
        [s], [J], [W], [degC], [Hz], [bytes]
    error : str
        The first that it reported; empty if none.
    """

    channel: Channel
    time_s: Floats
    energy_j: Floats
    power_w: Floats
    temperature_c: Floats
    sm_clock_hz: Floats
    used_bytes: Floats
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowEnergy:
    """Energy of one channel over one window, or why there is none.

    Attributes
    ----------
    energy_j, low_j, high_j : float or None
        Value and 90 % interval; None where not known. [J]
    method : str
        ``counter`` or ``polled``; empty if absent.
    sampling_hz : float
        Readings per second. [Hz]
    reason : str
        Why it is absent.
    flags : tuple of str
        Reasons for doubt.
    """

    energy_j: float | None
    low_j: float | None = None
    high_j: float | None = None
    method: str = ""
    sampling_hz: float = 0.0
    reason: str = ""
    flags: tuple[str, ...] = ()


def unwrapped_j(energy_j: Floats, range_j: float | None) -> tuple[Floats, bool]:
    """Return a counter that only grows, and whether it was set back in between. [J]

    A counter with a range starts again from 0 beyond it, at most once between two readings. Without one, a
    step back means that the device or its driver started anew; what was counted before is then lost.
    """
    steps = np.diff(energy_j)
    back = steps < 0
    if range_j is not None:
        steps = np.where(back, steps + range_j, steps)
    was_reset = bool((steps < 0).any())
    return np.concatenate(([0.0], np.cumsum(steps))), was_reset


def _around(time_s: Floats, start_s: float, end_s: float) -> slice:
    """Return the samples from the last before a window to the first after it."""
    first = max(int(np.searchsorted(time_s, start_s, side="right")) - 1, 0)
    last = min(int(np.searchsorted(time_s, end_s, side="left")), len(time_s) - 1)
    return slice(first, last + 1)


def counted_j(series: Series, start_s: float, end_s: float) -> tuple[float | None, str]:
    """Return the energy that the counter says a window took, or None and the reason. [J]"""
    known = np.isfinite(series.energy_j)
    time_s, energy_j = series.time_s[known], series.energy_j[known]
    if len(time_s) < _FEWEST_SAMPLES:
        return None, "the device has no energy counter"
    part = _around(time_s, start_s, end_s)
    counted, was_reset = unwrapped_j(energy_j[part], series.channel.counter_range_j)
    span_s = float(time_s[part][-1] - time_s[part][0])
    if was_reset:
        return None, "the energy counter was set back: the driver or the device started anew"
    if span_s < 0.9 * (end_s - start_s):
        return None, "the energy counter could not be read over the whole window"
    return float(counted[-1]) * (end_s - start_s) / span_s, ""


def polled_j(series: Series, start_s: float, end_s: float) -> tuple[float | None, str]:
    """Return the integral of the power that was read over a window, or None and the reason. [J]"""
    known = np.isfinite(series.power_w)
    time_s, power_w = series.time_s[known], series.power_w[known]
    if len(time_s) < _FEWEST_SAMPLES:
        return None, "the device does not say its power"
    part = _around(time_s, start_s, end_s)
    span_s = float(time_s[part][-1] - time_s[part][0])
    if span_s < 0.9 * (end_s - start_s):
        return None, "the power could not be read over the whole window"
    return float(np.trapezoid(power_w[part], time_s[part])) * (end_s - start_s) / span_s, ""


def look_density(step_time_s: float, duration_s: float, *, update_s: float, averaging_s: float) -> Floats:
    """Return how often a part-time sensor has looked at each phase of a step, over the mean, [phase].

    Parameters
    ----------
    step_time_s, duration_s : float
        Period of what is measured; length of the window. [s]
    update_s, averaging_s : float
        How often the sensor takes a value, and how long it looks. [s]

    Notes
    -----
    Look k begins at the phase ``k update / step`` and goes round ``averaging / step`` times. Where the step
    is near a multiple or a simple fraction of the sensor's period, all looks fall on the same few phases: the
    density is then far from 1, and 0 where nobody looked. Steps of equal length are the worst case.
    """
    n_looks = int(min(max(duration_s / update_s, 1.0), _MOST_LOOKS))
    within = (np.arange(_PER_LOOK) + 0.5) / _PER_LOOK * averaging_s  # [moment]
    moments = np.arange(n_looks)[:, None] * update_s + within  # [look, moment]
    phases = moments.ravel() / step_time_s % 1.0
    counts, _ = np.histogram(phases, bins=_N_PHASES, range=(0.0, 1.0))
    density: Floats = counts / counts.mean()
    return density


def mean_bounds(seen: float, density: Floats, low: float, high: float) -> tuple[float, float]:
    """Return between which ends the mean of a step can lie, given the mean that the looks saw.

    Parameters
    ----------
    seen : float
        Mean over the looks.
    density : ndarray [phase]
        From `look_density`.
    low, high : float
        Between which every value lies; ``low <= seen <= high``.

    Notes
    -----
    Of all courses P of the power with ``mean(density P) = seen``, the one with the largest mean is at its
    highest where the density is small, and at its lowest elsewhere; the one with the smallest is the reverse.
    """
    if high <= low:
        return seen, seen
    share = (seen - low) / (high - low)
    rarest_first = np.sort(density)
    least = _time_frac(rarest_first[::-1], share - _ROUNDING)
    most = _time_frac(rarest_first, share + _ROUNDING)
    return low + (high - low) * least, low + (high - low) * most


def _time_frac(density: Floats, share: float) -> float:
    """Return how much of a step the first phases take that make up a share of all looks. [1]"""
    looked = np.concatenate(([0.0], np.cumsum(density))) / len(density)  # [phase + 1]
    return float(np.interp(share, looked, np.linspace(0.0, 1.0, len(looked))))


def window_energy(
    series: Series,
    start_s: float,
    end_s: float,
    *,
    step_time_s: float | None = None,
    idle_power_w: float = 0.0,
) -> WindowEnergy:
    """Return the energy that a channel took over a window.

    Parameters
    ----------
    series : Series
    start_s, end_s : float
        Monotonic clock. [s]
    step_time_s : float, optional
        Period of what was running, where it is known. [s]
    idle_power_w : float
        The least that the device can have drawn while nobody looked. [W]

    Notes
    -----
    The interval is the sum of: the sensor's gain; one update of the sensor at the edges; and, for a
    part-time sensor, the standard error of its looks and what the phases of a step that it saw too seldom
    could have taken, from idle to the power limit.
    """
    counted, no_counter = counted_j(series, start_s, end_s)
    polled, no_power = polled_j(series, start_s, end_s)
    energy_j = polled if counted is None else counted
    if energy_j is None:
        reason = f"{series.channel.device}: {series.error}" if series.error else no_counter or no_power
        return WindowEnergy(energy_j=None, reason=reason, flags=_flags(series, start_s, end_s))
    duration_s = end_s - start_s
    flags = _flags(series, start_s, end_s)
    if counted is not None and polled is not None:
        flags += _disagreement(series.channel.device, counted, polled)
    elif counted is None:
        flags += (f"{series.channel.device}: {no_counter}; power was polled",)
    low_j, high_j = _bounds(series, energy_j, duration_s, step_time_s, idle_power_w)
    inside = (series.time_s >= start_s) & (series.time_s <= end_s)
    return WindowEnergy(
        energy_j=energy_j,
        low_j=max(low_j, 0.0),
        high_j=high_j,
        method="polled" if counted is None else "counter",
        sampling_hz=float(inside.sum()) / duration_s,
        flags=flags,
    )


def _disagreement(device: str, counted_j: float, polled_j: float) -> tuple[str, ...]:
    if abs(polled_j - counted_j) <= DISAGREEMENT_FRAC * max(counted_j, polled_j):
        return ()
    return (f"{device}: the counter says {counted_j:.4g} J, polled power {polled_j:.4g} J",)


def _bounds(
    series: Series, energy_j: float, duration_s: float, step_time_s: float | None, idle_power_w: float
) -> tuple[float, float]:
    """Return the ends of the 90 % interval. [J]"""
    channel = series.channel
    edge_j = energy_j * min(channel.update_s / duration_s, 1.0)
    width_j = edge_j + channel.gain_frac * energy_j
    if channel.averaging_s >= channel.update_s:
        return energy_j - width_j, energy_j + width_j
    power_w = series.power_w[np.isfinite(series.power_w)]
    looked = channel.averaging_s / channel.update_s
    n_looks = max(duration_s / channel.update_s, 1.0)
    spread_w = float(power_w.std()) if len(power_w) >= _FEWEST_SAMPLES else 0.0
    width_j += _Z90 * spread_w * ((1 - looked) / n_looks) ** 0.5 * duration_s
    if step_time_s is None:
        return energy_j - width_j, energy_j + width_j
    density = look_density(
        step_time_s, duration_s, update_s=channel.update_s, averaging_s=channel.averaging_s
    )
    mean_w = energy_j / duration_s
    most_w = max(channel.power_limit_w or 0.0, float(power_w.max(initial=0.0)), mean_w)
    low_w, high_w = mean_bounds(mean_w, density, min(idle_power_w, mean_w), most_w)
    return low_w * duration_s - width_j, high_w * duration_s + width_j


def _flags(series: Series, start_s: float, end_s: float) -> tuple[str, ...]:
    """Return what makes the readings of a window doubtful."""
    flags: tuple[str, ...] = ()
    if series.error:
        flags += (f"{series.channel.device}: {series.error}",)
    inside = series.time_s[(series.time_s >= start_s) & (series.time_s <= end_s)]
    gaps = np.diff(inside)
    if len(gaps) and gaps.max() > max(_GAP_RATIO * float(np.median(gaps)), _SMALLEST_GAP_S):
        flags += (f"{series.channel.device}: not read for {gaps.max():.1f} s: the machine slept or was busy",)
    return flags

"""Greenhouse gases of electricity: a country's yearly mean, a number, or a series over time.

In: what the user names. Out: `Intensity`, in kg CO2e per joule, always with source and year. Reads the
shipped table or a user's file; asks no server.
"""

import csv
import tomllib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from math import isfinite
from pathlib import Path
from typing import Any, Final

import numpy as np

from joulecast.errors import IntensityError, UnknownCountryError, UsageError
from joulecast.results import Quantity
from joulecast.units import J_PER_KWH, MILLI
from joulecast.workload.table import Floats

#: Multiplies gCO2e/kWh, as people and files state it, to kg/J.
G_PER_KWH: Final = MILLI / J_PER_KWH

#: Columns of a file of intensities.
SERIES_COLUMNS: Final = ("timestamp", "gco2e_per_kwh")

_LARGEST_G_PER_KWH: Final = 5000.0  # burning lignite at 20 % efficiency emits about 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """Greenhouse gases per energy over a run.

    Attributes
    ----------
    kg_per_j, low_kg_per_j, high_kg_per_j : float
        Mean over the run, and what it may lie between where hours are known. [kg/J]
    source : str
        Where the number comes from, for people; never empty.
    year : str
        Year or period it holds for.
    """

    kg_per_j: float
    low_kg_per_j: float
    high_kg_per_j: float
    source: str
    year: str

    def of(self, energy_j: Quantity) -> Quantity:
        """Return the greenhouse gases of an energy; its interval spans both. [kg]."""
        return Quantity(
            value=energy_j.value * self.kg_per_j,
            low=energy_j.low * self.low_kg_per_j,
            high=energy_j.high * self.high_kg_per_j,
            origin=energy_j.origin,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantIntensity:
    """One number for the whole run.

    Attributes
    ----------
    kg_per_j : float
        [kg/J]
    source, year : str
    """

    kg_per_j: float
    source: str
    year: str

    def over(self, run_time_s: Quantity, start: datetime | None = None) -> Intensity:
        """Return the intensity, whatever the hours."""
        return Intensity(
            kg_per_j=self.kg_per_j,
            low_kg_per_j=self.kg_per_j,
            high_kg_per_j=self.kg_per_j,
            source=self.source,
            year=self.year,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IntensitySeries:
    """Intensities over time; each holds until the next.

    Attributes
    ----------
    edges_s : ndarray [step + 1]
        Starts of the steps and the end of the last, since 1970 in UTC. [s]
    kg_per_j : ndarray [step]
        [kg/J]
    source : str
    """

    edges_s: Floats
    kg_per_j: Floats
    source: str

    def over(self, run_time_s: Quantity, start: datetime | None = None) -> Intensity:
        """Return the mean over the hours of a run.

        Parameters
        ----------
        run_time_s : Quantity
            How long it runs. [s]
        start : datetime or None
            When it starts; without a zone, UTC. None takes the mean of the series, and as interval the lowest
            and highest mean over any run of that length within it.

        Raises
        ------
        UsageError
            The run starts outside the series, or is expected to pass its end.
        """
        if start is None:
            return self._any_start(run_time_s.value)
        start_s = _utc(start).timestamp()
        end_s = float(self.edges_s[-1])
        if not self.edges_s[0] <= start_s < end_s or start_s + run_time_s.value > end_s:
            raise UsageError(
                f"{self.source} covers {_moment(self.edges_s[0])} to {_moment(end_s)}: a run of "
                f"{_moment(start_s)} to {_moment(start_s + run_time_s.value)} does not lie within"
            )
        # beyond the series nothing is known: the long end of the interval stops there
        lengths_s = (run_time_s.value, run_time_s.low, min(run_time_s.high, end_s - start_s))
        means = [self.mean_kg_per_j(start_s, length_s) for length_s in lengths_s]
        return self._stated(means[0], min(means), max(means), f"{_moment(start_s)} on")

    def _any_start(self, run_time_s: float) -> Intensity:
        span_s = float(self.edges_s[-1] - self.edges_s[0])
        mean = self.mean_kg_per_j(float(self.edges_s[0]), span_s)
        if run_time_s >= span_s:
            return self._stated(mean, mean, mean, "mean of the series")
        # the mean over a window is piecewise linear in its start: extremes lie where an end meets an edge
        starts_s = np.concatenate([self.edges_s, self.edges_s - run_time_s])
        inside = (starts_s >= self.edges_s[0]) & (starts_s + run_time_s <= self.edges_s[-1])
        means = self._integral(starts_s[inside] + run_time_s) - self._integral(starts_s[inside])
        means /= run_time_s
        return self._stated(mean, float(means.min()), float(means.max()), "mean of the series, any start")

    def mean_kg_per_j(self, start_s: float, length_s: float) -> float:
        """Return the time-weighted mean over a window inside the series. [kg/J]."""
        if length_s <= 0:
            return float(self.kg_per_j[bisect_right(self.edges_s.tolist(), start_s) - 1])
        ends = self._integral(np.array([start_s, start_s + length_s]))
        return float(ends[1] - ends[0]) / length_s

    def _integral(self, at_s: Floats) -> Floats:
        """Return the integral of the intensity from the start of the series. [kg/J s]."""
        steps = np.diff(self.edges_s) * self.kg_per_j
        integral: Floats = np.interp(at_s, self.edges_s, np.concatenate([[0.0], np.cumsum(steps)]))
        return integral

    def _stated(self, mean: float, low: float, high: float, how: str) -> Intensity:
        first, last = _moment(self.edges_s[0]), _moment(self.edges_s[-1])
        return Intensity(
            kg_per_j=mean,
            low_kg_per_j=min(low, mean),
            high_kg_per_j=max(high, mean),
            source=self.source,
            year=f"{first} to {last}, {how}",
        )


Grid = ConstantIntensity | IntensitySeries


def load_grid(text: str) -> Grid:
    """Return the intensity that a country, a number in gCO2e/kWh or the path of a CSV file means.

    Raises
    ------
    UnknownCountryError
        No country of that name; carries the near misses.
    UsageError
        The number cannot be.
    IntensityError
        The file is corrupt.
    """
    try:
        return _given(float(text))
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
    if text.lower().endswith(".csv") or Path(text).is_file():
        return load_series(text)
    return country_intensity(text)


def _given(g_per_kwh: float) -> ConstantIntensity:
    if not (isfinite(g_per_kwh) and 0 <= g_per_kwh <= _LARGEST_G_PER_KWH):
        raise UsageError(
            f"an intensity of {g_per_kwh:g} gCO2e/kWh cannot be: give 0 to {_LARGEST_G_PER_KWH:g} gCO2e/kWh"
        )
    return ConstantIntensity(
        kg_per_j=g_per_kwh * G_PER_KWH, source=f"{g_per_kwh:g} gCO2e/kWh as given", year="as given"
    )


# --- countries ------------------------------------------------------------------------------------


@cache
def _table() -> dict[str, Any]:
    text = (resources.files("joulecast.explore") / "data" / "grid_intensity.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def countries() -> tuple[str, ...]:
    """Return the names of all countries of the table, sorted."""
    return tuple(sorted(row["name"] for row in _table()["countries"].values()))


def country_intensity(name: str) -> ConstantIntensity:
    """Return a country's yearly mean.

    Parameters
    ----------
    name : str
        Its English name, or its ISO 3166-1 code of two or three letters, in either case.

    Raises
    ------
    UnknownCountryError
    """
    table = _table()
    by_name = {
        key.lower(): code
        for code, row in table["countries"].items()
        for key in (code, row["alpha_2"], row["name"])
    }
    code = by_name.get(name.strip().lower())
    if code is None:
        raise UnknownCountryError(
            "country",
            name,
            [key for key in by_name if len(key) > 3],  # noqa: PLR2004 (codes are no near misses)
            "(an English name, an ISO code, a number in gCO2e/kWh or a CSV file)",
        )
    row = table["countries"][code]
    title = table["sources"][row["source"]]["title"]
    return ConstantIntensity(
        kg_per_j=row["intensity_kg_per_j"],
        source=f"{row['name']}, mean of {row['year']}, {title}",
        year=str(row["year"]),
    )


# --- series ---------------------------------------------------------------------------------------


def load_series(path: str | Path) -> IntensitySeries:
    """Load a CSV file of `SERIES_COLUMNS`: ISO 8601 times (UTC where none says a zone), gCO2e/kWh.

    Raises
    ------
    UsageError
        There is no such file.
    IntensityError
        A cell is no time or number, or times do not rise; the line is named.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            points = list(_points(path, csv.DictReader(file, strict=True)))
    except FileNotFoundError:
        raise UsageError(f"no such file of intensities: {path}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise IntensityError(f"cannot read {path} as a CSV file: {error}") from error
    if len(points) < 2:  # noqa: PLR2004 (a step needs an end)
        raise IntensityError(f"{path} has {len(points)} rows: a series needs at least 2")
    starts_s, values = np.array(points).T
    last_s = starts_s[-1] + (starts_s[-1] - starts_s[-2])  # the last holds as long as the one before
    return IntensitySeries(
        edges_s=np.append(starts_s, last_s), kg_per_j=values * G_PER_KWH, source=Path(path).name
    )


def _points(path: str | Path, rows: "csv.DictReader[str]") -> Iterator[tuple[float, float]]:
    missing = [name for name in SERIES_COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise IntensityError(
            f"{path} lacks the column {', '.join(missing)}: its header must be {','.join(SERIES_COLUMNS)}"
        )
    last_s = -np.inf
    for row in rows:
        where = f"{path} line {rows.line_num}"
        try:
            at_s = _utc(datetime.fromisoformat((row["timestamp"] or "").strip())).timestamp()
        except ValueError:
            raise IntensityError(f"{where}: {row['timestamp']!r} is no ISO 8601 time") from None
        try:
            value = float(row["gco2e_per_kwh"] or "nan")
        except ValueError:
            value = float("nan")
        if not 0 <= value <= _LARGEST_G_PER_KWH:
            raise IntensityError(
                f"{where}: gco2e_per_kwh is {row['gco2e_per_kwh']!r}, "
                f"not between 0 and {_LARGEST_G_PER_KWH:g}"
            )
        if at_s <= last_s:
            raise IntensityError(f"{where}: {row['timestamp']} does not come after the line before")
        last_s = at_s
        yield at_s, value


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(float(at_s), UTC).strftime("%Y-%m-%d %H:%MZ")

"""Parameters of the model: names, units, bounds, meaning; load and save a fitted set.

In: a TOML file (or nothing, for the shipped set). Out: `ParameterSet`. The only module of `model` that
touches files.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final

from joulecast.errors import ParameterSetError
from joulecast.model.definitions import PARAMETERS, Parameter
from joulecast.model.intervals import (
    FEATURES,
    GUESSED_HALF_WIDTHS,
    QUANTITIES,
    IntervalModel,
    Spread,
    guessed_intervals,
)
from joulecast.whole_file import whole_file

#: Version of the file format and of the list of parameters. A loader reads its own version only.
FORMAT_VERSION: Final = 2

#: What changed since each older version, for the error message.
CHANGES_SINCE: Final[Mapping[int, str]] = {
    1: "since 1, intervals follow the features of a step, and a set says which sizes and classes it covers",
}

_BY_NAME: Final[Mapping[str, Parameter]] = {p.name: p for p in PARAMETERS}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualQuantiles:
    """Quantiles of log(measured / predicted) of one quantity in one coverage class. [1].

    Attributes
    ----------
    low, median, high : float
        The 5, 50 and 95 % quantiles. [1]
    n_rows : int
        Held-out rows they come from; 0 marks a guess.
    """

    low: float
    median: float
    high: float
    n_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalars:
    """Factors on time and power of one model or one precision: of a user's own calibration only.

    Attributes
    ----------
    time, power : float
        Measured over predicted. [1]
    n_rows : int
        Runs behind them.
    """

    time: float
    power: float
    n_rows: int

    def __post_init__(self) -> None:
        for name in ("time", "power"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ParameterSetError(f"a scalar of {name} must be above 0, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """One stage of the fit behind a set.

    Attributes
    ----------
    name : str
    parameters : tuple of str
        What it fitted.
    n_rows : int
        Measured values that it was fitted to.
    error_before, error_after : float
        Mean absolute relative error in sample; NaN where unknown. [1]
    held_out_before, held_out_after : float
        The same of rows held out; NaN where there were none. [1]
    kept : bool
        Whether the set took its values.
    reason : str
        Why, or why not.
    """

    name: str
    parameters: tuple[str, ...] = ()
    n_rows: int = 0
    error_before: float = math.nan
    error_after: float = math.nan
    held_out_before: float = math.nan
    held_out_after: float = math.nan
    kept: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSet:
    """Values of all parameters, and what they come from.

    Attributes
    ----------
    values : mapping of str to float
        One value per name of `PARAMETERS`, in its SI unit.
    provenance : mapping of str to str
        What produced the set: data checksum, code version, seed, date, errors.
    residuals : mapping of str to ResidualQuantiles
        By ``"QUANTITY.CLASS"``: quantities ``time``, ``power``, ``energy``, ``memory`` (the
        allocator's peak), ``process``; classes ``seen``,
        ``unseen``. A record of the fit; predictions take `intervals`.
    intervals : IntervalModel
        Of the quantities, from held-out rows.
    covered_gpus, covered_precisions, covered_architectures, covered_classes : tuple of str
        What the fit has seen: slugs, policies, architectures of the catalogue, `coverage.model_class`.
    covered_ranges : mapping of str to (float, float)
        Least and most of each size that `coverage.conditions` names. Empty where nobody recorded them.
    model_scalars, precision_scalars : mapping of str to Scalars
        By canonical name of the model, and by precision. Predictions that use one say so.
    stages : tuple of StageRecord
        How the fit went.
    """

    values: Mapping[str, float]
    provenance: Mapping[str, str] = field(default_factory=dict)
    residuals: Mapping[str, ResidualQuantiles] = field(default_factory=dict)
    intervals: IntervalModel = field(default_factory=guessed_intervals)
    covered_gpus: tuple[str, ...] = ()
    covered_precisions: tuple[str, ...] = ()
    covered_architectures: tuple[str, ...] = ()
    covered_classes: tuple[str, ...] = ()
    covered_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    model_scalars: Mapping[str, Scalars] = field(default_factory=dict)
    precision_scalars: Mapping[str, Scalars] = field(default_factory=dict)
    stages: tuple[StageRecord, ...] = ()

    def __post_init__(self) -> None:
        for name, value in self.values.items():
            _check_value(name, value)
        unstated = [quantity for quantity in QUANTITIES if quantity not in self.intervals.spreads]
        if unstated:
            raise ParameterSetError(f"parameter set lacks intervals of {', '.join(unstated)}")
        missing = sorted(set(_BY_NAME) - set(self.values))
        if missing:
            raise ParameterSetError(f"parameter set lacks {', '.join(missing[:5])}")

    def with_values(self, changes: Mapping[str, float]) -> "ParameterSet":
        """Return the set with some values replaced."""
        return replace(self, values={**self.values, **changes})

    def covers(self, gpu_slug: str, precision: str) -> bool:
        """Return whether the fit has seen this GPU and this precision."""
        return gpu_slug in self.covered_gpus and precision in self.covered_precisions


def _check_value(name: str, value: object) -> None:
    """Raise unless the parameter exists and its value is a number within its bounds."""
    parameter = _BY_NAME.get(name)
    if parameter is None:
        raise ParameterSetError(f"unknown parameter {name!r}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ParameterSetError(f"parameter {name} is not a number: {value!r}")
    if not parameter.low <= value <= parameter.high:
        bounds = f"[{parameter.low:g}, {parameter.high:g}] {parameter.unit}"
        raise ParameterSetError(f"parameter {name} = {value:g} lies outside {bounds}")


def definition(name: str) -> Parameter:
    """Return the definition of a parameter by name."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ParameterSetError(f"unknown parameter {name!r}") from None


def initial_parameters() -> ParameterSet:
    """Return the set a fit starts from: the values written in the definitions."""
    return ParameterSet(
        values={p.name: p.value for p in PARAMETERS},
        provenance={"origin": "initial values of the definitions, not fitted"},
        residuals={
            f"{quantity}.{coverage}": ResidualQuantiles(low=-w, median=0.0, high=w, n_rows=0)
            for quantity, width in GUESSED_HALF_WIDTHS.items()
            for coverage, w in (("seen", width), ("unseen", 1.6 * width))
        },
    )


def load_parameters(path: str | Path | None = None) -> ParameterSet:
    """Load a fitted set.

    Parameters
    ----------
    path : str or Path or None
        A file written by `save_parameters`; None for the set shipped with the package.

    Raises
    ------
    ParameterSetError
        The file is missing, is not such a file, is of another version, or a value is out of bounds.
    """
    source = resources.files("joulecast.model") / "fitted" / "default.toml" if path is None else Path(path)
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterSetError(f"cannot read the parameter set {source}: {error}") from error
    try:
        return _decoded(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ParameterSetError(f"{source} is not a parameter set: {error!s}") from error
    except ParameterSetError as error:
        raise ParameterSetError(f"{source}: {error}") from error


def _decoded(document: Mapping[str, Any]) -> ParameterSet:
    """Return the set in a parsed document."""
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        since = CHANGES_SINCE.get(version, "") if isinstance(version, int) else ""
        raise ParameterSetError(
            f"format version {version!r}, this joulecast reads {FORMAT_VERSION}: fit it again"
            + (f" ({since})" if since else "")
        )
    coverage = document["coverage"]
    return ParameterSet(
        values={name: entry["value"] for name, entry in document["parameters"].items()},
        provenance={key: str(value) for key, value in document["provenance"].items()},
        residuals={
            name: ResidualQuantiles(
                low=float(entry["q05"]),
                median=float(entry["q50"]),
                high=float(entry["q95"]),
                n_rows=int(entry["n_rows"]),
            )
            for name, entry in document["residuals"].items()
        },
        intervals=IntervalModel(
            spreads={name: _spread(entry) for name, entry in document["intervals"].items()}
        ),
        covered_gpus=tuple(coverage["gpus"]),
        covered_precisions=tuple(coverage["precisions"]),
        covered_architectures=tuple(coverage["architectures"]),
        covered_classes=tuple(coverage["classes"]),
        covered_ranges={
            name: (float(low), float(high)) for name, (low, high) in coverage.get("ranges", {}).items()
        },
        model_scalars=_scalars(document.get("model_scalars", {})),
        precision_scalars=_scalars(document.get("precision_scalars", {})),
        stages=tuple(_stage(entry) for entry in document.get("stages", ())),
    )


def _spread(entry: Mapping[str, Any]) -> Spread:
    """Return the spread in a parsed entry; weights of unknown features are an error."""
    weights = {name: float(weight) for name, weight in entry["weights"].items()}
    unknown = sorted(set(weights) - set(FEATURES))
    if unknown:
        raise ParameterSetError(f"unknown features of the intervals: {', '.join(unknown)}")
    return Spread(
        intercept=float(entry["intercept"]),
        weights=weights,
        low=float(entry["low"]),
        high=float(entry["high"]),
        n_rows=int(entry["n_rows"]),
    )


def _scalars(section: Mapping[str, Any]) -> dict[str, Scalars]:
    return {
        name: Scalars(time=float(entry["time"]), power=float(entry["power"]), n_rows=int(entry["n_rows"]))
        for name, entry in section.items()
    }


def _stage(entry: Mapping[str, Any]) -> StageRecord:
    return StageRecord(**{**entry, "parameters": tuple(entry["parameters"])})


def save_parameters(parameters: ParameterSet, path: str | Path) -> None:
    """Save a set so that `load_parameters` returns an equal one; the old file stays whole until then."""
    with whole_file(path) as partial:
        partial.write_text(_encoded(parameters), encoding="utf-8")


def _encoded(parameters: ParameterSet) -> str:
    """Return the TOML text of a set."""
    lines = [
        "# Parameters of joulecast's model. Written by joulecast.calibrate, never by hand.",
        f"format_version = {FORMAT_VERSION}",
        "",
        "[provenance]",
        *(f"{_quoted(key)} = {_quoted(value)}" for key, value in parameters.provenance.items()),
        "",
        "[coverage]",
        f"gpus = {_list(parameters.covered_gpus)}",
        f"precisions = {_list(parameters.covered_precisions)}",
        f"architectures = {_list(parameters.covered_architectures)}",
        f"classes = {_list(parameters.covered_classes)}",
        "",
        "[coverage.ranges]  # least and most of every size in the runs",
        *(
            f"{_quoted(name)} = [{float(low)!r}, {float(high)!r}]"
            for name, (low, high) in parameters.covered_ranges.items()
        ),
        "",
        "[residuals]  # quantiles of log(measured / predicted), held out; n_rows = 0 marks a guess",
    ]
    for name, r in parameters.residuals.items():
        lines.append(
            f"{_quoted(name)} = {{ q05 = {r.low!r}, q50 = {r.median!r}, q95 = {r.high!r}, "
            f"n_rows = {r.n_rows} }}"
        )
    lines += ["", *_interval_lines(parameters.intervals)]
    for section in ("model_scalars", "precision_scalars"):
        lines += [
            "",
            f"[{section}]  # factors on time and power",
            *_scalar_lines(getattr(parameters, section)),
        ]
    for stage in parameters.stages:
        lines += ["", "[[stages]]", *(f"{f.name} = {_plain(getattr(stage, f.name))}" for f in fields(stage))]
    lines += ["", "[parameters]"]
    for name, value in parameters.values.items():
        p = _BY_NAME[name]
        lines.append(
            f"{_quoted(name)} = {{ value = {float(value)!r}, unit = {_quoted(p.unit)}, low = {p.low!r}, "
            f"high = {p.high!r} }}  # {p.meaning}"
        )
    return "\n".join(lines) + "\n"


def _interval_lines(intervals: IntervalModel) -> list[str]:
    """Return the section of the intervals."""
    lines = ["[intervals]  # log sigma = intercept + weights x features; [low, high] x sigma; held out"]
    for name, spread in intervals.spreads.items():
        weights = ", ".join(f"{key} = {float(value)!r}" for key, value in spread.weights.items())
        lines.append(
            f"{_quoted(name)} = {{ intercept = {float(spread.intercept)!r}, low = {float(spread.low)!r}, "
            f"high = {float(spread.high)!r}, n_rows = {spread.n_rows}, weights = {{ {weights} }} }}"
        )
    return lines


def _scalar_lines(scalars: Mapping[str, Scalars]) -> list[str]:
    return [
        f"{_quoted(name)} = {{ time = {float(s.time)!r}, power = {float(s.power)!r}, n_rows = {s.n_rows} }}"
        for name, s in scalars.items()
    ]


def _plain(value: bool | int | float | str | tuple[str, ...]) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, tuple):
        return _list(value)
    return repr(value)


def _list(names: Sequence[str]) -> str:
    return f"[{', '.join(_quoted(name) for name in names)}]"


def _quoted(text: str) -> str:
    """Return a TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'

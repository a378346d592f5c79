"""Parameters of the model: names, units, bounds, meaning; load and save a fitted set.

In: a TOML file (or nothing, for the shipped set). Out: `ParameterSet`. The only module of `model` that
touches files.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final

from joulecast.errors import ParameterSetError
from joulecast.model.definitions import PARAMETERS, Parameter

#: Version of the file format and of the list of parameters. A loader reads its own version only.
FORMAT_VERSION: Final = 1

#: What changed since each older version, for the error message.
CHANGES_SINCE: Final[Mapping[int, str]] = {}

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
        ``unseen``.
    covered_gpus, covered_precisions : tuple of str
        What the fit has seen.
    """

    values: Mapping[str, float]
    provenance: Mapping[str, str] = field(default_factory=dict)
    residuals: Mapping[str, ResidualQuantiles] = field(default_factory=dict)
    covered_gpus: tuple[str, ...] = ()
    covered_precisions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in self.values.items():
            _check_value(name, value)
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


#: Half-widths of the log residuals until a fit has measured them. [1] (guess)
GUESSED_HALF_WIDTHS: Final[Mapping[str, float]] = {
    "time": 0.25,
    "power": 0.2,
    "energy": 0.25,
    "memory": 0.08,
    "process": 0.2,
}


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
            f"format version {version!r}, this joulecast reads {FORMAT_VERSION}; fit it again {since}".strip()
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
        covered_gpus=tuple(coverage["gpus"]),
        covered_precisions=tuple(coverage["precisions"]),
    )


def save_parameters(parameters: ParameterSet, path: str | Path) -> None:
    """Save a set so that `load_parameters` returns an equal one; the old file stays whole until then."""
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    partial.write_text(_encoded(parameters), encoding="utf-8")
    partial.replace(target)


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
        f"gpus = [{', '.join(_quoted(name) for name in parameters.covered_gpus)}]",
        f"precisions = [{', '.join(_quoted(name) for name in parameters.covered_precisions)}]",
        "",
        "[residuals]  # quantiles of log(measured / predicted), held out; n_rows = 0 marks a guess",
    ]
    for name, r in parameters.residuals.items():
        lines.append(
            f"{_quoted(name)} = {{ q05 = {r.low!r}, q50 = {r.median!r}, q95 = {r.high!r}, "
            f"n_rows = {r.n_rows} }}"
        )
    lines += ["", "[parameters]"]
    for name, value in parameters.values.items():
        p = _BY_NAME[name]
        lines.append(
            f"{_quoted(name)} = {{ value = {float(value)!r}, unit = {_quoted(p.unit)}, low = {p.low!r}, "
            f"high = {p.high!r} }}  # {p.meaning}"
        )
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'

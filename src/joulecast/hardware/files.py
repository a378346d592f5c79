"""TOML files of hardware to labels and facts, every key checked.

Enters: a path. Leaves: texts and `Fact` records by dotted key, or `CatalogueError` in one line that names
the file and the key. This module knows no rule about what a card needs; `catalogue` does.
"""

import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any, Final

from joulecast.errors import CatalogueError
from joulecast.hardware.spec import PATHS, Fact, FactKind
from joulecast.hardware.toml_text import FORMAT_VERSION

#: Numbers that cards of one architecture share.
ARCHITECTURE_NUMBERS: Final = frozenset(
    {
        "voltage_flat_clock_frac",
        "voltage_max_ratio",
        "per_sm.warp_schedulers",
        "per_sm.warp_size",
        "per_sm.max_threads",
        "per_sm.registers",
        "per_sm.l1_or_shared_bytes",
        "per_sm.max_shared_bytes",
    }
)
#: Texts of a card's file.
GPU_LABELS: Final = frozenset(
    {
        "slug",
        "name",
        "vendor",
        "architecture",
        "compute_capability",
        "chip",
        "form_factor",
        "memory_type",
        "release_year",
        "reference",
        "notes",
        "base",
        "link.kind",
        "link.reach",
        "waived.bandwidth",
    }
)
#: Numbers of a card's file, besides the tables below.
GPU_NUMBERS: Final = ARCHITECTURE_NUMBERS | frozenset(
    {
        "n_sms",
        "boost_clock_hz",
        "base_clock_hz",
        "min_clock_hz",
        "max_clock_hz",
        "tensor_peak_clock_hz",
        "memory_bytes",
        "bandwidth_bytes_per_s",
        "memory_bus_bits",
        "memory_data_rate_bit_per_s",
        "l2_bytes",
        "power_limit_w",
        "min_power_limit_w",
        "max_power_limit_w",
        "idle_power_w",
        "waiting_power_w",
        "link.bytes_per_s",
        "pcie.bytes_per_s",
    }
)
ARCHITECTURE_LABELS: Final = frozenset(
    {"architecture", "name", "compute_capability", "chips", "unit", "notes"}
)
#: Tables whose keys are units.
_BY_PATH: Final = (
    "flop_per_clock_per_sm",
    "peak_clock_hz",
    "published_flop_per_s",
    "published_sparse_flop_per_s",
)
#: Tables whose keys are numbers of GPUs.
_BY_COUNT: Final = ("link.allreduce_busbw_frac", "pcie.allreduce_busbw_frac")


def parse(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file of the format that this joulecast reads."""
    try:
        with path.open("rb") as stream:
            content = tomllib.load(stream)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CatalogueError(f"{path}: not TOML: {error}") from None
    except OSError as error:
        raise CatalogueError(f"{path}: cannot be read: {error.strerror}") from None
    version = content.pop("format", FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise CatalogueError(
            f"{path}: format: version {version!r} is not the {FORMAT_VERSION} that this joulecast reads"
        )
    return content


def read(
    path: Path, known_labels: frozenset[str], known_numbers: frozenset[str]
) -> tuple[dict[str, str], dict[str, Fact]]:
    """Return texts and numbers of a file by dotted key.

    Raises
    ------
    CatalogueError
        The file is not TOML, or a key is unknown or of the wrong kind.
    """
    labels: dict[str, str] = {}
    facts: dict[str, Fact] = {}
    for key, raw in _flat(parse(path)):
        if key in known_labels:
            if isinstance(raw, bool) or not isinstance(raw, str | int | float):
                raise CatalogueError(f"{path}: {key}: must be a text, got {raw!r}")
            labels[key] = str(raw)
        elif key in known_numbers or _is_listed(key):
            facts[key] = _fact(path, key, raw)
        else:
            known = sorted(name for name in known_labels | known_numbers if not name.startswith("waived"))
            near = get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise CatalogueError(f"{path}: {key}: unknown key{hint}")
    return labels, facts


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, raw in table.items():
        if isinstance(raw, dict) and "value" not in raw:
            yield from _flat(raw, f"{prefix}{key}.")
        else:
            yield prefix + key, raw


def _is_listed(key: str) -> bool:
    table, _, name = key.rpartition(".")
    is_count = name.isdecimal() and int(name) > 1
    return (table in _BY_PATH and name in PATHS) or (table in _BY_COUNT and is_count)


def _fact(path: Path, key: str, raw: object) -> Fact:
    """Return a number with its origin, from a plain number or a ``{ value, source, kind }``."""
    plain = {"value": raw, "source": str(path), "kind": FactKind.DATASHEET}
    table: dict[str, Any] = raw if isinstance(raw, dict) else plain
    if set(table) != {"value", "source", "kind"}:
        raise CatalogueError(f"{path}: {key}: must be a number or {{ value, source, kind }}, got {raw!r}")
    value, source, kind = table["value"], table["source"], table["kind"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CatalogueError(f"{path}: {key}: must be a number, got {value!r}")
    if not (isfinite(value) and value > 0):
        raise CatalogueError(f"{path}: {key}: must be a number above 0, got {value!r}")
    if key == "n_sms" and value != int(value):
        raise CatalogueError(f"{path}: {key}: must be a whole number, got {value!r}")
    if kind not in tuple(FactKind):
        raise CatalogueError(f"{path}: {key}: kind must be one of {', '.join(FactKind)}, got {kind!r}")
    if not isinstance(source, str) or not source:
        raise CatalogueError(f"{path}: {key}: source must be a text, got {source!r}")
    return Fact(value=float(value), source=source, kind=FactKind(kind))

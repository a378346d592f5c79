"""TOML files to `Gpu`: the cards that are shipped, and any other that a user describes.

Enters: a name, or the path of a file. Leaves: `Gpu`, or an error that names the near misses, or the
file and the key at fault. Loading one card reads its file, that of its architecture and, unless the
name is the slug itself, the index of names; nothing else.

A file holds SI values, each as ``{ value, source, kind }``; a user's file may give plain numbers (their
source is then the file), or ``base = "a100-sxm4-40gb"`` and only what differs.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from joulecast.errors import CatalogueError, UnknownGpuError, UsageError
from joulecast.hardware import names
from joulecast.hardware.cpu import load_cpu
from joulecast.hardware.files import (
    ARCHITECTURE_LABELS,
    ARCHITECTURE_NUMBERS,
    GPU_LABELS,
    GPU_NUMBERS,
    parse,
    read,
)
from joulecast.hardware.spec import PATHS, Fact, FactKind, Gpu, LinkReach
from joulecast.units import GIGA, MEGA

_DATA: Final = Path(__file__).parent / "data"
_CPU: Final = "cpu"

_REQUIRED: Final = (
    "architecture",
    "n_sms",
    "boost_clock_hz",
    "memory_bytes",
    "bandwidth_bytes_per_s",
    "l2_bytes",
    "power_limit_w",
)
#: What a card that was derived from another no longer shares with it.
_NOT_INHERITED: Final = ("published_", "memory_bus_bits", "memory_data_rate", "waived")
#: What a card of another architecture shares even less.
_OF_ARCHITECTURE: Final = ("flop_per_clock", "per_sm", "voltage", "compute_capability", "chip", "tensor_peak")


def gpu_slugs() -> tuple[str, ...]:
    """Return the names of all devices of the catalogue, the CPU included, sorted."""
    return tuple(sorted([_CPU, *(path.stem for path in (_DATA / "gpus").glob("*.toml"))]))


def load_gpu(name: str) -> Gpu:
    """Return the device that a name means.

    Parameters
    ----------
    name : str
        A slug, the driver's name, an alias, a cloud machine type, enough words to single one out, all
        without regard to case and punctuation; ``cpu``; or the path of a TOML file.

    Raises
    ------
    UnknownGpuError
        No card of that name (with near misses), or several (all named).
    CatalogueError
        A file is corrupt.
    """
    if name.lower().endswith(".toml"):
        return load_gpu_file(Path(name))
    return _load_slug(_CPU if name.strip().lower() == _CPU else names.resolve(name))


def load_gpu_file(path: Path | str) -> Gpu:
    """Return the card that a file describes, whole or as the difference to a ``base``.

    Raises
    ------
    UsageError
        There is no such file.
    CatalogueError
        The file is corrupt, or a key is unknown, missing or out of range; the message names both.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"no such GPU file: {file}")
    labels, facts = read(file, GPU_LABELS, GPU_NUMBERS)
    labels.setdefault("slug", file.stem)
    try:
        return _build(*_inherited(labels, facts))
    except CatalogueError as error:
        raise CatalogueError(f"{file}: {error}") from None


def load_sources() -> Mapping[str, Mapping[str, str]]:
    """Return title, publisher, address and date of every source, by its key."""
    tables: Mapping[str, Mapping[str, str]] = parse(_DATA / "sources.toml")["sources"]
    return tables


def load_links() -> Mapping[str, Mapping[str, Any]]:
    """Return the rows of the links table (specifications and measured bus bandwidths), by their key."""
    tables: Mapping[str, Mapping[str, Any]] = parse(_DATA / "links.toml")["links"]
    return tables


@cache
def _load_slug(slug: str) -> Gpu:
    return load_cpu() if slug == _CPU else load_gpu_file(_DATA / "gpus" / f"{slug}.toml")


def _inherited(labels: dict[str, str], facts: dict[str, Fact]) -> tuple[dict[str, str], dict[str, Fact]]:
    """Return labels and facts over those of the ``base`` and of the architecture, guesses filled in."""
    if "base" in labels:
        labels, facts = _over_base(_base(labels["base"]), labels, facts)
    for key in _REQUIRED:
        if key not in labels and key not in facts:
            raise CatalogueError(f"{key}: missing")
    arch_labels, arch_facts = _architecture(labels["architecture"], facts)
    labels = {"name": labels["slug"], "vendor": "unknown", **arch_labels, **labels}
    return labels, _with_guesses(labels, {**arch_facts, **facts})


def _over_base(
    base: Gpu, labels: dict[str, str], facts: dict[str, Fact]
) -> tuple[dict[str, str], dict[str, Fact]]:
    """Return labels and facts of a file over those of the card that it starts from."""
    is_other_architecture = labels.get("architecture", base.architecture) != base.architecture
    dropped = _NOT_INHERITED + (_OF_ARCHITECTURE if is_other_architecture else ())
    base_facts = {key: fact for key, fact in base.facts.items() if not key.startswith(dropped)}
    base_labels = {key: text for key, text in base.labels.items() if not key.startswith(dropped)}
    name = f"{labels['slug']} (after {base.slug})"
    return {**base_labels, "name": name, **labels}, _reconciled({**base_facts, **facts}, frozenset(facts))


def _base(name: str) -> Gpu:
    """Return the card of the catalogue that a file starts from."""
    if name.lower().endswith(".toml") or name.strip().lower() == _CPU:
        raise CatalogueError(f"base: must be a card of the catalogue, got {name!r}")
    try:
        return load_gpu(name)
    except UnknownGpuError as error:
        raise CatalogueError(f"base: {error}") from None


def _reconciled(facts: dict[str, Fact], own: frozenset[str]) -> dict[str, Fact]:
    """Move what a card inherited where it contradicts the limits and clocks that its file gives."""
    for low, high in (
        ("min_clock_hz", "boost_clock_hz"),
        ("base_clock_hz", "boost_clock_hz"),
        ("tensor_peak_clock_hz", "boost_clock_hz"),
        ("boost_clock_hz", "max_clock_hz"),
        ("min_power_limit_w", "power_limit_w"),
        ("power_limit_w", "max_power_limit_w"),
        ("idle_power_w", "waiting_power_w"),
        ("waiting_power_w", "power_limit_w"),
        ("idle_power_w", "waiting_power_w"),
    ):
        if low in facts and high in facts and facts[low].value > facts[high].value:
            moved, anchor = (low, high) if low not in own else (high, low)
            if moved not in own:
                facts[moved] = _guess(facts[anchor].value, f"moved to {anchor}")
    return facts


def _architecture(arch_id: str, facts: Mapping[str, Fact]) -> tuple[dict[str, str], dict[str, Fact]]:
    """Return labels and facts of an architecture; nothing if the card brings its own rates."""
    folder = _DATA / "architectures"
    path = folder / f"{arch_id}.toml"
    known = sorted(file.stem for file in folder.glob("*.toml"))
    if arch_id not in known:
        if any(key.startswith("flop_per_clock_per_sm.") for key in facts):
            return {"compute_capability": "unknown"}, {}
        raise CatalogueError(
            f"architecture: {arch_id!r} is not known, and the file gives no flop_per_clock_per_sm; "
            f"known are {', '.join(known)}"
        )
    labels, arch_facts = read(path, ARCHITECTURE_LABELS, ARCHITECTURE_NUMBERS)
    return {"compute_capability": labels["compute_capability"]}, arch_facts


def _guess(value: float, rule: str) -> Fact:
    return Fact(value=value, source=rule, kind=FactKind.GUESS)


def _with_guesses(labels: dict[str, str], facts: dict[str, Fact]) -> dict[str, Fact]:
    """Return facts with what a user's file left out, by stated rules and marked as guesses."""
    limit_w, boost_hz = facts["power_limit_w"].value, facts["boost_clock_hz"].value
    idle_w = facts["idle_power_w"].value if "idle_power_w" in facts else 0.1 * limit_w
    rules = {
        "min_clock_hz": _guess(min(210 * MEGA, boost_hz), "210 MHz, as most NVIDIA boards"),
        "max_clock_hz": _guess(boost_hz, "the boost clock"),
        "min_power_limit_w": _guess(0.4 * limit_w, "0.4 of the default power limit"),
        "max_power_limit_w": _guess(limit_w, "the default power limit"),
        "idle_power_w": _guess(idle_w, "0.1 of the default power limit"),
        "waiting_power_w": _guess(
            max(0.2 * limit_w, idle_w), "0.2 of the default power limit, at least idle"
        ),
        "voltage_flat_clock_frac": _guess(0.75, "as the A100"),
        "voltage_max_ratio": _guess(1.25, "as the A100"),
        "pcie.bytes_per_s": _guess(31.5 * GIGA, "PCIe 4 x16"),
        "pcie.allreduce_busbw_frac.2": _guess(0.6, "as cards measured over PCIe"),
        "link.allreduce_busbw_frac.2": _guess(0.65, "as the A100 SXM"),
    }
    filled = {**facts, **{key: fact for key, fact in rules.items() if key not in facts}}
    if "link.bytes_per_s" not in filled:
        filled["link.bytes_per_s"] = filled["pcie.bytes_per_s"]
        labels.setdefault("link.kind", "pcie")
        labels.setdefault("link.reach", LinkReach.NONE)
    labels.setdefault("link.kind", "nvlink")
    labels.setdefault("link.reach", LinkReach.NODE)
    return filled


def _build(labels: dict[str, str], facts: dict[str, Fact]) -> Gpu:
    if labels["link.reach"] not in tuple(LinkReach):
        raise CatalogueError(
            f"link.reach: must be one of {', '.join(LinkReach)}, got {labels['link.reach']!r}"
        )
    value = {key: fact.value for key, fact in facts.items()}
    rates = _table(value, "flop_per_clock_per_sm")
    return Gpu(
        slug=labels["slug"],
        name=labels["name"],
        vendor=labels["vendor"],
        architecture=labels["architecture"],
        compute_capability=labels["compute_capability"],
        n_sms=int(value["n_sms"]),
        boost_clock_hz=value["boost_clock_hz"],
        base_clock_hz=value.get("base_clock_hz"),
        min_clock_hz=value["min_clock_hz"],
        max_clock_hz=value["max_clock_hz"],
        flop_per_clock_per_sm=rates,
        peak_clock_hz={**_default_peak_clocks(value, rates), **_table(value, "peak_clock_hz")},
        memory_bytes=value["memory_bytes"],
        bandwidth_bytes_per_s=value["bandwidth_bytes_per_s"],
        l2_bytes=value["l2_bytes"],
        power_limit_w=value["power_limit_w"],
        min_power_limit_w=value["min_power_limit_w"],
        max_power_limit_w=value["max_power_limit_w"],
        idle_power_w=value["idle_power_w"],
        waiting_power_w=value["waiting_power_w"],
        voltage_flat_clock_frac=value["voltage_flat_clock_frac"],
        voltage_max_ratio=value["voltage_max_ratio"],
        link_kind=labels["link.kind"],
        link_bytes_per_s=value["link.bytes_per_s"],
        link_reach=LinkReach(labels["link.reach"]),
        pcie_bytes_per_s=value["pcie.bytes_per_s"],
        allreduce_busbw_frac=_by_count(value, "link.allreduce_busbw_frac"),
        pcie_allreduce_busbw_frac=_by_count(value, "pcie.allreduce_busbw_frac"),
        facts=facts,
        labels=labels,
    )


def _table(value: Mapping[str, float], table: str) -> dict[str, float]:
    return {path: value[f"{table}.{path}"] for path in PATHS if f"{table}.{path}" in value}


def _by_count(value: Mapping[str, float], table: str) -> dict[int, float]:
    prefix = f"{table}."
    counts = sorted(int(key.removeprefix(prefix)) for key in value if key.startswith(prefix))
    return {count: value[f"{prefix}{count}"] for count in counts}


def _default_peak_clocks(value: Mapping[str, float], rates: Mapping[str, float]) -> dict[str, float]:
    """Datasheets quote tensor peaks at a lower clock than vector peaks on some boards."""
    boost_hz = value["boost_clock_hz"]
    tensor_hz = value.get("tensor_peak_clock_hz", boost_hz)
    return {path: tensor_hz if path.endswith(("_tensor", "acc")) else boost_hz for path in rates}

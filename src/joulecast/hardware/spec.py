"""What the model needs to know of a card: frozen records in SI units, each number with its source.

Enters: numbers that `catalogue` read from files. Leaves: `Gpu` and `Link`. This module reads no file
and knows no workload.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf, isfinite
from typing import Final

from joulecast.errors import CatalogueError, PowerLimitError, UsageError
from joulecast.units import GIGA, MEGA

#: The units whose rate a file may give, with fp32 accumulation unless the name says otherwise.
PATHS: Final = (
    "fp32_vector",
    "fp16_vector",
    "bf16_vector",
    "fp64_vector",
    "fp64_tensor",
    "fp32_matrix",
    "tf32_tensor",
    "fp16_tensor",
    "fp16_tensor_fp16acc",
    "bf16_tensor",
    "fp8_tensor",
    "fp8_tensor_fp16acc",
)

_POSITIVE: Final = (
    "n_sms",
    "boost_clock_hz",
    "min_clock_hz",
    "max_clock_hz",
    "memory_bytes",
    "bandwidth_bytes_per_s",
    "l2_bytes",
    "power_limit_w",
    "min_power_limit_w",
    "max_power_limit_w",
    "idle_power_w",
    "waiting_power_w",
    "link_bytes_per_s",
    "pcie_bytes_per_s",
    "voltage_flat_clock_frac",
    "voltage_max_ratio",
)

_ORDERED: Final = (
    ("min_clock_hz", "boost_clock_hz"),
    ("boost_clock_hz", "max_clock_hz"),
    ("min_power_limit_w", "power_limit_w"),
    ("power_limit_w", "max_power_limit_w"),
    ("idle_power_w", "waiting_power_w"),
    ("waiting_power_w", "power_limit_w"),
)


class FactKind(StrEnum):
    """How far a number may be trusted."""

    DATASHEET = "datasheet"
    DERIVED = "derived"
    MEASURED = "measured"
    GUESS = "guess"


class LinkReach(StrEnum):
    """Which cards of a node the fast link joins."""

    NODE = "node"
    PAIR = "pair"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One number of a file, with its origin.

    Attributes
    ----------
    value : float
        In the SI unit that the name of the fact says.
    source : str
        Keys of ``data/sources.toml`` separated by spaces, or the path of a user's file; the rule where
        `kind` is ``guess``.
    kind : FactKind
    """

    value: float
    source: str
    kind: FactKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins the GPUs of a job within one node.

    Attributes
    ----------
    kind : str
        ``none`` (one GPU), ``nvlink``, ``nvlink-bridge``, ``xgmi`` or ``pcie``.
    bytes_per_s : float
        Rate per GPU in each direction. [bytes/s]
    allreduce_busbw_frac : float
        Bus bandwidth of a large all-reduce (nccl-tests convention) over `bytes_per_s`; above 1 where the
        switch reduces. [1]
    is_guess : bool
        Whether that fraction is a guess.
    """

    kind: str
    bytes_per_s: float
    allreduce_busbw_frac: float
    is_guess: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A card, as its sheet and its measurements describe it.

    Attributes
    ----------
    slug, name, vendor, architecture, compute_capability : str
        Key of the catalogue; the driver's name; key of ``data/architectures/``.
    n_sms : int
        Streaming multiprocessors (compute units on AMD, cores on a CPU) in use.
    boost_clock_hz, base_clock_hz, min_clock_hz, max_clock_hz : float
        Core clocks; the base is None where no source gives it. [Hz]
    flop_per_clock_per_sm : mapping of str to float
        Dense rate by unit, keys from `PATHS`; a missing key means that there is no such unit.
        [FLOP/clock]
    peak_clock_hz : mapping of str to float
        The clock at which the published peak of each unit holds. [Hz]
    memory_bytes, bandwidth_bytes_per_s, l2_bytes : float
        Device memory, its peak rate, last-level cache on the die. [bytes], [bytes/s], [bytes]
    power_limit_w, min_power_limit_w, max_power_limit_w : float
        Default power limit of the board, and the range it may be set to. [W]
    idle_power_w, waiting_power_w : float
        No process; a process that keeps the card at full clock and lets it wait. [W]
    voltage_flat_clock_frac : float
        Share of `max_clock_hz` up to which the core voltage stays at its floor. [1]
    voltage_max_ratio : float
        Core voltage at `max_clock_hz` over the floor. [1]
    link_kind, link_bytes_per_s, link_reach : str, float, LinkReach
        The fastest link to other GPUs of the node, per GPU in each direction, and whom it joins.
        [bytes/s]
    pcie_bytes_per_s : float
        To the host, each direction (PCIe, or NVLink-C2C on superchips). [bytes/s]
    allreduce_busbw_frac, pcie_allreduce_busbw_frac : mapping of int to float
        All-reduce bus bandwidth over the rate, by number of GPUs, on the link and over PCIe. [1]
    facts : mapping of str to Fact
        Every number above and the published ones it was checked against, by the key of the file.
    labels : mapping of str to str
        The texts of the file by key: chip, form factor, kind of memory, notes and so on.
    """

    slug: str
    name: str
    vendor: str
    architecture: str
    compute_capability: str
    n_sms: int
    boost_clock_hz: float
    base_clock_hz: float | None = None
    min_clock_hz: float
    max_clock_hz: float
    flop_per_clock_per_sm: Mapping[str, float]
    peak_clock_hz: Mapping[str, float]
    memory_bytes: float
    bandwidth_bytes_per_s: float
    l2_bytes: float
    power_limit_w: float
    min_power_limit_w: float
    max_power_limit_w: float
    idle_power_w: float
    waiting_power_w: float
    voltage_flat_clock_frac: float
    voltage_max_ratio: float
    link_kind: str
    link_bytes_per_s: float
    link_reach: LinkReach
    pcie_bytes_per_s: float
    allreduce_busbw_frac: Mapping[int, float]
    pcie_allreduce_busbw_frac: Mapping[int, float]
    facts: Mapping[str, Fact] = field(default_factory=dict, repr=False)
    labels: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for key in _POSITIVE:
            _require_positive(key, getattr(self, key))
        if self.base_clock_hz is not None:
            _require_positive("base_clock_hz", self.base_clock_hz)
        for table in ("flop_per_clock_per_sm", "peak_clock_hz"):
            for path, value in getattr(self, table).items():
                if path not in PATHS:
                    raise CatalogueError(f"{table}.{path} is no unit; known are {', '.join(PATHS)}")
                _require_positive(f"{table}.{path}", value)
        for table in ("allreduce_busbw_frac", "pcie_allreduce_busbw_frac"):
            for n_gpus, value in getattr(self, table).items():
                _require_positive(f"{table}.{n_gpus}", value)
        for low, high in _ORDERED:
            if getattr(self, low) > getattr(self, high):
                raise CatalogueError(
                    f"{low} ({getattr(self, low):g}) must not exceed {high} ({getattr(self, high):g})"
                )
        if self.voltage_flat_clock_frac > 1 or self.voltage_max_ratio < 1:
            raise CatalogueError("voltage_flat_clock_frac must be <= 1 and voltage_max_ratio >= 1")

    def __hash__(self) -> int:
        return hash((self.slug, self.n_sms, self.power_limit_w))

    @property
    def board(self) -> str:
        """Slug of the card that it is, or that it was changed from."""
        return self.slug.partition("[")[0]

    def as_built(self, key: str, value: float) -> float:
        """Return a fact of the card's file whatever was changed since; ``value`` where the file has none."""
        fact = self.facts.get(key)
        return value if fact is None else fact.value

    @property
    def guesses(self) -> tuple[str, ...]:
        """Names of the facts that no source gives."""
        return tuple(key for key, fact in self.facts.items() if fact.kind is FactKind.GUESS)

    def peak_flop_per_s(self, path: str, clock_hz: float | None = None) -> float:
        """Return the dense peak of a unit. [FLOP/s].

        Parameters
        ----------
        path : str
            One of `PATHS`.
        clock_hz : float, optional
            Core clock; by default the one that belongs to the published peak. [Hz]

        Returns
        -------
        float
            ``n_sms * flop_per_clock_per_sm * clock``; 0 where the card has no such unit.

        Raises
        ------
        UsageError
            `path` is not one of `PATHS`.
        """
        if path not in PATHS:
            raise UsageError(f"no unit {path!r}; known are {', '.join(PATHS)}")
        rate = self.flop_per_clock_per_sm.get(path, 0.0)
        clock = self.peak_clock_hz.get(path, self.boost_clock_hz) if clock_hz is None else clock_hz
        return self.n_sms * rate * clock

    def link_between(self, n_gpus: int, *, bridged: bool = True) -> Link:
        """Return the link that carries the collectives of a job within one node.

        Parameters
        ----------
        n_gpus : int
            GPUs of the job; 1 gives a link of kind ``none`` and infinite rate.
        bridged : bool
            Whether a pair of PCIe cards that can carry an NVLink bridge does.

        Returns
        -------
        Link
            The link of the board where it reaches all of them, else PCIe. The fraction is the one
            tabulated for the largest number of GPUs not above `n_gpus`.

        Raises
        ------
        UsageError
            `n_gpus` is below 1, or above 1 on a device that stands alone.
        """
        if n_gpus < 1:
            raise UsageError(f"the number of GPUs must be at least 1, got {n_gpus}")
        if n_gpus == 1:
            return Link(kind="none", bytes_per_s=inf, allreduce_busbw_frac=1.0, is_guess=False)
        if self.link_kind == "none":
            raise UsageError(f"{self.slug} stands alone: it has no link to a second device")
        is_pair = self.link_reach is LinkReach.PAIR and n_gpus == 2 and bridged  # noqa: PLR2004
        if self.link_reach is LinkReach.NODE or is_pair:
            table, key = self.allreduce_busbw_frac, "link.allreduce_busbw_frac"
            kind, rate = self.link_kind, self.link_bytes_per_s
        else:
            table, key = self.pcie_allreduce_busbw_frac, "pcie.allreduce_busbw_frac"
            kind, rate = "pcie", self.pcie_bytes_per_s
        n_listed = max((n for n in table if n <= n_gpus), default=min(table))
        fact = self.facts.get(f"{key}.{n_listed}")
        is_guess = fact is None or fact.kind is FactKind.GUESS
        return Link(kind=kind, bytes_per_s=rate, allreduce_busbw_frac=table[n_listed], is_guess=is_guess)

    def with_sms(self, n_sms: int) -> "Gpu":
        """Return the card with fewer multiprocessors in use, as a MIG slice or a partition has.

        Memory, bandwidth, cache, clocks and power stay those of the whole card.

        Raises
        ------
        UsageError
            `n_sms` is below 1 or above what the card has.
        """
        if not 1 <= n_sms <= self.n_sms:
            raise UsageError(f"{self.slug} has 1 to {self.n_sms} SMs, got {n_sms}")
        return replace(self, n_sms=n_sms)

    def check_power_limit_w(self, limit_w: float) -> None:
        """Raise `PowerLimitError`, naming the range, if the board cannot be set to a limit. [W]."""
        low, high = self.min_power_limit_w, self.max_power_limit_w
        if not low <= limit_w <= high:
            raise PowerLimitError(
                f"power limit {limit_w:g} W is outside the range of {self.slug}: {low:g} to {high:g} W"
                + self._guess_note("min_power_limit_w", "max_power_limit_w")
            )

    def check_clock_hz(self, clock_hz: float) -> None:
        """Raise `PowerLimitError`, naming the range, if the core cannot run at a clock. [Hz]."""
        low, high = self.min_clock_hz, self.max_clock_hz
        if not low <= clock_hz <= high:
            raise PowerLimitError(
                f"clock {clock_hz / MEGA:g} MHz is outside the range of {self.slug}: "
                f"{low / MEGA:g} to {high / MEGA:g} MHz" + self._guess_note("min_clock_hz", "max_clock_hz")
            )

    def _guess_note(self, *keys: str) -> str:
        guessed = [key for key in keys if key in self.facts and self.facts[key].kind is FactKind.GUESS]
        return f" ({', '.join(guessed)} is a guess)" if guessed else ""

    def describe(self) -> str:
        """Return one line for people: SMs, clock, memory, bandwidth and power limit."""
        return (
            f"{self.name}: {self.n_sms} SMs at {self.boost_clock_hz / MEGA:.0f} MHz, "
            f"{self.memory_bytes / GIGA:.0f} GB at {self.bandwidth_bytes_per_s / GIGA:.0f} GB/s, "
            f"{self.power_limit_w:g} W"
        )


def _require_positive(key: str, value: float) -> None:
    if not (isfinite(value) and value > 0):
        raise CatalogueError(f"{key} must be a number above 0, got {value:g}")

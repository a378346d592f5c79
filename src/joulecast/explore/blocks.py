"""A block of a space as asked for: its batches, limits, clocks and links, and why some cannot be.

In: `Families`, the range of configurations. Out: `Block`, arrays [config]. Predicts nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, Final

import numpy as np

from joulecast.errors import UsageError
from joulecast.explore.families import Families, Family, one_line
from joulecast.explore.space import Integers, batch_size_of
from joulecast.explore.table import TEXT_COLUMNS, Column, texts
from joulecast.model.comm import Ring
from joulecast.model.rows import Booleans
from joulecast.scenario import DEFAULT_BATCH_SIZE, Scenario, settle_gpu
from joulecast.workload.table import Floats


@dataclass(slots=True)
class Block:
    """Configurations as asked for; arrays [config] unless they say [family]."""

    settled: Families
    families: list[Family]
    family_of: Integers
    n_gpus: Integers
    parallel: Column
    micro_batch: Floats
    limit_w: Floats
    locked_hz: Floats
    rings: list[Ring | None]
    ring_number: Integers
    reasons: Column

    def __len__(self) -> int:
        return len(self.family_of)

    @classmethod
    def of(cls, settled: Families, start: int, stop: int) -> "Block":
        """Return the block, with the reason of what cannot be."""
        axes, positions = settled.space.axes, settled.space.positions(start, stop)
        n = len(next(iter(positions.values())))
        keys, shape = settled.family_axes()
        number = np.ravel_multi_index([positions[key] for key in keys], shape)
        numbers, family_of = np.unique(number, return_inverse=True)

        def column(key: str, default: float) -> Floats:
            values = [nan if value is None else float(value) for value in axes.get(key, (default,))]
            return np.array(values)[positions.get(key, np.zeros(n, dtype=np.int64))]

        parallel = texts(axes.get("parallel", (None,)))[
            positions.get("parallel", np.zeros(n, dtype=np.int64))
        ]
        block = cls(
            settled=settled,
            families=[settled.family(int(i)) for i in numbers],
            family_of=family_of,
            n_gpus=np.where(np.isnan(column("n_gpus", 1)), 1, column("n_gpus", 1)).astype(np.int64),
            parallel=parallel,
            micro_batch=np.empty(0),
            limit_w=column("power_limit_w", nan),
            locked_hz=column("sm_clock_hz", nan),
            rings=[],
            ring_number=np.empty(0, dtype=np.int64),
            reasons=texts([""] * n),
        )
        block._take_batches(column("batch_per_gpu", nan), column("global_batch", nan))
        block._take_cards(column("power_limit_frac", nan), numbers)
        block.refuse(np.arange(n), family_of, [family.reason for family in block.families])
        return block

    def of_family(self, values: Sequence[float]) -> Floats:
        """Return a number of each family for its configurations. [config]."""
        return np.array(values, dtype=np.float64)[self.family_of]

    def refuse(self, where: Integers, number: Integers, reasons: Sequence[str]) -> None:
        """Note why some configurations cannot be predicted, where no reason stands yet."""
        given = texts(reasons)[number]
        new = (self.reasons[where] == "") & (given != "")
        self.reasons[where[new]] = given[new]

    def _take_batches(self, per_gpu: Floats, of_job: Floats) -> None:
        accumulate = self.of_family([float(family.asked.get("accumulate", 1)) for family in self.families])
        per_gpu = np.where(np.isnan(of_job), per_gpu, of_job / self.n_gpus)
        micro = np.where(np.isnan(per_gpu), float(DEFAULT_BATCH_SIZE), per_gpu / accumulate)
        self.micro_batch = np.floor(micro)
        bad = np.flatnonzero(micro != self.micro_batch)
        if not bad.size:
            return
        asked = np.stack([per_gpu, of_job, self.n_gpus, accumulate], axis=-1)[bad]
        distinct, number = np.unique(asked, axis=0, return_inverse=True)
        self.refuse(bad, number.ravel(), [_batch_reason(*row) for row in distinct.tolist()])

    def _take_cards(self, fraction: Floats, family_numbers: Integers) -> None:
        """Fill in limits and rings, and refuse what the cards cannot do."""
        known = [family.gpu for family in self.families]
        highest_w = self.of_family([gpu.max_power_limit_w if gpu else nan for gpu in known])
        lowest_w = self.of_family([gpu.min_power_limit_w if gpu else nan for gpu in known])
        default_w = self.of_family([gpu.power_limit_w if gpu else nan for gpu in known])
        asked_w = np.where(np.isnan(fraction), self.limit_w, fraction * highest_w)
        self.limit_w = np.where(np.isnan(asked_w), default_w, asked_w)
        forced = self.of_family([float(bool(family.asked.get("force"))) for family in self.families]) > 0
        self._take_rings(family_numbers)
        over = (asked_w < lowest_w) | (asked_w > highest_w)
        self._refuse_range(over & ~forced, asked_w, "power_limit_w")
        low_hz = self.of_family([gpu.min_clock_hz if gpu else nan for gpu in known])
        high_hz = self.of_family([gpu.max_clock_hz if gpu else nan for gpu in known])
        off = (self.locked_hz < low_hz) | (self.locked_hz > high_hz)
        self._refuse_range(off & ~forced, self.locked_hz, "sm_clock_hz")

    def _refuse_range(self, bad: Booleans, values: Floats, key: str) -> None:
        """Refuse values beyond the card's range, in the words of a single prediction."""
        where = np.flatnonzero(bad)
        if not where.size:
            return
        pairs = np.stack([self.family_of[where].astype(np.float64), values[where]], axis=-1)
        distinct, number = np.unique(pairs, axis=0, return_inverse=True)
        reasons = []
        for i, value in distinct.tolist():
            asked = self.families[int(i)].asked
            names = ("model", "gpu", "hardware", "n_sms")
            reasons.append(_reason({**{k: asked[k] for k in names if k in asked}, key: value}))
        self.refuse(where, number.ravel(), reasons)

    def _take_rings(self, family_numbers: Integers) -> None:
        choices, parallel_number = np.unique(self.parallel.astype(str), return_inverse=True)
        pairs = np.stack([self.family_of, self.n_gpus, parallel_number], axis=-1)
        distinct, number = np.unique(pairs, axis=0, return_inverse=True)
        rings: list[Ring | None] = []
        reasons = []
        for i, n_gpus, p in distinct.tolist():
            family = self.families[i]
            kind = None if choices[p] == "None" else str(choices[p])
            key = (int(family_numbers[i]), n_gpus, -1 if kind is None else ("none", "ddp").index(kind))
            ring = "" if family.gpu is None else self.settled.ring(key, family, n_gpus, kind)
            rings.append(ring if isinstance(ring, Ring) else None)
            reasons.append(ring if isinstance(ring, str) else "")
        self.rings, self.ring_number = rings, number.ravel()
        self.refuse(np.arange(len(self)), self.ring_number, reasons)

    def wrapped(self) -> Booleans:
        """Return whether the module is wrapped for data parallelism. [config]."""
        chosen: Booleans = (self.parallel == "ddp") | ((self.parallel == None) & (self.n_gpus > 1))  # noqa: E711
        return chosen

    def configuration_columns(self) -> dict[str, Column]:
        """Return the columns that echo what was asked."""
        accumulate = self.of_family([float(family.asked.get("accumulate", 1)) for family in self.families])
        per_gpu = self.micro_batch * accumulate
        columns: dict[str, Column] = {
            "n_gpus": self.n_gpus,
            "parallel": np.where(self.wrapped(), "ddp", "none").astype(object),
            "batch_per_gpu": per_gpu,
            "global_batch": per_gpu * self.n_gpus,
            "accumulate": accumulate.astype(np.int64),
            "power_limit_w": self.limit_w,
            "locked_sm_clock_hz": self.locked_hz,
        }
        for name in _FAMILY_COLUMNS:
            values = [_family_value(family, name) for family in self.families]
            if name in TEXT_COLUMNS:
                columns[name] = texts(values)[self.family_of]
            elif name in ("checkpointing", "clip"):
                columns[name] = np.array([bool(value) for value in values])[self.family_of]
            else:
                columns[name] = self.of_family([nan if value is None else value for value in values])
        return columns


_FAMILY_COLUMNS: Final = (
    *("model", "gpu", "gpu_name", "n_sms", "precision", "mode", "seq_len", "image_size", "optimizer"),
    *("memory_format", "attention", "checkpointing", "clip"),
)


def _family_value(family: Family, name: str) -> Any:
    """Return one column of a family: as settled, else as asked."""
    if family.step is None or family.gpu is None:
        return family.asked.get(name)
    of_gpu = {"gpu": family.gpu.slug, "gpu_name": family.gpu.name, "n_sms": family.gpu.n_sms}
    return of_gpu[name] if name in of_gpu else getattr(family.step, name)


def _batch_reason(per_gpu: float, of_job: float, n_gpus: float, accumulate: float) -> str:
    asked = {"n_gpus": int(n_gpus), "accumulate": int(accumulate)}
    batch = {"batch_per_gpu": per_gpu} if np.isnan(of_job) else {"global_batch": of_job}
    try:
        batch_size_of({**asked, **batch})
    except UsageError as error:
        return one_line(error)
    raise AssertionError("a batch that divides was taken for one that does not")


def _reason(asked: Mapping[str, Any]) -> str:
    try:
        settle_gpu(Scenario(**asked))
    except UsageError as error:
        return one_line(error)
    raise AssertionError("a card that can was taken for one that cannot")

"""Families of a space: the configurations that differ in batch, number of GPUs, limits and clocks alone.

In: a `Space`. Out: what a family is, settled by the code that settles a single prediction, or why it
cannot be; the links of its jobs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from joulecast.errors import UnknownNameError, UsageError
from joulecast.explore.space import Space
from joulecast.hardware.spec import Gpu
from joulecast.model.comm import Ring, ring_of
from joulecast.scenario import Scenario, SettledStep, settle_gpu, settle_step

#: Keys that a family has one value of.
_FAMILY_KEYS: Final = (
    *("model", "gpu", "hardware", "n_sms", "mode", "precision", "optimizer", "attention"),
    *("memory_format", "checkpointing", "clip", "image_size", "seq_len", "accumulate", "force"),
)

#: Families that are kept at hand.
_MOST_FAMILIES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the configurations of a family share, or why there are none.

    Attributes
    ----------
    asked : mapping
        Values of `_FAMILY_KEYS`.
    gpu, step : Gpu, SettledStep or None
    reason : str
        Why it cannot be predicted; empty where it can.
    """

    asked: Mapping[str, Any]
    gpu: Gpu | None = None
    step: SettledStep | None = None
    reason: str = ""


@dataclass(slots=True)
class Families:
    """Settles the families of a space; keeps the last ones.

    Attributes
    ----------
    space : Space
    """

    space: Space
    _families: dict[int, Family] = field(default_factory=dict)
    _cards: dict[tuple[int, ...], Ring | str] = field(default_factory=dict)

    def family(self, number: int) -> Family:
        """Return a family by its number: the position of its values, the last key fastest."""
        if number not in self._families:
            if len(self._families) >= _MOST_FAMILIES:
                self._families.clear()
            self._families[number] = self._settled(number)
        return self._families[number]

    def _settled(self, number: int) -> Family:
        keys, shape = self.family_axes()
        places = np.unravel_index(number, shape) if keys else ()
        chosen = {key: self.space.axes[key][i] for key, i in zip(keys, places, strict=True)}
        asked = {key: value for key, value in chosen.items() if value is not None}
        try:
            scenario = Scenario(**asked)
            gpu = settle_gpu(scenario).gpu
            step = settle_step(scenario)
        except UnknownNameError:
            raise
        except UsageError as error:
            return Family(asked=asked, reason=one_line(error))
        return Family(asked=asked, gpu=gpu, step=step)

    def family_axes(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the keys that families differ in, and how many values each has."""
        keys = tuple(key for key in _FAMILY_KEYS if key in self.space.axes)
        return keys, tuple(len(self.space.axes[key]) for key in keys)

    def ring(self, key: tuple[int, ...], family: Family, n_gpus: int, parallel: str | None) -> Ring | str:
        """Return what joins the GPUs of a job of a family's card, or why they cannot."""
        if key not in self._cards:
            try:
                asked = {
                    k: family.asked[k] for k in ("model", "gpu", "hardware", "n_sms") if k in family.asked
                }
                cards = settle_gpu(Scenario(**asked, n_gpus=n_gpus, parallel=parallel))
                self._cards[key] = ring_of(n_gpus, cards.gpu.link_between(n_gpus))
            except UsageError as error:
                self._cards[key] = one_line(error)
        return self._cards[key]


def one_line(error: Exception) -> str:
    """Return the message of an error on one line."""
    return " ".join(str(error).split())

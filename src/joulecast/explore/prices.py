"""What energy and card time cost: prices the user gives, none invented.

In: prices as people state them. Out: `Prices`, per joule and per second.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

from joulecast.errors import UsageError
from joulecast.units import J_PER_KWH, SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices in one currency.

    Attributes
    ----------
    energy_price_per_j : float or None
        Electricity at the meter; None where it is not paid, or not known. [currency/J]
    gpu_price_per_s : float or None
        One GPU for one second, for any card that `gpu_price_per_s_by_gpu` does not name. [currency/s]
    gpu_price_per_s_by_gpu : mapping of str to float
        By slug. [currency/s]
    currency : str
        For people.
    """

    energy_price_per_j: float | None = None
    gpu_price_per_s: float | None = None
    gpu_price_per_s_by_gpu: Mapping[str, float] = field(default_factory=dict)
    currency: str = ""

    def __post_init__(self) -> None:
        named = (self.energy_price_per_j, self.gpu_price_per_s, *self.gpu_price_per_s_by_gpu.values())
        for price in named:
            if price is not None and not (isfinite(price) and price >= 0):
                raise UsageError(f"a price of {price:g} cannot be: give a number of 0 or more")

    def of_gpu(self, slug: str) -> float | None:
        """Return the price of a card's second; None where none is given. [currency/s]."""
        return self.gpu_price_per_s_by_gpu.get(slug, self.gpu_price_per_s)

    @property
    def any_given(self) -> bool:
        """Whether there is a price at all."""
        given = (self.energy_price_per_j, self.gpu_price_per_s, *self.gpu_price_per_s_by_gpu.values())
        return any(price is not None for price in given)


def prices(
    *,
    per_kwh: float | None = None,
    per_gpu_hour: float | None = None,
    per_gpu_hour_by_gpu: Mapping[str, float] | None = None,
    currency: str = "",
) -> Prices:
    """Return prices stated per kWh and per GPU-hour.

    Parameters
    ----------
    per_kwh : float, optional
        Electricity. [currency/kWh]
    per_gpu_hour : float, optional
        An hour of any GPU that the mapping does not name. [currency/h]
    per_gpu_hour_by_gpu : mapping of str to float, optional
        By slug. [currency/h]
    currency : str, optional
    """
    by_gpu = per_gpu_hour_by_gpu or {}
    return Prices(
        energy_price_per_j=None if per_kwh is None else per_kwh / J_PER_KWH,
        gpu_price_per_s=None if per_gpu_hour is None else per_gpu_hour / SECONDS_PER_HOUR,
        gpu_price_per_s_by_gpu={slug: price / SECONDS_PER_HOUR for slug, price in by_gpu.items()},
        currency=currency,
    )

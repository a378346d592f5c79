"""What holds for every quantity and figure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.report.figures import digits, with_prefix
from joulecast.results import Origin, Quantity

positive = st.floats(min_value=1e-9, max_value=1e15)
ratios = st.floats(min_value=0.01, max_value=1.0)


@st.composite
def quantities(draw) -> Quantity:
    value = draw(positive)
    return Quantity(
        value=value, low=value * draw(ratios), high=value / draw(ratios), origin=Origin.CALIBRATED
    )


@given(quantities(), positive)
def test_dividing_twice_returns_the_quantity(quantity, numerator):
    back = quantity.into(numerator).into(numerator)
    assert (back.low, back.value, back.high) == pytest.approx((quantity.low, quantity.value, quantity.high))


@given(quantities(), positive)
def test_scaling_keeps_the_order(quantity, factor):
    scaled = quantity.times(factor)
    assert scaled.low <= scaled.value <= scaled.high


@given(positive)
def test_digits_are_within_half_a_unit_of_the_third(value):
    assert float(digits(value)) == pytest.approx(value, rel=0.0051)


@given(st.floats(min_value=1e-6, max_value=1e14))
def test_prefixed_numbers_read_from_one_to_a_thousand(value):
    number = float(with_prefix(value, "s").split()[0])
    assert 1 <= number <= 1000

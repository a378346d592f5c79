import pytest

from joulecast.report.figures import (
    count,
    digits,
    gibibytes,
    hours,
    interval,
    joined,
    kilowatt_hours,
    megahertz,
    percent,
    ranged,
    with_prefix,
)
from joulecast.results import Origin, Quantity
from joulecast.units import GIB, MIB


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (374.37, "374"),
        (1234567.0, "1230000"),
        (26.638, "26.6"),
        (9.999, "10.0"),
        (999.6, "1000"),
        (0.26638, "0.266"),
        (0.00012345, "0.000123"),
        (-2.5, "-2.50"),
    ],
)
def test_three_digits(value, text):
    assert digits(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.26638, "266 ms"),
        (0.9999, "1.00 s"),
        (3.2e-5, "32.0 us"),
        (0, "0 s"),
        (8.18e9, "8.18 Gs"),
    ],
)
def test_prefix_makes_it_readable(value, text):
    assert with_prefix(value, "s") == text


def test_units_of_people():
    assert gibibytes(22.4 * GIB) == "22.4 GiB"
    assert gibibytes(3 * MIB) == "3.00 MiB"
    assert gibibytes(2048) == "2.00 KiB"
    assert megahertz(1.41e9) == "1410 MHz"
    assert percent(0.4567) == "45.7 %"
    assert hours(5400) == "1.50 h"
    assert kilowatt_hours(3.6e6) == "1.00 kWh"
    assert count(32.0) == "32"
    assert count(21.5) == "21.5"


def test_interval_is_in_the_unit_of_the_value():
    time = Quantity(value=0.2, low=0.1, high=1.5, origin=Origin.CALIBRATED)
    assert ranged(time, "s") == ("200 ms", "100 - 1500")
    assert interval(time, 1) == "0.1 - 1.50"


def test_shares_that_do_not_show_are_left_out():
    assert joined([("compute", 0.9), ("memory", 0.1), ("host", 0.0)]) == "compute 90.0 %, memory 10.0 %"

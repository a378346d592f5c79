"""A finding is reproduced where the predicted values lie in its ranges, whatever their intervals."""

import pytest

from joulecast.explore.findings import Case, Finding, Verdict, mean_ratio
from joulecast.results import Origin, Quantity


def quantity(value, low, high):
    return Quantity(value=value, low=low, high=high, origin=Origin.CALIBRATED)


def case(value, low=1.8, high=2.2):
    return Case(label="x", found=quantity(value, 0.5 * value, 2 * value), low=low, high=high)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((1.8, 2.2), Verdict.REPRODUCED),
        ((1.9, 2.3), Verdict.IN_PART),
        ((1.7, 2.3), Verdict.NOT_REPRODUCED),
    ],
)
def test_the_verdict_counts_the_cases(values, verdict):
    assert Finding(claim="", cases=tuple(case(value) for value in values), why="").verdict is verdict


@pytest.mark.parametrize(("value", "may_hold"), [(4.0, True), (4.5, False), (1.0, True), (0.8, False)])
def test_an_interval_may_hold_what_its_value_does_not(value, may_hold):
    assert not case(value).holds
    assert case(value).may_hold is may_hold  # intervals reach from half to twice the value


def test_the_mean_of_ratios_takes_their_errors_to_go_together():
    mean = mean_ratio([quantity(1.0, 0.5, 2.0), quantity(3.0, 2.5, 5.0)])
    assert (mean.value, mean.low, mean.high) == (2.0, 1.5, 3.5)

"""What holds for every counter and every sensor."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.measure.energy import look_density, mean_bounds, unwrapped_j

steps_j = st.lists(st.floats(min_value=0.0, max_value=99.0), min_size=1, max_size=50)
seconds = st.floats(min_value=1e-4, max_value=20.0)


@given(steps_j, st.floats(min_value=0.0, max_value=99.9))
def test_a_counter_survives_any_number_of_wraps(steps, start_j):
    truth_j = start_j + np.concatenate(([0.0], np.cumsum(steps)))
    counted_j, was_reset = unwrapped_j(truth_j % 100.0, 100.0)
    assert not was_reset
    assert counted_j[-1] == pytest.approx(sum(steps), abs=1e-6) or counted_j[-1] == pytest.approx(
        sum(steps) + 100.0, abs=1e-6
    )  # a step of nothing at the very edge may round across it


@given(steps_j, st.floats(min_value=0.1, max_value=1e3))
def test_a_counter_without_a_range_that_goes_back_was_reset(steps, drop_j):
    counted_j = np.concatenate((1e4 + np.cumsum(steps), [1e4 - drop_j]))
    assert unwrapped_j(counted_j, None)[1]


@given(seconds, st.floats(min_value=1.0, max_value=60.0))
def test_looks_are_on_average_one_per_phase(step_time_s, duration_s):
    density = look_density(step_time_s, duration_s, update_s=0.1, averaging_s=0.025)
    assert density.mean() == pytest.approx(1.0)
    assert (density >= 0).all()


@given(
    seconds,
    st.lists(st.floats(min_value=50.0, max_value=400.0), min_size=64, max_size=64),
)
def test_the_bounds_hold_the_mean_of_any_course(step_time_s, course):
    power_w = np.array(course)
    density = look_density(step_time_s, 20.0, update_s=0.1, averaging_s=0.025)
    low_w, high_w = mean_bounds(float((density * power_w).mean()), density, 50.0, 400.0)
    assert low_w - 1e-6 <= power_w.mean() <= high_w + 1e-6
    assert 50.0 - 1e-6 <= low_w <= high_w <= 400.0 + 1e-6


@given(st.floats(min_value=50.0, max_value=400.0))
def test_who_sees_everything_knows_the_mean(seen_w):
    assert mean_bounds(seen_w, np.ones(64), 50.0, 400.0) == pytest.approx((seen_w, seen_w))

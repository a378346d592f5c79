import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.explore.pareto import pareto_front
from joulecast.explore.ranking import SHARED_FRACS, TIME_ENERGY_CORRELATION, draw_errors


def test_a_front_by_hand():
    costs = np.array([[1.0, 5.0], [2.0, 3.0], [2.0, 4.0], [3.0, 3.0], [4.0, 1.0], [2.0, 3.0]])
    assert pareto_front(costs).tolist() == [True, True, False, False, True, True]


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=40))
def test_no_member_is_beaten_and_every_other_is(rows):
    costs = np.array(rows, dtype=float)
    on_front = pareto_front(costs)
    beaten = [any(np.all(other <= row) and np.any(other < row) for other in costs) for row in costs]
    assert on_front.tolist() == [not is_beaten for is_beaten in beaten]


@given(st.permutations(range(12)))
def test_the_order_of_rows_does_not_matter(order):
    costs = np.random.default_rng(3).integers(0, 9, size=(12, 3)).astype(float)
    assert pareto_front(costs[list(order)]).tolist() == pareto_front(costs)[list(order)].tolist()


# --- draws ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def draws():
    """Five configurations: the first two differ in their limit, then in precision, card and model."""
    levels = [
        np.array(labels)
        for labels in (
            ["bert", "bert", "bert", "bert", "gpt2"],
            ["a100", "a100", "a100", "t4", "t4"],
            ["bf16", "bf16", "fp32", "fp32", "fp32"],
            ["x", "x", "y", "y", "y"],
        )
    ]
    return draw_errors(levels, n_draws=40_000, random=np.random.default_rng(1))


def test_configurations_share_the_errors_of_their_levels(draws):
    time_z, energy_z = draws
    for z in (time_z, energy_z):
        assert z.std(axis=0) == pytest.approx(1.0, abs=0.02)
        correlation = np.corrcoef(z.T)[0]
        expected = [1.0, SHARED_FRACS[3], SHARED_FRACS[1], SHARED_FRACS[0], 0.0]
        assert correlation == pytest.approx(expected, abs=0.02)


def test_time_and_energy_go_together(draws):
    time_z, energy_z = draws
    assert np.corrcoef(time_z[:, 0], energy_z[:, 0])[0, 1] == pytest.approx(TIME_ENERGY_CORRELATION, abs=0.01)


def test_a_label_counts_together_with_the_coarser_ones():
    """One card's name under two models is not one group."""
    levels = [np.array(["bert", "gpt2"]), *[np.array(["same", "same"])] * 3]
    time_z, _ = draw_errors(levels, n_draws=20_000, random=np.random.default_rng(2))
    assert abs(np.corrcoef(time_z.T)[0, 1]) < 0.03

from dataclasses import dataclass

import numpy as np
import pytest

from joulecast.calibrate.posterior import (
    NOISE,
    UNTOUCHED,
    Prior,
    determined,
    folds_of,
    most_probable,
    prior_of,
    slopes,
    stepped,
)
from joulecast.model.parameters import definition, initial_parameters

START = dict(initial_parameters().values)
TWO = ("host.step_s", "host.copy_kernel_s")


@dataclass(frozen=True)
class Line:
    """log ratio = offset - slope x (relative move of each parameter): everything by hand."""

    offset: np.ndarray
    slope: np.ndarray  # [observation, parameter]
    names: tuple[str, ...] = TWO

    @property
    def fold(self):
        return np.arange(len(self.offset))

    def log_ratios(self, values):
        moves = np.array([values[name] / START[name] - 1.0 for name in self.names])
        return self.offset - self.slope @ moves


def test_slopes_are_per_standard_deviation_of_the_prior():
    line = Line(np.zeros(2), np.array([[1.0, 0.0], [0.5, 2.0]]))
    found = slopes(line, START, prior_of(TWO, START, 0.3))
    np.testing.assert_allclose(found, [[-0.3, 0.0], [-0.15, -0.6]], atol=1e-9)


def test_one_value_moves_one_parameter_as_the_formula_says():
    # posterior mean of a unit prior and one value of noise NOISE: z = g r / (g^2 + NOISE^2)
    line = Line(np.array([0.03]), np.array([[1.0]]), TWO[:1])
    prior = prior_of(TWO[:1], START, 0.2)
    found = most_probable(line, START, prior, slopes(line, START, prior))
    move = found[TWO[0]] / START[TWO[0]] - 1.0
    by_hand = 0.2 * (0.2 * 0.03) / (0.2**2 + NOISE**2)
    assert move == pytest.approx(by_hand, rel=0.02), "the robust loss changes 3 % by little"


def test_what_no_value_depends_on_is_left():
    names, left = determined(np.array([[-0.5, 0.0]] * 4), TWO)
    assert names == ["host.step_s"]
    assert left == {"host.copy_kernel_s": UNTOUCHED}


def test_two_parameters_with_one_effect_are_not_told_apart():
    names, left = determined(np.array([[-0.5, -0.5]] * 6), TWO)
    assert names == ["host.step_s"]
    assert left["host.copy_kernel_s"] == "cannot be told from host.step_s"


def test_a_weak_effect_is_left_with_its_number():
    slope = np.array([[NOISE / 2]] * 2)  # information 2 x 0.25: spread 1 / sqrt(1.5) = 82 %
    names, left = determined(slope, TWO[:1])
    assert names == []
    assert left["host.step_s"] == "the data narrow it to 82% of what was known before, 70% needed"


def test_two_values_determine_one_parameter_at_most():
    _, left = determined(np.array([[-1.0, 0.0], [0.0, -1.0]]), TWO)
    assert "2 measured values determine no more than 1" in left["host.copy_kernel_s"]


def test_a_step_takes_no_account_of_rows_held_out():
    line = Line(np.array([0.1, 0.1, 5.0]), np.ones((3, 1)), TWO[:1])
    prior = prior_of(TWO[:1], START, 0.5)
    slope = slopes(line, START, prior)
    without = stepped(line, START, prior, slope, np.array([True, True, False]))
    two = Line(np.array([0.1, 0.1]), np.ones((2, 1)), TWO[:1])
    alone = stepped(two, START, prior, slope[:2], np.array([True, True]))
    assert without == pytest.approx(alone)


def test_values_stay_within_bounds():
    line = Line(np.full(20, 3.0), np.full((20, 1), 1.0), ("bandwidth.elementwise",))
    start = {**START, "bandwidth.elementwise": definition("bandwidth.elementwise").high}
    prior = prior_of(("bandwidth.elementwise",), start, 0.5)
    found = most_probable(line, start, prior, slopes(line, start, prior))
    assert found["bandwidth.elementwise"] <= definition("bandwidth.elementwise").high


def test_a_parameter_at_zero_may_move():
    prior = prior_of(("attention.score_cycles",), {"attention.score_cycles": 0.0}, 0.5)
    assert prior.spread[0] == pytest.approx(0.5 * 0.02 * 1.0)
    assert isinstance(prior.chosen(("attention.score_cycles",)), Prior)


def test_followers_move_in_proportion():
    followers = {"host.forward_kernel_s": ("host.backward_kernel_s",)}
    prior = prior_of(("host.forward_kernel_s",), START, 0.5, followers)
    moved = prior.values(np.array([1.0]))
    for name in ("host.forward_kernel_s", "host.backward_kernel_s"):
        assert moved[name] == pytest.approx(1.5 * START[name])
    assert prior.moved == tuple(moved)


def test_equal_keys_share_a_fold_and_few_keys_have_one_each():
    folds = folds_of(["a", "b", "a", "c"], seed=3, most=12)
    assert folds[0] == folds[2]
    assert len(set(folds.tolist())) == 3
    assert set(folds_of(range(100), seed=0, most=12).tolist()) == set(range(12))

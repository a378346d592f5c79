import numpy as np
import pytest

from joulecast.calibrate.intervals import (
    FEWEST_ROWS,
    HeldOutRows,
    conformal_quantiles,
    fit_intervals,
    fit_scale,
    interval_quality,
    source_weights,
)
from joulecast.model.intervals import FEATURES, guessed_spread


def held_out(log_ratio, quantity="time", source="a", group=None, **features):
    n_rows = len(log_ratio)
    return HeldOutRows(
        quantity=np.full(n_rows, quantity),
        log_ratio=np.asarray(log_ratio, dtype=float),
        features={name: np.asarray(features.get(name, np.zeros(n_rows)), dtype=float) for name in FEATURES},
        source=np.broadcast_to(np.asarray(source), n_rows).astype(str),
        group=np.arange(n_rows).astype(str) if group is None else np.asarray(group).astype(str),
    )


def test_conformal_quantiles_by_hand():
    # 39 scores 1..39: ceil(40 x 0.95) = 38th smallest above; by symmetry the 2nd smallest below
    assert conformal_quantiles(np.arange(1.0, 40.0)) == (2.0, 38.0)
    # 19 scores: ceil(20 x 0.95) = 19th, the largest
    assert conformal_quantiles(np.arange(1.0, 20.0)) == (1.0, 19.0)
    # fewer than 19 cannot state 90 %: the extremes
    assert conformal_quantiles(np.array([3.0, 1.0, 2.0])) == (1.0, 3.0)


def test_weights_count_as_copies_of_a_row():
    scores = np.array([1.0, 2.0, 3.0])
    copied = np.repeat(scores, [50, 30, 20])
    weights = np.array([50.0, 30.0, 20.0])
    assert conformal_quantiles(scores, weights) == conformal_quantiles(copied)


def test_a_source_counts_as_the_root_of_its_rows():
    weights = source_weights(np.array(["a"] * 100 + ["b"] * 4))
    assert weights[:100].sum() / weights[100:].sum() == pytest.approx(10 / 2)
    assert weights.mean() == pytest.approx(1.0)


def test_the_scale_is_found():
    random = np.random.default_rng(1)
    host = random.uniform(0, 1, 4000)
    ratio = random.laplace(0.0, 0.05 * np.exp(1.2 * host))
    intercept, weights = fit_scale(held_out(ratio, host=host))
    assert np.exp(intercept) == pytest.approx(0.05, rel=0.1)
    assert weights["host"] == pytest.approx(1.2, abs=0.15)
    assert weights["unseen_range"] > 0, "what no row shows widens all the same"


def test_novelty_never_narrows():
    random = np.random.default_rng(2)
    unseen = random.integers(0, 2, 500)
    ratio = random.laplace(0.0, np.where(unseen == 1, 0.02, 0.2))  # luckier on unseen cards
    _, weights = fit_scale(held_out(ratio, unseen_gpu=unseen))
    assert weights["unseen_gpu"] == 0.0


def test_intervals_are_narrow_where_the_model_is_good_and_cover_where_not():
    random = np.random.default_rng(3)
    host, n_rows = random.integers(0, 2, 2000), 2000
    ratio = random.normal(0.0, np.where(host == 1, 0.3, 0.03))
    rows = held_out(ratio, host=host, source=np.where(host == 1, "noisy", "clean"))
    model = fit_intervals(rows)
    everywhere, clean, noisy = (q for q in interval_quality(rows, model) if q.quantity == "time")
    assert (clean.source, noisy.source) == ("clean", "noisy")
    assert everywhere.n_rows == n_rows
    assert 0.87 <= everywhere.coverage <= 0.95
    assert min(clean.coverage, noisy.coverage) >= 0.75
    assert clean.median_high_over_low < 1.25 < noisy.median_high_over_low


def test_sides_differ_where_residuals_do():
    ratio = np.concatenate([np.linspace(-0.05, 0, 200), np.linspace(0, 0.4, 200)])
    low, high = fit_intervals(held_out(ratio)).bounds("time", held_out([0.0]).features)
    assert high[0] > 5 * -low[0] > 0


def test_the_source_that_is_served_worst_has_its_three_quarters():
    random = np.random.default_rng(4)
    ratio = np.concatenate([random.normal(0, 0.02, 1000), random.normal(0.5, 0.02, 20)])
    rows = held_out(ratio, source=["many"] * 1000 + ["few"] * 20)
    few = next(q for q in interval_quality(rows, fit_intervals(rows)) if q.source == "few")
    assert few.coverage >= 0.75


def test_too_few_rows_leave_a_guess():
    model = fit_intervals(held_out(np.zeros(FEWEST_ROWS - 1)))
    assert model.spreads["time"] == guessed_spread("time")
    assert model.spreads["time"].n_rows == 0


def test_rows_without_a_measurement_do_not_count():
    rows = held_out([*np.linspace(-0.1, 0.1, 40), np.nan, np.nan])
    assert fit_intervals(rows).spreads["time"].n_rows == 40

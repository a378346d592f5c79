import numpy as np
import pytest

from joulecast.model.intervals import FEATURES, NOVELTY, IntervalModel, Spread, guessed_intervals


def features(**given):
    """Return features of as many steps as are given; 0 where nothing is said."""
    n_steps = len(next(iter(given.values())))
    return {name: np.asarray(given.get(name, np.zeros(n_steps)), dtype=float) for name in FEATURES}


def test_bounds_by_hand():
    time = Spread(intercept=np.log(0.1), weights={"host": np.log(2.0)}, low=-1.0, high=3.0, n_rows=50)
    power = Spread(intercept=np.log(0.05), low=-1.0, high=1.0, n_rows=50)
    energy = Spread(intercept=0.0, low=-2.0, high=1.0, n_rows=50)
    model = IntervalModel(spreads={"time": time, "power": power, "energy": energy})
    asked = features(host=[0.0, 1.0, 0.5])

    low, high = model.bounds("time", asked)
    np.testing.assert_allclose(low, [-0.1, -0.2, -0.1 * np.sqrt(2)])
    np.testing.assert_allclose(high, [0.3, 0.6, 0.3 * np.sqrt(2)])
    low, _ = model.bounds("energy", asked)
    np.testing.assert_allclose(low[0], -2.0 * np.hypot(0.1, 0.05))


def test_an_interval_holds_the_prediction_even_where_all_residuals_lie_on_one_side():
    spread = Spread(intercept=0.0, low=0.2, high=0.5, n_rows=50)
    low, high = IntervalModel(spreads={"memory": spread}).bounds("memory", features(host=[0.0]))
    assert (low[0], high[0]) == (0.0, 0.5)


@pytest.mark.parametrize("name", NOVELTY)
@pytest.mark.parametrize("quantity", ["time", "power", "energy", "process"])
def test_guesses_widen_on_what_is_unseen(name, quantity):
    low, high = guessed_intervals().bounds(quantity, features(**{name: [0.0, 1.0]}))
    assert high[1] > high[0] > 0 > low[0] > low[1]

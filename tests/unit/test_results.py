import json

import pytest

from joulecast.errors import MissingExtraError, UsageError
from joulecast.results import QUANTITIES, Origin, Predictions, Quantity


def test_interval_must_hold_the_value():
    with pytest.raises(ValueError, match="does not hold"):
        Quantity(value=3.0, low=1.0, high=2.0, origin=Origin.MEASURED)


def test_dividing_turns_the_interval_round():
    time = Quantity(value=0.5, low=0.25, high=1.0, origin=Origin.CALIBRATED)
    rate = time.into(10)
    assert (rate.value, rate.low, rate.high) == (20.0, 10.0, 40.0)
    assert rate.origin is Origin.CALIBRATED
    assert time.times(4).high == 4.0


def test_dividing_by_an_interval_that_reaches_zero_has_no_upper_end():
    assert Quantity(value=1.0, low=0.0, high=2.0, origin=Origin.DATASHEET).into(1).high == float("inf")


def test_forecast_counts_the_last_batch_whole(make_prediction):
    run = make_prediction().forecast(n_samples=65, n_epochs=3)  # 64 samples a step: 2 steps an epoch
    assert run.n_steps == 6
    assert run.run_time_s.value == pytest.approx(0.6)
    assert run.run_energy_j.high == pytest.approx(6 * 66)


@pytest.mark.parametrize(("n_samples", "n_epochs"), [(0, 1), (1, 0), (-5, 1)])
def test_forecast_refuses_an_empty_run(make_prediction, n_samples, n_epochs):
    with pytest.raises(UsageError, match="at least 1"):
        make_prediction().forecast(n_samples=n_samples, n_epochs=n_epochs)


def test_document_holds_every_quantity_in_one_form(make_prediction):
    document = Predictions([make_prediction()]).to_dict()
    assert document["schema"] == "joulecast/predictions/1"
    (plain,) = document["predictions"]
    for name in QUANTITIES:
        assert set(plain[name]) == {"value", "low", "high", "origin"}, name
    assert plain["peak_memory_bytes"] == plain["allocated_bytes"]
    assert plain["bound_by"] == "compute"
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_row_is_flat(make_prediction):
    prediction = make_prediction(tokens_per_s=None, flags=("one", "two"))
    row = prediction.to_row()
    assert row["low_step_time_s"] == pytest.approx(0.09)
    assert row["tokens_per_s"] is row["high_tokens_per_s"] is None
    assert row["flags"] == "one; two"
    assert not any(isinstance(value, (dict, list)) for value in row.values())


def test_row_of_a_whole_run(make_prediction):
    prediction = make_prediction(whole_run=make_prediction().forecast(n_samples=64))
    assert prediction.to_row()["n_steps"] == 1
    assert prediction.to_dict()["whole_run"]["run_energy_j"]["value"] == pytest.approx(60)


def test_predictions_are_a_sequence(make_prediction):
    predictions = Predictions([make_prediction(n_gpus=1), make_prediction()])
    assert len(predictions) == 2
    assert predictions[1].n_gpus == 2
    assert [p.n_gpus for p in predictions[:1]] == [1]
    assert "Predictions" in repr(predictions)


def test_frame_has_a_row_per_prediction(make_prediction):
    pytest.importorskip("pandas")
    frame = Predictions([make_prediction()] * 3).to_frame()
    assert frame.shape[0] == 3
    assert frame["mean_power_w"].iloc[0] == pytest.approx(300)


def test_frame_without_pandas_says_what_to_install(make_prediction, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"joulecast\[data\]"):
        Predictions([make_prediction()]).to_frame()


def test_a_ratio_adds_independent_errors_as_squares_on_the_log_scale():
    one = Quantity(value=8.0, low=4.0, high=16.0, origin=Origin.CALIBRATED)  # a factor of 2 either way
    other = Quantity(value=2.0, low=1.0, high=4.0, origin=Origin.DATASHEET)

    ratio = one.over(other)

    assert (ratio.value, ratio.origin) == (4.0, Origin.DATASHEET)
    assert ratio.high == pytest.approx(4.0 * 2 ** (2**0.5))
    assert ratio.low == pytest.approx(4.0 / 2 ** (2**0.5))


@pytest.mark.parametrize(("shared_frac", "exponent"), [(0.0, 2**0.5), (0.5, 1.0), (1.0, 0.0)])
def test_what_two_errors_share_leaves_their_ratio(shared_frac, exponent):
    one = Quantity(value=8.0, low=4.0, high=16.0, origin=Origin.CALIBRATED)
    other = Quantity(value=2.0, low=1.0, high=4.0, origin=Origin.CALIBRATED)

    assert one.over(other, shared_frac).high == pytest.approx(4.0 * 2**exponent)


def test_a_ratio_to_what_may_be_zero_has_no_upper_end():
    one = Quantity(value=1.0, low=1.0, high=1.0, origin=Origin.CALIBRATED)
    other = Quantity(value=1.0, low=0.0, high=2.0, origin=Origin.CALIBRATED)

    assert one.over(other, 0.9).high == float("inf")


def test_a_ratio_to_itself_is_exact_however_uneven_the_interval():
    one = Quantity(value=2.0, low=1.9, high=8.0, origin=Origin.CALIBRATED)
    ratio = one.over(one, 1.0)
    assert (ratio.low, ratio.value, ratio.high) == (1.0, 1.0, 1.0)


def test_what_is_in_common_moves_uneven_intervals_by_their_difference():
    one = Quantity(value=1.0, low=0.5, high=8.0, origin=Origin.CALIBRATED)
    other = Quantity(value=1.0, low=0.25, high=2.0, origin=Origin.CALIBRATED)
    # both up: 8 over 2; both down: 0.5 over 0.25; nothing takes the ratio below 1
    ratio = one.over(other, 1.0)
    assert (ratio.low, ratio.high) == (pytest.approx(1.0), pytest.approx(4.0))

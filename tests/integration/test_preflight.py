"""What people ask before a run: which of two models, how many epochs, what a sweep of trials costs."""

import pytest

import joulecast

N_SAMPLES = 88_000


def forecast(model, n_epochs):
    (prediction,) = joulecast.predict(
        model, gpu="a100-sxm4-40gb", precision="bf16", batch_size=32, seq_len=384
    )
    return prediction.forecast(n_samples=N_SAMPLES, n_epochs=n_epochs)


def test_fifty_epochs_or_a_hundred():
    fifty, hundred = forecast("bert-base", 50), forecast("bert-base", 100)

    assert hundred.run_energy_j.value == pytest.approx(2 * fifty.run_energy_j.value)
    assert hundred.run_time_s.high == pytest.approx(2 * fifty.run_time_s.high)


def test_base_or_large():
    base, large = forecast("bert-base", 3), forecast("bert-large", 3)

    assert 2 < large.run_energy_j.value / base.run_energy_j.value < 5  # 3.5 times the FLOP
    assert base.run_energy_j.low < base.run_energy_j.value < base.run_energy_j.high


def test_a_sweep_of_two_hundred_trials():
    one = forecast("bert-base", 3)
    n_steps = -(-N_SAMPLES // 32) * 3

    sweep_j = 200 * one.run_energy_j.value
    assert one.n_steps == n_steps
    # between a card that only idles and one at its limit for as long
    assert 200 * one.run_time_s.value * 50 < sweep_j < 200 * one.run_time_s.value * 400

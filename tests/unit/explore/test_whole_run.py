from datetime import datetime

import pytest

from joulecast.errors import UsageError
from joulecast.explore.carbon import load_grid
from joulecast.explore.prices import prices
from joulecast.explore.whole_run import Embodied, RunInputs, Site, TrainingPlan, cost, run_cost
from joulecast.hardware.catalogue import load_gpu
from joulecast.results import Origin
from joulecast.units import J_PER_KWH, SECONDS_PER_HOUR

# make_prediction: 64 samples a step, 0.1 s, 60 J, two cards, each with 10 % either way
GPU = load_gpu("a100-sxm4-40gb")


def run(make_prediction, site=None, changes=None, **plan):
    inputs = RunInputs(
        training=make_prediction(**(changes or {})),
        gpu=GPU,
        evaluation=make_prediction(mode="forward", **(changes or {})),
        checkpoint_bytes=5e9,
    )
    return run_cost(inputs, TrainingPlan(**plan), site or Site())


def ends(quantity):
    return quantity.low, quantity.value, quantity.high


def test_an_epoch_is_whole_steps(make_prediction):
    found = run(make_prediction, n_samples=130, n_epochs=2)  # 3 steps each
    assert found.n_steps == 6
    assert ends(found.run_time_s) == pytest.approx((0.54, 0.6, 0.66))
    assert ends(found.gpu_time_s) == pytest.approx((1.08, 1.2, 1.32))
    assert ends(found.gpu_energy_j) == pytest.approx((324, 360, 396))
    assert found.run_time_s.origin is Origin.CALIBRATED
    assert found.facility_energy_j == found.gpu_energy_j


def test_tokens_count_by_the_sequence(make_prediction):
    found = run(make_prediction, n_tokens=64 * 128 * 10)
    assert found.n_steps == 10


def test_tokens_need_a_model_that_reads_them(make_prediction):
    with pytest.raises(UsageError, match="reads no sequences"):
        run(make_prediction, changes={"seq_len": None}, n_tokens=1e6)


def test_early_stopping_widens_the_interval_to_both_ends(make_prediction):
    found = run(make_prediction, n_samples=64, n_epochs=50, stop_epochs=(8, 24))
    assert (found.low_n_steps, found.n_steps, found.high_n_steps) == (8, 16, 24)
    assert ends(found.run_time_s) == pytest.approx((8 * 0.09, 16 * 0.1, 24 * 0.11))


def test_evaluation_adds_forward_steps_after_each_epoch(make_prediction):
    found = run(make_prediction, n_samples=640, n_epochs=3, eval_samples=65)
    training, evaluation = found.parts
    assert (training.n_steps, evaluation.n_steps) == (30, 6)
    assert found.run_time_s.value == pytest.approx(3.6)
    assert (
        run(make_prediction, n_samples=640, n_epochs=3, eval_samples=65, n_evaluations=1).parts[1].n_steps
        == 2
    )


def test_a_checkpoint_takes_its_bytes_over_the_rate_while_the_cards_wait(make_prediction):
    found = run(make_prediction, n_samples=64, n_checkpoints=2, checkpoint_bytes_per_s=1e9)
    (_, checkpoints) = found.parts
    assert checkpoints.time_s.value == pytest.approx(10)
    assert checkpoints.energy_j.value == pytest.approx(10 * 2 * GPU.waiting_power_w)


def test_a_slow_loader_bounds_the_step_and_the_cards_wait(make_prediction):
    found = run(make_prediction, n_samples=64, loader_samples_per_s=64 / 0.105)
    assert ends(found.run_time_s) == pytest.approx((0.105, 0.105, 0.11))
    waiting_w = 2 * GPU.waiting_power_w
    assert ends(found.gpu_energy_j) == pytest.approx((54, 60 + 0.005 * waiting_w, 66 + 0.015 * waiting_w))
    assert any("data loader bounds training" in flag for flag in found.flags)


def test_a_fast_loader_changes_nothing(make_prediction):
    assert (
        run(make_prediction, n_samples=64, loader_samples_per_s=1e6).gpu_energy_j
        == run(make_prediction, n_samples=64).gpu_energy_j
    )


def test_trials_multiply_everything(make_prediction):
    plan = {"n_samples": 640, "eval_samples": 64, "n_checkpoints": 1, "checkpoint_bytes_per_s": 1e9}
    one, many = (run(make_prediction, n_trials=n, **plan) for n in (1, 200))
    for name in ("run_time_s", "gpu_energy_j"):
        assert ends(getattr(many, name)) == pytest.approx([200 * x for x in ends(getattr(one, name))])
    assert many.n_steps == 200 * one.n_steps


def test_the_rest_of_the_node_and_the_pue_count_where_they_are_given(make_prediction):
    site = Site(pue=1.5, node_gpus=8, host_power_w=400)
    found = run(make_prediction, site, n_samples=64)
    node_j = 0.1 * (6 * GPU.idle_power_w + 400)
    assert found.node_energy_j.value == pytest.approx(node_j)
    assert found.facility_energy_j.value == pytest.approx(1.5 * (60 + node_j))
    assert not any("not counted" in flag for flag in found.flags)


def test_nothing_is_assumed_about_the_place(make_prediction):
    found = run(make_prediction, n_samples=64)
    assert (found.node_energy_j, found.co2e_kg, found.embodied_co2e_kg, found.cost) == (None,) * 4
    assert sum("not counted" in flag for flag in found.flags) == 2


def test_co2e_is_of_the_facility_and_names_its_source(make_prediction):
    found = run(make_prediction, Site(pue=2.0, grid=load_grid("FR")), n_samples=64)
    assert found.co2e_kg.value == pytest.approx(120 * load_grid("FR").kg_per_j)
    document = found.to_dict()
    assert "France" in document["intensity_source"]
    assert document["intensity_year"].isdigit()


def test_a_series_needs_no_start_but_takes_one(make_prediction, tmp_path):
    path = tmp_path / "grid.csv"
    path.write_text("timestamp,gco2e_per_kwh\n2026-03-01T00:00,100\n2026-03-01T01:00,300\n")
    anywhen, at_one = (
        run(make_prediction, Site(grid=load_grid(str(path)), start=start), n_samples=64).co2e_kg
        for start in (None, datetime(2026, 3, 1, 1))
    )
    assert anywhen.value == pytest.approx(60 / J_PER_KWH * 0.2)
    assert anywhen.low == pytest.approx(54 / J_PER_KWH * 0.1)
    assert at_one.value == pytest.approx(60 / J_PER_KWH * 0.3)


def test_embodied_gases_stand_apart(make_prediction):
    site = Site(grid=load_grid("100"), embodied=Embodied(gpu_kg=150, lifetime_s=1e6))
    found = run(make_prediction, site, n_samples=64)
    assert found.embodied_co2e_kg.value == pytest.approx(150 * 0.2 / 1e6)
    assert found.co2e_kg.value == pytest.approx(60 / J_PER_KWH * 0.1)


def test_money_is_electricity_at_the_meter_and_card_time(make_prediction):
    paid = prices(per_kwh=0.3, per_gpu_hour=2.0, per_gpu_hour_by_gpu={"t4": 9.0}, currency="EUR")
    found = run(make_prediction, Site(pue=1.5, prices=paid), n_samples=64)
    assert found.electricity_cost.value == pytest.approx(90 / J_PER_KWH * 0.3)
    assert found.gpu_cost.value == pytest.approx(0.2 / SECONDS_PER_HOUR * 2.0)
    assert found.cost.value == pytest.approx(found.electricity_cost.value + found.gpu_cost.value)
    assert found.currency == "EUR"


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({}, "either samples"),
        ({"n_samples": 10, "n_tokens": 10}, "either samples"),
        ({"n_samples": 0}, "n_samples is 0"),
        ({"n_samples": 10, "n_epochs": 3, "stop_epochs": (2, 5)}, "early stopping"),
        ({"n_samples": 10, "n_epochs": 3, "stop_epochs": (3, 2)}, "early stopping"),
        ({"n_tokens": 1e6, "n_epochs": 2}, "leave out epochs"),
        ({"n_tokens": 1e6, "eval_samples": 5}, "how many evaluation passes"),
        ({"n_samples": 10, "n_checkpoints": 1}, "rate"),
        ({"n_samples": 10, "loader_samples_per_s": 0}, "loader_samples_per_s is 0"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(plan, message):
    with pytest.raises(UsageError, match=message):
        TrainingPlan(**plan)


@pytest.mark.parametrize(
    ("site", "message"),
    [({"pue": 0.9}, "PUE"), ({"pue": float("nan")}, "PUE"), ({"host_power_w": -1.0}, "-1 W")],
)
def test_a_site_that_cannot_be_is_refused(site, message):
    with pytest.raises(UsageError, match=message):
        Site(**site)


def test_a_node_smaller_than_the_job_is_refused(make_prediction):
    with pytest.raises(UsageError, match="node of 1"):
        run(make_prediction, Site(node_gpus=1), n_samples=64)


def test_a_price_below_0_is_refused():
    with pytest.raises(UsageError, match="price of"):
        prices(per_kwh=-0.1)


# --- of real models -------------------------------------------------------------------------------


def test_the_question_before_training_is_answered():
    """Base or large, 50 or 100 epochs, a search of 200 trials: the order is what counts."""

    def energy_j(model, n_epochs, n_trials=1):
        plan = TrainingPlan(n_samples=88_000, n_epochs=n_epochs, n_trials=n_trials)
        (found,) = cost(model, gpu="a100-sxm4-40gb", precision="bf16", plan=plan)
        return found.gpu_energy_j.value

    base = energy_j("bert-base", 50)
    assert energy_j("bert-base", 100) == pytest.approx(2 * base)
    assert 2 < energy_j("bert-large", 50) / base < 5
    assert energy_j("bert-base", 50, n_trials=200) == pytest.approx(200 * base)


def test_evaluation_of_a_model_keeps_its_head_and_is_cheaper_than_training():
    plan = TrainingPlan(n_samples=3200, eval_samples=3200)
    for model in ("bert-base", "resnet50"):
        (found,) = cost(model, gpu="a100-sxm4-40gb", plan=plan)
        training, evaluation = found.parts
        assert training.n_steps == evaluation.n_steps
        assert evaluation.time_s.value < 0.6 * training.time_s.value


def test_energy_stays_below_the_limit_times_the_time():
    (found,) = cost("bert-base", gpu="t4", plan=TrainingPlan(n_samples=3200))
    assert found.gpu_energy_j.value <= found.gpu_time_s.value * found.training.power_limit_w * 1.0001

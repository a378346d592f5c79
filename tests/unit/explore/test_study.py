"""A study predicts what it plans, and its ratios are those of its predictions."""

import pytest

import joulecast
from joulecast.errors import UnknownModelError, UsageError
from joulecast.explore.anatomy import MEMORY_PARTS, VECTOR, anatomy
from joulecast.explore.study import (
    SHARED_BY_CARD,
    StudyPlan,
    comparable,
    gains,
    limit_choices,
    scaling,
    sharing,
    study,
)
from joulecast.model.parameters import load_parameters
from joulecast.scenario import Scenario

GPU = "a100-sxm4-40gb"


@pytest.fixture(scope="module")
def found():
    return study(
        StudyPlan(
            models=("resnet50", "distilbert", "albert"),
            gpu=GPU,
            n_gpus=(1, 2),
            precisions=("fp32", "bf16"),
            batch_size={"": 16, "resnet50": 8},
        )
    )


class TestPlan:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"models": ()}, "a study needs models"),
            ({"precisions": ()}, "a study needs precisions"),
            ({"models": ("resnet50", "resnet50")}, "models given twice"),
            ({"n_gpus": (1, 1)}, "n gpus given twice: 1, 1"),
            ({"batch_size": {"vgg16": 8}}, "batch size given for vgg16, not in the study"),
            ({"options": {"batch": 8}}, "unknown option batch"),
        ],
    )
    def test_refuses_what_cannot_be(self, changes, message):
        with pytest.raises(UsageError, match=message):
            StudyPlan(**{"models": ("resnet50",), "gpu": GPU, **changes})

    def test_refuses_two_names_for_one_model(self):
        plan = StudyPlan(models=("bert-base", "hf/bert-base-uncased"), gpu=GPU, precisions=("fp32",))
        with pytest.raises(UsageError, match="two names for one model"):
            study(plan)

    def test_passes_on_an_unknown_model(self):
        with pytest.raises(UnknownModelError, match="did you mean"):
            study(StudyPlan(models=("resnet5",), gpu=GPU))


class TestPoints:
    def test_are_what_predict_says(self, found):
        (alone,) = joulecast.predict("albert", gpu=GPU, precision="bf16", batch_size=16, n_gpus=2)
        (albert,) = (name for name, label in found.labels.items() if label == "albert")

        assert found.point(albert, "bf16", 2).step_time_s == alone.step_time_s

    def test_take_the_batch_of_their_model(self, found):
        batches = {found.labels[p.model]: p.batch_per_gpu for p in found.points}
        assert batches == {"resnet50": 8, "distilbert": 16, "albert": 16}

    def test_cover_every_combination(self, found):
        assert len(found.points) == 3 * 2 * 2

    def test_default_batch_is_the_largest_power_of_two_to_32_that_is_expected_to_fit(self):
        plan = StudyPlan(models=("resnet50", "tinyllama"), gpu=GPU, precisions=("fp32",))
        by_label = {study(plan).labels[p.model]: p for p in study(plan).points}

        assert by_label["resnet50"].batch_per_gpu == 32
        assert by_label["tinyllama"].memory_verdict != "does not fit"
        (double,) = joulecast.predict(
            "tinyllama", gpu=GPU, batch_size=2 * by_label["tinyllama"].batch_per_gpu
        )
        assert double.memory_verdict == "does not fit"


class TestCurves:
    def test_of_limits_span_the_card_and_hold_the_limit_in_force(self, found):
        limits = {p.power_limit_w for p in found.limit_curve}
        assert (min(limits), max(limits)) == (100.0, 400.0)
        assert found.points[0].power_limit_w in limits

    def test_of_batches_double_around_the_studys_own(self, found):
        model = found.models[0]
        batches = [p.batch_per_gpu for p in found.curve(found.batch_curve, model, "fp32")]
        assert batches == [1, 2, 4, 8, 16, 32, 64]


class TestTable:
    def test_holds_every_distinct_prediction_once(self, found):
        rows = found.table().to_rows()
        keys = {
            (r["model"], r["n_gpus"], r["precision"], r["batch_per_gpu"], r["power_limit_w"]) for r in rows
        }
        n_limits = len({p.power_limit_w for p in found.limit_curve})
        # points on two counts; per model and precision the curves add all batches and limits but the own
        assert len(rows) == len(keys)
        n_batches = len({(p.model, p.batch_per_gpu) for p in found.batch_curve})
        assert len(rows) == 12 + 2 * (n_batches - 3) + 6 * (n_limits - 1)

    def test_has_the_shares_of_the_step(self, found):
        (row, *_) = found.table().to_rows()
        assert row["compute_time_share_frac"] == found.points[0].time_share_by_bound["compute"]


class TestGains:
    def test_are_the_ratios_of_the_predictions(self, found):
        for gain in gains(found):
            before = found.point(gain.model, "fp32", gain.n_gpus)
            after = found.point(gain.model, "bf16", gain.n_gpus)
            assert gain.time_ratio == before.step_time_s.over(after.step_time_s, SHARED_BY_CARD)
            assert gain.energy_ratio.value == pytest.approx(
                before.energy_per_step_j.value / after.energy_per_step_j.value
            )

    def test_have_a_reason_on_the_first_count_of_cards(self, found):
        for gain in gains(found):
            if gain.n_gpus == 1:
                assert sum(gain.share.values()) == pytest.approx(1)
            else:
                assert gain.share is None


def test_sharing_keeps_the_work_and_saves_the_parameters(found):
    rows = {found.labels[row.model]: row for row in sharing(found)}

    assert set(rows) == {"distilbert", "albert"}
    assert rows["albert"].n_parameters == joulecast.trace("albert").n_parameters
    assert rows["albert"].flop_per_sample == pytest.approx(2 * rows["distilbert"].flop_per_sample, rel=0.05)
    assert rows["albert"].n_shared_uses > 0 == rows["distilbert"].n_shared_uses


def test_models_of_another_length_are_not_compared(found):
    short, long = (
        study(StudyPlan(models=(model,), gpu=GPU, precisions=("fp32",), seq_len={"": seq_len}))
        for model, seq_len in (("distilbert", 64), ("albert", 128))
    )
    rows = [*sharing(short), *sharing(long), *sharing(found)]

    assert {row.prediction.batch_per_gpu for row in comparable(rows)} == {16}


def test_scaling_compares_throughput_per_card(found):
    for row in scaling(found):
        one, two = found.point(row.model, row.precision, 1), found.point(row.model, row.precision, 2)
        assert row.time_efficiency.value == pytest.approx(
            two.samples_per_s.value / one.samples_per_s.value / 2
        )
        assert row.energy_efficiency.value == pytest.approx(two.samples_per_j.value / one.samples_per_j.value)


class TestLimitChoice:
    def test_is_the_least_energy_of_the_curve(self, found):
        for choice in limit_choices(found):
            curve = found.curve(found.limit_curve, choice.model, choice.precision)
            least = min(p.energy_per_step_j.value for p in curve)
            assert choice.chosen.energy_per_step_j.value == pytest.approx(least)
            assert choice.energy_ratio.value <= 1 <= choice.time_ratio.value + 1e-12

    def test_of_the_limit_in_force_is_exactly_one(self, found):
        plan = StudyPlan(models=("vgg16",), gpu=GPU, precisions=("fp32",), options={"power_limit_w": 375.0})
        (choice,) = limit_choices(study(plan))
        if choice.chosen.power_limit_w == 375.0:
            assert (choice.energy_ratio.low, choice.energy_ratio.high) == (1.0, 1.0)
        assert choice.default.power_limit_w == 375.0


class TestAnatomy:
    @pytest.mark.parametrize("precision", ["fp32", "bf16"])
    def test_adds_up(self, precision):
        scenario = Scenario(model="resnet50", gpu=GPU, precision=precision, n_gpus=2)
        parts = anatomy(scenario, load_parameters())
        (whole,) = joulecast.predict("resnet50", gpu=GPU, precision=precision, n_gpus=2)

        assert tuple(parts.memory_bytes) == MEMORY_PARTS
        assert sum(parts.memory_bytes.values()) == pytest.approx(whole.process_bytes.value)
        assert sum(parts.time_share.values()) == pytest.approx(1)
        assert parts.step_time_s == whole.step_time_s.value
        assert parts.time_s.sum() <= parts.step_time_s * (1 + 1e-9)

    def test_puts_what_is_no_product_on_the_vector_units(self):
        parts = anatomy(Scenario(model="resnet50", gpu=GPU, precision="bf16"), load_parameters())

        assert set(parts.path[parts.kind == "convolution"]) == {"bf16_tensor"}
        assert set(parts.path[parts.kind == "batch_norm"]) == {VECTOR}

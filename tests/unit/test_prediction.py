import math
from dataclasses import replace

import pytest

from joulecast import scenario as scenarios
from joulecast.characterisation import trace
from joulecast.errors import UsageError
from joulecast.model.intervals import GUESSED_HALF_WIDTHS
from joulecast.model.parameters import Scalars, initial_parameters
from joulecast.prediction import predict
from joulecast.results import MemoryVerdict, Origin

PARAMETERS = initial_parameters()


@pytest.fixture(autouse=True)
def _toy_model(toy_trace, monkeypatch):
    monkeypatch.setattr(scenarios, "load_trace", lambda *_, **__: toy_trace)
    scenarios._trace.cache_clear()
    yield
    scenarios._trace.cache_clear()


def one(**options):
    asked = {"gpu": "a100-sxm4-40gb", "batch_size": 4096, "parameters": PARAMETERS, **options}
    (prediction,) = predict("resnet50", **asked)
    return prediction


def test_derived_figures_agree():
    p = one(n_gpus=2)
    assert p.global_batch == 2 * p.batch_per_gpu == 8192
    assert p.samples_per_s.value == pytest.approx(p.global_batch / p.step_time_s.value)
    assert p.energy_per_step_j.value == pytest.approx(2 * p.mean_power_w.value * p.step_time_s.value)
    assert p.energy_per_sample_j.value * p.samples_per_j.value == pytest.approx(1)
    assert p.allocated_bytes.value <= p.reserved_bytes.value <= p.process_bytes.value
    assert sum(group.time_share_frac for group in p.op_groups) == pytest.approx(1)
    assert sum(group.energy_share_frac for group in p.op_groups) == pytest.approx(1)
    assert sum(p.time_share_by_bound.values()) == pytest.approx(1)
    assert p.tokens_per_s is None


def test_an_interval_is_the_scale_times_the_quantiles():
    time = one().step_time_s  # of a set that covers nothing: guessed, widened by an unseen GPU
    half_width = GUESSED_HALF_WIDTHS["time"] * math.exp(0.23)
    assert time.low == pytest.approx(time.value * math.exp(-half_width))
    assert time.high == pytest.approx(time.value * math.exp(half_width))
    assert time.origin is Origin.DATASHEET


COVERING = replace(
    PARAMETERS,
    covered_gpus=("a100-sxm4-40gb",),
    covered_precisions=("fp32",),
    covered_architectures=("ampere-ga100",),
    covered_classes=("products",),
    covered_ranges={"n_gpus": (1.0, 4.0), "batch_per_gpu.products": (1.0, 4096.0)},
)


def test_what_the_fit_has_seen_is_calibrated():
    seen = one(parameters=COVERING)
    assert seen.step_time_s.origin is Origin.CALIBRATED
    assert not any("outside the calibration" in flag for flag in seen.flags)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"gpu": "t4"}, "t4 is outside the calibration"),
        ({"precision": "bf16"}, "precision bf16 is outside the calibration"),
        ({"batch_size": 8192}, "samples per GPU of models of products 8.19e+03, runs show 1 to 4.1e+03"),
        ({"n_gpus": 8}, "GPUs 8, runs show 1 to 4"),
        ({"power_limit_w": 200}, "power limit over the card's own 0.5, of which no run shows any but 1"),
        ({"sm_clock_hz": 1.2e9}, "locked clock over the highest 0.851"),
        ({"n_sms": 54}, "multiprocessors over the card's own 0.5"),
        (
            {"parameters": replace(COVERING, covered_classes=("attention",))},
            "models of products is outside the calibration",
        ),
    ],
)
def test_what_no_run_shows_is_flagged_wider_and_not_called_calibrated(changes, flag):
    asked = one(**{"parameters": COVERING, **changes})
    assert asked.step_time_s.origin is asked.mean_power_w.origin is Origin.DATASHEET
    assert any(flag in line for line in asked.flags), asked.flags
    inside = one(parameters=COVERING).step_time_s
    assert asked.step_time_s.high / asked.step_time_s.low > 1.05 * inside.high / inside.low


def test_scalars_move_time_power_and_energy_together_and_are_flagged():
    plain = one(parameters=COVERING)
    scaled = one(
        parameters=replace(
            COVERING,
            model_scalars={plain.model: Scalars(time=1.2, power=0.9, n_rows=5)},
            precision_scalars={"fp32": Scalars(time=1.1, power=1.0, n_rows=7)},
        )
    )
    assert scaled.step_time_s.value == pytest.approx(1.32 * plain.step_time_s.value)
    assert scaled.mean_power_w.value == pytest.approx(0.9 * plain.mean_power_w.value)
    assert scaled.energy_per_step_j.value == pytest.approx(
        scaled.step_time_s.value * scaled.mean_power_w.value * scaled.n_gpus
    )
    assert sum("scalar of" in flag for flag in scaled.flags) == 2


def test_power_and_clock_stay_within_what_the_card_can():
    p = one(power_limit_w=150)
    assert 40 < p.mean_power_w.low <= p.mean_power_w.high <= 150
    assert p.sm_clock_hz.high <= 1.41e9 * (1 + 1e-9)


def test_mfu_divides_by_the_units_that_do_the_work():
    p = one(precision="fp32")
    assert p.mfu_paths == {"fp32_vector": 1.0}
    assert p.mfu_peak_flop_per_s == pytest.approx(19.5e12, rel=0.01)
    assert 0 < p.mfu.low <= p.mfu.value <= p.mfu.high <= 1
    assert p.mfu.value == pytest.approx(p.model_flop / p.step_time_s.value / p.mfu_peak_flop_per_s)
    assert one(precision="tf32").mfu_peak_flop_per_s == pytest.approx(156e12, rel=0.01)


def test_what_has_no_formula_is_named_and_lowers_the_coverage():
    p = one()
    assert p.coverage.value < 1
    assert any("my.op.default has no formula" in flag for flag in p.flags)


def test_memory_is_judged_by_the_upper_end_of_the_process():
    small, large = one(batch_size=1), one(batch_size=40_000_000)
    assert small.memory_verdict is MemoryVerdict.FITS
    assert large.memory_verdict is MemoryVerdict.DOES_NOT_FIT


def test_link_guesses_matter_to_several_cards_only():
    assert not any(key.startswith(("link.", "pcie.")) for key in one(gpu="t4").guesses)
    assert any(key.startswith("pcie.") for key in one(gpu="t4", n_gpus=2).guesses)


def test_products_of_names_come_in_order():
    predictions = predict(
        ["resnet50", "vgg16"], gpu=["t4", "v100-sxm2-16gb"], precision=["fp32", "fp16"], parameters=PARAMETERS
    )
    assert [(p.model, p.gpu, p.precision) for p in predictions][:3] == [
        ("torchvision/resnet50", "t4", "fp32"),
        ("torchvision/resnet50", "t4", "fp16"),
        ("torchvision/resnet50", "v100-sxm2-16gb", "fp32"),
    ]
    assert len(predictions) == 8


def test_unknown_option_is_named():
    with pytest.raises(UsageError, match="unknown option batch"):
        predict("resnet50", gpu="t4", batch=3)


def test_characterisation_counts_by_hand():
    c = trace("resnet50", batch_size=10)
    assert c.flop == pytest.approx(10 * 3 * 2 * 256**2)
    assert {summary.label for summary in c.by_kind} == {"gemm", "other", "optimizer"}
    assert sum(summary.flop for summary in c.by_phase) == pytest.approx(c.flop)
    assert sum(summary.bytes_moved for summary in c.by_module) == pytest.approx(c.bytes_moved)
    assert c.uncounted == ("my.op.default",)
    assert c.intensity_flop_per_byte == pytest.approx(c.flop / c.bytes_moved)
    document = c.to_dict()
    assert document["schema"] == "joulecast/trace/1"
    assert document["model"] == "torchvision/resnet50"
    assert len(c.to_rows()) == len(c.table)


def test_a_module_needs_its_inputs():
    with pytest.raises(UsageError, match="example tensors"):
        trace(object())

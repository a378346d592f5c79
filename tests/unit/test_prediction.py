import math

import pytest

from joulecast import scenario as scenarios
from joulecast.characterisation import trace
from joulecast.errors import UsageError
from joulecast.model.parameters import initial_parameters
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


def test_intervals_come_from_the_residuals():
    residual = PARAMETERS.residuals["time.unseen"]
    time = one().step_time_s
    assert time.low == pytest.approx(time.value * math.exp(residual.low))
    assert time.high == pytest.approx(time.value * math.exp(residual.high))
    assert time.origin is Origin.DATASHEET


def test_what_the_fit_has_seen_is_calibrated():
    seen = type(PARAMETERS)(
        values=PARAMETERS.values,
        residuals=PARAMETERS.residuals,
        covered_gpus=("a100-sxm4-40gb",),
        covered_precisions=("fp32",),
    )
    assert one(parameters=seen).step_time_s.origin is Origin.CALIBRATED
    assert one(parameters=seen, gpu="t4").step_time_s.origin is Origin.DATASHEET


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

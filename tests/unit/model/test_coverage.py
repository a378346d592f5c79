import pytest

from joulecast.model.coverage import MODEL_CLASSES, conditions, model_class, outside, ranges, with_coverage
from joulecast.model.parameters import initial_parameters
from joulecast.scenario import Scenario, settle_gpu, settle_step, workload_of


def asked(model="resnet50", gpu="a100-sxm4-40gb", **options):
    scenario = Scenario(model=model, gpu=gpu, **options)
    cards = settle_gpu(scenario)
    return conditions(
        workload_of(settle_step(scenario)),
        cards.gpu,
        n_gpus=cards.n_gpus,
        power_limit_w=cards.power_limit_w,
        sm_clock_hz=cards.locked_sm_clock_hz,
    )


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("resnet50", "convolution"),
        ("vgg16", "convolution"),
        ("bert-base", "attention"),
        ("tinyllama", "attention"),
        pytest.param(*("mobilenet_v2", "depthwise convolution"), marks=pytest.mark.slow),
        pytest.param(*("resnext50_32x4d", "grouped convolution"), marks=pytest.mark.slow),
        ("vit_b_16", "attention"),
    ],
)
def test_classes_come_from_the_table(model, name):
    table = workload_of(settle_step(Scenario(model=model, gpu="t4"))).table
    assert name in MODEL_CLASSES
    assert model_class(table) == name


def test_ranges_and_what_lies_outside():
    seen = with_coverage(
        initial_parameters(),
        [asked(batch_size=32), asked(batch_size=256, n_gpus=4), asked(power_limit_w=200)],
    )
    assert seen.covered_ranges == {
        "batch_per_gpu.convolution": (32.0, 256.0),
        "limit_ratio": (0.5, 0.5),
        "n_gpus": (1.0, 4.0),
    }
    assert outside(asked(batch_size=64), seen) == {}
    assert outside(asked(batch_size=260), seen) == {}, "within the tolerance"
    assert set(outside(asked(batch_size=512), seen)) == {"unseen_range"}
    assert set(outside(asked(n_sms=54), seen)) == {"unseen_range"}
    assert set(outside(asked(gpu="a100-pcie-40gb"), seen)) == {"unseen_gpu"}
    assert set(outside(asked(gpu="t4"), seen)) == {"unseen_gpu", "unseen_architecture"}
    assert set(outside(asked("bert-base"), seen)) == {"unseen_class"}


def test_a_set_that_covers_no_gpu_covers_nothing():
    assert set(outside(asked(), initial_parameters())) == {"unseen_gpu"}


def test_ranges_of_nothing_are_none():
    assert ranges([]) == {}

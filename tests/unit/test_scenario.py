import pytest

from joulecast import scenario as scenarios
from joulecast.errors import DoesNotFitError, PowerLimitError, UnknownGpuError, UnknownModelError, UsageError
from joulecast.hardware.catalogue import load_gpu
from joulecast.scenario import DEFAULT_BATCH_SIZE, Scenario, runs_flash, settle_gpu, settle_step, workload_of


def asked(**options) -> Scenario:
    return Scenario(**{"model": "bert-base", "gpu": "a100-sxm4-40gb", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be above 0"),
        ({"batch_size": -4}, "batch_size must be above 0"),
        ({"batch_size": "many"}, "batch_size must be a number"),
        ({"batch_size": float("nan")}, "batch_size must be above 0"),
        ({"n_gpus": True}, "n_gpus must be a number"),
        ({"precision": "fp12"}, "unknown precision 'fp12'"),
        ({"optimizer": "lion"}, "unknown optimizer"),
        ({"optimizer": "adamw-8bit"}, "not predicted"),
        ({"mode": "inference"}, "unknown mode 'inference': choose one of train"),
        ({"attention": "flash"}, "unknown attention"),
        ({"memory_format": "nhwc"}, "unknown memory format"),
        ({"parallel": "none", "n_gpus": 2}, "2 GPUs need"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        asked(**options)


def test_open_choices_are_made():
    step = settle_step(asked())
    assert step.model == "hf/bert-base-uncased#sequence-classification"
    assert (step.batch_size, step.seq_len, step.optimizer) == (DEFAULT_BATCH_SIZE, 128, "adamw")
    assert step.image_size is None
    assert step.flags == ()


def test_convolutional_networks_train_with_momentum():
    step = settle_step(asked(model="resnet50"))
    assert (step.optimizer, step.image_size, step.seq_len) == ("sgd-momentum", 224, None)


def test_a_forward_pass_has_no_optimizer():
    assert settle_step(asked(mode="forward")).optimizer is None


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"image_size": 224}, "image size 224 does not apply"),
        (
            {"memory_format": "channels_last"},
            "memory format channels_last does not apply to this step: contiguous used",
        ),
        ({"model": "resnet50", "seq_len": 128}, "seq len 128 does not apply to this step: ignored"),
        ({"model": "resnet50", "attention": "eager"}, "attention eager does not apply"),
        ({"mode": "forward", "optimizer": "adamw"}, "optimizer adamw does not apply"),
    ],
)
def test_an_option_without_effect_is_said(options, flag):
    assert any(line.startswith(flag) for line in settle_step(asked(**options)).flags)


def test_a_sequence_longer_than_the_positions():
    with pytest.raises(DoesNotFitError, match="512"):
        settle_step(asked(seq_len=4096))
    assert settle_step(asked(seq_len=4096, force=True)).seq_len == 4096


def test_unknown_names():
    with pytest.raises(UnknownModelError, match="did you mean"):
        settle_step(asked(model="resnet5O"))
    with pytest.raises(UnknownGpuError):
        settle_gpu(asked(gpu="a1000"))


def test_limits_name_the_range_unless_forced():
    with pytest.raises(PowerLimitError, match=r"100 to 400 W.*--force"):
        settle_gpu(asked(power_limit_w=50))
    with pytest.raises(PowerLimitError, match=r"MHz.*--force"):
        settle_gpu(asked(sm_clock_hz=9e9))
    assert settle_gpu(asked(power_limit_w=50, force=True)).power_limit_w == 50


def test_cards():
    cards = settle_gpu(asked(n_sms=98, n_gpus=4))
    assert (cards.gpu.n_sms, cards.n_gpus, cards.parallel, cards.power_limit_w) == (98, 4, "ddp", 400)
    assert settle_gpu(asked()).parallel == "none"


@pytest.mark.parametrize(
    ("name", "flash"), [("t4", False), ("v100-sxm2-16gb", False), ("a100-sxm4-40gb", True)]
)
def test_flash_attention_needs_ampere(name, flash):
    assert runs_flash(load_gpu(name)) is flash


def test_equal_steps_share_a_trace(toy_trace, monkeypatch):
    calls = []
    monkeypatch.setattr(scenarios, "load_trace", lambda *_, **options: calls.append(options) or toy_trace)
    scenarios._trace.cache_clear()
    for batch_size in (8, 8):
        load = workload_of(settle_step(asked(model="resnet50", batch_size=batch_size, accumulate=2)))
    scenarios._trace.cache_clear()
    assert len(calls) == 1
    assert load.batch_size == 16
    assert float((load.table.flop * load.table.n_calls).sum()) == pytest.approx(16 * 3 * 2 * 256**2)

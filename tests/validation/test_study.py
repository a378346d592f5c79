"""What the study of parameter sharing and mixed precision found on A100s comes out of `predict`.

The study: SBAC-PADW 2025, doi 10.1109/sbac-padw69789.2025.00024. It finds ALBERT up to 2.2 times slower than
DistilBERT, with up to about 3 times the memory.
"""

import pytest

import joulecast

GPU = "a100-sxm4-40gb"
BATCH_SIZE = 32


def predicted(model, precision, **options):
    (prediction,) = joulecast.predict(
        model, gpu=GPU, precision=precision, **{"batch_size": BATCH_SIZE, **options}
    )
    return prediction


def test_albert_is_about_twice_as_slow_as_distilbert_with_more_memory_and_fewer_parameters():
    albert, distilbert = (predicted(model, "fp32", seq_len=128) for model in ("albert", "distilbert"))

    assert 1.8 <= albert.step_time_s.value / distilbert.step_time_s.value <= 2.2
    assert 1.5 <= albert.allocated_bytes.value / distilbert.allocated_bytes.value <= 3.2
    parameters = [joulecast.trace(model).n_parameters for model in ("albert", "distilbert")]
    assert parameters[0] < parameters[1] / 5


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_faster_products_widen_the_gap_because_albert_has_more_elementwise_kernels(precision):
    # ALBERT's gelu_new is eight kernels; autocast runs its power, and so all of them, in FP32.
    albert, distilbert = (predicted(model, precision, seq_len=128) for model in ("albert", "distilbert"))

    assert 1.8 <= albert.step_time_s.value / distilbert.step_time_s.value <= 2.7


def bf16_gain(model, baseline="fp32", **options):
    return (
        predicted(model, baseline, **options).step_time_s.value
        / predicted(model, "bf16", **options).step_time_s.value
    )


def test_bf16_speeds_up_tinyllama_far_more_than_cnns():
    tinyllama = bf16_gain("tinyllama", batch_size=2, seq_len=1024)
    cnns = [bf16_gain(model) for model in ("resnet50", "resnet152", "vgg16")]

    assert tinyllama > 2.5
    assert max(cnns) < 0.7 * tinyllama


def test_cnns_gain_little_because_their_fp32_convolutions_already_run_in_tf32():
    assert bf16_gain("resnet50", "fp32-strict") > 1.3 * bf16_gain("resnet50", "fp32")


def test_the_larger_precision_gains_samples_per_joule():
    for model in ("albert", "distilbert", "bert-base"):
        assert predicted(model, "bf16").samples_per_j.value > predicted(model, "fp32").samples_per_j.value

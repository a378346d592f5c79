"""Packaged traces: they need no torch, match a new trace, and equal the closed forms."""

import subprocess
import sys

import numpy as np
import pytest

from joulecast.errors import DoesNotFitError, UnknownModelError, UsageError
from joulecast.workload import zoo
from joulecast.workload.compose import workload
from joulecast.workload.models import model_card, resolve_model
from joulecast.workload.table import Phase


def forward_flop(model, batch, seq_len=0, **options):
    trace = zoo.load_trace(model, **options)
    table = trace.table(batch, seq_len)
    return float((table.model_flop * table.n_calls)[table.phase == Phase.FORWARD].sum())


def test_every_packaged_model_has_its_table():
    missing = [m for m in zoo.PACKAGED if not zoo.packaged_path(resolve_model(m)).is_file()]

    assert missing == []


def test_resnet50_forward_is_8_2_gflop():
    assert forward_flop("resnet50", 1) == pytest.approx(8.18e9, rel=2e-3)


def test_bert_base_forward_equals_its_formula():
    batch, seq, hidden, ffn, layers = 4, 384, 768, 3072, 12
    tokens = batch * seq
    layer = 2 * tokens * (4 * hidden**2 + 2 * hidden * ffn) + 4 * batch * seq**2 * hidden
    head = 2 * batch * (hidden**2 + 2 * hidden)  # pooler and classifier

    for attention in ("sdpa", "eager"):
        flop = forward_flop("bert-base", batch, seq, attention=attention, precision="bf16")
        assert flop == layers * layer + head


def test_llama_forward_equals_its_formula():
    batch, seq, hidden, ffn, layers, vocab, kv = 2, 1024, 4096, 14336, 32, 128256, 1024
    tokens = batch * seq
    layer = 2 * tokens * (2 * hidden**2 + 2 * hidden * kv + 3 * hidden * ffn) + 4 * batch * seq**2 * hidden
    head = 2 * tokens * hidden * vocab

    flop = forward_flop("llama-3.1-8b", batch, seq, precision="bf16")

    assert flop == pytest.approx(layers * layer + head, rel=1e-4)  # rotary products besides


@pytest.mark.parametrize(
    ("model", "n_parameters"),
    [
        ("resnet50", 25_557_032),
        ("resnet152", 60_192_808),
        ("vgg16", 138_357_544),
        ("vit_b_16", 86_567_656),
        ("albert", 11_685_122),
        ("bert-base", 109_483_778),
        ("distilbert", 66_955_010),
        ("gpt2", 124_439_808),
        ("tinyllama", 1_100_048_384),
        ("llama-3.1-8b", 8_030_261_248),
    ],
)
def test_published_parameter_counts(model, n_parameters):
    assert zoo.load_trace(model).parameters.n_parameters == n_parameters


def test_albert_shares_its_layer_and_works_as_often_as_bert():
    albert, bert = zoo.load_trace("albert"), zoo.load_trace("bert-base")

    assert albert.parameters.n_parameters < bert.parameters.n_parameters / 9
    assert albert.parameters.n_shared_uses >= 11 * 16
    assert forward_flop("albert", 8, 128) == pytest.approx(forward_flop("bert-base", 8, 128), rel=0.02)


def test_attention_makes_flop_grow_faster_than_the_sequence():
    assert forward_flop("bert-base", 1, 512) > 2.05 * forward_flop("bert-base", 1, 256)


def test_fp16_and_bf16_share_a_record_where_they_run_the_same_operators():
    bf16 = zoo.load_trace("resnet50", precision="bf16-pure").table(4)
    fp16 = zoo.load_trace("resnet50", precision="fp16-pure").table(4)

    assert "bf16" not in set(fp16.dtype)
    assert np.array_equal(bf16.flop, fp16.flop)


def assert_a_new_trace_equals_the_packaged_one(model, precision):
    name = resolve_model(model)
    mode = "forward" if name.task == "body" else "train"
    attention = "sdpa" if "sdpa" in model_card(name).supports_attention else "eager"
    kept = zoo.load_trace(model, precision=precision, mode=mode, attention=attention)
    options = zoo.trace_options(
        name, precision=precision, mode=mode, attention=attention, memory_format="contiguous", flash=True
    )
    seq_len = 320 if model_card(name).is_sequence else 0
    new = zoo.trace_named(name, options, seq_len=seq_len or None, optimizers=("adamw",))

    a, b = kept.table(5, seq_len), new.table(5, seq_len)
    assert kept.parameters == new.parameters
    for column in ("flop", "model_flop", "read_bytes", "written_bytes", "n_kernels"):
        left = float((getattr(a, column) * a.n_calls).sum())
        right = float((getattr(b, column) * b.n_calls).sum())
        assert left == pytest.approx(right, rel=1e-9), column
    assert kept.peak_live_bytes(5, seq_len) == pytest.approx(new.peak_live_bytes(5, seq_len), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("model", zoo.PACKAGED)
def test_a_new_trace_equals_the_packaged_one(model):
    assert_a_new_trace_equals_the_packaged_one(model, "bf16")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["torchvision/resnet50", "hf/bert-base-uncased#masked-lm"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp16-pure"])
def test_a_new_trace_equals_the_packaged_one_in_every_variant(model, precision):
    assert_a_new_trace_equals_the_packaged_one(model, precision)


def test_packaged_traces_need_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from joulecast.workload.zoo import load_trace\n"
        "print(len(load_trace('bert-base', precision='bf16').table(8, 128)) > 0)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "True"


def test_an_unknown_model_names_near_misses():
    with pytest.raises(UnknownModelError, match="resnet50"):
        zoo.load_trace("resnet5O")


def test_a_sequence_no_trace_holds_for_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("JOULECAST_CACHE", str(tmp_path))
    trace = zoo.load_trace("hf/distilbert-base-uncased", seq_len=64, checkpointing=True)

    with pytest.raises(DoesNotFitError, match="holds for sequences of 64 tokens, not 128"):
        workload(trace, batch_size=2, seq_len=128)


def test_a_corrupt_cache_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("JOULECAST_CACHE", str(tmp_path))
    first = zoo.load_trace("hf/distilbert-base-uncased", seq_len=32, checkpointing=True)
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"rubbish")

    again = zoo.load_trace("hf/distilbert-base-uncased", seq_len=32, checkpointing=True)

    assert np.array_equal(first.polynomials, again.polynomials)


@pytest.mark.parametrize("batch", [0, -1, float("nan")])
def test_a_batch_below_one_is_refused(batch):
    with pytest.raises(UsageError, match="batch size"):
        workload(zoo.load_trace("resnet50"), batch_size=batch)

import importlib
import inspect
import socket
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from joulecast.errors import DoesNotFitError, MissingExtraError, TraceError, UnknownModelError, UsageError
from joulecast.workload.models import (
    ModelName,
    check_seq_len,
    known_models,
    model_card,
    resolve_model,
    short_names,
)
from joulecast.workload.models import names as naming
from joulecast.workload.models.builders import build_model

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

#: The non-timm models of the public runs, by mode.
RUNS = [
    ("config/bert_large#causal-lm", "train-no-optimizer", 64),
    ("config/gpt2_large#causal-lm", "forward", 64),
    ("config/gpt3_27#causal-lm", "forward", 64),
    ("config/gpt3_xl#causal-lm", "forward", 64),
    ("config/opt_13#causal-lm", "forward", 64),
    ("config/switchxl4#causal-lm", "forward", 512),
    ("hf/bert-base-uncased#masked-lm", "train", 512),
    ("hf/bert-base-uncased#question-answering", "train", 384),
    ("hf/bert-base-uncased#sequence-classification", "train", 128),
    ("hf/bert-large-uncased", "forward", 512),
    ("hf/gpt2", "forward", 1024),
    ("hf/mobilevit-small", "forward", 0),
    ("hf/opt-1.3b", "forward", 2048),
    ("hf/qwen2-1.5b", "forward", 8192),
    ("hf/vit-large-patch16-224", "forward", 0),
    ("shufflenet-v2-cifar", "train", 0),
    ("torchvision/convnext_large", "train", 0),
    ("torchvision/resnet101", "forward", 0),
    ("torchvision/resnet50", "train", 0),
    ("torchvision/vit_b_16", "train", 0),
    ("albert", "train", 128),
    ("distilbert", "train", 128),
    ("torchvision/googlenet", "train", 0),
    ("torchvision/inception_v3", "train", 0),
    ("torchvision/regnet_y_400mf", "train", 0),
    ("mpt-125m", "train", 64),
    ("timm/swin_tiny_patch4_window7_224", "train", 0),
]


def run_step(built: Any, seq_len: int, *, train: bool) -> Any:
    """Run a step on fake parameters; strict: every real tensor raises."""
    made: dict[int, Any] = {}

    def fake(tensor: Any) -> Any:
        if id(tensor) not in made:
            new = torch.empty(tensor.shape, dtype=tensor.dtype)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            made[id(tensor)] = torch.nn.Parameter(new) if is_parameter else new
        return made[id(tensor)]

    with FakeTensorMode():
        for part in built.module.modules():
            for table in (part._parameters, part._buffers):
                table.update({name: fake(tensor) for name, tensor in table.items() if tensor is not None})
        inputs = built.make_inputs(2, seq_len)
        with torch.set_grad_enabled(train):
            if isinstance(inputs, dict):
                output = built.module(**inputs)
            else:
                output = built.module(*(inputs[:1] if built.loss else inputs))
            if train:
                loss = built.loss(output, inputs) if built.loss else output["loss"]
                assert loss.ndim == 0
                loss.backward()
    return output


def n_parameters(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


# ---- names


@pytest.mark.parametrize(
    ("typed", "canonical"),
    [
        ("resnet50", "torchvision/resnet50"),
        ("ResNet-50", "torchvision/resnet50"),
        ("resnet152", "torchvision/resnet152"),
        ("vgg16", "torchvision/vgg16"),
        ("vit", "torchvision/vit_b_16"),
        ("vit_b_16", "torchvision/vit_b_16"),
        ("albert", "hf/albert-base-v2#sequence-classification"),
        ("albert-base", "hf/albert-base-v2#sequence-classification"),
        ("distilbert", "hf/distilbert-base-uncased#sequence-classification"),
        ("bert", "hf/bert-base-uncased#sequence-classification"),
        ("bert-large", "hf/bert-large-uncased#sequence-classification"),
        ("bert#masked-lm", "hf/bert-base-uncased#masked-lm"),
        ("gpt2", "hf/gpt2#causal-lm"),
        ("gpt2-large", "hf/gpt2-large#causal-lm"),
        ("TinyLlama", "hf/tinyllama-1.1b#causal-lm"),
        ("llama-3.1-8b", "hf/llama-3.1-8b#causal-lm"),
        ("llama3-8b", "hf/llama-3.1-8b#causal-lm"),
        ("hf/meta-llama/Llama-3.1-8B", "hf/llama-3.1-8b#causal-lm"),
        ("timm/convnext_base.fb_in22k_ft_in1k", "timm/convnext_base"),
        ("timm/ig_resnext101_32x48d", "timm/ig_resnext101_32x48d"),
        ("mpt-7b", "mpt/mpt-7b#causal-lm"),
        ("shufflenet-v2-cifar", "shufflenet-v2-cifar"),
        ("regnet_x_1_6gf", "torchvision/regnet_x_1_6gf"),
        ("regnet_x_16gf", "torchvision/regnet_x_16gf"),
        ("models/mine.py:make", "models/mine.py:make"),
    ],
)
def test_names_people_type(typed: str, canonical: str) -> None:
    name = resolve_model(typed)
    assert name.canonical == str(name) == canonical
    assert resolve_model(canonical) == name


def test_forward_means_the_bare_body() -> None:
    assert resolve_model("hf/bert-large-uncased", "forward").task == "body"
    assert resolve_model("hf/bert-large-uncased#causal-lm", "forward").task == "causal-lm"
    assert resolve_model("resnet50", "forward").task == "image-classification"


def test_every_known_name_and_alias_resolves() -> None:
    for full in known_models():
        assert resolve_model(full).canonical.partition("#")[0] == full
    for alias in short_names():
        resolve_model(alias)


def test_unknown_names_carry_near_misses() -> None:
    with pytest.raises(UnknownModelError, match="timm/efficientnet_b0") as caught:
        resolve_model("timm/efficientnet_b00")
    assert "timm/efficientnet_b0" in caught.value.near
    for text in ("", "hf/", "hf/no-such", "nonsense/x", "regnetx16gf"):
        with pytest.raises(UnknownModelError):
            resolve_model(text)


@pytest.mark.parametrize(
    "text", ["bert#translation", "resnet50#body", "mine.py", "mine.py:", "mine.py:not-a-name"]
)
def test_wrong_requests_say_what_to_do(text: str) -> None:
    with pytest.raises(UsageError, match=r"choose from|name the function"):
        resolve_model(text)


def test_unknown_mode() -> None:
    with pytest.raises(UsageError, match="unknown mode"):
        resolve_model("bert", "eval")


def test_names_need_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from joulecast.workload.models import *\n"
        "from joulecast.workload.models.builders import build_model\n"
        "print(model_card(resolve_model('bert')).max_seq_len)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "512"


# ---- cards


@pytest.mark.parametrize(
    ("typed", "is_sequence", "seq_len", "longest", "image_size", "attention"),
    [
        ("bert", True, 128, 512, None, ("sdpa", "eager")),
        ("gpt2", True, 1024, 1024, None, ("sdpa", "eager")),
        ("tinyllama", True, 2048, None, None, ("sdpa", "eager")),
        ("llama-3.1-8b", True, 2048, None, None, ("sdpa", "eager")),
        ("config/switchxl4", True, 512, None, None, ("eager",)),
        ("resnet50", False, None, None, 224, ()),
        ("inception", False, None, None, 299, ()),
        ("vit", False, None, None, 224, ("sdpa", "eager")),
        ("mobilevit", False, None, None, 256, ("eager",)),
        ("shufflenet-v2-cifar", False, None, None, 32, ()),
        ("timm/convnext_base_384_in22ft1k", False, None, None, 384, ("sdpa", "eager")),
        ("mine.py:make", False, None, None, None, ()),
    ],
)
def test_cards(
    typed: str,
    is_sequence: bool,
    seq_len: int | None,
    longest: int | None,
    image_size: int | None,
    attention: tuple[str, ...],
) -> None:
    card = model_card(resolve_model(typed))
    assert card.is_sequence is is_sequence
    assert (card.default_seq_len, card.max_seq_len) == (seq_len, longest)
    assert card.default_image_size == image_size
    assert card.supports_attention == attention
    assert card.attention_or_default("eager") == ("eager" if attention else None)


def test_sequences_longer_than_positions() -> None:
    gpt2 = resolve_model("gpt2")
    check_seq_len(gpt2, 1024)
    check_seq_len(gpt2, 4096, raise_positions=True)
    check_seq_len(resolve_model("llama-3.1-8b"), 100_000)
    with pytest.raises(DoesNotFitError, match="1024 positions"):
        check_seq_len(gpt2, 1025)
    with pytest.raises(UsageError, match="at least 1"):
        check_seq_len(gpt2, 0)


def test_wrong_format_of_the_packaged_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "FORMAT", 99)
    with pytest.raises(ValueError, match="format 1"):
        naming.architectures.__wrapped__()


# ---- builders


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a builder opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.slow
@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(("text", "mode", "seq_len"), RUNS)
def test_models_of_the_public_runs_run_on_fake_tensors(text: str, mode: str, seq_len: int) -> None:
    name, train = resolve_model(text, mode), mode != "forward"
    built = build_model(name, seq_len=seq_len or None, train=train)
    assert all(p.is_meta for p in built.module.parameters())
    assert built.module.training is train
    assert built.attention == model_card(name).attention_or_default("sdpa")
    run_step(built, seq_len, train=train)


@pytest.mark.parametrize("text", ["bert", "albert", "distilbert", "gpt2", "hf/qwen2-0.5b", "mpt-125m", "vit"])
def test_eager_attention_calls_no_fused_kernel(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("fused attention was called")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", refuse)
    built = build_model(resolve_model(text), attention="eager")
    assert built.attention == "eager"
    run_step(built, 16, train=True)


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("resnet50", 25_557_032),
        ("vit", 86_567_656),
        ("hf/bert-base-uncased#sequence-classification", 109_483_778),
        ("distilbert", 66_955_010),
        ("albert", 11_685_122),
        ("gpt2", 124_439_808),
        ("gpt2-large", 774_030_080),
        ("tinyllama", 1_100_048_384),
        ("llama-3.1-8b", 8_030_261_248),
        ("hf/qwen2-0.5b", 494_032_768),
        ("hf/opt-1.3b", 1_315_758_080),
        *(
            (f"hf/{n}", e["n_parameters"])
            for n, e in naming.architectures()["hf"].items()
            if "n_parameters" in e
        ),
    ],
)
def test_parameter_counts_are_the_published_ones(text: str, n: int) -> None:
    assert n_parameters(build_model(resolve_model(text)).module) == n


def test_tied_heads_share_one_parameter() -> None:
    module: Any = build_model(resolve_model("gpt2")).module
    assert module.lm_head.weight is module.transformer.wte.weight
    module = build_model(resolve_model("llama-3.1-8b")).module
    assert module.lm_head.weight is not module.model.embed_tokens.weight


def test_dropout_is_the_published_one() -> None:
    def rates(text: str) -> set[float]:
        module = build_model(resolve_model(text)).module
        return {part.p for part in module.modules() if isinstance(part, torch.nn.Dropout)}

    assert rates("bert") == {0.1}
    assert rates("gpt2") == {0.1}
    assert rates("albert") == {0.0, 0.1}  # the classifier's alone is 0.1


def test_masks_come_with_encoders_and_not_with_decoders() -> None:
    def keys(text: str, **options: Any) -> set[str]:
        return set(build_model(resolve_model(text), **options).make_inputs(2, 16))

    assert keys("bert") == {"input_ids", "attention_mask", "labels"}
    assert keys("bert", padding_mask=False) == {"input_ids", "labels"}
    assert keys("bert", train=False) == {"input_ids", "attention_mask"}
    assert keys("bert#question-answering") == {
        "input_ids",
        "attention_mask",
        "start_positions",
        "end_positions",
    }
    assert keys("gpt2") == {"input_ids", "labels"}
    assert keys("gpt2", padding_mask=True) == {"input_ids", "attention_mask", "labels"}
    assert keys("config/bert_large#causal-lm") == {"input_ids", "labels"}


@pytest.mark.parametrize("text", ["bert", "albert", "distilbert"])
def test_the_mask_reaches_fused_attention(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def watch(*args: Any, attn_mask: Any = None, **options: Any) -> Any:
        seen.append(attn_mask is not None)
        return plain(*args, attn_mask=attn_mask, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watch)
    for padded in (True, False):
        seen.clear()
        run_step(build_model(resolve_model(text), padding_mask=padded), 16, train=True)
        assert set(seen) == {padded}


def test_bodies_have_a_loss_when_trained() -> None:
    run_step(build_model(resolve_model("hf/gpt2#body"), seq_len=16), 16, train=True)
    run_step(build_model(resolve_model("hf/mobilevit-small#body")), 0, train=True)


def test_positions_can_be_raised() -> None:
    gpt2 = resolve_model("gpt2", "forward")
    with pytest.raises(DoesNotFitError):
        build_model(gpt2, seq_len=2048)
    built = build_model(gpt2, seq_len=2048, raise_positions=True, train=False)
    assert n_parameters(built.module) == 124_439_808 + 1024 * 768
    run_step(built, 2048, train=False)
    shorter = build_model(gpt2, seq_len=16, raise_positions=True)
    assert n_parameters(shorter.module) == 124_439_808


def test_mpt_has_as_many_positions_as_tokens() -> None:
    short, long = (build_model(resolve_model("mpt-125m"), seq_len=n).module for n in (128, 1024))
    assert n_parameters(long) - n_parameters(short) == (1024 - 128) * 768
    output = run_step(
        build_model(resolve_model("mpt-125m", "forward"), seq_len=8, train=False), 8, train=False
    )
    assert output["logits"].shape == (2, 8, 50368)


def test_eager_vit_equals_the_fused_one() -> None:
    from joulecast.workload.models.networks import use_eager_attention

    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    fused, _ = module(x, x, x, need_weights=False)
    use_eager_attention(module)
    eager, _ = module(x, x, x, need_weights=False)
    assert torch.allclose(fused, eager, atol=1e-6)


def test_switch_experts_share_tokens_evenly() -> None:
    from joulecast.workload.models.networks import BalancedExperts

    experts = torch.nn.ModuleDict({str(i): torch.nn.Linear(3, 3) for i in range(4)})
    balanced = BalancedExperts(experts, expert_capacity=64)
    assert balanced.tokens_per_expert(2, 512) == 2 * 64  # the capacity binds
    assert balanced.tokens_per_expert(2, 100) == 2 * 25  # an equal share
    assert balanced(torch.zeros(8, 3), torch.ones(8, 1), 2).shape == (8, 3)
    built = build_model(resolve_model("config/switchxl4"), train=False)
    assert "equal shares" in built.notes[0]


def test_shufflenet_for_small_images() -> None:
    def conv_norm(n_in: int, n_out: int, area: int) -> int:
        return n_in * n_out * area + n_out + 2 * n_out

    n, n_in = conv_norm(3, 24, 9), 24
    for width, n_units in ((116, 4), (232, 8), (464, 4)):
        half = width // 2
        n += conv_norm(n_in, n_in, 1) + 2 * conv_norm(1, n_in, 9) + 2 * conv_norm(n_in, half, 1)
        n += (n_units - 1) * (2 * conv_norm(half, half, 1) + conv_norm(1, half, 9))
        n_in = width
    n += conv_norm(464, 1024, 1) + 1024 * 100 + 100
    built = build_model(resolve_model("shufflenet-v2-cifar"))
    assert n_parameters(built.module) == n
    assert run_step(built, 0, train=True).shape == (2, 100)


def test_image_sizes() -> None:
    built = build_model(resolve_model("vit"), image_size=384)
    assert built.image_size == 384
    assert n_parameters(built.module) == 86_567_656 + (24**2 - 14**2) * 768
    assert run_step(built, 0, train=True).shape == (2, 1000)
    assert build_model(resolve_model("hf/vit-base-patch16-224"), image_size=32).make_inputs(1, 0)[
        "pixel_values"
    ].shape == (1, 3, 32, 32)
    with pytest.raises(DoesNotFitError, match="no multiple"):
        build_model(resolve_model("vit"), image_size=225)
    with pytest.raises(UsageError, match="at least 1"):
        build_model(resolve_model("vit"), image_size=0)


def test_old_timm_names_have_the_parameters_they_had() -> None:
    for text, millions in {
        "convnext_nano_hnf": 15.59,
        "densenet121d": 8.00,
        "ig_resnext101_32x48d": 828.41,
        "gluon_xception65": 39.92,
        "tv_resnext50_32x4d": 25.03,
    }.items():
        built = build_model(resolve_model(f"timm/{text}"))
        assert n_parameters(built.module) / 1e6 == pytest.approx(millions, abs=0.005)
        assert text in built.notes[0]


def test_every_old_timm_name_maps_to_a_present_one() -> None:
    timm = pytest.importorskip("timm")
    present = set(timm.list_models())
    for old, entry in naming.architectures()["timm"]["renamed"].items():
        assert old not in present
        assert entry["present"] in present
        assert entry["reason"]


def test_timm_attention_is_as_asked_and_its_switch_set_back() -> None:
    layers = importlib.import_module("timm.layers")
    before = layers.use_fused_attn()
    for attention, fused in (("eager", False), ("sdpa", True)):
        built = build_model(resolve_model("timm/deit_tiny_patch16_224"), attention=attention)
        found = {part.fused_attn for part in built.module.modules() if hasattr(part, "fused_attn")}
        assert found == {fused}
    assert layers.use_fused_attn() is before


def test_timm_image_sizes() -> None:
    built = build_model(resolve_model("timm/deit_tiny_patch16_224"), image_size=384)
    assert run_step(built, 0, train=True).shape == (2, 1000)
    with pytest.raises(DoesNotFitError, match="does not take images of 230"):
        build_model(resolve_model("timm/jx_nest_tiny"), image_size=230)
    with pytest.raises(UsageError, match="no longer has"):
        build_model(ModelName(family="timm", name="no_such", task="image-classification"))


def test_unknown_attention() -> None:
    with pytest.raises(UsageError, match="unknown attention"):
        build_model(resolve_model("bert"), attention="flash")


@pytest.mark.parametrize(
    ("text", "package"),
    [("bert", "torch"), ("bert", "transformers"), ("resnet50", "torchvision"), ("timm/resnet50", "timm")],
)
def test_missing_extra_says_how_to_get_it(text: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'joulecast\[torch\]'"):
        build_model(resolve_model(text))


# ---- one's own

OWN = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(100, 8)
            self.out = nn.Linear(8, 100)

        def forward(self, ids):
            return self.out(self.embed(ids))

    def inputs(batch_size, seq_len=32):
        return torch.ones(batch_size, seq_len, dtype=torch.long)

    def loss(output, inputs):
        return nn.functional.cross_entropy(output.flatten(0, 1), inputs[0].flatten())

    def make_model():
        return Net(), inputs, loss
"""


def own(tmp_path: Any, text: str, function: str = "make_model") -> ModelName:
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return resolve_model(f"{path}:{function}")


def test_own_model(tmp_path: Any) -> None:
    built = build_model(own(tmp_path, OWN))
    assert built.is_sequence
    assert built.default_seq_len == 32
    assert all(p.is_meta for p in built.module.parameters())
    assert run_step(built, 32, train=True).shape == (2, 32, 100)
    assert str(tmp_path) not in sys.path


def test_own_model_of_images_without_loss(tmp_path: Any) -> None:
    text = """
        import torch
        class Net(torch.nn.Linear):
            def forward(self, x):
                return {"loss": super().forward(x).mean()}
        def make_model():
            return Net(4, 4), lambda batch_size: {"x": torch.zeros(batch_size, 4)}
    """
    built = build_model(own(tmp_path, text))
    assert not built.is_sequence
    assert built.default_seq_len is None
    run_step(built, 0, train=True)


@pytest.mark.parametrize(
    "body",
    [
        "net.scale = float(torch.linspace(0, 1, 3)[1])",  # reads a value: impossible on meta
        "net.kept = torch.ones(3)",  # a tensor that is no buffer
        "loss = nn.CrossEntropyLoss(weight=torch.ones(100))",
    ],
)
def test_own_model_is_real_where_meta_would_not_do(tmp_path: Any, body: str) -> None:
    text = textwrap.dedent(OWN).partition("def make_model")[0]
    lines = [
        "def make_model():",
        "net, loss = Net(), lambda o, i: o.mean()",
        body,
        "return net, inputs, loss",
    ]
    text += "\n    ".join(lines)
    built = build_model(own(tmp_path, text))
    assert not any(p.is_meta for p in built.module.parameters())


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("def other(): ...", UsageError, "no function 'make_model'; it has: other"),
        ("x = 1", UsageError, "it has: none"),
        ("def make_model(", TraceError, "SyntaxError"),
        ("import no_such_package", TraceError, "ModuleNotFoundError"),
        ("def make_model():\n    raise ValueError('bad\\nsizes')", TraceError, r"ValueError: bad \(line 2\)"),
        ("def make_model(n): ...", TraceError, "TypeError"),
        ("def make_model(): return 1", UsageError, r"returned \(int\)"),
        ("import torch\ndef make_model(): return torch.nn.ReLU()", UsageError, r"returned \(ReLU\)"),
        (
            "import torch\ndef make_model(): return torch.nn.ReLU(), 3",
            UsageError,
            "return .module, make_inputs.",
        ),
    ],
)
def test_own_model_errors_are_one_line(tmp_path: Any, text: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        build_model(own(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_own_inputs_errors(tmp_path: Any) -> None:
    head = "import torch\ndef make_model(): return torch.nn.ReLU(), inputs\n"
    wrong = build_model(own(tmp_path, head + "def inputs(*sizes): return [1]"))
    with pytest.raises(UsageError, match="returned list"):
        wrong.make_inputs(1, 1)
    raising = build_model(own(tmp_path, head + "def inputs(b, s): return 1 / 0"))
    with pytest.raises(TraceError, match=r"ZeroDivisionError: division by zero \(line 3\)"):
        raising.make_inputs(1, 1)
    opaque = build_model(own(tmp_path, "import torch\ndef make_model(): return torch.nn.ReLU(), dict"))
    assert opaque.is_sequence


def test_own_model_missing_file(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="no file"):
        build_model(resolve_model(f"{tmp_path}/absent.py:make"))


def test_the_documented_convention_is_the_code(tmp_path: Any) -> None:
    from joulecast.workload.models import own as module

    assert "(module, make_inputs, loss)" in (inspect.getdoc(module) or "")

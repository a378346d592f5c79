"""The Python interface on a module of one's own."""

import pytest

import joulecast
from joulecast.cli.main import run

torch = pytest.importorskip("torch")

OWN_MODELS = """
import torch
from torch import nn


def images():
    def make_inputs(batch_size, seq_len):
        return torch.zeros(batch_size, 64), torch.zeros(batch_size, dtype=torch.long)

    def loss(output, inputs):
        return nn.functional.cross_entropy(output, inputs[1])

    return nn.Linear(64, 10), make_inputs, loss


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 4)

    def forward(self, x):
        return self.layer(x).sum()


def texts():
    def make_inputs(batch_size, seq_len=24):
        return (torch.zeros(batch_size, seq_len, 32),)

    return Tagger(), make_inputs


def branching():
    class Branching(nn.Module):
        def forward(self, x):
            return x.sum() if x.sum() > 0 else x.mean()

    return Branching(), lambda batch_size, seq_len: (torch.zeros(batch_size, 3),)
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN_MODELS)
    return lambda function: f"{path}:{function}"


def test_own_model_of_a_file(own):
    (p,) = joulecast.predict(own("images"), gpu="t4", batch_size=16)
    assert p.model.endswith("mine.py:images")
    assert p.model_flop == pytest.approx(2 * 2 * 16 * 64 * 10)
    assert p.seq_len is None


def test_own_sequences_take_their_default_length(own):
    (default,) = joulecast.predict(own("texts"), gpu="t4", batch_size=16)
    (longer,) = joulecast.predict(own("texts"), gpu="t4", batch_size=16, seq_len=48)
    assert (default.seq_len, longer.seq_len) == (24, 48)
    assert longer.model_flop == pytest.approx(2 * default.model_flop)
    assert longer.tokens_per_s is not None


@pytest.mark.parametrize("function", ["branching", "absent"])
def test_own_model_that_cannot_be_traced(own, function, capsys):
    code = run(["predict", own(function), "--gpu", "t4"])
    out, err = capsys.readouterr()
    assert code in {1, 2}
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("joulecast: error: ")


def make_inputs(batch_size: int, _seq_len: int):
    return torch.zeros(batch_size, 64), torch.zeros(batch_size, dtype=torch.long)


def loss(output, inputs):
    return torch.nn.functional.cross_entropy(output, inputs[1])


def test_trace_of_a_module_by_hand():
    module = torch.nn.Linear(64, 10)
    before = {name: parameter.clone() for name, parameter in module.named_parameters()}
    found = joulecast.trace(module, make_inputs, loss=loss, batch_size=16, optimizer="adamw")
    # forward and weight gradient; the input needs none
    assert found.flop == pytest.approx(2 * 2 * 16 * 64 * 10)
    assert found.n_parameters == 650
    assert found.coverage_frac == 1.0
    assert found.configuration["model"] == "Linear"
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, before[name])


def test_a_module_that_raises_says_so():
    class Broken(torch.nn.Module):
        def forward(self, x):
            raise RuntimeError("no such branch")

    with pytest.raises(joulecast.JoulecastError, match="no such branch"):
        joulecast.trace(Broken(), make_inputs, loss=loss, batch_size=4)


def loss_of_labels(output, inputs):
    return torch.nn.functional.cross_entropy(output, inputs[1])


def test_a_module_in_hand_with_example_tensors():
    module = torch.nn.Linear(64, 10)
    examples = (torch.randn(16, 64), torch.zeros(16, dtype=torch.long))

    step = joulecast.trace(module, examples, loss=loss_of_labels)
    predicted = joulecast.predict(module, examples, loss=loss_of_labels, gpu=["t4", "l4"], precision="fp16")

    assert step.configuration["batch_per_gpu"] == 16
    assert step.model_flop == 2 * 2 * 16 * 64 * 10
    assert [p.model for p in predicted] == ["Linear", "Linear"]
    assert predicted[0].batch_per_gpu == 16


def test_a_module_in_hand_at_another_batch_and_with_checkpointing():
    blocks = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(4))
    )
    examples = (torch.zeros(2, 8), torch.zeros(2, dtype=torch.long))

    plain = joulecast.trace(torch.nn.Sequential(blocks), examples, loss=loss_of_labels, batch_size=32)
    spared = joulecast.trace(
        torch.nn.Sequential(blocks), examples, loss=loss_of_labels, batch_size=32, checkpointing=True
    )

    assert spared.flop > plain.flop
    assert spared.model_flop == plain.model_flop


def test_example_tensors_must_agree_on_the_batch():
    with pytest.raises(joulecast.JoulecastError, match="first axis"):
        joulecast.trace(torch.nn.Linear(4, 2), (torch.zeros(3, 4), torch.zeros(2)), loss=loss_of_labels)


class Switching(torch.nn.Module):
    """Another layer from a batch of 20 on."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        x = self.first(x)
        return (self.second(x).exp() if x.shape[0] > 20 else x).mean()


def test_a_module_that_switches_with_the_batch_is_traced_at_the_one_asked_for():
    small = joulecast.trace(Switching(), lambda b, _: (torch.zeros(b, 8),), batch_size=8)
    large = joulecast.trace(Switching(), lambda b, _: (torch.zeros(b, 8),), batch_size=32)

    assert large.n_kernels > small.n_kernels
    assert any("not linear in the batch" in note for note in large.notes)

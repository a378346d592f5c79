"""Rows made from dimensions are the rows that a trace of the same call records."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from joulecast.scenario import Scenario, own_module, settle_step, workload_of
from joulecast.workload.operator_table import DIMENSIONS, KINDS, OPTIMIZER_STREAMS, operator_table


def columns(*rows):
    found = {name: np.array([row[name] for row in rows]) for name in ("op", "phase", "dtype")}
    for name in DIMENSIONS:
        found[name] = np.array([float(row.get(name, np.nan)) for row in rows])
    return found


def row(op, phase="forward", dtype="fp32", **sizes):
    return {"op": op, "phase": phase, "dtype": dtype, **sizes}


class Sequence(nn.Module):
    """Every operator of a sequence model, on 1024 tokens of width 256."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5000, 256)
        self.norm = nn.LayerNorm(256)
        self.linear = nn.Linear(256, 512, bias=False)

    def forward(self, tokens):
        h = self.norm(self.embedding(tokens))
        h = functional.gelu(self.linear(h))
        h = functional.dropout(h, 0.1, self.training)
        return torch.softmax(h, -1).sum()


class Image(nn.Module):
    """Every operator of an image model, on 8 images of 32 x 32 pixels."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(16, 16, 1, bias=False)
        self.conv = nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False)
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False)
        self.norm = nn.BatchNorm2d(32)

    def forward(self, x):
        x = torch.relu(self.norm(self.depthwise(self.conv(self.first(x)))))
        return functional.max_pool2d(x, 3, 2, 1).sum()


class Attention(nn.Module):
    """Attention whose operands take gradients."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, 64))

    def forward(self, x):
        q, k, v = (x * self.scale[i] for i in range(3))
        return functional.scaled_dot_product_attention(q, k, v).sum()


def traced(module, inputs, optimizer="adamw", **options):
    own, batch_size = own_module(module, inputs)
    scenario = Scenario(model=own.name, gpu="cpu", optimizer=optimizer, batch_size=batch_size, **options)
    return workload_of(settle_step(scenario, own), own=own).table


@pytest.fixture(scope="module")
def sequence():
    return traced(Sequence(), (torch.zeros(8, 128, dtype=torch.long),))


@pytest.fixture(scope="module")
def image():
    return traced(Image(), (torch.zeros(8, 16, 32, 32),))


def same(table, made, operator, phase, **where):
    """Assert that the one row of an operator in a phase has the numbers of a made one."""
    chosen = (table.operator == operator) & (table.phase == phase)
    for name, value in where.items():
        chosen &= getattr(table, name) == value
    assert np.sum(chosen) == 1
    i = int(np.flatnonzero(chosen)[0])
    assert made.kind[0] == table.kind[i]
    assert made.phase[0] == table.phase[i]
    for name in (
        "batch",
        "m",
        "n",
        "k",
        "flop",
        "n_kernels",
        "kernel_area",
        "stride",
        "groups",
        "group_width",
    ):
        assert getattr(made, name)[0] == getattr(table, name)[i], name
    for name in ("read_bytes", "written_bytes"):  # weights of norms, statistics: small beside the rest
        assert getattr(made, name)[0] == pytest.approx(getattr(table, name)[i], rel=0.02), name


@pytest.mark.parametrize(
    ("op", "phase", "operator", "traced_phase"),
    [
        ("linear", "forward", "mm", "forward"),
        ("linear", "dgrad", "mm", "dgrad"),
        ("linear", "wgrad", "mm", "wgrad"),
    ],
)
def test_products_of_each_phase(sequence, op, phase, operator, traced_phase):
    made = operator_table(columns(row(op, phase, b=1, m=1024, n=512, k=256)))
    same(sequence, made, operator, traced_phase)


@pytest.mark.parametrize(
    ("made", "operator", "phase"),
    [
        (row("gelu", b=1024, h=512), "gelu", "forward"),
        (row("gelu", "dgrad", b=1024, h=512), "gelu_backward", "backward"),
        (row("dropout", b=1024, h=512), "native_dropout", "forward"),
        (row("dropout", "dgrad", b=1024, h=512), "native_dropout_backward", "backward"),
        (row("softmax", b=1024, h=512), "_softmax", "forward"),
        (row("ln", b=1024, h=256), "native_layer_norm", "forward"),
        (row("ln", "dgrad", b=1024, h=256), "native_layer_norm_backward", "backward"),
        (row("embedding", b=1024, h=256, n=5000), "embedding", "forward"),
        (row("embedding", "wgrad", b=1024, h=256, n=5000), "embedding_dense_backward", "backward"),
    ],
)
def test_streams_of_sequences(sequence, made, operator, phase):
    same(sequence, operator_table(columns(made)), operator, phase)


_CONV = {"b": 8, "c_in": 16, "c_out": 32, "kernel": 3, "size": 32, "stride": 2, "pad": 1}
_DEPTHWISE = {"b": 8, "c_in": 32, "c_out": 32, "kernel": 3, "size": 16, "stride": 1, "pad": 1, "groups": 32}
_POOL = {"b": 8, "c_in": 32, "kernel": 3, "size": 16, "stride": 2, "pad": 1}


@pytest.mark.parametrize(
    ("made", "operator", "phase", "where"),
    [
        (row("conv", **_CONV), "convolution", "forward", {"n": 32}),
        (row("conv", "dgrad", **_CONV), "convolution_backward", "dgrad", {"n": 32}),
        (row("conv", "wgrad", **_CONV), "convolution_backward", "wgrad", {"n": 32}),
        (row("conv", **_DEPTHWISE), "convolution", "forward", {"groups": 32}),
        (row("conv", "dgrad", **_DEPTHWISE), "convolution_backward", "dgrad", {"groups": 32}),
        (row("bn", b=8, c_in=32, size=16), "native_batch_norm", "forward", {}),
        (row("bn", "dgrad", b=8, c_in=32, size=16), "native_batch_norm_backward", "backward", {}),
        (row("relu", b=8, h=8192), "relu", "forward", {}),
        (row("relu", "dgrad", b=8, h=8192), "threshold_backward", "backward", {}),
        (row("max-pool", **_POOL), "max_pool2d_with_indices", "forward", {}),
    ],
)
def test_images(image, made, operator, phase, where):
    same(image, operator_table(columns(made)), operator, phase, **where)


@pytest.fixture(scope="module")
def attention():
    return traced(Attention(), (torch.zeros(4, 12, 128, 64),))


@pytest.mark.parametrize("phase", ["forward", "dgrad"])
def test_attention(attention, phase):
    sizes = {"b": 4, "seq": 128, "heads": 12, "kv_heads": 12, "head_dim": 64}
    made = operator_table(columns(row("attention-full", phase, **sizes)))
    i = int(np.flatnonzero((attention.kind == "attention") & (attention.phase == phase))[0])
    for name in ("batch", "m", "n", "k", "flop", "n_kernels"):
        assert getattr(made, name)[0] == getattr(attention, name)[i], name
    for name in ("read_bytes", "written_bytes"):  # the kernel's own sums over rows beside the operands
        assert getattr(made, name)[0] == pytest.approx(getattr(attention, name)[i], rel=0.25), name


@pytest.mark.parametrize("name", OPTIMIZER_STREAMS)
def test_an_optimizer_moves_what_its_calls_move(name):
    table = traced(Sequence(), (torch.zeros(2, 8, dtype=torch.long),), optimizer=name)
    rows = table.phase == "optimizer"
    n_elements = 5000 * 256 + 2 * 256 + 256 * 512
    made = operator_table(columns(row(name, "optimizer", b=1, h=n_elements)))
    assert made.n_calls[0] == np.sum(table.n_calls[rows])
    for column in ("read_bytes", "written_bytes"):
        total = np.sum((getattr(table, column) * table.n_calls)[rows])
        assert getattr(made, column)[0] * made.n_calls[0] == pytest.approx(total)


def test_tf32_is_fp32_to_a_table():
    made = operator_table(columns(row("linear", dtype="tf32", b=1, m=8, n=4, k=2)))
    assert made.dtype.tolist() == ["fp32"]
    assert made.read_bytes[0] == 4 * (8 * 2 + 2 * 4)


def test_every_operator_has_a_formula():
    sizes = dict.fromkeys(DIMENSIONS, 4)
    for op in KINDS:
        made = operator_table(columns(row(op, **{**sizes, "kernel": 1, "pad": 0, "stride": 1, "groups": 1})))
        assert made.read_bytes[0] > 0, op

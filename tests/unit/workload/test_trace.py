"""Traces of small modules, checked by hand, by PyTorch's own counts, and by real allocations."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from joulecast.errors import TraceError, UsageError
from joulecast.workload.compose import workload
from joulecast.workload.table import OpKind, Phase
from joulecast.workload.trace import count_parameters, trace_step


def cross_entropy(output, inputs):
    return functional.cross_entropy(output, inputs[1])


def vectors(width):
    return lambda batch, _seq_len: (torch.zeros(batch, width), torch.zeros(batch, dtype=torch.int64))


def images(size, channels=3):
    return lambda batch, _: (torch.zeros(batch, channels, size, size), torch.zeros(batch, dtype=torch.int64))


def mlp():
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))


def step_total(table, column, phase=None):
    values = getattr(table, column) * table.n_calls
    return float(values.sum() if phase is None else values[table.phase == phase].sum())


class Attention(nn.Module):
    def __init__(self, causal=False):
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.out = nn.Linear(64, 64)
        self.causal = causal

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(x.shape)).mean()


def sequences(batch, seq_len):
    return (torch.zeros(batch, seq_len, 64),)


# --- work -----------------------------------------------------------------------------------------


def test_a_linear_layer_and_its_gradients_by_hand():
    trace = trace_step(nn.Sequential(nn.Linear(32, 10)), vectors(32), loss=cross_entropy)

    table = trace.table(7)

    forward = 2 * 7 * 32 * 10
    assert step_total(table, "flop", Phase.FORWARD) == forward
    assert step_total(table, "flop", Phase.WGRAD) == forward
    assert step_total(table, "flop", Phase.DGRAD) == 0  # the input needs no gradient


def test_the_first_layer_needs_no_data_gradient_and_the_second_does():
    table = trace_step(mlp(), vectors(32), loss=cross_entropy).table(3)

    assert step_total(table, "flop", Phase.DGRAD) == 2 * 3 * 64 * 10


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_a_trace_at_two_batch_sizes_is_exact_at_any_other(batch):
    trace = trace_step(mlp(), vectors(32), loss=cross_entropy)
    direct = trace_step(mlp(), vectors(32), loss=cross_entropy, batch_sizes=(batch, batch + 1))

    a, b = trace.table(batch), direct.table(batch)
    for name in ("flop", "read_bytes", "written_bytes", "n_kernels"):
        assert step_total(a, name) == pytest.approx(step_total(b, name), rel=1e-12)
    assert trace.peak_live_bytes(batch) == pytest.approx(direct.peak_live_bytes(batch), rel=0.01)


@pytest.mark.parametrize(("batch", "seq_len", "rel"), [(1, 128, 1e-12), (4, 320, 1e-12), (4, 300, 1e-3)])
def test_three_lengths_determine_every_other(batch, seq_len, rel):
    # The memory-efficient kernel pads its row sums to 32 queries: exact there, within a thousandth between.
    trace = trace_step(Attention(causal=True), sequences, seq_lens=(32, 64, 96))
    direct = trace_step(Attention(causal=True), sequences, seq_lens=(seq_len,))

    a, b = trace.table(batch, seq_len), direct.table(batch, seq_len)
    for name in ("flop", "model_flop", "read_bytes", "written_bytes"):
        assert step_total(a, name) == pytest.approx(step_total(b, name), rel=rel)


def test_work_that_is_quadratic_in_the_batch_is_said_to_be():
    class Contrastive(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(32, 16)

        def forward(self, x):
            y = self.layer(x)
            return functional.cross_entropy(y @ y.t(), torch.arange(x.shape[0]))

    trace = trace_step(Contrastive(), lambda b, _: (torch.zeros(b, 32),), fallback_batch_size=12)

    assert not trace.batch_exact
    assert trace.batch_traced == 12
    assert any("not linear" in note for note in trace.notes)


def test_sdpa_is_counted_and_runs_as_flash_or_memory_efficient():
    flash = trace_step(Attention(), sequences, variant="amp-bf16", seq_lens=(128,)).table(2, 128)
    older = trace_step(Attention(), sequences, variant="amp-bf16", seq_lens=(128,), flash=False).table(2, 128)
    full = trace_step(Attention(), sequences, seq_lens=(128,)).table(2, 128)

    for table, name in ((flash, "flash"), (older, "efficient"), (full, "efficient")):
        rows = table.rows((table.kind == OpKind.ATTENTION) & (table.phase == Phase.FORWARD))
        assert name in rows.operator[0]
        assert step_total(rows, "flop") == 4 * 2 * 4 * 128 * 128 * 16


def test_attention_of_the_issue_is_12_582_912_flop():
    class Only(nn.Module):
        def forward(self, q):
            return functional.scaled_dot_product_attention(q, q, q)

    trace = trace_step(Only(), lambda b, _: (torch.zeros(b, 12, 64, 64),), mode="forward")

    assert step_total(trace.table(1), "flop") == 12_582_912


def test_a_boolean_mask_reaches_the_kernel():
    class Masked(nn.Module):
        def forward(self, q):
            mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool)
            return functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    table = trace_step(Masked(), lambda b, _: (torch.zeros(b, 4, 32, 16),), mode="forward").table(2)

    assert table.masked[table.kind == OpKind.ATTENTION] == [1.0]


def test_casts_under_autocast_are_kernels():
    table = trace_step(mlp(), vectors(32), loss=cross_entropy, variant="amp-bf16").table(4)

    casts = table.rows((table.operator == "_to_copy") & (table.phase == Phase.FORWARD))
    # 2 weights, 2 biases, the input, activations to FP32 for the norm and back, logits to FP32 for the loss
    assert casts.n_calls.sum() == 8
    assert set(table.dtype[table.kind == OpKind.GEMM]) == {"bf16"}
    assert set(table.dtype[table.kind == OpKind.LAYER_NORM]) == {"fp32"}  # as CUDA's autocast


def test_autocast_of_softmax_is_fused_in_fp16_and_a_cast_in_bf16():
    class Softmax(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x):
            return self.layer(x).softmax(-1).mean()

    def casts(variant):
        table = trace_step(Softmax(), lambda b, _: (torch.zeros(b, 32),), variant=variant).table(2)
        forward = (table.operator == "_to_copy") & (table.phase == Phase.FORWARD)
        return table.n_calls[forward].sum()

    assert casts("amp-bf16") == casts("amp-fp16") + 1


def test_dropout_is_one_kernel_with_a_saved_mask():
    module = nn.Sequential(nn.Linear(32, 10), nn.Dropout(0.1))

    table = trace_step(module, vectors(32), loss=cross_entropy).table(4)

    forward = table.rows((table.operator == "native_dropout") & (table.phase == Phase.FORWARD))
    assert forward.n_calls.sum() == 1
    assert forward.written_bytes[0] == 4 * 10 * (4 + 1)


def test_views_are_nothing():
    class Views(nn.Module):
        def forward(self, x):
            return x.view(-1, 8).t().unsqueeze(0).expand(3, -1, -1)

    assert len(trace_step(Views(), lambda b, _: (torch.zeros(b, 8),), mode="forward").table(2)) == 0


def test_frozen_parameters_have_no_weight_gradient():
    module = mlp()
    module[0].weight.requires_grad_(False)

    trace = trace_step(module, vectors(32), loss=cross_entropy)

    assert step_total(trace.table(3), "flop", Phase.WGRAD) == 2 * 3 * 64 * 10
    assert trace.parameters.n_trainable == trace.parameters.n_parameters - 32 * 64


def test_channels_last_is_recorded():
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )

    last = trace_step(module, images(16), loss=cross_entropy, memory_format="channels_last").table(2)
    first = trace_step(module, images(16), loss=cross_entropy).table(2)

    convolutions = last.kind == OpKind.CONVOLUTION
    assert np.all(last.channels_last[convolutions] == 1)
    assert not np.any(first.channels_last)


def test_module_paths_replace_layer_indices():
    table = trace_step(mlp(), vectors(32), loss=cross_entropy).table(2)

    assert set(table.module[table.kind == OpKind.GEMM]) == {"*"}
    assert "" not in set(
        table.module[table.phase == Phase.WGRAD]
    )  # the backward pass knows where it came from


def test_an_unknown_custom_operator_lowers_coverage_and_is_named():
    @torch.library.custom_op("joulecast_test::mystery", mutates_args=())
    def mystery(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @mystery.register_fake
    def _(x):
        return torch.empty_like(x)

    class Custom(nn.Module):
        def forward(self, x):
            return torch.ops.joulecast_test.mystery(x)

    trace = trace_step(Custom(), lambda b, _: (torch.zeros(b, 1000),), mode="forward")
    step = workload(trace, batch_size=2, mode="forward")

    assert step.features["coverage"] < 1
    assert "mystery" in step.table.operator[step.table.counted == 0]


def test_a_compiled_module_is_traced_as_eager_and_says_so():
    plain = trace_step(mlp(), vectors(32), loss=cross_entropy)
    compiled = trace_step(torch.compile(mlp()), vectors(32), loss=cross_entropy)

    assert step_total(compiled.table(4), "flop") == step_total(plain.table(4), "flop")
    assert any("eager" in note for note in compiled.notes)


# --- parameters, state of the module --------------------------------------------------------------


def test_tied_and_shared_parameters_count_once_and_their_work_per_use():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(32, 32, bias=False)
            self.head = nn.Linear(32, 32, bias=False)
            self.head.weight = self.layer.weight

        def forward(self, x):
            return self.head(self.layer(self.layer(x))).mean()

    module = Shared()
    trace = trace_step(module, lambda b, _: (torch.zeros(b, 32),))

    assert trace.parameters.n_parameters == sum(p.numel() for p in module.parameters()) == 1024
    assert trace.parameters.n_shared_uses == 2
    assert step_total(trace.table(2), "flop", Phase.FORWARD) == 3 * 2 * 2 * 32 * 32
    assert trace.optimizers["adamw"].state_bytes == 2 * 4 * 1024


def test_the_module_is_left_as_it_was():
    module = mlp()
    module.eval()
    before = [(name, id(p), p.clone()) for name, p in module.named_parameters()]

    trace_step(module, vectors(32), loss=cross_entropy, variant="amp-bf16", checkpointing=False)

    assert not module.training
    assert all(p.grad is None for p in module.parameters())
    for (name, identity, value), (name_after, parameter) in zip(
        before, module.named_parameters(), strict=True
    ):
        assert (name, identity) == (name_after, id(parameter))
        assert torch.equal(value, parameter)
    module(torch.zeros(2, 32))  # and it still runs


def test_parameters_of_a_16_bit_module_take_two_bytes():
    assert count_parameters(mlp(), torch.bfloat16).parameter_bytes == 2 * sum(
        p.numel() for p in mlp().parameters()
    )


# --- optimizers, accumulation, clipping -----------------------------------------------------------


def n_parameters():
    return sum(p.numel() for p in mlp().parameters())


def test_fused_adamw_reads_four_lists_and_writes_three():
    trace = trace_step(mlp(), vectors(32), loss=cross_entropy, optimizers=("fused-adamw",))

    step = trace.optimizers["fused-adamw"]
    assert step.table.read_bytes.sum() == 4 * 4 * n_parameters()
    assert step.table.written_bytes.sum() == 3 * 4 * n_parameters()
    assert step.state_bytes == 2 * 4 * n_parameters()


def test_sgd_keeps_nothing_and_momentum_one_copy():
    trace = trace_step(mlp(), vectors(32), loss=cross_entropy, optimizers=("sgd", "sgd-momentum"))

    assert trace.optimizers["sgd"].state_bytes == 0
    assert trace.optimizers["sgd-momentum"].state_bytes == 4 * n_parameters()


def test_a_step_scaled_from_a_sample_equals_the_step_over_all_parameters():
    from joulecast.workload import optimizers

    shapes = [(64, 32), (64,), (10, 64), (10,)]
    for name in ("sgd-momentum", "adam", "adamw", "adadelta", "adagrad", "rmsprop", "fused-adam"):
        scaled = optimizers.trace_optimizer(shapes, name, torch.float32)
        whole = optimizers._recorded_step(shapes, name, torch.float32)

        for column in ("read_bytes", "written_bytes", "n_kernels"):
            assert step_total(scaled.table, column) == step_total(whole.table, column), (name, column)
        assert scaled.state_bytes == whole.state_bytes
        assert scaled.temporary_bytes == whole.temporary_bytes


def test_adafactor_keeps_rows_and_columns():
    trace = trace_step(
        nn.Sequential(nn.Linear(32, 10)), vectors(32), loss=cross_entropy, optimizers=("adafactor",)
    )

    assert 0 < trace.optimizers["adafactor"].state_bytes < 4 * 330


def test_master_weights_are_state_and_two_copies():
    trace = trace_step(mlp(), vectors(32), loss=cross_entropy, variant="pure-fp16", optimizers=("adamw",))

    pure, master = trace.optimizers["adamw"], trace.optimizers["adamw+master"]
    assert pure.state_bytes == 2 * 2 * n_parameters()
    assert master.state_bytes == 3 * 4 * n_parameters()
    assert "master_copy" in master.table.operator


def test_eight_bit_optimizers_are_refused_with_a_reason():
    with pytest.raises(UsageError, match="quantised"):
        trace_step(mlp(), vectors(32), loss=cross_entropy, optimizers=("adamw8bit",))


def test_accumulation_keeps_the_flop_per_sample():
    trace = trace_step(mlp(), vectors(32), loss=cross_entropy)

    one = workload(trace, batch_size=8, accumulate=1)
    eight = workload(trace, batch_size=1, accumulate=8)

    assert step_total(one.table, "flop") == step_total(eight.table, "flop")
    assert one.batch_size == eight.batch_size == 8
    assert eight.peak_live_bytes < one.peak_live_bytes * 2


def test_clipping_and_scaling_read_every_gradient():
    trace = trace_step(mlp(), vectors(32), loss=cross_entropy, variant="amp-fp16")

    plain = workload(trace, batch_size=4, precision="bf16")
    scaled = workload(trace, batch_size=4, precision="fp16", clip=True)

    more = step_total(scaled.table, "read_bytes") - step_total(plain.table, "read_bytes")
    assert more == 3 * 4 * n_parameters()


# --- memory ---------------------------------------------------------------------------------------


class Chain(nn.Module):
    """Blocks of two wide layers: each saves two activations of ``width``."""

    def __init__(self, n_blocks=8, width=256):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
            for _ in range(n_blocks)
        )

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.mean()


def chain_inputs(batch, _):
    return (torch.zeros(batch, 256),)


def test_checkpointing_recomputes_each_block_and_saves_memory():
    plain = trace_step(Chain(), chain_inputs)
    checkpointed = trace_step(Chain(), chain_inputs, checkpointing=True)
    a, b = plain.table(4), checkpointed.table(4)

    assert step_total(b, "flop", Phase.RECOMPUTE) == step_total(a, "flop", Phase.FORWARD)
    assert step_total(b, "model_flop") == step_total(a, "model_flop")
    assert step_total(b, "flop", Phase.WGRAD) == step_total(a, "flop", Phase.WGRAD)
    # at a large batch: 16 saved tensors (the output of each Tanh) against 8 inputs and one block
    large = 100_000
    ratio = checkpointed.peak_live_bytes(large) / plain.peak_live_bytes(large)
    assert 0.5 < ratio < 0.75


def test_checkpointing_without_blocks_is_refused():
    with pytest.raises(TraceError, match="no repeated blocks"):
        trace_step(nn.Sequential(nn.Linear(32, 10)), vectors(32), loss=cross_entropy, checkpointing=True)


def test_the_peak_of_a_chain_by_hand():
    trace = trace_step(Chain(n_blocks=2), chain_inputs)

    n = 1_000_000.0
    one = n * 256 * 4
    # input, four Tanh outputs saved; and at the start of the backward pass the gradient of the last Tanh's
    # output made dense beside the gradient of its input
    assert trace.peak_live_bytes(n) / one == pytest.approx(7, abs=1.01)


def real_peak_bytes(module, inputs):
    """Return the peak of what PyTorch's CPU allocator hands out during a step."""

    def step():
        module.zero_grad(set_to_none=True)
        cross_entropy(module(inputs[0]), inputs).backward()

    step()
    module.zero_grad(set_to_none=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return float(np.max(np.cumsum(sizes)))


def small_cnn():
    # Pointwise convolutions: the CPU's kernels for wider ones allocate what a GPU's do not.
    return nn.Sequential(
        nn.Conv2d(3, 32, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def wide_mlp():
    return nn.Sequential(
        nn.Linear(256, 1024),
        nn.GELU(),
        nn.LayerNorm(1024),
        nn.Linear(1024, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


@pytest.mark.parametrize("batch", [16, 64])
@pytest.mark.parametrize(("make", "make_inputs"), [(small_cnn, images(64)), (wide_mlp, vectors(256))])
def test_lifetimes_give_the_real_peak_within_two_percent(make, make_inputs, batch):
    module, inputs = make(), make_inputs(batch, 0)
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        real = real_peak_bytes(module, inputs)
    finally:
        torch._C._set_mkldnn_enabled(enabled)

    trace = trace_step(make(), make_inputs, loss=cross_entropy)

    input_bytes = sum(t.numel() * t.element_size() for t in inputs)
    assert trace.peak_live_bytes(batch) - input_bytes == pytest.approx(real, rel=0.02)


# --- bad input ------------------------------------------------------------------------------------


def test_a_module_that_raises_says_what_it_raised():
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("the sky fell\nwith detail")

    with pytest.raises(TraceError, match=r"RuntimeError: the sky fell$"):
        trace_step(Broken(), vectors(32), loss=cross_entropy)


def test_a_branch_on_data_says_so():
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(TraceError, match="branches on its data"):
        trace_step(Branching(), vectors(32), loss=cross_entropy)


def test_a_module_without_a_loss_says_what_to_do():
    with pytest.raises(TraceError, match="pass a loss function"):
        trace_step(mlp(), lambda b, _: (torch.zeros(b, 32),))


def test_an_unknown_variant_is_refused():
    with pytest.raises(UsageError, match="fp7"):
        trace_step(mlp(), vectors(32), loss=cross_entropy, variant="fp7")


def test_fewer_operators_of_the_process_are_changed_after_a_trace():
    trace_step(Attention(), sequences, variant="amp-bf16", seq_lens=(16,))

    x = torch.randn(2, 4, 8, 16)
    expected = (x @ x.transpose(-1, -2) / 4).softmax(-1) @ x
    assert torch.allclose(functional.scaled_dot_product_attention(x, x, x), expected, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert functional.layer_norm(x.bfloat16(), (16,)).dtype is torch.bfloat16  # as the CPU does it

"""The step that runs is the one that is priced: values, policies, memory."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from joulecast.errors import DeviceNotFoundError
from joulecast.measure.devices import find_device
from joulecast.measure.memory import allocator_profile, peak_bytes
from joulecast.measure.real_module import make_real, make_real_inputs
from joulecast.measure.run import RealStep, product_units
from joulecast.scenario import Scenario, own_module, settle_step

CPU = torch.device("cpu")


class Net(nn.Module):
    """One layer of 64 x 32, kept in FP32: 8192 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 32, bias=False)
        self.seen: list[Any] = []

    def forward(self, x: Any) -> Any:
        out = self.layer(x)
        self.seen.append((out.dtype, torch.is_grad_enabled(), self.training))
        return out


def _loss(output: Any, _: Any) -> Any:
    return output.float().pow(2).mean()


def _step(**options: Any) -> tuple[RealStep, Net]:
    """Return a step of the layer and its module as it runs."""
    own, _ = own_module(Net(), torch.ones(8, 64), _loss)
    settled = settle_step(Scenario(model="Net", gpu="cpu", batch_size=8, **options), own)
    step = RealStep(settled, CPU, own=own)
    return step, step.module


# --- values ---------------------------------------------------------------------------------------


def _built(name: str, **options: Any) -> Any:
    from joulecast.workload.models import resolve_model
    from joulecast.workload.models.builders import build_model

    return build_model(resolve_model(name, "train"), **options)


def test_weights_have_values_and_ties_stay_tied():
    with torch.device("meta"):
        module = nn.ModuleDict(
            {"tokens": nn.Embedding(50, 8), "norm": nn.BatchNorm1d(8), "head": nn.Linear(8, 50)}
        )
    module["head"].weight = module["tokens"].weight
    make_real(module, device=CPU)
    assert not any(p.is_meta for p in (*module.parameters(), *module.buffers()))
    assert all(torch.isfinite(p).all() for p in module.parameters())
    assert module["head"].weight is module["tokens"].weight
    assert module["norm"].running_var.tolist() == [1.0] * 8


def test_indices_stay_within_what_they_index():
    module = make_real(_built("bert-base").module, device=CPU)
    embeddings = module.bert.embeddings
    assert embeddings.position_ids.tolist() == [list(range(512))]
    assert embeddings.token_type_ids.max() == 0


def test_activations_stay_of_ordinary_size():
    module = make_real(_built("vgg16").module, device=CPU).eval()
    with torch.no_grad():
        out = module(torch.randn(1, 3, 64, 64))
    assert 1e-4 < out.abs().max() < 1e3


def test_a_real_module_keeps_its_values():
    module = nn.Linear(3, 3)
    before = module.weight.detach().clone()
    assert torch.equal(make_real(module, device=CPU).weight, before)


def test_tokens_are_many_and_a_mask_has_padding():
    built = _built("bert-base", seq_len=32)
    made = built.make_inputs(4, 32)
    inputs = make_real_inputs(
        made, built.module, device=CPU, dtype=None, memory_format=torch.contiguous_format, keep_values=False
    )
    assert len(inputs["input_ids"].unique()) > 100
    assert inputs["input_ids"].max() < 30522
    assert inputs["attention_mask"].sum() == 4 * 32 - 1  # else the library drops the mask


def test_images_are_noise_in_the_format_asked_for():
    built = _built("resnet18")
    images, _ = make_real_inputs(
        built.make_inputs(2, 0),
        built.module,
        device=CPU,
        dtype=torch.bfloat16,
        memory_format=torch.channels_last,
        keep_values=False,
    )
    assert images.dtype is torch.bfloat16
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert images.float().std() == pytest.approx(1, rel=0.05)


# --- policies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "computes", "stores"),
    [
        ("fp32", torch.float32, torch.float32),
        ("tf32", torch.float32, torch.float32),
        ("bf16", torch.bfloat16, torch.float32),
        ("fp16", torch.float16, torch.float32),
        ("bf16-pure", torch.bfloat16, torch.bfloat16),
        ("fp16-pure", torch.float16, torch.float16),
        ("fp16-o2", torch.float16, torch.float16),
        ("fp16-static", torch.float16, torch.float16),
    ],
)
def test_a_policy_computes_and_stores_as_it_says_and_trains(precision, computes, stores):
    step, module = _step(precision=precision, optimizer="sgd")
    before = module.layer.weight.detach().clone()
    step()
    assert module.seen[-1][0] is computes
    assert module.layer.weight.dtype is stores
    assert not torch.equal(module.layer.weight, before)
    assert torch.isfinite(module.layer.weight).all()


def test_masters_give_the_step_that_fp32_gives():
    """lr 0.1 on FP32 masters: the 16-bit weights are the masters rounded."""
    wide, _ = _step(precision="fp32", optimizer="sgd", clip=False)
    torch.manual_seed(0)
    narrow, module = _step(precision="fp16-o2", optimizer="sgd")
    with torch.no_grad():
        for p, q in zip(wide.module.parameters(), module.parameters(), strict=True):
            p.copy_(q.float())
    wide()
    narrow()
    assert torch.allclose(module.layer.weight.float(), wide.module.layer.weight, atol=2e-3)


@pytest.mark.parametrize(
    ("precision", "units"), [("fp32", "tf32"), ("fp32-strict", "ieee"), ("tf32", "tf32")]
)
def test_convolutions_take_the_units_of_the_policy(precision, units):
    before = torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision
    with product_units(precision):
        assert torch.backends.cudnn.conv.fp32_precision == units
        assert torch.backends.cuda.matmul.fp32_precision == ("tf32" if precision == "tf32" else "ieee")
    assert before == (torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision)


def test_modes_run_what_they_say():
    step, module = _step(mode="forward")
    step()
    assert module.seen[-1][1:] == (False, False)
    step, module = _step(mode="train-no-optimizer")
    before = module.layer.weight.detach().clone()
    step()
    assert module.seen[-1][1:] == (True, True)
    assert module.layer.weight.grad is not None
    assert torch.equal(module.layer.weight, before)


def test_micro_batches_add_up_to_one_step():
    whole, _ = _step(optimizer="sgd", mode="train-no-optimizer")
    parts, module = _step(optimizer="sgd", mode="train-no-optimizer", accumulate=4)
    with torch.no_grad():
        module.layer.weight.copy_(whole.module.layer.weight)
    whole()
    parts()
    assert len(module.seen) == 4
    assert torch.allclose(module.layer.weight.grad, whole.module.layer.weight.grad, atol=1e-6)


def test_gradients_are_clipped():
    step, module = _step(optimizer="sgd", clip=True)
    with torch.no_grad():
        module.layer.weight.mul_(1e3)
    step()
    assert float(torch.linalg.vector_norm(module.layer.weight.grad)) == pytest.approx(1.0, rel=1e-3)


def test_the_users_module_is_left_as_it_was():
    module = Net()
    before = module.layer.weight.detach().clone()
    own, _ = own_module(module, torch.ones(8, 64), _loss)
    RealStep(settle_step(Scenario(model="Net", gpu="cpu", batch_size=8), own), CPU, own=own)()
    assert torch.equal(module.layer.weight, before)
    assert module.seen == []


# --- memory ---------------------------------------------------------------------------------------


def test_the_peak_by_hand():
    events = [
        {"ts": ts, "args": {"Addr": address, "Bytes": size}}
        for ts, address, size in (
            (1, 10, 100),
            (2, 20, 50),
            (3, 20, -50),
            (4, 30, 20),
            (5, 99, -7),
            (6, 10, -100),
        )
    ]
    assert peak_bytes(events[::-1]) == 150
    assert peak_bytes([]) == 0


def test_the_profile_sees_what_is_allocated():
    with allocator_profile() as profile:
        first = torch.empty(1024, dtype=torch.float32)
        del first
        second = torch.empty(512, dtype=torch.float32)
    assert profile.peak_bytes == 4096
    assert second.numel() == 512


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("resnet18", {"image_size": 64, "batch_size": 8}),
        ("distilbert", {"seq_len": 64, "batch_size": 4}),
        ("distilbert", {"seq_len": 64, "batch_size": 4, "precision": "bf16"}),
    ],
)
def test_the_measured_peak_is_the_predicted_one(model, options):
    from joulecast.prediction import predict

    (predicted,) = predict(model, gpu="cpu", **options)
    with allocator_profile() as profile:
        step = RealStep(settle_step(Scenario(model=model, gpu="cpu", **options)), CPU)
        step()
        step()
    assert predicted.allocated_bytes.value == pytest.approx(profile.peak_bytes, rel=0.05)


# --- devices --------------------------------------------------------------------------------------


def test_the_processor_is_in_the_catalogue():
    device = find_device("cpu")
    assert (device.slug, device.torch_device.type, device.is_cuda) == ("cpu", "cpu", False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(DeviceNotFoundError, match="--device cpu"):
        find_device("cuda")


def test_an_unknown_device_is_refused():
    with pytest.raises(DeviceNotFoundError, match="cuda, cpu"):
        find_device("tpu")


def test_the_noise_is_the_same_every_time():
    values = [make_real(_built("resnet18").module, device=CPU).fc.weight.detach().numpy() for _ in range(2)]
    assert np.array_equal(*values)

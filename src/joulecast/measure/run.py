"""The very step that a prediction prices, for real: module, policy, optimizer, on a device. Needs torch."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from typing import Any, Final

import torch
from torch import nn

from joulecast.measure.real_module import make_real, make_real_inputs
from joulecast.scenario import OwnModule, SettledStep
from joulecast.workload.fake_module import checkpointed, unwrapped
from joulecast.workload.models import resolve_model
from joulecast.workload.models.builders import build_model
from joulecast.workload.optimizers import make_optimizer
from joulecast.workload.policies import precision_policy
from joulecast.workload.trace import loss_of

#: Variant of a policy -> dtype of autocast, dtype of the whole module.
_VARIANTS: Final[dict[str, tuple[torch.dtype | None, torch.dtype | None]]] = {
    "fp32": (None, None),
    "amp-bf16": (torch.bfloat16, None),
    "amp-fp16": (torch.float16, None),
    "pure-bf16": (None, torch.bfloat16),
    "pure-fp16": (None, torch.float16),
}
#: Scale of the loss where it does not adapt.
_STATIC_SCALE: Final = 1024.0
_CLIP_NORM: Final = 1.0
#: Precision policy -> units of products and of cuDNN's convolutions; the others leave PyTorch's default.
_TF32: Final = {"fp32-strict": ("ieee", "ieee"), "tf32": ("tf32", "tf32")}
_DEFAULT_TF32: Final = ("ieee", "tf32")


@contextmanager
def product_units(precision: str) -> Iterator[None]:
    """Make products and convolutions in FP32 run on the units of a policy; as before afterwards."""
    backends: tuple[Any, Any] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend, unit in zip(backends, _TF32.get(precision, _DEFAULT_TF32), strict=True):
            backend.fp32_precision = unit
        yield
    finally:
        for backend, unit in zip(backends, before, strict=True):
            backend.fp32_precision = unit


class RealStep:
    """One training step, or forward pass, that can be run again and again.

    Parameters
    ----------
    step : SettledStep
        What to run.
    device : torch.device
    own : OwnModule, optional
        A module in hand, instead of the named one; a copy of it is run.
    force : bool
        Longer sequences than the model's positions.
    data_parallel : bool
        Wrap the module for the process group that is there.

    Attributes
    ----------
    module : nn.Module
        As it runs.
    notes : tuple of str
        What it stands in for.

    Raises
    ------
    JoulecastError
        The model cannot be built or run so.
    """

    def __init__(
        self,
        step: SettledStep,
        device: torch.device,
        *,
        own: OwnModule | None = None,
        force: bool = False,
        data_parallel: bool = False,
    ) -> None:
        self._step = step
        self._device = device
        policy = precision_policy(step.precision)
        self._autocast, dtype = _VARIANTS[policy.variant]
        self._stack = ExitStack()
        module, make_inputs, self._loss, self.notes, seq_len = _built(step, own, force)
        channels_last = step.memory_format == "channels_last"
        formats: dict[str, Any] = {
            "device": device,
            "dtype": dtype,
            "memory_format": torch.channels_last if channels_last else torch.contiguous_format,
        }
        module = make_real(module, **formats).train(step.mode != "forward")
        made = make_inputs(int(step.batch_size), step.seq_len or seq_len or 0)
        is_users = own is not None or step.card.type == "file"
        self._inputs = make_real_inputs(made, module, keep_values=is_users, **formats)
        if step.checkpointing:
            self._stack.enter_context(checkpointed(module))
        self.module = module
        self._parameters: list[torch.Tensor] = [p for p in module.parameters() if p.requires_grad]
        self._updated: list[torch.Tensor] = self._parameters
        if policy.masters:
            self._updated = [p.detach().float().requires_grad_() for p in self._parameters]
        self._optimizer = (
            make_optimizer(step.optimizer, self._updated) if step.optimizer and self._parameters else None
        )
        is_adaptive = policy.scaler and (dtype is None or policy.masters)
        self._scaler = torch.amp.GradScaler(device.type) if is_adaptive else None
        self._static_scale = _STATIC_SCALE if policy.scaler and not is_adaptive else 1.0
        if data_parallel and step.mode != "forward":
            self.module = self._data_parallel(module)

    def close(self) -> None:
        """Undo what was changed outside the module."""
        self._stack.close()

    def _data_parallel(self, module: nn.Module) -> nn.Module:
        """Wrap the module; unused parameters are looked for only where a first pass leaves some."""
        with product_units(self._step.precision):
            self._backward(module, nullcontext())
        unused = any(p.grad is None for p in self._parameters)
        self._zero_grad()
        return nn.parallel.DistributedDataParallel(
            module,
            device_ids=[self._device] if self._device.type == "cuda" else None,
            find_unused_parameters=unused,
        )

    def __call__(self) -> None:
        """Run the step; on CUDA it may still be running when this returns."""
        with product_units(self._step.precision):
            if self._step.mode == "forward":
                with torch.no_grad(), self._cast():
                    self._forward(self.module)
                return
            self._zero_grad()
            for i in range(self._step.accumulate):
                is_last = i == self._step.accumulate - 1
                self._backward(self.module, nullcontext() if is_last else self._no_sync())
            if self._optimizer is not None:
                self._update(self._optimizer)

    def finish(self) -> None:
        """Wait until the device has run all steps."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _no_sync(self) -> AbstractContextManager[Any]:
        no_sync = getattr(self.module, "no_sync", None)
        return no_sync() if no_sync is not None else nullcontext()

    def _cast(self) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._autocast)

    def _forward(self, module: nn.Module) -> Any:
        if isinstance(self._inputs, dict):
            return module(**self._inputs)
        return module(*(self._inputs[:1] if self._loss is not None else self._inputs))

    def _backward(self, module: nn.Module, synchronised: AbstractContextManager[Any]) -> None:
        with synchronised:
            with self._cast():
                output = self._forward(module)
                loss = loss_of(output, self._inputs, self._loss)
            del output
            if self._step.accumulate > 1:
                loss = loss / self._step.accumulate
            if self._scaler is not None:
                loss = self._scaler.scale(loss)
            elif self._static_scale > 1:
                loss = loss * self._static_scale
            loss.backward()

    def _zero_grad(self) -> None:
        for parameter in (*self._parameters, *self._updated):
            parameter.grad = None

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the weights: unscale, clip, step, and copy masters back, as far as the policy has them."""
        masters = self._updated is not self._parameters
        if masters:
            for master, parameter in zip(self._updated, self._parameters, strict=True):
                master.grad = None if parameter.grad is None else parameter.grad.float()
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)
        elif self._static_scale > 1:
            self._unscale_static()
        if self._step.clip:
            nn.utils.clip_grad_norm_(self._updated, _CLIP_NORM)
        if self._scaler is not None:
            self._scaler.step(optimizer)
            self._scaler.update()
        else:
            optimizer.step()
        if masters:
            with torch.no_grad():
                torch._foreach_copy_(self._parameters, self._updated)

    def _unscale_static(self) -> None:
        """Unscale gradients in 16 bit and look for overflow, in the kernel that a scaler uses."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        overflow = torch.zeros((), device=self._device)
        inverse = torch.full((), 1 / self._static_scale, device=self._device)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, overflow, inverse)


_Built = tuple[
    nn.Module,
    Callable[[int, int], Any],
    Callable[[Any, Any], Any] | None,
    tuple[str, ...],
    int | None,
]


def _built(step: SettledStep, own: OwnModule | None, force: bool) -> _Built:
    """Return the module, the maker of its inputs, its loss, what to say of it, and its own length."""
    if own is not None:
        return deepcopy(unwrapped(own.module)), own.make_inputs, own.loss, (), None
    is_forward = step.mode == "forward"
    built = build_model(
        resolve_model(step.model, step.mode),
        attention=step.attention or "sdpa",
        image_size=step.image_size,
        seq_len=step.seq_len,
        train=not is_forward,
        raise_positions=force or is_forward,
    )
    return built.module, built.make_inputs, built.loss, built.notes, built.default_seq_len

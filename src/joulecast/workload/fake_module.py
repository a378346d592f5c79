"""A module for the time of a trace: fake parameters, a training mode, recomputed blocks; then as it was."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from joulecast.errors import TraceError
from joulecast.workload.calls import IMAGE_DIMENSIONS
from joulecast.workload.table import ParameterCount


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module that ``torch.compile`` wraps, or the module itself."""
    inner = getattr(module, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else module


def module_paths(module: nn.Module) -> dict[int, str]:
    """Return paths by module identity, layer indices replaced by ``*``."""
    paths = {}
    for name, child in module.named_modules():
        paths[id(child)] = re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name)
    return paths


def _fake_like(
    tensor: torch.Tensor, dtype: torch.dtype | None, memory_format: torch.memory_format, requires_grad: bool
) -> torch.Tensor:
    wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    fake = torch.empty(tuple(tensor.shape), dtype=wanted)
    if memory_format is torch.channels_last and fake.dim() == IMAGE_DIMENSIONS:
        fake = fake.to(memory_format=torch.channels_last)
    return fake.requires_grad_(requires_grad)


@contextmanager
def fake_parameters(
    module: nn.Module, dtype: torch.dtype | None, memory_format: torch.memory_format
) -> Iterator[list[torch.Tensor]]:
    """Give the module fake parameters and buffers, tied ones once; put the old ones back after."""
    fakes: dict[int, torch.Tensor] = {}
    saved: list[tuple[dict[str, Any], str, Any]] = []
    trainable: list[torch.Tensor] = []

    def fake_of(tensor: torch.Tensor, is_parameter: bool) -> torch.Tensor:
        if id(tensor) not in fakes:
            needs_gradient = is_parameter and tensor.requires_grad
            fakes[id(tensor)] = _fake_like(tensor, dtype, memory_format, needs_gradient)
            if needs_gradient:
                trainable.append(fakes[id(tensor)])
        return fakes[id(tensor)]

    try:
        for child in module.modules():
            for slot, is_parameter in ((child._parameters, True), (child._buffers, False)):
                for name, tensor in list(slot.items()):
                    if tensor is not None:
                        saved.append((slot, name, tensor))
                        slot[name] = fake_of(tensor, is_parameter)  # type: ignore[assignment]
        yield trainable
    finally:
        for slot, name, tensor in saved:
            slot[name] = tensor


@contextmanager
def training_mode(module: nn.Module, train: bool) -> Iterator[None]:
    """Set every submodule's training flag, and set each back after."""
    before = [(child, child.training) for child in module.modules()]
    try:
        module.train(train)
        yield
    finally:
        for child, training in before:
            child.training = training


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost repeated blocks: what a list, or a row of composite modules, holds."""
    for child in module.children():
        members = list(child.children())
        is_list = isinstance(child, nn.ModuleList) or (isinstance(child, nn.Sequential) and len(members) > 1)
        if is_list and members and all(list(m.children()) for m in members):
            yield from members
        else:
            yield from _blocks(child)


@contextmanager
def checkpointed(module: nn.Module) -> Iterator[None]:
    """Recompute each repeated block in the backward pass, as ``torch.utils.checkpoint`` does.

    Raises
    ------
    TraceError
        If the module has no repeated blocks.
    """
    blocks = list(_blocks(module))
    if not blocks:
        raise TraceError("activation checkpointing: the module has no repeated blocks to recompute")
    for block in blocks:
        block.forward = partial(
            checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False, determinism_check="none"
        )
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def count_parameters(module: nn.Module, dtype: torch.dtype | None = None) -> ParameterCount:
    """Return the parameters of a module, tied ones once, stored in ``dtype`` where given."""
    module = unwrapped(module)
    parameters = {id(p): p for p in module.parameters()}.values()
    buffers = {id(b): b for b in module.buffers()}.values()

    def n_bytes(t: torch.Tensor) -> int:
        size = dtype.itemsize if dtype is not None and t.is_floating_point() else t.element_size()
        return t.numel() * size

    trainable = [p for p in parameters if p.requires_grad]
    return ParameterCount(
        n_parameters=sum(p.numel() for p in parameters),
        n_trainable=sum(p.numel() for p in trainable),
        n_tensors=len(trainable),
        parameter_bytes=sum(n_bytes(p) for p in parameters),
        trainable_bytes=sum(n_bytes(p) for p in trainable),
        buffer_bytes=sum(n_bytes(b) for b in buffers),
    )

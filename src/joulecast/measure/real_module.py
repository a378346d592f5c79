"""A module without weights -> one that runs: weights, buffers and inputs with plausible values. Needs torch.

The values cost nothing in a prediction, but they matter to a meter: zeros draw less power than numbers, one
token repeated reads one row of an embedding, and denormal numbers are slow. So weights are random of the size
that keeps activations near 1, tokens are drawn from the vocabulary, and images are noise.
"""

from math import prod
from typing import Any, Final

import torch
from torch import nn

from joulecast.workload.calls import IMAGE_DIMENSIONS

#: Inputs that hold token numbers.
_TOKENS: Final = ("input_ids", "decoder_input_ids")
#: Parts of the names of vectors that scale; the others add.
_SCALES: Final = ("weight", "gamma", "scale")
#: Base of rotary frequencies (Su et al., "RoFormer", 2021, section 3.3).
_ROTARY_BASE: Final = 10000.0


def make_real(
    module: nn.Module,
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    seed: int = 0,
) -> nn.Module:
    """Return the module, in place, on a device: values made up where it has none, kept where it has.

    Parameters
    ----------
    module : nn.Module
        On ``meta`` or real.
    device : torch.device
    dtype : torch.dtype, optional
        Of all floating parameters and buffers; their own by default.
    memory_format : torch.memory_format
        Of parameters with four dimensions.
    seed : int
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    made: dict[int, torch.Tensor] = {}

    def made_real(tensor: torch.Tensor, owner: nn.Module, name: str) -> torch.Tensor:
        wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        if tensor.is_meta:
            real = torch.empty(tuple(tensor.shape), dtype=wanted, device=device)
            _fill(real, owner, name, generator)
        else:
            real = tensor.detach().to(device=device, dtype=wanted, copy=True)
        if real.dim() == IMAGE_DIMENSIONS:
            real = real.contiguous(memory_format=memory_format)
        if not isinstance(tensor, nn.Parameter):
            return real
        return nn.Parameter(real, requires_grad=tensor.requires_grad)

    for owner in module.modules():
        for slot in (owner._parameters, owner._buffers):
            for name, tensor in list(slot.items()):
                if tensor is None:
                    continue
                if id(tensor) not in made:  # tied tensors stay tied
                    made[id(tensor)] = made_real(tensor, owner, name)
                slot[name] = made[id(tensor)]  # type: ignore[assignment]
    return module


@torch.no_grad()
def _fill(tensor: torch.Tensor, owner: nn.Module, name: str, generator: torch.Generator) -> None:
    """Give a tensor plausible values."""
    if not tensor.is_floating_point():
        tensor.copy_(_indices(tensor, owner, name))
    elif name in owner._buffers:
        _fill_buffer(tensor, name)
    elif tensor.dim() > 1:
        fan_in = max(tensor.numel() // tensor.shape[0], 1)
        tensor.normal_(0.0, fan_in**-0.5, generator=generator)
    else:
        tensor.fill_(1.0 if any(part in name for part in _SCALES) else 0.0)


def _fill_buffer(tensor: torch.Tensor, name: str) -> None:
    if "inv_freq" in name:
        exponents = torch.arange(tensor.numel(), dtype=torch.float32, device=tensor.device) / tensor.numel()
        tensor.copy_((_ROTARY_BASE**-exponents).reshape(tensor.shape))
    else:
        tensor.fill_(1.0 if "var" in name else 0.0)


def _indices(tensor: torch.Tensor, owner: nn.Module, name: str) -> torch.Tensor:
    """Return positions along the last axis, or rows of the table beside it, else zeros."""
    tables = [p.shape[0] for known, p in owner.named_parameters(recurse=False) if "table" in known]
    if tables and "index" in name:
        rows = torch.arange(prod(tensor.shape), device=tensor.device) % tables[0]
        return rows.reshape(tensor.shape)
    if "position" in name and tensor.dim() > 0 and not tables:
        return torch.arange(tensor.shape[-1], device=tensor.device).expand(tensor.shape)
    return torch.zeros_like(tensor)


def make_real_inputs(
    inputs: Any,
    module: nn.Module,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    memory_format: torch.memory_format,
    keep_values: bool,
    seed: int = 0,
) -> Any:
    """Return one step's inputs on a device, with values that a data set could have.

    Parameters
    ----------
    inputs : dict or tuple
        As ``make_inputs`` returns them.
    module : nn.Module
        Gives the vocabulary.
    device, dtype, memory_format :
        As in `make_real`.
    keep_values : bool
        Leave the values, they are the user's; but for zeros, which stand for numbers.
    seed : int
    """
    generator = torch.Generator().manual_seed(seed)

    def placed(value: Any, name: str) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if not keep_values or (value.is_floating_point() and not value.any()):
            value = _plausible(value, name, module, generator)
        value = value.to(device=device, dtype=dtype if value.is_floating_point() else None)
        if value.is_floating_point() and value.dim() == IMAGE_DIMENSIONS:
            value = value.contiguous(memory_format=memory_format)
        return value

    if isinstance(inputs, dict):
        return {name: placed(value, name) for name, value in inputs.items()}
    return tuple(placed(value, "") for value in inputs)


def _plausible(value: torch.Tensor, name: str, module: nn.Module, generator: torch.Generator) -> torch.Tensor:
    if value.is_floating_point():
        return torch.randn(value.shape, dtype=value.dtype, generator=generator)
    if name in _TOKENS:
        return torch.randint(_vocabulary(module), value.shape, dtype=value.dtype, generator=generator)
    if name == "attention_mask" and value.shape[-1] > 1:
        # a mask in the inputs means a batch with padding: without any, the library drops the mask
        value = value.clone()
        value[0, -1] = 0
    return value


def _vocabulary(module: nn.Module) -> int:
    """Return the rows of the first embedding: that of the tokens."""
    return next((m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)), 1)

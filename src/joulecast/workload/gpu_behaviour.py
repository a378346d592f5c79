"""Make fake CPU tensors take CUDA's path through autocast, attention and dropout.

PyTorch decides some things by device: which operators autocast runs in FP32, which fused kernel attention
takes, whether dropout is one kernel or four. A trace on fake CPU tensors would record the CPU's choice, so
`gpu_behaviour` overrides those few operators, on the CPU's dispatch keys, for as long as a trace runs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch

#: CUDA's autocast runs these in FP32, CPU's does not. Source: PyTorch, aten/src/ATen/autocast_mode.h,
#: AT_FORALL_FP32.
_AUTOCAST_FP32: Final = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm cosine_similarity
nll_loss2d l1_loss dist logsumexp
""".split()

#: CUDA's autocast gives these a result in FP32. Source: as above, AT_FORALL_FP32_SET_OPT_DTYPE.
_AUTOCAST_FP32_RESULT: Final = "softmax.int log_softmax.int cumsum cumprod sum sum.dim_IntList".split()


def _without_autocast() -> Any:
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    return torch._C._ExcludeDispatchKeyGuard(key)


def _to_fp32(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.to(torch.float32)
    if isinstance(value, list | tuple):
        return type(value)(_to_fp32(v) for v in value)
    return value


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _fp32_kernel(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            return op(*(_to_fp32(a) for a in args), **{k: _to_fp32(v) for k, v in kwargs.items()})

    return kernel


def _fp32_result_kernel(op: Any) -> Callable[..., Any]:
    """CUDA fuses the cast of a half-precision softmax into its kernel; of bfloat16, not."""

    def kernel(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            if x.dtype is torch.float16 and "softmax" in op._schema.name and len(args) == 1:
                fused = "_softmax" if op._schema.name == "aten::softmax" else "_log_softmax"
                return getattr(torch.ops.aten, fused).default(x, args[0], True)
            return op(_to_fp32(x), *args, **kwargs)

    return kernel


#: Dimensions of batched attention: batch, heads, length, width.
_BATCHED_DIM: Final = 4


def _attention_kernel(  # noqa: PLR0913  (the operator's own signature)
    flash: bool,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Pick the fused kernel as CUDA does: flash in 16 bit without a mask, else memory-efficient.

    The choice shows in memory too: flash lays its result out as its query, memory-efficient anew, so that
    a transposed query costs a copy.
    """
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        n_repeats = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(n_repeats, -3) for t in (key, value))
    batched = query.dim() == _BATCHED_DIM
    if not batched:
        query, key, value = (t.unsqueeze(0) for t in (query, key, value))
    if flash and attn_mask is None and query.dtype in (torch.float16, torch.bfloat16):
        output = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    else:
        if attn_mask is not None:
            attn_mask = _attention_bias(attn_mask, query, key)
        output = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
        )[0]
    result: torch.Tensor = output if batched else output.squeeze(0)
    return result


def _attention_bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Turn a boolean mask into the additive one that the kernel takes, as PyTorch does."""
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, float("-inf"))
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return mask.to(query.dtype).expand(shape)


def _dropout_kernel(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or p == 0.0:
        return x
    return torch.ops.aten.native_dropout(x, p, train)[0]  # type: ignore[no-any-return]


@contextmanager
def gpu_behaviour(*, flash: bool) -> Iterator[None]:
    """Make fake CPU tensors take CUDA's path through autocast, attention and dropout.

    Parameters
    ----------
    flash : bool
        Whether the GPU runs flash attention (NVIDIA from compute capability 8.0).
    """
    library = torch.library.Library("aten", "IMPL")
    try:
        for name in _AUTOCAST_FP32:
            library.impl(name, _fp32_kernel(_overload(name)), "AutocastCPU")
        for name in _AUTOCAST_FP32_RESULT:
            library.impl(name, _fp32_result_kernel(_overload(name)), "AutocastCPU")
        library.impl("scaled_dot_product_attention", partial(_attention_kernel, flash), "AutogradCPU")
        library.impl("dropout", _dropout_kernel, "AutogradCPU")
        yield
    finally:
        library._destroy()

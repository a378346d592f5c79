"""Products, convolutions and attention: the calls that have FLOPs."""

from collections.abc import Sequence
from math import prod
from typing import Any, Final, NamedTuple

from joulecast.workload.calls import (
    Call,
    TensorLike,
    Work,
    dtype_of,
    formula,
    is_channels_last,
    numel,
    read_of,
    streaming,
    touched_bytes,
    written_of,
)
from joulecast.workload.table import OpKind, Phase

# --- products -------------------------------------------------------------------------------------


def _product(call: Call, a: TensorLike, b: TensorLike, added: TensorLike | None) -> list[Work]:
    """(batch x) M K by K N; the gradient of a weight has no weight operand."""
    batched = len(a.shape) > 2  # noqa: PLR2004  (more than a matrix)
    batch = a.shape[0] if batched else 1
    m, k = a.shape[-2], a.shape[-1]
    n = b.shape[-1]
    flop = 2.0 * batch * m * n * k
    phase = None
    if call.in_backward:
        phase = Phase.DGRAD if batched or call.weight_operand else Phase.WGRAD
    read = touched_bytes(a) + touched_bytes(b) + (touched_bytes(added) if added is not None else 0.0)
    return [
        Work(
            kind=OpKind.BATCHED_GEMM if batched else OpKind.GEMM,
            dtype=dtype_of(a),
            m=m,
            n=n,
            k=k,
            batch=batch,
            flop=flop,
            model_flop=flop,
            read_bytes=read,
            written_bytes=written_of(call),
            phase=phase,
        )
    ]


@formula("mm", "bmm")
def _mm(call: Call) -> list[Work]:
    return _product(call, call.args[0], call.args[1], None)


@formula("addmm", "baddbmm", "_addmm_activation")
def _addmm(call: Call) -> list[Work]:
    return _product(call, call.args[1], call.args[2], call.args[0])


@formula("mv", "addmv", "dot", "vdot")
def _mv(call: Call) -> list[Work]:
    return [w._replace(flop=2.0 * w.m, model_flop=2.0 * w.m) for w in streaming(call, OpKind.REDUCTION)]


# --- convolutions ---------------------------------------------------------------------------------


class _ConvolutionGeometry(NamedTuple):
    rows: float  # images x output pixels
    group_outputs: float
    depth: float  # input channels per group x kernel area
    groups: float
    kernel_area: float
    stride: float
    group_width: float

    @property
    def flop(self) -> float:
        return 2.0 * self.rows * self.group_outputs * self.depth * self.groups


def _geometry(
    output: TensorLike, weight: TensorLike, stride: Sequence[int], groups: int
) -> _ConvolutionGeometry:
    """Return the implicit product; weight is (out, in / groups, *kernel).

    ``output`` is the tensor whose pixels are the rows: of a transposed convolution, its input.
    """
    area = prod(weight.shape[2:])
    return _ConvolutionGeometry(
        rows=output.shape[0] * prod(output.shape[2:]),
        group_outputs=weight.shape[0] // groups,
        depth=weight.shape[1] * area,
        groups=groups,
        kernel_area=area,
        stride=max(stride, default=1),
        group_width=weight.shape[1],
    )


def _convolution_work(g: _ConvolutionGeometry, x: TensorLike, read: float, written: float) -> Work:
    return Work(
        kind=OpKind.CONVOLUTION,
        dtype=dtype_of(x),
        m=g.rows,
        n=g.group_outputs,
        k=g.depth,
        batch=g.groups,
        flop=g.flop,
        model_flop=g.flop,
        read_bytes=read,
        written_bytes=written,
        kernel_area=g.kernel_area,
        stride=g.stride,
        groups=g.groups,
        group_width=g.group_width,
        channels_last=is_channels_last(x),
    )


@formula("convolution")
def _convolution(call: Call) -> list[Work]:
    x, weight, bias, stride = call.args[:4]
    transposed, groups = call.args[6], call.args[8]
    output = call.outputs[0]
    g = _geometry(x if transposed else output, weight, stride, groups)
    out_bytes = touched_bytes(output)
    work = [_convolution_work(g, x, touched_bytes(x) + touched_bytes(weight), out_bytes)]
    if bias is not None:  # cuDNN adds no bias: PyTorch does, in place, in a kernel of its own
        work.append(
            Work(
                kind=OpKind.ELEMENTWISE,
                dtype=dtype_of(output),
                m=numel(output),
                read_bytes=out_bytes + touched_bytes(bias),
                written_bytes=out_bytes,
                channels_last=is_channels_last(output),
            )
        )
    return work


@formula("convolution_backward")
def _convolution_backward(call: Call) -> list[Work]:
    """Input, weight and bias gradients: two products of the forward's size and a reduction."""
    dy, x, weight, _bias_sizes, stride, _padding, _dilation, transposed, _out_padding, groups, mask = (
        call.args
    )
    g = _geometry(x if transposed else dy, weight, stride, groups)
    bytes_x, bytes_y, bytes_w = touched_bytes(x), touched_bytes(dy), touched_bytes(weight)
    work = []
    if mask[0]:
        dgrad = _convolution_work(g, x, bytes_y + bytes_w, bytes_x)
        work.append(dgrad._replace(phase=Phase.DGRAD))
    if mask[1]:
        wgrad = _convolution_work(g, x, bytes_x + bytes_y, bytes_w)
        work.append(wgrad._replace(phase=Phase.WGRAD))
    if mask[2]:
        channels = dy.shape[1]
        work.append(
            Work(
                kind=OpKind.REDUCTION,
                dtype=dtype_of(dy),
                m=channels,
                n=numel(dy) / channels,
                read_bytes=bytes_y,
                written_bytes=float(channels * dy.element_size()),
                channels_last=is_channels_last(dy),
            )
        )
    return work


# --- attention ------------------------------------------------------------------------------------

#: Products of one attention, in units of M x N x head width: scores and values; the backward of a fused
#: kernel computes the scores anew and four gradients.
_FORWARD_PRODUCTS: Final = 2
_BACKWARD_PRODUCTS: Final = 5
_BACKWARD_MODEL_PRODUCTS: Final = 4


def attention_flop(
    n_pairs_of_heads: float, queries: float, keys: float, width: float, *, causal: bool, products: int
) -> float:
    """Return the FLOPs of fused attention; causal counts only the pairs at or below the diagonal. [FLOP]"""
    pairs = queries * (keys + 1) / 2 if causal else queries * keys
    return 2.0 * products * n_pairs_of_heads * pairs * width


def _attention(
    call: Call, q: Any, k: Any, *, causal: bool, masked: bool, backward: bool, kernels: int
) -> list[Work]:
    batch = q.shape[0] * q.shape[1]
    queries, width, keys = q.shape[2], q.shape[3], k.shape[2]
    products = _BACKWARD_PRODUCTS if backward else _FORWARD_PRODUCTS
    model_products = _BACKWARD_MODEL_PRODUCTS if backward else _FORWARD_PRODUCTS
    return [
        Work(
            kind=OpKind.ATTENTION,
            dtype=dtype_of(q),
            m=queries,
            n=keys,
            k=width,
            batch=batch,
            flop=attention_flop(batch, queries, keys, width, causal=causal, products=products),
            model_flop=attention_flop(batch, queries, keys, width, causal=False, products=model_products),
            read_bytes=read_of(call),
            written_bytes=written_of(call),
            n_kernels=kernels,
            phase=Phase.DGRAD if backward else None,
            causal=float(causal),
            masked=float(masked),
        )
    ]


def _argument(call: Call, position: int, name: str, default: Any) -> Any:
    return call.args[position] if len(call.args) > position else call.kwargs.get(name, default)


@formula(
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
def _flash(call: Call) -> list[Work]:
    """Only the CPU's kernel takes a mask."""
    causal = bool(_argument(call, 4, "is_causal", False))
    masked = call.kwargs.get("attn_mask") is not None
    return _attention(
        call, call.args[0], call.args[1], causal=causal, masked=masked, backward=False, kernels=1
    )


@formula("_scaled_dot_product_flash_attention_backward")
def _flash_backward(call: Call) -> list[Work]:
    causal = bool(call.args[11])
    return _attention(call, call.args[1], call.args[2], causal=causal, masked=False, backward=True, kernels=3)


@formula("_scaled_dot_product_efficient_attention")
def _efficient(call: Call) -> list[Work]:
    mask = call.args[3]
    causal = bool(_argument(call, 6, "is_causal", False))
    return _attention(
        call, call.args[0], call.args[1], causal=causal, masked=mask is not None, backward=False, kernels=1
    )


@formula("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(call: Call) -> list[Work]:
    mask = call.args[4]
    causal = bool(_argument(call, 11, "is_causal", False))
    return _attention(
        call, call.args[1], call.args[2], causal=causal, masked=mask is not None, backward=True, kernels=2
    )

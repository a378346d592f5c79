"""FLOPs, bytes and kernels of one operator call, as a GPU runs it; knows no GPU and imports no torch.

A formula takes the call as PyTorch dispatched it (`Call`) and returns its kernels as `Work` records:
usually one, two or three for the gradient of a convolution, none for a view. Formulas are registered by
ATen name without overload; registering a name twice is an error. A call whose name has no formula gets
`uncounted_work`: its bytes, and ``counted`` 0, so that coverage falls and the name is reported.

Conventions: a multiply-add is 2 FLOP; only products, convolutions and attention have FLOPs, everything
else is memory traffic. Bytes are what the kernel must move: a broadcast operand once, an in-place one
twice.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, Final, NamedTuple, Protocol

from joulecast.workload.table import Dtype, OpKind, Phase


class TensorLike(Protocol):
    """What a formula may ask of a tensor."""

    @property
    def shape(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def dtype(self) -> Any: ...  # noqa: D102
    def stride(self) -> tuple[int, ...]: ...  # noqa: D102
    def element_size(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Call:
    """One dispatched operator call.

    Attributes
    ----------
    name : str
        ATen name without overload, such as ``convolution_backward``.
    overload : str
        The overload, such as ``dim_IntList``.
    args, kwargs : tuple, dict
        As dispatched.
    outputs : tuple
        The tensors returned (``None`` where an output was not asked for).
    in_backward : bool
        Whether autograd runs it.
    weight_operand : bool
        Whether an operand is a parameter, or a cast or view of one.
    """

    name: str
    overload: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Any, ...]
    in_backward: bool
    weight_operand: bool


class Work(NamedTuple):
    """One row before it is merged with its equals; columns as in `OpTable`."""

    kind: OpKind
    dtype: str
    m: float
    n: float = 1
    k: float = 0
    batch: float = 1
    flop: float = 0
    model_flop: float = 0
    read_bytes: float = 0
    written_bytes: float = 0
    n_kernels: float = 1
    phase: Phase | None = None
    kernel_area: float = 1
    stride: float = 1
    groups: float = 1
    group_width: float = 0
    causal: float = 0
    masked: float = 0
    channels_last: float = 0
    counted: float = 1


Formula = Callable[[Call], list[Work]]

FORMULAS: Final[dict[str, Formula]] = {}

_DTYPES: Final = {
    "torch.float64": Dtype.FP64,
    "torch.float32": Dtype.FP32,
    "torch.bfloat16": Dtype.BF16,
    "torch.float16": Dtype.FP16,
    "torch.float8_e4m3fn": Dtype.FP8,
    "torch.float8_e5m2": Dtype.FP8,
}


def formula(*names: str) -> Callable[[Formula], Formula]:
    """Register a formula for ATen names (overloads share it).

    Raises
    ------
    ValueError
        If a name is registered already.
    """

    def register(function: Formula) -> Formula:
        for name in names:
            if name in FORMULAS:
                raise ValueError(f"two formulas for {name}")
            FORMULAS[name] = function
        return function

    return register


def dtype_of(tensor: TensorLike) -> str:
    """Return the `Dtype` of a tensor; every integer and boolean type is ``int``."""
    return _DTYPES.get(str(tensor.dtype), Dtype.INT)


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, by duck typing."""
    return hasattr(value, "element_size") and hasattr(value, "stride")


def tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors of arguments, lists of tensors included."""
    for value in values:
        if is_tensor(value):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def touched_bytes(tensor: TensorLike) -> float:
    """Return the distinct bytes a tensor covers: a broadcast (stride 0) dimension counts once."""
    n = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        n *= size if stride != 0 else 1
    return float(n * tensor.element_size())


def read_of(call: Call) -> float:
    """Return the bytes of all tensor arguments."""
    return sum(touched_bytes(t) for t in tensors_in((*call.args, *call.kwargs.values())))


def written_of(call: Call) -> float:
    """Return the bytes of all outputs."""
    return sum(touched_bytes(t) for t in tensors_in(call.outputs))


def numel(tensor: TensorLike) -> int:
    """Return the number of elements."""
    return prod(tensor.shape)


def is_channels_last(tensor: TensorLike) -> float:
    """Return 1 where a 4-D tensor is stored channels-last, else 0."""
    if len(tensor.shape) != 4:
        return 0.0
    strides = tensor.stride()
    return float(strides[1] == 1 and strides[3] != 1 and tensor.shape[1] > 1)


def _main(call: Call) -> Any:
    """Return the tensor that names the dtype: the first floating output, else the largest argument."""
    tensors = list(tensors_in(call.outputs)) or list(tensors_in(call.args))
    floating = [t for t in tensors if dtype_of(t) != Dtype.INT]
    return (floating or tensors or [None])[0]


def _streaming(call: Call, kind: OpKind, *, n_kernels: float = 1, counted: float = 1) -> list[Work]:
    """Return a kernel that reads its arguments and writes its outputs once."""
    main = _main(call)
    if main is None:
        return []
    return [
        Work(
            kind=kind,
            dtype=dtype_of(main),
            m=max((numel(t) for t in tensors_in((*call.outputs, *call.args))), default=0),
            read_bytes=read_of(call),
            written_bytes=written_of(call),
            n_kernels=n_kernels,
            channels_last=is_channels_last(main),
            counted=counted,
        )
    ]


def uncounted_work(call: Call) -> list[Work]:
    """Return the bytes of a call that has no formula, marked as not counted."""
    return _streaming(call, OpKind.OTHER, counted=0)


# --- products -------------------------------------------------------------------------------------


def _product(call: Call, a: TensorLike, b: TensorLike, added: TensorLike | None) -> list[Work]:
    """(batch x) M K by K N; the gradient of a weight has no weight operand."""
    batched = len(a.shape) == 3
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
    return [w._replace(flop=2.0 * w.m, model_flop=2.0 * w.m) for w in _streaming(call, OpKind.REDUCTION)]


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


def _geometry(output: TensorLike, weight: TensorLike, stride: Sequence[int], groups: int) -> _ConvolutionGeometry:
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


@formula("convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution")
def _convolution(call: Call) -> list[Work]:
    x, weight, bias, stride = call.args[:4]
    transposed, groups = (call.args[6], call.args[8]) if len(call.args) > 8 else (False, call.args[6])
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
    dy, x, weight, _bias_sizes, stride, _padding, _dilation, transposed, _out_padding, groups, mask = call.args
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


def _attention(call: Call, q: Any, k: Any, *, causal: bool, masked: bool, backward: bool, kernels: int) -> list[Work]:
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


@formula("_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention")
def _flash(call: Call) -> list[Work]:
    causal = bool(_argument(call, 4, "is_causal", False))
    return _attention(call, call.args[0], call.args[1], causal=causal, masked=False, backward=False, kernels=1)


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


@formula("_scaled_dot_product_flash_attention_for_cpu")
def _flash_cpu(call: Call) -> list[Work]:
    causal = bool(_argument(call, 4, "is_causal", False))
    masked = call.kwargs.get("attn_mask") is not None
    return _attention(call, call.args[0], call.args[1], causal=causal, masked=masked, backward=False, kernels=1)


# --- normalisation and softmax --------------------------------------------------------------------


def _rows(call: Call, kind: OpKind, x: Any, columns: float, *, reads: float, kernels: float) -> list[Work]:
    """Return a kernel over rows of ``columns`` that reads ``reads`` bytes and writes its outputs."""
    return [
        Work(
            kind=kind,
            dtype=dtype_of(x),
            m=numel(x) / columns if columns else 0,
            n=columns,
            read_bytes=reads,
            written_bytes=written_of(call),
            n_kernels=kernels,
            channels_last=is_channels_last(x),
        )
    ]


@formula("_softmax", "_log_softmax", "_safe_softmax")
def _softmax(call: Call) -> list[Work]:
    x = call.args[0]
    return _rows(call, OpKind.SOFTMAX, x, x.shape[call.args[1]] if x.shape else 1, reads=read_of(call), kernels=1)


@formula("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(call: Call) -> list[Work]:
    dy = call.args[0]
    return _rows(call, OpKind.SOFTMAX, dy, dy.shape[call.args[2]] if dy.shape else 1, reads=read_of(call), kernels=1)


@formula("native_layer_norm", "_fused_rms_norm")
def _layer_norm(call: Call) -> list[Work]:
    x = call.args[0]
    return _rows(call, OpKind.LAYER_NORM, x, prod(call.args[1]), reads=read_of(call), kernels=1)


@formula("native_layer_norm_backward", "_fused_rms_norm_backward")
def _layer_norm_backward(call: Call) -> list[Work]:
    """Input gradient, then weight and bias gradients in two kernels that read both tensors again."""
    dy, x, shape = call.args[:3]
    twice = 2 * (touched_bytes(dy) + touched_bytes(x))
    return _rows(call, OpKind.LAYER_NORM, x, prod(shape), reads=twice, kernels=3)


def _batch_norm_work(call: Call, x: Any, *, reads: float, kernels: float) -> list[Work]:
    return _rows(call, OpKind.BATCH_NORM, x, numel(x) / x.shape[1], reads=reads, kernels=kernels)


@formula("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit")
def _batch_norm(call: Call) -> list[Work]:
    """Read once for the statistics, once more to normalise; once in evaluation."""
    x, training = call.args[0], bool(call.args[5])
    return _batch_norm_work(call, x, reads=touched_bytes(x) * (2 if training else 1), kernels=1)


@formula("_batch_norm_with_update")
def _batch_norm_with_update(call: Call) -> list[Work]:
    x = call.args[0]
    return _batch_norm_work(call, x, reads=2 * touched_bytes(x), kernels=1)


@formula("_batch_norm_no_update", "_native_batch_norm_legit_no_training")
def _batch_norm_evaluation(call: Call) -> list[Work]:
    x = call.args[0]
    return _batch_norm_work(call, x, reads=touched_bytes(x), kernels=1)


@formula("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward")
def _batch_norm_backward(call: Call) -> list[Work]:
    """Both tensors once for the sums, once more for the gradient."""
    a, b = call.args[0], call.args[1]
    return _batch_norm_work(call, a, reads=2 * (touched_bytes(a) + touched_bytes(b)), kernels=1)


@formula("native_group_norm")
def _group_norm(call: Call) -> list[Work]:
    x, groups = call.args[0], call.args[6]
    columns = numel(x) / x.shape[0] / groups
    return _rows(call, OpKind.GROUP_NORM, x, columns, reads=2 * touched_bytes(x), kernels=2)


@formula("native_group_norm_backward")
def _group_norm_backward(call: Call) -> list[Work]:
    dy, x, groups = call.args[0], call.args[1], call.args[8]
    columns = numel(x) / x.shape[0] / groups
    twice = 2 * (touched_bytes(dy) + touched_bytes(x))
    return _rows(call, OpKind.GROUP_NORM, x, columns, reads=twice, kernels=4)


# --- look-ups -------------------------------------------------------------------------------------


@formula("embedding")
def _embedding(call: Call) -> list[Work]:
    """Read the rows looked up, not the table."""
    output = call.outputs[0]
    indices = touched_bytes(call.args[1])
    moved = touched_bytes(output)
    return [
        Work(
            kind=OpKind.EMBEDDING,
            dtype=dtype_of(output),
            m=numel(output),
            read_bytes=moved + indices,
            written_bytes=moved,
        )
    ]


@formula("embedding_dense_backward")
def _embedding_backward(call: Call) -> list[Work]:
    """Clear the whole table, sort the indices, add the rows: a sparse-looking gradient is dense."""
    dy, indices = call.args[0], call.args[1]
    moved = touched_bytes(dy)
    return [
        Work(
            kind=OpKind.EMBEDDING,
            dtype=dtype_of(dy),
            m=numel(dy),
            read_bytes=2 * moved + 4 * touched_bytes(indices),
            written_bytes=written_of(call) + moved + 4 * touched_bytes(indices),
            n_kernels=8,
        )
    ]


@formula("index_select", "gather", "index", "take_along_dim", "masked_select")
def _gather(call: Call) -> list[Work]:
    """Read as much as is written, and the indices."""
    output = call.outputs[0]
    indices = sum(touched_bytes(t) for t in tensors_in(call.args[1:]))
    moved = touched_bytes(output)
    return [
        Work(
            kind=OpKind.INDEX,
            dtype=dtype_of(output),
            m=numel(output),
            read_bytes=moved + indices,
            written_bytes=moved,
        )
    ]


# --- memory traffic -------------------------------------------------------------------------------

_ELEMENTWISE: Final = """
abs acos acosh add addcdiv addcmul angle arange asin asinh atan atan2 atanh bernoulli bitwise_and
bitwise_not bitwise_or bitwise_xor ceil celu clamp clamp_max clamp_min copysign cos cosh div dropout elu
elu_backward eq erf erfc erfinv exp exp2 expm1 exponential floor floor_divide fmod frac ge gelu gelu_backward glu
glu_backward gt hardshrink hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh
hardtanh_backward isfinite isinf isnan ldexp le leaky_relu leaky_relu_backward lerp linspace log log10 log1p
log2 log_sigmoid_backward log_sigmoid_forward logaddexp logical_and logical_not logical_or logical_xor logit lt
masked_fill maximum minimum mish mish_backward mul nan_to_num native_dropout native_dropout_backward ne neg
normal polar pow prelu _prelu_kernel _prelu_kernel_backward rand rand_like randint randn randn_like random
randperm reciprocal relu relu6 remainder round rrelu_with_noise rsqrt rsub sigmoid sigmoid_backward sign silu
silu_backward sin sinh softplus softplus_backward sqrt square sub tan tanh tanh_backward threshold
threshold_backward tril triu trunc uniform where xlogy huber_loss huber_loss_backward mse_loss
mse_loss_backward smooth_l1_loss smooth_l1_loss_backward binary_cross_entropy
binary_cross_entropy_backward binary_cross_entropy_with_logits soft_margin_loss soft_margin_loss_backward complex
""".split()

_COPY: Final = """
_to_copy clone contiguous cat stack constant_pad_nd reflection_pad2d reflection_pad2d_backward
replication_pad2d roll flip repeat repeat_interleave im2col col2im channel_shuffle native_channel_shuffle
pixel_shuffle pixel_unshuffle unfold_backward as_strided_scatter slice_scatter select_scatter diagonal_scatter
view_copy split_with_sizes_copy unfold_copy _copy_from_and_resize
""".split()

_REDUCTION: Final = """
sum mean var var_mean std std_mean amax amin max min argmax argmin any all norm linalg_vector_norm logsumexp
cumsum cumprod prod _euclidean_dist _cdist_forward _cdist_backward nansum count_nonzero aminmax
nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward equal
""".split()

_POOL: Final = """
max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool1d avg_pool2d avg_pool2d_backward
avg_pool3d avg_pool3d_backward max_pool3d_with_indices max_pool3d_with_indices_backward
_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d adaptive_max_pool2d
adaptive_max_pool2d_backward upsample_nearest1d upsample_nearest2d upsample_nearest2d_backward
upsample_bilinear2d upsample_bilinear2d_backward upsample_bicubic2d upsample_bicubic2d_backward
_upsample_bicubic2d_aa _upsample_bilinear2d_aa grid_sampler_2d grid_sampler_2d_backward
upsample_nearest_exact2d _upsample_nearest_exact2d
""".split()

_INDEX: Final = """
index_put _index_put_impl scatter scatter_add scatter_reduce index_add index_copy index_fill masked_scatter
topk sort bincount nonzero one_hot searchsorted bucketize unique _unique2 histc put take
""".split()

_FILL: Final = """
zero fill zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor eye
slice_backward select_backward diagonal_backward
""".split()

#: Calls that launch nothing: allocation, metadata, host scalars.
NO_KERNEL: Final = frozenset(
    """
empty empty_like empty_strided new_empty new_empty_strided empty_permuted resize resize_ lift lift_fresh set_
_local_scalar_dense item sym_size sym_stride sym_numel sym_storage_offset is_same_size _assert_async
_assert_tensor_metadata _assert_scalar record_stream result_type detach_ size stride numel dim is_contiguous
_has_compatible_shallow_copy_type is_pinned tensor as_strided_
""".split()
)


def _register_streaming(names: Iterable[str], kind: OpKind, n_kernels: float = 1) -> None:
    for name in names:
        formula(name)(lambda call: _streaming(call, kind, n_kernels=n_kernels))


_register_streaming(_ELEMENTWISE, OpKind.ELEMENTWISE)
_register_streaming(_COPY, OpKind.COPY)
_register_streaming(_POOL, OpKind.POOL)
_register_streaming(_INDEX, OpKind.INDEX, n_kernels=4)


@formula("copy")
def _copy(call: Call) -> list[Work]:
    """Write the destination; only the source is read."""
    return [w._replace(read_bytes=touched_bytes(call.args[1])) for w in _streaming(call, OpKind.COPY)]


@formula(*_REDUCTION)
def _reduction(call: Call) -> list[Work]:
    work = _streaming(call, OpKind.REDUCTION)
    outputs = max((numel(t) for t in tensors_in(call.outputs)), default=1)
    return [w._replace(m=outputs, n=w.m / max(outputs, 1)) for w in work]


@formula(*_FILL)
def _fill(call: Call) -> list[Work]:
    """Write only; the gradient of a slice also copies it into the cleared tensor."""
    main = _main(call)
    if main is None:
        return []
    backward_of_view = call.name.endswith("_backward")
    moved = touched_bytes(call.args[0]) if backward_of_view else 0.0
    return [
        Work(
            kind=OpKind.COPY if backward_of_view else OpKind.ELEMENTWISE,
            dtype=dtype_of(main),
            m=numel(main),
            read_bytes=moved,
            written_bytes=written_of(call) + moved,
            n_kernels=2 if backward_of_view else 1,
        )
    ]


# --- optimizers -----------------------------------------------------------------------------------

#: Tensors one multi-tensor launch takes, by the number of lists; elements of a chunk; chunks of a launch.
#: Source: PyTorch, aten/src/ATen/native/cuda/MultiTensorApply.cuh (depth_to_max_tensors, kChunkSize,
#: depth_to_max_blocks).
_TENSORS_PER_LAUNCH: Final = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
_ELEMENTS_PER_CHUNK: Final = 65536
_CHUNKS_PER_LAUNCH: Final = 320


def multi_tensor_launches(sizes: Sequence[float], n_lists: int) -> float:
    """Return the kernels a foreach call launches over tensors of these sizes."""
    if not sizes:
        return 0.0
    by_tensors = len(sizes) / _TENSORS_PER_LAUNCH[min(max(n_lists, 1), 5)]
    by_chunks = sum(ceil(size / _ELEMENTS_PER_CHUNK) for size in sizes) / _CHUNKS_PER_LAUNCH
    return float(max(ceil(by_tensors), ceil(by_chunks), 1))


def foreach_work(call: Call) -> list[Work]:
    """Return a foreach or fused optimizer call: each list read once, results written once.

    An in-place call returns nothing; what it writes is its first list (a fused optimizer: all but the
    gradients).
    """
    lists = [[t for t in value if is_tensor(t)] for value in call.args if isinstance(value, list | tuple)]
    lists = [tensors for tensors in lists if tensors]
    big = [tensors for tensors in lists if any(numel(t) > 1 for t in tensors)]
    if not big:  # step counters live on the host: nothing is launched
        return []
    read = sum(touched_bytes(t) for tensors in big for t in tensors)
    outputs = list(tensors_in(call.outputs))
    fused = call.name.startswith("_fused_")
    if outputs and not fused:
        written = sum(touched_bytes(t) for t in outputs)
    elif fused:
        written = read - sum(touched_bytes(t) for t in big[1])
    else:
        written = sum(touched_bytes(t) for t in big[0])
    sizes = [float(numel(t)) for t in big[0]]
    n_lists = len(big) + (1 if outputs and not fused else 0)
    return [
        Work(
            kind=OpKind.OPTIMIZER,
            dtype=dtype_of(big[0][0]),
            m=sum(sizes),
            n=len(sizes),
            k=n_lists,
            read_bytes=read,
            written_bytes=written,
            n_kernels=multi_tensor_launches(sizes, n_lists),
        )
    ]


def work_of(call: Call) -> list[Work]:
    """Return the kernels of a call: by its formula, or uncounted."""
    name = call.name
    if name in NO_KERNEL:
        return []
    if name.startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_amp_foreach")):
        return foreach_work(call)
    function = FORMULAS.get(name) or FORMULAS.get(name.rstrip("_"))
    return function(call) if function is not None else uncounted_work(call)

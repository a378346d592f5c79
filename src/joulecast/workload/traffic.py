"""Everything that only moves memory: norms, look-ups, elementwise, copies, reductions, pools, optimizers."""

from collections.abc import Iterable, Sequence
from math import ceil, prod
from typing import Any, Final

from joulecast.workload.calls import (
    Call,
    Work,
    dtype_of,
    formula,
    is_channels_last,
    is_tensor,
    main_tensor,
    numel,
    read_of,
    streaming,
    tensors_in,
    touched_bytes,
    written_of,
)
from joulecast.workload.table import OpKind

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
    return _rows(
        call, OpKind.SOFTMAX, x, x.shape[call.args[1]] if x.shape else 1, reads=read_of(call), kernels=1
    )


@formula("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(call: Call) -> list[Work]:
    dy = call.args[0]
    return _rows(
        call, OpKind.SOFTMAX, dy, dy.shape[call.args[2]] if dy.shape else 1, reads=read_of(call), kernels=1
    )


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


def _look_up(call: Call, kind: OpKind) -> list[Work]:
    """Read as much as is written, and the indices: not the table."""
    output = call.outputs[0]
    indices = sum(touched_bytes(t) for t in tensors_in(call.args[1:]))
    moved = touched_bytes(output)
    return [
        Work(
            kind=kind,
            dtype=dtype_of(output),
            m=numel(output),
            read_bytes=moved + indices,
            written_bytes=moved,
        )
    ]


@formula("embedding")
def _embedding(call: Call) -> list[Work]:
    return _look_up(call, OpKind.EMBEDDING)


@formula("index_select", "gather", "index", "take_along_dim", "masked_select")
def _gather(call: Call) -> list[Work]:
    return _look_up(call, OpKind.INDEX)


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


# --- memory traffic -------------------------------------------------------------------------------

_ELEMENTWISE: Final = """
abs acos acosh add addcdiv addcmul angle arange asin asinh atan atan2 atanh bernoulli bitwise_and
bitwise_not bitwise_or bitwise_xor ceil celu clamp clamp_max clamp_min copysign cos cosh div dropout elu
elu_backward eq erf erfc erfinv exp exp2 expm1 exponential floor floor_divide fmod frac ge gelu
gelu_backward glu glu_backward gt hardshrink hardsigmoid hardsigmoid_backward hardswish
hardswish_backward hardtanh hardtanh_backward isfinite isinf isnan ldexp le leaky_relu
leaky_relu_backward lerp linspace log log10 log1p log2 log_sigmoid_backward log_sigmoid_forward
logaddexp logical_and logical_not logical_or logical_xor logit lt masked_fill maximum minimum mish
mish_backward mul nan_to_num native_dropout native_dropout_backward ne neg normal polar pow prelu
_prelu_kernel _prelu_kernel_backward rand rand_like randint randn randn_like random randperm reciprocal
relu relu6 remainder round rrelu_with_noise rsqrt rsub sigmoid sigmoid_backward sign silu silu_backward
sin sinh softplus softplus_backward sqrt square sub tan tanh tanh_backward threshold threshold_backward
tril triu trunc uniform where xlogy huber_loss huber_loss_backward mse_loss mse_loss_backward
smooth_l1_loss smooth_l1_loss_backward binary_cross_entropy binary_cross_entropy_backward
binary_cross_entropy_with_logits soft_margin_loss soft_margin_loss_backward complex
""".split()

_COPY: Final = """
_to_copy clone contiguous cat stack constant_pad_nd reflection_pad2d reflection_pad2d_backward
replication_pad2d roll flip repeat repeat_interleave im2col col2im channel_shuffle
native_channel_shuffle pixel_shuffle pixel_unshuffle unfold_backward as_strided_scatter slice_scatter
select_scatter diagonal_scatter view_copy split_with_sizes_copy unfold_copy _copy_from_and_resize
""".split()

_REDUCTION: Final = """
sum mean var var_mean std std_mean amax amin max min argmax argmin any all norm linalg_vector_norm
logsumexp cumsum cumprod prod _euclidean_dist _cdist_forward _cdist_backward nansum count_nonzero
aminmax nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward equal
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
index_put _index_put_impl scatter scatter_add scatter_reduce index_add index_copy index_fill
masked_scatter topk sort bincount nonzero one_hot searchsorted bucketize unique _unique2 histc put take
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
        formula(name)(lambda call: streaming(call, kind, n_kernels=n_kernels))


_register_streaming(_ELEMENTWISE, OpKind.ELEMENTWISE)
_register_streaming(_COPY, OpKind.COPY)
_register_streaming(_POOL, OpKind.POOL)
_register_streaming(_INDEX, OpKind.INDEX, n_kernels=4)


@formula("copy")
def _copy(call: Call) -> list[Work]:
    """Write the destination; only the source is read."""
    return [w._replace(read_bytes=touched_bytes(call.args[1])) for w in streaming(call, OpKind.COPY)]


@formula(*_REDUCTION)
def _reduction(call: Call) -> list[Work]:
    work = streaming(call, OpKind.REDUCTION)
    outputs = max((numel(t) for t in tensors_in(call.outputs)), default=1)
    return [w._replace(m=outputs, n=w.m / max(outputs, 1)) for w in work]


@formula(*_FILL)
def _fill(call: Call) -> list[Work]:
    """Write only; the gradient of a slice also copies it into the cleared tensor."""
    main = main_tensor(call)
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

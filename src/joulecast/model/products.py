"""Clock cycles that products, convolutions, fused attention and batch norm need on the SMs.

In: `Rows`, parameters. Out: cycles of the whole GPU, never fewer than
algorithmic work over the unit's work per clock. Knows no clock, no bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from joulecast.model.definitions import PATH_FAMILIES
from joulecast.model.paths import TENSOR16, VECTOR
from joulecast.model.rows import Booleans, Integers, Rows
from joulecast.workload.table import Floats

Values = Mapping[str, float]

#: Output tiles of the libraries' kernels (rows, columns), as their names show them in `ops.parquet`. [1]
TILES: Final = (
    *((256, 128), (128, 256), (128, 128), (128, 64), (64, 128)),
    *((64, 64), (128, 32), (32, 128), (32, 32)),
)

#: Those that cuBLAS takes for FP32 batched products on Ampere: 128 rows (5974 of 6000 in `ops.parquet`). [1]
_BATCHED_TILES: Final = ((128, 128), (128, 64), (128, 32))

#: The tile whose rate ``product.*.efficiency`` names.
_REFERENCE_EDGE: Final = 512.0 / 3.0


def per_family(values: Values, pattern: str, rows: Rows) -> Floats:
    """Return a parameter of the row's path family; ``pattern`` holds ``{}`` for its name. [op]."""
    return chosen_values(values, [pattern.format(name) for name in PATH_FAMILIES], rows.family)


def chosen_values(values: Values, names: Sequence[str], index: Integers) -> Floats:
    """Return for every row the parameter whose number it names. [op], or [population, op].

    Parameters
    ----------
    values : mapping
        Parameters: numbers, or arrays [population, 1] of a population of sets.
    names : sequence of str
    index : ndarray of int [op]
        Number of the row's parameter among `names`. [1]
    """
    columns = np.broadcast_arrays(*(np.atleast_1d(values[name]) for name in names))
    picked: Floats = np.concatenate(columns, axis=-1)[..., index]
    return picked


#: Work in a clock of an SM of the cards that ``*.k_half`` and ``*.tile_half`` speak of, by path family: FP32
#: lanes of 64-lane SMs; TF32 and 16-bit tensor units of an A100 (NVIDIA A100 whitepaper, table 3). [FLOP]
_REFERENCE_FLOP_PER_CLOCK: Final = np.array([128.0, 1024.0, 2048.0])


def rate_ratio(rows: Rows) -> Floats:
    """Return what the unit of one SM does in a clock, over the reference card's. [1] [op].

    Notes
    -----
    Filling a pipeline and fetching operands take clocks, not work: the faster the unit, the more
    work that costs. What saturates in K or in the tile's edge does so in proportion to the rate.
    """
    ratio: Floats = rows.flop_per_clock / (rows.device.n_sms * _REFERENCE_FLOP_PER_CLOCK[rows.family])
    return ratio


def product_cycles(rows: Rows, values: Values) -> Floats:
    """Return the cycles of (batched) matrix products.

    Parameters
    ----------
    rows : Rows [op]
    values : mapping
        Parameters.

    Returns
    -------
    ndarray [op]
        Cycles of the whole GPU. [cycle]

    Notes
    -----
    ``cycles = min over tiles (r, c) of waves x 2 r c (k / (s e(r, c)) + k_half / o) / unit work per SM``
    with ``waves`` between ``ceil(x)`` and ``x = tiles x s / SMs``, ``s`` the parts that one with too few
    tiles is split into along K, ``o`` the tiles that an SM works on at once, hiding each other's start.
    ``e`` saturates in the harmonic mean of the tile's edges.
    """
    efficiency = per_family(values, "product.{}.efficiency", rows) * library_ratio(rows, values)
    efficiency = efficiency * np.where(rows.batch > 1, values["product.batched_ratio"], 1.0)
    dimensions = (rows.batch, rows.m, rows.n, rows.k)
    fixed = (rows.batch > 1) & (rows.family == VECTOR) & (rows.device.fixed_batched_tile > 0)
    best = tiled_cycles(dimensions, rows, efficiency, values)
    if not bool(np.any(fixed)):
        return best
    return np.where(fixed, tiled_cycles(dimensions, rows, efficiency, values, tiles=_BATCHED_TILES), best)


def tiled_cycles(
    dimensions: tuple[Floats, Floats, Floats, Floats],
    rows: Rows,
    efficiency: Floats,
    values: Values,
    *,
    tiles: tuple[tuple[int, int], ...] = TILES,
    depth: str = "product.{}.k_half",
) -> Floats:
    """Return the cycles of the best tile for ``batch`` products (m x k)(k x n). [cycle] [op]."""
    batch, m, n, k = dimensions
    faster = rate_ratio(rows)
    k_half = per_family(values, depth, rows) * faster
    tile_half = per_family(values, "product.{}.tile_half", rows) * faster
    per_sm = rows.flop_per_clock / rows.device.n_sms
    best: Floats = np.array(np.inf)
    for height, width in tiles:
        n_tiles = batch * np.ceil(m / height) * np.ceil(n / width)
        parts = np.maximum(
            1.0, np.floor(np.minimum(rows.device.n_sms / n_tiles, k / values["product.split_half"]))
        )
        per_sm_tiles = n_tiles * parts / rows.device.n_sms
        together = np.maximum(1.0, values["product.resident_outputs"] / (height * width))
        start = k_half / np.clip(per_sm_tiles, 1.0, together)
        edge = 2.0 / (1.0 / height + 1.0 / width)
        share = edge / (edge + tile_half) * (_REFERENCE_EDGE + tile_half) / _REFERENCE_EDGE
        needed = k / parts / (np.minimum(share, 1.0) * efficiency) + start
        cycles = wave_count(per_sm_tiles, values) * 2.0 * height * width * needed / per_sm
        best = np.minimum(best, cycles)
    return best


def wave_count(n_tiles_per_sm: Floats, values: Values) -> Floats:
    """Return the waves of tiles over the SMs, at least the number of tiles per SM and 1. [1].

    Notes
    -----
    ``share ceil(x) + (1 - share) max(x + tail, 1)``: several tiles share an SM, which hides part of the
    quantisation and leaves a tail.
    """
    share, tail = values["product.wave_share"], values["product.wave_tail"]
    return share * np.ceil(n_tiles_per_sm) + (1.0 - share) * np.maximum(n_tiles_per_sm + tail, 1.0)


def library_ratio(rows: Rows, values: Values) -> Floats:
    """Return the rate that alignment and FP32 dual issue leave, over the full one. [1] [op]."""
    tensor = rows.family != VECTOR
    per_16_bytes = 16.0 / rows.element_bytes
    odd = (np.mod(rows.k, per_16_bytes) > 0) | (np.mod(rows.n, per_16_bytes) > 0)
    aligned = np.where(tensor & odd, 1.0 / (1.0 + values["product.odd_cost"] * rate_ratio(rows)), 1.0)
    return aligned * dual_issue_ratio(rows, values)


def dual_issue_ratio(rows: Rows, values: Values) -> Floats:
    """Return the FP32 vector rate where half of the lanes share issue, over the full one. [1] [op]."""
    vector = rows.family == VECTOR
    shared = np.where(vector & (rows.device.dual_issue > 0), values["product.dual_issue_ratio"], 1.0)
    return np.where(vector & (rows.device.wide_issue > 0), values["product.wide_issue_ratio"], shared)


def convolution_dimensions(rows: Rows) -> tuple[Floats, Floats, Floats, Floats]:
    """Return (batch, m, n, k) of the product that each phase of a convolution computes. [op].

    Notes
    -----
    Rows carry the forward geometry: m pixels of the output, n output channels, k input channels x kernel
    area. The data gradient is (m s^2) x c_in over n x area / s^2; the weight gradient n x k over m pixels.
    """
    dgrad = rows.dgrad
    wgrad = rows.wgrad
    squared = rows.stride**2
    width = np.maximum(rows.group_width, 1.0)
    m = np.where(dgrad, rows.m * squared, np.where(wgrad, rows.n, rows.m))
    n = np.where(dgrad, width, np.where(wgrad, rows.k, rows.n))
    k = np.where(dgrad, rows.n * rows.kernel_area / squared, np.where(wgrad, rows.m, rows.k))
    return rows.batch, m, n, k


def is_depthwise(rows: Rows) -> Booleans:
    """Return whether each convolution has one input channel per group. [op]."""
    depthwise: Booleans = (rows.groups > 1) & (rows.group_width <= 1)
    return depthwise


def convolution_cycles(rows: Rows, values: Values) -> Floats:
    """Return the cycles of dense and grouped convolutions, by phase. [cycle] [op].

    Notes
    -----
    Dense: the tiled product of the phase, its work divided by Winograd's saving where that applies. Grouped:
    work at a rate that saturates in the width of a group, ``w / (w + w_half)``. Depthwise: vector units.
    """
    efficiency = _convolution_efficiency(rows, values)
    grouped = rows.groups > 1
    one_batch = (np.where(grouped, 1.0, rows.batch), *convolution_dimensions(rows)[1:])
    dense = tiled_cycles(one_batch, rows, efficiency, values, depth="convolution.{}.k_half") / winograd_gain(
        rows, values
    )
    by_group = rows.flop / (rows.flop_per_clock * efficiency * _grouped_ratio(rows, values))
    rate = np.where(
        rows.fp32, values["convolution.depthwise_fp32_rate"], values["convolution.depthwise_rate"]
    )
    depthwise = rows.flop / (rows.device.vector_flop_per_clock * rate)
    return np.where(is_depthwise(rows), depthwise, np.where(grouped, by_group, dense))


def _grouped_ratio(rows: Rows, values: Values) -> Floats:
    """Return the rate of grouped over dense convolutions: ``ratio w / (w + half)`` by format. [1] [op].

    Notes
    -----
    cuDNN has grouped tensor kernels for contiguous tensors; in channels-last those of torch 1.12's cuDNN are
    far slower, the more so the wider the group.
    """
    width = np.maximum(np.minimum(rows.group_width, rows.n), 1.0)
    last = rows.channels_last > 0
    half = np.where(last, values["convolution.group_half_channels_last"], values["convolution.group_half"])
    ratio = np.where(
        last, values["convolution.grouped_ratio_channels_last"], values["convolution.grouped_ratio"]
    )
    rate: Floats = ratio * width / (width + half)
    return rate


def _convolution_efficiency(rows: Rows, values: Values) -> Floats:
    """Return the share of peak of an endless convolution. [1] [op]."""
    forward, dgrad, wgrad = (
        per_family(values, f"convolution.{{}}.{phase}", rows) for phase in ("forward", "dgrad", "wgrad")
    )
    efficiency = np.where(rows.dgrad, dgrad, np.where(rows.wgrad, wgrad, forward))
    gradient = rows.dgrad | rows.wgrad
    tensor = rows.family != VECTOR
    ratio = np.where(rows.kernel_area <= 1, values["convolution.pointwise_ratio"], 1.0)
    ratio = ratio * np.where(gradient & (rows.stride > 1), values["convolution.stride_ratio"], 1.0)
    ratio = ratio * np.where(tensor & (rows.channels_last <= 0), values["convolution.contiguous_ratio"], 1.0)
    odd = (np.mod(rows.group_width, _ALIGNED_CHANNELS) > 0) | (np.mod(rows.n, _ALIGNED_CHANNELS) > 0)
    odd = odd & (rows.channels_last > 0) & (rows.groups <= 1) & tensor
    ratio = ratio * np.where(odd, values["convolution.alignment_ratio"], 1.0)
    return efficiency * ratio * dual_issue_ratio(rows, values)


#: cuDNN's channels-last tensor kernels load 8 channels at once; in contiguous format its copies pad. [1]
_ALIGNED_CHANNELS: Final = 8

#: Winograd kernels exist for 3x3. [1]
_WINOGRAD_AREA: Final = 9


def winograd_applies(rows: Rows) -> Booleans:
    """Return where cuDNN may use Winograd: dense 3x3 in FP32 on vector units, stride 1, not wgrad. [op]."""
    dense = (rows.kernel_area == _WINOGRAD_AREA) & (rows.stride <= 1) & (rows.groups <= 1)
    applies: Booleans = dense & (rows.family == VECTOR) & ~rows.wgrad & rows.fp32
    return applies


def winograd_gain(rows: Rows, values: Values) -> Floats:
    """Return nominal over algorithmic work: above 1 where Winograd applies. [1] [op]."""
    half = values["convolution.winograd_half"]
    channels = np.maximum(rows.group_width, 1.0)
    saturation = channels / (channels + half) * rows.n / (rows.n + half)
    saving = (values["convolution.winograd_gain"] - 1.0) * saturation
    return np.where(winograd_applies(rows), 1.0 + saving, 1.0)


def winograd_bytes(rows: Rows, values: Values) -> Floats:
    """Return the traffic of Winograd's transformed weights. [bytes] [op]."""
    weight_bytes = rows.k * rows.n * rows.element_bytes
    return np.where(winograd_applies(rows), values["convolution.winograd_traffic"] * weight_bytes, 0.0)


def attention_cycles(rows: Rows, values: Values) -> Floats:
    """Return the cycles of fused attention. [cycle] [op].

    Notes
    -----
    ``work / (unit x e) + scores x score_cycles / SMs``: products on the tensor units, the softmax beside them
    on the vector and special-function units. ``e`` saturates in head width and keys; query blocks of 128
    fill the SMs in waves.
    """
    backward = rows.backward
    tensor = np.where(backward, values["attention.backward"], values["attention.forward"])
    vector = values["attention.vector"] * dual_issue_ratio(rows, values)
    efficiency = np.where(rows.family == VECTOR, vector, tensor)
    flash = (rows.family == TENSOR16) & (rows.masked <= 0)
    efficiency = efficiency * np.where(
        flash | (rows.family == VECTOR), 1.0, values["attention.efficient_ratio"]
    )
    efficiency = efficiency * rows.k / (rows.k + values["attention.width_half"])
    efficiency = efficiency * rows.n / (rows.n + values["attention.key_half"])
    per_product = 2.0 * rows.k * np.where(backward, 5.0, 2.0)
    scores = rows.flop / per_product * np.where(backward, 2.0, 1.0)
    cycles = rows.flop / (rows.flop_per_clock * efficiency)
    cycles = cycles + scores * values["attention.score_cycles"] / rows.device.n_sms
    blocks = rows.batch * np.ceil(rows.m / 128.0) / rows.device.n_sms
    return cycles * wave_count(blocks, values) / blocks


def batch_norm_cycles(rows: Rows, values: Values) -> Floats:
    """Return the cycles that contiguous batch norm issues instructions for. [cycle] [op].

    Notes
    -----
    One block of threads takes one channel: ``elements x cycles x (1 / SMs + half / channels)``. Persistent
    channels-last kernels are bound by memory alone.
    """
    per_element = np.where(
        rows.backward, values["batch_norm.backward_cycles"], values["batch_norm.forward_cycles"]
    )
    per_element = per_element * np.where(rows.bf16, values["batch_norm.bf16_ratio"], 1.0)
    contiguous = rows.channels_last <= 0
    share = 1.0 / rows.device.n_sms + values["batch_norm.channel_half"] / np.maximum(rows.m, 1.0)
    return np.where(contiguous, rows.m * rows.n * per_element * share, 0.0)

"""Times computed by hand on an ideal GPU (fixture ``plain``) with the rates of an A100."""

import numpy as np
import pytest

from joulecast.hardware.catalogue import load_gpu
from joulecast.model.rows import rows_of
from joulecast.model.time import kernel_time_s, row_bound, row_costs, smooth_maximum
from joulecast.workload.table import OpKind, Phase, concatenate

CLOCK_HZ = 1.41e9


def time_s(table, gpu, values, precision="fp32"):
    return kernel_time_s(row_costs(rows_of(table, precision, gpu), values), CLOCK_HZ)


def test_a_large_product_runs_at_peak(gemm, plain, a100):
    """4096^3: 1024 tiles of 128 x 128 fill 108 SMs 9.48 times, counted as a real number."""
    table = gemm(4096, 4096, 4096, "bf16", Phase.DGRAD)
    peak = 108 * 2048 * CLOCK_HZ
    assert time_s(table, a100, plain, "bf16") == pytest.approx(2 * 4096**3 / peak)


def test_whole_waves_round_up(gemm, plain, a100):
    """7 x 16 tiles of 256 x 128 are 112 on 108 SMs: two waves; smaller tiles need as long."""
    values = {**plain, "product.wave_share": 1.0, "product.split_half": 4096.0}
    table = gemm(7 * 256, 16 * 128, 1024, "bf16")
    rate_per_sm = 2048 * CLOCK_HZ
    one_wave = 2 * 256 * 128 * 1024 / rate_per_sm
    found = float(time_s(table, a100, values, "bf16")[0])
    assert found < 2 * one_wave  # tiles of 32 x 32 waste less
    assert found >= 2 * 7 * 256 * 16 * 128 * 1024 / (108 * rate_per_sm)


def test_depth_saturates(gemm, plain, a100):
    values = {**plain, "product.tensor16.k_half": 1024.0}
    table = gemm(8192, 8192, 1024, "bf16")
    assert time_s(table, a100, values, "bf16") == pytest.approx(2 * time_s(table, a100, plain, "bf16"))


def test_skinny_products_split_along_k(gemm, plain, a100):
    """One tile of 32 x 32 over K = 65536: 100 parts at the least depth of 655."""
    table = gemm(32, 32, 65536)
    values = {**plain, "product.split_half": 655.0, "bandwidth.product": 1.0}
    rows = rows_of(table, "fp32-strict", a100)
    cycles = row_costs(rows, values).compute_cycles
    assert cycles == pytest.approx(2 * 32 * 32 * 65536 / 100 / 128)


def test_misaligned_tensor_products_are_slow(gemm, plain, a100):
    values = {**plain, "product.odd_cost": 1.0}  # at an A100's rate as much again
    aligned, odd = gemm(4096, 50304, 4096, "bf16"), gemm(4096, 50257, 4096, "bf16")
    ratio = time_s(odd, a100, values, "bf16") / time_s(aligned, a100, values, "bf16")
    assert ratio == pytest.approx(2.0, rel=1e-3)


def test_fp32_batched_products_take_tall_tiles_on_ampere(row, plain, a100):
    """64 products of 32 x 32: a tile of 128 x 32 wastes three quarters."""
    work = {"batch": 6400, "m": 32, "n": 32, "k": 512, "flop": 2.0 * 6400 * 32 * 32 * 512}
    table = row(OpKind.BATCHED_GEMM, **work)
    ideal = work["flop"] / (108 * 128 * CLOCK_HZ)
    assert time_s(table, a100, plain) == pytest.approx(4 * ideal, rel=0.02)


def test_wide_sms_share_issue(gemm, plain):
    gpu = load_gpu("rtx-3090")
    table = gemm(4096, 4096, 4096)
    slower = time_s(table, gpu, {**plain, "product.dual_issue_ratio": 0.5}, "fp32-strict")
    assert slower == pytest.approx(2 * time_s(table, gpu, plain, "fp32-strict"))


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.DGRAD, Phase.WGRAD])
def test_convolutions_have_a_rate_per_phase(row, plain, a100, phase):
    """256 channels, 3x3, 100 images of 56 x 56: each phase is a product of the same work."""
    pixels = 100 * 56 * 56
    table = row(
        OpKind.CONVOLUTION,
        "bf16",
        phase,
        m=pixels,
        n=256,
        k=256 * 9,
        flop=2.0 * pixels * 256 * 256 * 9,
        kernel_area=9,
        group_width=256,
        channels_last=1,
    )
    name = {"forward": "forward", "dgrad": "dgrad", "wgrad": "wgrad"}[str(phase)]
    values = {**plain, f"convolution.tensor16.{name}": 0.5}
    expected = float(table.flop[0]) / (0.5 * 108 * 2048 * CLOCK_HZ)
    assert time_s(table, a100, values, "bf16") == pytest.approx(expected, rel=0.02)


def test_winograd_saves_work_and_moves_weights(row, plain):
    gpu = load_gpu("v100-sxm2-16gb")
    work = {"m": 100 * 56 * 56, "n": 256, "k": 256 * 9, "kernel_area": 9, "group_width": 256}
    table = row(OpKind.CONVOLUTION, flop=2.0 * work["m"] * 256 * 256 * 9, **work)
    saving = {**plain, "convolution.winograd_gain": 2.0, "convolution.winograd_half": 1.0}
    none = {**plain, "convolution.winograd_gain": 1.0}
    share = (256 / 257) ** 2
    ratio = time_s(table, gpu, none) / time_s(table, gpu, saving)
    assert ratio == pytest.approx(1 + share, rel=1e-6)
    traffic = [
        row_costs(rows_of(table, "fp32", gpu), {**plain, "convolution.winograd_traffic": x})
        for x in (0.0, 2.0)
    ]
    assert traffic[1].bytes_moved - traffic[0].bytes_moved == pytest.approx(2 * 4 * 256 * 256 * 9)


def test_grouped_convolutions_saturate_in_the_width_of_a_group(row, plain, a100):
    def grouped(width):
        flop = 2.0 * 32 * 10_000 * width * width * 9
        return row(
            OpKind.CONVOLUTION,
            "bf16",
            batch=32,
            m=10_000,
            n=width,
            k=width * 9,
            flop=flop,
            kernel_area=9,
            groups=32,
            group_width=width,
            channels_last=1,
        )

    values = {**plain, "convolution.group_half_channels_last": 8.0}
    per_flop = [float(time_s(grouped(w), a100, values, "bf16")[0] / grouped(w).flop[0]) for w in (8, 24)]
    assert per_flop[0] / per_flop[1] == pytest.approx((24 / 32) / (8 / 16))


def test_channels_that_are_no_multiple_of_8_are_slow_in_channels_last(row, plain, a100):
    def one(channels, channels_last):
        work = {"m": 1e6, "n": channels, "k": channels * 9, "kernel_area": 9, "group_width": channels}
        flop = 2.0 * 1e6 * channels**2 * 9
        return row(OpKind.CONVOLUTION, "bf16", flop=flop, channels_last=channels_last, **work)

    values = {**plain, "convolution.alignment_ratio": 0.5, "convolution.contiguous_ratio": 1.0}
    odd, padded = (time_s(one(252, x), a100, values, "bf16") for x in (1, 0))
    assert odd == pytest.approx(2 * padded)
    assert time_s(one(256, 1), a100, values, "bf16") == pytest.approx(
        time_s(one(256, 0), a100, values, "bf16")
    )


def test_depthwise_convolutions_run_on_vector_units(row, plain, a100):
    flop = 2.0 * 512 * 100_000 * 9
    table = row(
        OpKind.CONVOLUTION, "bf16", batch=512, m=100_000, n=1, k=9, flop=flop, groups=512, group_width=1
    )
    values = {**plain, "convolution.depthwise_rate": 0.1}
    assert time_s(table, a100, values, "bf16") == pytest.approx(flop / (0.1 * 108 * 128 * CLOCK_HZ))


def test_contiguous_16_bit_convolutions_copy_their_tensors(row, plain, a100):
    values = {**plain, "convolution.layout_traffic": 1.0}
    tables = [
        row(OpKind.CONVOLUTION, "bf16", m=1e6, n=8, k=8, read_bytes=1e8, written_bytes=1e8, channels_last=x)
        for x in (0, 1)
    ]
    moved = [float(row_costs(rows_of(t, "bf16", a100), values).bytes_moved[0]) for t in tables]
    assert moved == pytest.approx([6e8, 2e8])


def test_masked_attention_takes_the_slower_kernel(row, plain, a100):
    work = {"batch": 1728, "m": 1024, "n": 1024, "k": 64, "flop": 4.0 * 1728 * 1024**2 * 64}
    values = {
        **plain,
        "attention.forward": 0.5,
        "attention.efficient_ratio": 0.5,
        "attention.overhead_s": 0.0,
        "attention.width_half": 0.0,
        "attention.key_half": 0.0,
        "attention.score_cycles": 0.0,
    }
    flash, masked = (row(OpKind.ATTENTION, "bf16", masked=x, **work) for x in (0, 1))
    peak = 108 * 2048 * CLOCK_HZ
    assert time_s(flash, a100, values, "bf16") == pytest.approx(work["flop"] / (0.5 * peak))
    assert time_s(masked, a100, values, "bf16") == pytest.approx(work["flop"] / (0.25 * peak))


def test_a_stream_runs_at_bandwidth(stream, plain, a100):
    table = stream(1e9)
    assert time_s(table, a100, plain) == pytest.approx(8e9 / a100.bandwidth_bytes_per_s)


def test_small_working_sets_run_from_l2(stream, plain, a100):
    values = {**plain, "bandwidth.l2_gain": 2.0, "bandwidth.l2_share": 1.0}
    small, large = stream(1e4), stream(1e9)
    assert time_s(small, a100, values) == pytest.approx(8e4 / (2 * a100.bandwidth_bytes_per_s), rel=1e-3)
    assert time_s(large, a100, values) == pytest.approx(8e9 / a100.bandwidth_bytes_per_s, rel=1e-3)


def test_each_kernel_costs_its_launch(stream, plain, a100):
    values = {**plain, "launch.kernel_s": 2e-6, "bandwidth.ramp_s": 1e-6}
    table = stream(1e4, n_kernels=5)
    assert time_s(table, a100, values) - time_s(table, a100, plain) == pytest.approx(15e-6)


def test_long_rows_are_read_again_where_l2_is_small(row, plain):
    work = {"m": 1e5, "n": 4096, "read_bytes": 4 * 1e5 * 4096, "written_bytes": 4 * 1e5 * 4096}
    values = {**plain, "bandwidth.rows_in_flight": 8.0, "bandwidth.l2_share": 1.0}
    moved = [
        float(
            row_costs(rows_of(row(OpKind.LAYER_NORM, **work), "fp32", load_gpu(slug)), values).bytes_moved[0]
        )
        for slug in ("t4", "h100-sxm5-80gb")
    ]
    assert moved[0] > 1.2 * moved[1]
    softmax = [row(OpKind.SOFTMAX, **{**work, "n": n, "m": 4096e5 / n}) for n in (1024, 2048)]
    short, long = (
        float(row_costs(rows_of(t, "fp32", load_gpu("t4")), values).bytes_moved[0]) for t in softmax
    )
    assert short == pytest.approx(8 * 4096e5)
    assert long > short


def test_contiguous_batch_norm_is_bound_by_its_channels(row, plain, a100):
    """54 channels on 108 SMs, half a channel per SM at half rate: 1/108 + 0.5/54 = 2/108."""
    values = {**plain, "batch_norm.channel_half": 0.5, "batch_norm.forward_cycles": 4.0}
    work = {"m": 54, "n": 1e6}
    assert time_s(row(OpKind.BATCH_NORM, **work), a100, values) == pytest.approx(
        54e6 * 4 * 2 / 108 / CLOCK_HZ
    )
    assert time_s(row(OpKind.BATCH_NORM, channels_last=1, **work), a100, values) == 0.0
    slower = {**values, "batch_norm.bf16_ratio": 1.5}
    assert time_s(row(OpKind.BATCH_NORM, "bf16", **work), a100, slower) == pytest.approx(
        1.5 * time_s(row(OpKind.BATCH_NORM, "fp16", **work), a100, slower)
    )


def test_batch_norm_keeps_part_of_its_second_pass(row, plain, a100):
    table = row(OpKind.BATCH_NORM, read_bytes=2e9, written_bytes=1e9, channels_last=1)
    values = {**plain, "batch_norm.reread_share_channels_last": 0.25}
    assert row_costs(rows_of(table, "fp32", a100), values).bytes_moved == pytest.approx(2.25e9)


def test_bandwidth_falls_with_very_low_clocks(stream, plain, a100):
    costs = row_costs(rows_of(stream(1e9), "fp32", a100), {**plain, "clock.memory_knee": 0.5})
    at = {share: float(kernel_time_s(costs, share * a100.boost_clock_hz)[0]) for share in (1.0, 0.1)}
    assert at[1.0] == pytest.approx(8e9 / a100.bandwidth_bytes_per_s, rel=1e-3)
    assert at[0.1] / at[1.0] == pytest.approx(5.0, rel=1e-3)


def test_rows_say_what_binds_them(gemm, stream, plain, a100):
    table = concatenate(gemm(4096, 4096, 4096), stream(1e9), stream(1))
    costs = row_costs(rows_of(table, "fp32", a100), {**plain, "launch.kernel_s": 2e-6})
    assert row_bound(costs, CLOCK_HZ).tolist() == ["compute", "memory", "launch"]


def test_smooth_maximum_lies_between_the_larger_and_the_root():
    assert smooth_maximum(3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert smooth_maximum(np.array([0.0]), np.array([0.0]), 3.0) == pytest.approx(0.0)
    assert smooth_maximum(1.0, 1.0, 4.0) == pytest.approx(2**0.25)

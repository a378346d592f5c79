import pytest

from joulecast.hardware.catalogue import load_gpu
from joulecast.model.paths import TENSOR16, TF32, VECTOR, family_of, path_of, unit_flop_per_clock


@pytest.mark.parametrize(
    ("gpu", "kind", "dtype", "precision", "path"),
    [
        ("a100-sxm4-80gb", "gemm", "fp32", "fp32", "fp32_vector"),
        ("a100-sxm4-80gb", "convolution", "fp32", "fp32", "tf32_tensor"),
        ("a100-sxm4-80gb", "convolution", "fp32", "fp32-strict", "fp32_vector"),
        ("a100-sxm4-80gb", "gemm", "fp32", "tf32", "tf32_tensor"),
        ("a100-sxm4-80gb", "gemm", "bf16", "bf16", "bf16_tensor"),
        ("a100-sxm4-80gb", "gemm", "fp64", "fp32", "fp64_vector"),
        ("a100-sxm4-80gb", "attention", "fp32", "fp32", "tf32x3"),
        ("v100-sxm2-16gb", "convolution", "fp32", "fp32", "fp32_vector"),
        ("v100-sxm2-16gb", "gemm", "fp32", "tf32", "fp32_vector"),
        ("v100-sxm2-16gb", "gemm", "fp16", "fp16", "fp16_tensor"),
        ("v100-sxm2-16gb", "gemm", "bf16", "bf16", "fp32_vector"),
        ("p100-pcie-16gb", "gemm", "fp16", "fp16", "fp32_vector"),
        ("mi250x", "gemm", "fp32", "fp32", "fp32_matrix"),
        ("mi300x", "convolution", "fp32", "fp32", "fp32_matrix"),
    ],
)
def test_the_unit_is_the_one_that_pytorch_picks(gpu, kind, dtype, precision, path):
    assert path_of(kind, dtype, precision, load_gpu(gpu)) == path


def test_work_per_clock_is_that_of_all_sms(a100):
    assert unit_flop_per_clock("bf16_tensor", a100) == 108 * 2048
    assert unit_flop_per_clock("tf32x3", a100) == pytest.approx(108 * 1024 / 3)


def test_families():
    assert [family_of(p) for p in ("fp32_vector", "tf32x3", "fp16_tensor")] == [VECTOR, TF32, TENSOR16]

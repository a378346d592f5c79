from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import UnknownGpuError
from joulecast.hardware import gpu_slugs, load_gpu

MEANT = {
    "NVIDIA A100-SXM4-40GB": "a100-sxm4-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm5-80gb",
    "NVIDIA H100 NVL": "h100-nvl-94gb",
    "NVIDIA H100 PCIe": "h100-pcie-80gb",
    "NVIDIA H200": "h200-sxm-141gb",
    "NVIDIA B300 SXM6 AC": "b300-sxm-288gb",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb",
    "Tesla T4": "t4",
    "NVIDIA T4": "t4",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "GeForce RTX 3090": "rtx-3090",
    "NVIDIA L4": "l4",
    "a100-sxm-80gb": "a100-sxm4-80gb",
    "h100-pcie-80gb": "h100-pcie-80gb",
    "a10g-pcie-24gb": "a10g",
    "h100_sxm": "h100-sxm5-80gb",
    "h200_sxm": "h200-sxm-141gb",
    "b200_sxm": "b200-sxm-192gb",
    "gb200": "gb200",
    "rtx_pro_6000_server": "rtx-pro-6000-blackwell-server",
    "a100_80g": "a100-sxm4-80gb",
    "h100 nvl": "h100-nvl-94gb",
    "h200 sxm1": "h200-sxm-141gb",
    "rtx 4090": "rtx-4090",
    "4090": "rtx-4090",
    "rtx4090": "rtx-4090",
    "2080ti": "rtx-2080-ti",
    "T4": "t4",
    "a10": "a10",
    "A10G": "a10g",
    "l4": "l4",
    "L40": "l40",
    "L40S": "l40s",
    "A6000": "rtx-a6000",
    "RTX 6000 Ada": "rtx-6000-ada",
    "mi300x": "mi300x",
    "AMD Instinct MI300X": "mi300x",
    "mi250x": "mi250x",
    "v100 sxm2 32 GB": "v100-sxm2-32gb",
    "p4d.24xlarge": "a100-sxm4-40gb",
    "P4DE.24xlarge": "a100-sxm4-80gb",
    "g5.xlarge": "a10g",
    "Standard_ND96asr_v4": "a100-sxm4-40gb",
    "a3-highgpu-8g": "h100-sxm5-80gb",
}

AMBIGUOUS = {
    "a100": {"a100-pcie-40gb", "a100-pcie-80gb", "a100-sxm4-40gb", "a100-sxm4-80gb"},
    "A100 80GB": {"a100-pcie-80gb", "a100-sxm4-80gb"},
    "h100": {"h100-pcie-80gb", "h100-sxm5-80gb", "h100-nvl-94gb"},
    "h200": {"h200-sxm-141gb", "h200-nvl-141gb"},
    "V100": {"v100-pcie-16gb", "v100-pcie-32gb", "v100-sxm2-16gb", "v100-sxm2-32gb"},
    "v100-sxm2": {"v100-sxm2-16gb", "v100-sxm2-32gb"},
    "AMD Instinct MI250X": {"mi250x", "mi250x-gcd"},
}

UNKNOWN = {
    "NVIDIA B400": {"b300-sxm-288gb", "b200-sxm-192gb"},
    "RTX 3080 Ti": {"rtx-3080"},
    "gb300": {"gb200", "b300-sxm-288gb"},
    "NVIDIA A100-SXM-64GB": {"a100-sxm4-80gb", "a100-sxm4-40gb"},
    "a1000": {"a100-sxm4-40gb"},
}


@pytest.mark.parametrize(("name", "slug"), MEANT.items())
def test_name_means_one_card(name: str, slug: str) -> None:
    assert load_gpu(name).slug == slug


@pytest.mark.parametrize(("name", "candidates"), AMBIGUOUS.items())
def test_ambiguous_name_is_refused_with_its_candidates(name: str, candidates: set[str]) -> None:
    with pytest.raises(UnknownGpuError, match="ambiguous") as raised:
        load_gpu(name)
    assert set(raised.value.near) == candidates
    assert all(slug in str(raised.value) for slug in candidates)


@pytest.mark.parametrize(("name", "near"), UNKNOWN.items())
def test_unknown_name_is_refused_with_near_misses(name: str, near: set[str]) -> None:
    with pytest.raises(UnknownGpuError, match="nearest") as raised:
        load_gpu(name)
    assert near <= set(raised.value.near)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    "name", ["", " ", "tpu v5e", "nvidia", "gpu", "40gb", "??", "../../etc/passwd", "a\0b"]
)
def test_nonsense_has_no_default(name: str) -> None:
    with pytest.raises(UnknownGpuError, match="nothing like it"):
        load_gpu(name)


@given(st.text(max_size=30))
def test_any_text_gives_a_card_or_a_refusal(name: str) -> None:
    with suppress(UnknownGpuError):
        assert load_gpu(f"{name}?").slug in gpu_slugs()

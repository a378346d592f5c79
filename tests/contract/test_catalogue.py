"""Every shipped hardware file obeys the same rules: the data are linted like code."""

import re
import tomllib
from collections import Counter
from math import isfinite
from pathlib import Path

import pytest

import joulecast.hardware
from joulecast.hardware import (
    FactKind,
    Gpu,
    gpu_slugs,
    gpu_text,
    load_gpu,
    load_gpu_file,
    load_links,
    load_sources,
)
from joulecast.hardware.names import squeeze

DATA = Path(joulecast.hardware.__file__).parent / "data"
SLUGS = [slug for slug in gpu_slugs() if slug != "cpu"]
TOLERANCE = 0.02  # datasheets round to three digits, clocks to 5 MHz
FIELDS = (
    "n_sms",
    "boost_clock_hz",
    "min_clock_hz",
    "max_clock_hz",
    "memory_bytes",
    "bandwidth_bytes_per_s",
    "l2_bytes",
    "power_limit_w",
    "min_power_limit_w",
    "max_power_limit_w",
    "idle_power_w",
    "waiting_power_w",
    "voltage_flat_clock_frac",
    "voltage_max_ratio",
)
SIXTEEN_BIT = ("fp16_tensor", "bf16_tensor")


@pytest.fixture(params=SLUGS)
def gpu(request: pytest.FixtureRequest) -> Gpu:
    return load_gpu(request.param)


def published(gpu: Gpu, table: str = "published_flop_per_s") -> dict[str, float]:
    prefix = f"{table}."
    return {key.removeprefix(prefix): gpu.facts[key].value for key in gpu.facts if key.startswith(prefix)}


def test_catalogue_is_complete() -> None:
    assert len(SLUGS) >= 59
    assert "cpu" in gpu_slugs()
    index = tomllib.loads((DATA / "index.toml").read_text())["gpus"]
    assert sorted(index) == sorted(SLUGS)


def test_file_is_named_after_its_slug(gpu: Gpu) -> None:
    assert gpu.labels["slug"] == gpu.slug
    assert (DATA / "gpus" / f"{gpu.slug}.toml").is_file()
    assert (DATA / "architectures" / f"{gpu.architecture}.toml").is_file()
    assert tomllib.loads((DATA / "index.toml").read_text())["gpus"][gpu.slug]["name"] == gpu.name


def test_derived_peaks_are_the_published_dense_ones(gpu: Gpu) -> None:
    peaks = published(gpu)
    assert "fp32_vector" in peaks
    for path, flop_per_s in peaks.items():
        assert gpu.peak_flop_per_s(path) == pytest.approx(flop_per_s, rel=TOLERANCE), path


def test_bandwidth_is_bus_width_times_data_rate(gpu: Gpu) -> None:
    if "memory_bus_bits" not in gpu.facts:
        pytest.skip("no source gives the bus width")
    bits, rate = gpu.facts["memory_bus_bits"].value, gpu.facts["memory_data_rate_bit_per_s"].value
    ratio = gpu.bandwidth_bytes_per_s / (bits * rate / 8)
    if "waived.bandwidth" in gpu.labels:
        assert abs(ratio - 1) > TOLERANCE, "the waiver is no longer needed"
        assert ratio == pytest.approx(1, rel=0.025)
    else:
        assert ratio == pytest.approx(1, rel=TOLERANCE)


def test_narrower_types_are_not_slower(gpu: Gpu) -> None:
    rate = gpu.flop_per_clock_per_sm
    if "tf32_tensor" in rate:
        assert rate["tf32_tensor"] < rate["bf16_tensor"]
        assert rate["fp32_vector"] <= rate["tf32_tensor"]
    if "fp8_tensor" in rate:
        assert rate["fp8_tensor"] == 2 * rate["fp16_tensor"]
    if "bf16_tensor" in rate:
        assert rate["bf16_tensor"] in (rate["fp16_tensor"], rate["fp16_tensor"] / 2)


def test_tensor_peaks_stand_in_known_ratios_to_the_vector_peak(gpu: Gpu) -> None:
    rate = gpu.flop_per_clock_per_sm
    if "fp16_tensor" in rate:
        assert rate["fp16_tensor"] / rate["fp32_vector"] in (2, 4, 8, 16, 32)
    if "fp16_tensor_fp16acc" in rate:
        assert rate["fp16_tensor_fp16acc"] / rate["fp16_tensor"] in (1, 2)


def test_geforce_runs_fp32_accumulation_at_half_rate(gpu: Gpu) -> None:
    if gpu.name.startswith("NVIDIA GeForce RTX"):
        rate = gpu.flop_per_clock_per_sm
        assert rate["fp16_tensor_fp16acc"] == 2 * rate["fp16_tensor"]


def test_dense_peaks_are_half_the_published_sparse_ones(gpu: Gpu) -> None:
    for path, sparse in published(gpu, "published_sparse_flop_per_s").items():
        assert gpu.peak_flop_per_s(path) == pytest.approx(sparse / 2, rel=TOLERANCE)


def test_old_cards_have_no_unit_they_lack(gpu: Gpu) -> None:
    if gpu.compute_capability in ("6.0", "6.1"):
        assert all(gpu.peak_flop_per_s(path) == 0 for path in SIXTEEN_BIT)
    if gpu.compute_capability in ("7.0", "7.5"):
        assert gpu.peak_flop_per_s("bf16_tensor") == 0
        assert gpu.peak_flop_per_s("tf32_tensor") == 0


def test_ranges_contain_their_default(gpu: Gpu) -> None:
    assert gpu.min_power_limit_w <= gpu.power_limit_w <= gpu.max_power_limit_w
    assert gpu.min_clock_hz < gpu.boost_clock_hz <= gpu.max_clock_hz
    assert gpu.idle_power_w <= gpu.waiting_power_w < gpu.power_limit_w
    assert all(clock <= gpu.max_clock_hz for clock in gpu.peak_clock_hz.values())
    if gpu.base_clock_hz is not None:
        assert gpu.min_clock_hz <= gpu.base_clock_hz <= gpu.boost_clock_hz


def test_magnitudes_are_those_of_si(gpu: Gpu) -> None:
    assert 1e8 < gpu.boost_clock_hz < 4e9
    assert 4e9 < gpu.memory_bytes < 1e12
    assert 1e11 < gpu.bandwidth_bytes_per_s < 1e13
    assert 1e6 < gpu.l2_bytes < 1e9
    assert 50 < gpu.power_limit_w < 2000
    assert 1e10 < gpu.link_bytes_per_s < 2e12
    assert 1e10 < gpu.pcie_bytes_per_s < 1e12


def test_every_number_has_a_source_that_exists(gpu: Gpu) -> None:
    known = load_sources()
    for key, fact in gpu.facts.items():
        assert isfinite(fact.value), key
        if fact.kind is FactKind.GUESS:
            assert len(fact.source) > 5, f"{key}: a guess states its rule"
        else:
            missing = set(fact.source.split()) - set(known)
            assert not missing, f"{key}: {missing}"


def test_every_field_has_its_fact(gpu: Gpu) -> None:
    for key in FIELDS:
        assert gpu.facts[key].value == getattr(gpu, key)
    for path, rate in gpu.flop_per_clock_per_sm.items():
        assert gpu.facts[f"flop_per_clock_per_sm.{path}"].value == rate


def test_links(gpu: Gpu) -> None:
    for n_gpus in (2, 4, 8, 16):
        link = gpu.link_between(n_gpus)
        assert 0 < link.allreduce_busbw_frac < 1.2
        assert link.bytes_per_s in (gpu.link_bytes_per_s, gpu.pcie_bytes_per_s)
    if gpu.labels["form_factor"].startswith("PCIe"):
        assert gpu.link_between(4).kind == "pcie"
    if gpu.labels["form_factor"].startswith("SXM"):
        assert gpu.link_between(8).kind == "nvlink"


def test_file_round_trip(gpu: Gpu, tmp_path: Path) -> None:
    path = tmp_path / "copy.toml"
    path.write_text(gpu_text(gpu))
    assert load_gpu_file(path) == gpu


def test_human_comments_agree_with_the_values() -> None:
    factors = {"MHz": 1e6, "GB/s": 1e9, "TFLOP/s": 1e12, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "W": 1}
    pattern = re.compile(r"value = ([\d.]+),.*# ([\d.]+) (\S+)$", re.MULTILINE)
    found = pattern.findall((DATA / "gpus" / "a100-sxm4-40gb.toml").read_text())
    assert len(found) > 15
    for value, number, unit in found:
        if unit in factors:
            assert float(value) == pytest.approx(float(number) * factors[unit], rel=1e-3)


def test_names_are_unique() -> None:
    aliases = tomllib.loads((DATA / "aliases.toml").read_text())
    listed = [squeeze(name) for names in aliases["aliases"].values() for name in names]
    repeated = [name for name, count in Counter(listed).items() if count > 1]
    assert not repeated
    slugs = {squeeze(slug): slug for slug in SLUGS}
    for slug, names in aliases["aliases"].items():
        assert slug in SLUGS
        assert all(slugs.get(squeeze(name), slug) == slug for name in names)
    assert set(aliases["cloud"].values()) <= set(SLUGS)


def test_every_driver_name_is_resolved_or_refused_as_shared() -> None:
    shared = {"AMD Instinct MI250", "AMD Instinct MI250X"}  # a die and a whole card report the same name
    for slug in SLUGS:
        name = load_gpu(slug).name
        if name not in shared:
            assert load_gpu(name).slug == slug
            assert load_gpu(name.upper().replace("-", " ")).slug == slug
            assert load_gpu(name.lower().replace(" ", "_")).slug == slug


@pytest.mark.parametrize("path", sorted((DATA / "architectures").glob("*.toml")), ids=lambda path: path.stem)
def test_every_architecture_is_used(path: Path) -> None:
    assert path.stem in {load_gpu(slug).architecture for slug in SLUGS}


def test_sources_and_links_load() -> None:
    sources = load_sources()
    assert all(source["title"] and source["publisher"] and source["address"] for source in sources.values())
    for key, row in load_links().items():
        assert set(str(row["source_ids"]).split(";")) <= set(sources), key
    assert load_links()["nvlink3"]["bytes_per_s_per_gpu_per_direction"] == 300e9


def test_known_traps() -> None:
    """Errors that public tables carry."""
    assert load_gpu("l4").bandwidth_bytes_per_s == 300e9  # torch once had 864
    assert load_gpu("l4").n_sms == 58  # not 60
    assert load_gpu("a10").memory_bytes < 25e9  # not 28 GB
    assert load_gpu("rtx-3090").peak_flop_per_s("fp16_tensor") == pytest.approx(71.2e12, rel=0.01)
    assert load_gpu("h100-pcie-80gb").peak_flop_per_s("bf16_tensor") == pytest.approx(756e12, rel=0.01)
    assert load_gpu("h100-nvl-94gb").peak_flop_per_s("bf16_tensor") == pytest.approx(835e12, rel=0.01)
    assert load_gpu("h100-sxm5-80gb").peak_flop_per_s("bf16_tensor") == pytest.approx(989.4e12, rel=0.01)
    assert load_gpu("a100-sxm4-40gb").peak_flop_per_s("tf32_tensor") == pytest.approx(156e12, rel=0.01)

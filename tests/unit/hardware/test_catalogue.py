from pathlib import Path

import pytest

from joulecast.errors import CatalogueError, UsageError
from joulecast.hardware import FactKind, gpu_text, load_gpu, load_gpu_file

WHOLE = """
architecture = "ampere-ga100"
n_sms = 64
boost_clock_hz = 1.5e9
memory_bytes = 32e9
bandwidth_bytes_per_s = 1e12
l2_bytes = 20e6
power_limit_w = 200
"""


@pytest.fixture
def write(tmp_path: Path):
    def write_file(text: str, name: str = "mine.toml") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write_file


def test_whole_card_from_plain_numbers(write) -> None:
    path = write(WHOLE)
    gpu = load_gpu(path)
    assert (gpu.slug, gpu.name, gpu.compute_capability) == ("mine", "mine", "8.0")
    assert gpu.peak_flop_per_s("bf16_tensor") == pytest.approx(64 * 2048 * 1.5e9)
    assert gpu.facts["n_sms"].source == path
    assert gpu.facts["n_sms"].kind is FactKind.DATASHEET
    assert {"idle_power_w", "waiting_power_w", "min_power_limit_w", "max_clock_hz"} <= set(gpu.guesses)
    assert (gpu.min_power_limit_w, gpu.max_power_limit_w, gpu.idle_power_w) == (80, 200, 20)
    assert gpu.link_between(4).kind == "pcie"
    assert gpu.base_clock_hz is None


def test_new_architecture_brings_its_rates(write) -> None:
    text = WHOLE.replace("ampere-ga100", "dream") + "[flop_per_clock_per_sm]\nbf16_tensor = 16384\n"
    gpu = load_gpu(write(text))
    assert gpu.peak_flop_per_s("bf16_tensor") == pytest.approx(64 * 16384 * 1.5e9)
    assert gpu.peak_flop_per_s("fp32_vector") == 0
    assert gpu.compute_capability == "unknown"
    with pytest.raises(CatalogueError, match=r"architecture: 'dream' is not known.*ampere-ga100"):
        load_gpu(write(WHOLE.replace("ampere-ga100", "dream")))


def test_link_given_in_the_file(write) -> None:
    gpu = load_gpu(write(WHOLE + "[link]\nbytes_per_s = 5e11\n[link.allreduce_busbw_frac]\n8 = 0.9\n"))
    link = gpu.link_between(8)
    assert (link.kind, link.bytes_per_s, link.allreduce_busbw_frac) == ("nvlink", 5e11, 0.9)


def test_base_and_what_differs(write) -> None:
    base = load_gpu("a100-sxm4-40gb")
    gpu = load_gpu(write('base = "NVIDIA A100-SXM4-40GB"\nbandwidth_bytes_per_s = 3e12\n', "fast.toml"))
    assert gpu.slug == "fast"
    assert gpu.name == "fast (after a100-sxm4-40gb)"
    assert gpu.bandwidth_bytes_per_s == 3e12
    assert gpu.peak_flop_per_s("bf16_tensor") == base.peak_flop_per_s("bf16_tensor")
    assert gpu.waiting_power_w == base.waiting_power_w
    assert not any(key.startswith("published") for key in gpu.facts)


def test_inherited_limits_follow_what_the_file_says(write) -> None:
    gpu = load_gpu(write('base = "h100-sxm5-80gb"\nboost_clock_hz = 2.5e9\npower_limit_w = 900\n'))
    assert (gpu.max_clock_hz, gpu.max_power_limit_w) == (2.5e9, 900)
    assert "max_clock_hz" in gpu.guesses
    assert gpu.peak_clock_hz["bf16_tensor"] == 1.83e9
    low = load_gpu(write('base = "h100-sxm5-80gb"\nboost_clock_hz = 1.0e9\npower_limit_w = 60\n'))
    assert low.peak_clock_hz["bf16_tensor"] == 1.0e9
    assert (low.min_power_limit_w, low.waiting_power_w, low.idle_power_w) == (60, 60, 60)


def test_base_of_another_architecture(write) -> None:
    gpu = load_gpu(write('base = "a100-sxm4-40gb"\narchitecture = "hopper-gh100"\n'))
    assert gpu.peak_flop_per_s("fp8_tensor") > 0
    assert gpu.compute_capability == "9.0"
    assert gpu.facts["per_sm.max_shared_bytes"].value == 228 * 2**10


def test_card_of_the_catalogue_as_a_starting_point(write) -> None:
    text = gpu_text(load_gpu("rtx-4090")).replace('slug = "rtx-4090"', 'slug = "rtx-4090-mine"')
    assert load_gpu(write(text)).slug == "rtx-4090-mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n_sms = = 3", "not TOML"),
        ("n_sms = 3\nn_sms = 4", "not TOML"),
        ("format = 9\n" + WHOLE, "format: version 9"),
        (WHOLE.replace("n_sms = 64", ""), "n_sms: missing"),
        (WHOLE.replace("architecture", "notes"), "architecture: missing"),
        (WHOLE + "bandwith = 3", "bandwith: unknown key; did you mean bandwidth_bytes_per_s"),
        (WHOLE + "zzz = 3", "zzz: unknown key$"),
        (WHOLE + "[flop_per_clock_per_sm]\nint4 = 3", "flop_per_clock_per_sm.int4: unknown key"),
        (WHOLE + "[link.allreduce_busbw_frac]\none = 3", "link.allreduce_busbw_frac.one: unknown key"),
        (WHOLE.replace("200", "-200"), "power_limit_w: must be a number above 0, got -200"),
        (WHOLE.replace("200", "nan"), "power_limit_w: must be a number above 0"),
        (WHOLE.replace("200", "inf"), "power_limit_w: must be a number above 0"),
        (WHOLE.replace("200", "true"), "power_limit_w: must be a number, got True"),
        (WHOLE.replace("200", '"200 W"'), "power_limit_w: must be a number, got '200 W'"),
        (WHOLE.replace("200", "[200]"), "power_limit_w: must be a number, got"),
        (WHOLE.replace("64", "64.5"), "n_sms: must be a whole number"),
        (WHOLE.replace("64", "{ value = 64 }"), "n_sms: must be a number or"),
        (WHOLE.replace("64", '{ value = 64, source = "x", kind = "rumour" }'), "n_sms: kind must be one of"),
        (WHOLE.replace("64", '{ value = 64, source = "", kind = "guess" }'), "n_sms: source must be a text"),
        (WHOLE + "name = [1]", "name: must be a text"),
        (WHOLE + "max_power_limit_w = 100", r"power_limit_w \(200\) must not exceed max_power_limit_w"),
        (WHOLE + '[link]\nreach = "far"', "link.reach: must be one of"),
        (
            'base = "a40"\npower_limit_w = 900\nmax_power_limit_w = 800',
            r"power_limit_w \(900\) must not exceed",
        ),
        ('base = "a100"', "base: unknown GPU name 'a100' .ambiguous"),
        ('base = "mine.toml"', "base: must be a card of the catalogue"),
        ('base = "cpu"', "base: must be a card of the catalogue"),
    ],
)
def test_corrupt_file_is_named_with_its_key(write, text: str, message: str) -> None:
    path = write(text)
    with pytest.raises(CatalogueError, match=message) as raised:
        load_gpu(path)
    assert str(raised.value).startswith(path)
    assert "\n" not in str(raised.value)


def test_binary_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "noise.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CatalogueError, match="not TOML"):
        load_gpu_file(path)
    with pytest.raises(UsageError, match="no such GPU file"):
        load_gpu(str(tmp_path / "none.toml"))
    with pytest.raises(UsageError, match="no such GPU file"):
        load_gpu_file(tmp_path)


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "locked.toml"
    path.write_text(WHOLE)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CatalogueError, match="cannot be read: Permission denied"):
        load_gpu_file(path)

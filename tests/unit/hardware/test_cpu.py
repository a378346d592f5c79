import os
from pathlib import Path

import pytest

from joulecast.hardware import FactKind, load_gpu
from joulecast.hardware.cpu import load_cpu

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Imaginary CPU @ 3.10GHz
flags\t\t: fpu avx avx2 avx512f amx_bf16
"""


@pytest.fixture(autouse=True)
def every_core(monkeypatch):
    """Forget how many threads this shell asks for."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.fixture
def linux(tmp_path: Path) -> tuple[Path, Path]:
    cpuinfo, cpu0 = tmp_path / "cpuinfo", tmp_path / "cpu0"
    cpuinfo.write_text(CPUINFO)
    (cpu0 / "cache" / "index3").mkdir(parents=True)
    (cpu0 / "cache" / "index3" / "size").write_text("32768K\n")
    return cpuinfo, cpu0


def test_the_machine_at_hand() -> None:
    cpu = load_gpu("CPU")
    assert cpu.slug == "cpu"
    assert cpu.n_sms == os.cpu_count()
    assert cpu == load_cpu()
    assert all(fact.kind is FactKind.GUESS for fact in cpu.facts.values())
    assert set(cpu.guesses) == set(cpu.facts)
    assert cpu.peak_flop_per_s("tf32_tensor") == 0


def test_what_linux_tells(linux: tuple[Path, Path]) -> None:
    cpu = load_cpu(*linux)
    assert (cpu.name, cpu.vendor) == ("Imaginary CPU @ 3.10GHz", "GenuineIntel")
    assert cpu.boost_clock_hz == pytest.approx(3.1e9)
    assert cpu.flop_per_clock_per_sm["fp32_vector"] == 64
    assert cpu.flop_per_clock_per_sm["bf16_tensor"] == 1024
    assert cpu.l2_bytes == 32 * 2**20


def test_cpufreq_goes_first(linux: tuple[Path, Path]) -> None:
    (linux[1] / "cpufreq").mkdir()
    (linux[1] / "cpufreq" / "cpuinfo_max_freq").write_text("4200000\n")
    assert load_cpu(*linux).boost_clock_hz == pytest.approx(4.2e9)


def test_elsewhere_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> int:
        raise ValueError

    monkeypatch.setattr(os, "sysconf", refuse)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    cpu = load_cpu(tmp_path / "none", tmp_path / "none")
    assert (cpu.n_sms, cpu.boost_clock_hz, cpu.memory_bytes, cpu.l2_bytes) == (1, 2.5e9, 8 * 2**30, 2**20)
    assert cpu.flop_per_clock_per_sm["fp32_vector"] == 16
    assert cpu.vendor == "unknown"


def test_odd_cache_size(linux: tuple[Path, Path]) -> None:
    (linux[1] / "cache" / "index3" / "size").write_text("plenty")
    assert load_cpu(*linux).l2_bytes == (os.cpu_count() or 1) * 2**20


@pytest.mark.parametrize(
    ("asked", "n_sms"), [("3", 3), ("4,2", 4), ("", os.cpu_count()), ("many", os.cpu_count())]
)
def test_threads_that_pytorch_computes_with_are_multiprocessors(monkeypatch, asked, n_sms):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert load_cpu().n_sms == n_sms

"""The processor at hand as a device: cores stand for multiprocessors. Every number is a guess.

Enters: what the operating system tells of the machine. Leaves: a `Gpu` whose facts are all of kind
``guess``. The same machine gives the same numbers every time: nothing is timed, no momentary clock is
read.
"""

import os
import platform
import re
from pathlib import Path
from typing import Final

from joulecast.hardware.spec import Fact, FactKind, Gpu, LinkReach
from joulecast.units import GIB, GIGA, KIB, KILO, MIB

_CPUINFO: Final = Path("/proc/cpuinfo")
_CPU0: Final = Path("/sys/devices/system/cpu/cpu0")

#: Instruction set -> fp32 FLOP per clock and core with two fused multiply-add units; first that is there.
_VECTOR_FLOP_PER_CLOCK: Final = (("avx512f", 64.0), ("avx2", 32.0), ("avx", 16.0))
_OTHER_VECTOR_FLOP_PER_CLOCK: Final = 16.0
#: AMX tiles: 16 x 16 x 32 multiply-adds in 16 clocks.
_AMX_BF16_FLOP_PER_CLOCK: Final = 1024.0


def load_cpu(cpuinfo: Path = _CPUINFO, cpu0: Path = _CPU0) -> Gpu:
    """Return the processor at hand.

    Parameters
    ----------
    cpuinfo, cpu0 : Path
        Where Linux describes the processor; elsewhere neither exists and the defaults hold.

    Notes
    -----
    Rules: one SM per thread that PyTorch computes with: ``OMP_NUM_THREADS`` where it is set, as PyTorch does,
    else one per logical CPU that the machine has; clock from cpufreq, else from the model's name,
    else 2.5 GHz; fp32 rate from the widest vector unit, fp64 half of it; 16-bit types run on AMX where it
    is, otherwise no faster than fp32; 10 GB/s per core, from 20 to 200; 20 W and 5 W per core, 40 % of it
    when idle and 60 % when waiting.
    """
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    n_cores = _threads()
    clock_hz = _clock_hz(text, cpu0)
    rates = _rates(set(_line(text, "flags").split()))
    bandwidth = min(max(10 * n_cores, 20), 200) * GIGA
    limit_w = 20.0 + 5.0 * n_cores
    numbers = {
        "n_sms": float(n_cores),
        "boost_clock_hz": clock_hz,
        "min_clock_hz": min(0.8 * GIGA, clock_hz),
        "max_clock_hz": clock_hz,
        "memory_bytes": _memory_bytes(),
        "bandwidth_bytes_per_s": bandwidth,
        "l2_bytes": _cache_bytes(cpu0, n_cores),
        "power_limit_w": limit_w,
        "min_power_limit_w": 0.5 * limit_w,
        "max_power_limit_w": limit_w,
        "idle_power_w": 0.4 * limit_w,
        "waiting_power_w": 0.6 * limit_w,
        "voltage_flat_clock_frac": 0.5,
        "voltage_max_ratio": 1.3,
    }
    facts = {key: _guess(value) for key, value in numbers.items()}
    facts |= {f"flop_per_clock_per_sm.{path}": _guess(rate) for path, rate in rates.items()}
    name = _line(text, "model name") or platform.processor() or platform.machine() or "processor"
    return Gpu(
        slug="cpu",
        name=name,
        vendor=_line(text, "vendor_id") or "unknown",
        architecture="cpu",
        compute_capability=platform.machine() or "unknown",
        n_sms=n_cores,
        boost_clock_hz=clock_hz,
        min_clock_hz=numbers["min_clock_hz"],
        max_clock_hz=clock_hz,
        flop_per_clock_per_sm=rates,
        peak_clock_hz=dict.fromkeys(rates, clock_hz),
        memory_bytes=numbers["memory_bytes"],
        bandwidth_bytes_per_s=bandwidth,
        l2_bytes=numbers["l2_bytes"],
        power_limit_w=limit_w,
        min_power_limit_w=numbers["min_power_limit_w"],
        max_power_limit_w=limit_w,
        idle_power_w=numbers["idle_power_w"],
        waiting_power_w=numbers["waiting_power_w"],
        voltage_flat_clock_frac=numbers["voltage_flat_clock_frac"],
        voltage_max_ratio=numbers["voltage_max_ratio"],
        link_kind="none",
        link_bytes_per_s=bandwidth,
        link_reach=LinkReach.NONE,
        pcie_bytes_per_s=bandwidth,
        allreduce_busbw_frac={},
        pcie_allreduce_busbw_frac={},
        facts=facts,
        labels={"slug": "cpu", "name": name, "architecture": "cpu"},
    )


def _guess(value: float) -> Fact:
    return Fact(value=value, source="rule of load_cpu for the machine at hand", kind=FactKind.GUESS)


def _line(text: str, key: str) -> str:
    found = re.search(rf"^{key}\s*:\s*(.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found else ""


def _clock_hz(text: str, cpu0: Path) -> float:
    limit = cpu0 / "cpufreq" / "cpuinfo_max_freq"
    if limit.is_file():
        return float(limit.read_text()) * KILO  # the file holds kHz
    quoted = re.search(r"@\s*([\d.]+)\s*GHz", _line(text, "model name"))
    return float(quoted.group(1)) * GIGA if quoted else 2.5 * GIGA


def _rates(flags: set[str]) -> dict[str, float]:
    fp32 = next(
        (rate for flag, rate in _VECTOR_FLOP_PER_CLOCK if flag in flags), _OTHER_VECTOR_FLOP_PER_CLOCK
    )
    rates = {"fp32_vector": fp32, "fp64_vector": fp32 / 2, "fp16_vector": fp32, "bf16_vector": fp32}
    return rates | ({"bf16_tensor": _AMX_BF16_FLOP_PER_CLOCK} if "amx_bf16" in flags else {})


def _threads() -> int:
    """Return the threads that PyTorch computes with here."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(asked) if asked.isdecimal() and int(asked) > 0 else os.cpu_count() or 1


def _memory_bytes() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):  # not every system has sysconf or these names
        return 8.0 * GIB


def _cache_bytes(cpu0: Path, n_cores: int) -> float:
    size = cpu0 / "cache" / "index3" / "size"
    if size.is_file():
        found = re.fullmatch(r"(\d+)([KM])", size.read_text().strip())
        if found:
            return float(found.group(1)) * {"K": KIB, "M": MIB}[found.group(2)]
    return float(n_cores * MIB)

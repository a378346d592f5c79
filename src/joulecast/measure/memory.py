"""Peak memory of a step: torch's statistics on CUDA, the allocator's own events on a CPU. Needs torch."""

import json
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from joulecast.results import MeasuredQuantity
from joulecast.units import KIB

#: Bytes that `resource` counts in. Linux says KiB, macOS bytes.
_RSS_UNIT_BYTES: Final = 1 if sys.platform == "darwin" else KIB


@dataclass(slots=True)
class AllocatorProfile:
    """What the CPU allocator gave out while it was watched.

    Attributes
    ----------
    peak_bytes : float
        The most that was alive at once, of what was allocated since the watch began. [bytes]
    """

    peak_bytes: float = 0.0


@contextmanager
def allocator_profile() -> Iterator[AllocatorProfile]:
    """Watch every allocation and release on the CPU, as PyTorch's profiler reports them.

    What was alive before is not counted, so a watch begins before the module gets its weights.
    """
    found = AllocatorProfile()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
        yield found
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    found.peak_bytes = peak_bytes([e for e in events if e.get("name") == "[memory]"])


def peak_bytes(events: list[dict[str, Any]]) -> float:
    """Return the most that was alive at once, from the allocator's events.

    Parameters
    ----------
    events : list of dict
        ``ts`` (when), ``args`` with ``Addr`` and ``Bytes`` (negative where released). A release of what was
        allocated before the events begin does not count.
    """
    alive: dict[int, int] = {}
    total = most = 0
    for event in sorted(events, key=lambda e: float(e["ts"])):
        address, size = event["args"]["Addr"], event["args"]["Bytes"]
        if size > 0:
            alive[address] = size
            total += size
            most = max(most, total)
        else:
            total -= alive.pop(address, 0)
    return float(most)


def _exactly(value: float, method: str, scope: str) -> MeasuredQuantity:
    return MeasuredQuantity(value=value, low=value, high=value, method=method, scope=scope)


def cpu_memory(profile: AllocatorProfile) -> dict[str, MeasuredQuantity]:
    """Return the three readings of memory of a step on a CPU."""
    resident_bytes = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT_BYTES)
    return {
        "allocated_bytes": _exactly(profile.peak_bytes, "profile", "process"),
        "reserved_bytes": MeasuredQuantity.absent("the CPU allocator keeps no reserve"),
        "process_bytes": _exactly(resident_bytes, "operating system", "process"),
    }


def cuda_memory(device: torch.device, used_bytes: float | None) -> dict[str, MeasuredQuantity]:
    """Return the three readings of memory of the steps since the statistics were reset.

    Parameters
    ----------
    device : torch.device
    used_bytes : float or None
        The most that the device said was in use, by all processes. [bytes]
    """
    allocated = float(torch.cuda.max_memory_allocated(device))
    reserved = float(torch.cuda.max_memory_reserved(device))
    if used_bytes is None:
        process = MeasuredQuantity.absent(
            "the device does not say how much of its memory is in use", "`joulecast doctor`"
        )
    else:
        process = _exactly(used_bytes, "polled", "device")
    return {
        "allocated_bytes": _exactly(allocated, "allocator", "process"),
        "reserved_bytes": _exactly(reserved, "allocator", "process"),
        "process_bytes": process,
    }

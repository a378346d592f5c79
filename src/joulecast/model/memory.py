"""Memory of one GPU: allocated <= reserved <= process.

In: a workload's bytes, parameters. Out: bytes. Knows no time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from joulecast.workload.table import Workload

#: PyTorch's caching allocator takes segments of this size for large blocks. [bytes]
#: Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp (``kLargeBuffer``, ``kRoundLarge``).
LARGE_SEGMENT_BYTES: Final = 20 * 1024 * 1024
SEGMENT_ROUNDING_BYTES: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Peak memory of one GPU in a step.

    Attributes
    ----------
    allocated_bytes : float
        Peak of the allocator's blocks (``torch.max_memory_allocated``). [bytes]
    reserved_bytes : float
        What the allocator took from the device. [bytes]
    process_bytes : float
        That, the context and the libraries: what decides whether it fits. [bytes]
    """

    allocated_bytes: float
    reserved_bytes: float
    process_bytes: float


def memory_use(workload: Workload, values: Mapping[str, float], *, data_parallel: bool = False) -> MemoryUse:
    """Return the peak memory of one GPU. [bytes].

    Parameters
    ----------
    workload : Workload
    values : mapping
        Parameters.
    data_parallel : bool
        Whether the module is wrapped for data parallelism: it keeps a copy of the gradients in buckets.
    """
    buckets_bytes = workload.gradient_bytes if data_parallel else 0.0
    allocated_bytes = (
        workload.persistent_bytes
        + workload.peak_live_bytes
        + buckets_bytes
        + values["memory.workspace_bytes"]
    )
    wanted_bytes = allocated_bytes * (1.0 + values["memory.fragmentation"])
    reserved_bytes = float(
        max(ceil(wanted_bytes / SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES, LARGE_SEGMENT_BYTES)
    )
    outside_bytes = values["memory.context_bytes"] + (
        values["memory.data_parallel_bytes"] if data_parallel else 0.0
    )
    return MemoryUse(
        allocated_bytes=allocated_bytes,
        reserved_bytes=reserved_bytes,
        process_bytes=reserved_bytes + outside_bytes,
    )

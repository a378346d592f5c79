"""Memory of one GPU: allocated <= reserved <= process.

In: a workload's bytes, parameters. Out: bytes. Knows no time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from joulecast.workload.table import Floats, Workload

#: PyTorch's caching allocator takes segments of this size for large blocks. [bytes]
#: Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp (``kLargeBuffer``, ``kRoundLarge``).
LARGE_SEGMENT_BYTES: Final = 20 * 1024 * 1024
SEGMENT_ROUNDING_BYTES: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Peak memory of one GPU in a step; floats, or arrays [step].

    Attributes
    ----------
    allocated_bytes : float or ndarray
        Peak of the allocator's blocks (``torch.max_memory_allocated``). [bytes]
    reserved_bytes : float or ndarray
        What the allocator took from the device. [bytes]
    process_bytes : float or ndarray
        That, the context and the libraries: what decides whether it fits. [bytes]
    """

    allocated_bytes: Floats
    reserved_bytes: Floats
    process_bytes: Floats


def memory_use(workload: Workload, values: Mapping[str, float], *, data_parallel: bool = False) -> MemoryUse:
    """Return the peak memory of one GPU; see `memory_of`. [bytes].

    Parameters
    ----------
    workload : Workload
    values : mapping
        Parameters.
    data_parallel : bool
        Whether the module is wrapped for data parallelism: it keeps a copy of the gradients in buckets.
    """
    kept_bytes = workload.persistent_bytes + workload.peak_live_bytes
    return memory_of(kept_bytes, workload.gradient_bytes, data_parallel, values)


def memory_of(
    kept_bytes: Floats | float,
    gradient_bytes: Floats | float,
    data_parallel: npt.NDArray[np.bool_] | bool,
    values: Mapping[str, float],
) -> MemoryUse:
    """Return the peak memory of one GPU. [bytes] [step].

    Parameters
    ----------
    kept_bytes : float or ndarray [step]
        What the step keeps alive at its peak, parameters and optimizer state included. [bytes]
    gradient_bytes : float or ndarray [step]
        What data parallelism reduces. [bytes]
    data_parallel : bool or ndarray [step]
        Whether the module is wrapped for data parallelism.
    values : mapping
        Parameters.
    """
    buckets_bytes = np.where(data_parallel, gradient_bytes, 0.0)
    allocated_bytes = kept_bytes + buckets_bytes + values["memory.workspace_bytes"]
    wanted_bytes = allocated_bytes * (1.0 + values["memory.fragmentation"])
    reserved_bytes = np.maximum(
        np.ceil(wanted_bytes / SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES, LARGE_SEGMENT_BYTES
    )
    outside_bytes = values["memory.context_bytes"] + np.where(
        data_parallel, values["memory.data_parallel_bytes"], 0.0
    )
    return MemoryUse(
        allocated_bytes=allocated_bytes,
        reserved_bytes=reserved_bytes,
        process_bytes=reserved_bytes + outside_bytes,
    )

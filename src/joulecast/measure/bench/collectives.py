"""All-reduces between the devices of this node, one process each. Needs torch.

The time of the slowest process counts: a step waits for all of them.
"""

import socket
import time
from typing import Any, Final

import numpy as np
import torch
from torch import distributed, multiprocessing

from joulecast.units import KIB, MIB

#: Buffers, from what DDP reduces last to more than one of its buckets. [bytes]
MESSAGE_BYTES: Final = tuple(int(size) for size in (64 * KIB, MIB, 8 * MIB, 25 * MIB, 100 * MIB))
_ELEMENT_BYTES: Final = 4
_WARM_UPS: Final = 3
_REPEATS: Final = 15
#: Messages longer than the rest of this are left out. [s]
_LONGEST_S: Final = 20.0


def all_reduce_rows(device: str, n_ranks: int) -> list[dict[str, Any]]:
    """Return a row for each size of buffer: ``op``, ``phase``, ``b`` ranks, ``h`` elements, ``latency_s``.

    Parameters
    ----------
    device : str
        ``cuda`` (by NCCL) or ``cpu`` (by Gloo).
    n_ranks : int
        Processes; on CUDA, GPUs.

    Raises
    ------
    RuntimeError
        A process failed: torch's own.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    multiprocessing.start_processes(  # type: ignore[attr-defined,no-untyped-call]
        _rank, args=(device, n_ranks, address, queue), nprocs=n_ranks
    )
    found: list[tuple[int, float]] = queue.get()
    return [
        {
            **{"op": "all-reduce", "phase": "forward", "dtype": "fp32"},
            **{"b": n_ranks, "h": n_elements, "latency_s": latency_s},
        }
        for n_elements, latency_s in found
    ]


def _rank(rank: int, device: str, n_ranks: int, address: str, queue: Any) -> None:
    """Time all sizes as one of the processes; the first puts what it found into the queue."""
    where = torch.device(device, rank) if device == "cuda" else torch.device(device)
    if device == "cuda":
        torch.cuda.set_device(where)
    else:
        torch.set_num_threads(1)
    backend = "nccl" if device == "cuda" else "gloo"
    distributed.init_process_group(backend, init_method=address, rank=rank, world_size=n_ranks)
    try:
        found = _timed(where)
        if rank == 0:
            queue.put(found)
    finally:
        distributed.destroy_process_group()


def _timed(device: torch.device) -> list[tuple[int, float]]:
    begin_s = time.monotonic()
    found: list[tuple[int, float]] = []
    for n_bytes in MESSAGE_BYTES:
        is_over = torch.tensor(float(time.monotonic() - begin_s > _LONGEST_S), device=device)
        distributed.all_reduce(is_over)
        if float(is_over) > 0:  # one rank's clock ends it for all
            break
        buffer = torch.ones(n_bytes // _ELEMENT_BYTES, device=device)
        times_s = []
        for i in range(_WARM_UPS + _REPEATS):
            distributed.barrier()
            start_s = time.perf_counter()
            distributed.all_reduce(buffer)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken = torch.tensor(time.perf_counter() - start_s, device=device)
            distributed.all_reduce(taken, op=distributed.ReduceOp.MAX)
            if i >= _WARM_UPS:
                times_s.append(float(taken))
            buffer.fill_(1.0)
        found.append((buffer.numel(), float(np.median(times_s))))
    return found

"""How long a call takes: blocks of calls, until their median is known. Needs torch.

On a GPU by its own events. On a processor by the time that this process had the core where one thread
computes, so that what else runs on the machine does not count; by the clock on the wall where several do,
because their waiting for each other does.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Final

import numpy as np
import torch

from joulecast.units import KILO

#: A block is so long that the clock's own cost is lost in it. [s]
_BLOCK_S: Final = 0.004
_MOST_CALLS: Final = 2000
_FEWEST_BLOCKS: Final = 5
#: Standard error of a median over that of a mean, of normal values. [1]
_MEDIAN_RATIO: Final = 1.2533
#: Standard deviation over the median absolute deviation, of normal values. [1]
_DEVIATION_RATIO: Final = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What blocks of calls took.

    Attributes
    ----------
    latency_s : float
        Median of the blocks, per call. [s]
    error_frac : float
        Standard error of that median over it. [1]
    n_calls : int
    """

    latency_s: float
    error_frac: float
    n_calls: int


class Timer:
    """Times calls on one device.

    Parameters
    ----------
    device : torch.device
    error_frac : float
        Stop when the median is known this well. [1]
    longest_s : float
        For one case; a block that has begun ends. [s]
    shortest_s : float
        For one case, where a power sensor needs time. [s]
    """

    def __init__(
        self,
        device: torch.device,
        *,
        error_frac: float = 0.02,
        longest_s: float = 0.4,
        shortest_s: float = 0.0,
    ) -> None:
        self._device = device
        self._error_frac = error_frac
        self._longest_s = longest_s
        self._shortest_s = shortest_s
        one_thread = device.type == "cpu" and torch.get_num_threads() == 1
        self._clock: Callable[[], float] = time.thread_time if one_thread else time.perf_counter
        self.clock_name = "process time" if one_thread else "wall clock"
        if device.type == "cuda":
            self.clock_name = "CUDA events"

    def time(self, call: Callable[[], object]) -> Timing:
        """Return how long a call takes, after two to warm up."""
        begin_s = time.monotonic()
        for _ in range(2):
            call()
        self._synchronize()
        n_calls = min(max(ceil(_BLOCK_S / max(self._block_s(call, 1), 1e-9)), 1), _MOST_CALLS)
        blocks: list[float] = []
        while True:
            blocks.append(self._block_s(call, n_calls) / n_calls)
            spent_s = time.monotonic() - begin_s
            error_frac = _median_error_frac(blocks)
            known = len(blocks) >= _FEWEST_BLOCKS and error_frac <= self._error_frac
            if (known and spent_s >= self._shortest_s) or spent_s >= self._longest_s:
                return Timing(
                    latency_s=float(np.median(blocks)),
                    error_frac=error_frac,
                    n_calls=n_calls * len(blocks),
                )

    def host_time(self, call: Callable[[], object]) -> Timing:
        """Return how long the host is busy with a call, whatever the device does meanwhile."""
        events, self._device = self._device, torch.device("cpu")
        try:
            return self.time(call)
        finally:
            self._device = events
            self._synchronize()

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _block_s(self, call: Callable[[], object], n_calls: int) -> float:
        """Return the time of some calls in a row. [s]"""
        if self._device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(n_calls):
                call()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / KILO
        start_s = self._clock()
        for _ in range(n_calls):
            call()
        return self._clock() - start_s


def _median_error_frac(values: list[float]) -> float:
    """Return the standard error of the median of some values, over it. [1]"""
    median = float(np.median(values))
    deviation = _DEVIATION_RATIO * float(np.median(np.abs(np.asarray(values) - median)))
    return _MEDIAN_RATIO * deviation / sqrt(len(values)) / max(median, 1e-12)

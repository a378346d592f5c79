"""A training loop of one's own, metered from inside.

::

    with joulecast.Meter(batch_size=32) as meter:
        for batch in loader:
            train(batch)
            meter.step()
    print(meter.measurement.energy_per_step_j)
"""

import os
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from types import TracebackType
from typing import Any, Final, Self

from joulecast.measure.journal import Journal, Keeper
from joulecast.measure.protocol import Repeat, Steps
from joulecast.measure.record import Subject, record
from joulecast.measure.sensors import Component, Sensor
from joulecast.measure.window import SAMPLING_S, Sampler, default_sensors
from joulecast.results import Measurement, RunStatus

#: Windows that the steps are grouped into, so that there is a spread.
_MOST_WINDOWS: Final = 20
#: Sensors are read at the edges of windows, which must not slow short steps down. [s]
_SHORTEST_WINDOW_S: Final = 0.5


class Meter:
    """Measures the steps between ``with`` and its end; `step` ends each.

    Under ``torchrun`` one rank of each node measures, and `measurement` is None on the others; records of
    several nodes are put together by `joulecast.combine`. Nothing that a sensor does stops the loop.

    Parameters
    ----------
    batch_size : float, optional
        Samples per step of all devices; for samples per second and per joule.
    n_warmup : int
        Steps before the measurement begins.
    store : Keeper, optional
        Keeps the record, from the first window on.
    sensors : sequence of Sensor, optional
        Instead of those of this machine.
    **configuration
        Fields of `Measurement` that say what runs: ``model``, ``precision`` and so on.

    Attributes
    ----------
    measurement : Measurement or None
        After the end of ``with``.
    """

    def __init__(
        self,
        *,
        batch_size: float | None = None,
        n_warmup: int = 3,
        store: Keeper | None = None,
        sensors: tuple[Sensor, ...] | None = None,
        **configuration: Any,
    ) -> None:
        self._batch_size = batch_size
        self._n_warmup = n_warmup
        self._store = store
        self._sensors = default_sensors() if sensors is None else tuple(sensors)
        self._configuration = configuration
        self._stack = ExitStack()
        self._n_steps = 0
        self._edges: list[tuple[float, int]] = []
        self._window_s = _SHORTEST_WINDOW_S
        self.measurement: Measurement | None = None

    def __enter__(self) -> Self:
        self._is_writer = _local_rank() == 0
        self._sampler = self._stack.enter_context(
            Sampler(self._sensors if self._is_writer else (), interval_s=SAMPLING_S)
        )
        gpus = [c for c in self._sampler.channels if c.component is Component.GPU]
        self._subject = Subject(
            component=Component.GPU if gpus else Component.CPU,
            n_devices=max(len(gpus), 1),
            configuration={
                "gpu_name": gpus[0].name if gpus else None,
                "n_gpus": len(gpus) or None,
                **self._configuration,
            },
            global_batch=self._batch_size,
            start_s=self._sampler.mark(),
        )
        keeper = self._store if self._is_writer else None
        self._journal = self._stack.enter_context(Journal(keeper, lambda: self._record(RunStatus.PARTIAL)))
        return self

    def step(self) -> None:
        """Say that a step has ended."""
        self._n_steps += 1
        n_measured = self._n_steps - self._n_warmup
        if n_measured == 0:
            _finish()
        is_late = not self._edges or time.monotonic() - self._edges[-1][0] >= self._window_s
        if n_measured < 0 or not is_late:
            return
        self._edges.append((self._sampler.mark(), n_measured))
        if len(self._edges) > 2 * _MOST_WINDOWS:  # a run may last for days
            self._edges = self._edges[::2]
            self._window_s *= 2

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _finish()
        with self._stack:
            n_measured = self._n_steps - self._n_warmup
            if self._edges and n_measured > self._edges[-1][1]:
                self._edges.append((self._sampler.mark(), n_measured))
            elif self._edges:
                self._edges[-1] = (self._sampler.mark(), self._edges[-1][1])
            status = RunStatus.COMPLETE if kind is None else RunStatus.FAILED
            found = self._record(status, error="" if error is None else f"{type(error).__name__}: {error}")
            self._journal.finish(found)
        if self._journal.failure:
            found = replace(found, flags=(*found.flags, f"not kept: {self._journal.failure}"))
        self.measurement = found if self._is_writer else None

    def _record(self, status: RunStatus, **outcome: Any) -> Measurement:
        edges = list(self._edges)
        repeats = tuple(
            Repeat(start_s=start_s, end_s=end_s, n_steps=n_end - n_start)
            for (start_s, n_start), (end_s, n_end) in pairwise(edges)
        )
        n_warmup = min(self._n_warmup, self._n_steps)
        return record(
            self._subject,
            self._sampler,
            Steps(repeats=repeats, n_warmup_steps=n_warmup),
            end_s=self._sampler.mark(),
            status=status,
            **outcome,
        )


def _finish() -> None:
    """Wait for the GPU, if torch is here and has used one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))

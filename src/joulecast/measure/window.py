"""Reading sensors while something runs: a thread that samples, and marks at the edges of windows.

A sensor that fails is noted and the run goes on. Enters: sensors. Leaves: `Series`, and what is absent and
why. It must not know what runs.
"""

import logging
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Protocol, Self

import numpy as np

from joulecast.errors import SensorUnavailableError
from joulecast.measure.energy import Series
from joulecast.measure.sensors import (
    Channel,
    Component,
    GpuSensor,
    RaplSensor,
    Reading,
    Sensor,
    SocSensor,
)

_LOG: Final = logging.getLogger(__name__)

_COLUMNS: Final = ("time_s", "energy_j", "power_w", "temperature_c", "sm_clock_hz", "used_bytes")

#: Seconds between readings of a run of steps, and of a command, which may last for days. [s]
SAMPLING_S: Final = 0.1
COMMAND_SAMPLING_S: Final = 1.0


class Recorder(Protocol):
    """What keeps readings as they come."""

    def channels(self, channels: Sequence[Channel]) -> None:
        """Keep what is read."""

    def readings(self, readings: Sequence[Reading]) -> None:
        """Keep one round of readings."""


@dataclass(slots=True)
class _Columns:
    """The growing columns of one channel."""

    channel: Channel
    values: dict[str, "array[float]"] = field(default_factory=lambda: {name: array("d") for name in _COLUMNS})
    error: str = ""

    def add(self, reading: Reading) -> None:
        if reading.error and not self.error:
            self.error = reading.error
            _LOG.warning("%s: %s; the run goes on", reading.device, reading.error)
        for name, column in self.values.items():
            value = getattr(reading, name)
            column.append(float("nan") if value is None else value)

    def series(self) -> Series:
        arrays = {name: np.array(column) for name, column in self.values.items()}
        return Series(channel=self.channel, error=self.error, **arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """Why a component is not measured, and what would help."""

    reason: str
    remedy: str


def default_sensors(devices: Sequence[str] | None = None) -> tuple[Sensor, ...]:
    """Return the sensors of this machine: GPUs, processor packages, systems on a chip.

    Parameters
    ----------
    devices : sequence of str, optional
        The GPUs, as `GpuSensor` takes them.
    """
    return GpuSensor(devices), RaplSensor(), SocSensor()


#: Component -> the sensors that could have measured it, for the reason shown where none did.
_MEASURED_BY: Final = {
    Component.GPU: (GpuSensor, SocSensor),
    Component.CPU: (RaplSensor, SocSensor),
    Component.DRAM: (RaplSensor, SocSensor),
}


class Sampler:
    """Reads sensors every so often, on a thread, from ``with`` to its end.

    Parameters
    ----------
    sensors : sequence of Sensor
    interval_s : float
        Between rounds. [s]
    recorder : Recorder, optional
        Keeps the readings too.
    clock : callable
        Seconds that only grow. [s]
    on_thread : bool
        False reads only when `mark` is called.
    """

    def __init__(
        self,
        sensors: Sequence[Sensor],
        *,
        interval_s: float = SAMPLING_S,
        recorder: Recorder | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_thread: bool = True,
    ) -> None:
        self._given = tuple(sensors)
        self._open: list[Sensor] = []
        self._columns: dict[str, _Columns] = {}
        self._interval_s = interval_s
        self._recorder = recorder
        self._clock = clock
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True) if on_thread else None
        self.failures: dict[str, Absence] = {}
        self.flags: list[str] = []

    def __enter__(self) -> Self:
        for sensor in self._given:
            try:
                channels = sensor.open()
            except SensorUnavailableError as error:
                self.failures[type(sensor).__name__] = Absence(reason=error.reason, remedy=error.remedy)
                continue
            self._open.append(sensor)
            self._columns |= {c.device: _Columns(c) for c in channels if c.device not in self._columns}
        if self._recorder is not None:
            self._recorder.channels([columns.channel for columns in self._columns.values()])
        if self._thread is not None and self._open:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        for sensor in self._open:
            sensor.close()

    @property
    def channels(self) -> tuple[Channel, ...]:
        """What is read."""
        return tuple(columns.channel for columns in self._columns.values())

    def of(self, component: Component) -> tuple[Series, ...]:
        """Return the series of a component's devices so far."""
        with self._lock:
            return tuple(c.series() for c in self._columns.values() if c.channel.component is component)

    def absence(self, component: Component) -> Absence:
        """Return why nothing of a component is read."""
        names = [kind.__name__ for kind in _MEASURED_BY[component]]
        found = [self.failures[name] for name in names if name in self.failures]
        if found:
            return found[0]
        what = {"dram": "the memory", "cpu": "the processor", "gpu": "the GPU"}[component]
        return Absence(reason=f"no sensor reads {what}", remedy="`joulecast doctor` says what is there")

    def mark(self) -> float:
        """Read everything now and return the time of the last reading. [s]"""
        with self._lock:
            readings = [reading for sensor in self._open for reading in self._read(sensor)]
            for reading in readings:
                self._keep(reading)
            if self._recorder is not None:
                self._recorder.readings(readings)
        return max((reading.time_s for reading in readings), default=self._clock())

    def _keep(self, reading: Reading) -> None:
        columns = self._columns.get(reading.device)
        if columns is None:
            return
        times = columns.values["time_s"]
        if times and reading.time_s <= times[-1]:
            flag = f"{reading.device}: its clock went back; readings from before were left out"
            if reading.time_s < times[-1] and flag not in self.flags:
                self.flags.append(flag)
            return
        columns.add(reading)

    def _read(self, sensor: Sensor) -> tuple[Reading, ...]:
        try:
            return sensor.read()
        except Exception as error:  # a sensor must not end the run that it watches
            flag = f"{type(sensor).__name__} failed: {error}"
            if flag not in self.flags:
                self.flags.append(flag)
                _LOG.warning("%s; the run goes on", flag)
            return ()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.mark()

"""What of this machine can be measured, why not the rest, and what to do about it.

Every sensor is opened and read twice, as a measurement would; torch and the devices are asked what they are.
Nothing is set, nothing is changed.
"""

import os
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from joulecast.errors import JoulecastError, SensorUnavailableError, UnknownGpuError
from joulecast.hardware.catalogue import load_gpu
from joulecast.measure.energy import DISAGREEMENT_FRAC
from joulecast.measure.host import host, versions
from joulecast.measure.sensors import (
    WHOLE_CARD,
    Channel,
    GpuSensor,
    RaplSensor,
    Reading,
    Sensor,
    SocSensor,
    visible_gpus,
)

#: Between the two readings: long enough for any counter to move. [s]
_APART_S: Final = 0.5

_SENSORS: Final[tuple[tuple[str, Callable[[], Sensor]], ...]] = (
    ("GPUs (NVML, AMD SMI)", GpuSensor),
    ("processor and memory (RAPL)", RaplSensor),
    ("system on a chip (Apple, Jetson)", SocSensor),
)
_CONTAINER_MARKS: Final = ("/.dockerenv", "/run/.containerenv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    what : str
    works : bool
    says : str
        What is there, or why it is not.
    remedy : str
        What would make it work; empty where it does, or nothing would.
    """

    what: str
    works: bool
    says: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What `doctor` found.

    Attributes
    ----------
    sensors, software, devices : tuple of Finding
    host, versions : mapping of str to str
    """

    sensors: tuple[Finding, ...]
    software: tuple[Finding, ...]
    devices: tuple[Finding, ...]
    host: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    SCHEMA = "joulecast/doctor/1"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema": self.SCHEMA} | asdict(self)


def doctor(sensors: Sequence[tuple[str, Callable[[], Sensor]]] = _SENSORS) -> Diagnosis:
    """Look at the sensors, the software and the devices of this machine.

    Parameters
    ----------
    sensors : sequence of (str, callable)
        Name of a sensor and what makes it.
    """
    return Diagnosis(
        sensors=tuple(finding for name, make in sensors for finding in _sensor(name, make())),
        software=(_zeus(), *_torch(), _container()),
        devices=_devices(),
        host=host(),
        versions=versions(),
    )


# --- sensors --------------------------------------------------------------------------------------


def _sensor(name: str, sensor: Sensor) -> list[Finding]:
    """Return one finding per channel, or why there are none."""
    try:
        channels = sensor.open()
    except SensorUnavailableError as error:
        return [Finding(what=name, works=False, says=error.reason, remedy=error.remedy)]
    try:
        first = {reading.device: reading for reading in sensor.read()}
        time.sleep(_APART_S)
        second = {reading.device: reading for reading in sensor.read()}
    finally:
        sensor.close()
    return [_channel(c, first.get(c.device), second.get(c.device)) for c in channels]


def _channel(channel: Channel, first: Reading | None, second: Reading | None) -> Finding:
    what = f"{channel.device} {channel.name}"
    if first is None or second is None or second.error:
        says = "it does not answer" if second is None else second.error
        return Finding(what=what, works=False, says=says, remedy="`nvidia-smi` shows whether it is there")
    parts, remedies = _counter(channel, first, second)
    if second.power_w is not None:
        parts.append(f"power {second.power_w:.4g} W")
    if second.temperature_c is not None:
        parts.append(f"{second.temperature_c:.0f} degC")
    parts.append(f"of the {channel.scope}")
    if channel.averaging_s < channel.update_s:
        share = channel.averaging_s / channel.update_s
        parts.append(f"looks {share:.0%} of the time: intervals are wider")
    if channel.scope == WHOLE_CARD:
        remedies.append("a MIG slice has no meter: measure while nothing else runs on the card")
    works = second.energy_j is not None or second.power_w is not None
    return Finding(what=what, works=works, says=", ".join(parts), remedy="; ".join(remedies))


def _counter(channel: Channel, first: Reading, second: Reading) -> tuple[list[str], list[str]]:
    """Return what the energy counter says, and what to do where it does not."""
    if first.energy_j is None or second.energy_j is None:
        return ["no energy counter: power is polled"], ["none: the card, or its driver, has no counter"]
    counted_w = (second.energy_j - first.energy_j) / (second.time_s - first.time_s)
    says = f"energy counter, {counted_w:.4g} W"
    if counted_w == 0:
        return ["the energy counter stands still"], ["a virtual machine may show a counter that nobody feeds"]
    power_w = second.power_w
    if power_w is not None and abs(counted_w - power_w) > 3 * DISAGREEMENT_FRAC * max(counted_w, power_w):
        says += ", which its power does not confirm over so short a time"
    return [says], []


# --- software -------------------------------------------------------------------------------------


def _zeus() -> Finding:
    try:
        version = metadata.version("zeus")
    except metadata.PackageNotFoundError:
        return Finding(
            what="zeus", works=False, says="not installed", remedy="pip install 'joulecast[measure]'"
        )
    return Finding(what="zeus", works=True, says=version)


def _torch() -> list[Finding]:
    try:
        import torch
    except ImportError:
        remedy = "pip install 'joulecast[torch]'"
        return [Finding(what="torch", works=False, says="not installed", remedy=remedy)]
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    hip = getattr(torch.version, "hip", None)
    found = [
        Finding(what="torch", works=True, says=f"{torch.__version__}, {f'ROCm {hip}' if hip else built}")
    ]
    if torch.cuda.is_available():
        says = f"{torch.cuda.device_count()} devices"
        return [*found, Finding(what="GPUs of torch", works=True, says=says)]
    return [*found, _no_cuda(torch.version.cuda is not None)]


def _no_cuda(built_with_cuda: bool) -> Finding:
    """Return why torch has no GPU, as far as can be told from outside."""
    what, remedy = "GPUs of torch", "`joulecast measure --device cpu` works without"
    if not built_with_cuda:
        says, remedy = "this torch was built without CUDA", "install the CUDA build of torch"
    elif visible_gpus() == ():
        says, remedy = "CUDA_VISIBLE_DEVICES hides all of them", "unset CUDA_VISIBLE_DEVICES"
    elif shutil.which("nvidia-smi") is None and not Path("/dev/nvidiactl").exists():
        says = "no NVIDIA driver on this machine"
    elif not Path("/dev/nvidiactl").exists():
        says, remedy = "the driver is there and its devices are not", "start the container with --gpus all"
    else:
        says, remedy = "CUDA does not start", "compare the driver in `nvidia-smi` with torch's CUDA version"
    return Finding(what=what, works=False, says=says, remedy=remedy)


def _container() -> Finding:
    marks = [mark for mark in _CONTAINER_MARKS if Path(mark).exists()]
    if not marks and "container" not in os.environ:
        return Finding(what="container", works=True, says=f"none seen; {platform.system()}")
    return Finding(
        what="container",
        works=True,
        says="yes: sensors show only what was passed in",
        remedy="--gpus all; --volume /sys/class/powercap:/zeus_sys/class/powercap:ro for RAPL",
    )


# --- devices --------------------------------------------------------------------------------------


def _devices() -> tuple[Finding, ...]:
    """Return every device that could run a step, and its name in the catalogue."""
    names = [load_gpu("cpu").name]
    found = [Finding(what=names[0], works=True, says="--device cpu; every fact of it is a guess")]
    return (*found, *(_mapped(name) for name in _cuda_names()))


def _cuda_names() -> list[str]:
    try:
        import torch
    except ImportError:
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _mapped(name: str) -> Finding:
    try:
        return Finding(what=name, works=True, says=f"{load_gpu(name).slug} in the catalogue")
    except UnknownGpuError as error:
        near = f"like {', '.join(error.near)}" if error.near else "like nothing that is there"
        remedy = "it is measured all the same; a TOML file describes it to `predict`"
        return Finding(what=name, works=False, says=f"not in the catalogue, {near}", remedy=remedy)
    except JoulecastError as error:
        return Finding(what=name, works=False, says=str(error))

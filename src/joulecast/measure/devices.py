"""The devices to run on: what torch calls them, and what else torch reads of them. Needs torch."""

import time
from dataclasses import dataclass
from typing import Final

import torch

from joulecast.errors import DeviceNotFoundError, UnknownGpuError
from joulecast.hardware.catalogue import load_gpu
from joulecast.measure.sensors import Channel, Component, Reading, sampling_of, visible_gpus
from joulecast.units import MEGA

DEVICES: Final = ("cuda", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a step runs on.

    Attributes
    ----------
    torch_device : torch.device
        Of this rank.
    name : str
        As the driver, or the operating system, calls it.
    slug : str or None
        In the catalogue; None where it is not there.
    n_sms : int
        Multiprocessors, or cores.
    sensor_names : tuple of str
        Of all devices of the job on this node, as `GpuSensor` takes them; empty for a CPU.
    """

    torch_device: torch.device
    name: str
    slug: str | None
    n_sms: int
    sensor_names: tuple[str, ...]

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU."""
        return self.torch_device.type == "cuda"


def find_device(kind: str | None, *, n_local: int = 1, local_rank: int = 0) -> Device:
    """Return the device to measure on.

    Parameters
    ----------
    kind : str or None
        ``cuda`` or ``cpu``; None takes a GPU where there is one.
    n_local : int
        Devices that the job uses on this node.
    local_rank : int
        Which of them is this process's.

    Raises
    ------
    DeviceNotFoundError
        It is not there, or fewer are than asked for.
    """
    if kind is None:
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind not in DEVICES:
        raise DeviceNotFoundError(f"unknown device {kind!r}: choose one of {', '.join(DEVICES)}")
    if kind == "cpu":
        cpu = load_gpu("cpu")
        return Device(
            torch_device=torch.device("cpu"), name=cpu.name, slug="cpu", n_sms=cpu.n_sms, sensor_names=()
        )
    if not torch.cuda.is_available():
        raise DeviceNotFoundError(
            "this machine has no CUDA device that torch can use: --device cpu, or `joulecast doctor` says why"
        )
    n_there = torch.cuda.device_count()
    if n_local > n_there:
        raise DeviceNotFoundError(f"{n_local} GPUs are asked for, and torch sees {n_there}")
    properties = torch.cuda.get_device_properties(local_rank)
    return Device(
        torch_device=torch.device("cuda", local_rank),
        name=properties.name,
        slug=catalogued(properties.name),
        n_sms=properties.multi_processor_count,
        sensor_names=tuple(_sensor_name(i) for i in range(n_local)),
    )


def _sensor_name(i_device: int) -> str:
    """Return a GPU of torch as `GpuSensor` takes it: its slice, its UUID, or its number."""
    visible = visible_gpus()
    if visible is not None and i_device < len(visible) and visible[i_device].startswith("MIG"):
        return visible[i_device]
    if torch.version.hip:
        return str(i_device)
    uuid = getattr(torch.cuda.get_device_properties(i_device), "uuid", None)
    return f"GPU-{uuid}" if uuid else str(i_device)


def catalogued(name: str) -> str | None:
    """Return the slug of a driver's name, None where the catalogue does not have it."""
    try:
        return load_gpu(name).slug
    except UnknownGpuError:
        return None


class TorchSensor:
    """Clock and memory in use of GPUs, as torch reads them.

    Parameters
    ----------
    n_devices : int
    """

    def __init__(self, n_devices: int) -> None:
        self._n_devices = n_devices

    def open(self) -> tuple[Channel, ...]:
        """Return one channel per GPU; its power is not read here."""
        return tuple(self._channel(i) for i in range(self._n_devices))

    def _channel(self, i_device: int) -> Channel:
        name = torch.cuda.get_device_properties(i_device).name
        update_s, averaging_s = sampling_of(name)
        return Channel(
            device=f"torch:{i_device}",
            component=Component.STATE,
            name=name,
            scope="device",
            update_s=update_s,
            averaging_s=averaging_s,
            gain_frac=0.0,
        )

    def read(self) -> tuple[Reading, ...]:
        """Return clock and memory in use of each."""
        return tuple(self._reading(i) for i in range(self._n_devices))

    def _reading(self, i_device: int) -> Reading:
        try:
            clock_hz = float(torch.cuda.clock_rate(i_device)) * MEGA
            used_bytes = float(torch.cuda.device_memory_used(i_device))
        except Exception as error:  # a driver that does not answer must not end the run
            return Reading(time_s=time.monotonic(), device=f"torch:{i_device}", error=str(error))
        return Reading(
            time_s=time.monotonic(), device=f"torch:{i_device}", sm_clock_hz=clock_hz, used_bytes=used_bytes
        )

    def close(self) -> None:
        """Nothing is held."""

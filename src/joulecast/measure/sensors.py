"""What a sensor is, and the sensors there are: all hardware is read by the zeus library.

A sensor has channels (one device and scope each) and returns one `Reading` per channel and call. Absent is
None, never 0; a channel that fails says why, and the others go on. Enters: devices. Leaves: readings in SI
units on the monotonic clock. It must not know what runs, nor what is done with the readings.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol, TypedDict

from joulecast.errors import SensorUnavailableError
from joulecast.units import MICRO, MILLI


class Component(StrEnum):
    """What a channel measures: the energy of a part, or the state of a device."""

    GPU = "gpu"
    CPU = "cpu"
    DRAM = "dram"
    STATE = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One device as one sensor sees it.

    Attributes
    ----------
    device : str
        Unique on the node: ``gpu:GPU-8a3...`` (or an index where there is no UUID), ``cpu:0``, ``dram:0``.
    component : Component
    name : str
        As the driver calls the device.
    scope : str
        What a reading covers: ``board``, ``module`` (GPU and CPU of a superchip), ``package``, ``DRAM``, or
        ``whole card`` where a job has a slice of it.
    counter_range_j : float or None
        Where the energy counter starts again from 0; None where it does not. [J]
    update_s, averaging_s : float
        How often the sensor takes a value, and how long it looks each time. [s]
    gain_frac : float
        Half the width of the 90 % interval of the sensor's own gain. [1]
    power_limit_w : float or None
        In force. [W]
    """

    device: str
    component: Component
    name: str
    scope: str
    counter_range_j: float | None = None
    update_s: float
    averaging_s: float
    gain_frac: float
    power_limit_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a channel said at one moment.

    Attributes
    ----------
    time_s : float
        Monotonic clock. [s]
    device : str
        Of its channel.
    energy_j : float or None
        Counter, from an arbitrary zero. [J]
    power_w, temperature_c, sm_clock_hz, used_bytes : float or None
        At that moment; None where the sensor does not say. [W], [degC], [Hz], [bytes]
    error : str
        Why nothing was read; empty otherwise.
    """

    time_s: float
    device: str
    energy_j: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    sm_clock_hz: float | None = None
    used_bytes: float | None = None
    error: str = ""


class _Values(TypedDict, total=False):
    """The fields of a `Reading` that a device gives."""

    energy_j: float | None
    power_w: float | None
    temperature_c: float | None


ReadValues = Callable[[], _Values]


class Sensor(Protocol):
    """A source of readings."""

    def open(self) -> tuple[Channel, ...]:
        """Return what can be read; raise `SensorUnavailableError`, with the remedy, where nothing can."""

    def read(self) -> tuple[Reading, ...]:
        """Return one reading per channel; a channel that fails returns its error."""

    def close(self) -> None:
        """Release the device; a closed sensor may be opened again."""


# --- how good they are ----------------------------------------------------------------------------

#: Card, as words of its name -> how often its power is taken, and for how long. Source: Yang, Adamek, Armour,
#: "Accurate and convenient energy measurements for GPUs", SC'24, table of averaging windows: an A100 or H100
#: looks 25 of 100 ms. H200 and GH200 are taken to be as the H100. [s], [s] (guess: the figures and the title
#: were written from memory and not checked against the paper)
_PART_TIME: Final = {
    "A100": (0.100, 0.025),
    "A800": (0.100, 0.025),
    "H100": (0.100, 0.025),
    "H200": (0.100, 0.025),
    "H800": (0.100, 0.025),
    "GH200": (0.100, 0.025),
    "V100": (0.020, 0.010),
}
_FULL_TIME: Final = (0.100, 0.100)

#: NVML states its power to within 5 % [NVML API reference, nvmlDeviceGetPowerUsage].
_BOARD_GAIN_FRAC: Final = 0.05
#: A guess: RAPL against a wall meter is off by a few percent, the more the less is drawn (Khan et al., "RAPL
#: in action", ACM TOMPECS 3(2), 2018).
_RAPL_GAIN_FRAC: Final = 0.05
#: RAPL counts about every millisecond [Intel SDM vol. 3B, 15.10].
_RAPL_UPDATE_S: Final = 0.001
#: A guess: nothing is published for the meters of Apple's and Jetson's chips.
_SOC_GAIN_FRAC: Final = 0.10
_SOC_UPDATE_S: Final = 0.1


def sampling_of(name: str) -> tuple[float, float]:
    """Return how often a card's sensor takes a value, and how long it looks. [s], [s]"""
    words = name.replace("-", " ").upper().split()
    return next((times for card, times in _PART_TIME.items() if card in words), _FULL_TIME)


# --- zeus -----------------------------------------------------------------------------------------

_NO_ZEUS: Final = ("no sensor can be read without the zeus library", "pip install 'joulecast[measure]'")


@contextmanager
def _zeus_errors(remedies: dict[str, str], otherwise: str = "") -> Iterator[None]:
    """Turn what zeus raises into one error with the remedy for it.

    Parameters
    ----------
    remedies : dict of str to str
        Part of the name of zeus's exception -> remedy.
    otherwise : str
        Remedy for the others.
    """
    try:
        yield
    except SensorUnavailableError:
        raise
    except ImportError as error:
        raise SensorUnavailableError(*_NO_ZEUS) from error
    except Exception as error:  # zeus lets through what its vendors' libraries raise
        kind = type(error).__name__
        remedy = next((text for part, text in remedies.items() if part in kind), otherwise)
        raise SensorUnavailableError(str(error).rstrip(".") or kind, remedy) from error


class _Zeus:
    """Readings of a list of zeus's devices, one function each; failures stay with their channel."""

    def __init__(self) -> None:
        self._readers: list[tuple[Channel, ReadValues]] = []

    def read(self) -> tuple[Reading, ...]:
        """Return one reading per channel."""
        return tuple(_reading(channel, read) for channel, read in self._readers)

    def close(self) -> None:
        """Forget the devices."""
        self._readers = []

    def _opened(self) -> tuple[Channel, ...]:
        return tuple(channel for channel, _ in self._readers)


def _reading(channel: Channel, read: ReadValues) -> Reading:
    try:
        said = read()
        return Reading(time_s=time.monotonic(), device=channel.device, **said)
    except Exception as error:  # a sensor that fails must not end the run that it watches
        text = f"{type(error).__name__}: {error}"
        return Reading(time_s=time.monotonic(), device=channel.device, error=text)


# --- GPUs -----------------------------------------------------------------------------------------

_GPU_REMEDIES: Final = {
    "NoPermission": "run as a user of the device's group, or start the zeusd daemon",
    "DriverNotLoaded": "load the NVIDIA driver: `nvidia-smi` must work first",
    "LibRMVersionMismatch": "the driver was updated: restart the machine",
    "Lost": "`nvidia-smi` shows whether the card is there; a reset or a restart brings it back",
    "ResetRequired": "reset the card, or restart the machine",
}
_NO_GPU_REMEDY: Final = (
    "`nvidia-smi` (or `amd-smi`) must work first; in a container, start it with --gpus all (or the devices)"
)

#: Of a card whose sensor is read for one of its MIG slices.
WHOLE_CARD: Final = "whole card"


def visible_gpus(environment: Iterable[tuple[str, str]] | None = None) -> tuple[str, ...] | None:
    """Return what ``CUDA_VISIBLE_DEVICES`` lists: indices, UUIDs, MIG slices; None where all are visible.

    As CUDA does, the list ends at the first entry that names no device (``-1``).
    """
    variables = dict(os.environ if environment is None else environment)
    if "CUDA_VISIBLE_DEVICES" not in variables:
        return None
    entries: list[str] = []
    for entry in (part.strip() for part in variables["CUDA_VISIBLE_DEVICES"].split(",")):
        if not entry or entry.startswith("-"):
            break
        entries.append(entry)
    return tuple(dict.fromkeys(entries))


class GpuSensor(_Zeus):
    """The GPUs of this process, through zeus: energy counter, power, temperature, of each board.

    Parameters
    ----------
    devices : sequence of str, optional
        Indices, UUIDs (``GPU-...``) or MIG slices (``MIG-...``), as ``CUDA_VISIBLE_DEVICES`` lists them,
        which is what is taken by default. Each card counts once, however often it is named.
    """

    def __init__(self, devices: Sequence[str] | None = None) -> None:
        super().__init__()
        self._devices = devices

    def open(self) -> tuple[Channel, ...]:
        """Return the channels of the cards, one each."""
        with _zeus_errors(_GPU_REMEDIES, _NO_GPU_REMEDY):
            cards = _zeus_gpus()
            wanted = visible_gpus() if self._devices is None else tuple(self._devices)
            chosen = [(card, False) for card in cards] if wanted is None else _chosen(cards, wanted)
        if not chosen:
            raise SensorUnavailableError(
                "no GPU is visible", "CUDA_VISIBLE_DEVICES hides them: unset it" if cards else _NO_GPU_REMEDY
            )
        self._readers = [_gpu_reader(card, is_slice=is_slice) for card, is_slice in chosen]
        return self._opened()


def _zeus_gpus() -> list[Any]:
    """Return all cards of the node as zeus's devices.

    zeus refuses UUIDs and MIG slices in ``CUDA_VISIBLE_DEVICES`` and advises to hide the variable from it.
    """
    from zeus.device.gpu import AMDGPUs, NVIDIAGPUs, amdsmi_is_available, nvml_is_available

    hidden = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        if nvml_is_available():
            return list(NVIDIAGPUs().gpus)
    finally:
        if hidden is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = hidden
    if amdsmi_is_available():
        return list(AMDGPUs().gpus)
    raise SensorUnavailableError("no NVIDIA or AMD GPU answers on this machine", _NO_GPU_REMEDY)


def _chosen(cards: Sequence[Any], wanted: Sequence[str]) -> list[tuple[Any, bool]]:
    """Return the cards that are named, each once, and whether a slice of it was named."""
    found: dict[int, tuple[Any, bool]] = {}
    for entry in wanted:
        is_slice = entry.startswith("MIG")
        if entry.isdigit():
            matches = [card for card in cards if card.gpu_index == int(entry)]
        elif is_slice:
            matches = [card for card in cards if gpu_uuid(card) == _parent_uuid(entry)] or list(cards)[:1]
            if len(cards) > 1 and gpu_uuid(matches[0]) != _parent_uuid(entry):
                raise SensorUnavailableError(
                    f"the card of the slice {entry} is not known", "name the card by its index"
                )
        else:
            matches = [card for card in cards if gpu_uuid(card).startswith(entry)]
        if len(matches) != 1:
            raise SensorUnavailableError(
                f"CUDA_VISIBLE_DEVICES names {entry!r}, which is {len(matches)} of {len(cards)} cards",
                "`nvidia-smi -L` lists them",
            )
        card = matches[0]
        found[card.gpu_index] = (card, is_slice or found.get(card.gpu_index, (card, False))[1])
    return list(found.values())


def gpu_uuid(card: Any) -> str:
    """Return the identity of a zeus device; its index where the vendor gives none.

    zeus has no identity, so the vendor's library is asked with the handle that zeus holds; no value is read.
    """
    handle = getattr(card, "handle", None)
    try:
        import pynvml

        return str(pynvml.nvmlDeviceGetUUID(handle))
    except Exception:  # another vendor's card, or a library that does not answer
        return str(card.gpu_index)


def _parent_uuid(mig: str) -> str:
    """Return the UUID of the card that a MIG slice is of; empty where it cannot be told."""
    if mig.startswith("MIG-GPU-"):  # the old form, MIG-GPU-<uuid>/<instance>/<instance>
        return mig.removeprefix("MIG-").partition("/")[0]
    try:
        import pynvml

        slice_handle = pynvml.nvmlDeviceGetHandleByUUID(mig)
        return str(
            pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice_handle))
        )
    except Exception:  # an old driver, or no such slice: the caller decides
        return ""


def _optional(read: Callable[[], Any], factor: float) -> float | None:
    """Return what the device says, in SI units; None where it does not support that."""
    from zeus.device.gpu import ZeusGPUInvalidArgError, ZeusGPUNoPermissionError, ZeusGPUNotSupportedError

    try:
        said = read()
    except (ZeusGPUNotSupportedError, ZeusGPUInvalidArgError, ZeusGPUNoPermissionError):
        return None
    return None if said is None else float(said) * factor


def _gpu_reader(card: Any, *, is_slice: bool) -> tuple[Channel, ReadValues]:
    name = card.get_name()
    update_s, averaging_s = sampling_of(name)
    is_module = bool(getattr(card, "_is_grace_hopper", False))
    channel = Channel(
        device=f"gpu:{gpu_uuid(card)}",
        component=Component.GPU,
        name=name,
        scope=WHOLE_CARD if is_slice else "module" if is_module else "board",
        update_s=update_s,
        averaging_s=averaging_s,
        gain_frac=_BOARD_GAIN_FRAC,
        power_limit_w=_optional(card.get_power_management_limit, MILLI),
    )
    has_counter = bool(_optional(card.supports_get_total_energy_consumption, 1))

    def power_w() -> float | None:
        instant = _optional(card.get_instant_power_usage, MILLI)
        return instant or _optional(card.get_average_power_usage, MILLI) or None

    def read() -> _Values:
        return {
            "energy_j": _optional(card.get_total_energy_consumption, MILLI) if has_counter else None,
            "power_w": power_w(),  # no board draws 0 W: it means that nothing is known
            "temperature_c": _optional(card.get_gpu_temperature, 1),
        }

    return channel, read


# --- processors -----------------------------------------------------------------------------------

_RAPL_PERMISSION: Final = (
    "sudo chmod a+r /sys/class/powercap/intel-rapl/*/energy_uj "
    "/sys/class/powercap/intel-rapl/*/*/energy_uj (until the next start), or start the zeusd daemon"
)
_RAPL_REMEDIES: Final = {"Permission": _RAPL_PERMISSION}
_NO_RAPL: Final = (
    "an Intel or AMD processor with the kernel module intel_rapl_common; in a container, mount "
    "/sys/class/powercap at /zeus_sys/class/powercap; a virtual machine has none"
)


class RaplSensor(_Zeus):
    """Processor packages and their memory, through zeus's RAPL."""

    def open(self) -> tuple[Channel, ...]:
        """Return one channel per package, and one for its memory where it has a counter."""
        with _zeus_errors(_RAPL_REMEDIES, _NO_RAPL):
            from zeus.device.cpu.rapl import RAPLCPUs

            self._readers = [reader for cpu in RAPLCPUs().cpus for reader in _rapl_readers(cpu)]
        if not self._readers:
            raise SensorUnavailableError("RAPL shows no processor package", _NO_RAPL)
        return self._opened()


class _NoWrapProcess:
    """Stands in for the process that zeus starts per counter to count its wraps.

    Wraps are counted from the readings themselves, which come often enough: no other process is needed, and
    none re-imports the user's script.
    """

    def get_num_wraparounds(self) -> int:
        """Return 0: the counter is read as it stands."""
        return 0


def _rapl_readers(cpu: Any) -> list[tuple[Channel, ReadValues]]:
    """Return the readers of a package and of its memory."""
    parts = [(Component.CPU, getattr(cpu, "rapl_file", None), "package")]
    parts.append((Component.DRAM, getattr(cpu, "dram", None), "DRAM"))
    readers = []
    for component, file, scope in parts:
        if file is None:
            continue
        file._wraparound_tracker = _NoWrapProcess()
        channel = Channel(
            device=f"{component}:{cpu.cpu_index}",
            component=component,
            name=file.name,
            scope=scope,
            counter_range_j=file.max_energy_range_uj * MICRO,
            update_s=_RAPL_UPDATE_S,
            averaging_s=_RAPL_UPDATE_S,
            gain_frac=_RAPL_GAIN_FRAC,
        )
        readers.append((channel, _file_reader(file)))
    return readers or _daemon_readers(cpu)


def _file_reader(file: Any) -> ReadValues:
    return lambda: {"energy_j": file.read() * MILLI}


def _daemon_readers(cpu: Any) -> list[tuple[Channel, ReadValues]]:
    """Return the readers of a package that the zeusd daemon reads; it counts the wraps."""
    readers = []
    for component, part, scope in (
        (Component.CPU, "cpu_mj", "package"),
        (Component.DRAM, "dram_mj", "DRAM"),
    ):
        if component is Component.DRAM and not cpu.supports_get_dram_energy_consumption():
            continue
        channel = Channel(
            device=f"{component}:{cpu.cpu_index}",
            component=component,
            name=f"package-{cpu.cpu_index}",
            scope=scope,
            update_s=_RAPL_UPDATE_S,
            averaging_s=_RAPL_UPDATE_S,
            gain_frac=_RAPL_GAIN_FRAC,
        )
        readers.append((channel, _attribute_reader(cpu.get_total_energy_consumption, part)))
    return readers


def _attribute_reader(read: Callable[[], Any], attribute: str) -> ReadValues:
    def said() -> _Values:
        energy_mj = getattr(read(), attribute)
        return {"energy_j": None if energy_mj is None else energy_mj * MILLI}

    return said


# --- systems on a chip ----------------------------------------------------------------------------

#: Attribute of zeus's measurement -> what it is.
_SOC_PARTS: Final = {
    "gpu_mj": (Component.GPU, "package"),
    "gpu_energy_mj": (Component.GPU, "package"),
    "cpu_total_mj": (Component.CPU, "package"),
    "cpu_energy_mj": (Component.CPU, "package"),
    "dram_mj": (Component.DRAM, "DRAM"),
}


class SocSensor(_Zeus):
    """Apple silicon and Jetson, through zeus: one counter per part of the chip."""

    def open(self) -> tuple[Channel, ...]:
        """Return one channel per part that the chip meters."""
        with _zeus_errors({}, "needs an Apple silicon Mac (pip install 'zeus[apple]') or a Jetson"):
            from zeus.device.soc import get_soc

            chip = get_soc()
            first = chip.get_total_energy_consumption()
        self._readers = []
        for attribute, (component, scope) in _SOC_PARTS.items():
            if getattr(first, attribute, None) is None:
                continue
            channel = Channel(
                device=f"{component}:soc",
                component=component,
                name=type(chip).__name__,
                scope=scope,
                update_s=_SOC_UPDATE_S,
                averaging_s=_SOC_UPDATE_S,
                gain_frac=_SOC_GAIN_FRAC,
            )
            self._readers.append((channel, _attribute_reader(chip.get_total_energy_consumption, attribute)))
        return self._opened()

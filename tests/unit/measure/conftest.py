"""A sensor that a test tells what to say, and records made with it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from joulecast.errors import SensorUnavailableError
from joulecast.measure.protocol import Repeat, Steps
from joulecast.measure.record import Subject, record
from joulecast.measure.sensors import Channel, Component, Reading
from joulecast.measure.window import Sampler
from joulecast.results import MeasuredQuantity, Measurement, RunStatus


def channel(device: str, component: Component, **changes: Any) -> Channel:
    options: dict[str, Any] = {
        "name": "a device",
        "scope": "board",
        "update_s": 0.1,
        "averaging_s": 0.1,
        "gain_frac": 0.05,
    }
    return Channel(device=device, component=component, **(options | changes))


@dataclass
class SteadySensor:
    """Devices of constant power, on a clock that every round moves on by 0.1 s."""

    channels: list[Channel]
    power_w: dict[str, float]
    now_s: float = 0.0
    unavailable: SensorUnavailableError | None = None
    closed: int = field(default=0)

    def open(self) -> tuple[Channel, ...]:
        if self.unavailable is not None:
            raise self.unavailable
        return tuple(self.channels)

    def read(self) -> tuple[Reading, ...]:
        self.now_s += 0.1
        return tuple(
            Reading(
                time_s=self.now_s,
                device=c.device,
                energy_j=self.power_w[c.device] * self.now_s,
                power_w=self.power_w[c.device],
                temperature_c=50.0,
            )
            for c in self.channels
        )

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def two_gpus() -> SteadySensor:
    """Return two boards of 100 W and 200 W, and a package of 60 W."""
    return SteadySensor(
        channels=[
            channel("gpu:a", Component.GPU),
            channel("gpu:b", Component.GPU),
            channel("cpu:0", Component.CPU, scope="package"),
        ],
        power_w={"gpu:a": 100.0, "gpu:b": 200.0, "cpu:0": 60.0},
    )


@pytest.fixture
def make_measurement(two_gpus: SteadySensor) -> Callable[..., Measurement]:
    """Return a maker of records: 4 windows of 5 steps of 0.2 s on two GPUs, 64 samples a step."""

    def make(**changes: Any) -> Measurement:
        with Sampler([two_gpus], on_thread=False) as sampler:
            start_s = sampler.mark()
            for _ in range(40):
                sampler.mark()
        repeats = tuple(Repeat(start_s=start_s + i, end_s=start_s + i + 1, n_steps=5) for i in range(4))
        exact = MeasuredQuantity(value=1e9, low=1e9, high=1e9, method="allocator", scope="process")
        subject = Subject(
            component=Component.GPU,
            n_devices=2,
            configuration={"model": "torchvision/resnet50", "gpu": "t4", "n_gpus": 2, "parallel": "ddp"},
            global_batch=64.0,
            memory=dict.fromkeys(("allocated_bytes", "reserved_bytes", "process_bytes"), exact),
            idle_power_w=MeasuredQuantity(value=30.0, low=28.0, high=32.0, method="counter", scope="board"),
            start_s=start_s,
        )
        steps = Steps(repeats=repeats, n_warmup_steps=7)
        options: dict[str, Any] = {"end_s": start_s + 6.0, "status": RunStatus.COMPLETE}
        return record(subject, sampler, steps, **(options | changes))

    return make

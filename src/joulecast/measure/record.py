"""Windows, series and memory -> `Measurement`: the quantities, each with its interval and how it was read.

Enters: what was run, when, and what the sensors said. Leaves: the record. It must not know torch.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from joulecast.measure.energy import Floats, Series, WindowEnergy, window_energy
from joulecast.measure.host import host, versions
from joulecast.measure.protocol import Repeat, Steps, mean_interval
from joulecast.measure.sensors import WHOLE_CARD, Component
from joulecast.measure.window import Sampler
from joulecast.results import MeasuredQuantity, Measurement, RunStatus

#: What `allocated_bytes` is, in a file of runs.
CUDA_METER: Final = "torch.max_memory_allocated"
CPU_METER: Final = "torch CPU allocator profile"

_NO_STEPS: Final = "the steps of a command are not known"
_NOT_BEGUN: Final = "the run ended before the first whole window of steps"
_METER_REMEDY: Final = "`joulecast measure MODEL`, or joulecast.Meter in the training loop"


@dataclass(slots=True, kw_only=True)
class Subject:
    """What is measured, and what is known of it before it runs.

    Attributes
    ----------
    component : Component
        Whose energy is that of the job: GPUs, or the processor where the job runs on it.
    n_devices : int
        Devices of the job on this node.
    configuration : mapping
        Fields of `Measurement` that echo what was asked.
    global_batch, tokens_per_sample : float or None
        Samples per step of all devices; tokens of each. None where not known.
    memory : mapping of str to MeasuredQuantity
        The three readings, where they were taken.
    idle_power_w : MeasuredQuantity or None
        Per device, before the run; None where it was not taken. [W]
    run_id, started_at : str
        UUID; ISO 8601, UTC.
    start_s : float
        Monotonic clock. [s]
    """

    component: Component
    n_devices: int
    configuration: Mapping[str, Any] = field(default_factory=dict)
    global_batch: float | None = None
    tokens_per_sample: float | None = None
    memory: Mapping[str, MeasuredQuantity] = field(default_factory=dict)
    idle_power_w: MeasuredQuantity | None = None
    run_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    start_s: float = 0.0


def record(
    subject: Subject,
    sampler: Sampler,
    steps: Steps,
    *,
    end_s: float,
    status: RunStatus,
    **outcome: Any,
) -> Measurement:
    """Return the record of what has run so far.

    Parameters
    ----------
    subject : Subject
    sampler : Sampler
    steps : Steps
        Windows; of a command, one window of no steps.
    end_s : float
        Now. [s]
    status : RunStatus
    **outcome
        Further fields of `Measurement`, such as ``exit_code``.
    """
    energy = _Energy(subject, sampler, steps.repeats)
    flags = (*steps.flags, *sampler.flags, *energy.flags, *outcome.pop("flags", ()))
    machine = host()
    fields: dict[str, Any] = {
        "run_id": subject.run_id,
        "started_at": subject.started_at,
        "duration_s": max(end_s - subject.start_s, 0.0),
        "status": status,
        "window_s": energy.window_s,
        "n_steps": sum(repeat.n_steps for repeat in steps.repeats),
        "n_repeats": len(steps.repeats),
        "n_warmup_steps": steps.n_warmup_steps,
        "global_batch": subject.global_batch,
        "host": machine,
        "nodes": (machine["hostname"],),
        "versions": versions(),
    }
    fields |= _rates(subject, steps) | energy.quantities() | _state(sampler, energy.edges)
    fields |= _memory(subject) | dict(subject.configuration) | outcome
    fields["flags"] = tuple(dict.fromkeys((*fields.get("flags", ()), *flags)))
    return Measurement(**fields)


def _memory(subject: Subject) -> dict[str, MeasuredQuantity]:
    missing = MeasuredQuantity.absent("the memory of another program is not known", _METER_REMEDY)
    names = ("allocated_bytes", "reserved_bytes", "process_bytes")
    return {name: subject.memory.get(name, missing) for name in names}


def _rates(subject: Subject, steps: Steps) -> dict[str, Any]:
    """Return time and throughput."""
    times_s = tuple(repeat.step_time_s for repeat in steps.repeats if repeat.n_steps)
    if not times_s:
        whole = bool(steps.repeats)
        absent = MeasuredQuantity.absent(_NO_STEPS if whole else _NOT_BEGUN, _METER_REMEDY if whole else "")
        return dict.fromkeys(("step_time_s", "samples_per_s", "tokens_per_s"), absent)
    value, low, high = mean_interval(times_s)
    # few repeats can have an interval that reaches below 0
    step_time = MeasuredQuantity(
        value=value, low=max(low, 0.1 * value), high=high, method="clock", scope="step"
    )
    no_batch = MeasuredQuantity.absent("the batch size is not known", "say it: Meter(batch_size=...)")
    no_tokens = MeasuredQuantity.absent("a sample is not a sequence of tokens")
    batch, tokens = subject.global_batch, subject.tokens_per_sample
    return {
        "repeat_step_time_s": times_s,
        "step_time_s": step_time,
        "samples_per_s": step_time.into(batch) if batch else no_batch,
        "tokens_per_s": step_time.into(batch * tokens) if batch and tokens else no_tokens,
    }


class _Energy:
    """Energies of the windows of a run, summed over devices."""

    def __init__(self, subject: Subject, sampler: Sampler, repeats: Sequence[Repeat]) -> None:
        self._subject = subject
        self._sampler = sampler
        self._repeats = [repeat for repeat in repeats if repeat.end_s > repeat.start_s]
        self.edges = (self._repeats[0].start_s, self._repeats[-1].end_s) if self._repeats else None
        self.window_s = self.edges[1] - self.edges[0] if self.edges else 0.0
        self.flags: tuple[str, ...] = ()
        times_s = [repeat.step_time_s for repeat in self._repeats if repeat.n_steps]
        self._step_time_s = float(np.mean(times_s)) if times_s else None
        self._series = {part: sampler.of(part) for part in (Component.GPU, Component.CPU, Component.DRAM)}

    def quantities(self) -> dict[str, Any]:
        """Return power and energies as fields of a measurement."""
        subject = self._subject
        idle = subject.idle_power_w or MeasuredQuantity.absent("the idle power was not taken")
        totals = {part: self._total(part, idle) for part in self._series}
        job = totals[subject.component]
        n_steps = sum(repeat.n_steps for repeat in self._repeats)
        per_repeat = tuple(self._of_repeats(subject.component)) if n_steps else ()
        per_step = _widened(job.times(1 / n_steps), per_repeat) if n_steps else job
        if not n_steps:
            per_step = MeasuredQuantity.absent(job.reason or _NO_STEPS, job.remedy or _METER_REMEDY)
        batch = subject.global_batch
        per_sample = per_step.times(1 / batch) if batch else _no_batch(per_step)
        scale = 1 / (self.window_s * subject.n_devices) if self.window_s else 0.0
        return {
            "mean_power_w": job.times(scale),
            "energy_per_step_j": per_step,
            "energy_per_sample_j": per_sample,
            "samples_per_j": per_step.into(batch) if batch else _no_batch(per_step),
            "repeat_energy_per_step_j": per_repeat,
            "idle_power_w": idle,
            "gpu_energy_j": totals[Component.GPU],
            "cpu_energy_j": totals[Component.CPU],
            "dram_energy_j": totals[Component.DRAM],
        }

    def _total(self, component: Component, idle: MeasuredQuantity) -> MeasuredQuantity:
        series = self._series[component]
        if self.edges is None:
            return MeasuredQuantity.absent(_NOT_BEGUN)
        is_job = component is self._subject.component
        found = [
            window_energy(
                s,
                *self.edges,
                step_time_s=self._step_time_s,
                idle_power_w=(idle.low or 0.0) if is_job else 0.0,
            )
            for s in series
        ]
        self.flags += tuple(flag for energy in found for flag in energy.flags)
        if any(s.channel.scope == WHOLE_CARD for s in series):
            self.flags += ("power and energy are of the whole card: a MIG slice has no meter of its own",)
        total = _sum(found, series)
        return self._absent(component, total) if total.value is None else total

    def _absent(self, component: Component, total: MeasuredQuantity) -> MeasuredQuantity:
        if self._series[component]:
            return total
        if component is Component.GPU and self._subject.component is not Component.GPU and self._step_time_s:
            return MeasuredQuantity.absent("the steps ran on the processor")
        absence = self._sampler.absence(component)
        return MeasuredQuantity.absent(absence.reason, absence.remedy)

    def _of_repeats(self, component: Component) -> Iterable[float]:
        """Return the energy per step of each repeat; nothing where any is not known. [J]"""
        series = self._series[component]
        values = []
        for repeat in self._repeats:
            parts = [window_energy(s, repeat.start_s, repeat.end_s).energy_j for s in series]
            known = [part for part in parts if part is not None]
            if not known or len(known) < len(parts):
                return []
            values.append(sum(known) / repeat.n_steps)
        return values


def mean_power_w(series: Sequence[Series], start_s: float, end_s: float) -> MeasuredQuantity:
    """Return the mean power of one of these devices over a window. [W]"""
    total = _sum([window_energy(s, start_s, end_s) for s in series], series)
    return total.times(1 / ((end_s - start_s) * max(len(series), 1)))


def _no_batch(quantity: MeasuredQuantity) -> MeasuredQuantity:
    reason = quantity.reason or "the batch size is not known"
    return MeasuredQuantity.absent(reason, quantity.remedy or "say it: Meter(batch_size=...)")


def _sum(found: Sequence[WindowEnergy], series: Sequence[Series]) -> MeasuredQuantity:
    """Return the sum over devices, absent where one is; intervals add, since gains may err alike. [J]"""
    missing = [energy.reason for energy in found if energy.energy_j is None]
    if missing or not found:
        reason = missing[0] if missing else "no sensor"
        return MeasuredQuantity.absent(reason, "`joulecast doctor` says what is there")
    return MeasuredQuantity(
        value=sum(e.energy_j or 0.0 for e in found),
        low=sum(e.low_j or 0.0 for e in found),
        high=sum(e.high_j or 0.0 for e in found),
        method=", ".join(sorted({e.method for e in found})),
        scope=", ".join(sorted({s.channel.scope for s in series})),
        sampling_hz=min(e.sampling_hz for e in found),
    )


def _widened(quantity: MeasuredQuantity, repeats: Sequence[float]) -> MeasuredQuantity:
    """Return the quantity with the interval of the mean of repeats added to the sensor's."""
    if quantity.value is None or quantity.low is None or quantity.high is None or not repeats:
        return quantity
    _, low, high = mean_interval(repeats)
    half = (high - low) / 2
    return replace(quantity, low=max(quantity.low - half, 0.0), high=quantity.high + half)


def _state(sampler: Sampler, edges: tuple[float, float] | None) -> dict[str, MeasuredQuantity]:
    """Return clock and temperature over the windows."""
    states = sampler.of(Component.STATE)
    boards = sampler.of(Component.GPU)
    clocks = [_inside(s.time_s, s.sm_clock_hz, edges) for s in states]
    temperatures = [_inside(s.time_s, s.temperature_c, edges) for s in boards]
    return {
        "sm_clock_hz": _spread(clocks, np.mean, "the clock is read of CUDA devices that torch uses"),
        "temperature_c": _spread(temperatures, np.max, "no sensor reads the temperature"),
    }


def _inside(time_s: Floats, values: Floats, edges: tuple[float, float] | None) -> Floats:
    if edges is None:
        return np.empty(0)
    inside = (time_s >= edges[0]) & (time_s <= edges[1]) & np.isfinite(values)
    return values[inside]


def _spread(parts: Sequence[Floats], summary: Any, reason: str) -> MeasuredQuantity:
    """Return a summary of all samples, with the 5th and 95th percentile around it."""
    samples = np.concatenate(parts) if parts else np.empty(0)
    if not len(samples):
        return MeasuredQuantity.absent(reason)
    value = float(summary(samples))
    low, high = (float(x) for x in np.percentile(samples, (5, 95)))
    return MeasuredQuantity(
        value=value, low=min(low, value), high=max(high, value), method="polled", scope="board"
    )


def largest_used_bytes(sampler: Sampler) -> float | None:
    """Return the most memory that any device said was in use; None where none says. [bytes]"""
    used = [
        float(np.nanmax(s.used_bytes)) for s in sampler.of(Component.STATE) if np.isfinite(s.used_bytes).any()
    ]
    return max(used, default=None)


def highest_temperature_c(sampler: Sampler) -> float | None:
    """Return the temperature of the hottest board, as last read; None where none says. [degC]"""
    last = [s.temperature_c[np.isfinite(s.temperature_c)][-1:] for s in sampler.of(Component.GPU)]
    return max((float(t[0]) for t in last if len(t)), default=None)

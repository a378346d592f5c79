"""One workload, measured: build it, warm up, repeat, record. Needs torch on use.

Enters: what `predict` takes. Leaves: a `Measurement` under the same names. Several GPUs of this node are
started with ``torchrun``; under a ``torchrun`` of the user's, the ranks that are there measure.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from joulecast.errors import (
    JoulecastError,
    MissingExtraError,
    OutOfDeviceMemoryError,
    UnstableMeasurementError,
    UsageError,
)
from joulecast.measure.energy import Series
from joulecast.measure.host import driver, torch_versions
from joulecast.measure.journal import Journal, Keeper, opened
from joulecast.measure.nodes import combine
from joulecast.measure.protocol import Plan, Protocol, Steps, standard_error_frac
from joulecast.measure.record import (
    CPU_METER,
    CUDA_METER,
    Subject,
    highest_temperature_c,
    largest_used_bytes,
    mean_power_w,
    record,
)
from joulecast.measure.recording import Recording
from joulecast.measure.sensors import Component, Sensor
from joulecast.measure.window import Sampler, default_sensors
from joulecast.results import MeasuredQuantity, Measurement, RunStatus
from joulecast.scenario import ECHOED, OwnModule, Scenario, SettledStep, own_module, settle_step

if TYPE_CHECKING:
    from joulecast.measure.devices import Device
    from joulecast.measure.group import Group
    from joulecast.measure.run import RealStep

#: A repeat lasts this long where a board is read every 0.1 s, so that its edges are a few percent. [s]
_SENSED_WINDOW_S: Final = 2.0
#: How long an idle device is looked at. [s]
_IDLE_S: Final = 2.0
#: Steps before the memory statistics start: the first makes the optimizer's state.
_FIRST_STEPS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to measure, and how.

    Attributes
    ----------
    scenario : Scenario
        Its card is not looked at: the one at hand is.
    device : str or None
        ``cuda`` or ``cpu``; None takes a GPU where there is one.
    plan : Plan
    max_error_frac : float
        A mean known worse than this is refused. [1]
    own : OwnModule, optional
        A module in hand.
    sensors : sequence of Sensor, optional
        Instead of those of the machine.
    recording : Path, optional
        File to write every reading to.
    """

    scenario: Scenario
    device: str | None = None
    plan: Plan = field(default_factory=Plan)
    max_error_frac: float = 0.10
    own: OwnModule | None = None
    sensors: Sequence[Sensor] | None = None
    recording: Path | None = None


def measure(  # noqa: PLR0913  (options by name)
    model: Any,
    inputs: Any = None,
    *,
    device: str | None = None,
    n_gpus: int = 1,
    seconds: float = 20.0,
    store: Keeper | None = None,
    store_url: str | None = None,
    sensors: Sequence[Sensor] | None = None,
    recording: Path | str | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    max_error_frac: float = 0.10,
    **options: Any,
) -> Measurement:
    """Measure the step that `joulecast.predict` prices, on the device at hand.

    Parameters
    ----------
    model : str or nn.Module
        As `predict` takes it; of a module in hand, a copy is run.
    inputs : optional
        Of a module in hand.
    device : str, optional
        ``cuda`` or ``cpu``; a GPU where there is one by default.
    n_gpus : int
        Data parallel, on this node; on a CPU, processes.
    seconds : float
        For warm-up and repeats. [s]
    store : Keeper, optional
        Keeps the record, from the start on; by default nothing does.
    store_url : str, optional
        The same by its address, which processes that are started can open too.
    sensors : sequence of Sensor, optional
        Instead of those of this machine.
    recording : Path or str, optional
        File to write every reading of the sensors to.
    loss : callable, optional
        Of a module whose output has no ``.loss``.
    max_error_frac : float
        A mean step time whose standard error is larger is refused; infinity takes anything. [1]
    **options
        Further fields of `Scenario`: ``precision``, ``batch_size``, ``seq_len`` and so on.

    Returns
    -------
    Measurement

    Raises
    ------
    UsageError
        The request cannot be.
    DeviceNotFoundError
        The device is not there.
    OutOfDeviceMemoryError
        The step does not fit; the message has the predicted need.
    UnstableMeasurementError
        The steps vary too much; it carries the record.
    """
    unknown = sorted(set(options) - {f.name for f in fields(Scenario)} | ({"gpu"} & set(options)))
    if unknown:
        raise UsageError(f"unknown option {', '.join(unknown)}: measure takes the card at hand")
    if seconds <= 0:
        raise UsageError(f"{seconds:g} seconds: it must be above 0")
    own = None
    if hasattr(model, "named_parameters"):
        own, batch_size = own_module(model, inputs, loss)
        model = own.name
        options.setdefault("batch_size", batch_size)
    request = Request(
        scenario=Scenario(model=model, gpu="cpu", n_gpus=n_gpus, **options),
        device=device,
        plan=Plan(seconds=seconds),
        max_error_frac=max_error_frac,
        own=own,
        sensors=sensors,
        recording=None if recording is None else Path(recording),
    )
    with opened(store, store_url) as keeper:
        try:
            from joulecast.measure.group import ranks_around
        except ImportError as error:
            raise MissingExtraError("measuring needs torch: pip install 'joulecast[torch]'") from error
        group = ranks_around()
        if n_gpus > 1 and group.n_ranks == 1:
            from joulecast.measure.launch import measure_ranks

            found = measure_ranks(request, store_url=store_url)
            if store is not None:
                store.add(found)
            return found
        return measure_here(request, group, keeper)


def measure_here(request: Request, group: "Group", keeper: Keeper | None) -> Measurement:
    """Measure in this process, as one rank of its group; every rank returns the record of the job."""
    from joulecast.measure.devices import find_device
    from joulecast.measure.group import joined

    step = settle_step(request.scenario, request.own)
    idle = _IdleLook(request, is_on=group.is_writer and request.device != "cpu")
    device = find_device(request.device, n_local=group.n_local, local_rank=group.local_rank)
    with joined(group, is_cuda=device.is_cuda), ExitStack() as stack:
        recorder = stack.enter_context(Recording(request.recording)) if request.recording else None
        sensors = _sensors(request, device) if group.is_writer else ()
        sampler = stack.enter_context(Sampler(sensors, recorder=recorder))
        run = _Run(request, step, device, group, sampler, idle)
        found = run.kept_by(keeper if group.is_writer else None)
        records = [r for r in group.gather(found) if r is not None]
    job = combine(records)
    _check_stable(job, request)
    return job


def _sensors(request: Request, device: "Device") -> tuple[Sensor, ...]:
    if request.sensors is not None:
        return tuple(request.sensors)
    if not device.is_cuda:
        return default_sensors()[1:]
    from joulecast.measure.devices import TorchSensor

    return (*default_sensors(device.sensor_names), TorchSensor(len(device.sensor_names)))


class _IdleLook:
    """The power of the GPUs before this process touches them."""

    def __init__(self, request: Request, *, is_on: bool) -> None:
        self._series: tuple[Series, ...] = ()
        self._edges = (0.0, 0.0)
        if not is_on or request.sensors is not None:
            return
        with Sampler(default_sensors()[:1]) as sampler:
            if sampler.of(Component.GPU):
                start_s = sampler.mark()
                time.sleep(_IDLE_S)
                self._edges = (start_s, sampler.mark())
            self._series = sampler.of(Component.GPU)

    def power_w(self, devices: Sequence[str], *, is_cuda: bool) -> MeasuredQuantity:
        """Return the mean over those of the devices that were looked at. [W]"""
        series = [s for s in self._series if s.channel.device in devices]
        if not series:
            if not is_cuda:
                return MeasuredQuantity.absent("a processor that measures is not idle")
            return MeasuredQuantity.absent("no sensor read the GPUs before the run", "`joulecast doctor`")
        return mean_power_w(series, *self._edges)


class _Run:
    """One rank's share of a measurement."""

    def __init__(
        self,
        request: Request,
        step: SettledStep,
        device: "Device",
        group: "Group",
        sampler: Sampler,
        idle: _IdleLook,
    ) -> None:
        self._request = request
        self._step = step
        self._device = device
        self._group = group
        self._sampler = sampler
        self._steps = Steps(repeats=(), n_warmup_steps=0)
        batch = step.batch_size * step.accumulate
        self._subject = Subject(
            component=Component.GPU if device.is_cuda else Component.CPU,
            n_devices=group.n_local,
            configuration=_configuration(request, step, device, group, sampler),
            global_batch=batch * group.n_ranks,
            tokens_per_sample=step.seq_len if step.card.is_sequence else None,
            idle_power_w=idle.power_w([c.device for c in sampler.channels], is_cuda=device.is_cuda),
            start_s=sampler.mark(),
        )

    def kept_by(self, keeper: Keeper | None) -> Measurement | None:
        """Run, keeping the record as it grows; return it on the writer of the node, None on others."""
        with Journal(keeper, lambda: self._record(RunStatus.PARTIAL)) as journal:
            try:
                self._run()
            except BaseException as error:
                interrupted = isinstance(error, KeyboardInterrupt)
                status = RunStatus.PARTIAL if interrupted else RunStatus.FAILED
                described = f"{type(error).__name__}: {error}"
                need = self._out_of_memory(error)
                journal.finish(self._record(status, error=str(need or described)))
                if need is not None:
                    raise need from error
                raise
            found = self._record(RunStatus.COMPLETE)
            journal.finish(found)
            if journal.failure:
                found = replace(found, flags=(*found.flags, f"not kept: {journal.failure}"))
        return found if self._group.is_writer else None

    def _record(self, status: RunStatus, **outcome: Any) -> Measurement:
        return record(
            self._subject,
            self._sampler,
            self._steps,
            end_s=time.monotonic(),
            status=status,
            job_id=self._group.job_id,
            **outcome,
        )

    def _run(self) -> None:
        plan = self._request.plan
        if self._sampler.of(self._subject.component):
            plan = replace(plan, window_s=max(plan.window_s, _SENSED_WINDOW_S))
        step, memory = self._first_steps()
        try:
            protocol = Protocol(
                step,
                finish=step.finish,
                mark=self._sampler.mark,
                agree=self._group.agree,
                temperature_c=lambda: highest_temperature_c(self._sampler),
                on_repeat=self._take,
            )
            self._take(protocol.run(plan))
            self._subject.memory = self._fullest(memory())
        finally:
            step.close()

    def _take(self, steps: Steps) -> None:
        self._steps = steps

    def _first_steps(self) -> tuple["RealStep", Callable[[], dict[str, MeasuredQuantity]]]:
        """Build the step and run it so often that its memory is settled; return what reads the memory."""
        from joulecast.measure.memory import allocator_profile, cpu_memory, cuda_memory

        if self._device.is_cuda:
            import torch

            step = self._built()
            torch.cuda.reset_peak_memory_stats(self._device.torch_device)
            return step, lambda: cuda_memory(self._device.torch_device, largest_used_bytes(self._sampler))
        with allocator_profile() as profile:
            step = self._built()
        return step, lambda: cpu_memory(profile)

    def _built(self) -> "RealStep":
        from joulecast.measure.run import RealStep

        step = RealStep(
            self._step,
            self._device.torch_device,
            own=self._request.own,
            force=self._request.scenario.force,
            data_parallel=self._group.n_ranks > 1,
        )
        for _ in range(_FIRST_STEPS):
            step()
        step.finish()
        return step

    def _fullest(self, memory: dict[str, MeasuredQuantity]) -> dict[str, MeasuredQuantity]:
        """Return, of each reading, that of the rank with the most."""
        ranks = self._group.gather(memory)
        return {name: max((r[name] for r in ranks), key=lambda q: q.value or 0.0) for name in memory}

    def _out_of_memory(self, error: BaseException) -> OutOfDeviceMemoryError | None:
        """Return the error with the predicted need, if memory is what ran out."""
        if not _is_out_of_memory(error):
            return None
        need = _predicted_need(self._request.scenario, self._device, self._request.own)
        return OutOfDeviceMemoryError(
            f"{self._step.model} at batch {self._step.batch_size:.0f} does not fit "
            f"{self._device.name}{need}; "
            "lower --batch-size, or use --checkpointing"
        )


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: CUDA has its own error, the CPU allocator raises a plain one."""
    text = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or ("DefaultCPUAllocator" in text and "allocate" in text)
    )


def _predicted_need(scenario: Scenario, device: "Device", own: OwnModule | None) -> str:
    from joulecast.model.parameters import load_parameters
    from joulecast.prediction import predict_scenario
    from joulecast.units import GIB

    card = replace(scenario, gpu=device.slug or "cpu", n_gpus=1, parallel=None)
    try:
        predicted = predict_scenario(card, load_parameters(), own)
    except JoulecastError as error:
        return f" (its need cannot be predicted: {error})"
    q = predicted.process_bytes
    capacity = f", and the device has {predicted.capacity_bytes / GIB:.3g}" if device.slug else ""
    return f": {q.value / GIB:.3g} GiB ({q.low / GIB:.3g} to {q.high / GIB:.3g}) are predicted{capacity}"


def _configuration(
    request: Request, step: SettledStep, device: "Device", group: "Group", sampler: Sampler
) -> Mapping[str, Any]:
    """Return the fields of a measurement that echo what was asked, and the machine."""
    limits_w = [c.power_limit_w for c in sampler.channels if c.component is Component.GPU and c.power_limit_w]
    batch = step.batch_size * step.accumulate
    flags = step.flags
    if device.slug is None:
        flags += (f"{device.name} is not in the catalogue: `joulecast gpus` lists what is",)
    from joulecast.measure.host import versions

    return {
        **{name: getattr(step, name) for name in ECHOED},
        "gpu": device.slug,
        "gpu_name": device.name,
        "n_gpus": group.n_local,
        "parallel": request.scenario.parallel or ("ddp" if group.n_ranks > 1 else "none"),
        "batch_per_gpu": batch,
        "power_limit_w": min(limits_w) if limits_w else None,
        "n_sms": device.n_sms,
        "memory_meter": CUDA_METER if device.is_cuda else CPU_METER,
        "driver": driver(),
        "versions": versions() | torch_versions(),
        "flags": flags,
    }


def _check_stable(job: Measurement, request: Request) -> None:
    """Raise where the mean of the repeats is not known well enough."""
    error_frac = standard_error_frac(job.repeat_step_time_s)
    if error_frac > request.max_error_frac:
        raise UnstableMeasurementError(error_frac, request.max_error_frac, job)

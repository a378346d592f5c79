"""A benchmark of the device at hand: choose, time, keep, until the budget is spent.

Enters: a device, a budget, a file. Leaves: the file with more rows, and a `Bench` that says what is known.
Needs torch on use.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import joulecast
from joulecast.errors import MissingExtraError, UsageError
from joulecast.hardware.catalogue import load_gpu
from joulecast.measure.bench.cases import Case, all_cases, case_of, columns_of
from joulecast.measure.bench.choice import Search, expected_latency_s
from joulecast.measure.bench.records import OperatorFile
from joulecast.measure.record import mean_power_w
from joulecast.measure.sensors import Component
from joulecast.measure.window import Sampler, default_sensors
from joulecast.model.parameters import ParameterSet
from joulecast.workload.operator_table import HOST_PARAMETERS, KINDS, operator_table

if TYPE_CHECKING:
    from joulecast.measure.bench.timing import Timer
    from joulecast.measure.devices import Device

BENCH_SCHEMA: Final = "joulecast/bench/1"

#: A case that is expected to take longer is left out. [s]
_LONGEST_CALL_S: Final = 0.15
#: Share of the device's memory that a case's operands and results may take, copies apart. [1]
_MEMORY_FRAC: Final = 0.05
#: Letters of a reason.
_MOST_TEXT: Final = 200
#: How often the file is written. [s]
_SAVE_EVERY_S: Final = 5.0
#: How long a case runs where a board's power is read, and the shortest latency whose power means something:
#: shorter kernels leave the board waiting for the host. [s]
_SENSED_S: Final = 0.6
_LEAST_SENSED_LATENCY_S: Final = 5e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGroup:
    """What a benchmark knows of the cases that share an efficiency.

    Attributes
    ----------
    name : str
    n_measured, n_left : int
    measured_over_expected : float or None
        Geometric mean over its cases; None without any. [1]
    standard_error : float or None
        Of its logarithm. [1]
    """

    name: str
    n_measured: int
    n_left: int
    measured_over_expected: float | None
    standard_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a benchmark did.

    Attributes
    ----------
    device, gpu : str
        As the driver calls it; its slug.
    out : str
        The file.
    clock : str
        What timed it.
    n_new, n_rows : int
        Cases measured now; rows of the file.
    spent_s, budget_s : float
        [s]
    groups : tuple of KnownGroup
    failed : mapping of str to str
        Group -> why a case of it could not run.
    ended : str
        ``budget``, ``known``, ``interrupted``.
    power : str
        Why no power was measured; empty where it was.
    """

    device: str
    gpu: str
    out: str
    clock: str
    n_new: int
    n_rows: int
    spent_s: float
    budget_s: float
    groups: tuple[KnownGroup, ...]
    failed: dict[str, str]
    ended: str
    power: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``joulecast bench --format json``."""
        names = ("device", "gpu", "out", "clock", "n_new", "n_rows", "spent_s", "budget_s", "ended")
        return {
            "schema": BENCH_SCHEMA,
            **{name: getattr(self, name) for name in names},
            "power_absent": self.power or None,
            "groups": self.rows(),
            "failed": self.failed,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a flat row per group."""
        return [
            {
                "group": g.name,
                "n_measured": g.n_measured,
                "n_left": g.n_left,
                "measured_over_expected": g.measured_over_expected,
                "standard_error": g.standard_error,
            }
            for g in self.groups
        ]


def bench(
    parameters: ParameterSet,
    *,
    device: str | None = None,
    n_gpus: int = 1,
    dtypes: Sequence[str] = (),
    budget_s: float = 120.0,
    out: Path | str = "ops.parquet",
    progress: Callable[[str], None] | None = None,
) -> Bench:
    """Time operators on the device at hand, where a parameter set is least known to hold.

    Parameters
    ----------
    parameters : ParameterSet
        The set whose groups are checked.
    device : str, optional
        ``cuda`` or ``cpu``; a GPU where there is one by default.
    n_gpus : int
        Above 1, all-reduces between so many devices are timed first; on a processor, processes.
    dtypes : sequence of str
        Of `cases.DTYPES`; by default fp32 on a processor, all on a GPU.
    budget_s : float
        For this call, on the wall clock. [s]
    out : Path or str
        An operator file; what it holds of this device is not measured again.
    progress : callable, optional
        Told a line now and then.

    Raises
    ------
    UsageError
        The request cannot be, or the device is not in the catalogue.
    DeviceNotFoundError
        The device is not there.
    RunsError
        The file is no operator file, or cannot be written.
    """
    if not 0 < budget_s < float("inf"):
        raise UsageError(f"a budget of {budget_s:g} seconds: it must be above 0")
    begin_s = time.monotonic()
    file = OperatorFile(Path(out))
    try:
        from joulecast.measure.devices import find_device
    except ImportError as error:
        raise MissingExtraError("a benchmark needs torch: pip install 'joulecast[torch]'") from error
    found = find_device(device, n_local=n_gpus)
    if found.slug is None:
        raise UsageError(f"{found.name} is not in the catalogue: `joulecast gpus` lists what is")
    chosen = tuple(dtypes) or _default_dtypes(found)
    search, known = _search(parameters, found, chosen, file)
    with Sampler(default_sensors(found.sensor_names)[:1] if found.is_cuda else ()) as sampler:
        run = _Run(file, found, sampler, begin_s, budget_s, progress or (lambda _: None))
        if n_gpus > 1:
            run.all_reduces(n_gpus)
        ended = run.all(search)
    return Bench(
        device=found.name,
        gpu=found.slug,
        out=str(file.path),
        clock=run.clock_name,
        n_new=len(file.rows) - known,
        n_rows=len(file.rows),
        spent_s=time.monotonic() - begin_s,
        budget_s=budget_s,
        groups=_known_groups(search),
        failed=run.failed,
        ended=ended,
        power=_no_power(found, sampler),
    )


def _default_dtypes(device: "Device") -> tuple[str, ...]:
    if not device.is_cuda:
        return ("fp32",)
    units = load_gpu(device.slug or "").flop_per_clock_per_sm
    return (
        "fp32",
        *(["tf32"] if units.get("tf32_tensor") else ["fp16"]),
        *(["bf16"] if units.get("bf16_tensor") else []),
    )


def _no_power(device: "Device", sampler: Sampler) -> str:
    if not device.is_cuda:
        return "the power of single operators is measured on GPUs alone"
    return "" if sampler.of(Component.GPU) else sampler.absence(Component.GPU).reason


def _search(
    parameters: ParameterSet, device: "Device", dtypes: Sequence[str], file: OperatorFile
) -> tuple[Search, int]:
    """Return the search over the cases that this device can run, told what the file has of it."""
    gpu = load_gpu(str(device.slug))
    cases = all_cases(dtypes, channels_last=device.is_cuda)
    expected_s = expected_latency_s(cases, gpu, parameters.values)
    fits = ~(expected_s > _LONGEST_CALL_S)
    n_bytes = _bytes_of(cases)
    fits &= ~(n_bytes > _MEMORY_FRAC * gpu.memory_bytes)
    kept = [case for case, fit in zip(cases, fits.tolist(), strict=True) if fit]
    search = Search(kept, expected_s[fits])
    for row in file.rows:
        if row["gpu"] == device.slug:
            search.take(case_of(row), row["latency_s"])
    return search, len(file.rows)


def _bytes_of(cases: Sequence[Case]) -> Any:
    """Return the traffic of each case, near what it keeps in memory; 0 for what is no operator. [bytes]"""
    found = np.zeros(len(cases))
    chosen = [i for i, case in enumerate(cases) if case.op in KINDS]
    table = operator_table(columns_of([cases[i] for i in chosen]))
    found[chosen] = table.read_bytes + table.written_bytes
    return found


def _known_groups(search: Search) -> tuple[KnownGroup, ...]:
    groups = []
    for group in search.groups.values():
        ratios = group.log_ratios
        groups.append(
            KnownGroup(
                name=group.name,
                n_measured=len(ratios),
                n_left=len(group.cases),
                measured_over_expected=float(np.exp(np.mean(ratios))) if ratios else None,
                standard_error=group.standard_error if ratios else None,
            )
        )
    return tuple(groups)


class _Run:
    """Times cases and keeps them."""

    def __init__(
        self,
        file: OperatorFile,
        device: "Device",
        sampler: Sampler,
        begin_s: float,
        budget_s: float,
        progress: Callable[[str], None],
    ) -> None:
        from joulecast.measure.bench.timing import Timer

        self._file = file
        self._device = device
        self._sampler = sampler
        self._end_s = begin_s + budget_s
        self._progress = progress
        self._has_power = bool(sampler.of(Component.GPU))
        self._timer = Timer(device.torch_device)
        self._sensed = Timer(device.torch_device, shortest_s=_SENSED_S, longest_s=2 * _SENSED_S)
        self._source = _source(device, self._timer)
        self.clock_name = self._timer.clock_name
        self.failed: dict[str, str] = {}

    def all(self, search: Search) -> str:
        """Time one case after the other; return why it ended. What was measured is kept in any case."""
        saved_s = time.monotonic()
        try:
            while time.monotonic() < self._end_s:
                case = search.next()
                if case is None:
                    return "known"
                search.take(case, self._case(case))
                if time.monotonic() - saved_s > _SAVE_EVERY_S:
                    self._file.save()
                    saved_s = time.monotonic()
                    self._progress(f"{len(self._file.rows)} rows; last: {case.group}")
            return "budget"
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            self._file.save()

    def all_reduces(self, n_ranks: int) -> None:
        """Time all-reduces between devices, unless the file has them."""
        from joulecast.measure.bench.collectives import all_reduce_rows

        known = [(row["op"], row["gpu"], row.get("b")) for row in self._file.rows]
        if ("all-reduce", self._device.slug, n_ranks) in known:
            return
        try:
            rows = all_reduce_rows(self._device.torch_device.type, n_ranks)
        except Exception as error:  # torch: whatever ended a process; the operators can still be timed
            self.failed["all-reduce"] = " ".join(str(error).split())[-_MOST_TEXT:]
            return
        source = self._source.replace(self.clock_name, "wall clock")
        self._file.rows += [{**row, "gpu": self._device.slug, "source": source} for row in rows]

    def _case(self, case: Case) -> float | None:
        """Time a case and add its row; None if it cannot run."""
        try:
            latency_s, power_w = self._timed(case)
        except (RuntimeError, NotImplementedError, MemoryError) as error:  # torch: memory, no such kernel
            self.failed.setdefault(case.group, " ".join(str(error).split())[:_MOST_TEXT])
            return None
        self._file.rows.append(
            {
                **{name: getattr(case, name) for name in ("op", "phase", "dtype")},
                **dict(case.sizes),
                "gpu": self._device.slug,
                "latency_s": latency_s,
                "mean_power_w": power_w,
                "source": self._source,
            }
        )
        return latency_s

    def _timed(self, case: Case) -> tuple[float, float | None]:
        from joulecast.measure.bench.host import host_latency_s
        from joulecast.measure.bench.kernels import make_call
        from joulecast.measure.run import product_units

        device = self._device.torch_device
        if case.op in HOST_PARAMETERS:
            return host_latency_s(case.op, device, self._timer), None
        with product_units("tf32" if case.dtype == "tf32" else "fp32-strict"):
            call = make_call(case, device)
            timing = self._timer.time(call)
            if not self._has_power or timing.latency_s < _LEAST_SENSED_LATENCY_S:
                return timing.latency_s, None
            start_s = self._sampler.mark()
            timing = self._sensed.time(call)
            end_s = self._sampler.mark()
        return timing.latency_s, mean_power_w(self._sampler.of(Component.GPU)[:1], start_s, end_s).value


def _source(device: "Device", timer: "Timer") -> str:
    """Return what every row says of where it comes from."""
    import torch

    threads = f", {torch.get_num_threads()} threads" if not device.is_cuda else ""
    return (
        f"joulecast bench {joulecast.__version__}, torch {torch.__version__}, "
        f"{device.name}{threads}, {timer.clock_name}"
    )

"""Any command, measured from its start to its end: energy, power, duration.

The command runs as it would without: its input, output and exit code are its own, signals reach it, and a
sensor or a store that fails does not stop it. The record is kept from the start on, so whatever ends this
process leaves it there, marked partial.
"""

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

from joulecast.errors import CommandNotFoundError, JoulecastError
from joulecast.measure.journal import Journal, Keeper, opened
from joulecast.measure.protocol import Repeat, Steps
from joulecast.measure.record import Subject, record
from joulecast.measure.recording import Recording
from joulecast.measure.sensors import Component, Sensor
from joulecast.measure.window import COMMAND_SAMPLING_S, Sampler, default_sensors
from joulecast.results import Measurement, RunStatus

_LOG: Final = logging.getLogger(__name__)

#: Signals that mean the command, wherever they exist.
_FORWARDED: Final = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT")


def measure_command(
    command: Sequence[str],
    *,
    store: Keeper | None = None,
    store_url: str | None = None,
    sensors: Sequence[Sensor] | None = None,
    recording: Path | str | None = None,
    sampling_s: float = COMMAND_SAMPLING_S,
) -> Measurement:
    """Run a command and return what it took; `Measurement.exit_code` is its own.

    Parameters
    ----------
    command : sequence of str
        Program and arguments; no shell.
    store : Keeper, optional
        Keeps the record, from the start on.
    store_url : str, optional
        The same by its address. A store that cannot be opened is reported, and the command runs.
    sensors : sequence of Sensor, optional
        Instead of those of this machine.
    recording : Path or str, optional
        File to write every reading to.
    sampling_s : float
        Between readings. [s]

    Raises
    ------
    CommandNotFoundError
        There is no such program, or it cannot be run.
    """
    with ExitStack() as stack:
        recorder = stack.enter_context(Recording(recording)) if recording else None
        given = default_sensors() if sensors is None else sensors
        sampler = stack.enter_context(Sampler(given, interval_s=sampling_s, recorder=recorder))
        flags: tuple[str, ...] = ()
        try:
            store = stack.enter_context(opened(store, store_url))
        except (JoulecastError, OSError) as error:
            flags = (f"not kept: {error}",)
            _LOG.warning("the run is not kept: %s; it starts all the same", error)
        return _Command(tuple(command), sampler, flags).kept_by(store)


class _Command:
    """A command and its record."""

    def __init__(self, command: tuple[str, ...], sampler: Sampler, flags: tuple[str, ...]) -> None:
        self._command = command
        self._sampler = sampler
        gpus = [c for c in sampler.channels if c.component is Component.GPU]
        names = dict.fromkeys(channel.name for channel in gpus)
        self._subject = Subject(
            component=Component.GPU if gpus else Component.CPU,
            n_devices=max(len(gpus), 1),
            configuration={
                "command": command,
                "flags": flags,
                "gpu_name": ", ".join(names) or None,
                "n_gpus": len(gpus) or None,
                "job_id": os.environ.get("TORCHELASTIC_RUN_ID") or os.environ.get("SLURM_JOB_ID"),
            },
            start_s=sampler.mark(),
        )

    def kept_by(self, keeper: Keeper | None) -> Measurement:
        """Run to the end, keeping the record as it grows."""
        process = _started(self._command)
        with Journal(keeper, self._so_far) as journal, _forwarded_to(process):
            exit_code = _waited(process)
            found = self._record(
                self._sampler.mark(),
                RunStatus.COMPLETE if exit_code == 0 else RunStatus.FAILED,
                exit_code=exit_code,
                error="" if exit_code == 0 else f"the command ended with exit code {exit_code}",
            )
            journal.finish(found)
        if journal.failure:
            found = replace(found, flags=(*found.flags, f"not kept: {journal.failure}"))
        return found

    def _so_far(self) -> Measurement:
        return self._record(self._sampler.mark(), RunStatus.PARTIAL)

    def _record(self, end_s: float, status: RunStatus, **outcome: Any) -> Measurement:
        whole = Repeat(start_s=self._subject.start_s, end_s=end_s, n_steps=0)
        steps = Steps(repeats=(whole,), n_warmup_steps=0)
        return record(self._subject, self._sampler, steps, end_s=end_s, status=status, **outcome)


def _started(command: Sequence[str]) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(command)
    except FileNotFoundError as error:
        raise CommandNotFoundError(f"no such command: {command[0]}") from error
    except PermissionError as error:
        raise CommandNotFoundError(f"{command[0]} may not be run: it is not executable") from error
    except OSError as error:
        raise CommandNotFoundError(f"{command[0]} cannot be run: {error.strerror}") from error


def _waited(process: "subprocess.Popen[bytes]") -> int:
    """Return the exit code as a shell says it: 128 and the signal where one ended the command."""
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:  # raised in a test's thread; the command has had its own
            continue
        return code if code >= 0 else 128 - code


@contextmanager
def _forwarded_to(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Send the command what is sent to this process.

    An interrupt typed at a terminal reaches every process of its foreground group already, so it is sent on
    only where this process is not in it.
    """
    before: dict[signal.Signals, Any] = {}

    def forward(number: int, _: FrameType | None) -> None:
        if process.poll() is None:
            process.send_signal(number)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not _is_in_foreground():
            forward(number, frame)

    handlers: dict[str, Callable[[int, FrameType | None], None]] = dict.fromkeys(_FORWARDED, forward)
    try:
        for name, handler in (handlers | {"SIGINT": interrupt}).items():
            number = getattr(signal.Signals, name, None)
            if number is not None:
                before[number] = signal.signal(number, handler)
    except ValueError:  # not the main thread: signals go to whoever is
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    """Whether the terminal sends its signals to this process's group."""
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False

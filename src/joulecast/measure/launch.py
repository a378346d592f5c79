"""Ranks of this node, started with ``torchrun``: the request goes to them in a file, the record comes back.

The record is written by rank 0, an error by the first rank that has one, whole or not at all. Everything the
ranks print goes to standard error.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from joulecast import errors
from joulecast.errors import JoulecastError, TraceError, UsageError
from joulecast.measure.protocol import Plan
from joulecast.measure.session import Request, measure_here
from joulecast.results import Measurement
from joulecast.scenario import Scenario

#: Threads of each rank on a CPU, unless the environment says: the cores, shared.
_THREADS: Final = "OMP_NUM_THREADS"


def measure_ranks(request: Request, *, store_url: str | None) -> Measurement:
    """Start one rank per device of this node and return the record of the job.

    Parameters
    ----------
    request : Request
        Of a named model: a module in hand cannot be sent to other processes.
    store_url : str, optional
        Where the writer keeps its record.

    Raises
    ------
    UsageError
        A module, sensors or a store in hand.
    JoulecastError
        What a rank raised.
    """
    if request.own is not None or request.sensors is not None:
        raise UsageError(
            "several GPUs are measured by processes of their own: name the model "
            "(path/to/file.py:make_model), or start your script with torchrun"
        )
    with tempfile.TemporaryDirectory(prefix="joulecast-") as folder:
        asked, answered = Path(folder) / "request.json", Path(folder) / "record.json"
        asked.write_text(json.dumps(_plain(request, store_url, answered)), encoding="utf-8")
        exit_code = _run(request.scenario.n_gpus, asked)
        if not answered.is_file():
            raise TraceError(
                f"the ranks ended with exit code {exit_code} and no record; what they said is above"
            )
        return _answer(json.loads(answered.read_text(encoding="utf-8")))


def _plain(request: Request, store_url: str | None, answered: Path) -> dict[str, Any]:
    return {
        "scenario": asdict(request.scenario),
        "device": request.device,
        "plan": asdict(request.plan),
        "max_error_frac": request.max_error_frac,
        "recording": None if request.recording is None else str(request.recording),
        "store_url": store_url,
        "answer": str(answered),
    }


def _run(n_ranks: int, asked: Path) -> int:
    """Run the ranks to their end; an interrupt goes to them first."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n_ranks}"]
    command += ["-m", "joulecast.measure.launch", str(asked)]
    environment = {_THREADS: str(max((os.cpu_count() or 1) // n_ranks, 1))} | dict(os.environ)
    with subprocess.Popen(command, stdout=sys.stderr.fileno(), env=environment) as ranks:
        try:
            return ranks.wait()
        except KeyboardInterrupt:
            ranks.send_signal(signal.SIGINT)
            ranks.wait()
            raise


def _answer(plain: dict[str, Any]) -> Measurement:
    """Return the record that rank 0 wrote, or raise what it raised."""
    if "raised" not in plain:
        return Measurement.from_dict(plain["measurement"])
    kind = getattr(errors, plain["raised"], JoulecastError)
    if kind is errors.UnstableMeasurementError:
        found = Measurement.from_dict(plain["measurement"])
        raise kind(plain["error_frac"], plain["wanted_frac"], found)
    try:
        error: JoulecastError = kind(plain["message"])
    except TypeError:  # an error that carries more than a message
        error = UsageError(plain["message"])
    raise error


def main(asked: Path) -> None:
    """Measure as one of the ranks; rank 0 writes the answer."""
    from joulecast.measure.group import ranks_around

    plain = json.loads(asked.read_text(encoding="utf-8"))
    request = Request(
        scenario=Scenario(**plain["scenario"]),
        device=plain["device"],
        plan=Plan(**plain["plan"]),
        max_error_frac=plain["max_error_frac"],
        recording=None if plain["recording"] is None else Path(plain["recording"]),
    )
    group = ranks_around()
    try:
        found = _measured(request, plain["store_url"] if group.is_writer else None)
        answer: dict[str, Any] = {"measurement": found.to_dict()}
    except errors.UnstableMeasurementError as error:
        answer = {
            "raised": type(error).__name__,
            "error_frac": error.error_frac,
            "wanted_frac": error.wanted_frac,
            "measurement": error.measurement.to_dict(),
        }
    except JoulecastError as error:
        _write({"raised": type(error).__name__, "message": str(error)}, plain["answer"], group.rank)
        sys.exit(1)  # torchrun then ends the other ranks, which wait for this one
    if group.rank == 0:
        _write(answer, plain["answer"], group.rank)


def _write(answer: dict[str, Any], path: str, rank: int) -> None:
    """Write the answer, whole, unless another rank has."""
    partial = Path(path).with_suffix(f".partial{rank}")
    partial.write_text(json.dumps(answer), encoding="utf-8")
    with suppress(FileExistsError):
        os.link(partial, path)


def _measured(request: Request, store_url: str | None) -> Measurement:
    from joulecast.measure.group import ranks_around
    from joulecast.measure.journal import opened

    with opened(None, store_url) as keeper:
        return measure_here(request, ranks_around(), keeper)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

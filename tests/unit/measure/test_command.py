"""Any command, measured: its exit code, its signals, its record, whatever happens."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from joulecast.errors import CommandNotFoundError, RunsError
from joulecast.measure.command import measure_command
from joulecast.measure.journal import Journal
from joulecast.results import Measurement, RunStatus

PYTHON = sys.executable


class Shelf:
    """A store in memory."""

    def __init__(self, error: Exception | None = None) -> None:
        self.records: dict[str, Measurement] = {}
        self.statuses: list[str] = []
        self.error = error

    def add(self, measurement: Measurement) -> None:
        assert measurement.run_id not in self.records
        self.update(measurement)

    def update(self, measurement: Measurement) -> None:
        if self.error is not None:
            raise self.error
        self.records[measurement.run_id] = measurement
        self.statuses.append(str(measurement.status))


def test_a_command_is_kept_as_partial_first_and_complete_last(two_gpus):
    shelf = Shelf()
    found = measure_command([PYTHON, "-c", "pass"], store=shelf, sensors=[two_gpus])
    assert (found.status, found.exit_code) == (RunStatus.COMPLETE, 0)
    assert shelf.statuses[0] == "partial"
    assert shelf.records == {found.run_id: found}
    assert found.command == (PYTHON, "-c", "pass")
    assert found.n_gpus == 2


@pytest.mark.parametrize(
    ("code", "exit_code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_a_command_that_fails_passes_its_exit_code_on_and_is_kept(two_gpus, code, exit_code):
    shelf = Shelf()
    found = measure_command([PYTHON, "-c", code], store=shelf, sensors=[two_gpus])
    assert (found.status, found.exit_code) == (RunStatus.FAILED, exit_code)
    assert shelf.records[found.run_id].error == f"the command ended with exit code {exit_code}"


def test_the_energy_is_of_the_whole_command(two_gpus):
    found = measure_command([PYTHON, "-c", "pass"], sensors=[two_gpus], sampling_s=0.01)
    assert found.gpu_energy_j.value == pytest.approx(300 * found.window_s)
    assert found.mean_power_w.value == pytest.approx(150)


def test_no_such_command():
    with pytest.raises(CommandNotFoundError, match="no such command: nosuch-command") as caught:
        measure_command(["nosuch-command"], sensors=[])
    assert caught.value.exit_code == 127


def test_a_file_that_may_not_be_run(tmp_path: Path):
    (tmp_path / "data").write_text("x")
    with pytest.raises(CommandNotFoundError, match="not executable"):
        measure_command([str(tmp_path / "data")], sensors=[])


def test_a_store_that_fails_does_not_stop_the_command(tmp_path: Path):
    done = tmp_path / "done"
    command = [PYTHON, "-c", f"open({str(done)!r}, 'w').close()"]
    found = measure_command(command, store=Shelf(RunsError("the disk is full")), sensors=[])
    assert done.exists()
    assert "not kept: the disk is full" in found.flags


def test_a_store_that_does_not_open_does_not_stop_the_command(tmp_path: Path):
    pytest.importorskip("sqlalchemy")
    (tmp_path / "runs.db").write_text("this is no database, however long one looks at it")
    found = measure_command([PYTHON, "-c", "pass"], store_url=str(tmp_path / "runs.db"), sensors=[])
    assert found.exit_code == 0
    assert any(flag.startswith("not kept") for flag in found.flags)


def test_a_signal_reaches_the_command():
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(42))\n"
        "print('ready', flush=True)\n"
        "time.sleep(30)"
    )
    program = (
        "import sys\n"
        "from joulecast.measure.command import measure_command\n"
        f"found = measure_command([sys.executable, '-c', {code!r}], sensors=[])\n"
        "sys.exit(found.exit_code)"
    )
    with subprocess.Popen([PYTHON, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        assert process.wait(timeout=20) == 42


def test_handlers_are_as_before_afterwards():
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    measure_command([PYTHON, "-c", "pass"], sensors=[])
    assert before == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.slow
def test_kill_9_loses_nothing_that_was_recorded(tmp_path: Path):
    pytest.importorskip("sqlalchemy")
    from joulecast.measure.store import Store

    url = str(tmp_path / "runs.db")
    program = (
        "from joulecast.measure.command import measure_command\n"
        f"measure_command(['sleep', '30'], store_url={url!r}, sensors=[])"
    )
    process = subprocess.Popen([PYTHON, "-c", program], start_new_session=True)
    try:
        _wait_for(lambda: _longest_s(url) > 2.0)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with Store.open(url) as store:
        (row,) = store
    assert row["suspect"] == "partial run"


def _longest_s(url: str) -> float:
    from joulecast.errors import JoulecastError
    from joulecast.measure.store import Store

    if not Path(url).exists():
        return 0.0
    try:
        with Store.open(url, create=False) as store:
            runs = store.list()
            found = [run.measurement for run in runs]
    except JoulecastError:  # not made yet
        return 0.0
    return max((m.duration_s for m in found if m is not None), default=0.0)


def _wait_for(condition: Any, timeout_s: float = 30.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come to pass"
        time.sleep(0.2)


def test_a_journal_writes_as_the_run_goes_on(make_measurement):
    shelf, written = Shelf(), threading.Event()
    counts = iter(range(1000))

    def current() -> Measurement:
        n_steps = next(counts)
        if n_steps >= 3:
            written.set()
        return make_measurement(run_id="one", n_steps=n_steps, status=RunStatus.PARTIAL)

    with Journal(shelf, current, every_s=0.01) as journal:
        assert written.wait(10)
        journal.finish(make_measurement(run_id="one", n_steps=99))
    assert shelf.records["one"].n_steps == 99
    assert len(shelf.statuses) >= 4


def test_a_store_that_recovers_gets_the_record_after_all(make_measurement):
    shelf = Shelf(RunsError("locked"))
    with Journal(shelf, lambda: make_measurement(run_id="one"), every_s=60) as journal:
        assert journal.failure == "locked"
        shelf.error = None
        journal.finish(make_measurement(run_id="one"))
    assert (list(shelf.records), journal.failure) == (["one"], "")

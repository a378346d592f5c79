"""`joulecast measure` and `joulecast doctor` as typed, on this machine's processor."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import joulecast
from joulecast.cli.main import run
from joulecast.errors import UnstableMeasurementError, UsageError
from joulecast.results import Measurement, RunStatus

pytest.importorskip("sqlalchemy")

OWN = """
import torch
from torch import nn


def make_model():
    def make_inputs(batch_size):
        return torch.zeros(batch_size, 64), torch.zeros(batch_size, dtype=torch.long)

    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    return net, make_inputs, lambda output, inputs: nn.functional.cross_entropy(output, inputs[1])
"""

#: Any spread is taken: the machine is whoever's.
ANY = ["--max-error", "1000"]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "net.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JOULECAST_STORE", str(tmp_path / "runs.db"))
    return "net.py:make_model"


def joulecast_run(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "joulecast", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        **options,
    )


def stored(path: Path) -> list[Measurement]:
    from joulecast.measure.store import Store

    with Store.open(str(path), create=False) as store:
        return [run.measurement for run in store.list() if run.measurement is not None]


def test_a_model_is_measured_and_kept(own, tmp_path):
    found = joulecast_run(
        "measure", own, "-b", "8", "--device", "cpu", "--seconds", "2", "--format", "json", *ANY
    )
    assert found.returncode == 0, found.stderr
    measured = Measurement.from_dict(json.loads(found.stdout))
    assert measured.step_time_s.value > 0
    assert measured.samples_per_s.value == pytest.approx(8 / measured.step_time_s.value)
    # weights and momentum of 19 000 numbers, their gradients, and little else
    assert 3 * 4 * 19_210 <= measured.allocated_bytes.value < 6 * 4 * 19_210
    assert measured.energy_per_step_j.value is not None or measured.energy_per_step_j.reason
    assert stored(tmp_path / "runs.db") == [measured]


@pytest.mark.slow
def test_a_page_has_the_quantities_and_what_is_absent(own):
    found = joulecast_run("measure", own, "--device", "cpu", "--seconds", "1", "--no-store", *ANY)
    assert found.returncode == 0, found.stderr
    assert "step time" in found.stdout
    assert "memory allocated" in found.stdout
    assert "not measured: memory reserved" in found.stdout
    assert found.stderr == ""


def test_the_answer_of_python_is_that_of_the_command_line(own):
    m = joulecast.measure(own, batch_size=8, device="cpu", seconds=1, max_error_frac=float("inf"))
    assert (m.model, m.gpu, m.batch_per_gpu, m.status) == (own, "cpu", 8, RunStatus.COMPLETE)


def test_a_module_in_hand_is_measured():
    import torch
    from torch import nn

    m = joulecast.measure(
        nn.Linear(8, 4),
        torch.zeros(16, 8),
        loss=lambda output, _: output.square().mean(),
        device="cpu",
        seconds=1,
        max_error_frac=float("inf"),
    )
    assert (m.model, m.batch_per_gpu) == ("Linear", 16)


def test_a_mean_that_is_not_known_is_refused_and_kept_all_the_same(own):
    with pytest.raises(UnstableMeasurementError, match="unstable: the mean step time is known to") as caught:
        joulecast.measure(own, device="cpu", seconds=1, max_error_frac=1e-9)
    assert caught.value.measurement.step_time_s.value > 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["measure"], 2, "name a model"),
        (["measure", "--"], 2, "no command behind --"),
        (["measure", "resnet18", "--", "true"], 2, "name a model, or a command"),
        (["measure", "nosuchmodel", "--no-store"], 2, "unknown model"),
        (["measure", "resnet18", "--seconds", "0"], 2, "above 0"),
        (["measure", "--no-store", "--", "nosuch-command"], 127, "no such command: nosuch-command"),
        (["measure", "resnet18", "--store", "/proc/nothing/runs.db"], 1, "/proc/nothing"),
    ],
)
def test_a_wrong_request_is_one_line(arguments, code, message, capsys):
    assert run(arguments) == code
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_an_unknown_option_of_python_is_refused():
    with pytest.raises(UsageError, match="gpu: measure takes the card at hand"):
        joulecast.measure("resnet18", gpu="t4")


def test_a_command_runs_as_without_and_its_record_is_beside_its_output(own, tmp_path):
    code = "import sys; print(sys.stdin.read().upper(), end=''); sys.exit(5)"
    found = joulecast_run("measure", "--", sys.executable, "-c", code, input="hello")
    assert (found.returncode, found.stdout) == (5, "HELLO")
    assert "the command ended with exit code 5" in found.stderr
    (kept,) = stored(tmp_path / "runs.db")
    assert (kept.status, kept.exit_code) == (RunStatus.FAILED, 5)


def test_the_options_of_a_command_are_its_own():
    found = joulecast_run("measure", "--no-store", "--", "echo", "--help", "--", "-b")
    assert (found.returncode, found.stdout) == (0, "--help -- -b\n")


@pytest.mark.slow
def test_a_step_that_does_not_fit_names_the_predicted_need(own, tmp_path):
    found = joulecast_run("measure", own, "-b", "2000000000", "--device", "cpu", "--seconds", "1")
    assert found.returncode == 1
    assert "does not fit" in found.stderr
    assert "GiB" in found.stderr
    (kept,) = stored(tmp_path / "runs.db")
    assert kept.status is RunStatus.FAILED
    assert "does not fit" in kept.error


@pytest.mark.slow
def test_two_ranks_on_gloo_are_one_run(own, tmp_path):
    arguments = ("--device", "cpu", "--n-gpus", "2", "-b", "8", "--seconds", "3", "--format", "json", *ANY)
    found = joulecast_run("measure", own, *arguments)
    assert found.returncode == 0, found.stderr
    measured = Measurement.from_dict(json.loads(found.stdout))
    assert (measured.n_gpus, measured.parallel) == (2, "ddp")
    assert (measured.batch_per_gpu, measured.global_batch) == (8, 16)
    assert measured.samples_per_s.value == pytest.approx(16 / measured.step_time_s.value)
    assert len(measured.nodes) == 1
    assert [m.run_id for m in stored(tmp_path / "runs.db")] == [measured.run_id]  # one writer


@pytest.mark.slow
def test_an_error_of_the_ranks_is_one_error(own):
    found = joulecast_run("measure", own, "--device", "cpu", "--n-gpus", "2", "--optimizer", "adam8bit")
    assert found.returncode == 2
    assert found.stderr.splitlines()[-1].startswith("joulecast: error: optimizer 'adam8bit'")


@pytest.mark.slow
def test_kill_9_in_the_middle_keeps_what_was_measured(own, tmp_path):
    command = [sys.executable, "-m", "joulecast", "measure", own, "--device", "cpu", "--seconds", "60"]
    process = subprocess.Popen([*command, "--max-error", "0.000001"], stdout=subprocess.DEVNULL)
    database = tmp_path / "runs.db"
    try:
        end_s = time.monotonic() + 120
        while not (database.exists() and any(m.n_repeats > 0 for m in stored_so_far(database))):
            assert process.poll() is None
            assert time.monotonic() < end_s
            time.sleep(0.5)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    (kept,) = stored(database)
    assert kept.status is RunStatus.PARTIAL
    assert kept.step_time_s.value > 0


def stored_so_far(path: Path) -> list[Measurement]:
    from joulecast.errors import StoreError

    try:
        return stored(path)
    except StoreError:  # its tables are not made yet
        return []


def test_doctor_says_what_there_is():
    found = joulecast_run("doctor", "--format", "json")
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["schema"] == "joulecast/doctor/1"
    assert {finding["what"] for finding in document["software"]} >= {"zeus", "torch", "container"}
    assert all(finding["works"] or finding["says"] for finding in document["sensors"])


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_others_and_is_the_error(tmp_path, monkeypatch):
    """Rank 1 alone has no loss; rank 0 would wait for it."""
    no_loss = "net, make_inputs) if __import__('os').environ.get('RANK') == '1' else ("
    text = OWN.replace("return net,", f"return ({no_loss}net,").replace("inputs[1])", "inputs[1]))")
    (tmp_path / "odd.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    arguments = ("--device", "cpu", "--n-gpus", "2", "-b", "8", "--seconds", "5", "--no-store")
    found = joulecast_run("measure", "odd.py:make_model", *arguments)
    assert found.returncode == 1
    last = found.stderr.splitlines()[-1]
    assert last.startswith("joulecast: error: "), last

"""``joulecast calibrate`` as typed."""

import csv
import json
import signal
import subprocess
import sys
import time

import pytest

from joulecast.cli.main import run
from joulecast.model.parameters import load_parameters
from joulecast.prediction import predict

START = load_parameters()


def write_runs(path, *, slow=1.0, batches=(1, 8, 32, 64), gpu="a40", **columns):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        header = ["model", "gpu", "precision", "batch_per_gpu", "step_time_s", "mean_power_w", *columns]
        writer.writerow(header)
        for batch_size in batches:
            (p,) = predict("resnet50", gpu=gpu, precision="bf16", batch_size=batch_size)
            cells = [slow * p.step_time_s.value, p.mean_power_w.value, *columns.values()]
            writer.writerow(["resnet50", gpu, "bf16", batch_size, *cells])
    return str(path)


def test_calibrate_then_predict_with_the_set(tmp_path, capsys):
    runs, out = write_runs(tmp_path / "runs.csv", slow=1.2, colour="red"), str(tmp_path / "set.toml")
    assert run(["calibrate", "--runs", runs, "--only", "host,bandwidth,efficiency", "--out", out]) == 0
    page = capsys.readouterr()
    assert "4 of 4 runs used" in page.out
    assert "! unknown-column: 'colour' is not read" in page.out
    assert "! one-gpu: all runs are on a40" in page.out
    assert "held out before" in page.out
    assert "no measured value depends on it: " in page.out
    assert page.err.startswith("scales: held-out error")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs.csv", "set.toml"]

    options = ["predict", "resnet50", "--gpu", "a40", "--precision", "bf16", "-b", "16", "--format", "json"]
    assert run([*options, "--parameters", out]) == 0
    mine = json.loads(capsys.readouterr().out)["predictions"][0]["step_time_s"]
    (shipped,) = predict("resnet50", gpu="a40", precision="bf16", batch_size=16)
    assert mine["value"] / shipped.step_time_s.value == pytest.approx(1.2, abs=0.07)
    assert mine["origin"] == "calibrated"

    assert run(["calibrate", "--explain", out]) == 0
    explained = capsys.readouterr().out
    assert "joulecast calibrate 0." in explained
    assert "dispatch of one backward kernel by autograd" in explained

    assert run(["calibrate", "--start", out, "--runs", runs, "--out", out, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "joulecast/calibration/1"
    assert document["used"] == 4


@pytest.mark.parametrize("output_format", ["json", pytest.param("csv", marks=pytest.mark.slow)])
def test_explain_for_machines(capsys, output_format):
    assert run(["calibrate", "--explain", "shipped", "--format", output_format]) == 0
    out = capsys.readouterr().out
    if output_format == "json":
        assert {line["name"] for line in json.loads(out)["parameters"]} == set(START.values)
    else:
        assert out.splitlines()[0].startswith("name,value,unit,low,high,meaning,at_bound")


REFUSED = [
    ([], 2, "name the file of the set with --out"),
    (["--out", "set.toml"], 2, "name the measurements: --runs RUNS.csv, --ops OPS.parquet, or both"),
    (["--runs", "absent.csv", "--out", "set.toml"], 2, "no such file of runs: absent.csv"),
    (["--runs", "r", "--out", "no/such/folder/set.toml"], 2, "no such folder"),
    (
        ["--runs", "r", "--out", "set.toml", "--only", "luck"],
        2,
        "unknown stage luck: choose of operators",
    ),
    (["--runs", "r", "--explain", "s"], 2, "--explain shows a set and fits none"),
    (["--preset", "as-published", "--out", "set.toml"], 2, "--preset as-published takes --runs"),
    (
        ["--runs", "r", "--out", "s", "--start", "old.toml"],
        1,
        "format version 1, this joulecast reads 2",
    ),
    (["--explain", "old.toml"], 1, "since 1, intervals follow the features of a step"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), REFUSED)
def test_wrong_requests_are_one_line(tmp_path, monkeypatch, capsys, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.toml").write_text("format_version = 1\n")
    assert run(["calibrate", *arguments]) == code
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "set.toml").exists()


def test_milliseconds_are_named_and_the_old_set_stays(tmp_path, capsys):
    runs, out = write_runs(tmp_path / "runs.csv", slow=1000.0), tmp_path / "set.toml"
    out.write_text("mine")
    assert run(["calibrate", "--runs", runs, "--out", str(out)]) == 1
    err = capsys.readouterr().err
    assert "step_time_s of " in err
    assert "in line 2, 3, 4, 5 looks like milliseconds" in err
    assert out.read_text() == "mine"


def test_contradictory_rows_are_named(tmp_path, capsys):
    runs, out = write_runs(tmp_path / "runs.csv"), str(tmp_path / "set.toml")
    again = write_runs(tmp_path / "again.csv", slow=1.5, batches=(8,))
    with open(runs, "a") as file, open(again) as more:
        file.writelines(more.readlines()[1:])
    assert run(["calibrate", "--runs", runs, "--only", "host", "--out", out]) == 0
    assert "! contradictory-rows: lines 3, 6 are of one configuration" in capsys.readouterr().out


@pytest.mark.slow
def test_an_interrupted_calibration_goes_on(tmp_path):
    runs, out = (
        write_runs(tmp_path / "runs.csv", slow=1.2, batches=(1, 2, 4, 8, 16, 32)),
        tmp_path / "set.toml",
    )
    out.write_text("mine")
    command = [sys.executable, "-m", "joulecast", "calibrate", "--runs", runs, "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    checkpoint = tmp_path / "set.toml.checkpoint.json"
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out.read_text() == "mine"

    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stderr.startswith("going on from set.toml.checkpoint.json after scales")
    assert load_parameters(out).covered_gpus == ("a40",)
    assert not checkpoint.exists()

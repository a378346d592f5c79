"""Recommendation, cost and forecast as typed; job scripts as a shell runs them."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from joulecast.cli.main import run

SMALL = ["-g", "a100-sxm4-40gb,t4", "-p", "bf16,fp32", "--n-gpus", "1,2", "--batch-size", "16,32"]
LENGTH = ["--samples", "88000", "--epochs", "3"]


@pytest.fixture
def typed(capsys):
    """Return a caller that runs arguments and returns exit code, output and errors."""

    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


# --- recommend ------------------------------------------------------------------------------------


def test_recommend_shows_choice_reasons_limits_certainty_and_front(typed):
    code, out, _ = typed("recommend", "bert-base", *SMALL, *LENGTH, "--deadline", 1, "--grid", "FR")
    assert code == 0
    for text in ("least energy", "why it wins", "without deadline", "how sure", "Pareto front", "France"):
        assert text in out


def test_recommend_as_json_and_csv(typed):
    arguments = ("recommend", "bert-base", *SMALL, *LENGTH, "--gpu-hour-price", "t4=0.4")
    code, _, err = typed(*arguments, "--objective", "cost")
    assert (code, "a100-sxm4-40gb" in err) == (2, True)
    priced = (*arguments, "--gpu-hour-price", "2", "--objective", "cost", "--format")
    document = json.loads(typed(*priced, "json")[1])
    assert document["chosen"]["cost"]["value"] > 0
    code, out, _ = typed(*priced, "csv")
    header, *rows = out.splitlines()
    assert header.startswith("chosen,model,gpu")
    assert sum(row.startswith("True") for row in rows) == 1


def test_a_file_takes_models_and_cards_from_the_command_line(typed, tmp_path):
    path = tmp_path / "limits.toml"
    path.write_text('[candidates]\nprecision = "bf16"\nbatch_per_gpu = 32\n[run]\nsamples = 88000\n')
    code, out, _ = typed("recommend", "bert-base", "-g", "t4", "--file", path, "--format", "json")
    assert code == 0
    assert json.loads(out)["candidates"]["gpu"] == ["t4"]
    code, _, err = typed("recommend", "bert-base", "-g", "t4", "--file", path, "--deadline", 3)
    assert (code, "leave out --deadline" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a model"),
        (("bert-base",), "name the cards"),
        (("bert-base", "-g", "t4", "--wrap"), "--wrap goes with --emit"),
        (("bert-base", "-g", "t4", "--deadline", "3"), "is one of a whole run"),
        (("bert-base", "-g", "t4", "--grid", "Frannce"), "did you mean france"),
        (("bert-base", "-g", "t4", "--n-gpus", "one"), "n_gpus: 'one' is neither a number"),
        (("bert-base", "-g", "t4", "--gpu-hour-price", "cheap"), "--gpu-hour-price 'cheap'"),
        (("bert-base", "-g", "t4", *LENGTH, "--deadline", "0.0001"), "deadline 0.0001 h cannot be kept"),
    ],
)
def test_bad_requests_are_one_line(typed, arguments, message):
    code, out, err = typed("recommend", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


# --- job scripts ----------------------------------------------------------------------------------


def started(script, tmp_path, *programs):
    """Run a script with programs that print their names and arguments."""
    for name in programs:
        (tmp_path / name).write_text(
            f'#!/usr/bin/env bash\necho "{name} $* precision=$PRECISION batch=${{MICRO_BATCH_SIZE}}'
            f'x$GRADIENT_ACCUMULATION_STEPS"\n'
        )
        (tmp_path / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(script)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TRAINING_SCRIPT": "mine.py"}
    return subprocess.run(
        ["bash", str(tmp_path / "job.sh"), "--lr", "1e-4"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_a_torchrun_script_starts_the_choice(typed, tmp_path):
    code, script, _ = typed(
        *("recommend", "bert-base", "-g", "a100-sxm4-40gb", "-p", "bf16", "--n-gpus", 4),
        *("--global-batch", 256, "--accumulate", 2, "--power-limit", 250, *LENGTH, "--emit", "torchrun"),
    )
    assert code == 0
    assert "# sudo nvidia-smi --power-limit=250" in script
    assert started(script, tmp_path, "torchrun") == (
        "torchrun --standalone --nproc-per-node=4 mine.py --lr 1e-4 precision=bf16 batch=32x2"
    )


def test_a_slurm_script_asks_for_what_the_choice_needs(typed, tmp_path):
    code, script, _ = typed(
        *("recommend", "bert-base", "-g", "a100-sxm4-40gb", "-p", "tf32", "--n-gpus", 2, "--batch-size", 32),
        *("--power-limit", 400, *LENGTH, "--deadline", 3, "--emit", "slurm", "--wrap"),
    )
    assert code == 0
    options = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --gpus-per-node=2" in options
    assert any(line.startswith("#SBATCH --time=0-00:") for line in options)
    assert "# limit: deadline 3 h" in script
    assert "power-limit" not in script  # the card's own
    assert "export TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1" in script
    # Slurm stops reading options at the first command
    assert script.index("#SBATCH --time") < script.index("set -euo pipefail")
    assert started(script, tmp_path, "srun").startswith(
        "srun joulecast measure -- torchrun --standalone --nproc-per-node=2 mine.py --lr 1e-4"
    )


def test_times_of_slurm_round_up_to_minutes():
    from joulecast.explore.jobs import slurm_time

    assert slurm_time(59.0) == "0-00:01:00"
    assert slurm_time(3600.0) == "0-01:00:00"
    assert slurm_time(100 * 3600.0 + 1) == "4-04:01:00"


# --- cost and forecast ----------------------------------------------------------------------------


def test_cost_shows_a_run_with_its_sources(typed):
    code, out, _ = typed(
        *(
            "cost",
            "bert-base",
            "-g",
            "a100-sxm4-40gb",
            "-p",
            "bf16",
            "-n",
            4,
            *LENGTH,
            "--eval-samples",
            5000,
        ),
        *("--pue", 1.2, "--node-gpus", 8, "--host-power", 500, "--grid", "Germany", "--embodied", 150),
        *("--gpu-lifetime", 35000, "--electricity-price", 0.2, "--gpu-hour-price", 2.5, "--currency", "EUR"),
    )
    assert code == 0
    for text in ("GPU-hours", "all, PUE 1.2", "CO2e", "embodied", "EUR", "Germany, mean of", "evaluation"):
        assert text in out
    assert "not counted" not in out


def test_cost_compares_models_and_repeats_trials(typed):
    code, out, _ = typed(
        *(
            "cost",
            "bert-base",
            "bert-large",
            "-g",
            "a100-sxm4-40gb",
            *LENGTH,
            "--trials",
            200,
            "--format",
            "json",
        )
    )
    assert code == 0
    base, large = json.loads(out)["runs"]
    assert base["n_trials"] == 200
    assert base["co2e_kg"] is None
    assert base["gpu_energy_j"]["value"] < large["gpu_energy_j"]["value"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bert-base", "-g", "t4"), "--samples"),
        (("bert-base", "-g", "t4", *LENGTH, "--checkpoints", "3"), "--checkpoint-rate"),
        (("bert-base", "-g", "t4", *LENGTH, "--stop-epochs", "some"), "--stop-epochs 'some'"),
        (("bert-base", "-g", "t4", *LENGTH, "--embodied", "9"), "go together"),
        (("bert-base", "-g", "t4", *LENGTH, "--grid", "none.csv"), "no such file of intensities"),
        (("bert-base", "-g", "t4", *LENGTH, "--start", "noon", "--grid", "FR"), "--start 'noon'"),
    ],
)
def test_bad_costs_are_one_line(typed, arguments, message):
    code, out, err = typed("cost", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_forecast_of_a_log_of_steps(typed, tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("step,step_time_s\n" + "".join(f"{i},0.05\n" for i in range(100)))
    arguments = ("forecast", "bert-base", "-g", "a100-sxm4-40gb", "-p", "bf16", "--from", path, *LENGTH)
    code, out, _ = typed(*arguments)
    assert code == 0
    for text in ("before and after", "100 steps done", "no energy was measured"):
        assert text in out
    document = json.loads(typed(*arguments, "--format", "json")[1])
    prior, now = (document[name]["run_time_s"] for name in ("prior", "run"))
    assert now["high"] - now["low"] < prior["high"] - prior["low"]
    code, _, err = typed("forecast", "--from", path, *LENGTH)
    assert (code, "name MODEL and --gpu" in err) == (2, True)


def test_forecast_of_a_record_refuses_to_be_told_what_ran(typed, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("run_id,model,gpu,batch_per_gpu,step_time_s\nr1,bert-base,t4,32,0.7\n")
    assert typed("forecast", "--from", f"{path}#r1", *LENGTH)[0] == 0
    code, _, err = typed("forecast", "bert-base", "--from", path, "-b", 8, *LENGTH)
    assert code == 2
    assert "leave out model, --batch-size" in err


def keys_of(plain):
    """Return every key of a document that is a name of the schema, not of a value's own."""
    if isinstance(plain, list):
        return set().union(*map(keys_of, plain))
    if not isinstance(plain, dict):
        return set()
    free = ("candidates", "limits", "same_axis_frac", "kept_frac")
    return set(plain) | set().union(*(keys_of(v) for k, v in plain.items() if k not in free), set())


def test_every_key_is_documented(typed, tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("step,step_time_s,energy_j\n" + "".join(f"{i},0.5,30\n" for i in range(20)))
    commands = (
        ("recommend", "bert-base", "-g", "t4", "--n-gpus", "1,2", "--deadline", 40, *LENGTH),
        ("cost", "bert-base", "-g", "t4", *LENGTH, "--eval-samples", 10),
        ("forecast", "bert-base", "-g", "t4", "--from", path, *LENGTH),
    )
    text = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z_0-9]+)`", text)) | {"schema", "value", "low", "high", "runs"}
    for command in commands:
        code, out, _ = typed(*command, "--format", "json")
        assert code == 0
        keys = {key.removeprefix("low_").removeprefix("high_") for key in keys_of(json.loads(out))}
        assert keys <= documented, keys - documented

import json

import pytest

from joulecast.cli.main import run
from joulecast.explore.table import load_sweep

T4 = ("--model", "bert-base", "--gpu", "t4")


@pytest.fixture
def call(capsys):
    """Return a caller of the command line: exit code, standard output, standard error."""

    def run_it(*arguments: str) -> tuple[int, str, str]:
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run_it


def test_a_small_sweep_is_shown(call):
    code, out, err = call("sweep", *T4, "--power-limit-w", "60:70:5,99", "--precision", "fp32,fp16")
    assert (code, err) == (0, "")
    assert "power_limit_w" in out
    assert "! 2 without a prediction: power limit 99 W is outside the range of t4" in out
    assert "most samples per joule that fits" in out


def test_json_holds_the_space_and_its_rows(call):
    code, out, _ = call("sweep", *T4, "--batch-per-gpu", "8:32:x2", "--format", "json")
    document = json.loads(out)
    assert code == 0
    assert document["schema"] == "joulecast/sweep/1"
    assert [row["batch_per_gpu"] for row in document["rows"]] == [8, 16, 32]


def test_options_win_over_the_file(call, tmp_path):
    space = tmp_path / "space.toml"
    space.write_text('model = "bert-base"\ngpu = "t4"\nn_gpus = [1, 2]\nbatch_per_gpu = [8, 16, 32]\n')
    out_path = tmp_path / "r.csv"
    code, out, err = call("sweep", space, "--n-gpus", 1, "--set", "bandwidth=2x", "--out", out_path)
    assert (code, err) == (0, "")
    assert out == f"wrote {out_path}: 3 configurations\n"
    found = load_sweep(out_path)
    assert set(found["gpu"]) == {"t4[bandwidth=2x]"}
    assert set(found["origin"]) == {"datasheet"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sweep", "--gpu", "t4"), "the space is empty: it has no model"),
        (("sweep", *T4, "--n-gpus", "one"), "'one' is neither a number nor a range"),
        (("sweep", *T4, "--batch-per-gpu", "1:30000:1"), "too many to show: keep them with --out"),
        (("sweep", *T4, "--processes", "2"), "give --out"),
        (("sweep", *T4, "--out", "r.txt"), "ends in .parquet or .csv"),
        (("sweep", "none.toml"), "none.toml: cannot be read"),
        (("sweep", *T4, "--precision", "bf61"), "unknown precision 'bf61'; did you mean bf16"),
        (("predict", "bert-base", "--gpu", "t4", "--set", "bandwidth"), "changes nothing"),
        (("sensitivity", "bert-base", "--gpu", "t4", "--times", "1"), "ask for more than 1"),
    ],
)
def test_what_cannot_be_is_one_line(call, arguments, message):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_sensitivity_as_json_csv_and_page(call):
    base = ("sensitivity", "resnet50", "--gpu", "t4", "--times", "1.05")
    code, out, _ = call(*base, "--format", "json")
    document = json.loads(out)
    assert code == 0
    assert document["schema"] == "joulecast/sensitivity/1"
    assert {row["property"] for row in document["elasticities"]} >= {"bandwidth", "clock", "sms"}
    assert any(lever["reached"] for lever in document["levers"])

    code, out, _ = call(*base, "--format", "csv")
    assert out.splitlines()[0] == "property,meaning,time_elasticity,power_elasticity,energy_elasticity"

    code, out, _ = call(*base)
    assert "what would bring 1.05x the samples per joule" in out

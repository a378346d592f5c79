"""The command line as people and programs meet it."""

import csv
import io
import json
import subprocess
import sys

import pytest

from joulecast.cli.main import run

GPU = ("--gpu", "a100-sxm4-40gb")
QUANTITY = {"value", "low", "high", "origin"}


@pytest.fixture
def joulecast(capsys):
    """Return a caller of the command line: exit code, standard output, standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def document(joulecast):
    """Return a caller that parses the JSON of a command that must succeed."""

    def call(*arguments: str):
        code, out, err = joulecast(*arguments, "--format", "json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return call


def test_predict_page(joulecast):
    code, out, err = joulecast("predict", "bert-base", *GPU)
    assert (code, err) == (0, "")
    for part in (
        "step time",
        "samples per joule",
        "MFU",
        "bound by",
        "costliest operators",
        "adamw",
        "sequence 128",
    ):
        assert part in out, part


def test_predict_document(document):
    found = document("predict", "bert-base", "resnet50", *GPU, "--precision", "fp32,bf16")
    assert found["schema"] == "joulecast/predictions/1"
    assert [(p["model"].split("#")[0], p["precision"]) for p in found["predictions"]] == [
        ("hf/bert-base-uncased", "fp32"),
        ("hf/bert-base-uncased", "bf16"),
        ("torchvision/resnet50", "fp32"),
        ("torchvision/resnet50", "bf16"),
    ]
    names = (
        "step_time_s samples_per_s mean_power_w energy_per_step_j peak_memory_bytes samples_per_j "
        "energy_per_sample_j mfu allocated_bytes reserved_bytes process_bytes sm_clock_hz coverage"
    )
    for prediction in found["predictions"]:
        for name in names.split():
            quantity = prediction[name]
            assert set(quantity) == QUANTITY, name
            assert quantity["low"] <= quantity["value"] <= quantity["high"], name
        assert prediction["bound_by"] in {"compute", "memory", "launch", "host", "communication"}
        assert prediction["coverage"]["value"] == 1.0


def test_predict_csv(joulecast):
    _, out, _ = joulecast("predict", "bert-base", *GPU, "--gpu", "t4", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["gpu"] for row in rows] == ["a100-sxm4-40gb", "t4"]
    assert float(rows[0]["low_step_time_s"]) < float(rows[0]["step_time_s"])


def test_predict_whole_run(document):
    (p,) = document("predict", "bert-base", *GPU, "--samples", "3200", "--epochs", "2")["predictions"]
    assert p["whole_run"]["n_steps"] == 200
    assert p["whole_run"]["run_time_s"]["value"] == pytest.approx(200 * p["step_time_s"]["value"])


KNOBS = [
    ("--batch-size", "64"),
    ("--seq-len", "256"),
    ("--precision", "tf32"),
    ("--precision", "bf16-pure"),
    ("--optimizer", "sgd"),
    ("--mode", "forward"),
    ("--attention", "eager"),
    ("--checkpointing",),
    ("--accumulate", "4"),
    ("--clip",),
    ("--n-gpus", "4"),
    ("--power-limit", "150"),
    ("--clock", "900"),
    ("--sms", "54"),
    ("--gpu", "h100-sxm5-80gb"),
]


@pytest.mark.parametrize("knob", KNOBS, ids=" ".join)
def test_every_knob_moves_a_number(document, knob):
    """Rank 18: what is accepted has an effect, or a warning says that it has none."""
    if knob[0] == "--checkpointing":
        pytest.importorskip("torch")
    (plain,) = document("predict", "bert-base", *GPU)["predictions"]
    arguments = knob if knob[0] == "--gpu" else (*GPU, *knob)
    (turned,) = document("predict", "bert-base", *arguments)["predictions"]
    keys = ("step_time_s", "mean_power_w", "allocated_bytes", "samples_per_s")
    assert [turned[key]["value"] for key in keys] != [plain[key]["value"] for key in keys]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict",), "name a model"),
        (("predict", "bert-base"), "--gpu"),
        (("predict", "resnet5O", *GPU), "unknown model 'resnet5O'; did you mean"),
        (("predict", "bert-base", "--gpu", "a1000"), "a1000"),
        (("predict", "bert-base", "--gpu", "a100"), "a100-sxm4-40gb"),
        (("predict", "bert-base", "--gpu", "/no/such.toml"), "no such GPU file"),
        (("predict", "bert-base", *GPU, "-p", "fp12"), "unknown precision 'fp12'"),
        (("predict", "bert-base", *GPU, "--optimizer", "lion"), "unknown optimizer 'lion'"),
        (("predict", "bert-base", *GPU, "--optimizer", "adamw-8bit"), "not predicted"),
        (("predict", "bert-base", *GPU, "--mode", "infer"), "'infer' is not one of"),
        (("predict", "bert-base", *GPU, "--batch-size", "0"), "--batch-size"),
        (("predict", "bert-base", *GPU, "--batch-size", "-8"), "--batch-size"),
        (("predict", "bert-base", *GPU, "--batch-size", "many"), "'many' is not a valid integer"),
        (("predict", "bert-base", *GPU, "--n-gpus", "0"), "--n-gpus"),
        (("predict", "bert-base", *GPU, "--seq-len", "4096"), "512 positions"),
        (("predict", "bert-base", *GPU, "--power-limit", "50"), "100 to 400 W"),
        (("predict", "bert-base", *GPU, "--power-limit", "nan"), "not a number above 0"),
        (("predict", "bert-base", *GPU, "--clock", "99999"), "MHz"),
        (("predict", "bert-base", *GPU, "--sms", "109"), "108"),
        (("predict", "bert-base", *GPU, "--epochs", "3"), "--samples"),
        (("predict", "bert-base", *GPU, "--frobnicate"), "--frobnicate"),
        (("predict", "nowhere.py", *GPU), "name the function too"),
        (("predict", "nowhere.py:make", *GPU), "nowhere.py"),
        (("trace", "resnet5O"), "unknown model"),
        (("trace", "bert-base", "--precision", "fp12"), "unknown precision"),
        (("validate", "/no/such.csv"), "no such file"),
        (("gpus", "a1000"), "a1000"),
        (("weather",), "No such command 'weather'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_request_is_one_line_and_exit_2(joulecast, arguments, message):
    code, out, err = joulecast(*arguments)
    assert out == ""
    assert code == 2, err
    assert err.startswith("joulecast: error: ")
    assert err.count("\n") == 1
    assert message in err


def test_force_goes_beyond_the_limits_and_flags_it(document):
    (p,) = document("predict", "bert-base", *GPU, "--power-limit", "50", "--force")["predictions"]
    assert any("50 W" in flag or "power limit" in flag for flag in p["flags"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gpu.toml", "n_sms = ", "not TOML"),
        ("gpu.toml", "n_sms = 3\nn_sms = 4\n", "not TOML"),
        ("gpu.toml", 'architecture = "ampere-ga100"\n', "missing"),
        ("gpu.toml", 'base = "t4"\nfrobnicate = 3\n', "unknown key"),
    ],
)
def test_a_corrupt_card_is_one_line_and_exit_1(joulecast, tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    code, out, err = joulecast("predict", "bert-base", "--gpu", tmp_path / name)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert message in err


def test_a_hypothetical_card(document, tmp_path):
    card = tmp_path / "mine.toml"
    card.write_text('base = "a100-sxm4-40gb"\nn_sms = 54\n')
    (half,) = document("predict", "bert-base", "--gpu", str(card))["predictions"]
    (whole,) = document("predict", "bert-base", *GPU)["predictions"]
    assert half["gpu"] == "mine"
    assert half["step_time_s"]["value"] > 1.5 * whole["step_time_s"]["value"]


def test_a_corrupt_parameter_set_is_one_line_and_exit_1(joulecast, tmp_path):
    (tmp_path / "set.toml").write_text("format_version = 99\n")
    code, _, err = joulecast("predict", "bert-base", *GPU, "--parameters", tmp_path / "set.toml")
    assert code == 1
    assert "format version 99" in err
    assert err.count("\n") == 1


# --- trace, gpus, models --------------------------------------------------------------------------


def test_trace_page(joulecast):
    code, out, _ = joulecast("trace", "bert-base")
    assert code == 0
    for part in ("by kind", "by module", "bert.encoder.layer.*", "FLOP/byte", "109 M"):
        assert part in out, part


def test_trace_document(document):
    found = document("trace", "bert-base", "--batch-size", "8")
    assert found["schema"] == "joulecast/trace/1"
    assert found["n_parameters"] == 109483778
    assert found["coverage_frac"] == 1.0
    assert found["flop"] == pytest.approx(sum(kind["flop"] for kind in found["by_kind"]))


def test_trace_csv(joulecast):
    _, out, _ = joulecast("trace", "bert-base", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {"kind", "phase", "flop", "read_bytes", "n_calls"} <= set(rows[0])


def test_gpus(joulecast, document):
    _, out, _ = joulecast("gpus")
    assert "a100-sxm4-40gb" in out
    _, out, _ = joulecast("gpus", "T4")
    assert "Tesla T4" in out
    assert "sources" in out
    (card,) = document("gpus", "Tesla T4")["gpus"]
    assert card["facts"]["n_sms"]["value"] == 40
    assert card["facts"]["n_sms"]["source"]


def test_models(joulecast, document):
    _, out, _ = joulecast("models")
    assert "hf/bert-base-uncased" in out
    packaged = document("models")["models"]
    assert all(model["packaged"] for model in packaged)
    assert len(document("models", "--all")["models"]) > len(packaged)


# --- validate -------------------------------------------------------------------------------------

HEADER = (
    "run_id,source,model,gpu,batch_per_gpu,n_gpus,parallel,precision,power_limit_w,"
    "step_time_s,mean_power_w,mine\n"
)


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(
        HEADER
        + "a,bench,bert-base,a100-sxm4-40gb,32,1,none,fp32,,0.15,300,x\n"
        + "b,bench,bert-base,a100-sxm4-40gb,32,1,none,fp32,50,0.9,90,y\n"
        + "c,bench,bert-base,a100-sxm4-40gb,32,4,tp4,fp32,,0.15,,z\n"
        + "d,other,no-such-model,t4,32,1,none,fp32,,0.15,,z\n"
    )
    return path


def test_validate_document(document, runs, tmp_path):
    found = document("validate", runs, "--out", tmp_path / "pred.csv")
    assert (found["rows"], found["predicted"], found["flagged"] >= 1) == (4, 2, True)
    assert [entry["run_id"] for entry in found["skipped"]] == ["c", "d"]
    assert set(found["errors"][0]) == set(
        "source gpu quantity n mean median p90 max bias interval_coverage null_mean null_median kind".split()
    )
    assert {(e["source"], e["gpu"]) for e in found["errors"]} >= {
        ("*", "*"),
        ("bench", "*"),
        ("*", "a100-sxm4-40gb"),
    }
    with (tmp_path / "pred.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["run_id"] for row in rows] == ["a", "b", "c", "d"]
    assert [row["mine"] for row in rows] == ["x", "y", "z", "z"]
    assert float(rows[0]["low_step_time_s"]) <= float(rows[0]["predicted_step_time_s"])
    assert "tensor parallelism" in rows[2]["skipped_reason"]


def test_validate_page_and_csv(joulecast, runs):
    code, out, err = joulecast("validate", runs)
    assert (code, err) == (0, "")
    assert "4 rows, 2 predicted (50.0 %)" in out
    _, out, _ = joulecast("validate", runs, "--format", "csv")
    assert out.startswith("source,gpu,quantity,n,")


OPERATORS = """\
op,gpu,dtype,case,kernel_latency_s,mean_power_w
add,a100-sxm4-40gb,bf16,Melements=1024;ITERS=9,0.0047,254.6
linear,a100-sxm4-40gb,bf16,M=8192;N=8192;K=8192;ITERS=50,0.0039,158
triu,a100-sxm4-40gb,bf16,M=1024,0.0082,376
"""


def test_validate_takes_operators_by_their_columns(joulecast, document, tmp_path):
    path, out = tmp_path / "runs.csv", tmp_path / "pred.csv"  # the name says runs, the columns do not
    path.write_text(OPERATORS)
    found = document("validate", path, "--out", out)
    assert found["schema"] == "joulecast/operator-validation/1"
    assert (found["rows"], found["predicted"]) == (3, 2)
    assert [entry["row"] for entry in found["suspect"]] == [1]
    assert [entry["row"] for entry in found["skipped"]] == [2]
    assert {e["quantity"] for e in found["errors"]} == {"latency_s", "mean_power_w"}
    assert {e["kind"] for e in found["errors"]} == {"*", "elementwise"}
    assert len(out.read_text().splitlines()) == 4
    again = document("validate", out, "--out", out)
    assert again["errors"] == found["errors"]
    code, text, err = joulecast("validate", path)
    assert (code, err) == (0, "")
    assert "50 calls: the power had not settled" in text


def test_a_corrupt_operator_writes_nothing(joulecast, tmp_path):
    (tmp_path / "ops.csv").write_text(OPERATORS.replace("0.0047", "-1"))
    code, out, err = joulecast("validate", tmp_path / "ops.csv", "--out", tmp_path / "pred.csv")
    assert (code, out) == (1, "")
    assert "line 2: kernel_latency_s is '-1'" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "pred.csv").exists()


@pytest.mark.parametrize(
    "row", ["a,b,bert-base,t4,32,1,none,fp32,,nan,,\n", "a,b\n", "a,b,bert-base,t4,0,1,,,,,,\n"]
)
def test_a_corrupt_row_writes_nothing(joulecast, tmp_path, row):
    (tmp_path / "runs.csv").write_text(HEADER + row)
    code, out, err = joulecast("validate", tmp_path / "runs.csv", "--out", tmp_path / "pred.csv")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "line 2" in err
    assert not (tmp_path / "pred.csv").exists()


def test_validate_refuses_a_bad_place_before_it_works(joulecast, runs):
    code, _, err = joulecast("validate", runs, "--out", "/no/such/folder/pred.csv")
    assert code == 2
    assert "no such folder" in err


# --- the process ----------------------------------------------------------------------------------


def process(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "joulecast", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_module_form_and_exit_code():
    done = process("predict", "bert-base", "--gpu", "a1000")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("joulecast: error: ")
    assert "Traceback" not in done.stderr


def test_version_and_help():
    assert process("--version").stdout.startswith("joulecast, version ")
    listing = process("--help").stdout
    for command in ("predict", "trace", "validate", "gpus", "models"):
        assert command in listing


def test_a_reader_that_leaves_is_no_error():
    command = f"{sys.executable} -m joulecast gpus --format json | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_predict_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from joulecast.cli.main import run\n"
        "assert run(['predict', 'bert-base', '--gpu', 'a100-sxm4-40gb']) == 0\n"
        "heavy = ('torch', 'transformers', 'timm', 'scipy', 'pandas', 'pyarrow')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"

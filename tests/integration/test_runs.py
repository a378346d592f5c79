"""``joulecast runs`` as it is typed."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from joulecast.cli.main import run
from joulecast.measure.store import Store
from joulecast.results import MeasuredQuantity, Measurement

MakeRun = Callable[..., Measurement]
EMISSIONS = Path(__file__).parents[1] / "data" / "emissions.csv"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_run: MakeRun) -> str:
    """Return a store of two runs, which is also the user's own."""
    url = str(tmp_path / "runs.db")
    monkeypatch.setenv("JOULECAST_STORE", url)
    with Store.open(url) as opened:
        opened.add(make_run("first"))
        opened.add(make_run("second", model="hf/bert-base-uncased", seq_len=128))
    return url


def test_list(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", "list"]) == 0
    page = capsys.readouterr().out
    assert "first" in page
    assert "torchvision/resnet50" in page
    assert "250 ms" in page
    assert run(["runs", "list", "--model", "bert", "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row["run_id"] == "second"
    assert run(["runs", "list", "--format", "json", "--limit", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "joulecast/runs/1"
    assert document["runs"][0]["row"]["seq_len"] == 128


def test_show(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", "show", "fir"]) == 0
    assert "240 - 260" in capsys.readouterr().out
    assert run(["runs", "show", "third"]) == 2
    assert "unknown run 'third'" in capsys.readouterr().err


def test_the_nodes_of_a_job_add(
    tmp_path: Path, make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "nodes.db")
    energy = MeasuredQuantity(value=100.0, low=90.0, high=110.0, method="counter", scope="board")
    with Store.open(store) as opened:
        for node in ("n1", "n2", "n1"):  # a rank too many of the first node
            run_id = f"run-{len(opened)}"
            opened.add(make_run(run_id, nodes=(node,), job_id="42", gpu_energy_j=energy))
        opened.add(make_run("other", nodes=("n3",), job_id="43", gpu_energy_j=energy))
    assert run(["runs", "show", "run-0", "--job", "--store", store, "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)["measurement"]
    assert record["gpu_energy_j"]["value"] == 200.0
    assert record["n_gpus"] == 2
    assert record["nodes"] == ["n1", "n2"]


def test_what_is_exported_is_validated_and_imported(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("csv", "jsonl"):
        file, other = tmp_path / f"out.{kind}", str(tmp_path / f"{kind}.db")
        assert run(["runs", "export", "--format", kind, "--out", str(file)]) == 0
        assert run(["runs", "import", str(file), "--store", other]) == 0
        assert run(["runs", "import", str(file), "--store", other]) == 0
        assert "0 added, 2 known already" in capsys.readouterr().out
        with Store.open(other) as there, Store.open(store) as here:
            assert list(there) == list(here)
    assert run(["validate", str(tmp_path / "out.csv"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["predicted"] == 2


def test_merge(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], make_run: MakeRun) -> None:
    other = str(tmp_path / "other.db")
    with Store.open(other) as opened:
        opened.add(make_run("second", model="hf/bert-base-uncased", seq_len=128))
        opened.add(make_run("third"))
    assert run(["runs", "merge", other]) == 0
    assert "1 added, 1 known already" in capsys.readouterr().out
    with Store.open(store) as opened:
        assert [row["run_id"] for row in opened] == ["first", "second", "third"]


def test_import_of_codecarbon(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", "import", str(EMISSIONS)]) == 0
    assert run(["runs", "show", "aaaa"]) == 0
    page = capsys.readouterr().out
    assert "3.60 kJ" in page
    assert "CodeCarbon counts no steps" in page
    assert run(["runs", "list", "--source", "codecarbon", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_a_bad_file_changes_nothing(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("run_id,model,gpu,batch_per_gpu\nnew,resnet50,a100-sxm4-40gb,32\n")
    bad.write_text("run_id,model,gpu,batch_per_gpu\nnew,resnet50,a100-sxm4-40gb,-1\n")
    assert run(["runs", "import", str(good), str(bad)]) == 1
    assert "bad.csv line 2: batch_per_gpu is '-1'" in capsys.readouterr().err
    with Store.open(store) as opened:
        assert len(opened) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--store", "nowhere.db"], "there is no store nowhere.db"),
        (["import"], "name a file"),
        (["merge"], "name a store"),
        (["export", "--out", "no/such/folder/runs.csv"], "cannot write"),
    ],
)
def test_a_wrong_request_is_one_line(
    arguments: list[str], message: str, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["runs", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1

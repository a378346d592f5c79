"""`joulecast study` and `joulecast report` as they are typed."""

import json
import sys

import pytest

from joulecast.cli.main import run
from joulecast.explore.table import load_sweep

STUDY = ("study", "distilbert", "albert", "--gpu", "a100-sxm4-40gb", "--precision", "fp32,bf16", "-b", "16")


@pytest.fixture(autouse=True)
def _no_store(tmp_path, monkeypatch):
    monkeypatch.setenv("JOULECAST_STORE", str(tmp_path / "none.sqlite"))


@pytest.fixture
def joulecast(capsys):
    """Return a caller of the command line: exit code, standard output, standard error."""

    def call(*arguments):
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


class TestStudy:
    def test_shows_every_part(self, joulecast):
        code, out, err = joulecast(*STUDY, "-n", "1,4")
        assert (code, err) == (0, "")
        for part in (
            "throughput, power, energy, memory",
            "gain over fp32",
            "what bounds the step",
            "parameter sharing: fp32, batch 16 x 128 tokens, 1 GPU",
            "scaling over 1",
            "power limit of least energy",
        ):
            assert part in out, part
        assert "measured runs beside" not in out

    def test_shows_no_part_that_one_value_has_not(self, joulecast):
        code, out, _ = joulecast("study", "distilbert", "-g", "t4", "-p", "fp32", "-b", "8")
        assert code == 0
        assert "gain over" not in out
        assert "scaling" not in out
        assert "parameter sharing" not in out

    def test_takes_sizes_by_model(self, joulecast):
        code, out, _ = joulecast(*STUDY, "--batch-size", "8,albert=4", "-s", "64", "--format", "json")
        document = json.loads(out)
        assert code == 0
        sizes = {
            (p["model"].split("#")[0], p["batch_per_gpu"], p["seq_len"]) for p in document["predictions"]
        }
        assert sizes == {("hf/distilbert-base-uncased", 8, 64), ("hf/albert-base-v2", 4, 64)}

    def test_document(self, joulecast):
        code, out, _ = joulecast(*STUDY, "--format", "json", "-n", "1,2")
        document = json.loads(out)
        assert code == 0
        assert document["schema"] == "joulecast/study/1"
        assert document["baseline"] == "fp32"
        gain = document["gains"][0]
        before, after = document["predictions"][:2]
        assert gain["time_ratio"]["value"] == pytest.approx(
            before["step_time_s"]["value"] / after["step_time_s"]["value"]
        )
        assert sum(gain["time_share"].values()) == pytest.approx(1)
        assert {row["n_gpus"] for row in document["scaling"]} == {2}
        assert len(document["power_limits"]) == 4
        assert document["measured"] == []

    def test_keeps_its_rows(self, joulecast, tmp_path):
        code, _, _ = joulecast(*STUDY, "--out", tmp_path / "r.parquet")
        assert code == 0
        assert set(load_sweep(tmp_path / "r.parquet")["precision"]) == {"fp32", "bf16"}

    def test_puts_measured_runs_beside(self, joulecast, tmp_path):
        runs = tmp_path / "runs.csv"
        runs.write_text(
            "model,gpu,precision,batch_per_gpu,seq_len,step_time_s,mean_power_w,energy_per_step_j\n"
            "albert,a100-sxm4-40gb,bf16,16,128,0.9,,\n"
        )
        code, out, _ = joulecast(*STUDY, "--runs", runs)
        assert code == 0
        (line,) = [line for line in out.partition("measured runs beside")[2].splitlines() if "albert" in line]
        assert " 0.9 " in line
        assert "*" in line  # nobody takes 0.9 s: outside the interval, and said so

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("study",), "name models"),
            (("study", "albert"), "name a card with --gpu"),
            ((*STUDY, "-n", "0"), "is no list of counts"),
            ((*STUDY, "-b", "many"), "neither a number nor MODEL=NUMBER"),
            ((*STUDY, "-b", "vgg16=3"), "batch size given for vgg16, not in the study"),
            ((*STUDY, "--runs", "a.csv", "--store", "b"), "give one of them"),
            ((*STUDY, "--runs", "nowhere.csv"), "no such file of runs"),
            ((*STUDY, "--out", "r.txt"), "ends in .parquet or .csv"),
            ((*STUDY, "-p", "fp31"), "unknown precision"),
            (("study", "albart", "-g", "t4"), "did you mean albert"),
        ],
    )
    def test_refuses_what_cannot_be(self, joulecast, arguments, message):
        code, out, err = joulecast(*arguments)
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1


class TestReport:
    @pytest.fixture
    def table(self, joulecast, tmp_path):
        path = tmp_path / "r.csv"
        assert joulecast(*STUDY, "--out", path)[0] == 0
        return path

    @pytest.mark.slow
    def test_writes_a_page_and_figures(self, joulecast, table, tmp_path):
        pytest.importorskip("altair")
        page, folder = tmp_path / "r.html", tmp_path / "figures"
        code, out, err = joulecast(
            "report", table, "--out", page, "--figures", folder, "--title", "Two & one"
        )
        assert (code, err) == (0, "")
        assert out.startswith(f"wrote {page}")
        assert "<h1>Two &amp; one</h1>" in page.read_text()
        names = {path.name for path in folder.iterdir()}
        assert {"roofline.svg", "roofline.png", "memory.svg", "operators.png", "sharing.svg"} <= names

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("nothing.parquet",), "no such file: nothing.parquet"),
            (("r.txt",), "ends in .parquet or .csv"),
            (("nothing.csv", "--out", "r.pdf"), "a report ends in .html"),
            (("nothing.csv", "--out", "no/such/folder/r.html"), "no such folder"),
        ],
    )
    def test_refuses_what_cannot_be(self, joulecast, arguments, message):
        code, out, err = joulecast("report", *arguments)
        assert (code, out) == (2, "")
        assert message in err

    def test_without_the_library_says_what_to_install(self, joulecast, table, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "altair", None)
        code, _, err = joulecast("report", table, "--out", tmp_path / "r.html")
        assert code == 1
        assert "pip install 'joulecast[figures]'" in err
        assert not (tmp_path / "r.html").exists()

"""``joulecast compare`` as it is typed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from joulecast.cli.main import run
from joulecast.measure.store import Store
from joulecast.results import Measurement


@pytest.fixture
def store(tmp_path: Path, make_run: Callable[..., Measurement]) -> str:
    url = str(tmp_path / "runs.db")
    with Store.open(url) as opened:
        opened.add(make_run("first", mode="train", memory_format="contiguous", image_size=224))
        opened.add(make_run("whole", model=None, command=("python", "train.py")))
    return url


def test_a_stored_run(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "fir", "--store", store]) == 0
    page = capsys.readouterr().out
    assert "step time" in page
    assert "250 ms" in page
    assert "no profile of the run" in page
    assert run(["compare", "fir", "--store", store, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "joulecast/comparison/1"
    assert document["quantities"][0]["measured"]["value"] == 0.25


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("whole", "run whole has no prediction: it was measured whole"),
        ("resnet51", "'resnet51' is neither a stored run nor a model"),
    ],
)
def test_a_wrong_request_is_one_line(
    target: str, message: str, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", target, "--store", store]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.slow
def test_a_step_that_is_run_now(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    figure, store = tmp_path / "figure.svg", str(tmp_path / "runs.db")
    arguments = ["compare", "resnet18", "-b", "2", "--image-size", "64", "--device", "cpu", "--seconds", "4"]
    assert run([*arguments, "--store", store, "--figure", str(figure), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {stage["stage"] for stage in document["stages"]} == {"forward", "backward", "optimizer"}
    groups = {(g["kind"], g["stage"]): g for g in document["groups"]}
    # every convolution of the op table ran, forward and backward
    for stage in ("forward", "backward"):
        group = groups["convolution", stage]
        assert group["n_measured"] == 20
        assert group["predicted_s"] > 0
        assert group["measured_s"] > 0
    assert figure.read_text().startswith("<svg")
    with Store.open(store) as opened:
        assert opened.get(document["run_id"]).row["gpu"] == "cpu"

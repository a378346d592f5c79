"""Measured runs stand beside the predictions of the very same step, and beside no other."""

import sys
import types

import pytest

import joulecast
from joulecast.calibrate.runs import load_runs
from joulecast.errors import MissingExtraError, UsageError
from joulecast.explore.measured_runs import beside, stored_runs

HEADER = "run_id,model,gpu,n_gpus,precision,batch_per_gpu,seq_len,power_limit_w,step_time_s,suspect"


def runs_of(tmp_path, *lines):
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return load_runs(path).runs


@pytest.fixture(scope="module")
def predictions():
    return joulecast.predict("bert-base", gpu="a100-sxm4-40gb", precision=["fp32", "bf16"], batch_size=16)


@pytest.mark.parametrize(
    ("line", "matches"),
    [
        ("r,hf/bert-base-uncased,a100-sxm4-40gb,1,bf16,16,128,,0.02,", True),
        ("r,bert-base,a100-sxm4-40gb,,bf16,16,,400,0.02,", True),
        ("r,bert-base,a100-sxm4-40gb,1,bf16,16,,300,0.02,", False),
        ("r,bert-base,a100-sxm4-40gb,1,bf16,32,128,,0.02,", False),
        ("r,bert-base,a100-sxm4-40gb,2,bf16,16,128,,0.02,", False),
        ("r,bert-base,a100-sxm4-80gb,1,bf16,16,128,,0.02,", False),
        ("r,bert-base,a100-sxm4-40gb,1,bf16,16,128,,0.02,the clock was low", False),
        ("r,no-such-model,a100-sxm4-40gb,1,bf16,16,128,,0.02,", False),
    ],
)
def test_a_run_matches_in_everything_that_makes_a_step(tmp_path, predictions, line, matches):
    pairs = beside(predictions, runs_of(tmp_path, line))

    assert len(pairs) == matches
    for pair in pairs:
        assert pair.prediction.precision == "bf16"
        assert pair.run.measured["step_time_s"] == 0.02


def test_there_are_no_runs_where_there_is_no_store(tmp_path, monkeypatch):
    monkeypatch.setenv("JOULECAST_STORE", str(tmp_path / "nothing.sqlite"))
    assert stored_runs() == ()


class FakeStore:
    """A store as `joulecast.measure.store` opens one: a context whose rows are those of a file of runs."""

    rows = (
        {
            "run_id": "r",
            "model": "bert-base",
            "gpu": "a100-sxm4-40gb",
            "n_gpus": 1,
            "precision": "bf16",
            "batch_per_gpu": 16.0,
            "power_limit_w": None,
            "step_time_s": 0.02,
        },
    )

    @classmethod
    def open(cls, url, *, create):
        if url == "missing" or create:
            raise UsageError("no such store")
        return cls()

    def __enter__(self):
        return iter(self.rows)

    def __exit__(self, *_):
        pass


@pytest.fixture
def store(monkeypatch):
    module = types.ModuleType("joulecast.measure.store")
    module.Store = FakeStore
    monkeypatch.setitem(sys.modules, "joulecast.measure", types.ModuleType("joulecast.measure"))
    monkeypatch.setitem(sys.modules, "joulecast.measure.store", module)


@pytest.mark.usefixtures("store")
def test_runs_of_a_store_stand_beside_predictions(predictions):
    (pair,) = beside(predictions, stored_runs("some"))
    assert pair.run.measured == {"step_time_s": 0.02}


@pytest.mark.usefixtures("store")
def test_a_store_that_was_named_must_be_there():
    with pytest.raises(UsageError, match="no such store"):
        stored_runs("missing")


def test_a_named_store_needs_the_package_that_reads_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "joulecast.measure.store", None)
    with pytest.raises(MissingExtraError, match=r"joulecast\[measure\]"):
        stored_runs("some")

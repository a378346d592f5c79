"""Traces survive a file; a bad file says what it is."""

import json

import numpy as np
import pytest
from torch import nn
from torch.nn import functional

from joulecast.errors import TableError
from joulecast.workload import io
from joulecast.workload.trace import trace_step


@pytest.fixture(scope="module")
def trace():
    import torch

    module = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    return trace_step(
        module,
        lambda b, _: (torch.zeros(b, 32), torch.zeros(b, dtype=torch.int64)),
        loss=lambda output, inputs: functional.cross_entropy(output, inputs[1]),
        optimizers=("sgd", "adamw"),
    )


def test_a_round_trip_changes_nothing(tmp_path, trace):
    path = tmp_path / "folder" / "traces.npz"

    io.save_traces(path, {"a": trace, "b": trace})
    loaded = io.load_trace_file(path, "b")

    assert io.load_trace_keys(path) == ("a", "b")
    assert np.array_equal(loaded.polynomials, trace.polynomials)
    assert np.array_equal(loaded.live_bytes, trace.live_bytes)
    for name, column in trace.table(3).columns().items():
        assert np.array_equal(loaded.table(3).columns()[name], column), name
    assert loaded.parameters == trace.parameters
    assert loaded.features == trace.features
    assert loaded.optimizers["adamw"].state_bytes == trace.optimizers["adamw"].state_bytes
    assert np.array_equal(loaded.optimizers["sgd"].table.flop, trace.optimizers["sgd"].table.flop)


def test_the_same_traces_give_the_same_file(tmp_path, trace):
    for name in ("one", "two"):
        io.save_traces(tmp_path / name, {"a": trace})

    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 cut short"])
def test_a_corrupt_file_is_one_clear_line(tmp_path, content):
    path = tmp_path / "bad.npz"
    path.write_bytes(content)

    with pytest.raises(TableError, match=r"bad\.npz is not a readable op table"):
        io.load_trace_file(path, "a")


def test_a_truncated_file_is_corrupt(tmp_path, trace):
    path = tmp_path / "cut.npz"
    io.save_traces(path, {"a": trace})
    path.write_bytes(path.read_bytes()[:-200])

    with pytest.raises(TableError):
        io.load_trace_file(path, "a")


def test_another_version_says_which_it_needs(tmp_path):
    path = tmp_path / "new.npz"
    header = json.dumps({"format": 99, "traces": {}}).encode()
    np.savez(path, header=np.frombuffer(header, dtype=np.uint8))

    with pytest.raises(TableError, match="has format 99, this version reads 1"):
        io.load_trace_keys(path)


def test_a_missing_key_names_those_there(tmp_path, trace):
    path = tmp_path / "t.npz"
    io.save_traces(path, {"fp32": trace})

    with pytest.raises(TableError, match="it holds fp32"):
        io.load_trace_file(path, "bf16")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TableError, match="no op table at"):
        io.load_trace_keys(tmp_path / "none.npz")


def test_a_failed_write_leaves_nothing_behind(tmp_path, trace, monkeypatch):
    path = tmp_path / "t.npz"
    io.save_traces(path, {"a": trace})
    before = path.read_bytes()

    def fail(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        io.save_traces(path, {"a": trace})

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]

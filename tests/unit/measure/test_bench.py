"""Which operator is timed next, how long, and that nothing measured is lost."""

from pathlib import Path

import numpy as np
import pytest

from joulecast.errors import RunsError, UsageError
from joulecast.hardware.catalogue import load_gpu
from joulecast.measure.bench.cases import Case, all_cases, case_of, columns_of
from joulecast.measure.bench.choice import Search, expected_latency_s
from joulecast.measure.bench.records import OperatorFile
from joulecast.measure.bench.run import bench
from joulecast.measure.bench.timing import _median_error_frac
from joulecast.model.parameters import load_parameters
from joulecast.workload.operator_table import HOST_PHASES


def add(h, op="add"):
    return Case(op=op, phase="forward", dtype="fp32", sizes=(("b", 8), ("h", h)))


def searched(*cases):
    return Search(cases, np.ones(len(cases)))


# --- the choice -----------------------------------------------------------------------------------


def test_a_group_nobody_has_timed_comes_first():
    search = searched(add(8), add(16), add(8, "mul"))
    search.take(add(8), 1.0)
    assert search.next() == add(8, "mul")


def test_the_group_that_disagrees_with_the_set_gets_the_time():
    steady = [add(2**i) for i in range(3, 9)]
    odd = [add(2**i, "mul") for i in range(3, 9)]
    search = searched(*steady, *odd)
    for i in range(3):
        search.take(steady[i], 2.0)  # twice what was expected, always
        search.take(odd[i], 4.0**i)
    assert search.next().op == "mul"


def test_a_standard_error_by_hand():
    search = searched(add(8), add(16), add(32))
    search.take(add(8), np.exp(0.3))
    search.take(add(16), np.exp(0.1))
    # deviations +-0.1; sqrt((0.02 + 0.25) / 2) / sqrt(2)
    assert search.groups["add forward fp32"].standard_error == pytest.approx(np.sqrt(0.27) / 2)


def test_inside_a_group_the_case_farthest_in_size_comes_next():
    cases = [add(h) for h in (8, 16, 64, 4096)]
    search = searched(*cases)
    first = search.next()
    assert first in (add(16), add(64))  # one in the middle
    search.take(first, 1.0)
    assert search.next() == add(4096)


def test_it_ends_when_every_group_is_known():
    cases = [add(8 + i) for i in range(400)]
    search = searched(*cases)
    n = 0
    while (case := search.next()) is not None:
        search.take(case, 1.5)
        n += 1
    assert n == pytest.approx(0.5 / 0.03, abs=1)  # sqrt(0.25 / n) / sqrt(n) = 0.5 / n


def test_a_case_that_cannot_run_is_not_tried_again():
    search = searched(add(8))
    search.take(add(8), None)
    assert search.next() is None


def test_cases_go_into_a_file_and_come_back():
    cases = all_cases(("fp32", "bf16"), channels_last=True)
    assert len({case.identity for case in cases}) == len(cases)
    for case in cases[:: len(cases) // 50]:
        row = {"op": case.op, "phase": case.phase, "dtype": case.dtype, **dict(case.sizes)}
        assert case_of(row).identity == case.identity
        if case.op in ("conv", "linear"):
            assert case_of(row).group == case.group


def test_every_case_has_an_expectation_on_a_gpu_and_on_a_processor():
    cases = all_cases(("fp32", "bf16"), channels_last=True)
    for slug in ("a100-sxm4-40gb", "cpu"):
        expected_s = expected_latency_s(cases, load_gpu(slug), load_parameters().values)
        assert np.all(expected_s > 0)


def test_an_unknown_type_is_named():
    with pytest.raises(UsageError, match="fp12"):
        all_cases(("fp32", "fp12"), channels_last=False)


def test_the_error_of_a_median_ignores_an_outlier():
    values = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99]
    assert _median_error_frac([*values, 50.0]) < 0.02
    assert _median_error_frac([1.0, 2.0, 3.0, 4.0]) > 0.2


# --- the file -------------------------------------------------------------------------------------


def test_a_file_keeps_its_rows_and_its_types(tmp_path):
    file = OperatorFile(tmp_path / "ops.parquet")
    file.rows.append(
        {"op": "add", "phase": "forward", "gpu": "cpu", "dtype": "fp32", "latency_s": 1e-3, "b": 8}
    )
    file.save()
    again = OperatorFile(tmp_path / "ops.parquet")
    assert again.rows[0]["b"] == 8
    assert again.rows[0]["latency_s"] == 1e-3
    assert again.rows[0]["mean_power_w"] is None
    assert [p.name for p in tmp_path.iterdir()] == ["ops.parquet"]


def test_a_file_of_another_kind_is_left_alone(tmp_path):
    path = tmp_path / "ops.parquet"
    path.write_text("not parquet")
    with pytest.raises(RunsError, match="name another with --out"):
        OperatorFile(path)
    assert path.read_text() == "not parquet"


def test_a_file_with_columns_of_its_own_is_left_alone(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    columns = {name: ["x"] for name in ("op", "phase", "gpu", "dtype", "mine")} | {"latency_s": [1.0]}
    parquet.write_table(pa.table(columns), tmp_path / "ops.parquet")
    with pytest.raises(RunsError, match="lost \\(mine\\)"):
        OperatorFile(tmp_path / "ops.parquet")


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="no folder"):
        OperatorFile(tmp_path / "missing" / "ops.parquet")


# --- for real, on this processor ------------------------------------------------------------------


def test_what_was_measured_survives_an_interruption_and_is_not_measured_again(tmp_path, monkeypatch):
    from joulecast.measure.bench.timing import Timer

    timed = Timer.time
    calls = []

    def interrupted_at_the_fourth(self, call):
        calls.append(call)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return timed(self, call)

    monkeypatch.setattr(Timer, "time", interrupted_at_the_fourth)
    out = tmp_path / "ops.parquet"
    first = bench(load_parameters(), device="cpu", budget_s=60.0, out=out)
    assert first.ended == "interrupted"
    assert 0 < first.n_new == first.n_rows == len(OperatorFile(out).rows)
    monkeypatch.setattr(Timer, "time", timed)
    second = bench(load_parameters(), device="cpu", budget_s=1.0, out=out)
    rows = OperatorFile(out).rows
    assert second.ended == "budget"
    assert len(rows) == first.n_rows + second.n_new
    assert len({case_of(row).identity for row in rows}) == len(rows)
    assert all(row["latency_s"] > 0 and row["gpu"] == "cpu" for row in rows)


@pytest.mark.slow
def test_kernels_of_every_kind_run_here():
    import torch

    from joulecast.measure.bench.kernels import make_call

    tried = set()
    for case in all_cases(("fp32",), channels_last=False):
        small = all(
            size <= 64 or name in ("n", "size", "h", "c_in", "c_out", "k", "m") for name, size in case.sizes
        )
        key = (case.op, case.variant, case.phase)
        if case.phase in HOST_PHASES or key in tried or not small:
            continue
        if np.prod([float(size) for _, size in case.sizes]) > 1e10:
            continue
        make_call(case, torch.device("cpu"))()
        tried.add(key)
    assert {op for op, _, _ in tried} >= {
        "linear",
        "bmm",
        "conv",
        "attention-full",
        "ln",
        "bn",
        "adamw",
        "dropout",
    }
    assert {phase for _, _, phase in tried} == {"forward", "dgrad", "wgrad", "optimizer"}


def test_columns_of_cases_hold_nan_where_a_dimension_does_not_apply():
    found = columns_of([add(16)])
    assert found["h"][0] == 16
    assert np.isnan(found["k"][0])


def test_a_budget_must_be_a_time(tmp_path):
    with pytest.raises(UsageError, match="budget"):
        bench(load_parameters(), device="cpu", budget_s=0.0, out=Path(tmp_path) / "ops.parquet")

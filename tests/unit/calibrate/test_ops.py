import numpy as np
import pytest

from joulecast.calibrate.ops import load_host_parameters, load_operator_records, operator_records
from joulecast.errors import RunsError
from joulecast.workload.operator_table import DIMENSIONS

_COLUMNS = (
    *("latency_s", "mean_power_w", "power_limit_w", "b", "m", "n", "k", "h", "c_in", "c_out"),
    *("kernel", "size", "stride", "pad", "seq", "heads", "kv_heads", "head_dim"),
)


def record(op, dtype="fp32", source="NeuSight operator set", **numbers):
    columns = {name: np.array([numbers.get(name, np.nan)]) for name in _COLUMNS}
    columns["latency_s"] = np.array([numbers.get("latency_s", 1e-3)])
    labels = {"op": op, "phase": "forward", "gpu": "t4", "dtype": dtype, "source": source}
    return {**columns, **{name: np.array([text]) for name, text in labels.items()}}


def only(records, name):
    return float(getattr(records.table, name)[0])


def test_linear_is_one_product():
    found = operator_records(record("linear", b=1, m=3, n=5, k=7))
    assert only(found, "flop") == 2 * 3 * 5 * 7
    assert only(found, "read_bytes") == 4 * (3 * 7 + 7 * 5)
    assert only(found, "written_bytes") == 4 * 3 * 5
    assert found.table.kind.tolist() == ["gemm"]
    assert found.is_eager.all()
    assert found.precision.tolist() == ["fp32-strict"]


def test_convolution_keeps_its_image_with_padding():
    found = operator_records(record("conv", b=2, c_in=3, c_out=4, kernel=3, size=5, stride=1, pad=1))
    assert only(found, "m") == 2 * 25
    assert only(found, "k") == 27
    assert only(found, "flop") == 2 * 50 * 4 * 27


def test_causal_attention_counts_half():
    numbers = {"b": 2, "seq": 3, "heads": 4, "kv_heads": 2, "head_dim": 8}
    causal, full = (
        operator_records(record(f"attention-{kind}", "bf16", "aiconfigurator", **numbers))
        for kind in ("causal", "full")
    )
    assert only(full, "flop") == 4 * 8 * 9 * 8
    assert only(causal, "flop") == 4 * 8 * 6 * 8
    assert only(causal, "read_bytes") == 2 * 2 * 3 * 8 * (4 + 2 * 2)
    assert not causal.is_eager.any()
    assert causal.precision.tolist() == ["bf16-pure"]


def test_two_tensors_are_three_streams():
    add, relu = (operator_records(record(op, b=10, h=20)) for op in ("add", "relu"))
    assert only(add, "read_bytes") == 2 * only(relu, "read_bytes") == 2 * 4 * 200


def test_rows_become_rows_and_columns():
    found = operator_records(record("softmax", b=10, h=20))
    assert (only(found, "m"), only(found, "n")) == (10, 20)


def test_what_cannot_be_is_refused():
    with pytest.raises(RunsError, match="unknown operators: fft"):
        operator_records(record("fft"))
    with pytest.raises(RunsError, match="latency_s must be above 0, row 0"):
        operator_records(record("relu", b=1, h=1, latency_s=0.0))


def test_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(RunsError, match="cannot read operators"):
        load_operator_records(tmp_path / "absent.parquet")
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(RunsError, match="cannot read operators"):
        load_operator_records(tmp_path / "text.parquet")


def test_a_file_without_a_column_is_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"op": ["relu"]}), tmp_path / "few.parquet")
    with pytest.raises(RunsError, match="lacks the columns phase, gpu"):
        load_operator_records(tmp_path / "few.parquet")


def test_the_shared_operators_load(shared_data):
    records = load_operator_records(shared_data / "ops.parquet")
    assert len(records) > 200_000
    assert np.all(records.table.bytes_moved > 0)


def own_columns(*rows):
    """Return columns of rows as `joulecast bench` writes them."""
    names = ("op", "phase", "gpu", "dtype", "source")
    found = {name: np.array([row.get(name, "") for row in rows]) for name in names}
    for name in ("latency_s", "mean_power_w", *DIMENSIONS):
        found[name] = np.array([float(row.get(name, np.nan)) for row in rows])
    return found


def own_row(op, phase="forward", gpu="cpu", latency_s=1e-3, **sizes):
    return {
        **{"op": op, "phase": phase, "gpu": gpu, "dtype": "fp32", "latency_s": latency_s},
        **{"source": "joulecast bench 1", **sizes},
    }


def test_gradients_of_our_own_benchmarks_are_taken():
    sizes = {"b": 1, "m": 64, "n": 32, "k": 16}
    rows = [own_row("linear", phase, **sizes) for phase in ("forward", "dgrad", "wgrad")]
    records = operator_records(own_columns(*rows))
    assert records.table.phase.tolist() == ["forward", "dgrad", "wgrad"]
    dimensions = [(t.m[i], t.n[i], t.k[i]) for t in [records.table] for i in range(3)]
    assert dimensions == [(64, 32, 16), (64, 16, 32), (32, 16, 64)]
    assert set(records.table.flop) == {2.0 * 64 * 32 * 16}


def test_an_optimizer_step_is_the_mean_of_its_calls():
    records = operator_records(own_columns(own_row("adamw", "optimizer", latency_s=8e-3, b=4, h=1000)))
    assert records.table.n_calls[0] == 8
    assert records.latency_s[0] == pytest.approx(1e-3)


def test_dispatch_is_a_floor_on_gpus_and_a_part_of_the_time_on_a_processor():
    rows = [own_row("add", gpu=gpu, b=8, h=8) for gpu in ("cpu", "t4")]
    assert operator_records(own_columns(*rows)).is_eager.tolist() == [False, True]


def test_launches_and_the_host_are_parameters_not_operators(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        own_row("add", b=8, h=8),
        *(own_row("launch", "launch", latency_s=x) for x in (1e-6, 2e-6, 9e-6)),
        own_row("forward-kernel", "dispatch", latency_s=7e-6),
        own_row("all-reduce", b=2, h=1024),
    ]
    found = own_columns(*rows)
    parquet.write_table(
        pa.table({name: values.tolist() for name, values in found.items()}), tmp_path / "o.parquet"
    )
    records = load_operator_records(tmp_path / "o.parquet")
    assert records.operator.tolist() == ["add"]
    assert load_host_parameters(tmp_path / "o.parquet") == {
        "launch.kernel_s": pytest.approx(2e-6),
        "host.forward_kernel_s": pytest.approx(7e-6),
    }

import numpy as np
import pytest

from joulecast.calibrate.ops import load_operator_records, operator_records
from joulecast.errors import RunsError

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

import csv

import pytest

from joulecast.calibrate.operator_files import holds_operators, load_operator_file
from joulecast.calibrate.operator_validation import save_operator_predictions, validate_operators
from joulecast.errors import RunsError, UsageError

pyarrow = pytest.importorskip("pyarrow")

CASES = "op,gpu,dtype,case,kernel_latency_s,mean_power_w"


def an_operator(**changes):
    row = {
        **{"op": "linear", "phase": "forward", "gpu": "t4", "dtype": "fp32", "source": "NeuSight set"},
        **{"b": 1, "m": 1024, "n": 1024, "k": 1024, "h": None, "latency_s": 6e-4, "mean_power_w": None},
    }
    return {**row, **changes}


@pytest.fixture
def parquet_of(tmp_path):
    """Return a writer of operators as parquet; the name says nothing."""

    def write(*rows, name="measured.bin"):
        from pyarrow import Table, parquet

        path = tmp_path / name
        parquet.write_table(Table.from_pylist(list(rows)), path)
        return path

    return write


@pytest.fixture
def cases(tmp_path):
    """Return a writer of operators with power as CSV."""

    def write(*lines):
        path = tmp_path / "some.txt"
        path.write_text("\n".join([CASES, *lines]) + "\n")
        return path

    return write


ADD = "add,a100-sxm4-40gb,bf16,Melements=1024;ITERS=9,0.0047,254.6"


def test_files_are_told_by_their_columns(parquet_of, cases, tmp_path):
    assert holds_operators(parquet_of(an_operator()))
    assert holds_operators(cases(ADD))
    runs = tmp_path / "ops.parquet"
    runs.write_text("model,gpu,batch_per_gpu\nresnet50,t4,8\n")
    assert not holds_operators(runs)
    with pytest.raises(UsageError, match="no such file"):
        holds_operators(tmp_path / "none")


def test_predictions_are_near_and_inside_their_interval(parquet_of):
    validation = validate_operators(parquet_of(an_operator(), an_operator(op="relu", b=4096, h=4096)))
    value, low, high = validation.predictions.latency_s
    assert ((low < value) & (value < high)).all()
    # 2.1 GFLOP on 8.1 TFLOP/s, 128 MiB on 320 GB/s: not below either
    assert value[0] > 2 * 1024**3 / 8.2e12
    assert value[1] > 2 * 4 * 4096**2 / 320e9
    assert {e.kind for e in validation.errors} == {"*", "gemm", "elementwise"}
    assert validation.compared.key.tolist() == ["op0", "op1"]


def test_what_is_not_known_skips_its_row(parquet_of):
    path = parquet_of(
        an_operator(op="fft"),
        an_operator(),
        an_operator(gpu="t5000"),
        an_operator(dtype="fp99"),
        an_operator(phase="dgrad"),
    )
    document = validate_operators(path).to_dict()
    assert (document["rows"], document["predicted"]) == (5, 1)
    reasons = {entry["row"]: entry["reason"] for entry in document["skipped"]}
    assert sorted(reasons) == [0, 2, 3, 4]
    for row, word in ((0, "'fft'"), (2, "t5000"), (3, "fp99"), (4, "dgrad")):
        assert word in reasons[row]


@pytest.mark.parametrize("latency_s", [0.0, -1.0, float("nan")])
def test_a_latency_that_cannot_be_refuses_the_file(parquet_of, latency_s):
    with pytest.raises(RunsError, match=r"latency_s must be above 0, row 1"):
        load_operator_file(parquet_of(an_operator(), an_operator(latency_s=latency_s)))


@pytest.mark.parametrize("cell", ["0", "-3", "fast", "inf"])
def test_a_cell_that_cannot_be_refuses_the_table(cases, cell):
    with pytest.raises(RunsError, match=r"line 3: mean_power_w is"):
        load_operator_file(cases(ADD, ADD.replace("254.6", cell)))


def test_corrupt_files_are_one_error(tmp_path, cases, parquet_of):
    path = tmp_path / "half"
    path.write_bytes(parquet_of(an_operator()).read_bytes()[:100])
    with pytest.raises(RunsError, match="not a whole parquet file"):
        load_operator_file(path)
    with pytest.raises(RunsError, match="line 3: not as many cells"):
        load_operator_file(cases(ADD, "add,t4"))
    with pytest.raises(RunsError, match="no rows"):
        load_operator_file(cases())


def test_parquet_comes_back_row_for_row(parquet_of, tmp_path):
    from pyarrow import parquet

    path = parquet_of(an_operator(), an_operator(op="fft"), an_operator(mean_power_w=60.0, colour="red"))
    out = tmp_path / "out.parquet"
    save_operator_predictions(validate_operators(path), out)
    before, after = parquet.read_table(path), parquet.read_table(out)
    assert after.select(before.column_names).equals(before)
    assert after["predicted_latency_s"].to_pylist()[1] is None
    assert "fft" in after["skipped_reason"].to_pylist()[1]
    power = after["predicted_mean_power_w"].to_pylist()
    assert power[0] is None
    assert power[2] > 0
    assert after["low_latency_s"].to_pylist()[0] < after["high_latency_s"].to_pylist()[0]
    assert {entry.name for entry in tmp_path.iterdir()} == {"measured.bin", "out.parquet"}


def test_a_table_with_power_comes_back_as_csv(cases, tmp_path):
    path = cases(ADD, "relu,a100-sxm4-40gb,bf16,Melements=1024,0.0089,280", "triu,t4,bf16,M=1,0.1,90")
    validation = validate_operators(path)
    out = tmp_path / "out.csv"
    save_operator_predictions(validation, out)
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["op"] for row in rows] == ["add", "relu", "triu"]
    assert float(rows[0]["predicted_mean_power_w"]) > 0
    assert "backward" in rows[1]["suspect_reason"]
    assert rows[2]["predicted_latency_s"] == ""
    assert "axis" in rows[2]["skipped_reason"]
    # the doubted row is out of the errors, and in those with it
    assert [e.n for e in validation.errors if e.kind == e.source == e.gpu == "*"] == [1, 1]
    assert [e.n for e in validation.errors_with_suspect] == [2, 2]


def test_microseconds_are_named(parquet_of):
    validation = validate_operators(parquet_of(an_operator(latency_s=600.0)))
    (line,) = validation.warnings
    assert "latency_s of NeuSight set is about 1e+06 times" in line

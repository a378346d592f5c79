import numpy as np
import pytest

from joulecast.calibrate.op_power import op_power_records, sizes_of


def records_of(*rows):
    """Return the records of (op, dtype, case) rows."""
    op, dtype, case = zip(*rows, strict=True)
    columns = {"op": op, "dtype": dtype, "case": case, "gpu": ["a100-sxm4-40gb"] * len(rows)}
    return op_power_records(columns, np.full(len(rows), 1e-3), np.full(len(rows), 300.0))


def test_sizes_are_read_from_the_text():
    assert sizes_of("M=1024;N=10;bs=2;note=fast;ITERS=50") == {"M": 1024, "N": 10, "bs": 2, "ITERS": 50}


@pytest.mark.parametrize(
    ("op", "dtype", "read", "written"),
    [
        ("abs", "bf16", 2, 2),
        ("add", "fp32", 8, 4),
        ("mul", "fp16", 2, 2),
        ("eq", "bf16", 4, 1),
        ("isnan", "fp32", 4, 1),
        ("dropout", "bf16", 2, 3),
        ("bitwise_and", "int16", 4, 2),
        ("sum", "fp32", 4, 0),
    ],
)
def test_traffic_of_an_element(op, dtype, read, written):
    table = records_of((op, dtype, "Melements=2")).records.table
    assert table.read_bytes[0] == read * 2 * 2**20
    assert table.written_bytes[0] == written * 2 * 2**20
    assert table.flop[0] == 0


def test_products_by_hand():
    found = records_of(
        ("mm", "fp32", "M=2;N=3;K=5"), ("bmm", "bf16", "M=2;N=3;K=5;BS=7"), ("mv", "fp16", "M=2;N=3")
    ).records
    assert found.table.flop.tolist() == [60, 420, 12]
    assert found.table.read_bytes.tolist() == [4 * 25, 2 * 7 * 25, 2 * (6 + 3)]
    assert found.precision.tolist() == ["tf32", "bf16-pure", "fp16-pure"]
    assert found.table.kind.tolist() == ["gemm", "batched_gemm", "gemm"]


def test_rows_that_cannot_be_predicted_say_why():
    found = records_of(
        ("mm", "bf16", "M=2;N=3"),
        ("amax", "bf16", "M=2;N=3"),
        ("fft", "bf16", "M=2"),
        ("abs", "fp8", "M=2"),
        ("abs", "bf16", "M=2"),
    )
    assert found.i_row.tolist() == [4]
    assert "does not give K" in found.skipped[0]
    assert "an axis is missing" in found.skipped[1]
    assert "'fft'" in found.skipped[2]
    assert "'fp8'" in found.skipped[3]


def test_few_calls_stand_apart():
    found = records_of(("linear", "bf16", "M=2;N=3;K=5"), ("mm", "bf16", "M=2;N=3;K=5"))
    assert "50 calls" in found.suspect[0]
    assert found.suspect[1] == ""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibrate.comparisons import concatenate
from joulecast.calibrate.held_out import HeldOutPrediction
from joulecast.calibrate.operator_validation import validate_operators
from joulecast.calibrate.runs import load_runs
from joulecast.calibrate.validation import validate
from joulecast.model.parameters import load_parameters
from joulecast.report.validation_figures import (
    CAPTIONS,
    against_limit,
    error_by_gpu,
    predicted_measured,
    save_validation_figures,
)
from joulecast.report.validation_page import Accuracy, readme_table, table, validation_markdown
from joulecast.report.validations import operator_validation_page, validation_page

RUNS = """\
run_id,source,model,gpu,precision,batch_per_gpu,power_limit_w,step_time_s,mean_power_w,energy_per_step_j,suspect
a,ml-energy/zeus NSDI'23 trace,resnet50,a40,fp32,64,300,0.2,250,50,
b,ml-energy/zeus NSDI'23 trace,resnet50,a40,fp32,64,150,0.3,150,45,
c,ml-energy/zeus NSDI'23 trace,resnet50,a40,fp32,64,100,0.6,110,66,
d,lambdal/deeplearning-benchmark,bert-base,t4,fp32,8,,0.2,,,clock | fan
e,lambdal/deeplearning-benchmark,no-such-model,t4,fp32,8,,0.2,,,
"""
CASES = """\
op,gpu,dtype,case,kernel_latency_s,mean_power_w
add,a100-sxm4-40gb,bf16,Melements=1024,0.0047,254.6
relu,a100-sxm4-40gb,bf16,Melements=1024,0.0089,280
triu,a100-sxm4-40gb,bf16,M=1024;N=1024,0.0082,376
"""


@pytest.fixture(scope="module")
def accuracy(tmp_path_factory) -> Accuracy:
    folder = tmp_path_factory.mktemp("measured")
    (folder / "runs.csv").write_text(RUNS)
    (folder / "cases.csv").write_text(CASES)
    fitted = load_parameters()
    operators = validate_operators(folder / "cases.csv", parameters=fitted)
    gemm = replace(operators.file.records.table, kind=np.full(2, "gemm"))
    records = replace(operators.file.records, table=gemm)
    return Accuracy(
        runs=validate(load_runs(folder / "runs.csv"), parameters=fitted),
        operators=validate_operators(
            replace(operators.file, records=records, suspect=np.full(2, "")), parameters=fitted
        ),
        op_powers=operators,
        held_out=(),
        parameters=fitted,
    )


def widths(page) -> list[int]:
    """Return the width of every line as it is drawn."""
    from io import StringIO

    from joulecast.report.tables import draw

    out = StringIO()
    draw(page, out)
    return [len(line.rstrip()) for line in out.getvalue().splitlines()]


def test_a_page_fits_100_columns(accuracy):
    assert max(widths(validation_page(accuracy.runs))) <= 100
    assert max(widths(operator_validation_page(accuracy.op_powers))) <= 105


def test_the_page_says_what_is_apart(accuracy):
    text = validation_markdown(accuracy)
    assert "4 of 5 runs" in text
    assert "clock \\| fan" in text
    assert "No fit has written held-out predictions" in text
    assert "an axis is missing (1)" in text
    assert "no-such-model" in text
    for name in CAPTIONS:
        assert f"figures/{name}.png" in text


def test_every_row_of_a_table_has_its_columns(accuracy):
    n_cells = 0
    for line in validation_markdown(accuracy).splitlines():
        if not line.startswith("|"):
            n_cells = 0
            continue
        found = line.replace("\\|", "").count("|")
        n_cells = n_cells or found
        assert found == n_cells, line


def test_held_out_numbers_reach_the_page_and_the_readme(accuracy):
    rows = concatenate([accuracy.kept, accuracy.operators.compared])
    left_out = [
        HeldOutPrediction(
            **{"key": key, "source": source, "gpu": gpu, "subject": "m", "group_left_out": gpu},
            **{"kind": "gpu", "quantity": quantity, "measured": m},
            **{"predicted": 1.0712 * m, "low": 0.9 * m, "high": 1.2 * m},
        )
        for key, source, gpu, quantity, m in zip(
            *(getattr(rows, name).tolist() for name in ("key", "source", "gpu", "quantity", "measured")),
            strict=True,
        )
    ]
    with_them = replace(accuracy, held_out=left_out)
    text = validation_markdown(with_them)
    assert "## Held out: the GPU was left out of the fit" in text
    zeus = next(line for line in readme_table(with_them).splitlines() if line.startswith("| Zeus power"))
    assert "7.1 %" in zeus
    unseen = text.split("## Single operators, the GPU left out of the fit")[1].splitlines()
    assert any(line.startswith("| gemm | all | latency | 2 | 7.1 % ") for line in unseen)


def test_a_markdown_table_escapes_bars():
    assert table(("a", "b"), [("x|y", "z")]).splitlines()[-1] == "| x\\|y | z |"


def test_figures_hold_every_number_once(accuracy):
    kept = accuracy.kept
    points = [
        value
        for panel in predicted_measured(kept)["concat"]
        for layer in panel["layer"]
        for value in layer["data"]["values"]
        if "source" in value
    ]
    assert len(points) == len(kept)
    assert {value["source"] for value in points} == {"Zeus"}
    (gpu,) = error_by_gpu(kept)["data"]["values"]
    assert gpu["gpu"] == "a40 (3)"
    assert gpu["low"] <= gpu["middle"] <= gpu["high"]


def test_against_the_limit_takes_medians_by_model(accuracy):
    power = accuracy.kept.rows(accuracy.kept.quantity == "mean_power_w")
    values = against_limit(power, "mean power [W]")["data"]["values"]
    assert [(v["limit"], v["measured"]) for v in values] == [(100, 110), (150, 150), (300, 250)]


def test_figures_are_pictures(accuracy, tmp_path):
    pytest.importorskip("vl_convert")
    paths = save_validation_figures(accuracy.kept, tmp_path)
    assert [path.stem for path in paths] == list(CAPTIONS)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)

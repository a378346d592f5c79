"""The null model's constants are what the public measurements give."""

from statistics import median

import numpy as np
import pytest

from joulecast.calibrate.null_model import OPERATOR_ROOFLINE_SHARE, STEP_PEAK_SHARE
from joulecast.calibrate.operator_validation import validate_operators
from joulecast.calibrate.runs import RunsFile, load_runs
from joulecast.calibrate.validation import validate

#: Runs of timm, each of which is traced.
N_TIMM = 20


@pytest.mark.slow
def test_the_step_share_is_the_median_over_sources(shared_data):
    pytest.importorskip("timm")
    file = load_runs(shared_data / "runs.csv")
    timm = [run for run in file.runs if run.text("model").startswith("timm/")]
    few = [run for run in file.runs if run not in timm] + timm[
        :: len(timm) // N_TIMM
    ]  # tracing all takes an hour
    compared = validate(RunsFile(columns=file.columns, runs=tuple(few))).compared
    times = compared.rows((compared.quantity == "step_time_s") & ~compared.suspect)
    shares = times.null * STEP_PEAK_SHARE / times.measured
    by_source = [float(np.median(shares[times.source == s])) for s in np.unique(times.source)]
    assert median(by_source) == pytest.approx(STEP_PEAK_SHARE, abs=0.005)


def test_the_operator_share_is_the_median_over_kinds(shared_data):
    compared = validate_operators(shared_data / "ops.parquet").compared
    latencies = compared.rows(compared.quantity == "latency_s")
    shares = latencies.null * OPERATOR_ROOFLINE_SHARE / latencies.measured
    by_kind = [float(np.median(shares[latencies.subject == k])) for k in np.unique(latencies.subject)]
    assert median(by_kind) == pytest.approx(OPERATOR_ROOFLINE_SHARE, abs=0.005)


def test_operators_with_power_are_predicted_or_set_aside(shared_data):
    validation = validate_operators(shared_data / "op_power_a100.csv")
    assert len(validation.file.records) + len(validation.file.skipped) == validation.file.n_rows == 150
    assert {validation.file.columns["op"][i] for i in validation.suspect_rows} >= {"linear", "mv"}
    elementwise = next(
        e
        for e in validation.errors
        if (e.source, e.gpu, e.kind, e.quantity) == ("*", "*", "elementwise", "latency_s")
    )
    assert elementwise.mean <= 0.15

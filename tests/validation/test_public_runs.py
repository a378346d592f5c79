"""Predictions against public measurements; each tolerance stands here, beside what it is of.

Skips where the folder of measurements is absent.
"""

import pytest

from joulecast.calibrate.comparisons import ErrorSummary
from joulecast.calibrate.runs import RunsFile, load_runs
from joulecast.calibrate.validation import Validation, validate
from joulecast.workload.models import resolve_model

NEUSIGHT = "NeuSight ASPLOS'25 labels"
WILLGPAIK = "willgpaik/pytorch-ddp-scaling-benchmark"
TIMM = "huggingface/pytorch-image-models results"

#: (source, quantity, statistic, tolerance)
TOLERANCES = [
    (NEUSIGHT, "step_time_s", "mean", 0.10),
    (WILLGPAIK, "step_time_s", "mean", 0.10),
    (WILLGPAIK, "mean_power_w", "mean", 0.10),
    (WILLGPAIK, "peak_memory_bytes", "max", 0.03),
]


def of_sources(file: RunsFile, *sources: str) -> RunsFile:
    return RunsFile(columns=file.columns, runs=tuple(run for run in file.runs if run.source in sources))


def over_all_gpus(validation: Validation, source: str, quantity: str) -> ErrorSummary:
    (summary,) = (e for e in validation.errors if (e.source, e.gpu, e.quantity) == (source, "*", quantity))
    return summary


@pytest.fixture(scope="module")
def validations() -> dict[str, Validation]:
    return {}


@pytest.fixture
def validation_of(shared_data, validations):
    """Return a caller that validates the rows of one source, once."""

    def call(source: str) -> Validation:
        if source not in validations:
            validations[source] = validate(of_sources(load_runs(shared_data / "runs.csv"), source))
        return validations[source]

    return call


@pytest.mark.parametrize(("source", "quantity", "statistic", "tolerance"), TOLERANCES)
def test_error_stays_within_its_tolerance(validation_of, source, quantity, statistic, tolerance):
    summary = over_all_gpus(validation_of(source), source, quantity)
    assert getattr(summary, statistic) <= tolerance, summary


def sampled(file: RunsFile) -> RunsFile:
    """Return every 16th timm model, in alphabetical order: tracing all takes an hour."""
    names = sorted({run.text("model") for run in file.runs if run.source == TIMM})[::16]
    return RunsFile(
        columns=file.columns,
        runs=tuple(run for run in file.runs if run.source == TIMM and run.text("model") in names),
    )


@pytest.mark.slow
def test_timm_breadth(shared_data):
    pytest.importorskip("timm")
    validation = validate(sampled(load_runs(shared_data / "runs.csv")))
    assert validation.n_predicted == len(validation.rows) >= 36
    assert over_all_gpus(validation, TIMM, "step_time_s").median <= 0.20


def test_every_row_but_those_split_across_gpus_is_predicted(shared_data):
    file = load_runs(shared_data / "runs.csv")
    packaged = RunsFile(columns=file.columns, runs=tuple(run for run in file.runs if run.source != TIMM))
    validation = validate(packaged)

    skipped = [row for row in validation.rows if row.prediction is None]
    assert {row.run.text("parallel") for row in skipped} == {"tp4", "pp4_1"}
    assert all("not modelled yet" in row.skipped_reason for row in skipped)
    # Every timm row is a model that a test of its own builds.
    assert len(file.runs) - len(skipped) >= 0.97 * len(file.runs)
    for run in file.runs:
        if run.source == TIMM:
            resolve_model(run.text("model"))

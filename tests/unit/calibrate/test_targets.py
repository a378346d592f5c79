from math import isnan, nan

import numpy as np
import pytest

from joulecast.calibrate import targets
from joulecast.calibrate.comparisons import comparisons_of
from joulecast.calibrate.held_out import HeldOutPrediction
from joulecast.calibrate.targets import (
    TARGETS,
    least_coverage,
    line_cells,
    range_text,
    slow_downs,
    target_lines,
    value_text,
)
from joulecast.calibrate.validation import Validation

ZEUS = "ml-energy/zeus NSDI'23 trace"


def a_record(**changes):
    return {
        **{"key": "a", "source": ZEUS, "gpu": "a40", "subject": "m", "quantity": "step_time_s", "group": "g"},
        **{"n_gpus": 1.0, "power_limit_w": 300.0, "suspect": False},
        **{"measured": 1.0, "predicted": 1.0, "low": 0.5, "high": 2.0, "null": 3.0},
        **changes,
    }


def limits(*rows):
    """Return rows of one group from (limit, measured, predicted)."""
    return [
        a_record(key=f"k{w}", power_limit_w=float(w), measured=m, predicted=p, low=0.5 * p, high=2 * p)
        for w, m, p in rows
    ]


def validation_of(records) -> Validation:
    return Validation(
        columns=(), rows=(), compared=comparisons_of(records), errors=(), errors_with_suspect=()
    )


def line_of(name: str, records, held_out=()):
    lines = target_lines(validation_of(records), held_out=held_out)
    return next(line for line in lines if line.name == name)


RECORDS = limits((100, 4.0, 6.0), (200, 1.5, 3.3), (300, 1.0, 2.0))


def test_slow_downs_are_relative_to_the_highest_limit():
    found = slow_downs(comparisons_of(RECORDS[::-1]))
    assert found.measured.tolist() == [1.5, 4.0]
    assert found.predicted.tolist() == [pytest.approx(1.65), 3.0]
    assert found.null.tolist() == [1.0, 1.0]


def test_the_lowest_limit_stands_apart():
    line = line_of("Zeus slow-down by the limit", RECORDS)
    assert (line.n, line.value) == (1, pytest.approx(0.1))
    assert line.null == pytest.approx(1 - 1 / 1.5)
    assert line.reached_in_sample is False
    lowest = line_of("Zeus slow-down at the lowest limit", RECORDS)
    assert (lowest.n, lowest.value) == (1, pytest.approx(0.25))
    assert lowest.target_in_sample is None


def test_suspect_rows_count_in_their_own_column_only():
    doubted = a_record(key="z", quantity="mean_power_w", measured=1.0, predicted=2.0, suspect=True)
    line = line_of("Zeus power", [a_record(quantity="mean_power_w", predicted=1.04), doubted])
    assert (line.n, line.value) == (1, pytest.approx(0.04))
    assert line.reached_in_sample
    assert line.with_suspect == pytest.approx(0.52)


def test_held_out_rows_have_their_own_number():
    left_out = HeldOutPrediction(
        **{"key": "a", "source": ZEUS, "gpu": "a40", "subject": "m", "group_left_out": "a40"},
        **{"kind": "gpu", "quantity": "mean_power_w", "measured": 1.0, "predicted": 1.07},
        **{"low": 0.9, "high": 1.2},
    )
    line = line_of("Zeus power", [a_record(quantity="mean_power_w")], [left_out])
    assert line.held_out == pytest.approx(0.07)
    assert line.reached_held_out
    assert isnan(line_of("Zeus power", [a_record(quantity="mean_power_w")]).held_out)


def test_gpus_of_a_job_are_told_apart():
    records = [
        a_record(key=str(n), source="lambdal/deeplearning-benchmark", n_gpus=n, predicted=1 + n / 100)
        for n in (1.0, 2.0, 8.0, 16.0)
    ]
    assert line_of("lambda time, 1 GPU", records).n == 1
    assert line_of("lambda time, 2-8 GPUs", records).value == pytest.approx(0.05)


def test_least_coverage_leaves_out_what_is_too_few():
    many = [a_record(key=str(i), source="s", high=2.0 if i else 0.9) for i in range(8)]
    few = [a_record(key="x", source="t", high=0.9)]
    assert least_coverage(comparisons_of(many + few)) == pytest.approx(7 / 8)
    assert isnan(least_coverage(comparisons_of(few)))


def test_operators_are_no_runs():
    records = [a_record(), a_record(key="op0", subject="gemm", quantity="mean_power_w", high=0.9)]
    line = line_of("intervals of all runs", records)
    assert (line.n, line.value) == (1, 1.0)


def test_a_file_without_a_source_leaves_its_lines_open():
    lines = target_lines(validation_of([]))
    assert len(lines) == len(TARGETS)
    assert all(isnan(line.value) and line.reached_in_sample is None for line in lines)
    assert all(len(line_cells(line)) == len(targets.LINE_HEADS) for line in lines)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (None, "-"),
        ((0.0, 0.06), "<= 6 %"),
        ((0.85, 0.95), "85-95 %"),
        ((0.75, 1.0), ">= 75 %"),
        ((1.0, 1.5), "<= 1.5"),
    ],
)
def test_ranges_as_text(wanted, text):
    assert range_text(wanted) == text


def test_values_are_written_as_their_target():
    assert value_text(0.0612, (0.0, 0.06)) == "6.1 %"
    assert value_text(1.4142, (1.0, 1.5)) == "1.41"
    assert value_text(nan, None) == "-"


def test_published_figures_belong_to_a_line():
    names = {target.name for target in TARGETS}
    assert set(targets.PUBLISHED) <= names


def test_every_target_is_a_range():
    for target in TARGETS:
        for wanted in (target.in_sample, target.held_out):
            assert wanted is None or np.all(np.diff(wanted) > 0)
        assert target.held_out is not None

import numpy as np
import pytest

from joulecast.calibrate.comparisons import (
    Comparisons,
    comparisons_of,
    error_summaries,
    held_out_comparisons,
    overall,
    unit_warnings,
)
from joulecast.calibrate.held_out import HeldOutPrediction


def a_record(**changes):
    return {
        **{"key": "a", "source": "s", "gpu": "t4", "subject": "m", "quantity": "step_time_s", "group": ""},
        **{"n_gpus": 1.0, "power_limit_w": np.nan, "suspect": False},
        **{"measured": 1.0, "predicted": 1.1, "low": 0.9, "high": 1.3, "null": 2.0},
        **changes,
    }


def compared(*changes) -> Comparisons:
    return comparisons_of([a_record(**change) for change in changes])


def test_errors_by_hand_beside_the_null_model():
    found = error_summaries(compared({}, {"predicted": 0.5, "low": 0.4, "high": 0.6, "null": 0.7}))
    (summary,) = overall(found)
    assert (summary.n, summary.mean, summary.median) == (2, pytest.approx(0.3), pytest.approx(0.3))
    assert summary.bias == pytest.approx((0.1 - 0.5) / 2)
    assert summary.interval_coverage == 0.5
    assert (summary.null_mean, summary.null_median) == (pytest.approx(0.65), pytest.approx(0.65))


def test_the_null_model_counts_where_it_predicts():
    (summary,) = overall(error_summaries(compared({"null": np.nan})))
    assert summary.null_mean is None
    assert summary.null_median is None


def test_kinds_are_told_apart_on_demand():
    rows = compared({"subject": "gemm"}, {"subject": "softmax", "gpu": "v100"})
    assert {s.kind for s in error_summaries(rows)} == {"*"}
    kinds = {(s.gpu, s.kind) for s in error_summaries(rows, by_kind=True) if s.source == "s"}
    assert kinds == {
        *(("*", "*"), ("*", "gemm"), ("*", "softmax")),
        *(("t4", "*"), ("t4", "gemm"), ("v100", "*"), ("v100", "softmax")),
    }


def test_nothing_compared_gives_no_error():
    assert error_summaries(compared()) == ()


@pytest.mark.parametrize(("factor", "said"), [(1e3, "1000 times"), (1e-3, "0.001 times"), (3.0, None)])
def test_units_that_look_wrong_by_a_prefix_are_named(factor, said):
    lines = unit_warnings(compared({"measured": factor}, {"measured": 1.2 * factor}))
    assert len(lines) == (0 if said is None else 1)
    if said:
        assert said in lines[0]
        assert "step_time_s of s" in lines[0]
        assert "seconds" in lines[0]


def test_held_out_rows_replace_the_prediction_and_drop_the_rest():
    rows = compared({"key": "a"}, {"key": "b", "measured": 4.0}, {"key": "b", "quantity": "mean_power_w"})
    left_out = HeldOutPrediction(
        **{"key": "b", "source": "s", "gpu": "t4", "subject": "m", "group_left_out": "t4", "kind": "gpu"},
        **{"quantity": "step_time_s", "measured": 4.0, "predicted": 5.0, "low": 3.0, "high": 6.0},
    )
    found = held_out_comparisons(rows, [left_out], "gpu")
    assert len(found) == 1
    assert found.error[0] == pytest.approx(0.25)
    assert found.inside[0]
    assert found.null[0] == 2.0
    assert len(held_out_comparisons(rows, [left_out], "family")) == 0

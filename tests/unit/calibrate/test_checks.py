import numpy as np
import pytest

from joulecast.calibrate.checks import (
    check_enough,
    check_measured,
    check_units,
    contradictions,
    one_gpu,
    unknown_columns,
)
from joulecast.calibrate.runs import load_runs
from joulecast.errors import RunsError


@pytest.fixture
def runs(tmp_path):
    def make(*rows, header="model,gpu,batch_per_gpu,step_time_s,mean_power_w"):
        path = tmp_path / "runs.csv"
        path.write_text("\n".join((header, *rows)) + "\n")
        return load_runs(path)

    return make


@pytest.mark.parametrize(
    ("column", "measured", "predicted", "message"),
    [
        ("step_time_s", 104.0, 0.1, "step_time_s of 104 in line 2 looks like milliseconds"),
        ("step_time_s", 104_000.0, 0.1, "looks like microseconds"),
        (
            "mean_power_w",
            0.25,
            240.0,
            "of 0.25 in line 2 looks like kilowatts: it is about 1/960 of",
        ),
        (
            "mean_power_w",
            250_000.0,
            240.0,
            "milliwatts: it is about 1,042 times what is predicted",
        ),
        (
            "peak_memory_bytes",
            24_000.0,
            24_500 * 1024.0**2,
            "of 24000 in line 2 looks like MiB",
        ),
        ("peak_memory_bytes", 24.0, 24.5 * 1024.0**3, "looks like GiB"),
    ],
)
def test_units_off_by_a_thousand_are_named(runs, column, measured, predicted, message):
    file = runs(f"resnet50,t4,32,{measured}", header=f"model,gpu,batch_per_gpu,{column}")
    with pytest.raises(RunsError) as caught:
        check_units(file.runs, column, np.array([predicted]))
    assert message in str(caught.value)


def test_a_prediction_that_is_wrong_by_four_is_no_wrong_unit(runs):
    file = runs("resnet50,t4,32,0.4,60", "resnet50,t4,64,0.1,250")
    check_units(file.runs, "step_time_s", np.array([0.1, 0.4]))
    check_units(file.runs, "mean_power_w", np.array([240.0, 70.0]))


def test_many_wrong_lines_are_counted(runs):
    file = runs(*(f"resnet50,t4,{b},{b}.0,60" for b in range(32, 40)))
    with pytest.raises(RunsError, match=r"line 2, 3, 4, 5, 6 and 3 more looks like milliseconds"):
        check_units(file.runs, "step_time_s", np.full(8, 0.035))


def test_unknown_columns_are_named_with_what_may_be_meant(runs):
    file = runs("resnet50,t4,32,104,a", header="model,gpu,batch_per_gpu,step_time_ms,colour")
    texts = [str(notice) for notice in unknown_columns(file)]
    assert texts == [
        "unknown-column: 'step_time_ms' is not read: did you mean step_time_s?",
        "unknown-column: 'colour' is not read",
    ]
    with pytest.raises(RunsError, match="no run has a step_time_s or a mean_power_w"):
        check_measured(file)


def test_contradictory_rows_are_named_by_line(runs):
    file = runs("resnet50,t4,32,0.1,60", "resnet50,t4,32,0.13,60", "resnet50,t4,64,0.3,60")
    (notice,) = contradictions(file.runs)
    assert str(notice).startswith(
        "contradictory-rows: lines 2, 3 are of one configuration and take 0.1 to 0.13"
    )
    assert contradictions(runs("resnet50,t4,32,0.1,60", "resnet50,t4,32,0.12,60").runs) == []


def test_one_card_is_a_notice_and_two_are_none():
    (notice,) = one_gpu(["t4", "t4"])
    assert notice.name == "one-gpu"
    assert "covers this card alone" in notice.text
    assert one_gpu(["t4", "l4"]) == []


def test_too_few_configurations_say_how_many_are_needed_and_why_others_fell_out():
    check_enough(3, {})
    with pytest.raises(RunsError, match=r"2 configurations .* at least 3: .*\(1 left out, r7: unknown model"):
        check_enough(2, {"r7": "unknown model"})

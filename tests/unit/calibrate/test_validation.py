import csv
import os
from dataclasses import fields, replace

import pytest

from joulecast.calibrate import validation
from joulecast.calibrate.comparisons import ErrorSummary, error_summaries
from joulecast.calibrate.runs import Run, RunsFile
from joulecast.calibrate.validation import (
    ValidatedRun,
    check_writable,
    run_comparisons,
    save_predictions,
    scenario_of,
    validate,
)
from joulecast.errors import TableError, UsageError
from joulecast.model.parameters import initial_parameters
from joulecast.results import Origin, Quantity


def a_run(line=2, measured=None, numbers=None, **cells) -> Run:
    filled = {"model": "bert", "gpu": "t4", "batch_per_gpu": "8", "source": "bench", **cells}
    return Run(
        line=line, cells=filled, numbers={"batch_per_gpu": 8.0, **(numbers or {})}, measured=measured or {}
    )


def a_time(value: float) -> Quantity:
    return Quantity(value=value, low=value * 0.9, high=value * 1.1, origin=Origin.CALIBRATED)


def a_row(make_prediction, predicted: float, measured: float, **cells) -> ValidatedRun:
    run = a_run(measured={"step_time_s": measured}, **cells)
    return ValidatedRun(run=run, prediction=make_prediction(step_time_s=a_time(predicted)), skipped_reason="")


def test_errors_by_hand(make_prediction):
    rows = [
        a_row(make_prediction, 1.1, 1.0),  # +10 %, measured at the edge: inside
        a_row(make_prediction, 0.5, 1.0),  # -50 %, outside
        a_row(make_prediction, 1.2, 1.0, gpu="v100"),  # +20 %, outside
    ]
    summaries = {(s.source, s.gpu): s for s in error_summaries(run_comparisons(rows))}
    assert set(summaries) == {
        ("*", "*"),
        ("*", "t4"),
        ("*", "v100"),
        ("bench", "*"),
        ("bench", "t4"),
        ("bench", "v100"),
    }
    overall = summaries["*", "*"]
    assert overall.quantity == "step_time_s"
    assert overall.n == 3
    assert overall.mean == pytest.approx(0.8 / 3)
    assert overall.median == pytest.approx(0.2)
    assert overall.p90 == pytest.approx(0.2 + 0.8 * 0.3)  # linear between 0.2 and 0.5
    assert overall.max == pytest.approx(0.5)
    assert overall.bias == pytest.approx(0.1)
    assert overall.interval_coverage == pytest.approx(1 / 3)
    assert summaries["*", "v100"].bias == pytest.approx(0.2)


def test_device_meters_compare_with_the_process(make_prediction):
    prediction = make_prediction()
    torch_run = a_run(memory_meter="torch.max_memory_allocated")
    device_run = a_run(memory_meter="NVML device used")
    rows = [
        ValidatedRun(run=run, prediction=prediction, skipped_reason="") for run in (torch_run, device_run)
    ]
    predicted = [row.predicted("peak_memory_bytes") for row in rows]
    assert predicted == [prediction.allocated_bytes, prediction.process_bytes]


@pytest.mark.parametrize(
    ("cells", "numbers", "expected"),
    [
        (
            {},
            {},
            {"precision": "fp32", "mode": "train", "optimizer": None, "attention": None, "parallel": None},
        ),
        ({"optimizer": "unknown", "attention": "unknown"}, {}, {"optimizer": None, "attention": None}),
        ({"memory_format": "channels_last"}, {}, {"memory_format": "channels_last"}),
        ({"parallel": "dp4"}, {"n_gpus": 4.0}, {"parallel": "ddp", "n_gpus": 4}),
        ({"parallel": "none"}, {"n_gpus": 1.0, "seq_len": 128.0}, {"n_gpus": 1, "seq_len": 128}),
        ({}, {"power_limit_w": 5.0, "n_sms": 98.0}, {"power_limit_w": 5.0, "n_sms": 98, "force": True}),
    ],
)
def test_what_a_row_ran(cells, numbers, expected):
    scenario = scenario_of(a_run(numbers=numbers, **cells))
    assert {name: getattr(scenario, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("cells", "numbers", "reason"),
    [
        ({"parallel": "tp4"}, {}, "tensor parallelism"),
        ({"parallel": "pp4_1"}, {}, "pipeline parallelism"),
        ({"parallel": "magic"}, {}, "unknown kind of parallelism"),
        ({"gpu": ""}, {}, "gpu is empty"),
        ({"precision": "fp12"}, {}, "unknown precision"),
        ({"optimizer": "adam9"}, {}, "unknown optimizer"),
        ({}, {"seq_len": 12.5}, "not a whole number"),
    ],
)
def test_what_cannot_be_predicted_says_why(cells, numbers, reason):
    with pytest.raises(UsageError, match=reason):
        scenario_of(a_run(numbers=numbers, **cells))


@pytest.fixture
def file_of_runs(make_prediction, monkeypatch) -> RunsFile:
    """Return three rows: one predicted, one that cannot be, one suspect and far off."""

    def predict(scenario, _parameters):
        if scenario.gpu == "broken":
            raise TableError("two\nlines")
        return make_prediction(step_time_s=a_time(1.0), flags=("odd",))

    monkeypatch.setattr(validation, "predict_scenario", predict)
    runs = [
        a_run(measured={"step_time_s": 1.05}, run_id="good", colour="red"),
        a_run(run_id="bad", gpu="broken", colour="green"),
        a_run(measured={"step_time_s": 9.0}, run_id="odd", suspect="slow disk", colour="blue"),
    ]
    columns = ("run_id", "model", "gpu", "batch_per_gpu", "source", "suspect", "colour")
    return RunsFile(columns=columns, runs=tuple(replace(run, line=i) for i, run in enumerate(runs)))


def test_validation_document(file_of_runs):
    document = validate(file_of_runs, parameters=initial_parameters()).to_dict()
    assert document["schema"] == "joulecast/validation/1"
    assert (document["rows"], document["predicted"], document["suspect"], document["flagged"]) == (3, 2, 1, 2)
    assert document["skipped"] == [{"run_id": "bad", "reason": "two lines"}]
    overall = document["errors"][0]
    assert list(overall) == [f.name for f in fields(ErrorSummary)]
    assert overall["null_mean"] > 0
    assert (overall["source"], overall["gpu"], overall["n"]) == ("*", "*", 1)
    assert document["errors_with_suspect"][0]["n"] == 2


def test_predictions_file_is_the_input_row_for_row(file_of_runs, tmp_path):
    path = tmp_path / "pred.csv"
    save_predictions(validate(file_of_runs, parameters=initial_parameters()), path)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["colour"] for row in rows] == ["red", "green", "blue"]
    assert float(rows[0]["predicted_step_time_s"]) == 1.0
    assert float(rows[0]["low_mean_power_w"]) < float(rows[0]["high_mean_power_w"])
    assert rows[1]["predicted_step_time_s"] == ""
    assert rows[1]["skipped_reason"] == "two lines"
    assert list(rows[0])[-1] == "skipped_reason"
    assert [entry.name for entry in tmp_path.iterdir()] == ["pred.csv"]


def test_predictions_file_can_be_validated_again(file_of_runs, tmp_path):
    path = tmp_path / "pred.csv"
    save_predictions(validate(file_of_runs, parameters=initial_parameters()), path)
    again = validate(path, parameters=initial_parameters())
    save_predictions(again, path)
    with path.open(newline="") as file:
        header = next(csv.reader(file))
    assert len(header) == len(set(header))


def test_a_failure_while_writing_leaves_the_old_file(file_of_runs, tmp_path, monkeypatch):
    path = tmp_path / "pred.csv"
    path.write_text("old")
    validated = validate(file_of_runs, parameters=initial_parameters())
    monkeypatch.setattr(validation.os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(UsageError, match="disk full"):
        save_predictions(validated, path)
    assert path.read_text() == "old"


def test_a_place_that_cannot_be_written_is_refused_early(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        check_writable(tmp_path / "absent" / "pred.csv")
    with pytest.raises(UsageError, match="is a folder"):
        check_writable(tmp_path)
    check_writable(tmp_path / "pred.csv")
    assert os.listdir(tmp_path) == []


def test_frame(file_of_runs):
    pytest.importorskip("pandas")
    assert len(validate(file_of_runs, parameters=initial_parameters()).to_frame()) == 3

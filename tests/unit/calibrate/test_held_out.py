from dataclasses import replace

import pytest

from joulecast.calibrate.held_out import COLUMNS, HeldOutPrediction, load_held_out, save_held_out
from joulecast.errors import RunsError, UsageError

ROW = HeldOutPrediction(
    key="r1",
    source="bench, a",
    gpu="t4",
    subject="torchvision/resnet50",
    group_left_out="t4",
    kind="gpu",
    quantity="step_time_s",
    measured=0.125,
    predicted=0.130001,
    low=0.1,
    high=0.2,
)


def test_round_trip_sorts_rows(tmp_path):
    path = tmp_path / "held_out.csv"
    rows = [replace(ROW, kind="gpu"), replace(ROW, kind="family", group_left_out="resnet")]
    save_held_out(rows, path)
    assert load_held_out(path) == [rows[1], rows[0]]
    assert [entry.name for entry in tmp_path.iterdir()] == ["held_out.csv"]


@pytest.mark.parametrize("change", [{"kind": "row"}, {"low": 0.0}, {"predicted": float("nan")}])
def test_a_row_that_cannot_be_is_refused(change):
    with pytest.raises(RunsError):
        replace(ROW, **change)


def test_a_file_that_cannot_be_is_refused_with_its_line(tmp_path):
    path = tmp_path / "held_out.csv"
    save_held_out([ROW], path)
    path.write_text(path.read_text().replace("0.125", "fast"))
    with pytest.raises(RunsError, match="line 2"):
        load_held_out(path)
    path.write_text(",".join(COLUMNS[:-1]) + "\n")
    with pytest.raises(RunsError, match="lacks the columns high"):
        load_held_out(path)
    with pytest.raises(UsageError, match="no such file"):
        load_held_out(tmp_path / "none.csv")


def test_a_folder_that_is_not_there_is_one_error(tmp_path):
    with pytest.raises(UsageError, match="cannot write"):
        save_held_out([ROW], tmp_path / "none" / "held_out.csv")

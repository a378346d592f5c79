import pytest

from joulecast.calibrate.runs import load_runs
from joulecast.errors import RunsError, UsageError

HEADER = "run_id,model,gpu,batch_per_gpu,step_time_s,memory_meter,suspect,colour\n"


def written(tmp_path, text: str | bytes):
    path = tmp_path / "runs.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_rows_keep_every_cell(tmp_path):
    file = load_runs(
        written(tmp_path, HEADER + 'r1,resnet50,t4,32.0,0.25,DCGM framebuffer used,,"red, green"\n')
    )
    (run,) = file.runs
    assert file.columns[-1] == "colour"
    assert run.cells["colour"] == "red, green"
    assert run.numbers == {"batch_per_gpu": 32.0}
    assert run.measured == {"step_time_s": 0.25}
    assert run.is_device_memory
    assert not run.is_suspect
    assert (run.run_id, run.source, run.gpu) == ("r1", "-", "t4")


def test_empty_cells_are_not_measured(tmp_path):
    (run,) = load_runs(written(tmp_path, HEADER + ",resnet50,t4,32,,,slow,\n")).runs
    assert run.measured == {}
    assert run.is_suspect
    assert run.run_id == "line 2"


@pytest.mark.parametrize("cell", ["nan", "NaN", "inf", "-1", "0", "fast"])
def test_a_measurement_that_cannot_be_is_refused(tmp_path, cell):
    path = written(tmp_path, HEADER + f"r1,resnet50,t4,32,{cell},,,\n")
    with pytest.raises(RunsError, match=r"line 2: step_time_s is .* not a number above 0"):
        load_runs(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (HEADER, "no rows"),
        ("a,b\n1,2\n", "lacks the column model, gpu, batch_per_gpu"),
        ("model,gpu,batch_per_gpu,gpu\nm,g,1,g\n", "gpu more than once"),
        (HEADER + "r1,resnet50,t4\n", "line 2: 3 cells under 8 columns"),
        (HEADER + 'r1,"resnet50,t4,32,1,,,\n', "not a CSV file"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", "not a text file"),
    ],
)
def test_a_corrupt_file_is_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(RunsError, match=message) as caught:
        load_runs(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_no_such_file(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        load_runs(tmp_path / "absent.csv")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(RunsError, match="cannot read"):
        load_runs(tmp_path)


def test_spreadsheet_byte_order_mark_is_no_part_of_the_header(tmp_path):
    file = load_runs(written(tmp_path, b"\xef\xbb\xbfmodel,gpu,batch_per_gpu\nresnet50,t4,1\n"))
    assert file.columns[0] == "model"

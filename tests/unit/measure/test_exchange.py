import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from joulecast.errors import RunsError, UsageError
from joulecast.measure.exchange import RunsFormat, load_runs_file, runs_csv, runs_json_lines
from joulecast.measure.stored import RUN_COLUMNS, StoredRun
from joulecast.results import Measurement, RunStatus

MakeRun = Callable[..., Measurement]

#: As CodeCarbon 3.3.2 writes it: two states of one run, a run without a GPU, one whose GPU it could not read.
EMISSIONS = (Path(__file__).parents[2] / "data" / "emissions.csv").read_text()


def written(folder: Path, text: str, name: str = "runs.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


class TestCsv:
    def test_public_runs_come_back_cell_for_cell(self, shared_data: Path, tmp_path: Path) -> None:
        loaded = load_runs_file(shared_data / "runs.csv")
        assert loaded.left_out == ()
        with (shared_data / "runs.csv").open(newline="") as file:
            before = list(csv.DictReader(file))
        after = list(csv.DictReader(io.StringIO(runs_csv(loaded.runs))))
        assert list(after[0]) == list(before[0]) == list(RUN_COLUMNS)
        assert [list(map(meaning, row.values())) for row in after] == [
            list(map(meaning, row.values())) for row in before
        ]

    def test_a_measurement_has_exactly_the_columns(self, make_run: MakeRun) -> None:
        assert tuple(make_run().to_row()) == tuple(RUN_COLUMNS)

    def test_a_row_without_an_id_gets_the_same_one_each_time(self, tmp_path: Path) -> None:
        path = written(tmp_path, "model,gpu,batch_per_gpu\nresnet50,a100,32\nresnet50,a100,64\n")
        first, second = load_runs_file(path).runs
        assert first.run_id == load_runs_file(path).runs[0].run_id != second.run_id

    def test_columns_that_runs_do_not_have_are_named(self, tmp_path: Path) -> None:
        path = written(tmp_path, "model,gpu,batch_per_gpu,mood\nresnet50,a100,32,good\n")
        assert load_runs_file(path).left_out == ("mood",)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("gpu,batch_per_gpu\na,1\n", "lacks the column model"),
            ("model,gpu,batch_per_gpu\n", "holds no runs"),
            ("", "lacks the column"),
            ("model,gpu,batch_per_gpu\nm,g\n", "line 2: 2 cells under 3 columns"),
            ("model,gpu,batch_per_gpu\nm,g,nan\n", "line 2: batch_per_gpu is 'nan', not a number above 0"),
            ("model,gpu,batch_per_gpu\nm,g,-1\n", "line 2: batch_per_gpu is '-1'"),
            ("model,gpu,batch_per_gpu,n_gpus\nm,g,1,1.5\n", "n_gpus is '1.5', not a whole number above 0"),
            ("model,gpu,batch_per_gpu,compile\nm,g,1,maybe\n", "compile is 'maybe', not True or False"),
            ('model,gpu,batch_per_gpu\nm,"g,1\n', "is not a CSV file: line 2"),
        ],
    )
    def test_a_corrupt_file_is_refused(self, text: str, message: str, tmp_path: Path) -> None:
        with pytest.raises(RunsError, match=message):
            load_runs_file(written(tmp_path, text))

    def test_files_that_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no such file of runs"):
            load_runs_file(tmp_path / "nowhere.csv")
        with pytest.raises(RunsError, match="cannot read"):
            load_runs_file(tmp_path)
        (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(RunsError, match="not a text file in UTF-8"):
            load_runs_file(tmp_path / "binary")


def meaning(cell: str) -> float | str:
    """Return the number that a cell states, or its text."""
    try:
        return float(cell)
    except ValueError:
        return cell


class TestJsonLines:
    def test_nothing_is_lost(self, tmp_path: Path, make_run: MakeRun) -> None:
        runs = (
            StoredRun.of(make_run("a", flags=("a flag",))),
            StoredRun.of(make_run("b"), source="another meter"),
            StoredRun(row=make_run("c").to_row() | {"suspect": "the fan was off"}),
        )
        path = written(tmp_path, runs_json_lines(runs))
        assert load_runs_file(path).runs == runs

    def test_records_alone_are_taken_too(self, tmp_path: Path, make_run: MakeRun) -> None:
        run = make_run()
        path = written(tmp_path, json.dumps(run.to_dict()) + "\n\n")
        assert load_runs_file(path).runs == (StoredRun.of(run),)

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("{", "line 1: "),
            ('{"schema": "joulecast/measurement/2"}', "line 1: a record of 'joulecast/measurement/2'"),
            ('{"schema": "joulecast/run/1"}', "line 1: a run without a row"),
            ('{"schema": "joulecast/run/1", "row": {"run_id": "a", "n_gpus": "two"}}', "n_gpus is 'two'"),
        ],
    )
    def test_a_corrupt_line_is_refused(self, line: str, message: str, tmp_path: Path) -> None:
        with pytest.raises(RunsError, match=message):
            load_runs_file(written(tmp_path, line + "\n"))


class TestCodeCarbon:
    def test_the_last_state_of_a_run_counts(self, tmp_path: Path) -> None:
        with_gpu, without, unread = load_runs_file(written(tmp_path, EMISSIONS)).runs
        run = with_gpu.measurement
        assert run is not None
        assert (run.run_id, run.duration_s, run.started_at) == ("aaaa", 20.0, "2026-01-31T12:00:00")
        assert (run.gpu, run.n_gpus, run.status) == ("a100-sxm4-40gb", 2, RunStatus.COMPLETE)
        # 0.002 kWh, of which a PUE of 2 is half: 3600 J, in 20 s on two cards
        assert run.gpu_energy_j.value == pytest.approx(3600)
        assert run.mean_power_w.value == pytest.approx(90)
        assert with_gpu.row["source"] == "CodeCarbon"
        assert run.versions == {"python": "3.11.7", "codecarbon": "3.3.2"}
        assert without.run_id == "bbbb"
        assert unread.run_id == "cccc"

    def test_what_it_does_not_know_is_absent_with_the_reason(self, tmp_path: Path) -> None:
        with_gpu, without, unread = (r.measurement for r in load_runs_file(written(tmp_path, EMISSIONS)).runs)
        assert with_gpu is not None
        assert without is not None
        assert unread is not None
        assert with_gpu.step_time_s.reason == "CodeCarbon counts no steps"
        assert "metered or guessed" in with_gpu.cpu_energy_j.reason
        assert with_gpu.dram_energy_j.value is None
        assert "CodeCarbon states no intervals" in with_gpu.flags
        assert without.gpu_energy_j.reason == "CodeCarbon saw no GPU"
        assert "0 kWh" in unread.gpu_energy_j.reason
        assert any("360 J (metered or guessed)" in note for note in with_gpu.notes)  # 0.0002 kWh / 2

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("2026-01-31T12:00:10", "noon", "line 2: timestamp is 'noon'"),
            (",bbbb,x,20.0,", ",bbbb,x,long,", "line 4: duration is 'long'"),
            (",bbbb,", ",,", "line 4: a row without a run_id"),
        ],
    )
    def test_a_corrupt_file_is_refused(self, old: str, new: str, message: str, tmp_path: Path) -> None:
        text = EMISSIONS.replace("aaaa", "a1", 1).replace(old, new)
        with pytest.raises(RunsError, match=message):
            load_runs_file(written(tmp_path, text))

    def test_the_format_may_be_said(self, tmp_path: Path) -> None:
        with pytest.raises(RunsError, match="lacks the column model"):
            load_runs_file(written(tmp_path, EMISSIONS), RunsFormat.CSV)

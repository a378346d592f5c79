import numpy as np
import pytest

from joulecast.errors import RunsError, UnknownGpuError, UnknownModelError, UsageError
from joulecast.explore import sweep as sweeping
from joulecast.explore.space import Space, scenario_of, space_of
from joulecast.explore.sweep import save_sweep, sweep
from joulecast.explore.table import BOOL_COLUMNS, COLUMNS, TEXT_COLUMNS, SweepResult, load_sweep, table_of
from joulecast.model.parameters import load_parameters
from joulecast.prediction import predict_scenario

PARAMETERS = load_parameters()


def one_by_one(space: Space) -> SweepResult:
    """Predict every configuration alone; what cannot be says why."""
    rows = []
    for configuration in space.configurations():
        try:
            found = predict_scenario(scenario_of(configuration), PARAMETERS)
        except UsageError as error:
            rows.append({"n_gpus": 1, "accumulate": 1, "skipped_reason": " ".join(str(error).split())})
            continue
        shares = {f"{bound}_time_share_frac": x for bound, x in found.time_share_by_bound.items()}
        rows.append({**found.to_row(), **shares})
    return table_of(rows)


def assert_same(found: SweepResult, expected: SweepResult) -> None:
    good = expected.predicted
    assert found.predicted.tolist() == good.tolist()
    for name in COLUMNS:
        ours, theirs = found[name][good], expected[name][good]
        if name in TEXT_COLUMNS or name in BOOL_COLUMNS:
            assert ours.tolist() == theirs.tolist(), name
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=0, err_msg=name)


@pytest.mark.parametrize(
    "values",
    [
        {
            "model": ["bert-base", "resnet50"],
            "gpu": ["a100-sxm4-40gb", "t4"],
            "precision": ["fp32", "bf16"],
            "batch_per_gpu": [1, 8, 9],
            "accumulate": [1, 2],
            "power_limit_frac": [0.2, 0.4, 0.7, 1.0],
            "n_gpus": [1, 4],
        },
        {
            "model": "bert-base",
            "gpu": ["a100-sxm4-40gb", "rtx-3090"],
            "mode": ["train", "forward"],
            "precision": "fp16-o2",
            "global_batch": [8, 64, 7],
            "n_gpus": [1, 2, 17],
            "parallel": ["default", "ddp", "none"],
            "seq_len": [128, 1000],
            "clip": True,
            "sm_clock_hz": ["default", 1.2e9, 9e9],
        },
        {
            "model": "bert-base",
            "gpu": "a100-sxm4-40gb",
            "hardware": ["default", "bandwidth=2x", "peak_bf16=+20%, l2=8e7"],
            "precision": "bf16",
            "power_limit_w": [60, 600, "default"],
            "force": [True, False],
            "optimizer": ["default", "sgd"],
            "image_size": ["default", 224],
        },
    ],
    ids=["limits", "jobs", "hardware"],
)
def test_a_sweep_is_the_predictions_of_its_configurations(values):
    space = space_of(values)
    assert_same(sweep(space, parameters=PARAMETERS), one_by_one(space))


def test_many_loads_in_one_pass_are_those_of_single_predictions():
    space = space_of({"model": "distilbert", "gpu": "t4", "batch_per_gpu": "1:40:1", "seq_len": [32, 128]})
    assert_same(sweep(space, parameters=PARAMETERS), one_by_one(space))


def test_what_cannot_be_says_why_in_the_words_of_a_prediction():
    space = space_of(
        {"model": "bert-base", "gpu": "t4", "power_limit_w": 500, "batch_per_gpu": 3, "accumulate": [1, 2]}
    )
    found, expected = sweep(space), one_by_one(space)
    assert found["skipped_reason"].tolist() == expected["skipped_reason"].tolist()
    assert np.isnan(found["step_time_s"]).all()
    assert found.to_rows()[0]["step_time_s"] is None


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"model": "bert-bse", "gpu": "t4"}, UnknownModelError),
        ({"model": "bert-base", "gpu": "t44"}, UnknownGpuError),
        ({"model": "bert-base", "gpu": "t4", "mode": "trian"}, UsageError),
        ({"model": "bert-base", "gpu": "t4", "precision": "fp31"}, UsageError),
        ({"model": "bert-base", "gpu": "t4", "hardware": "bandwith=2x"}, UsageError),
    ],
)
def test_an_unknown_value_stops_the_sweep(values, error):
    with pytest.raises(error):
        sweep(values)


SMALL = {"model": "bert-base", "gpu": "t4", "batch_per_gpu": "1:10:1", "power_limit_w": ["default", 65, 999]}


@pytest.fixture
def small_blocks(monkeypatch):
    """Cut files into blocks of 7 and passes of 3, so that a small space has several."""
    monkeypatch.setattr(sweeping, "BLOCK_SIZE", 7)
    monkeypatch.setattr(sweeping, "PASS_SIZE", 3)


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_a_file_holds_what_memory_does(small_blocks, tmp_path, ending):
    path = tmp_path / f"r{ending}"
    done = []
    assert save_sweep(SMALL, path, progress=done.append) == 30
    assert sum(done) == 30
    assert [p.name for p in tmp_path.iterdir()] == [path.name]

    kept, found = load_sweep(path), sweep(SMALL)
    for name in COLUMNS:
        np.testing.assert_array_equal(kept[name], found[name], err_msg=name)
        assert kept[name].dtype == found[name].dtype


def test_an_interrupted_sweep_goes_on_and_counts_nothing_twice(small_blocks, tmp_path):
    path = tmp_path / "r.parquet"
    evaluated = []

    def stopping(tasks):
        for n, task in enumerate(tasks):
            if n == 2:
                raise KeyboardInterrupt
            evaluated.append(task.block)
            yield task()

    def counting(tasks):
        for task in tasks:
            evaluated.append(task.block)
            yield task()

    with pytest.raises(KeyboardInterrupt):
        save_sweep(SMALL, path, spread=stopping)
    assert not path.exists()

    save_sweep(SMALL, path, spread=counting)
    assert evaluated == [0, 1, 2, 3, 4]
    assert_same(load_sweep(path), one_by_one(space_of(SMALL)))


def test_blocks_of_another_sweep_are_not_taken(small_blocks, tmp_path):
    path = tmp_path / "r.csv"

    def never(tasks):
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        save_sweep(SMALL, path, spread=never)
    with pytest.raises(UsageError, match="blocks of another interrupted sweep"):
        save_sweep({**SMALL, "n_gpus": 2}, path)


def test_files_that_are_none(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        load_sweep(tmp_path / "r.csv")
    with pytest.raises(UsageError, match="ends in"):
        save_sweep(SMALL, tmp_path / "r.xlsx")
    (tmp_path / "r.csv").write_text("model,gpu\nbert,t4\n")
    with pytest.raises(RunsError, match="it lacks gpu_name"):
        load_sweep(tmp_path / "r.csv")
    (tmp_path / "r.parquet").write_bytes(b"nothing")
    with pytest.raises(RunsError, match="not the table of a sweep"):
        load_sweep(tmp_path / "r.parquet")


def test_a_selection_keeps_every_column():
    found = sweep(SMALL)
    good = found.where(found.predicted)
    assert len(good) == 20
    assert set(good["power_limit_w"].tolist()) == {65.0, 70.0}
    assert list(good.to_frame().columns) == list(COLUMNS)


@pytest.mark.slow
def test_processes_make_the_same_file(tmp_path):
    values = {
        "model": "bert-base",
        "gpu": "a100-sxm4-40gb",
        "batch_per_gpu": "1:100:1",
        "power_limit_w": "100:400:1",
        "n_gpus": [1, 2, 4, 8],
    }
    save_sweep(values, tmp_path / "one.parquet")
    save_sweep(values, tmp_path / "two.parquet", spread=sweeping.in_processes(2))
    one, two = load_sweep(tmp_path / "one.parquet"), load_sweep(tmp_path / "two.parquet")
    assert len(two) == 100 * 301 * 4
    for name in COLUMNS:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)

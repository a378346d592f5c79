import csv
from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibrate.observations import GROUPS
from joulecast.calibrate.own import OwnOptions, calibrate_own, checkpoint_beside
from joulecast.errors import RunsError, UsageError
from joulecast.model.parameters import load_parameters, save_parameters
from joulecast.prediction import predict

START = load_parameters()
GPU = "a40"

#: What a machine of one's own is: a slow host, less bandwidth, slower products, more static power.
TRUTH = START.with_values(
    {
        "host.forward_kernel_s": 1.6 * START.values["host.forward_kernel_s"],
        "host.backward_kernel_s": 1.5 * START.values["host.backward_kernel_s"],
        "product.tensor16.efficiency": 0.75 * START.values["product.tensor16.efficiency"],
        "power.j_per_byte": 1.6 * START.values["power.j_per_byte"],
    }
)
COLUMNS = (
    *("run_id", "model", "gpu", "n_gpus", "precision", "batch_per_gpu", "memory_format"),
    *("step_time_s", "mean_power_w"),
)


def configurations(batches):
    return [
        (model, precision, batch_size)
        for model, precision in (("resnet50", "bf16"), ("resnet50", "fp32"), ("bert-base", "bf16"))
        for batch_size in batches
    ]


def rows_of(parameters, asked, noise=0.0, seed=0, gpu=GPU):
    random = np.random.default_rng(seed)
    rows = []
    for number, (model, precision, batch_size) in enumerate(asked):
        (p,) = predict(model, gpu=gpu, precision=precision, batch_size=batch_size, parameters=parameters)
        rows.append(
            {
                "run_id": f"r{number}",
                "model": model,
                "gpu": gpu,
                "n_gpus": 1,
                "precision": precision,
                "batch_per_gpu": batch_size,
                "memory_format": "contiguous",
                "step_time_s": p.step_time_s.value * np.exp(noise * random.standard_normal()),
                "mean_power_w": p.mean_power_w.value * np.exp(noise * random.standard_normal()),
            }
        )
    return rows


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def own_runs(tmp_path_factory):
    rows = rows_of(TRUTH, configurations((1, 8, 32, 128)), noise=0.01)
    return write(tmp_path_factory.mktemp("own") / "runs.csv", rows)


@pytest.fixture(scope="module")
def own(own_runs):
    return calibrate_own(own_runs, START, OwnOptions())


def mean_errors(parameters, asked):
    """Return the mean error of time and power against the truth."""
    errors = []
    for model, precision, batch_size in asked:
        options = {"gpu": GPU, "precision": precision, "batch_size": batch_size}
        (mine,), (true,) = (predict(model, parameters=s, **options) for s in (parameters, TRUTH))
        errors.append(
            [
                abs(getattr(mine, name).value / getattr(true, name).value - 1)
                for name in ("step_time_s", "mean_power_w")
            ]
        )
    return np.mean(errors, axis=0)


def test_predictions_of_configurations_not_measured_are_recovered(own):
    unseen = configurations((4, 64))
    before, after = mean_errors(START, unseen), mean_errors(own.parameters, unseen)
    assert before[0] > 0.08
    assert after[0] < 0.04
    assert after[0] < before[0] / 2
    assert after[1] < 0.03


def test_a_processor_far_from_its_guesses_is_found(tmp_path):
    far = START.with_values(
        {
            "product.vector.efficiency": 0.4,
            "convolution.vector.forward": 0.35,
            "convolution.vector.dgrad": 0.3,
            "convolution.vector.wgrad": 0.3,
            "host.forward_kernel_s": 3 * START.values["host.forward_kernel_s"],
        }
    )
    asked = [(m, "fp32", b) for m in ("resnet50", "vgg16", "distilbert", "bert-base") for b in (1, 2, 4)]
    runs = write(tmp_path / "runs.csv", rows_of(far, asked, noise=0.02, gpu="cpu"))
    own = calibrate_own(runs, START, OwnOptions())
    assert own.parameters.covered_gpus == ("cpu",)
    errors = []
    for model, batch_size in (("resnet50", 3), ("bert-base", 3), ("albert", 2)):
        options = {"gpu": "cpu", "precision": "fp32", "batch_size": batch_size}
        (mine,), (true,) = (predict(model, parameters=s, **options) for s in (own.parameters, far))
        errors.append(abs(mine.step_time_s.value / true.step_time_s.value - 1))
        assert str(mine.step_time_s.origin) == "calibrated"
    assert np.median(errors) < 0.08, errors


def test_every_stage_says_what_it_gained_and_only_gains_are_kept(own):
    stages = own.parameters.stages
    assert [stage.name for stage in stages] == ["scales", *GROUPS]
    for stage in stages:
        assert stage.kept == (stage.held_out_after < stage.held_out_before), stage
        assert stage.reason
    assert stages[-1].parameters == (), "one GPU shows no communication"
    kept = {name for stage in stages if stage.kept for name in stage.parameters}
    assert set(own.changed) <= kept
    assert own.left["comm.link_ratio"] == "no measured value depends on it"


def test_the_set_covers_the_card_of_the_runs_and_says_so(own):
    assert own.parameters.covered_gpus == (GPU,)
    assert {notice.name for notice in own.notices} == {"one-gpu"}
    (here,) = predict("resnet50", gpu=GPU, precision="bf16", parameters=own.parameters)
    (there,) = predict("resnet50", gpu="t4", precision="fp16", parameters=own.parameters)
    assert str(here.step_time_s.origin) == "calibrated"
    assert str(there.step_time_s.origin) == "datasheet"


def test_a_set_that_moved_only_the_host_still_covers_the_cards_it_started_with(own_runs):
    own = calibrate_own(own_runs, START, OwnOptions(only=("host",)))
    assert own.changed
    assert all(name.startswith("host.") for name in own.changed)
    assert set(own.parameters.covered_gpus) >= set(START.covered_gpus)


@pytest.mark.slow
def test_runs_that_the_start_predicts_exactly_change_next_to_nothing(tmp_path):
    runs = write(tmp_path / "runs.csv", rows_of(START, configurations((8, 32))))
    own = calibrate_own(runs, START, OwnOptions())
    for name, (before, after) in own.changed.items():
        assert after == pytest.approx(before, rel=1e-3), name


@pytest.mark.slow
def test_enough_rows_held_out_set_the_intervals(tmp_path):
    asked = configurations((1, 2, 4, 8, 16, 32, 64, 128))
    own = calibrate_own(write(tmp_path / "runs.csv", rows_of(TRUTH, asked, noise=0.02)), START, OwnOptions())
    spread = own.parameters.intervals.spreads["time"]
    assert spread.n_rows == len(asked)
    assert spread.low > START.intervals.spreads["time"].low / 2, "far narrower than the start's"
    assert own.parameters.intervals.spreads["process"] == START.intervals.spreads["process"]


def test_a_calibration_killed_in_the_middle_goes_on_where_it_stood(tmp_path, own_runs, own):
    out = tmp_path / "set.toml"
    save_parameters(START, out)
    whole = out.read_bytes()
    lines = []

    def killed(line):
        lines.append(line)
        if line.startswith("efficiency"):
            raise KeyboardInterrupt

    checkpoint = checkpoint_beside(out)
    with pytest.raises(KeyboardInterrupt):
        calibrate_own(own_runs, START, OwnOptions(), checkpoint=checkpoint, progress=killed)
    assert out.read_bytes() == whole
    assert [line.split(":")[0] for line in lines] == ["scales", "host", "bandwidth", "efficiency"]

    lines.clear()
    resumed = calibrate_own(own_runs, START, OwnOptions(), checkpoint=checkpoint, progress=lines.append)
    assert lines[0] == "going on from set.toml.checkpoint.json after scales, host, bandwidth"
    assert [line.split(":")[0] for line in lines[1:]] == ["efficiency", "power", "communication"]
    assert resumed.parameters == own.parameters
    assert checkpoint.exists(), "until the set is saved"


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "change", ["data", pytest.param("options", marks=SLOW), pytest.param("garbage", marks=SLOW)]
)
def test_a_checkpoint_of_something_else_is_not_taken(tmp_path, own_runs, change):
    checkpoint = tmp_path / "checkpoint.json"

    def killed(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate_own(
            own_runs,
            START,
            OwnOptions(only=("host", "power")),
            checkpoint=checkpoint,
            progress=lambda line: killed(line) if line.startswith("host") else None,
        )
    assert checkpoint.exists()
    runs, options = own_runs, OwnOptions(only=("host", "power"))
    if change == "options":
        options = OwnOptions(only=("host", "power"), seed=1)
    elif change == "data":
        runs = write(tmp_path / "runs.csv", rows_of(TRUTH, configurations((2, 16))))
    else:
        checkpoint.write_text("{")
    lines = []
    calibrate_own(runs, START, options, checkpoint=checkpoint, progress=lines.append)
    assert "starting anew" in lines[0]
    assert [line.split(":")[0] for line in lines[1:]] == ["scales", "host", "power"]


def test_a_factor_of_ones_own_model_is_kept_where_it_helps_and_never_otherwise(tmp_path):
    rows = rows_of(START, configurations((4, 8, 32)))
    for row in rows:
        if row["model"] == "bert-base":
            row["step_time_s"] *= 1.2
    runs = write(tmp_path / "runs.csv", rows)
    options = OwnOptions(only=("communication",))
    assert calibrate_own(runs, START, options).parameters.model_scalars == {}
    own = calibrate_own(runs, START, replace(options, per_model=True))
    record = own.parameters.stages[-1]
    assert (record.name, record.kept) == ("per-model scalars", True)
    scalars = {name.split("#")[0]: s for name, s in own.parameters.model_scalars.items()}
    assert scalars["hf/bert-base-uncased"].time == pytest.approx(1.2, rel=0.02)
    assert scalars["torchvision/resnet50"].time == pytest.approx(1.0, abs=1e-6)
    (mine,) = predict("bert-base", gpu=GPU, precision="bf16", parameters=own.parameters)
    assert any("scalar of model hf/bert-base" in flag for flag in mine.flags)


BAD = {
    "milliseconds": (
        lambda row: row.update(step_time_s=1000 * row["step_time_s"]),
        "looks like milliseconds",
    ),
    "kilowatts": (lambda row: row.update(mean_power_w=row["mean_power_w"] / 1000), "looks like kilowatts"),
    "zero": (lambda row: row.update(step_time_s=0.0), "step_time_s is '0.0', not a number above 0"),
    "negative": (lambda row: row.update(step_time_s=-1.0), "step_time_s is '-1.0', not a number above 0"),
    "unknown": (lambda row: row.update(model="resnet5000"), "0 configurations of runs can be used"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_refused_in_one_line(tmp_path, own_runs, name):
    change, message = BAD[name]
    with own_runs.open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row |= {column: float(row[column]) for column in ("step_time_s", "mean_power_w")}
    for row in rows:
        change(row)
    with pytest.raises(RunsError) as caught:
        calibrate_own(write(tmp_path / "bad.csv", rows), START, OwnOptions())
    assert message in " ".join(str(caught.value).split())


def test_two_configurations_are_too_few(tmp_path):
    rows = rows_of(START, configurations((8, 16))[:2])
    with pytest.raises(RunsError, match=r"2 configurations of runs .* at least 3"):
        calibrate_own(write(tmp_path / "few.csv", rows), START, OwnOptions())


def test_nothing_to_fit_is_a_wrong_request():
    with pytest.raises(UsageError, match="name the measurements"):
        calibrate_own(None, START, OwnOptions())
    with pytest.raises(UsageError, match="unknown stage luck"):
        OwnOptions(only=("luck",))

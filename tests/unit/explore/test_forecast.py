import json
from contextlib import nullcontext
from math import exp, log
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from joulecast.errors import MissingExtraError, RunsError, UsageError
from joulecast.explore.forecast import DRIFT_LOG_SD, forecast, posterior, updated
from joulecast.explore.measured_steps import (
    Mean,
    MeasuredSteps,
    block_mean,
    load_measured,
    record_measured,
    steps_measured,
)
from joulecast.explore.whole_run import TrainingPlan
from joulecast.results import Z90, Origin, Quantity
from joulecast.scenario import Scenario

BERT = Scenario(model="bert-base", gpu="a100-sxm4-40gb", precision="bf16", batch_size=32)


def log_normal(value, log_sd):
    return Quantity(
        value=value, low=value * exp(-Z90 * log_sd), high=value * exp(Z90 * log_sd), origin=Origin.DATASHEET
    )


def steps(time_s, energy_j=None, first=0, every=1):
    rows = []
    for i, seconds in enumerate(time_s):
        row = {"step": str(first + i * every), "step_time_s": str(seconds)}
        rows.append((i + 2, row if energy_j is None else row | {"energy_j": str(energy_j[i])}))
    return rows


def measured(step_time_s=0.05, log_sd=0.0, energy_j=None, n_done=0):
    return MeasuredSteps(
        source="log",
        n_done=n_done,
        done_time_s=n_done * step_time_s,
        done_energy_j=None if energy_j is None else n_done * energy_j,
        n_averaged=100,
        step_time_s=Mean(value=step_time_s, log_sd=log_sd),
        energy_per_step_j=None if energy_j is None else Mean(value=energy_j, log_sd=log_sd),
    )


# --- the update -----------------------------------------------------------------------------------


def test_equal_certainties_meet_in_the_geometric_middle():
    found, weight = posterior(log_normal(1.0, 0.2), Mean(value=4.0, log_sd=0.2), 0.0)
    assert weight == pytest.approx(0.5)
    assert found.value == pytest.approx(2.0)
    assert found.log_sd == pytest.approx(0.2 / 2**0.5)
    assert found.origin is Origin.CALIBRATED


def test_an_exact_measurement_leaves_the_drift_alone():
    found, weight = posterior(log_normal(1.0, 0.3), Mean(value=2.0, log_sd=0.0), 0.02)
    assert weight == pytest.approx(0.02**2 / (0.02**2 + 0.3**2))
    assert found.value == pytest.approx(2.0, rel=0.01)
    assert found.log_sd < 0.02


def test_a_measurement_that_says_nothing_changes_nothing():
    prior = log_normal(1.0, 0.1)
    found, weight = posterior(prior, Mean(value=9.0, log_sd=100.0), 0.0)
    assert weight == pytest.approx(1.0, abs=1e-5)
    assert found.value == pytest.approx(prior.value, rel=1e-4)


def test_energy_without_a_meter_is_the_predicted_power_over_the_measured_time(make_prediction):
    prior = make_prediction()
    found, _ = updated(prior, measured(step_time_s=0.2), 0.01)
    assert found.energy_per_step_j.value == pytest.approx(0.2 * 2 * 300.0, rel=0.03)
    assert found.energy_per_step_j.log_sd > prior.mean_power_w.log_sd


def test_energy_with_a_meter_follows_it(make_prediction):
    found, _ = updated(make_prediction(), measured(step_time_s=0.2, energy_j=80.0), 0.0)
    assert found.energy_per_step_j.value == pytest.approx(80.0)
    assert found.mean_power_w.value == pytest.approx(80 / 0.2 / 2)
    assert found.samples_per_j.value == pytest.approx(64 / 80)


# --- the mean of steps ----------------------------------------------------------------------------


def test_the_interval_of_a_mean_covers_the_truth_although_steps_remember():
    """Steps wander with a memory of some ten steps; 90 % of the intervals must hold the true mean."""
    random = np.random.default_rng(5)
    n_runs, n_steps, memory = 400, 500, 0.9
    inside = 0
    for _ in range(n_runs):
        noise = np.zeros(n_steps)
        shocks = random.normal(scale=0.05, size=n_steps)
        for i in range(1, n_steps):
            noise[i] = memory * noise[i - 1] + shocks[i]
        found = block_mean(1.0 + noise)
        inside += abs(log(found.value)) <= Z90 * found.log_sd
    assert 0.84 <= inside / n_runs <= 0.96


def test_a_forecast_covers_the_truth_and_shrinks():
    random = np.random.default_rng(7)
    widths = {0: [], 20: [], 200: []}
    inside = dict.fromkeys(widths, 0)
    n_runs = 500
    for _ in range(n_runs):
        truth = exp(random.normal(scale=0.2))  # drawn from the prior
        prior = log_normal(1.0, 0.2)
        for n, found in widths.items():
            quantity = prior
            if n:
                rest = truth * exp(random.normal(scale=DRIFT_LOG_SD))
                seen = rest * np.exp(random.normal(scale=0.3, size=n))
                # the mean of a log-normal variable lies above its median
                quantity, _ = posterior(prior, block_mean(seen / exp(0.3**2 / 2)), DRIFT_LOG_SD)
            found.append(quantity.log_sd)
            inside[n] += quantity.low <= truth <= quantity.high
    means = [np.mean(found) for found in widths.values()]
    assert means[0] > 2 * means[1] > 4 * means[2]
    assert all(0.86 <= n / n_runs <= 0.94 for n in inside.values()), inside


def test_warm_up_counts_as_time_and_not_in_the_mean():
    found = steps_measured(steps([5.0] * 10 + [1.0] * 90), source="log")
    assert found.step_time_s.value == pytest.approx(1.0)
    assert found.step_time_s.log_sd == 0
    assert (found.n_done, found.n_averaged) == (100, 90)
    assert found.done_time_s == pytest.approx(140)
    assert found.done_energy_j is None


def test_a_log_may_hold_every_tenth_step():
    found = steps_measured(steps([1.0] * 20, energy_j=[2.0] * 20, every=10), source="log")
    assert found.n_done == 191
    assert found.done_time_s == pytest.approx(191)
    assert found.done_energy_j == pytest.approx(382)


def test_too_few_steps_are_refused():
    with pytest.raises(UsageError, match="has 5 steps, 1 of them warm-up"):
        steps_measured(steps([1.0] * 5), source="log")
    with pytest.raises(UsageError, match="has 9 steps, 5 of them warm-up"):
        steps_measured(steps([1.0] * 9), source="log", n_warmup=5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,step_time_s\n", "has no steps"),
        ("step,step_time_s\n0,1\n1,fast\n", "line 3: step_time_s is 'fast'"),
        ("step,step_time_s\n0,1\n0,1\n", "line 3: step 0 does not come after 0"),
        ("step,step_time_s\n0,1\n1,-1\n", "line 3: step_time_s is '-1'"),
        ("step,step_time_s,energy_j\n0,1,5\n1,1,\n", "line 3: energy_j is ''"),
    ],
)
def test_a_corrupt_log_is_refused_with_its_line(tmp_path, text, message):
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(RunsError, match=message):
        load_measured(str(tmp_path / "log.csv"))


def test_json_lines_are_read_as_csv_is(tmp_path):
    (tmp_path / "log.jsonl").write_text(
        "".join(json.dumps({"step": i, "step_time_s": 0.5, "energy_j": 9}) + "\n" for i in range(30))
    )
    found = load_measured(str(tmp_path / "log.jsonl"))
    assert found.step_time_s.value == 0.5
    assert found.energy_per_step_j.value == 9
    (tmp_path / "bad.jsonl").write_text("{\n")
    with pytest.raises(RunsError, match="cannot read"):
        load_measured(str(tmp_path / "bad.jsonl"))


# --- records --------------------------------------------------------------------------------------

ROW = {
    "run_id": "r1",
    "model": "bert-base",
    "gpu": "t4",
    "precision": "fp16",
    "batch_per_gpu": "32",
    "seq_len": "128",
    "power_limit_w": "60",
    "step_time_s": "0.25",
    "energy_per_step_j": "15",
}


def runs_file(path, *rows):
    path.write_text("\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]) + "\n")
    return str(path)


def test_a_row_of_runs_says_what_ran(tmp_path):
    path = runs_file(tmp_path / "runs.csv", ROW, ROW | {"run_id": "r2", "step_time_s": "0.5"})
    found = load_measured(path + "#r2")
    assert found.step_time_s == Mean(value=0.5, log_sd=0.0)
    assert found.scenario.gpu == "t4"
    assert found.scenario.precision == "fp16"
    assert found.scenario.power_limit_w == 60
    assert found.n_done == 0
    with pytest.raises(UsageError, match="2 rows"):
        load_measured(path)
    with pytest.raises(UsageError, match="0 rows with run_id 'r9'"):
        load_measured(path + "#r9")


def test_a_measurement_brings_its_interval_and_its_options(tmp_path):
    """The JSON form of a measurement: quantities are objects, and the mean clock is not a locked one."""
    record = ROW | {
        "step_time_s": {"value": 0.25, "low": 0.24, "high": 0.26},
        "energy_per_step_j": {"value": None, "low": None, "high": None, "reason": "no sensor"},
        "sm_clock_hz": {"value": 1.2e9, "low": 1.1e9, "high": 1.3e9},
        "locked_sm_clock_hz": None,
        "accumulate": 4,
        "checkpointing": True,
        "n_steps": 120,
    }
    (tmp_path / "run.jsonl").write_text(json.dumps(record) + "\n")
    found = load_measured(str(tmp_path / "run.jsonl"))
    assert found.step_time_s.log_sd == pytest.approx(log(0.26 / 0.24) / (2 * Z90))
    assert found.energy_per_step_j is None
    assert found.n_averaged == 120
    assert (found.scenario.accumulate, found.scenario.batch_size) == (4, 8)
    assert found.scenario.checkpointing
    assert found.scenario.sm_clock_hz is None


def test_a_record_without_a_time_is_refused():
    with pytest.raises(UsageError, match="no step_time_s"):
        record_measured({**ROW, "step_time_s": ""}, source="r1")


def test_what_is_no_file_is_looked_up_in_the_store(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("joulecast.explore.measured_steps.import_module", missing)
    with pytest.raises(MissingExtraError, match="'3f2a' is no file"):
        load_measured("3f2a")
    with pytest.raises(UsageError, match="no such file"):
        load_measured("steps.csv")


class FakeStore:
    """What the forecast asks of the measurement store."""

    opened: ClassVar[list[str | None]] = []

    @classmethod
    def open(cls, url, *, create):
        assert not create
        cls.opened.append(url)
        return nullcontext(cls())

    def get(self, run_id):
        row = {name: (float(value) if value[0].isdigit() else value) for name, value in ROW.items()}
        full = row | {"step_time_s": {"value": 0.25, "low": 0.24, "high": 0.26}, "accumulate": 2}
        return SimpleNamespace(
            run_id=run_id + "-whole", row=row, measurement=SimpleNamespace(to_dict=lambda: full)
        )


def test_a_run_of_the_store_is_a_record(monkeypatch):
    monkeypatch.setattr(
        "joulecast.explore.measured_steps.import_module", lambda name: SimpleNamespace(Store=FakeStore)
    )
    found = load_measured("3f2a", store="sqlite:///runs.db")
    assert FakeStore.opened == ["sqlite:///runs.db"]
    assert found.source == "run 3f2a-whole"
    assert found.step_time_s.log_sd > 0
    assert found.scenario.accumulate == 2
    assert found.scenario.power_limit_w == 60


# --- whole runs -----------------------------------------------------------------------------------


def test_what_is_done_is_kept_and_the_rest_follows_the_measurement():
    plan = TrainingPlan(n_samples=32_000)
    found = forecast(measured(step_time_s=0.05, n_done=400), plan=plan, scenario=BERT, drift_log_sd=0.0)
    done, ahead = found.run.parts
    assert (done.n_steps, ahead.n_steps) == (400, 600)
    assert done.time_s == Quantity(value=20.0, low=20.0, high=20.0, origin=Origin.MEASURED)
    assert found.run.run_time_s.value == pytest.approx(1000 * 0.05)
    assert found.run.run_time_s.high - found.run.run_time_s.low < 1e-6
    assert found.prior.n_steps == found.run.n_steps == 1000


def test_the_interval_of_a_run_shrinks_as_steps_come_in():
    plan = TrainingPlan(n_samples=32_000)
    widths = []
    for n_done in (10, 500, 1000):
        run_s = forecast(measured(n_done=n_done, log_sd=0.01), plan=plan, scenario=BERT).run.run_time_s
        widths.append(run_s.high - run_s.low)
    prior_s = forecast(measured(), plan=plan, scenario=BERT).prior.run_time_s
    assert prior_s.high - prior_s.low > widths[0] > widths[1] > widths[2] == pytest.approx(0, abs=1e-9)


def test_more_steps_than_the_run_has_are_refused():
    with pytest.raises(UsageError, match="has 50 steps, and the run 10"):
        forecast(measured(n_done=50), plan=TrainingPlan(n_samples=320), scenario=BERT)


def test_a_log_needs_to_be_told_what_ran():
    with pytest.raises(UsageError, match="name the model and the card"):
        forecast(measured(), plan=TrainingPlan(n_samples=320))


def test_the_document_holds_both_runs():
    document = forecast(measured(n_done=5), plan=TrainingPlan(n_samples=320), scenario=BERT).to_dict()
    json.dumps(document, allow_nan=False)
    assert document["schema"] == "joulecast/forecast/1"
    assert document["prior"]["n_steps"] == document["run"]["n_steps"] == 10

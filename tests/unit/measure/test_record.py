"""Windows and readings become the quantities of a record."""

import json

import pytest

from joulecast.errors import RunsError, UsageError
from joulecast.measure.nodes import combine
from joulecast.measure.protocol import Repeat, Steps
from joulecast.measure.record import Subject, record
from joulecast.measure.sensors import Component
from joulecast.measure.window import Sampler
from joulecast.results import (
    MEASURED_QUANTITIES,
    QUANTITIES,
    MeasuredQuantity,
    Measurement,
    Prediction,
    RunStatus,
)


def test_quantities_of_two_gpus_by_hand(make_measurement):
    m = make_measurement()
    # 20 steps in 4 s; 300 W on two boards, 60 W on the package
    assert m.step_time_s.value == pytest.approx(0.2)
    assert m.samples_per_s.value == pytest.approx(320)
    assert m.gpu_energy_j.value == pytest.approx(1200)
    assert m.mean_power_w.value == pytest.approx(150)
    assert m.energy_per_step_j.value == pytest.approx(60)
    assert m.energy_per_sample_j.value == pytest.approx(60 / 64)
    assert m.samples_per_j.value == pytest.approx(64 / 60)
    assert m.cpu_energy_j.value == pytest.approx(240)
    assert m.temperature_c.value == 50
    assert m.repeat_energy_per_step_j == pytest.approx((60,) * 4)
    assert (m.n_steps, m.n_repeats, m.n_warmup_steps, m.window_s) == (20, 4, 7, pytest.approx(4))
    assert m.duration_s == pytest.approx(6.0)


def test_every_quantity_says_how_it_was_read(make_measurement):
    m = make_measurement()
    assert (m.energy_per_step_j.method, m.energy_per_step_j.scope) == ("counter", "board")
    assert m.energy_per_step_j.sampling_hz == pytest.approx(10, rel=0.05)
    assert (m.cpu_energy_j.method, m.cpu_energy_j.scope) == ("counter", "package")
    assert m.step_time_s.method == "clock"


def test_what_no_sensor_reads_is_absent_with_a_reason(make_measurement):
    m = make_measurement()
    for quantity in (m.dram_energy_j, m.tokens_per_s, m.sm_clock_hz):
        assert quantity.value is None
        assert quantity.reason


def test_names_are_those_of_a_prediction():
    measured = {f for f in Measurement.__dataclass_fields__ if f in Prediction.__dataclass_fields__}
    assert measured >= {
        "step_time_s",
        "mean_power_w",
        "energy_per_step_j",
        "allocated_bytes",
        "model",
        "n_sms",
    }
    assert set(MEASURED_QUANTITIES) & set(QUANTITIES) == set(QUANTITIES) & set(
        Measurement.__dataclass_fields__
    )


def test_a_record_goes_round_through_json(make_measurement):
    m = make_measurement(flags=("a flag",), job_id="7", exit_code=0)
    again = Measurement.from_dict(json.loads(json.dumps(m.to_dict(), allow_nan=False)))
    assert again == m


def test_keys_of_later_versions_are_ignored(make_measurement):
    m = make_measurement()
    plain = m.to_dict() | {"something_new": 1}
    plain["step_time_s"] = plain["step_time_s"] | {"something_new": 1}
    assert Measurement.from_dict(plain) == m


@pytest.mark.parametrize(
    "change",
    [{"schema": "joulecast/measurement/9"}, {"schema": None}, {"step_time_s": None}, {"status": "odd"}],
)
def test_what_is_no_record_is_refused(make_measurement, change):
    with pytest.raises(RunsError):
        Measurement.from_dict(make_measurement().to_dict() | change)


def test_a_row_has_the_columns_of_a_file_of_runs(make_measurement):
    row = make_measurement().to_row()
    assert row["model"] == "torchvision/resnet50"
    assert row["mean_power_w"] == pytest.approx(150)
    assert row["energy_per_step_j"] == pytest.approx(60)
    assert row["peak_memory_bytes"] == 1e9
    assert row["suspect"] is None


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        ({"status": RunStatus.PARTIAL}, "partial run"),
        ({"status": RunStatus.FAILED}, "failed run"),
        ({"accumulate": 4}, "4 micro-batches per step"),
        ({"checkpointing": True}, "activation checkpointing"),
    ],
)
def test_runs_that_a_fit_must_leave_out_say_so(make_measurement, change, doubt):
    assert make_measurement(**change).to_row()["suspect"] == doubt


def test_a_run_that_ended_early_has_no_quantities_and_says_why(two_gpus):
    with Sampler([two_gpus], on_thread=False) as sampler:
        subject = Subject(component=Component.GPU, n_devices=2, start_s=sampler.mark())
        m = record(subject, sampler, Steps(repeats=(), n_warmup_steps=0), end_s=9.0, status=RunStatus.PARTIAL)
    assert m.step_time_s.value is None
    assert "before the first whole window" in m.step_time_s.reason
    assert Measurement.from_dict(m.to_dict()) == m


def test_a_command_has_energies_but_no_steps(two_gpus):
    with Sampler([two_gpus], on_thread=False) as sampler:
        subject = Subject(component=Component.GPU, n_devices=2, start_s=sampler.mark())
        for _ in range(10):
            sampler.mark()
        whole = Repeat(start_s=0.1, end_s=1.1, n_steps=0)
        m = record(
            subject, sampler, Steps(repeats=(whole,), n_warmup_steps=0), end_s=1.1, status=RunStatus.COMPLETE
        )
    assert m.gpu_energy_j.value == pytest.approx(300)
    assert m.mean_power_w.value == pytest.approx(150)
    assert m.energy_per_step_j.value is None
    assert "steps of a command" in m.step_time_s.reason


@pytest.mark.parametrize(
    "fields",
    [
        {"value": None, "low": None, "high": None},
        {"value": None, "low": 1.0, "high": None, "reason": "x"},
        {"value": 1.0, "low": 2.0, "high": 3.0},
        {"value": 1.0, "low": None, "high": 3.0},
    ],
)
def test_a_measured_quantity_has_an_interval_or_a_reason(fields):
    with pytest.raises(ValueError, match="interval"):
        MeasuredQuantity(**fields)


def test_absent_stays_absent():
    absent = MeasuredQuantity.absent("no sensor", "buy one")
    assert absent.times(3) == absent.into(3) == absent
    assert absent.quantity is None


# --- nodes ----------------------------------------------------------------------------------------


def test_energies_of_nodes_add_and_the_slowest_decides(make_measurement):
    first = make_measurement(job_id="7", nodes=("one",))
    second = make_measurement(job_id="7", nodes=("two",))
    job = combine([first, second])
    assert job.energy_per_step_j.value == pytest.approx(120)
    assert job.gpu_energy_j.value == pytest.approx(2400)
    assert job.mean_power_w.value == pytest.approx(150)
    assert job.samples_per_j.value == pytest.approx(64 / 120)
    assert job.step_time_s.value == pytest.approx(0.2)
    assert (job.n_gpus, job.nodes) == (4, ("one", "two"))
    assert job.repeat_energy_per_step_j == pytest.approx((120,) * 4)


def test_a_node_that_comes_twice_counts_once(make_measurement):
    record_of_one = make_measurement(job_id="7", nodes=("one",))
    assert combine([record_of_one, record_of_one, record_of_one]) == record_of_one


def test_a_node_without_a_sensor_makes_the_sum_absent(make_measurement):
    first = make_measurement(job_id="7", nodes=("one",))
    blind = make_measurement(
        job_id="7", nodes=("two",), energy_per_step_j=MeasuredQuantity.absent("no sensor there")
    )
    assert combine([first, blind]).energy_per_step_j.reason == "no sensor there"


def test_nodes_of_different_jobs_are_refused(make_measurement):
    jobs = [make_measurement(job_id=job, nodes=(f"node {job}",)) for job in ("7", "8")]
    with pytest.raises(UsageError, match="different jobs"):
        combine(jobs)
    with pytest.raises(UsageError, match="no record"):
        combine([])

"""What can be measured, why not the rest, and what to do."""

import io
import sys
from dataclasses import replace

import pytest

from joulecast.errors import SensorUnavailableError
from joulecast.measure import doctor as module
from joulecast.measure.doctor import doctor
from joulecast.report.doctor import doctor_page, doctor_rows
from joulecast.report.tables import draw


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch):
    monkeypatch.setattr(module, "_APART_S", 0.0)


def _text(diagnosis) -> str:
    out = io.StringIO()
    draw(doctor_page(diagnosis), out)
    return out.getvalue()


def test_a_sensor_that_works_shows_what_it_reads(two_gpus):
    found = doctor([("boards", lambda: two_gpus)])
    assert [f.works for f in found.sensors] == [True] * 3
    assert "energy counter, 100 W, power 100 W, 50 degC, of the board" in found.sensors[0].says
    assert "ok" in _text(found)


def test_a_sensor_that_does_not_says_why_and_what_to_do(two_gpus):
    two_gpus.unavailable = SensorUnavailableError("may not be read", "sudo chmod a+r")
    found = doctor([("RAPL", lambda: two_gpus)])
    (finding,) = found.sensors
    assert (finding.works, finding.says, finding.remedy) == (False, "may not be read", "sudo chmod a+r")
    assert "RAPL: sudo chmod a+r" in _text(found)


def test_a_slice_is_said_to_be_the_whole_card(two_gpus):
    two_gpus.channels = [replace(two_gpus.channels[0], scope="whole card")]
    (finding,) = doctor([("boards", lambda: two_gpus)]).sensors
    assert "MIG slice has no meter" in finding.remedy


def test_a_part_time_sensor_is_named(two_gpus):
    two_gpus.channels = [replace(two_gpus.channels[0], averaging_s=0.025)]
    (finding,) = doctor([("boards", lambda: two_gpus)]).sensors
    assert "looks 25% of the time" in finding.says


def test_a_counter_that_stands_still_is_seen(two_gpus):
    two_gpus.power_w["gpu:a"] = 0.0
    assert "stands still" in doctor([("boards", lambda: two_gpus)]).sensors[0].says


@pytest.mark.parametrize(
    ("name", "works", "says"),
    [("NVIDIA A100-SXM4-40GB", True, "a100-sxm4-40gb"), ("NVIDIA Q999", False, "not in the catalogue")],
)
def test_device_names_are_mapped_to_the_catalogue(monkeypatch, name, works, says):
    monkeypatch.setattr(module, "_cuda_names", lambda: [name])
    finding = doctor([]).devices[-1]
    assert (finding.what, finding.works) == (name, works)
    assert says in finding.says


def test_a_machine_without_torch_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    finding = next(f for f in doctor([]).software if f.what == "torch")
    assert (finding.works, finding.remedy) == (False, "pip install 'joulecast[torch]'")


def test_rows_have_one_line_per_finding(two_gpus):
    found = doctor([("boards", lambda: two_gpus)])
    assert len(doctor_rows(found)) == len(found.sensors) + len(found.software) + len(found.devices)
    assert found.to_dict()["schema"] == "joulecast/doctor/1"

from dataclasses import replace

import pytest

from joulecast.errors import UsageError
from joulecast.explore.sensitivity import sensitivity
from joulecast.hardware.changes import PROPERTIES
from joulecast.model.parameters import load_parameters
from joulecast.prediction import predict_scenario
from joulecast.scenario import Scenario

PARAMETERS = load_parameters()


def test_elasticities_say_what_a_small_change_does():
    scenario = Scenario(model="resnet50", gpu="v100-sxm2-32gb", batch_size=64)
    found = sensitivity(scenario, ratio=1.3, parameters=PARAMETERS)
    by_name = {e.name: e for e in found.elasticities}

    bandwidth = by_name["bandwidth"]
    changed = predict_scenario(replace(scenario, hardware="bandwidth=+1%"), PARAMETERS)
    ratio = changed.step_time_s.value / found.base.step_time_s.value
    assert ratio == pytest.approx(1.01**bandwidth.time, rel=2e-4)
    assert bandwidth.energy == pytest.approx(bandwidth.time + bandwidth.power, abs=1e-9)
    assert by_name["peak_fp16"].time == pytest.approx(0.0, abs=1e-12)
    assert "link" not in by_name
    assert "peak_bf16" not in by_name


def test_times_scale_inversely_with_all_rates_together():
    """A step bound by kernels takes as long as its card is slow: the elasticities add up to about -1."""
    scenario = Scenario(model="vgg16", gpu="a100-sxm4-80gb", precision="fp32-strict", batch_size=256)
    found = sensitivity(scenario, ratio=1.01, parameters=PARAMETERS)
    by_name = {e.name: e.time for e in found.elasticities}
    assert by_name["peak_fp32"] + by_name["bandwidth"] == pytest.approx(-1.0, abs=0.15)


def test_the_lever_that_reaches_is_the_smallest():
    scenario = Scenario(model="resnet50", gpu="v100-sxm2-32gb", batch_size=64)
    found = sensitivity(scenario, ratio=1.3, parameters=PARAMETERS)
    (lever, *_) = found.levers
    assert lever.reached
    assert lever.gain == pytest.approx(1.3, rel=2e-3)

    (change,) = lever.changes
    less = predict_scenario(
        replace(scenario, hardware=f"{change.name}={change.factor * 0.98:g}x"), PARAMETERS
    )
    assert less.samples_per_j.value < 1.3 * found.base.samples_per_j.value
    for pair in found.pairs:
        assert pair.reached
        assert len(pair.changes) == 2


def test_the_impossible_is_said():
    found = sensitivity(
        Scenario(model="bert-base", gpu="a100-sxm4-40gb", precision="bf16", batch_size=1, mode="forward"),
        target="samples_per_s",
        ratio=5,
        parameters=PARAMETERS,
    )
    assert found.base.bound_by == "host"
    assert not any(lever.reached for lever in found.levers)
    assert not found.pairs


@pytest.mark.parametrize(
    ("options", "message"), [({"ratio": 1.0}, "more than 1"), ({"target": "x"}, "unknown")]
)
def test_what_cannot_be_asked(options, message):
    with pytest.raises(UsageError, match=message):
        sensitivity(Scenario(model="bert-base", gpu="t4"), **options)


def test_every_property_has_a_meaning_and_a_unit():
    assert all(known.meaning and known.unit for known in PROPERTIES.values())

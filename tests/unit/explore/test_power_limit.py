import numpy as np
import pytest

from joulecast.calibrate.runs import Run
from joulecast.explore.power_limit import LimitGroup, limit_groups, score


def row(limit_w, power_w, energy_j, **cells):
    return Run(
        line=1,
        cells={"model": "resnet50", "gpu": "v100-pcie-32gb", "batch_per_gpu": "32", **cells},
        numbers={"batch_per_gpu": 32.0, "power_limit_w": limit_w},
        measured={"mean_power_w": power_w, "energy_per_step_j": energy_j},
    )


def group(measured_j, predicted_j, limits_w=(100.0, 150.0, 200.0), max_limit_w=200.0):
    return LimitGroup(
        runs=(),
        limits_w=np.array(limits_w),
        measured_energy_j=np.array(measured_j),
        predicted_energy_j=np.array(predicted_j),
        max_limit_w=max_limit_w,
    )


def test_a_choice_costs_what_the_meter_says_it_does():
    chosen = group(measured_j=[12.0, 10.0, 11.0], predicted_j=[5.0, 4.0, 3.0])
    assert (chosen.chosen_limit_w, chosen.best_limit_w) == (200.0, 150.0)
    assert chosen.excess_frac == pytest.approx(0.1)
    assert chosen.excess_at_frac(0.52) == pytest.approx(0.2)


def test_the_score_is_beside_the_best_constant():
    groups = [
        group(measured_j=[10.0, 11.0, 12.0], predicted_j=[1.0, 2.0, 3.0]),
        group(measured_j=[12.0, 11.0, 10.0], predicted_j=[3.0, 2.0, 1.0]),
    ]
    found = score(groups)
    assert found.n_groups == 2
    assert found.mean_excess_frac == 0
    assert found.within_3_percent_frac == 1
    assert found.constant_excess_frac == pytest.approx(0.1)


def test_groups_whose_power_hardly_varies_say_nothing():
    flat = [row(100.0, 90.0, 1.0), row(200.0, 95.0, 1.0)]
    varying = [row(200.0, 150.0, 1.0, optimizer="adam"), row(100.0, 90.0, 2.0, optimizer="adam")]
    (found,) = limit_groups([*flat, *varying])
    assert found.limits_w.tolist() == [100.0, 200.0]
    assert found.measured_energy_j.tolist() == [2.0, 1.0]
    assert found.predicted_energy_j.shape == (2,)


def test_rows_without_a_meter_and_doubtful_ones_are_left_out():
    doubted = [row(100.0, 90.0, 1.0, suspect="noisy"), row(200.0, 150.0, 1.0)]
    assert limit_groups(doubted) == []

import numpy as np
import pytest

from joulecast.hardware.catalogue import load_gpu
from joulecast.model.batch import Step, batch_of, step_costs
from joulecast.model.clock import Phases, _highest_within, ragged
from joulecast.model.parameters import load_parameters
from joulecast.scenario import Scenario, settle_step, workload_of

VALUES = load_parameters().values


def step(model="bert-base", gpu="a100-sxm4-40gb", batch_size=8, precision="bf16", **conditions):
    settled = settle_step(Scenario(model=model, gpu=gpu, batch_size=batch_size, precision=precision))
    return Step(workload=workload_of(settled), gpu=load_gpu(gpu), **conditions)


@pytest.mark.parametrize("limit_w", [100.0, 180.0, 250.0, 400.0])
@pytest.mark.parametrize("model", ["bert-base", "resnet50"])
def test_parts_sum_to_the_rows_they_stand_for(model, limit_w):
    costs = step_costs(batch_of([step(model, power_limit_w=limit_w)]), VALUES)
    rows = costs.operating.operators(0)
    waiting_j = costs.energy_j[0] - rows.energy_j.sum()

    assert costs.kernel_time_s[0] == pytest.approx(rows.time_s.sum(), rel=1e-12)
    assert costs.bound_time_s[0].sum() == pytest.approx(rows.time_s.sum(), rel=1e-12)
    assert costs.sm_clock_hz[0] == pytest.approx(np.average(rows.clock_hz, weights=rows.time_s), rel=1e-12)
    assert waiting_j >= -1e-9
    assert len(costs.operating.phases.n_calls) < len(rows.time_s)


def test_steps_that_share_a_load_are_those_that_do_not():
    conditions = [
        {"power_limit_w": limit_w, "n_gpus": n_gpus, "sm_clock_hz": clock_hz}
        for limit_w in (100.0, 150.0, 220.0, 400.0)
        for n_gpus in (1, 4)
        for clock_hz in (None, 0.9e9)
    ]
    shared = step()
    steps = [
        Step(workload=shared.workload, gpu=shared.gpu, **condition)
        for condition in (*conditions, *conditions)
    ]
    together = step_costs(batch_of(steps), VALUES)
    for i, one in enumerate(steps):
        alone = step_costs(batch_of([one]), VALUES)
        assert together.step_time_s[i] == pytest.approx(alone.step_time_s[0], rel=1e-10)
        assert together.energy_j[i] == pytest.approx(alone.energy_j[0], rel=1e-10)
        assert together.sm_clock_hz[i] == pytest.approx(alone.sm_clock_hz[0], rel=1e-10)


class Line:
    """Excess that rises with the logarithm of the clock, with a kink, and goes through 0 at a root."""

    def __init__(self, root_hz, kink):
        self.root_hz, self.kink = root_hz, kink

    def excess(self, clock_hz):
        x = np.log(clock_hz / self.root_hz)
        return np.where(x > 0, self.kink * x, x) + x**3

    def of(self, chosen):
        return Line(self.root_hz[chosen], self.kink[chosen])


def test_the_search_finds_roots_and_says_what_does_not_fit():
    roots_hz = np.array([0.3e9, 0.5e9, 0.7e9, 1.3e9, 0.1e9])
    line = Line(roots_hz, np.array([1.0, 50.0, 0.01, 3.0, 1.0]))
    low_hz, high_hz = np.full(5, 0.2e9), np.full(5, 1.4e9)
    found_hz, fits = _highest_within(line, low_hz, high_hz, line.excess(high_hz))
    assert fits.tolist() == [True] * 4 + [False]
    assert found_hz == pytest.approx([*roots_hz[:4], 0.2e9], rel=1e-9)


def test_ragged_lists_members_group_by_group():
    members, choice = ragged(np.array([2, 0, 3]), np.array([2, 0, 1, 2]))
    assert members.tolist() == [2, 3, 4, 0, 1, 2, 3, 4]
    assert choice.tolist() == [0, 0, 0, 1, 1, 3, 3, 3]


def test_phases_of_steps_may_repeat():
    phases: Phases = step_costs(batch_of([step(), step("resnet50")]), VALUES).operating.phases
    twice = phases.of_steps(np.array([1, 0, 1]))
    clock_hz = np.full(len(twice.step_of), 1e9)
    time_s = twice.by_step(twice.time_s(clock_hz))
    once = phases.by_step(phases.time_s(np.full(len(phases.step_of), 1e9)))
    assert time_s == pytest.approx(once[[1, 0, 1]], rel=1e-12)

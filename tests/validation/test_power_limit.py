"""Power limits chosen by prediction, judged by public measurements; skips where they are absent.

`scripts/check_power_limits RUNS.csv` prints the groups one by one.
"""

import pytest

from joulecast.calibrate.runs import load_runs
from joulecast.explore.power_limit import LimitScore, limit_groups, score

ZEUS = "ml-energy/zeus"
#: Share of groups in which the chosen limit must be within 3 % of the least measured energy.
LEAST_SHARE = 0.9


@pytest.fixture(scope="module")
def scores() -> dict[str, LimitScore]:
    return {}


@pytest.fixture
def zeus_score(shared_data, scores) -> LimitScore:
    if ZEUS not in scores:
        runs = [run for run in load_runs(shared_data / "runs.csv").runs if run.source.startswith(ZEUS)]
        scores[ZEUS] = score(limit_groups(runs))
    return scores[ZEUS]


def test_all_groups_whose_power_varies_are_judged(zeus_score):
    assert zeus_score.n_groups == 56


@pytest.mark.xfail(reason="70 % of the groups; docs/calibration-diary.md says why")
def test_the_chosen_limit_is_within_3_percent_of_the_least_energy(zeus_score):
    assert zeus_score.within_3_percent_frac >= LEAST_SHARE, zeus_score


def test_choosing_beats_the_best_constant_share_of_the_highest_limit(zeus_score):
    assert zeus_score.mean_excess_frac < zeus_score.constant_excess_frac, zeus_score

import json
from datetime import datetime

import numpy as np
import pytest

from joulecast.errors import InfeasibleError, NothingFitsError, UnknownNameError, UsageError
from joulecast.explore.advice import conflicting, nearest
from joulecast.explore.carbon import load_grid
from joulecast.explore.outcomes import candidates
from joulecast.explore.prices import prices
from joulecast.explore.recommend import recommend
from joulecast.explore.request import Limits, Objective, Request, candidates_of, load_request, request_of
from joulecast.explore.sweep import sweep
from joulecast.explore.whole_run import Site, TrainingPlan, cost
from joulecast.hardware.catalogue import load_gpu
from joulecast.units import GIB

CARDS = ["a100-sxm4-40gb", "t4"]
PLAN = TrainingPlan(n_samples=88_000, n_epochs=3)
SMALL = {
    "model": "bert-base",
    "gpu": CARDS,
    "n_gpus": [1, 2],
    "precision": ["fp32", "bf16"],
    "batch_per_gpu": [16, 32],
    "power_limit_frac": [0.5, 0.75, 1.0],
}


def request(candidate_keys=None, limits=None, **fields):
    limits = limits or Limits()
    fields = {"plan": PLAN, "n_draws": 500, **fields}
    return Request(
        candidates=candidates_of({**SMALL, **(candidate_keys or {})}, limits), limits=limits, **fields
    )


@pytest.fixture(scope="module")
def least_energy():
    return recommend(request())


# --- choice ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", [Objective.TIME, Objective.ENERGY, Objective.ENERGY_DELAY])
def test_the_choice_has_the_least_objective_of_all(objective):
    found = recommend(request(objective=objective))
    table = sweep(found.request.candidates)
    table = table.where(table.predicted)
    n_steps = np.ceil(88_000 / table["global_batch"]) * 3
    time_s, energy_j = table["step_time_s"] * n_steps, table["energy_per_step_j"] * n_steps
    least = {"time": time_s, "energy": energy_j, "energy-delay": time_s * energy_j}[str(objective)].min()
    assert found.chosen.objective == pytest.approx(least, rel=1e-5)


def test_counts_say_what_was_left_out(least_energy):
    """A T4 cannot be limited to half or three quarters of its 70 W."""
    assert least_energy.n_candidates == 48
    assert least_energy.n_predicted == least_energy.n_fitting == least_energy.n_feasible == 32


def test_equals_take_the_highest_limit():
    """A limit that does not bind saves nothing: the card is left as it is."""
    found = recommend(
        request(
            {
                "gpu": "a100-sxm4-40gb",
                "batch_per_gpu": 1,
                "precision": "bf16",
                "n_gpus": 1,
                "power_limit_frac": [0.9, 1.0],
            }
        )
    )
    assert found.chosen.row["power_limit_w"] == 400


def test_outcomes_are_those_of_the_whole_run():
    """The arrays follow the equations of `run_cost`."""
    site = Site(
        pue=1.3,
        node_gpus=4,
        host_power_w=300,
        grid=load_grid("DE"),
        prices=prices(per_kwh=0.3, per_gpu_hour=2.0),
    )
    plan = TrainingPlan(n_samples=88_000, n_epochs=3, loader_samples_per_s=500)
    asked = request(site=site, plan=plan, objective=Objective.COST)
    found = recommend(asked)
    row = found.chosen.row
    (run,) = cost(
        "bert-base",
        gpu=row["gpu"],
        precision=row["precision"],
        n_gpus=row["n_gpus"],
        batch_size=row["batch_per_gpu"],
        power_limit_w=row["power_limit_w"],
        plan=plan,
        site=site,
    )
    assert found.chosen.time_s.value == pytest.approx(run.run_time_s.value)
    assert found.chosen.time_s.high == pytest.approx(run.run_time_s.high)
    assert found.chosen.gpu_energy_j.value == pytest.approx(run.gpu_energy_j.value)
    assert found.chosen.energy_j.value == pytest.approx(run.facility_energy_j.value)
    assert found.chosen.co2e_kg.value == pytest.approx(run.co2e_kg.value)
    assert found.chosen.cost.value == pytest.approx(run.cost.value)


def test_without_a_run_a_sample_is_compared():
    found = recommend(request(plan=None))
    row = found.chosen.row
    assert found.chosen.energy_j.value == pytest.approx(row["energy_per_step_j"] / row["global_batch"])
    assert found.to_dict()["of"] == "sample"


def test_a_series_of_intensities_is_taken_over_each_runs_hours(tmp_path):
    path = tmp_path / "grid.csv"
    rows = [f"2026-03-01T{hour:02d}:00,{100 if hour < 1 else 500}" for hour in range(24)]
    path.write_text("\n".join(["timestamp,gco2e_per_kwh", *rows]))
    site = Site(grid=load_grid(str(path)), start=datetime(2026, 3, 1))
    table = sweep(request().candidates)
    found = candidates(
        table.where(table.predicted), request(site=site), {slug: load_gpu(slug) for slug in CARDS}
    )
    times_s = found.outcomes().time_s
    shortest, longest = np.argmin(times_s), np.argmax(times_s)
    assert found.intensity_kg_per_j[shortest] < found.intensity_kg_per_j[longest]


# --- why, and what limits cost --------------------------------------------------------------------


def test_every_axis_with_a_choice_is_compared(least_energy):
    axes = [reason.what for reason in least_energy.reasons]
    assert axes == ["gpu", "n_gpus", "precision", "batch_per_gpu", "power_limit_w"]
    assert all(reason.objective_ratio >= 1 - 1e-5 for reason in least_energy.reasons)
    for reason in least_energy.reasons:
        assert reason.other.row[reason.what] != least_energy.chosen.row[reason.what]


def test_a_limit_that_binds_costs_and_one_that_does_not_is_free(least_energy):
    deadline_s = least_energy.chosen.time_s.value * 0.8
    found = recommend(request(limits=Limits(run_time_s=deadline_s, energy_j=1e12)))
    by_name = {item.what: item for item in found.limit_costs}
    assert found.chosen.time_s.value <= deadline_s
    assert found.n_feasible < found.n_fitting
    assert by_name["run_time_s"].objective_ratio < 1
    assert by_name["run_time_s"].other.row == least_energy.chosen.row
    assert by_name["energy_j"].objective_ratio == pytest.approx(1)


def test_confidence_makes_a_deadline_stricter(least_energy):
    deadline_s = least_energy.chosen.time_s.value * 1.1
    loose, strict = (
        recommend(request(limits=Limits(run_time_s=deadline_s), confidence_frac=p)) for p in (0.5, 0.95)
    )
    assert strict.n_feasible < loose.n_feasible
    assert strict.chosen.time_s.high <= deadline_s * 1.0001
    assert strict.certainty.kept_frac["run_time_s"] > loose.certainty.kept_frac["run_time_s"]
    assert strict.certainty.kept_frac["run_time_s"] >= 0.91  # what is chosen may keep it by a margin


def test_the_node_is_judged_by_the_upper_end_of_its_power():
    found = recommend(request(limits=Limits(node_power_w=150), site=Site(host_power_w=60)))
    row = found.chosen.row
    assert row["n_gpus"] * row["high_mean_power_w"] + 60 <= 150
    rack = recommend(request(limits=Limits(rack_power_w=300, rack_nodes=2), site=Site(host_power_w=60)))
    assert rack.chosen.row == row


@pytest.mark.parametrize(
    ("limits", "keeps"),
    [
        (Limits(n_gpus=1), lambda row: row["n_gpus"] == 1),
        (Limits(min_global_batch=64), lambda row: row["global_batch"] >= 64),
        (Limits(max_global_batch=16), lambda row: row["global_batch"] <= 16),
        (Limits(memory_bytes=5 * GIB), lambda row: row["high_process_bytes"] <= 5 * GIB),
    ],
)
def test_other_limits_are_kept(limits, keeps):
    assert keeps(recommend(request(limits=limits)).chosen.row)


def test_a_node_bounds_the_gpus():
    assert recommend(request(site=Site(node_gpus=1))).chosen.row["n_gpus"] == 1


# --- the front and the certainty ------------------------------------------------------------------


def test_the_front_rises_in_time_and_falls_in_energy(least_energy):
    times = [member.time_s.value for member in least_energy.front]
    energies = [member.energy_j.value for member in least_energy.front]
    assert times == sorted(times)
    assert energies == sorted(energies, reverse=True)
    assert energies[-1] == pytest.approx(least_energy.chosen.energy_j.value, rel=1e-5)


def test_the_certainty_is_the_same_every_time_and_its_parts_make_sense(least_energy):
    again = recommend(request()).certainty
    c = least_energy.certainty
    assert again == c
    assert 0 < c.best_frac <= 1
    assert 0 <= c.median_excess_frac <= c.p90_excess_frac
    assert all(share >= c.best_frac for share in c.same_axis_frac.values())
    assert c.same_axis_frac["gpu"] > 0.9  # a T4 needs far more energy than an A100


def test_one_candidate_is_certain():
    one = {"gpu": "t4", "n_gpus": 1, "precision": "fp32", "batch_per_gpu": 16, "power_limit_frac": 1.0}
    found = recommend(request(one))
    assert found.certainty.best_frac == 1
    assert found.certainty.p90_excess_frac == 0
    assert found.reasons == ()


def test_the_document_is_plain(least_energy):
    document = least_energy.to_dict()
    json.dumps(document, allow_nan=False)
    assert document["schema"] == "joulecast/recommendation/1"
    rows = least_energy.to_rows()
    assert sum(row["chosen"] for row in rows) == 1


# --- nothing to recommend -------------------------------------------------------------------------


def test_the_fewest_limits_that_contradict_each_other_are_named():
    excess = {"a": np.array([0.5, 2.0]), "b": np.array([2.0, 0.5]), "c": np.array([0.5, 0.5])}
    assert conflicting(excess) == ("a", "b")
    assert conflicting({**excess, "d": np.array([3.0, 3.0])}) == ("d",)
    assert nearest({"a": np.array([0.5, 1.2]), "b": np.array([1.5, 1.1])}) == 1


def test_contradicting_limits_are_named_with_the_nearest(least_energy):
    fastest = recommend(request(objective=Objective.TIME))
    limits = Limits(
        run_time_s=fastest.chosen.time_s.value * 1.001, energy_j=least_energy.chosen.energy_j.value * 1.001
    )
    with pytest.raises(InfeasibleError, match=r"contradict each other.*the nearest.*misses") as error:
        recommend(request(limits=limits))
    assert error.value.limits == ("run_time_s", "energy_j")


def test_a_single_limit_that_cannot_be_kept_says_the_best():
    with pytest.raises(
        InfeasibleError, match=r"deadline 0.0001 h cannot be kept: the best there is, is 0\.\d+ h"
    ):
        recommend(request(limits=Limits(run_time_s=0.36)))


@pytest.mark.slow  # traces checkpointing
def test_what_would_fit_is_said():
    large = {"model": "bert-large", "gpu": "t4", "n_gpus": 1, "precision": "fp32", "batch_per_gpu": 64}
    with pytest.raises(NothingFitsError, match=r"up to .* GiB of 15 GiB") as error:
        recommend(request(large))
    changes = error.value.changes
    assert any("micro-batches" in change for change in changes)
    assert "with checkpointing" in changes
    (batch,) = (int(change.split()[2]) for change in changes if "micro-batches" in change)
    fitting = {**large, "batch_per_gpu": 64, "accumulate": 64 // batch}
    assert recommend(request(fitting)).chosen.row["accumulate"] == 64 // batch


@pytest.mark.slow  # traces checkpointing
def test_where_no_single_change_helps_several_do():
    own = {
        "model": "tinyllama",
        "gpu": "a100-sxm4-40gb",
        "n_gpus": 1,
        "precision": "fp32",
        "batch_per_gpu": 16,
    }
    with pytest.raises(NothingFitsError) as error:
        recommend(request(own))
    assert any(" and " in change for change in error.value.changes)


def test_candidates_that_cannot_be_say_why():
    with pytest.raises(UsageError, match=r"none of the .* power limit 20 W"):
        recommend(Request(candidates=candidates_of({**_without_fractions(), "power_limit_w": 20}, Limits())))


def _without_fractions():
    return {key: value for key, value in SMALL.items() if key != "power_limit_frac"}


# --- requests -------------------------------------------------------------------------------------


def test_a_file_says_it_all(tmp_path):
    (tmp_path / "ask.toml").write_text("""
objective = "cost"
confidence = 0.9
[candidates]
model = "bert-base"
gpu = ["a100-sxm4-40gb", "t4"]
global_batch = 256
[run]
samples = 88000
epochs = 10
stop_epochs = [3, 10]
loader_samples_per_s = 5000
[limits]
deadline_h = 4
energy_kwh = 2.5
memory_gib = 30
gpus = 4
[site]
pue = 1.2
host_power_w = 400
grid = "FR"
start = 2026-03-01T08:00:00
price_per_kwh = 0.2
price_per_gpu_hour = { t4 = 0.5, a100-sxm4-40gb = 2.0 }
currency = "EUR"
""")
    found = load_request(tmp_path / "ask.toml")
    assert found.objective is Objective.COST
    assert found.confidence_frac == 0.9
    assert found.candidates.axes["n_gpus"] == (1, 2, 4)
    assert found.candidates.axes["accumulate"] == (1, 2, 4, 8, 16)
    assert "batch_per_gpu" not in found.candidates.axes
    assert found.limits == Limits(run_time_s=14_400, energy_j=2.5 * 3.6e6, memory_bytes=30 * GIB, n_gpus=4)
    assert found.plan.stop_epochs == (3, 10)
    assert found.site.prices.of_gpu("t4") == pytest.approx(0.5 / 3600)
    assert found.site.start == datetime(2026, 3, 1, 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[limit]\ndeadline_h = 1", r"unknown key 'limit'; did you mean limits"),
        ("[limits]\ndeadline = 1", r"unknown key of \[limits\] 'deadline'; did you mean deadline_h"),
        ("[candidates]\nmodle = 'x'", r"unknown key of \[candidates\] 'modle'; did you mean mode, model"),
        ("limits = 3", r"limits must be a table"),
        ("[limits]\ndeadline_h = 'soon'", "deadline_h must be a number, got 'soon'"),
        ("[limits]\nenergy_kwh = -1", "a limit of -3.6e"),
        ("objective = 'engery'", "unknown objective 'engery'; did you mean energy"),
        ("[run]\nsamples = 1\nstop_epochs = 3", "stop_epochs must be"),
        ("[candidates]\nmodel = 'x'\ngpu = 't4'\n[site]\nembodied_gpu_kg = 3", "go together"),
        ("[candidates]\nmodel = 'x'\ngpu = 't4'\n[site]\nstart = 'noon'", "start must be a TOML date-time"),
        ("[limits]\n[limits]", "not TOML"),
        ("[candidates]\nmodel = 'bert-base'", "it has no gpu"),
    ],
)
def test_a_file_that_cannot_be_is_refused(tmp_path, text, message):
    (tmp_path / "ask.toml").write_text(text)
    with pytest.raises(UsageError, match=message) as error:
        load_request(tmp_path / "ask.toml")
    assert str(error.value).startswith(str(tmp_path / "ask.toml"))


def test_an_unknown_key_is_an_unknown_name():
    with pytest.raises(UnknownNameError):
        request_of({"candidate": {}})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"plan": None, "limits": Limits(run_time_s=5)}, "deadline is one of a whole run"),
        ({"objective": Objective.CO2E}, "needs the grid"),
        ({"objective": Objective.COST}, "needs prices"),
        ({"objective": Objective.COST, "site": Site(prices=prices(currency="EUR"))}, "needs prices"),
        ({"confidence_frac": 1.0}, "confidence"),
    ],
)
def test_a_request_that_lacks_something_is_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        request(**fields)


def test_a_card_without_a_price_is_refused():
    paid = prices(per_gpu_hour_by_gpu={"t4": 0.5})
    with pytest.raises(UsageError, match="no price of a GPU-hour is given for a100-sxm4-40gb"):
        recommend(request(objective=Objective.COST, site=Site(prices=paid)))

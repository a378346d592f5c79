import numpy as np
import pytest

from joulecast.errors import UnknownNameError, UsageError
from joulecast.explore.space import load_space, scenario_of, space_of

BASE = {"model": "bert-base", "gpu": "t4"}


def test_a_space_is_every_combination_with_the_last_key_fastest():
    space = space_of({"power_limit_w": [50, 70], "batch_per_gpu": [1, 2, 4], **BASE})

    assert len(space) == 6
    assert [c["batch_per_gpu"] for c in space.configurations()] == [1, 1, 2, 2, 4, 4]
    assert [c["power_limit_w"] for c in space.configurations()] == [50, 70] * 3


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"start": 100, "stop": 130, "step": 10}, (100, 110, 120, 130)),
        ("100:135:10", (100, 110, 120, 130)),
        ("8:64:x2", (8, 16, 32, 64)),
        ([5, "6:7:1", 5], (5, 6, 7)),
        (0.1, (0.1,)),
        ("0.1:0.3:0.1", (0.1, 0.2, 0.3)),
        (["default", 60], (None, 60)),
    ],
)
def test_values_lists_and_ranges(given, values):
    assert space_of({**BASE, "power_limit_w": given}).axes["power_limit_w"] == pytest.approx(values)


def test_positions_of_a_block_are_those_of_its_configurations():
    space = space_of({**BASE, "batch_per_gpu": "1:7:1", "n_gpus": [1, 2, 4]})
    positions = space.positions(5, 11)

    for i in range(6):
        values = {key: space.axes[key][index[i]] for key, index in positions.items()}
        assert values == space.configuration(5 + i)
    assert len(space.positions(18, 99)["gpu"]) == len(space) - 18


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "the space is empty: it has no model"),
        ({"model": "bert-base"}, "it has no gpu"),
        ({**BASE, "n_gpus": []}, "the space is empty: n_gpus has no value"),
        ({**BASE, "batch": 4}, "unknown key of a space 'batch'; did you mean global_batch, batch_per_gpu"),
        ({**BASE, "batch_per_gpu": 4, "global_batch": 8}, "say the same twice"),
        ({**BASE, "n_gpus": 1.5}, "n_gpus: must be a whole number, got 1.5"),
        ({**BASE, "n_gpus": True}, "n_gpus: must be a number above 0"),
        ({**BASE, "seq_len": -1}, "seq_len: must be a number above 0"),
        ({**BASE, "clip": 1}, "clip: must be true or false"),
        ({**BASE, "power_limit_w": "100:200"}, "neither a number nor a range"),
        ({**BASE, "power_limit_w": "200:100:10"}, "ends at 100, before its start 200"),
        ({**BASE, "power_limit_w": {"start": 1, "stop": 2}}, "a range has start, stop and either"),
        (
            {**BASE, "batch_per_gpu": {"start": 1, "stop": 2, "factor": 1}},
            "factor of a range must be above 1",
        ),
        ({**BASE, "power_limit_w": "1:1e9:0.001"}, "more than 1000000 values"),
    ],
)
def test_what_cannot_be_a_space_says_why(values, message):
    with pytest.raises(UsageError, match=message):
        space_of(values)


def test_an_unknown_key_names_what_it_may_have_meant():
    with pytest.raises(UnknownNameError) as caught:
        space_of({**BASE, "power_limit": 100})
    assert "power_limit_w" in caught.value.near


def test_a_file_is_a_space_and_its_dictionary_makes_it_again(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text(
        'model = ["bert-base", "resnet50"]\ngpu = "t4"\ncheckpointing = [false, true]\n'
        'power_limit_w = ["default", { start = 40, stop = 70, step = 10 }]\n'
    )
    space = load_space(path)
    assert len(space) == 2 * 2 * 5
    assert space_of(space.to_dict()) == space

    path.write_text("model = [")
    with pytest.raises(UsageError, match=r"space\.toml: not TOML"):
        load_space(path)
    with pytest.raises(UsageError, match="cannot be read"):
        load_space(tmp_path / "none.toml")


def test_batches_divide_into_gpus_and_micro_batches():
    asked = {**BASE, "global_batch": 64.0, "n_gpus": 4, "accumulate": 2}
    assert scenario_of(asked).batch_size == 8
    assert scenario_of({**BASE, "batch_per_gpu": 12.0, "accumulate": 3}).batch_size == 4
    with pytest.raises(UsageError, match="do not divide into whole micro-batches"):
        scenario_of({**asked, "global_batch": 60.0})


def test_a_fraction_is_of_the_highest_limit():
    limit_w = scenario_of({"model": "bert-base", "gpu": "t4", "power_limit_frac": 0.8}).power_limit_w
    assert limit_w == pytest.approx(0.8 * 70)
    assert np.isfinite(limit_w)


def test_configurations_that_share_a_load_are_counted():
    values = {
        **BASE,
        "batch_per_gpu": [1, 2],
        "n_gpus": [1, 2],
        "power_limit_w": "60:70:5",
        "sm_clock_hz": 1e9,
    }
    assert space_of(values).n_sharing_a_load == 2 * 3

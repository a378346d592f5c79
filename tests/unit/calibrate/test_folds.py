"""What is held out, and that the one-step jackknife gives what a fit without the rows would."""

from dataclasses import dataclass

import numpy as np
import pytest

from joulecast.calibrate.dataset import family_of
from joulecast.calibrate.evolution import Search, evolve, robust_loss
from joulecast.calibrate.folds import Fold, dealt, values_without
from joulecast.calibrate.stages import Stage, StageResult, fit_stage
from joulecast.model.parameters import definition, initial_parameters

START = initial_parameters().values
NAME = "bandwidth.copy"


@dataclass(frozen=True)
class Means:
    """Rows that each say what a parameter is: the best fit is near their mean."""

    said: np.ndarray
    labels: np.ndarray

    def residuals(self, values):
        return np.log(self.said / values[NAME])

    def groups(self):
        return self.labels


@pytest.fixture
def problem():
    labels = np.array(["a#x"] * 10 + ["b#y"] * 10)
    return Means(said=np.r_[np.full(10, 0.50), np.full(10, 0.52)], labels=labels)


def fitted(problem):
    return fit_stage(Stage(name="s", parameters=(NAME,), problem=problem, prior_weight=0.0), START)


@pytest.mark.parametrize(("kind", "member", "left"), [("gpu", "a", 0.52), ("family", "y", 0.50)])
def test_leaving_rows_out_gives_what_the_others_say(problem, kind, member, left):
    result = fitted(problem)
    assert result.values[NAME] == pytest.approx(0.51, rel=1e-3)
    fold = Fold(kind=kind, members=frozenset([member]))
    without = values_without(fold, {**START, **result.values}, [result])
    assert without[NAME] == pytest.approx(left, rel=2e-3)


def test_the_last_stage_that_fitted_a_parameter_counts(problem):
    result = fitted(problem)
    later = StageResult(
        name="later",
        values={NAME: 0.7},
        error_before=0.0,
        error_after=0.0,
        at_bound=(),
        linearised=None,
    )
    fold = Fold(kind="gpu", members=frozenset(["a"]))
    undone = StageResult(**{**{f: getattr(result, f) for f in result.__slots__}, "kept": False})
    assert values_without(fold, {**START, NAME: 0.7}, [result, later])[NAME] == pytest.approx(0.52, rel=2e-3)
    assert values_without(fold, {**START, NAME: 0.7}, [undone])[NAME] == 0.7


def test_folds_are_dealt_so_that_each_member_is_left_out_once():
    folds = [Fold(kind="gpu", members=frozenset([f"g{i}"])) for i in range(7)]
    folds += [Fold(kind="family", members=frozenset(["f"]))]
    joined = dealt(folds, 3)
    assert [fold.kind for fold in joined] == ["gpu", "gpu", "gpu", "family"]
    assert sorted(name for fold in joined for name in fold.members) == ["f", *(f"g{i}" for i in range(7))]


def test_labels_tell_gpus_from_families_and_the_prior_from_both():
    labels = np.array(["a#x", "b#x", "a#y", ""])
    assert Fold(kind="gpu", members=frozenset("a")).leaves_out(labels).tolist() == [True, False, True, False]
    assert Fold(kind="family", members=frozenset("x")).leaves_out(labels).tolist() == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("timm/resnet50d", "timm/resnet"),
        ("timm/tf_efficientnetv2_s", "timm/efficientnetv"),
        ("timm/swsl_resnext101_32x16d", "timm/resnext"),
        ("torchvision/resnet152", "torchvision/resnet152"),
        ("hf/gpt2#causal-lm", "hf/gpt2"),
    ],
)
def test_a_family_is_named_by_its_architecture(model, family):
    assert family_of(model) == family


class TwoValleys:
    """A loss with a shallow valley at the start and a deep one far away."""

    def losses(self, values):
        share = np.asarray(values[NAME])[:, 0]
        return robust_loss(np.minimum(np.abs(share - 0.9) + 0.1, 2 * np.abs(share - 0.2))[:, None])


def test_evolution_leaves_the_valley_it_starts_in():
    found = evolve(TwoValleys(), (NAME,), {**START, NAME: 0.9}, Search(n_generations=30))
    assert found[NAME] == pytest.approx(0.2, abs=0.02)
    again = evolve(TwoValleys(), (NAME,), {**START, NAME: 0.9}, Search(n_generations=30))
    assert again == found
    assert definition(NAME).low <= found[NAME] <= definition(NAME).high

"""What is held out: one GPU, or one family of models, at a time.

In: stage results with their linearised problems. Out: the parameters that a fit without a fold would have
given, and the errors on what it left out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from joulecast.calibrate.dataset import StepRecord, fold_label
from joulecast.calibrate.stages import StageResult, Values
from joulecast.model.rows import Booleans
from joulecast.workload.table import Strings

FoldKind = Literal["gpu", "family"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """What a fit does not see.

    Attributes
    ----------
    kind : str
        ``gpu``: slugs; ``family``: as in `family_of`.
    members : frozenset of str
        Slugs or families.
    """

    kind: FoldKind
    members: frozenset[str]

    @property
    def name(self) -> str:
        """Names of the members."""
        return ", ".join(sorted(self.members))

    def leaves_out(self, labels: Strings) -> Booleans:
        """Return which rows the fold leaves out, by their ``GPU#FAMILY``; rows without a label stay."""
        split = np.char.partition(labels, "#")[:, 0 if self.kind == "gpu" else 2]
        left_out: Booleans = np.isin(split, sorted(self.members))
        return left_out


#: Sources held out by family: all or nearly all of their rows are on one card, or on a card each.
BY_FAMILY: Final = ("huggingface/", "willgpaik/", "EnergAIzer")


def folds_of(records: Iterable[StepRecord], operator_gpus: Iterable[str] = ()) -> list[Fold]:
    """Return every GPU and every family on its own, the GPUs first."""
    gpus, families = set(operator_gpus), set()
    for record in records:
        slug, _, family = fold_label(record).partition("#")
        if record.source.startswith(BY_FAMILY):
            families.add(family)
        else:
            gpus.add(slug)
    return [
        *(Fold(kind="gpu", members=frozenset([name])) for name in sorted(gpus)),
        *(Fold(kind="family", members=frozenset([name])) for name in sorted(families)),
    ]


def dealt(folds: Sequence[Fold], n_of_each: int) -> list[Fold]:
    """Return the folds of each kind joined to a few large ones, dealt in turn."""
    joined = []
    for kind in ("gpu", "family"):
        of_kind = [fold for fold in folds if fold.kind == kind]
        for first in range(min(n_of_each, len(of_kind))):
            members = frozenset[str]().union(*(fold.members for fold in of_kind[first::n_of_each]))
            joined.append(Fold(kind=kind, members=members))
    return joined


def belongs(record: StepRecord, fold: Fold) -> bool:
    """Return whether a record is one that a fold is judged by."""
    by_family = record.source.startswith(BY_FAMILY)
    slug, _, family = fold_label(record).partition("#")
    return by_family == (fold.kind == "family") and (family if by_family else slug) in fold.members


def values_without(fold: Fold, values: Values, results: Sequence[StageResult]) -> dict[str, float]:
    """Return the parameters that stages would have found without a fold, to first order each.

    Parameters
    ----------
    fold : Fold
    values : mapping
        All parameters as fitted.
    results : sequence of StageResult
        In the order of the fit; a parameter that several fitted is the last one's.
    """
    found: dict[str, float] = {}
    for result in reversed(results):
        if not result.kept or result.linearised is None or set(result.values) <= set(found):
            continue
        left_out = fold.leaves_out(result.linearised.groups)
        without = result.linearised.without(left_out) if bool(np.any(left_out)) else result.values
        found = {**without, **found}
    return {**values, **found}

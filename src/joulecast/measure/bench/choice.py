"""Which operator to time next: where the parameters are least known. No torch, no clock.

Enters: cases, what a parameter set expects of each, what was measured. Leaves: the next case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log, sqrt
from typing import Final

import numpy as np

from joulecast.hardware.spec import Gpu
from joulecast.measure.bench.cases import Case, columns_of, positions
from joulecast.model.rows import rows_of
from joulecast.model.time import kernel_time_s, row_costs
from joulecast.workload.operator_table import HOST_PARAMETERS, KINDS, operator_table
from joulecast.workload.table import Floats

#: How far a group may lie from the set before anything is measured, as a log ratio; it counts as one
#: observation afterwards. [1] (guess: cards that a set has not seen lie 30-60 % off, operator by operator)
_PRIOR_SPREAD: Final = 0.5

#: A set may say that something costs the host nothing. [s]
_LEAST_S: Final = 1e-9

#: Type of a case -> precision policy under which the model takes the unit that the case uses.
_POLICY: Final = {"fp32": "fp32-strict", "tf32": "tf32", "bf16": "bf16-pure", "fp16": "fp16-o2"}


def expected_latency_s(cases: Sequence[Case], gpu: Gpu, values: Mapping[str, float]) -> Floats:
    """Return what a parameter set expects of each case. [s] [case].

    Parameters
    ----------
    cases : sequence of Case
    gpu : Gpu
    values : mapping
        Parameters.
    """
    expected = np.array([values.get(HOST_PARAMETERS.get(case.op, ""), np.nan) for case in cases])
    for dtype in sorted({case.dtype for case in cases}):
        chosen = [i for i, case in enumerate(cases) if case.dtype == dtype and case.op in KINDS]
        if not chosen:
            continue
        table = operator_table(columns_of([cases[i] for i in chosen]))
        rows = rows_of(table, _POLICY[dtype], gpu)
        times = kernel_time_s(row_costs(rows, values), gpu.boost_clock_hz)
        expected[chosen] = times * table.n_calls
    return expected


@dataclass(slots=True)
class Group:
    """Cases that share an efficiency, and what is known of it.

    Attributes
    ----------
    name : str
    cases : list of Case
        Not yet measured.
    measured : list of Case
    log_ratios : list of float
        log(measured / expected) of those. [1]
    """

    name: str
    cases: list[Case] = field(default_factory=list)
    measured: list[Case] = field(default_factory=list)
    log_ratios: list[float] = field(default_factory=list)

    @property
    def standard_error(self) -> float:
        """How well the group's mean ratio to the set is known; infinite before the first case. [1]

        Notes
        -----
        ``sqrt((sum (r - mean r)^2 + s0^2) / n) / sqrt(n)``: the prior's spread s0 counts as one observation,
        so that two cases that agree by chance do not end the search.
        """
        n = len(self.log_ratios)
        if n == 0:
            return inf
        deviations = np.asarray(self.log_ratios) - np.mean(self.log_ratios)
        return sqrt((float(np.sum(deviations**2)) + _PRIOR_SPREAD**2) / n) / sqrt(n)

    def farthest(self) -> Case:
        """Return the case farthest in size from those measured; the middle one first."""
        where = positions([*self.measured, *self.cases])
        done, waiting = where[: len(self.measured)], where[len(self.measured) :]
        if not len(done):
            distance = -np.sum(np.abs(waiting - np.median(waiting, axis=0)), axis=1)
        else:
            distance = np.min(np.sum(np.abs(waiting[:, None] - done[None]), axis=2), axis=1)
        return self.cases[int(np.argmax(distance))]


class Search:
    """Chooses cases until every group is known well enough, or none is left.

    Parameters
    ----------
    cases : sequence of Case
    expected_s : ndarray [case]
        See `expected_latency_s`.
    error_frac : float
        A group known better than this is left alone. [1]
    """

    def __init__(self, cases: Sequence[Case], expected_s: Floats, *, error_frac: float = 0.03) -> None:
        self.groups: dict[str, Group] = {}
        self._error_frac = error_frac
        self._expected_s = {case.identity: e for case, e in zip(cases, expected_s.tolist(), strict=True)}
        for case in cases:
            self.groups.setdefault(case.group, Group(name=case.group)).cases.append(case)

    def next(self) -> Case | None:
        """Return the case to time next: of the group whose mean is least known; None if all are."""
        waiting = [group for group in self.groups.values() if group.cases]
        waiting = [group for group in waiting if group.standard_error > self._error_frac]
        if not waiting:
            return None
        return max(waiting, key=lambda group: group.standard_error).farthest()

    def take(self, case: Case, latency_s: float | None) -> None:
        """Learn what a case took; None if it could not run, so that it is not tried again."""
        group = self.groups.get(case.group)
        if group is None:
            return
        known = [waiting for waiting in group.cases if waiting.identity == case.identity]
        for waiting in known:
            group.cases.remove(waiting)
        if latency_s is None or not known:
            return
        group.measured.append(case)
        expected_s = self._expected_s[case.identity]
        group.log_ratios.append(log(latency_s / max(expected_s, _LEAST_S)))

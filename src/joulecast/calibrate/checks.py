"""What is wrong, or odd, about measurements that a calibration is given.

In: runs, their records, what is predicted for them. Out: an error that says what to do, or named notices.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

import numpy as np

from joulecast.calibrate.runs import MEASURED_COLUMNS, NUMBER_COLUMNS, REQUIRED_COLUMNS, Run, RunsFile
from joulecast.errors import RunsError
from joulecast.units import GIB, KIB, KILO, MIB
from joulecast.workload.table import Floats

#: Columns of a file of runs that mean something here, or that other tools of the same kind write.
KNOWN_COLUMNS: Final = frozenset(
    (
        *REQUIRED_COLUMNS,
        *NUMBER_COLUMNS,
        *MEASURED_COLUMNS,
        *"run_id source licence source_ref mode parallel precision global_batch optimizer".split(),
        *"memory_format attention compile samples_per_s memory_meter generation torch_version".split(),
        *"suspect note".split(),
    )
)

#: Columns that make two runs the same configuration.
CONFIGURATION: Final = (
    *("model", "mode", "gpu", "n_gpus", "parallel", "precision", "batch_per_gpu", "seq_len", "image_size"),
    *("optimizer", "memory_format", "attention", "compile", "power_limit_w", "sm_clock_hz", "n_sms"),
)

#: Times of one configuration that differ by more than this contradict each other: repeats of a measurement
#: agree within a few per cent. [1]
LARGEST_SPREAD: Final = 1.25

#: Fewest configurations that a calibration takes: one is held out, two remain.
FEWEST_CONFIGURATIONS: Final = 3

#: Names of what a wrong unit makes of a column: factor by which the number is too large, what it then is.
_MISTAKES: Final[Mapping[str, tuple[tuple[float, str, str], ...]]] = {
    "step_time_s": ((KILO, "milliseconds", "seconds"), (KILO**2, "microseconds", "seconds")),
    "mean_power_w": ((1 / KILO, "kilowatts", "watts"), (KILO, "milliwatts", "watts")),
    "energy_per_step_j": (
        (KILO, "millijoules", "joules"),
        (1 / KILO, "kilojoules", "joules"),
    ),
    "peak_memory_bytes": (
        (1 / MIB, "MiB", "bytes"),
        (1 / GIB, "GiB", "bytes"),
        (1 / KIB, "KiB", "bytes"),
    ),
}

#: A number counts as of another unit if it is this close to the factor: predictions are within 5 times. [1]
_CLOSENESS: Final = 8.0
_N_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A named warning.

    Attributes
    ----------
    name : str
        Such as ``one-gpu``.
    text : str
    """

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


def configuration(run: Run) -> tuple[str, ...]:
    """Return what two runs of the same configuration share."""
    return tuple(run.text(column) for column in CONFIGURATION)


def unknown_columns(file: RunsFile) -> list[Notice]:
    """Return a notice for each column that nothing here reads."""
    notices = []
    for name in file.columns:
        if name in KNOWN_COLUMNS or name.startswith(("predicted_", "low_", "high_", "skipped_")):
            continue
        near = get_close_matches(name, sorted(KNOWN_COLUMNS), n=1, cutoff=0.6)
        hint = f": did you mean {near[0]}?" if near else ""
        notices.append(Notice(name="unknown-column", text=f"{name!r} is not read{hint}"))
    return notices


def check_measured(file: RunsFile) -> None:
    """Raise `RunsError` unless a run states a time or a power."""
    if any({"step_time_s", "mean_power_w"} & set(run.measured) for run in file.runs):
        return
    raise RunsError("no run has a step_time_s or a mean_power_w: there is nothing to calibrate with")


def check_units(runs: Sequence[Run], column: str, predicted: Floats) -> None:
    """Raise `RunsError`, naming the unit, where numbers are off by a factor that a unit explains.

    Parameters
    ----------
    runs : sequence of Run
        All with the column.
    column : str
        One of `MEASURED_COLUMNS`.
    predicted : ndarray [run]
        In the column's SI unit.
    """
    ratio = np.array([run.measured[column] for run in runs]) / predicted  # [run]
    for factor, found, wanted in _MISTAKES[column]:
        wrong = np.flatnonzero(np.abs(np.log(ratio / factor)) < np.log(_CLOSENESS))
        if not len(wrong):
            continue
        first = runs[int(wrong[0])]
        lines = ", ".join(str(runs[i].line) for i in wrong[:_N_NAMED].tolist())
        more = f" and {len(wrong) - _N_NAMED} more" if len(wrong) > _N_NAMED else ""
        raise RunsError(
            f"{column} of {first.measured[column]:g} in line {lines}{more} looks like {found}: it is about "
            f"{_factor_text(float(ratio[wrong[0]]))} what is predicted; give {wanted}"
        )


def _factor_text(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio > 1 else f"1/{1 / ratio:,.0f} of"


def contradictions(runs: Iterable[Run]) -> list[Notice]:
    """Return a notice for each configuration whose times differ by more than `LARGEST_SPREAD`."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        if "step_time_s" in run.measured:
            groups.setdefault((run.source, *configuration(run)), []).append(run)
    notices = []
    for same in groups.values():
        times = [run.measured["step_time_s"] for run in same]
        if max(times) > LARGEST_SPREAD * min(times):
            lines = ", ".join(str(run.line) for run in same)
            notices.append(
                Notice(
                    name="contradictory-rows",
                    text=f"lines {lines} are of one configuration and take {min(times):g} to "
                    f"{max(times):g} s: all are used; drop the ones you do not trust",
                )
            )
    return notices


def one_gpu(slugs: Iterable[str]) -> list[Notice]:
    """Return a notice where all runs are on one card."""
    names = sorted(set(slugs))
    if len(names) != 1:
        return []
    return [
        Notice(
            name="one-gpu",
            text=f"all runs are on {names[0]}: what cards share (efficiencies, energy per FLOP by process, "
            "kinds of memory) cannot be told from what is this card's own, so the set covers this card alone",
        )
    ]


def check_enough(n_configurations: int, skipped: Mapping[str, str]) -> None:
    """Raise `RunsError` where too few configurations can be used."""
    if n_configurations >= FEWEST_CONFIGURATIONS:
        return
    why = "; ".join(f"{run}: {reason}" for run, reason in list(skipped.items())[:_N_NAMED])
    raise RunsError(
        f"{n_configurations} configurations of runs can be used, a calibration needs at least "
        f"{FEWEST_CONFIGURATIONS}: measure other batch sizes, models or limits"
        + (f" ({len(skipped)} left out, {why})" if skipped else "")
    )

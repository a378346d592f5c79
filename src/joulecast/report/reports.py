"""The report of a table of predictions: what is in it, what is best, and its figures.

In: a `SweepResult`, of a sweep or a study. Out: a `Page`. A table holds whole steps; the operators and the
memory of a few of them are predicted anew, with the parameters at hand.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

import joulecast
from joulecast.errors import JoulecastError, UsageError
from joulecast.explore.anatomy import Anatomy, anatomy
from joulecast.explore.space import KEYS, scenario_of
from joulecast.explore.study import Study, comparable, sharing, sharing_of
from joulecast.explore.table import SweepResult
from joulecast.model.parameters import ParameterSet, load_parameters
from joulecast.prediction import predict_scenario
from joulecast.report.charts import Figure
from joulecast.report.figures import count, digits, gibibytes, with_prefix
from joulecast.report.page import Page, Section
from joulecast.report.slices import Columns, columns_of, distinct, groups, n_rows, slice_along, take, varies
from joulecast.report.step_figures import memory_figure, operators_figure, roofline_figure, sharing_figure
from joulecast.report.table_figures import model_labels, table_figures
from joulecast.report.tables import Sheet
from joulecast.results import Prediction

#: Steps whose operators are predicted anew.
MOST_STEPS: Final = 18

#: Panels of the roofline: the last precision of every model.
_MOST_ROOFLINES: Final = 6

#: A step predicted anew differs from the table by more than this where the parameters are not the same. [1]
_SAME: Final = 1e-6

_N_LISTED: Final = 6


def report_page(result: SweepResult, *, parameters: ParameterSet | None = None, title: str = "") -> Page:
    """Return the report of a table.

    Parameters
    ----------
    result : SweepResult
    parameters : ParameterSet, optional
        Of the steps that are predicted anew; by default the shipped set.
    title : str
        Of the page.

    Raises
    ------
    UsageError
        No row of the table is predicted.
    """
    columns = columns_of(result)
    if not n_rows(columns):
        raise UsageError(f"nothing to report: {_reasons(result) or 'the table is empty'}")
    fitted = load_parameters() if parameters is None else parameters
    labels = model_labels(distinct(columns, "model"))
    by_name = {figure.name: figure for figure in table_figures(columns, labels)}
    steps = _Steps(columns, labels, fitted)
    sections = (
        Section(title="What is in it", body=(_contents(columns), _skipped(result))),
        Section(title="Best choices", body=_best(columns, labels)),
        Section(title="Precision", body=_named(by_name, "precision")),
        Section(title="Operators", body=steps.operators()),
        Section(title="Memory", body=steps.memory()),
        Section(title="Parameter sharing", body=steps.sharing()),
        Section(title="Batch", body=_named(by_name, "batch-")),
        Section(title="Power limit", body=_named(by_name, "power-limit-")),
        Section(title="Scaling", body=_named(by_name, "scaling")),
        Section(title="Time and energy", body=_named(by_name, "front")),
        Section(title="Remarks", body=(*_remarks(columns), *steps.remarks)),
    )
    kept = [Section(title=s.title, body=tuple(part for part in s.body if part)) for s in sections]
    return Page(
        title=title or _title(columns, labels),
        subtitle=(
            "Time, power, energy and memory of training steps, predicted before a GPU runs them. Point at a "
            "mark for its numbers; a name above a figure picks its series out."
        ),
        sections=tuple(section for section in kept if section.body),
        footer=(
            f"joulecast {joulecast.__version__}. Intervals are meant to hold 90 % of measured values; "
            f"{_origins(columns)}"
        ),
    )


def study_figures(found: Study) -> list[Figure]:
    """Return the figures of a study, under the names that its models were asked for by."""
    steps = {f"{found.labels[model]} {name}": parts for (model, name), parts in found.anatomies.items()}
    points = {f"{found.labels[model]} {name}": found.point(model, name) for model, name in found.anatomies}
    baseline = found.plan.precisions[0]
    baselines = {
        f"{found.labels[model]} {name}": f"{found.labels[model]} {baseline}"
        for model, name in found.anatomies
    }
    energies_j = {label: p.energy_per_step_j.value / p.n_gpus for label, p in points.items()}
    last = found.plan.precisions[-1]
    made = (
        roofline_figure({label: parts for label, parts in steps.items() if parts.scenario.precision == last}),
        operators_figure(steps, energies_j, baselines),
        memory_figure(steps, points),
        sharing_figure(sharing(found), found.labels),
        *table_figures(columns_of(found.table()), found.labels),
    )
    return [replace(figure, name=f"study-{figure.name}") for figure in made if figure is not None]


def _named(by_name: dict[str, Figure], start: str) -> tuple[Figure, ...]:
    return tuple(figure for name, figure in by_name.items() if name.startswith(start))


def _title(columns: Columns, labels: dict[str, str]) -> str:
    models = [labels[model] for model in distinct(columns, "model")]
    return f"{_listed(models)} on {_listed(distinct(columns, 'gpu'))}"


def _listed(names: Sequence[Any]) -> str:
    shown = [str(name) for name in names[:_N_LISTED]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _origins(columns: Columns) -> str:
    words = {
        "calibrated": "calibrated: the parameters were fitted to runs of this card and precision",
        "datasheet": "datasheet: they were carried over from other hardware",
        "measured": "measured by a meter",
    }
    return "; ".join(words[origin] for origin in distinct(columns, "origin")) + "."


# --- what is in it, and what is best --------------------------------------------------------------

_CONTENTS: Final = (
    ("model", "model", ""),
    ("gpu", "card", ""),
    ("n_gpus", "GPUs", ""),
    ("precision", "precision", ""),
    ("batch_per_gpu", "batch per GPU", ""),
    ("seq_len", "sequence", " tokens"),
    ("image_size", "image", " px"),
    ("optimizer", "optimizer", ""),
    ("checkpointing", "checkpointing", ""),
    ("accumulate", "micro-batches", ""),
    ("power_limit_w", "power limit", " W"),
    ("locked_sm_clock_hz", "locked clock", " Hz"),
)


#: Values that say nothing: no checkpointing, one micro-batch.
_TRIVIAL: Final = ([False], [1])


def _contents(columns: Columns) -> Sheet:
    rows = [("configurations", str(n_rows(columns)))]
    for name, label, unit in _CONTENTS:
        values = [v for v in distinct(columns, name) if v == v and v != ""]  # noqa: PLR0124 (NaN)
        if not values or values in _TRIVIAL:
            continue
        rows.append((label, _values_text(values, unit)))
    return Sheet(columns=("", "values"), rows=tuple(rows))


def _values_text(values: list[Any], unit: str) -> str:
    is_number = isinstance(values[0], (int, float)) and not isinstance(values[0], bool)
    if is_number and len(values) > _N_LISTED:
        return f"{len(values)} from {count(min(values))} to {count(max(values))}{unit}"
    words = [count(value) if is_number else str(value) for value in values]
    return _listed(words) + unit


def _reasons(result: SweepResult) -> str:
    skipped = Counter(result["skipped_reason"][~result.predicted].tolist())
    return "; ".join(f"{n} x {reason}" for reason, n in skipped.most_common(_N_LISTED))


def _skipped(result: SweepResult) -> str:
    reasons = _reasons(result)
    return f"Not predicted: {reasons}." if reasons else ""


_BEST: Final = (
    ("fastest", "samples_per_s", False),
    ("least energy per sample", "energy_per_sample_j", True),
)


def _best(columns: Columns, labels: dict[str, str]) -> tuple[Sheet | str, ...]:
    """Return the fastest and the thriftiest configuration of every model that surely fits."""
    fits = np.flatnonzero(columns["memory_verdict"] == "fits")
    rows = []
    for chosen in groups(columns, ("model",), fits):
        for what, name, least in _BEST:
            values = columns[name][chosen]
            rows.append(
                _best_row(columns, chosen[np.argmin(values) if least else np.argmax(values)], what, labels)
            )
    if not rows:
        return (
            "No configuration surely fits into memory: the upper end of every memory interval is above it.",
        )
    heads = (
        "model",
        "",
        "GPUs",
        "precision",
        ">batch/GPU",
        ">limit",
        ">samples/s",
        ">90 %",
        ">J/sample",
        ">90 %",
    )
    more = (">W/GPU", ">memory")
    return (
        "The best configuration of every model among those whose memory interval ends below the capacity.",
        Sheet(columns=(*heads, *more), rows=tuple(rows)),
    )


def _best_row(columns: Columns, i_row: Any, what: str, labels: dict[str, str]) -> tuple[str, ...]:
    (row,) = take(columns, np.array([i_row]), list(columns))
    return (
        labels[row["model"]],
        what,
        f"{row['n_gpus']} x {row['gpu']}",
        row["precision"],
        count(row["batch_per_gpu"]),
        f"{digits(row['power_limit_w'])} W",
        digits(row["samples_per_s"]),
        f"{digits(row['low_samples_per_s'])} - {digits(row['high_samples_per_s'])}",
        digits(row["energy_per_sample_j"]),
        f"{digits(row['low_energy_per_sample_j'])} - {digits(row['high_energy_per_sample_j'])}",
        digits(row["mean_power_w"]),
        gibibytes(row["process_bytes"]),
    )


def _remarks(columns: Columns) -> list[str]:
    """Return every flag once, and the guesses."""
    flags = Counter(flag for cell in columns["flags"].tolist() for flag in cell.split("; ") if flag)
    guesses = sorted({guess for cell in columns["guesses"].tolist() for guess in cell.split("; ") if guess})
    n = n_rows(columns)
    lines = [
        f"{flag[0].upper()}{flag[1:]}{'' if n_times == n else f' ({n_times} of {n} configurations)'}."
        for flag, n_times in flags.most_common()
    ]
    if guesses:
        lines.append(f"Guessed facts of the cards: {', '.join(guesses)}.")
    return lines


# --- steps predicted anew -------------------------------------------------------------------------


class _Steps:
    """The reference steps of a table, every precision of every model and card, taken apart."""

    def __init__(self, columns: Columns, labels: dict[str, str], parameters: ParameterSet) -> None:
        self.anatomies: dict[str, Anatomy] = {}
        self.predictions: dict[str, Prediction] = {}
        self.baselines: dict[str, str] = {}
        self.remarks: list[str] = []
        self._labels = labels
        rows = slice_along(columns, ("precision",))
        several = varies(columns, rows, "gpu")
        for chosen in groups(columns, ("model", "gpu"), rows):
            for row in take(
                columns, chosen, [*(k for k in KEYS if k in columns), "locked_sm_clock_hz", "step_time_s"]
            ):
                if len(self.anatomies) < MOST_STEPS:
                    self._add(row, parameters, several=several)

    def _add(self, row: dict[str, Any], parameters: ParameterSet, *, several: bool) -> None:
        owner = f"{self._labels[row['model']]} {row['gpu']}" if several else self._labels[row["model"]]
        label = f"{owner} {row['precision']}"
        asked = {
            name: value
            for name, value in row.items()
            if name in KEYS and name != "sm_clock_hz" and value != "" and value == value  # noqa: PLR0124 (NaN)
        }
        clock_hz = row["locked_sm_clock_hz"]
        if clock_hz == clock_hz:  # noqa: PLR0124 (NaN)
            asked["sm_clock_hz"] = clock_hz
        asked.pop("global_batch", None)
        whole: dict[str, Any] = {
            name: int(asked[name]) for name in ("seq_len", "image_size", "n_sms") if name in asked
        }
        try:
            scenario = scenario_of({**asked, **whole, "force": True})
            prediction, parts = predict_scenario(scenario, parameters), anatomy(scenario, parameters)
        except JoulecastError as error:
            self.remarks.append(f"The operators of {label} cannot be shown: {error}.")
            return
        if abs(prediction.step_time_s.value / row["step_time_s"] - 1) > _SAME:
            self.remarks.append(
                f"The table was predicted with other parameters than the operators of {label}: its step is "
                f"{with_prefix(row['step_time_s'], 's')} there and "
                f"{with_prefix(prediction.step_time_s.value, 's')} here."
            )
        self.baselines[label] = next((k for k in self.baselines.values() if k.startswith(f"{owner} ")), label)
        self.anatomies[label], self.predictions[label] = parts, prediction

    def operators(self) -> tuple[Figure, ...]:
        """Return the roofline of every model's last precision, and where time and energy go."""
        if not self.anatomies:
            return ()
        last = {self.baselines[label]: label for label in self.anatomies}
        shown = {label: self.anatomies[label] for label in list(last.values())[:_MOST_ROOFLINES]}
        energies_j = {label: p.energy_per_step_j.value / p.n_gpus for label, p in self.predictions.items()}
        made = roofline_figure(shown), operators_figure(self.anatomies, energies_j, self.baselines)
        return tuple(figure for figure in made if figure is not None)

    def memory(self) -> tuple[Figure, ...]:
        """Return the memory of the steps of every card, a figure each."""
        cards = dict.fromkeys(p.gpu for p in self.predictions.values())
        return tuple(
            memory_figure(
                {label: parts for label, parts in self.anatomies.items() if parts.gpu.slug == card},
                {label: p for label, p in self.predictions.items() if p.gpu == card},
                name="memory" if len(cards) == 1 else f"memory-{card}",
            )
            for card in cards
        )

    def sharing(self) -> tuple[Figure, ...]:
        """Return what parameters cost in the sequence models that compare, in their first precision."""
        first = dict.fromkeys(self.baselines.values())
        cards = {self.predictions[label].gpu for label in first}
        if len(cards) != 1:
            return ()
        rows = comparable(sharing_of(self.anatomies[label], self.predictions[label]) for label in first)
        figure = sharing_figure(rows, self._labels)
        return () if figure is None else (figure,)

"""Figures of a table of predictions: precision, batch, power limit, scaling, the front of time and energy.

In: the columns of a sweep or a study. Out: `Figure` records; a table in which nothing differs that a figure
would show has none. Captions say in words what the figure shows and what was held.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from joulecast.explore.pareto import pareto_front
from joulecast.explore.study import SHARED_BY_CARD, SHARED_BY_PRECISION
from joulecast.report.charts import Figure, Panel, bars, curve, front
from joulecast.report.figures import count, digits, percent, with_prefix
from joulecast.report.slices import AXES, Columns, Rows, distinct, groups, n_rows, slice_along, take, varies
from joulecast.results import Origin, Quantity
from joulecast.units import MEGA, MILLI

#: Panels of one figure; a table of more models and cards shows the first.
MOST_PANELS: Final = 12

#: Points of one curve that are drawn.
_MOST_ON_A_LINE: Final = 60

#: Points of one front that are drawn, besides those on it.
_MOST_POINTS: Final = 400

_HELD_NAMES: Final[Mapping[str, str]] = {
    "n_gpus": "GPUs",
    "batch_per_gpu": "batch per GPU",
    "power_limit_w": "power limit",
    "seq_len": "sequence",
}


Labels = Mapping[str, str]


def table_figures(columns: Columns, labels: Labels | None = None) -> list[Figure]:
    """Return every figure that a table has.

    Parameters
    ----------
    columns : mapping of str to ndarray [row]
    labels : mapping of str to str, optional
        Canonical model -> what it is called; by default its own name, shortened.
    """
    if not n_rows(columns):
        return []
    names = model_labels(distinct(columns, "model")) if labels is None else labels
    made = (
        precision_figure(columns, names),
        *batch_figures(columns, names),
        *limit_figures(columns, names),
        *scaling_figures(columns, names),
        front_figure(columns, names),
    )
    return [figure for figure in made if figure is not None]


# --- names ----------------------------------------------------------------------------------------


def model_labels(models: Iterable[str]) -> dict[str, str]:
    """Return short names of canonical ones: without family and task, where that is unambiguous."""
    names = list(models)
    short = {name: name.rpartition("/")[2].partition("#")[0] for name in names}
    twice = {one for one in short.values() if list(short.values()).count(one) > 1}
    return {name: name if one in twice else one for name, one in short.items()}


def _panel_rows(columns: Columns, rows: Rows, labels: Labels) -> dict[str, Rows]:
    """Return the rows of every model and card, by the title of their panel."""
    several = varies(columns, rows, "gpu")
    panels = {}
    for chosen in groups(columns, ("model", "gpu"), rows):
        model, gpu = columns["model"][chosen[0]], columns["gpu"][chosen[0]]
        panels[f"{labels[model]}, {gpu}" if several else labels[model]] = chosen
    return dict(list(panels.items())[:MOST_PANELS])


def _held(columns: Columns, rows: Rows, free: Sequence[str]) -> str:
    """Return what the rows share besides model, card and what is shown, for a caption."""
    parts = []
    for name, label in _HELD_NAMES.items():
        if name in free or name not in columns:
            continue
        values = {value for value in columns[name][rows].tolist() if value == value}  # noqa: PLR0124 (NaN)
        if len(values) == 1:
            unit = " W" if name == "power_limit_w" else ""
            parts.append(f"{label} {count(float(values.pop()))}{unit}")
        elif values:
            parts.append(f"{label} by model")
    return ", ".join(parts)


def _quantity(record: Mapping[str, Any], name: str) -> Quantity:
    return Quantity(
        value=record[name],
        low=record[f"low_{name}"],
        high=record[f"high_{name}"],
        origin=Origin(record["origin"]),
    )


def _with_interval(*names: str) -> list[str]:
    return [f"{end}{name}" for name in names for end in ("", "low_", "high_")]


def _words(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


# --- precision ------------------------------------------------------------------------------------


def precision_figure(columns: Columns, labels: Labels) -> Figure | None:
    """Return speed-up and energy gain of every precision over the first of the table."""
    rows = slice_along(columns, ("precision",))
    precisions = distinct(columns, "precision")
    if len(precisions) < 2:  # noqa: PLR2004 (one has nothing to be compared with)
        return None
    baseline, *others = precisions
    names = _with_interval("step_time_s", "energy_per_step_j")
    time, energy, drawn = [], [], []
    for label, chosen in _panel_rows(columns, rows, labels).items():
        by_name = {r["precision"]: r for r in take(columns, chosen, ["precision", "origin", *names])}
        if baseline not in by_name:
            continue
        drawn.append(label)
        for precision in others:
            if precision in by_name:
                pair = by_name[baseline], by_name[precision]
                time.append(_gain_record(label, precision, pair, "step_time_s"))
                energy.append(_gain_record(label, precision, pair, "energy_per_step_j"))
    if not time:
        return None
    best, least = max(time, key=lambda r: r["x"]), min(time, key=lambda r: r["x"])
    return Figure(
        name="precision",
        title="What a precision gains",
        caption=(
            f"Step time and energy of {baseline} over those of the precision: right of the dashed line is a "
            f"gain. {best['label']} gains most, {digits(best['x'])} times in time with {best['series']}; "
            f"{least['label']} with {least['series']} least, {digits(least['x'])} times. The thin lines are "
            f"90 % intervals; {percent(SHARED_BY_CARD)} of the error is taken as shared by the two steps. "
            f"Held: {_held(columns, rows, ('precision',))}."
        ),
        panels=(
            Panel(
                title="Time",
                chart=bars(
                    time,
                    x_title=f"Step time of {baseline} / step time",
                    labels=drawn,
                    series=others,
                    reference_x=1.0,
                ),
            ),
            Panel(
                title="Energy",
                chart=bars(
                    energy,
                    x_title=f"Energy of {baseline} / energy",
                    labels=drawn,
                    series=others,
                    reference_x=1.0,
                ),
            ),
        ),
        series=tuple(others),
        mark="bar",
        n_columns=2,
    )


def _gain_record(
    label: str, precision: str, pair: tuple[Mapping[str, Any], Mapping[str, Any]], name: str
) -> dict[str, Any]:
    ratio = _quantity(pair[0], name).over(_quantity(pair[1], name), SHARED_BY_CARD)
    shown = f"{label}, {precision}: {digits(ratio.value)} times ({digits(ratio.low)} - {digits(ratio.high)})"
    return {
        "label": label,
        "series": precision,
        "x": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "shown": shown,
    }


# --- curves ---------------------------------------------------------------------------------------


def _curves(
    columns: Columns,
    labels: Labels,
    axis: str,
    name: str,
    *,
    factor: float,
    text: Callable[[float], str],
    least: bool = False,
) -> tuple[dict[str, list[dict[str, Any]]], Rows] | None:
    """Return by panel the records of a quantity along an axis, a line per precision, and the rows.

    Parameters
    ----------
    columns, labels : mapping
    axis, name : str
        Columns of x and y.
    factor : float
        Unit that y is shown in.
    text : callable
        A value of x as people read it.
    least : bool
        Whether the least y of every line is marked.
    """
    rows = slice_along(columns, (axis, "precision"))
    wanted = [axis, "precision", "memory_verdict", *_with_interval(name)]
    panels = {}
    for label, chosen in _panel_rows(columns, rows, labels).items():
        if not varies(columns, chosen, axis):
            continue
        lines = groups(columns, ("precision",), chosen[np.argsort(columns[axis][chosen], kind="stable")])
        drawn = np.concatenate(
            [_thinned(line, _MOST_ON_A_LINE, keep=_least(columns, line, name)) for line in lines]
        )
        records = [_curve_record(r, axis, name, factor, text) for r in take(columns, drawn, wanted)]
        records.sort(key=lambda r: (r["series"], r["x"]))
        if least:
            for precision in dict.fromkeys(r["series"] for r in records):
                min((r for r in records if r["series"] == precision), key=lambda r: r["y"])["mark"] = "best"
        panels[label] = records
    return (panels, rows) if panels else None


def _curve_record(
    row: Mapping[str, Any], axis: str, name: str, factor: float, text: Callable[[float], str]
) -> dict[str, Any]:
    y, low, high = (row[f"{end}{name}"] / factor for end in ("", "low_", "high_"))
    verdict = "" if row["memory_verdict"] == "fits" else f", {row['memory_verdict']}"
    return {
        "x": float(row[axis]),
        "y": y,
        "low": low,
        "high": high,
        "series": row["precision"],
        "fits": row["memory_verdict"] != "does not fit",
        "shown": f"{row['precision']} at {text(row[axis])}: {digits(y)} "
        f"({digits(low)} - {digits(high)}){verdict}",
    }


def _series(columns: Columns, rows: Rows) -> tuple[str, ...]:
    return tuple(distinct({"precision": columns["precision"][rows]}, "precision"))


def _batch_text(batch: float) -> str:
    return f"batch {count(batch)}"


def _watts(limit_w: float) -> str:
    return f"{digits(limit_w)} W"


def batch_figures(columns: Columns, labels: Labels) -> list[Figure]:
    """Return throughput and samples per joule against the batch."""
    made = []
    for name, title, y_title, what in (
        ("samples_per_s", "Throughput against batch", "Samples per second", "throughput"),
        ("samples_per_j", "Samples per joule against batch", "Samples per joule", "samples per joule"),
    ):
        found = _curves(columns, labels, "batch_per_gpu", name, factor=1.0, text=_batch_text)
        if found is None:
            return []
        panels, rows = found
        made.append(
            Figure(
                name=f"batch-{name.replace('_', '-')}",
                title=title,
                caption=(
                    f"{_growth(panels, what)} Faint marks do not fit into memory. Bands are 90 % intervals. "
                    f"Held: {_held(columns, rows, ('precision', 'batch_per_gpu'))}."
                ),
                panels=tuple(
                    Panel(
                        title=label,
                        chart=curve(
                            records,
                            x_title="Batch per GPU (samples)",
                            y_title=y_title,
                            series=_series(columns, rows),
                            log_x=True,
                        ),
                    )
                    for label, records in panels.items()
                ),
                series=_series(columns, rows),
            )
        )
    return made


def _growth(panels: Mapping[str, Sequence[Mapping[str, Any]]], what: str) -> str:
    """Return how much a quantity grows from the smallest to the largest batch that fits, at the extremes."""
    factors = {}
    for label, records in panels.items():
        for series in dict.fromkeys(r["series"] for r in records):
            line = [r for r in records if r["series"] == series and r["fits"]]
            if len(line) > 1:
                factors[f"{label} in {series}"] = line[-1]["y"] / line[0]["y"]
    if not factors:
        return "No two batches fit into memory."
    most, least = max(factors, key=lambda k: factors[k]), min(factors, key=lambda k: factors[k])
    return (
        f"From the smallest to the largest batch that fits, {what} grows most for {most}, "
        f"{digits(factors[most])} times, and least for {least}, {digits(factors[least])} times."
    )


def limit_figures(columns: Columns, labels: Labels) -> list[Figure]:
    """Return energy per sample and step time against the power limit, the least energy ringed."""
    made = []
    for name, title, y_title, factor in (
        ("energy_per_sample_j", "Energy against power limit", "Energy per sample (J)", 1.0),
        ("step_time_s", "Step time against power limit", "Step time (ms)", MILLI),
    ):
        least = name == "energy_per_sample_j"
        found = _curves(columns, labels, "power_limit_w", name, factor=factor, text=_watts, least=least)
        if found is None:
            return []
        panels, rows = found
        caption = _least_energy(panels) if least else _slowest(panels)
        made.append(
            Figure(
                name=f"power-limit-{name.replace('_', '-')}",
                title=title,
                caption=(
                    f"{caption} Bands are 90 % intervals of each point; along a curve the error is largely "
                    f"shared. Held: {_held(columns, rows, ('precision', 'power_limit_w'))}."
                ),
                panels=tuple(
                    Panel(
                        title=label,
                        chart=curve(
                            records,
                            x_title="Power limit per GPU (W)",
                            y_title=y_title,
                            series=_series(columns, rows),
                        ),
                    )
                    for label, records in panels.items()
                ),
                series=_series(columns, rows),
            )
        )
    return made


def _least_energy(panels: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    best = [r["x"] for records in panels.values() for r in records if r.get("mark") == "best"]
    return (
        f"The ring marks the limit of least energy, {digits(min(best))} to {digits(max(best))} W: below it "
        "the longer step costs more than the lower power saves."
    )


def _slowest(panels: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    factors = {}
    for label, records in panels.items():
        for series in dict.fromkeys(r["series"] for r in records):
            line = [r["y"] for r in records if r["series"] == series]
            factors[f"{label} in {series}"] = line[0] / line[-1]
    most, least = max(factors, key=lambda k: factors[k]), min(factors, key=lambda k: factors[k])
    return (
        f"At the lowest limit {most} takes {digits(factors[most])} times as long as at the highest, "
        f"the most, and {least} {digits(factors[least])} times, the least."
    )


# --- scaling --------------------------------------------------------------------------------------

_SCALING: Final = (
    ("Time", "samples_per_s", "throughput per GPU"),
    ("Energy", "samples_per_j", "samples per joule"),
)


def scaling_figures(columns: Columns, labels: Labels) -> list[Figure]:
    """Return efficiency in time and energy at the most GPUs, and over more than two numbers of them."""
    rows = slice_along(columns, ("n_gpus", "precision"))
    found: dict[str, dict[str, list[dict[str, Any]]]] = {what: {} for _, _, what in _SCALING}
    for label, chosen in _panel_rows(columns, rows, labels).items():
        if varies(columns, chosen, "n_gpus"):
            for _, name, what in _SCALING:
                found[what][label] = _scaling_records(columns, chosen, label, name, what)
    if not found["throughput per GPU"]:
        return []
    held = f"Held: {_held(columns, rows, ('precision', 'n_gpus'))}."
    figures = [_scaling_bars(found, _series(columns, rows), held)]
    if len(distinct({"n": columns["n_gpus"][rows]}, "n")) > 2:  # noqa: PLR2004 (two counts make no curve)
        figures.append(_scaling_curves(found["throughput per GPU"], _series(columns, rows), held))
    return figures


def _scaling_records(columns: Columns, rows: Rows, label: str, name: str, what: str) -> list[dict[str, Any]]:
    """Return the efficiency of every line of one panel, the fewest GPUs first."""
    records = []
    wanted = ["n_gpus", "precision", "origin", *_with_interval(name)]
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(take(columns, rows, wanted), key=lambda r: float(r["n_gpus"])):
        lines.setdefault(row["precision"], []).append(row)
    for precision, line in lines.items():
        for row in line:
            n_ratio = row["n_gpus"] / line[0]["n_gpus"] if name == "samples_per_s" else 1.0
            shared = 1.0 if row is line[0] else SHARED_BY_PRECISION
            ratio = _quantity(row, name).over(_quantity(line[0], name), shared).times(1 / n_ratio)
            records.append(
                {
                    "label": label,
                    "series": precision,
                    "n_gpus": row["n_gpus"],
                    "x": ratio.value,
                    "low": ratio.low,
                    "high": ratio.high,
                    "shown": f"{label}, {precision}, {row['n_gpus']} GPUs: {what} {percent(ratio.value)} of "
                    f"that on {line[0]['n_gpus']} ({percent(ratio.low)} - {percent(ratio.high)})",
                }
            )
    return records


def _scaling_bars(
    found: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]], series: tuple[str, ...], held: str
) -> Figure:
    largest = max(r["n_gpus"] for by_label in found.values() for line in by_label.values() for r in line)
    at_most = {
        what: [r for line in by_label.values() for r in line if r["n_gpus"] == largest]
        for what, by_label in found.items()
    }
    worst = min(at_most["throughput per GPU"], key=lambda r: float(r["x"]))
    energy = next(
        r["x"]
        for r in at_most["samples per joule"]
        if (r["label"], r["series"]) == (worst["label"], worst["series"])
    )
    return Figure(
        name="scaling",
        title="Scaling efficiency in time and energy",
        caption=(
            f"Throughput per GPU and samples per joule on {largest} GPUs over those on the fewest, at the "
            f"same batch per GPU: the dashed line is ideal. The lowest is {worst['label']} in "
            f"{worst['series']}: {percent(worst['x'])} in time, {percent(energy)} in energy. The thin lines "
            f"are 90 % intervals. {held}"
        ),
        panels=tuple(
            Panel(
                title=title,
                chart=bars(
                    at_most[what],
                    x_title=f"{what[0].upper()}{what[1:]}, relative",
                    labels=list(found[what]),
                    series=series,
                    reference_x=1.0,
                ),
            )
            for title, _, what in _SCALING
        ),
        series=series,
        mark="bar",
        n_columns=2,
    )


def _scaling_curves(
    found: Mapping[str, Sequence[Mapping[str, Any]]], series: tuple[str, ...], held: str
) -> Figure:
    return Figure(
        name="scaling-curves",
        title="Throughput per GPU against their number",
        caption=(
            "Throughput per GPU over that on the fewest GPUs, at the same batch per GPU; the dashed line is "
            f"ideal. Bands are 90 % intervals. {held}"
        ),
        panels=tuple(
            Panel(
                title=label,
                chart=curve(
                    [{**r, "x": r["n_gpus"], "y": r["x"]} for r in records],
                    x_title="GPUs",
                    y_title="Throughput per GPU, relative",
                    series=series,
                    log_x=True,
                    reference_y=1.0,
                ),
            )
            for label, records in found.items()
        ),
        series=series,
    )


# --- front ----------------------------------------------------------------------------------------


def front_figure(columns: Columns, labels: Labels) -> Figure | None:
    """Return the configurations that fit by time and energy per sample, and those that no other beats."""
    fits = np.flatnonzero(columns["memory_verdict"] != "does not fit")
    panels, n_front = [], 0
    time_s = 1.0 / columns["samples_per_s"]
    energy_j = columns["energy_per_sample_j"]
    series = _front_series(columns)
    for chosen in groups(columns, ("model",), fits)[:MOST_PANELS]:
        on_front = pareto_front(np.stack([time_s[chosen], energy_j[chosen]], axis=1))
        if len(chosen) < 3:  # noqa: PLR2004 (two points are no front)
            continue
        n_front += int(on_front.sum())
        shown = np.concatenate([chosen[on_front], _thinned(chosen[~on_front], _MOST_POINTS)])
        marks = np.arange(len(shown)) < on_front.sum()
        records = [
            _front_record(row, bool(mark), series)
            for row, mark in zip(
                take(columns, shown, [*AXES, "samples_per_s", "energy_per_sample_j"]), marks, strict=True
            )
        ]
        panels.append(
            Panel(
                title=labels[columns["model"][chosen[0]]],
                chart=front(
                    records,
                    x_title="Time per sample (ms)",
                    y_title="Energy per sample (J)",
                    series=series[1],
                ),
            )
        )
    if not panels:
        return None
    return Figure(
        name="front",
        title="The front of time and energy",
        caption=(
            f"Every mark is a configuration that may fit into memory; the large ones, {n_front} in all, are "
            "those that no other beats in both time and energy per sample (all GPUs of the job), and the "
            "line joins them. Where the front is one mark, the fastest choice also takes the least energy. "
            "Intervals are left out here: neighbours on the front are often closer than they reach."
        ),
        panels=tuple(panels),
        series=series[1],
        mark="point",
    )


def _thinned(rows: Rows, n_most: int, keep: int | None = None) -> Rows:
    """Return about so many rows, evenly spread, both ends among them, and the one at an index to keep."""
    if len(rows) <= n_most:
        return rows
    places = np.linspace(0, len(rows) - 1, n_most).astype(np.int64)
    return rows[np.union1d(places, [] if keep is None else [keep]).astype(np.int64)]


def _least(columns: Columns, rows: Rows, name: str) -> int:
    """Return which of some rows holds the least of a quantity."""
    return int(np.argmin(columns[name][rows]))


def _front_series(columns: Columns) -> tuple[str, tuple[str, ...]]:
    """Return the column that colours tell apart, and its values: cards where there are several."""
    name = "gpu" if len(distinct(columns, "gpu")) > 1 else "precision"
    return name, tuple(distinct(columns, name)[:8])


def _front_record(
    row: Mapping[str, Any], on_front: bool, series: tuple[str, tuple[str, ...]]
) -> dict[str, Any]:
    time_ms, energy_j = 1.0 / row["samples_per_s"] / MILLI, row["energy_per_sample_j"]
    clock = row["locked_sm_clock_hz"]
    parts = [
        f"{row['n_gpus']} x {row['gpu']}",
        row["precision"],
        f"batch {count(row['batch_per_gpu'])}",
        f"limit {digits(row['power_limit_w'])} W",
        *([f"clock {digits(clock / MEGA, 4)} MHz"] if clock == clock else []),  # noqa: PLR0124 (NaN)
        *(["checkpointing"] if row["checkpointing"] else []),
    ]
    return {
        "x": time_ms,
        "y": energy_j,
        "on_front": on_front,
        "series": row[series[0]],
        "shown": f"{', '.join(parts)}: {digits(time_ms)} ms, {with_prefix(energy_j, 'J')} per sample",
    }

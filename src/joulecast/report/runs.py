"""Stored runs for people: several as a table, one as a page."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from joulecast.measure.store import Added
from joulecast.measure.stored import RunValue, StoredRun
from joulecast.report.figures import count, digits, gibibytes, with_prefix
from joulecast.report.measurements import measurement_page
from joulecast.report.tables import Sheet

RUNS_SCHEMA: Final = "joulecast/runs/1"

#: Characters of an id that a table shows; ids may be given by their start.
_ID_WIDTH: Final = 12
_NOTHING: Final = "-"


def _value(run: StoredRun, column: str, text: Callable[[float], str]) -> str:
    value = run.row[column]
    return text(float(value)) if isinstance(value, (int, float)) else _NOTHING


def _cell(value: RunValue) -> str:
    return _NOTHING if value is None else str(value)


def _what(run: StoredRun) -> str:
    """Return the model, or the command that was measured whole."""
    if run.row["model"]:
        return str(run.row["model"])
    command = run.measurement.command if run.measurement else None
    return " ".join(command) if command else _NOTHING


def _gpus(run: StoredRun) -> str:
    gpu, n_gpus = _cell(run.row["gpu"]), run.row["n_gpus"]
    return f"{n_gpus} x {gpu}" if isinstance(n_gpus, int) and n_gpus > 1 else gpu


_COLUMNS: Final[tuple[tuple[str, Callable[[StoredRun], str]], ...]] = (
    ("run", lambda run: run.run_id[:_ID_WIDTH]),
    ("started", lambda run: (run.started_at or _NOTHING)[:16].replace("T", " ")),
    ("", lambda run: str(run.status or "")),
    ("source", lambda run: _cell(run.row["source"])),
    ("model or command", _what),
    ("GPU", _gpus),
    ("precision", lambda run: _cell(run.row["precision"])),
    (">batch/GPU", lambda run: _value(run, "batch_per_gpu", count)),
    (">step", lambda run: _value(run, "step_time_s", lambda s: with_prefix(s, "s"))),
    (">power", lambda run: _value(run, "mean_power_w", lambda w: f"{digits(w)} W")),
    (">J/step", lambda run: _value(run, "energy_per_step_j", digits)),
    (">memory", lambda run: _value(run, "peak_memory_bytes", gibibytes)),
)


def runs_table(runs: Sequence[StoredRun], store: str) -> list[Sheet | str]:
    """Return runs as a table."""
    if not runs:
        return [f"{store} holds no such runs"]
    rows = tuple(tuple(text(run) for _, text in _COLUMNS) for run in runs)
    return [
        Sheet(columns=tuple(label for label, _ in _COLUMNS), rows=rows),
        f"{len(runs)} runs of {store}; an id may be given by its start",
    ]


def run_page(run: StoredRun) -> list[Sheet | str]:
    """Return one run in full: its record, or its row where a file of runs is all there is."""
    m = run.measurement
    if m is None:
        filled = tuple((name, str(value)) for name, value in run.row.items() if value is not None)
        return [Sheet(columns=("", ""), rows=filled)]
    page = measurement_page(m) + list(m.notes)
    for label, facts in (("host", m.host), ("versions", m.versions)):
        if facts:
            page.append(f"{label}: {', '.join(f'{name} {value}' for name, value in facts.items())}")
    return page


def runs_document(runs: Sequence[StoredRun]) -> dict[str, Any]:
    """Return the JSON document of ``joulecast runs list``."""
    return {"schema": RUNS_SCHEMA, "runs": [run.to_dict() for run in runs]}


def added_lines(added: Added, store: str, left_out: Sequence[str] = ()) -> list[Sheet | str]:
    """Return what became of runs from elsewhere."""
    parts = [f"{added.n_added} added"]
    if added.n_replaced:
        parts.append(f"{added.n_replaced} that were not over replaced")
    if added.n_known:
        parts.append(f"{added.n_known} known already")
    lines: list[Sheet | str] = [f"{', '.join(parts)}: {store}"]
    if added.differing:
        shown = ", ".join(added.differing[:_N_DIFFERING])
        more = ", ..." if len(added.differing) > _N_DIFFERING else ""
        lines.append(f"! {len(added.differing)} of the known differ, the store keeps its own: {shown}{more}")
    if left_out:
        lines.append(f"! columns that runs do not have were left out: {', '.join(dict.fromkeys(left_out))}")
    return lines


_N_DIFFERING: Final = 5

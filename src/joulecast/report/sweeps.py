"""Sweeps as people read them: the configurations that differ, and what stands out."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from joulecast.explore.table import SweepResult
from joulecast.report.figures import digits, gibibytes, megahertz, with_prefix
from joulecast.report.tables import Sheet

#: Rows that a terminal is shown.
_MOST_ROWS: Final = 60

_KEYS: Final = (
    *("model", "gpu", "n_gpus", "parallel", "precision", "mode", "batch_per_gpu", "seq_len", "image_size"),
    *("optimizer", "memory_format", "attention", "checkpointing", "accumulate", "clip", "n_sms"),
    *("power_limit_w", "locked_sm_clock_hz"),
)


def sweep_page(result: SweepResult) -> list[Sheet | str]:
    """Return the configurations of a sweep as a table: keys that differ, and the main quantities."""
    rows = result.to_rows()
    keys = [key for key in _KEYS if len({str(row[key]) for row in rows}) > 1]
    shared = [f"{key} {_text(key, rows[0][key])}" for key in _KEYS if key not in keys and rows[0][key]]
    shown = rows[:_MOST_ROWS]
    figures = (">step", ">samples/s", ">power/GPU", ">J/sample", ">memory", "fits", "bound by")
    sheet = Sheet(
        columns=(*(f">{key}" if key not in ("model", "gpu") else key for key in keys), *figures),
        rows=tuple((*(_text(key, row[key]) for key in keys), *_figures(row)) for row in shown),
    )
    page: list[Sheet | str] = [", ".join(shared), sheet]
    if len(rows) > len(shown):
        page.append(f"{len(rows) - len(shown)} more are left out: --out keeps all")
    return page + summary(result)


def _figures(row: Mapping[str, Any]) -> tuple[str, ...]:
    if row["skipped_reason"]:
        return ("-", "-", "-", "-", "-", "-", row["skipped_reason"])
    return (
        _ranged(row, "step_time_s", "s"),
        digits(row["samples_per_s"]),
        _ranged(row, "mean_power_w", "W"),
        digits(row["energy_per_sample_j"]),
        gibibytes(row["process_bytes"]),
        row["memory_verdict"],
        row["bound_by"],
    )


def _ranged(row: Mapping[str, Any], name: str, unit: str) -> str:
    """Return a value with half of its interval in percent."""
    half = (row[f"high_{name}"] - row[f"low_{name}"]) / 2 / row[name]
    return f"{with_prefix(row[name], unit)} +/- {half:.0%}"


def _text(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if key == "locked_sm_clock_hz":
        return megahertz(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def summary(result: SweepResult) -> list[Sheet | str]:
    """Return what stands out: the fastest, the most efficient, and why some have no prediction."""
    lines: list[Sheet | str] = []
    good = result.where(result.predicted & (result["memory_verdict"] != "does not fit"))
    for model in dict.fromkeys(result["model"].tolist()):
        mine = good.where(good["model"] == model)
        if len(mine):
            lines.append(_best(mine, "samples_per_s", "fastest that fits"))
            lines.append(_best(mine, "samples_per_j", "most samples per joule that fits"))
        else:
            lines.append(f"{model}: no configuration fits the memory of its card")
    reasons, counts = np.unique(result["skipped_reason"][~result.predicted].astype(str), return_counts=True)
    order = np.argsort(-counts)
    return lines + [f"! {counts[i]} without a prediction: {reasons[i]}" for i in order[:_MOST_REASONS]]


_MOST_REASONS: Final = 8


def _best(result: SweepResult, name: str, label: str) -> str:
    row = result.where(np.array([int(np.argmax(result[name]))])).to_rows()[0]
    limit = f"{row['power_limit_w']:g} W"
    clock = f", {megahertz(row['locked_sm_clock_hz'])}" if row["locked_sm_clock_hz"] else ""
    what = (
        f"{row['model']} on {row['n_gpus']} x {row['gpu']}, {row['precision']}, batch "
        f"{row['batch_per_gpu']:g}, {limit}{clock}"
    )
    return (
        f"{label}: {what}: {digits(row['samples_per_s'])} samples/s, {digits(row['samples_per_j'])} samples/J"
    )

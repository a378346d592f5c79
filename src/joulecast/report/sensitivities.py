"""Sensitivities as people and programs read them."""

from typing import Any, Final

from joulecast.explore.sensitivity import MOST_FACTOR, SENSITIVITY_SCHEMA, Lever, Sensitivity
from joulecast.report.figures import joined, ranged
from joulecast.report.tables import Sheet

_TARGETS: Final = {"samples_per_j": "samples per joule", "samples_per_s": "samples per second"}

#: What a property that reaches nothing must bring to be shown. [1]
_LEAST_GAIN: Final = 1.005


def sensitivity_page(found: Sensitivity) -> list[Sheet | str]:
    """Return elasticities and levers as tables."""
    base = found.base
    time, time_interval = ranged(base.step_time_s, "s")
    energy, energy_interval = ranged(base.energy_per_step_j, "J")
    elasticities = Sheet(
        title="elasticities: percent of change for one percent more of the property",
        columns=("property", "meaning", ">time", ">power", ">energy"),
        rows=tuple(
            (e.name, e.meaning, f"{e.time:+.3f}", f"{e.power:+.3f}", f"{e.energy:+.3f}")
            for e in found.elasticities
        ),
    )
    return [
        f"{base.model} on {base.n_gpus} x {base.gpu}, {base.precision}, batch {base.batch_per_gpu:g}: "
        f"step {time} ({time_interval}), energy {energy} ({energy_interval}), {base.step_time_s.origin}",
        f"the step is bound by: {joined(sorted(base.time_share_by_bound.items(), key=lambda x: -x[1]))}",
        "",
        elasticities,
        *_levers(found),
        "differences of predictions with one parameter set; their common error cancels: no interval is given",
    ]


def _levers(found: Sensitivity) -> list[Sheet | str]:
    what = f"{found.ratio:g}x the {_TARGETS[found.target]}"
    shown = [lever for lever in (*found.levers, *found.pairs) if lever.reached or lever.gain >= _LEAST_GAIN]
    sheet = Sheet(
        title=f"what would bring {what}, all else as it is",
        columns=("change", ">brings", ""),
        rows=tuple(_row(lever) for lever in shown),
    )
    if any(lever.reached for lever in shown):
        return [sheet]
    return [
        sheet,
        f"impossible by one or two properties within a factor of {MOST_FACTOR:g}: no change brings {what}",
    ]


def _row(lever: Lever) -> tuple[str, str, str]:
    changes = " and ".join(str(change) for change in lever.changes)
    return changes, f"{lever.gain:.2f}x", "reached" if lever.reached else "not reached, its best"


def sensitivity_document(found: Sensitivity) -> dict[str, Any]:
    """Return the JSON form."""
    return {
        "schema": SENSITIVITY_SCHEMA,
        "base": found.base.to_dict(),
        "elasticities": sensitivity_rows(found),
        "target": found.target,
        "ratio": found.ratio,
        "levers": [_lever_dict(lever) for lever in found.levers],
        "pairs": [_lever_dict(lever) for lever in found.pairs],
    }


def sensitivity_rows(found: Sensitivity) -> list[dict[str, Any]]:
    """Return one flat row per property."""
    return [
        {
            "property": e.name,
            "meaning": e.meaning,
            "time_elasticity": e.time,
            "power_elasticity": e.power,
            "energy_elasticity": e.energy,
        }
        for e in found.elasticities
    ]


def _lever_dict(lever: Lever) -> dict[str, Any]:
    return {
        "factors": {change.name: change.factor for change in lever.changes},
        "gain_ratio": lever.gain,
        "reached": lever.reached,
    }

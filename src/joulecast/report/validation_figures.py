"""Figures of accuracy: predicted against measured, error by GPU, time and power against the power limit.

In: `Comparisons`. Out: PNG files, drawn by vl-convert from Vega-Lite. Needs the ``figures`` extra.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from joulecast.calibrate.comparisons import Comparisons
from joulecast.calibrate.targets import slow_downs
from joulecast.errors import MissingExtraError
from joulecast.report.theme import LIGHT, SERIES
from joulecast.units import PERCENT

#: Names of the figures, in the order of the page, and what they show.
CAPTIONS: Final[Mapping[str, str]] = {
    "validation-predicted-measured": "Step time, mean power, energy per step and peak memory, predicted "
    "against measured, by source, in sample. On the line both agree; the dashed ones are 25 % off.",
    "validation-error-by-gpu": "Error of the step time by GPU, in sample: median, middle half and middle "
    "90 % of the runs.",
    "validation-limit-time": "Step time against the power limit, over that at the highest limit: measured "
    "(points) and predicted (lines), medians over the batch sizes of each model.",
    "validation-limit-power": "Mean power against the power limit: measured (points) and predicted (lines), "
    "medians over the batch sizes of each model.",
}

_COLOURS: Final = LIGHT.colours

#: Text and lines of every figure: the one place to change how they look.
_LOOK: Final = {
    "background": "white",
    "font": "Noto Sans, DejaVu Sans, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "gridColor": _COLOURS["grid"],
        "labelColor": _COLOURS["muted"],
        "titleFontWeight": 500,
        "domainColor": _COLOURS["muted"],
    },
    "legend": {"orient": "top", "columns": 4, "labelLimit": 0, "title": None, "symbolOpacity": 1},
    "header": {"labelFontSize": 12, "title": None},
    "range": {"category": [_COLOURS[role] for role in SERIES]},
}
_REFERENCE: Final = {"type": "line", "color": _COLOURS["muted"], "strokeWidth": 1}
_PIXELS_PER_INCH: Final = 76

_UNITS: Final = {
    "step_time_s": "step time [s]",
    "mean_power_w": "mean power [W]",
    "energy_per_step_j": "energy per step [J]",
    "peak_memory_bytes": "peak memory [bytes]",
}
#: Sources by the part of their name that tells them apart.
_SHORT: Final = {
    "huggingface/pytorch-image-models results": "timm",
    "lambdal/deeplearning-benchmark": "lambda",
    "mila-iqia/milabench scaling": "milabench",
    "ml-energy/zeus NSDI'23 trace": "Zeus",
    "willgpaik/pytorch-ddp-scaling-benchmark": "willgpaik",
    "EnergAIzer ISPASS'26 artifact": "EnergAIzer",
    "NeuSight ASPLOS'25 labels": "NeuSight",
    "MLSysOps/MIGProfiler": "MIGProfiler",
}


def save_validation_figures(compared: Comparisons, folder: str | Path) -> list[Path]:
    """Write the figures of runs into a folder, and return their files in the order of `CAPTIONS`.

    Raises
    ------
    MissingExtraError
        vl-convert is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise MissingExtraError("figures need the figures extra: pip install 'joulecast[figures]'") from error
    specs = {
        "validation-predicted-measured": predicted_measured(compared),
        "validation-error-by-gpu": error_by_gpu(compared),
        "validation-limit-time": against_limit(
            _relative_times(compared), "time over that at the highest limit"
        ),
        "validation-limit-power": against_limit(_limited(compared, "mean_power_w"), "mean power [W]"),
    }
    paths = []
    for name in CAPTIONS:
        path = Path(folder) / f"{name}.png"
        path.write_bytes(vl_convert.vegalite_to_png(specs[name], ppi=_PIXELS_PER_INCH))
        paths.append(path)
    return paths


def predicted_measured(compared: Comparisons) -> dict[str, Any]:
    """Return the Vega-Lite figure of predictions against measurements, a panel per quantity."""
    panels = [_agreement(compared.rows(compared.quantity == name), title) for name, title in _UNITS.items()]
    kept = [panel for panel in panels if panel is not None]
    return {"config": _LOOK, "concat": kept, "columns": 2, "resolve": {"scale": {"color": "shared"}}}


def _agreement(compared: Comparisons, title: str) -> dict[str, Any] | None:
    if not len(compared):
        return None
    both = np.concatenate([compared.measured, compared.predicted])
    low, high = float(np.min(both)) * 0.8, float(np.max(both)) * 1.25
    scale = {"type": "log", "domain": [low, high], "nice": False}
    x = {"field": "measured", "type": "quantitative", "scale": scale, "title": f"measured {title}"}
    y = {"field": "predicted", "type": "quantitative", "scale": scale, "title": f"predicted {title}"}
    axis = {"format": "~s", "tickCount": 6, "grid": False}
    x["axis"] = y["axis"] = axis
    lines = [
        {
            "data": {"values": [{"measured": end, "predicted": end * factor} for end in (low, high)]},
            "mark": {**_REFERENCE, "clip": True, "strokeDash": [1, 0] if factor == 1 else [4, 3]},
            "encoding": {"x": x, "y": y},
        }
        for factor in (0.75, 1.0, 1.25)
    ]
    points = [
        {"measured": m, "predicted": p, "source": _SHORT.get(s, s)}
        for m, p, s in zip(
            *(a.tolist() for a in (compared.measured, compared.predicted, compared.source)), strict=True
        )
    ]
    dots = {
        "data": {"values": points},
        "mark": {"type": "point", "filled": True, "size": 12, "opacity": 0.7},
        "encoding": {"x": x, "y": y, "color": {"field": "source", "type": "nominal"}},
    }
    return {"width": 330, "height": 300, "layer": [*lines, dots]}


#: The sign of negative numbers as a hyphen: fonts without U+2212 borrow it from another.
_HYPHEN: Final = "replace(datum.label, '\u2212', '-')"


def error_by_gpu(compared: Comparisons) -> dict[str, Any]:
    """Return the Vega-Lite figure of the error of the time, a line per GPU."""
    times = compared.rows(compared.quantity == "step_time_s")
    values = []
    for gpu in np.unique(times.gpu).tolist():
        errors = times.error[times.gpu == gpu] / PERCENT
        low, lower, middle, upper, high = np.quantile(errors, [0.05, 0.25, 0.5, 0.75, 0.95]).tolist()
        values.append(
            {
                "gpu": f"{gpu} ({len(errors)})",
                **{"low": low, "lower": lower, "middle": middle, "upper": upper, "high": high},
            }
        )
    y = {"field": "gpu", "type": "nominal", "title": None, "sort": {"field": "middle"}}

    def span(first: str, last: str, width: int, opacity: float) -> dict[str, Any]:
        return {
            "mark": {"type": "rule", "strokeWidth": width, "opacity": opacity, "color": _COLOURS["series-1"]},
            "encoding": {
                "y": y,
                "x": {
                    "field": first,
                    "type": "quantitative",
                    "title": "predicted / measured - 1 [%]",
                    "axis": {"labelExpr": _HYPHEN},
                },
                "x2": {"field": last},
            },
        }

    zero = {"data": {"values": [{"x": 0}]}, "mark": {**_REFERENCE, "type": "rule"}}
    zero["encoding"] = {"x": {"field": "x", "type": "quantitative"}}
    middle = {
        "mark": {"type": "tick", "thickness": 3, "size": 14, "color": _COLOURS["ink"]},
        "encoding": {"y": y, "x": {"field": "middle", "type": "quantitative"}},
    }
    return {
        "config": _LOOK,
        "width": 520,
        "height": {"step": 19},
        "data": {"values": values},
        "layer": [zero, span("low", "high", 2, 0.6), span("lower", "upper", 9, 0.45), middle],
    }


# --- against the limit ----------------------------------------------------------------------------


def _limited(compared: Comparisons, quantity: str) -> Comparisons:
    """Return the rows of sources that measured the same work at several limits."""
    mine = compared.rows((compared.quantity == quantity) & np.isfinite(compared.power_limit_w))
    pairs = {(g, w) for g, w in zip(mine.group.tolist(), mine.power_limit_w.tolist(), strict=True)}
    n_limits: dict[str, int] = {}
    for group, _ in pairs:
        n_limits[group] = n_limits.get(group, 0) + 1
    return mine.rows(np.array([n_limits[group] > 1 for group in mine.group.tolist()], dtype=np.bool_))


def _relative_times(compared: Comparisons) -> Comparisons:
    return slow_downs(_limited(compared, "step_time_s"))


def against_limit(compared: Comparisons, title: str) -> dict[str, Any]:
    """Return the Vega-Lite chart of a number against the power limit: a panel per GPU, a colour per model."""
    values: list[dict[str, Any]] = []
    labels = np.char.add(np.char.add(compared.gpu, "|"), compared.subject)
    for label in np.unique(labels).tolist():
        gpu, model = label.split("|")
        for limit_w in np.unique(compared.power_limit_w[labels == label]).tolist():
            rows = compared.rows((labels == label) & (compared.power_limit_w == limit_w))
            values.append(
                {
                    **{"gpu": gpu, "model": model, "limit": limit_w},
                    **{
                        "measured": float(np.median(rows.measured)),
                        "predicted": float(np.median(rows.predicted)),
                    },
                }
            )
    x = {"field": "limit", "type": "quantitative", "title": "power limit [W]", "scale": {"zero": False}}
    colour = {"field": "model", "type": "nominal"}

    def layer(field: str, mark: dict[str, Any]) -> dict[str, Any]:
        y = {"field": field, "type": "quantitative", "title": title, "scale": {"zero": False}}
        return {"mark": mark, "encoding": {"x": x, "y": y, "color": colour}}

    return {
        "config": _LOOK,
        "data": {"values": values},
        "facet": {"column": {"field": "gpu", "type": "nominal"}},
        "spec": {
            "width": 330,
            "height": 260,
            "layer": [
                layer("predicted", {"type": "line", "strokeWidth": 2}),
                layer("measured", {"type": "point", "filled": True, "size": 50}),
            ],
        },
        "resolve": {"scale": {"x": "independent"}},
    }

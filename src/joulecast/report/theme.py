"""Colours and type of every figure and page; one place, so that all of them look alike.

A chart names roles (`config` styles, the category range) and never a colour: on a page a role is a CSS
variable, so that the reader's colour scheme and the printer choose without drawing anew; in a file it is a
colour.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

#: Role -> colour on light and on dark paper. The series are told apart by people with any of the common
#: kinds of colour blindness (neighbours differ in lightness too), and reach 3:1 against their paper.
_ROLES: Final[Mapping[str, tuple[str, str]]] = {
    "paper": ("#ffffff", "#14181d"),
    "ink": ("#1b2128", "#e8ecf1"),
    "muted": ("#57616d", "#a5b0bd"),
    "grid": ("#e2e6ea", "#2b323a"),
    "alert": ("#b3261e", "#ff8a80"),
    "series-1": ("#1f66b5", "#6cb0ff"),
    "series-2": ("#c8610a", "#ffa24d"),
    "series-3": ("#12805f", "#4fd0a8"),
    "series-4": ("#7d4fb8", "#c3a2f7"),
    "series-5": ("#b02a4c", "#ff86a0"),
    "series-6": ("#8a6d00", "#e0bf4f"),
    "series-7": ("#087f93", "#56cde0"),
    "series-8": ("#66707c", "#9aa6b2"),
}

SERIES: Final = tuple(role for role in _ROLES if role.startswith("series-"))

#: Shapes of points and dashes of lines, beside the colours of `SERIES` and in their order.
SHAPES: Final = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "stroke", "wedge")
DASHES: Final = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4], [1, 3], [10, 4], [3, 1])

_PAGE_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"
_FILE_FONT: Final = "Noto Sans, DejaVu Sans, Roboto, sans-serif"


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """What stands for each role.

    Attributes
    ----------
    colours : mapping of str to str
        Role -> anything CSS or SVG takes as a colour.
    font : str
    """

    colours: Mapping[str, str]
    font: str

    def config(self) -> dict[str, Any]:
        """Return the Vega-Lite configuration."""
        ink, muted, grid = (self.colours[role] for role in ("ink", "muted", "grid"))
        return {
            "background": "transparent",
            "font": self.font,
            "view": {"stroke": None},
            "padding": 2,
            "title": {"color": ink, "fontSize": 13, "anchor": "start", "fontWeight": 600, "offset": 8},
            "axis": {
                "labelColor": muted,
                "titleColor": ink,
                "titleFontWeight": 500,
                "gridColor": grid,
                "domainColor": muted,
                "tickColor": muted,
                "labelFontSize": 11,
                "titleFontSize": 12,
            },
            "legend": {
                "labelColor": ink,
                "titleColor": muted,
                "orient": "top",
                "labelFontSize": 12,
                "titleFontSize": 11,
                "titleFontWeight": 500,
                "symbolStrokeWidth": 2,
                "symbolOpacity": 1,
                "labelLimit": 0,
                "columns": 4,
            },
            "header": {"labelColor": ink, "titleColor": muted, "labelFontSize": 12},
            "range": {"category": [self.colours[role] for role in SERIES]},
            "mark": {"color": self.colours["series-1"]},
            "text": {"color": ink, "fontSize": 11},
            "line": {"strokeWidth": 2},
            "area": {"opacity": 0.18},
            "point": {"size": 45, "filled": True},
            "style": {
                "reference": {"color": muted, "strokeWidth": 1.2, "strokeDash": [4, 3]},
                "roof": {"color": muted, "strokeWidth": 1.6},
                "limit": {"color": self.colours["alert"], "strokeWidth": 1.6},
                "alert-text": {"color": self.colours["alert"], "fontSize": 11},
                "note": {"color": muted, "fontSize": 11},
                "interval": {"color": ink, "strokeWidth": 1.4},
                "halo": {"color": self.colours["paper"], "strokeWidth": 3.4},
                "measured": {"stroke": ink, "fill": self.colours["paper"], "strokeWidth": 1.8},
            },
        }


def _theme(i_scheme: int) -> Theme:
    return Theme(colours={role: pair[i_scheme] for role, pair in _ROLES.items()}, font=_FILE_FONT)


#: For files, on light and on dark paper.
LIGHT: Final = _theme(0)
DARK: Final = _theme(1)

#: For a page that has `css_variables`.
PAGE: Final = Theme(colours={role: f"var(--{role})" for role in _ROLES}, font=_PAGE_FONT)


def css_variables() -> str:
    """Return the style sheet that gives every role its colour: by the reader's scheme; light on paper."""
    light = "".join(f"--{role}:{pair[0]};" for role, pair in _ROLES.items())
    dark = "".join(f"--{role}:{pair[1]};" for role, pair in _ROLES.items())
    return (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    )

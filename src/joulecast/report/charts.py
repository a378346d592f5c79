"""Figures as Vega-Lite charts: curves, bars, stacks, rooflines, fronts and scatters, in one style.

In: records of plain values, already in the units that are shown. Out: `Figure`, which a page embeds and
`save_svg` and `save_png` write. A chart names no colour (see `theme`) and no width: the page or the file
gives them.

Every record may hold ``series`` (what colours tell apart), ``low`` and ``high`` (the 90 % interval), and
``shown`` (the text that appears on pointing at it).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from joulecast.errors import MissingExtraError
from joulecast.report.theme import DASHES, LIGHT, SHAPES, Theme
from joulecast.units import TERA

if TYPE_CHECKING:
    import altair

Record = Mapping[str, Any]

#: Width of one panel in a file; on a page it is as wide as there is room. [pixel]
FILE_PANEL_WIDTH: Final = 340

#: A signal of every chart that has series: the one series that is picked, or null.
PICK: Final = "pick"
_IS_PICKED: Final = f"{PICK} === null || datum.series === {PICK}"
_FAINT: Final = 0.12


def altair_library() -> Any:
    """Return the library that charts are made with.

    Raises
    ------
    MissingExtraError
        It is not installed.
    """
    try:
        import altair
        import vl_convert  # noqa: F401  (the page and the files need it)
    except ImportError as error:
        raise MissingExtraError(
            "figures need altair and vl-convert: pip install 'joulecast[figures]'"
        ) from error
    return altair


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart of a figure.

    Attributes
    ----------
    title : str
        What tells it from the other panels; empty where there is one.
    chart : altair.Chart or altair.LayerChart
        Without width.
    """

    title: str
    chart: "altair.Chart | altair.LayerChart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure: one or several panels under a title, with a caption that says what they show.

    Attributes
    ----------
    name : str
        Of files and anchors: lower case and hyphens.
    title, caption : str
    panels : tuple of Panel
    series : tuple of str
        What colours, dashes and shapes tell apart, in the order of the theme; empty for one kind.
    mark : str
        ``line``, ``point`` or ``bar``: what a legend shows.
    n_columns : int
        Panels side by side where there is room.
    """

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    series: tuple[str, ...] = ()
    mark: str = "line"
    n_columns: int = 3

    def __post_init__(self) -> None:
        if not self.panels:
            raise ValueError(f"figure {self.name} has no panel")


# --- files ----------------------------------------------------------------------------------------


def file_spec(figure: Figure, theme: Theme = LIGHT) -> dict[str, Any]:
    """Return a figure as one Vega-Lite document for a file."""
    alt = altair_library()
    panels = [
        panel.chart.properties(
            width=FILE_PANEL_WIDTH if len(figure.panels) > 1 else 2 * FILE_PANEL_WIDTH,
            **({"title": panel.title} if panel.title else {}),
        )
        for panel in figure.panels
    ]
    whole = panels[0] if len(panels) == 1 else alt.concat(*panels, columns=figure.n_columns)
    config = {**theme.config(), "background": theme.colours["paper"], "padding": 12}
    spec: dict[str, Any] = whole.to_dict()
    return {**spec, "config": config}


def save_svg(figure: Figure, folder: Path, theme: Theme = LIGHT) -> Path:
    """Write ``NAME.svg`` into a folder and return its path."""
    import vl_convert

    path = folder / f"{figure.name}.svg"
    path.write_text(vl_convert.vegalite_to_svg(file_spec(figure, theme)), encoding="utf-8")
    return path


def save_png(figure: Figure, folder: Path, theme: Theme = LIGHT) -> Path:
    """Write ``NAME.png`` into a folder, two pixels for one, and return its path."""
    import vl_convert

    path = folder / f"{figure.name}.png"
    path.write_bytes(vl_convert.vegalite_to_png(file_spec(figure, theme), scale=2))
    return path


# --- encodings that charts share ------------------------------------------------------------------


def _data(records: Sequence[Record]) -> Any:
    alt = altair_library()
    return alt.Data(values=[dict(record) for record in records])


def _colour(series: Sequence[str]) -> dict[str, Any]:
    """Return the colour of series in a fixed order, so that every panel agrees."""
    alt = altair_library()
    if not series:
        return {}
    return {"color": alt.Color("series:N", title=None, scale=alt.Scale(domain=list(series)))}


def _shape(series: Sequence[str]) -> dict[str, Any]:
    alt = altair_library()
    if not series:
        return {}
    shapes = [SHAPES[i % len(SHAPES)] for i in range(len(series))]
    return {"shape": alt.Shape("series:N", title=None, scale=alt.Scale(domain=list(series), range=shapes))}


def _dash(series: Sequence[str]) -> dict[str, Any]:
    alt = altair_library()
    if not series:
        return {}
    dashes = [DASHES[i % len(DASHES)] for i in range(len(series))]
    scale = alt.Scale(domain=list(series), range=dashes)
    return {"strokeDash": alt.StrokeDash("series:N", title=None, scale=scale)}


def _fade(opacity: float = 1.0) -> Any:
    alt = altair_library()
    return alt.condition(_IS_PICKED, alt.value(opacity), alt.value(_FAINT * opacity))


def _pointing() -> Any:
    alt = altair_library()
    return [alt.Tooltip("shown:N", title="\u200b")]


def _with_pick(chart: Any) -> Any:
    alt = altair_library()
    return chart.add_params(alt.param(name=PICK, value=None))


def _rule(value: float, channel: str, style: str = "reference") -> Any:
    """Return a straight line across the chart at a value of x or y."""
    alt = altair_library()
    return (
        alt.Chart(alt.Data(values=[{"at": value}]))
        .mark_rule(style=style)
        .encode(**{channel: getattr(alt, channel.upper())("at:Q")})
    )


def _scale(*, log: bool, zero: bool) -> Any:
    alt = altair_library()
    return alt.Scale(type="log", nice=False) if log else alt.Scale(zero=zero, nice=True)


# --- curves ---------------------------------------------------------------------------------------


def curve(
    records: Sequence[Record],
    *,
    x_title: str,
    y_title: str,
    series: Sequence[str] = (),
    log_x: bool = False,
    zero: bool = True,
    reference_y: float | None = None,
    height: int = 210,
) -> Any:
    """Return lines with their intervals as bands; records with ``x``, ``y``, ``low``, ``high``.

    Parameters
    ----------
    records : sequence
        One with ``mark`` set to ``best`` is ringed; one whose ``fits`` is False is drawn hollow.
    x_title, y_title : str
        With units.
    series : sequence of str
    log_x, zero : bool
        Whether x is logarithmic, and whether y starts at 0.
    reference_y : float, optional
        Where a dashed line goes.
    height : int
    """
    alt = altair_library()
    x = alt.X(
        "x:Q",
        title=x_title,
        scale=_scale(log=log_x, zero=False),
        axis=alt.Axis(grid=False, tickCount=6, **({"values": _each_x(records)} if log_x else {})),
    )
    y_scale = _scale(log=False, zero=zero)
    y = alt.Y("y:Q", title=y_title, scale=y_scale, axis=alt.Axis(tickCount=5))
    base = alt.Chart(_data(records))
    band = base.mark_area(line=False).encode(
        x=x,
        y=alt.Y("low:Q", title=y_title, scale=y_scale),
        y2="high:Q",
        opacity=_fade(0.16),
        **_colour(series),
    )
    line = base.mark_line().encode(x=x, y=y, opacity=_fade(), **_colour(series), **_dash(series))
    points = base.mark_point(filled=True, size=36).encode(
        x=x,
        y=y,
        opacity=alt.condition("datum.fits === false", alt.value(_FAINT * 2), _picked_value()),
        tooltip=_pointing(),
        **_colour(series),
        **_shape(series),
    )
    layers = [band, line, points]
    best_records = [record for record in records if record.get("mark") == "best"]
    if best_records:
        layers.append(
            alt.Chart(_data(best_records))
            .mark_point(filled=False, size=190, strokeWidth=2.2, shape="circle")
            .encode(x=x, y=y, opacity=_fade(), tooltip=_pointing(), **_colour(series))
        )
    if reference_y is not None:
        layers.insert(0, _rule(reference_y, "y"))
    return _with_pick(alt.layer(*layers)).properties(height=height)


def _picked_value() -> Any:
    alt = altair_library()
    return alt.value(1)


def _each_x(records: Sequence[Record]) -> list[float]:
    return sorted({float(record["x"]) for record in records})


# --- bars -----------------------------------------------------------------------------------------

_BAR_HEIGHT: Final = 15


def bars(
    records: Sequence[Record],
    *,
    x_title: str,
    labels: Sequence[str],
    series: Sequence[str] = (),
    reference_x: float | None = None,
) -> Any:
    """Return horizontal bars with intervals, grouped by label; records with ``label``, ``x``."""
    alt = altair_library()
    base = alt.Chart(_data(records))
    y = alt.Y("label:N", title=None, sort=list(labels), axis=alt.Axis(labelLimit=150, ticks=False))
    offset = {"yOffset": alt.YOffset("series:N", sort=list(series))} if series else {}
    bar = base.mark_bar(height={"band": 0.86}).encode(
        y=y,
        x=alt.X("x:Q", title=x_title, axis=alt.Axis(tickCount=6)),
        opacity=_fade(),
        tooltip=_pointing(),
        **offset,
        **_colour(series),
    )
    layers = [bar]
    uncertain = [record for record in records if record.get("low") is not None]
    if uncertain:
        ends = {"y": y, "x": alt.X("low:Q", title=x_title), "x2": "high:Q", **offset}
        layers += _intervals(uncertain, {**ends, "opacity": _fade(0.9)})
    if reference_x is not None:
        layers.append(_rule(reference_x, "x"))
    n_bars = len(labels) * max(len(series), 1)
    return _with_pick(alt.layer(*layers)).properties(height=_BAR_HEIGHT * n_bars + 8 * len(labels))


def _intervals(records: Sequence[Record], encoding: Mapping[str, Any]) -> list[Any]:
    """Return lines over intervals, with a halo that keeps them apart from the bars they cross."""
    alt = altair_library()
    base = alt.Chart(_data(records))
    return [base.mark_rule(style=style).encode(**encoding) for style in ("halo", "interval")]


def stack(
    records: Sequence[Record],
    *,
    x_title: str,
    labels: Sequence[str],
    series: Sequence[str],
    limit: tuple[float, str] | None = None,
    ends: Sequence[Record] = (),
) -> Any:
    """Return stacked horizontal bars; records with ``label``, ``x``, ``series``.

    Parameters
    ----------
    records, x_title, labels, series
        As for `bars`.
    limit : (float, str), optional
        Where a line goes that must not be crossed, and what it is called.
    ends : sequence of records
        Intervals of whole bars: ``label``, ``low``, ``high``, ``shown``.
    """
    alt = altair_library()
    ranks = {name: i for i, name in enumerate(series)}
    ranked = [{**record, "rank": ranks[record["series"]]} for record in records]
    y = alt.Y(
        "label:N",
        title=None,
        sort=list(labels),
        scale=alt.Scale(paddingInner=0.22),
        axis=alt.Axis(labelLimit=190, ticks=False),
    )
    bar = (
        alt.Chart(_data(ranked))
        .mark_bar()
        .encode(
            y=y,
            x=alt.X("x:Q", title=x_title, stack="zero", axis=alt.Axis(tickCount=6)),
            order=alt.Order("rank:Q"),
            opacity=_fade(),
            tooltip=_pointing(),
            **_colour(series),
        )
    )
    layers = [bar]
    if ends:
        layers += _intervals(
            ends, {"y": y, "x": alt.X("low:Q", title=x_title), "x2": "high:Q", "tooltip": _pointing()}
        )
    if limit is not None:
        layers.append(_rule(limit[0], "x", "limit"))
        layers.append(
            alt.Chart(alt.Data(values=[{"at": limit[0], "text": limit[1]}]))
            .mark_text(style="alert-text", align="right", dx=-5, baseline="bottom")
            .encode(x="at:Q", y=alt.value(-3), text="text:N")
        )
    return _with_pick(alt.layer(*layers)).properties(height=20 * len(labels))


# --- points ---------------------------------------------------------------------------------------


Domain = tuple[float, float]


def roofline(
    records: Sequence[Record],
    roofs: Sequence[Record],
    *,
    bandwidth_bytes_per_s: float,
    domains: tuple[Domain, Domain],
    series: Sequence[str],
    height: int = 260,
) -> Any:
    """Return operators under the roofs of their units.

    Parameters
    ----------
    records : sequence
        ``x`` in FLOP/byte, ``y`` in TFLOP/s, ``size`` as a share of the step.
    roofs : sequence
        ``y`` in TFLOP/s and ``name``, one for every unit.
    bandwidth_bytes_per_s : float
        The slope. [bytes/s]
    domains : (x, y)
        Ends of the axes, so that several panels agree.
    series : sequence of str
    height : int
    """
    alt = altair_library()
    slope = bandwidth_bytes_per_s / TERA  # TFLOP/s per FLOP/byte
    (low_x, high_x), (low_y, high_y) = domains
    x = alt.X(
        "x:Q",
        title="Work per byte moved (FLOP/byte)",
        scale=alt.Scale(type="log", domain=[low_x, high_x], nice=False),
        axis=alt.Axis(grid=False, format="~s", values=round_values(low_x, high_x)),
    )
    y = alt.Y(
        "y:Q",
        title="Rate reached (TFLOP/s)",
        scale=alt.Scale(type="log", domain=[low_y, high_y], nice=False),
        axis=alt.Axis(format="~g", values=round_values(low_y, high_y)),
    )
    lines = []
    for roof in roofs:
        ridge = roof["y"] / slope
        lines += [
            {"x": max(low_x, low_y / slope), "y": max(low_x * slope, low_y), "name": roof["name"]},
            {"x": ridge, "y": roof["y"], "name": roof["name"]},
            {"x": high_x, "y": roof["y"], "name": roof["name"]},
        ]
    roof_lines = alt.Chart(_data(lines)).mark_line(style="roof").encode(x=x, y=y, detail=alt.Detail("name:N"))
    names = (
        alt.Chart(_data([{**roof, "x": high_x} for roof in roofs]))
        .mark_text(style="note", align="right", dx=-2, dy=-6)
        .encode(x=x, y=y, text="name:N")
    )
    points = (
        alt.Chart(_data(records))
        .mark_point(filled=True)
        .encode(
            x=x,
            y=y,
            size=alt.Size(
                "size:Q", legend=None, scale=alt.Scale(domain=[0, 0.3], range=[18, 420], clamp=True)
            ),
            opacity=_fade(0.72),
            tooltip=_pointing(),
            **_colour(series),
            **_shape(series),
        )
    )
    return _with_pick(alt.layer(roof_lines, names, points)).properties(height=height)


def round_values(low: float, high: float) -> list[float]:
    """Return the powers of ten between two ends, with their doubles and fives where there are few."""
    powers = range(floor(log10(low)) - 1, ceil(log10(high)) + 1)
    steps = (1.0,) if log10(high / low) > 3 else (1.0, 2.0, 5.0) if high / low < 30 else (1.0, 3.0)  # noqa: PLR2004
    values = [step * 10.0**power for power in powers for step in steps]
    return [value for value in values if low <= value <= high]


def front(
    records: Sequence[Record],
    *,
    x_title: str,
    y_title: str,
    series: Sequence[str],
    height: int = 230,
) -> Any:
    """Return points with the front of those that no other beats; records with ``x``, ``y``, ``on_front``."""
    alt = altair_library()
    base = alt.Chart(_data(records))
    x, y = (
        channel(
            f"{axis}:Q",
            title=title,
            scale=alt.Scale(type="log", nice=False, domain=list(_log_domain(records, axis))),
            axis=alt.Axis(format="~g", values=round_values(*_log_domain(records, axis)), grid=axis == "y"),
        )
        for channel, axis, title in ((alt.X, "x", x_title), (alt.Y, "y", y_title))
    )
    on_front = base.transform_filter("datum.on_front")
    line = on_front.mark_line(interpolate="step-after", style="roof").encode(x=x, y=y, order="x:Q")
    points = base.mark_point(filled=True).encode(
        x=x,
        y=y,
        size=alt.condition("datum.on_front", alt.value(75), alt.value(16)),
        opacity=_fade(0.8),
        tooltip=_pointing(),
        **_colour(series),
        **_shape(series),
    )
    return _with_pick(alt.layer(line, points)).properties(height=height)


def _log_domain(records: Sequence[Record], axis: str) -> Domain:
    """Return ends that leave every mark whole."""
    values = [record[axis] for record in records]
    return min(values) / 1.2, max(values) * 1.2


# --- predictions against a meter ------------------------------------------------------------------


def predicted_against_measured(
    records: Sequence[Record], *, unit: str, series: Sequence[str], height: int = 300
) -> Any:
    """Return a log-log scatter with the line of equality; records with ``x`` (measured) and ``y``."""
    alt = altair_library()
    values = [record[axis] for record in records for axis in ("x", "y")]
    ends = [min(values) / 1.2, max(values) * 1.2]
    scale = alt.Scale(type="log", domain=ends, nice=False)
    equal = (
        alt.Chart(alt.Data(values=[{"x": end, "y": end} for end in ends]))
        .mark_line(style="reference")
        .encode(x=alt.X("x:Q", scale=scale), y=alt.Y("y:Q", scale=scale))
    )
    points = (
        alt.Chart(_data(records))
        .mark_point(filled=True, size=22)
        .encode(
            x=alt.X("x:Q", title=f"Measured ({unit})", scale=scale, axis=alt.Axis(format="~s", tickCount=5)),
            y=alt.Y("y:Q", title=f"Predicted ({unit})", scale=scale, axis=alt.Axis(format="~s", tickCount=5)),
            opacity=_fade(0.6),
            tooltip=_pointing(),
            **_colour(series),
            **_shape(series),
        )
    )
    return _with_pick(alt.layer(equal, points)).properties(height=height)


def error_by_group(records: Sequence[Record], *, x_title: str, labels: Sequence[str]) -> Any:
    """Return a dot per label, a line over its interval; records with ``label``, ``x``, ``low``, ``high``."""
    alt = altair_library()
    base = alt.Chart(_data(records))
    y = alt.Y("label:N", title=None, sort=list(labels), axis=alt.Axis(labelLimit=190, ticks=False))
    interval = base.mark_rule(style="interval").encode(y=y, x=alt.X("low:Q", title=x_title), x2="high:Q")
    dots = base.mark_point(filled=True, size=60).encode(
        y=y, x=alt.X("x:Q", title=x_title), tooltip=_pointing()
    )
    return alt.layer(_rule(0.0, "x"), interval, dots).properties(height=18 * len(labels))


def curve_with_measured(
    records: Sequence[Record],
    measured: Sequence[Record],
    *,
    x_title: str,
    y_title: str,
    series: Sequence[str] = (),
    height: int = 210,
) -> Any:
    """Return a `curve` of predictions with measured points, ``x`` and ``y``, as hollow marks on top."""
    alt = altair_library()
    lines = curve(records, x_title=x_title, y_title=y_title, series=series, height=height)
    points = (
        alt.Chart(_data(measured))
        .mark_point(filled=True, size=46, style="measured")
        .encode(x="x:Q", y="y:Q", opacity=_fade(), tooltip=_pointing())
    )
    return alt.layer(lines, points).properties(height=height)

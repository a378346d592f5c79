"""A prediction beside a measurement, for people: as a page and as a figure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from joulecast.errors import MissingExtraError, UsageError
from joulecast.measure.comparison import ComparedQuantity, ComparedTime, Comparison, MeasuredValue
from joulecast.report.figures import count, digits, gibibytes, interval, megahertz, ranged, with_prefix
from joulecast.report.machine import save_output
from joulecast.report.tables import Sheet
from joulecast.report.theme import LIGHT, SERIES
from joulecast.results import Origin, Quantity
from joulecast.units import MEGA, MILLI, PERCENT

_N_GROUPS: Final = 14
_NOTHING: Final = "-"

_LABELS: Final = {
    "step_time_s": "step time",
    "samples_per_s": "samples/s",
    "mean_power_w": "mean power per GPU",
    "energy_per_step_j": "energy per step",
    "energy_per_sample_j": "energy per sample",
    "samples_per_j": "samples per joule",
    "allocated_bytes": "memory allocated",
    "reserved_bytes": "memory reserved",
    "process_bytes": "memory of the process",
    "sm_clock_hz": "SM clock",
}


def comparison_page(c: Comparison) -> list[Sheet | str]:
    """Return a comparison in full."""
    p = c.prediction
    page: list[Sheet | str] = [
        f"{p.model} on {p.n_gpus} x {p.gpu_name} ({p.gpu}), {p.precision}, run {c.run_id}",
        "",
        Sheet(
            columns=("", ">predicted", ">90 % interval", "from", ">measured", ">90 % interval", ">error", ""),
            rows=tuple(_quantity_row(q) for q in c.quantities if q.measured.value is not None),
        ),
    ]
    page += _absences(c)
    if c.groups:
        page += ["", _times_sheet("stages", c.stages), _times_sheet("operators", c.groups[:_N_GROUPS])]
    page += ["", *_verdict(c)]
    page += list(c.notes)
    page += [f"! {flag}" for flag in p.flags]
    return page


def _quantity_row(q: ComparedQuantity) -> tuple[str, ...]:
    value, span = _shown(q.name, q.predicted)
    m = q.measured
    measured, measured_span = _shown(q.name, _as_quantity(m))
    error = "" if q.error_frac is None else f"{q.error_frac / PERCENT:+.1f} %"
    return (
        _LABELS[q.name],
        value,
        span,
        str(q.predicted.origin),
        measured,
        measured_span if m.low is not None and m.low != m.high else "not stated",
        error,
        "inside" if q.is_inside else "outside",
    )


def _as_quantity(m: MeasuredValue) -> Quantity:
    value = m.value or 0.0
    low, high = (value if bound is None else bound for bound in (m.low, m.high))
    return Quantity(value=value, low=low, high=high, origin=Origin.MEASURED)


def _shown(name: str, q: Quantity) -> tuple[str, str]:
    """Return value and interval in the unit that reads best."""
    if name.endswith("_bytes"):
        return gibibytes(q.value), f"{gibibytes(q.low)} - {gibibytes(q.high)}"
    if name.endswith("_hz"):
        return megahertz(q.value), interval(q, MEGA, 4)
    if name in {"step_time_s", "energy_per_step_j", "energy_per_sample_j"}:
        return ranged(q, name.rpartition("_")[2].upper() if name.endswith("_j") else "s")
    unit = " W" if name.endswith("_w") else ""
    return f"{digits(q.value)}{unit}", interval(q, 1)


def _absences(c: Comparison) -> list[Sheet | str]:
    """Return what was not measured, grouped by reason."""
    groups: dict[str, list[str]] = {}
    for q in c.quantities:
        if q.measured.value is None:
            groups.setdefault(q.measured.reason, []).append(_LABELS[q.name])
    return [f"not measured: {', '.join(labels)}: {reason}" for reason, labels in groups.items()]


def _times_sheet(title: str, times: tuple[ComparedTime, ...]) -> Sheet:
    has_kinds = any(time.kind for time in times)
    label = ("kind", "stage") if has_kinds else ("stage",)
    rows = tuple(
        (
            *((time.kind,) if has_kinds else ()),
            str(time.stage),
            with_prefix(time.predicted_s, "s"),
            with_prefix(time.measured_s, "s"),
            _signed(time.residual_s),
            digits(time.n_predicted),
            digits(time.n_measured),
        )
        for time in times
    )
    columns = (*label, ">predicted", ">measured", ">residual", ">counted", ">ran")
    return Sheet(title=title, columns=columns, rows=rows)


def _signed(time_s: float) -> str:
    return f"{'-' if time_s < 0 else '+'}{with_prefix(abs(time_s), 's')}"


def _verdict(c: Comparison) -> list[str]:
    """Return the residual, its likely cause, and what else was looked at."""
    if c.residual_s is None:
        return ["the run has no step time: there is nothing to explain"]
    step = c.quantities[0]
    inside = "inside" if step.is_inside else "outside"
    lines = [f"measured less predicted step time: {_signed(c.residual_s)}, {inside} the predicted interval"]
    cause = c.likely_cause
    if cause is None and all(looked.residual_s is None for looked in c.causes):
        lines.append("likely cause: nothing that was recorded tells")
    elif cause is None:
        lines.append("likely cause: none of those looked at explains it")
    elif cause is not None:
        lines.append(f"likely cause: {cause.name} ({_signed(cause.residual_s or 0.0)}): {cause.evidence}")
    for other in c.causes:
        if other is not cause:
            amount = "" if other.residual_s is None else f" ({_signed(other.residual_s)})"
            lines.append(f"  {other.name}{amount}: {other.evidence}")
    return lines


# --- figure ---------------------------------------------------------------------------------------

_WIDTH: Final = 420
_BAR_STEP: Final = 11
_SCALE: Final = 2.0
_COLOURS: Final = tuple(LIGHT.colours[role] for role in SERIES[:2])
_SIDES: Final = ("predicted", "measured")


def save_comparison_figure(c: Comparison, path: str | Path) -> None:
    """Draw a comparison into an SVG or PNG file.

    Raises
    ------
    UsageError
        The file is of another kind, or cannot be written.
    MissingExtraError
        altair or vl-convert-python is not installed.
    """
    kind = Path(path).suffix.lower()
    if kind not in _CONVERTERS:
        raise UsageError(f"cannot draw {path}: a figure ends in {' or '.join(_CONVERTERS)}")
    try:
        content = _CONVERTERS[kind](comparison_chart(c).to_json())
    except ImportError as error:
        raise MissingExtraError(
            "figures need altair and vl-convert: pip install 'joulecast[figures]'"
        ) from error
    save_output(path, content)


def _svg(spec: str) -> str:
    import vl_convert

    return str(vl_convert.vegalite_to_svg(spec))


def _png(spec: str) -> bytes:
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(spec, scale=_SCALE))


_CONVERTERS: Final[dict[str, Callable[[str], str | bytes]]] = {".svg": _svg, ".png": _png}


def comparison_chart(c: Comparison) -> Any:
    """Return a figure: measured over predicted by quantity, and the operators' times on both sides."""
    import altair as alt

    parts = [_ratio_chart(c)]
    if c.groups:
        parts.append(_times_chart(c))
    p = c.prediction
    title = f"{p.model}, {p.gpu}, {p.precision}, batch {count(p.batch_per_gpu)}"
    return (
        alt.vconcat(*parts, title=title, spacing=24)
        .resolve_legend(color="independent")
        .configure_view(stroke=None)
    )


def _ratio_chart(c: Comparison) -> Any:
    import altair as alt

    rows = [
        {
            "quantity": _LABELS[q.name],
            "ratio": q.measured.value / q.predicted.value,
            "low": q.predicted.low / q.predicted.value,
            "high": q.predicted.high / q.predicted.value,
        }
        for q in c.quantities
        if q.measured.value is not None and q.predicted.value
    ]
    order = [str(row["quantity"]) for row in rows]
    base = alt.Chart(alt.InlineData(values=rows)).encode(y=alt.Y("quantity:N", sort=order, title=None))
    x = alt.X(
        "low:Q",
        scale=alt.Scale(type="log", nice=False, padding=12),
        title="measured / predicted; bars are the 90 % interval of the prediction",
    )
    return (
        base.mark_bar(height=10, opacity=0.35, color=_COLOURS[0]).encode(x=x, x2="high:Q")
        + base.mark_point(filled=True, size=60, color=_COLOURS[1]).encode(x="ratio:Q")
        + alt.Chart(alt.InlineData(values=[{"one": 1}]))
        .mark_rule(strokeDash=[4, 3], color=LIGHT.colours["muted"])
        .encode(x="one:Q")
    ).properties(width=_WIDTH)


def _times_chart(c: Comparison) -> Any:
    import altair as alt

    rows = [
        {"group": _group_label(group), "side": side, "time": time_s / MILLI}
        for group in c.groups[:_N_GROUPS]
        for side, time_s in zip(_SIDES, (group.predicted_s, group.measured_s), strict=True)
    ]
    order = list(dict.fromkeys(str(row["group"]) for row in rows))
    colour = alt.Color(
        "side:N",
        scale=alt.Scale(domain=list(_SIDES), range=list(_COLOURS)),
        legend=alt.Legend(title=None, orient="top"),
    )
    return (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar()
        .encode(
            y=alt.Y("group:N", sort=order, title=None, axis=alt.Axis(labelLimit=220)),
            yOffset=alt.YOffset("side:N", sort=list(_SIDES)),
            x=alt.X("time:Q", title="time of operators per step [ms]", axis=alt.Axis(tickCount=6)),
            color=colour,
        )
        .properties(width=_WIDTH, height=alt.Step(_BAR_STEP))
    )


def _group_label(group: ComparedTime) -> str:
    """Return kind and stage; once where they are one word."""
    return " ".join(dict.fromkeys((group.kind, str(group.stage))))

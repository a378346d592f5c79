"""A report as one page: figures, captions and tables in a single HTML file that asks for nothing.

In: a `Page`. Out: HTML, with the charting library inside, so that it works without a network, under a policy
that lets it load nothing. Colours follow the reader's scheme, and paper is light.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, Final

from joulecast.report.charts import PICK, Figure, altair_library
from joulecast.report.tables import Sheet
from joulecast.report.theme import DASHES, PAGE, SERIES, SHAPES, css_variables
from joulecast.whole_file import whole_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page.

    Attributes
    ----------
    title : str
    body : tuple of str, Sheet or Figure
        Paragraphs, tables and figures, in order.
    """

    title: str
    body: tuple["str | Sheet | Figure", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page.

    Attributes
    ----------
    title, subtitle : str
    sections : tuple of Section
    footer : str
        Where the numbers come from.
    """

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    footer: str


def page_html(page: Page) -> str:
    """Return a page as one HTML document."""
    names = [figure.name for figure in figures_of(page)]
    assert len(set(names)) == len(names), "a figure's name is its anchor and its file"
    specs: dict[str, Any] = {}
    sections = "".join(_section(section, specs) for section in page.sections)
    links = "".join(
        f'<a href="#{_anchor(section.title)}">{escape(section.title)}</a>' for section in page.sections
    )
    return _template("page.html").substitute(
        title=escape(page.title),
        subtitle=escape(page.subtitle),
        links=links,
        sections=sections,
        footer=escape(page.footer),
        style=css_variables() + _text("page.css"),
        library=_in_script(_library()),
        specs=_in_json_script(json.dumps(specs, allow_nan=False, separators=(",", ":"))),
        config=_in_json_script(json.dumps({**PAGE.config(), "legend": {"disable": True}})),
        script=_text("page.js"),
    )


@cache
def _library() -> str:
    """Return the JavaScript that draws the charts; bundling it takes seconds."""
    version = ".".join(altair_library().SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    import vl_convert

    bundle: str = vl_convert.javascript_bundle(snippet="window.vegaEmbed=vegaEmbed;", vl_version=version)
    return bundle


def save_page(page: Page, path: str | Path) -> None:
    """Write a page; the old file stays whole until then."""
    html = page_html(page)
    with whole_file(path) as partial:
        partial.write_text(html, encoding="utf-8")


def _text(name: str) -> str:
    return (resources.files("joulecast.report") / "template" / name).read_text(encoding="utf-8")


def _template(name: str) -> Template:
    return Template(_text(name))


def _in_script(text: str) -> str:
    """Return JavaScript that cannot end its element; a ``<`` there stands in a string or a pattern."""
    return re.sub(r"<(?=/script|script|!--)", r"\\x3c", text, flags=re.IGNORECASE)


def _in_json_script(text: str) -> str:
    """Return JSON for a script element; ``<`` stands in strings alone."""
    return text.replace("<", "\\u003c")


def _anchor(title: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in title.lower()).strip("-")


def _section(section: Section, specs: dict[str, Any]) -> str:
    parts = [_part(part, specs) for part in section.body]
    anchor = _anchor(section.title)
    return f'<section id="{anchor}"><h2>{escape(section.title)}</h2>{"".join(parts)}</section>'


def _part(part: "str | Sheet | Figure", specs: dict[str, Any]) -> str:
    if isinstance(part, str):
        return f"<p>{escape(part)}</p>"
    if isinstance(part, Sheet):
        return sheet_html(part)
    return _figure(part, specs)


def sheet_html(sheet: Sheet) -> str:
    """Return a table."""
    is_number = [column.startswith(">") for column in sheet.columns]
    head = "".join(
        _cell("th", column.removeprefix(">"), is_number[i]) for i, column in enumerate(sheet.columns)
    )
    rows = "".join(
        f"<tr>{''.join(_cell('td', cell, is_number[i]) for i, cell in enumerate(row))}</tr>"
        for row in sheet.rows
    )
    caption = f"<caption>{escape(sheet.title)}</caption>" if sheet.title else ""
    return (
        f'<div class="table" tabindex="0"><table>{caption}<thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(tag: str, text: str, is_number: bool) -> str:
    kind = ' class="number"' if is_number else ""
    scope = ' scope="col"' if tag == "th" else ""
    return f"<{tag}{scope}{kind}>{escape(text)}</{tag}>"


# --- figures --------------------------------------------------------------------------------------


def _figure(figure: Figure, specs: dict[str, Any]) -> str:
    panels = []
    for i, panel in enumerate(figure.panels):
        key = f"{figure.name}-{i}"
        specs[key] = panel.chart.properties(width="container").to_dict()
        title = f"<h4>{escape(panel.title)}</h4>" if panel.title else ""
        panels.append(
            f'<div class="panel">{title}<div class="chart" id="{key}" role="img" '
            f'aria-label="{escape(f"{figure.title} {panel.title}".strip())}"></div></div>'
        )
    n_columns = min(figure.n_columns, len(figure.panels))
    return (
        f'<figure id="{figure.name}"><h3>{escape(figure.title)}</h3>{_legend(figure)}'
        f'<div class="panels columns-{n_columns}">{"".join(panels)}</div>'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )


def _legend(figure: Figure) -> str:
    if len(figure.series) < 2:  # noqa: PLR2004 (one kind needs no legend)
        return ""
    keys = "".join(
        f'<button type="button" aria-pressed="false" data-series="{escape(name)}">'
        f"{_swatch(figure.mark, i)}{escape(name)}</button>"
        for i, name in enumerate(figure.series)
    )
    return f'<div class="legend" data-signal="{PICK}">{keys}</div>'


#: The shapes of points as paths within 14 x 14.
_PATHS: Final = {
    "circle": "M7 3a4 4 0 1 0 .01 0Z",
    "square": "M3.5 3.5h7v7h-7Z",
    "triangle-up": "M7 2.5 11.5 11h-9Z",
    "diamond": "M7 2 11.5 7 7 12 2.5 7Z",
    "cross": "M5.5 2.5h3v3h3v3h-3v3h-3v-3h-3v-3h3Z",
    "triangle-down": "M7 11.5 2.5 3h9Z",
    "stroke": "M2.5 6h9v2h-9Z",
    "wedge": "M7 2.5 9 11.5H5Z",
}


def _swatch(mark: str, i: int) -> str:
    """Return what stands for a series in a legend, as its marks look."""
    colour = PAGE.colours[SERIES[i % len(SERIES)]]
    shape = _PATHS[SHAPES[i % len(SHAPES)]]
    if mark == "bar":
        inside = f'<rect x="1" y="2" width="12" height="10" rx="2" fill="{colour}"/>'
    elif mark == "point":
        inside = f'<path d="{shape}" fill="{colour}"/>'
    else:
        dash = " ".join(str(length) for length in DASHES[i % len(DASHES)])
        inside = (
            f'<line x1="-6" x2="20" y1="7" y2="7" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/><path d="{shape}" fill="{colour}"/>'
        )
    box = "-6 0 26 14" if mark == "line" else "0 0 14 14"
    width = 26 if mark == "line" else 14
    return f'<svg viewBox="{box}" width="{width}" height="14" aria-hidden="true">{inside}</svg>'


def figures_of(page: Page) -> Sequence[Figure]:
    """Return the figures of a page, in order."""
    return [part for section in page.sections for part in section.body if isinstance(part, Figure)]

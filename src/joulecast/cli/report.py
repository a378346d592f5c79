"""``joulecast report``."""

from pathlib import Path

import click

from joulecast.cli.options import parameters_option
from joulecast.errors import UsageError
from joulecast.explore.table import load_sweep
from joulecast.model.parameters import load_parameters
from joulecast.report.charts import save_png, save_svg
from joulecast.report.page import figures_of, save_page
from joulecast.report.reports import report_page
from joulecast.report.theme import DARK, LIGHT


@click.command("report")
@click.argument("table", metavar="R.parquet")
@click.option("--out", "-o", metavar="HTML", help="The page to write; report.html if not given.")
@click.option("--figures", metavar="DIR", help="Also write every figure as SVG and PNG into this folder.")
@click.option("--dark", is_flag=True, help="Figures of --figures on dark paper; the page follows its reader.")
@click.option("--title", default="", help="Title of the page; models and cards if not given.")
@parameters_option
def command(
    table: str, out: str | None, figures: str | None, dark: bool, title: str, parameters: str | None
) -> None:
    """Write a page of figures about a table that `joulecast sweep` or `joulecast study` kept.

    The page is one file that works without a network, on a phone and on paper.
    """
    target = Path(out or "report.html")
    if target.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{target}: a report ends in .html")
    if not target.parent.is_dir():
        raise UsageError(f"no such folder: {target.parent}")
    page = report_page(load_sweep(table), parameters=load_parameters(parameters), title=title)
    save_page(page, target)
    click.echo(f"wrote {target}")
    if figures is not None:
        folder = Path(figures)
        folder.mkdir(parents=True, exist_ok=True)
        theme = DARK if dark else LIGHT
        for figure in figures_of(page):
            save_svg(figure, folder, theme)
            save_png(figure, folder, theme)
        click.echo(f"wrote {len(figures_of(page))} figures, SVG and PNG, into {folder}")

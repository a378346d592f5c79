"""The one place that draws tables; rich is imported when the first is drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

#: Width for files and pipes, where nothing should wrap.
_PIPE_COLUMNS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A table before it is drawn.

    Attributes
    ----------
    columns : tuple of str
        Headers; one that starts with ``>`` is right-aligned and loses the sign.
    rows : tuple of tuple of str
    title : str
        A line above; empty for none.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""


def markdown(sheet: Sheet) -> str:
    """Return a table in Markdown."""
    heads = [column.removeprefix(">") for column in sheet.columns]
    rules = ["--:" if column.startswith(">") else "---" for column in sheet.columns]
    lines = [heads, rules, *([cell.replace("|", "\\|") for cell in row] for row in sheet.rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{sheet.title}\n\n{table}" if sheet.title else table


def draw(sheets: Sequence[Sheet | str], out: TextIO) -> None:
    """Draw tables and lines of text, one below the other."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(
        file=out,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=not out.isatty(),
        width=None if out.isatty() else _PIPE_COLUMNS,
    )
    for sheet in sheets:
        if isinstance(sheet, str):
            console.print(sheet)
            continue
        headers = [column.removeprefix(">") for column in sheet.columns]
        if sheet.title:
            console.print(sheet.title)
        table = Table(box=box.SIMPLE_HEAD if any(headers) else None, pad_edge=False, padding=(0, 2, 0, 0))
        table.show_header = any(headers)
        for column, header in zip(sheet.columns, headers, strict=True):
            table.add_column(header, justify="right" if column.startswith(">") else "left", overflow="fold")
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)

"""Where output goes: tables, JSON and CSV to standard output, progress to a terminal."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from joulecast.report.machine import csv_text, json_text
from joulecast.report.tables import Sheet, draw

_Step = TypeVar("_Step")


def show_page(page: Sequence[Sheet | str]) -> None:
    """Draw tables and text on standard output."""
    draw(page, sys.stdout)


def show_json(document: Mapping[str, Any]) -> None:
    """Print a document as JSON."""
    print(json_text(document))


def show_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print flat rows as CSV."""
    sys.stdout.write(csv_text(rows))


def with_progress(steps: Sequence[_Step], label: str) -> Iterable[_Step]:
    """Return the steps, shown as a bar while they are taken if standard error is a terminal."""
    if not sys.stderr.isatty():
        return steps
    from rich.console import Console
    from rich.progress import track

    return track(steps, description=label, console=Console(stderr=True), transient=True)


@contextmanager
def counting(total: int, label: str) -> Iterator[Callable[[int], None] | None]:
    """Give a function to tell what is done of a total, shown as a bar if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda n_done: bar.advance(task, n_done)

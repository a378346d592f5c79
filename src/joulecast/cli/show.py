"""Where output goes: tables, JSON and CSV to standard output, progress to a terminal."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

from joulecast.report.machine import csv_text, json_text, save_output
from joulecast.report.tables import Sheet, draw

_Step = TypeVar("_Step")

#: Where PyTorch's libraries may write what concerns only them, unless the user asks for it.
_QUIET = {"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR"}


def quiet_torch() -> None:
    """Keep PyTorch's libraries from writing to standard error; before torch is imported."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def show_page(page: Sequence[Sheet | str], *, beside: bool = False) -> None:
    """Draw tables and text on standard output, or beside that of another program."""
    draw(page, _out(beside))


def show_json(document: Mapping[str, Any], *, beside: bool = False) -> None:
    """Print a document as JSON."""
    print(json_text(document), file=_out(beside))


def show_csv(rows: Sequence[Mapping[str, Any]], *, beside: bool = False) -> None:
    """Print flat rows as CSV."""
    _out(beside).write(csv_text(rows))


def _out(beside: bool) -> TextIO:
    return sys.stderr if beside else sys.stdout


def show_text(text: str, path: str | None = None) -> None:
    """Print text as it stands, or write it to a file."""
    if path is None:
        sys.stdout.write(text)
    else:
        save_output(path, text)


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

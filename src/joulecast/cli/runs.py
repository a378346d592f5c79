"""``joulecast runs``: the store of runs, and files of them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from joulecast.cli.show import show_csv, show_json, show_page, show_text
from joulecast.errors import UsageError

if TYPE_CHECKING:
    from joulecast.measure.stored import StoredRun

# the store's library takes longer to load than this module's help to print: it is imported where it is used

_store_option = click.option(
    "--store",
    metavar="URL",
    help="A database, or the path of an SQLite file; JOULECAST_STORE, or a file of your data, if not given.",
)

_FILTERS = (
    click.option("--model", metavar="TEXT", help="Only models whose name contains it."),
    click.option("--gpu", metavar="TEXT", help="Only cards whose name contains it."),
    click.option("--precision", metavar="TEXT", help="Only precisions that contain it."),
    click.option("--source", metavar="TEXT", help="Only sources that contain it."),
    click.option(
        "--status", type=click.Choice(("complete", "partial", "failed")), help="Only runs that ended so."
    ),
    click.option("--since", default="", metavar="TIME", help="Only runs started then or later: 2026-01-31."),
    click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the last N."),
)


def _filters(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_FILTERS):
        command = option(command)
    return command


@click.group("runs")
def command() -> None:
    """List, show, export, import and merge the runs that were measured."""


@command.command("list")
@_filters
@_store_option
@click.option(
    "--format",
    "output_format",
    type=click.Choice(("table", "json", "csv")),
    default="table",
    show_default=True,
)
def list_runs(store: str | None, output_format: str, **filters: Any) -> None:
    """List the runs of the store, oldest first."""
    from joulecast.measure.store import Store
    from joulecast.report.runs import runs_document, runs_table

    with Store.open(store, create=False) as opened:
        runs = opened.list(**filters)
        if output_format == "json":
            show_json(runs_document(runs))
        elif output_format == "csv":
            show_csv([run.row for run in runs])
        else:
            show_page(runs_table(runs, opened.name))


@command.command("show")
@click.argument("run_id", metavar="RUN")
@click.option(
    "--job", is_flag=True, help="Show its job: the records of all nodes that are in the store, added."
)
@_store_option
@click.option(
    "--format", "output_format", type=click.Choice(("table", "json")), default="table", show_default=True
)
def show_run(run_id: str, store: str | None, job: bool, output_format: str) -> None:
    """Show one run in full; RUN is its id, or the start of it."""
    from joulecast.measure.nodes import combine
    from joulecast.measure.store import Store
    from joulecast.measure.stored import StoredRun
    from joulecast.report.runs import run_page

    with Store.open(store, create=False) as opened:
        run = opened.get(run_id)
        if job:
            run = StoredRun.of(combine(opened.job(run)))
    if output_format == "json":
        show_json(run.to_dict())
    else:
        show_page(run_page(run))


@command.command("export")
@_filters
@_store_option
@click.option(
    "--format",
    "output_format",
    type=click.Choice(("csv", "jsonl")),
    default="csv",
    show_default=True,
    help="csv is what `validate` and `calibrate` take; jsonl leaves nothing out.",
)
@click.option("--out", metavar="FILE", help="Write a file, instead of standard output.")
def export_runs(store: str | None, output_format: str, out: str | None, **filters: Any) -> None:
    """Write the runs of the store as a file of runs."""
    from joulecast.measure.exchange import runs_csv, runs_json_lines
    from joulecast.measure.store import Store

    with Store.open(store, create=False) as opened:
        runs = opened.list(**filters)
    show_text(runs_csv(runs) if output_format == "csv" else runs_json_lines(runs), out)


@command.command("import")
@click.argument("files", nargs=-1, metavar="FILE...")
@_store_option
@click.option(
    "--format",
    "kind",
    type=click.Choice(("csv", "jsonl", "codecarbon")),
    help="What the file looks like, if not given.",
)
def import_runs(files: tuple[str, ...], store: str | None, kind: str | None) -> None:
    """Add the runs of files to the store: CSV of runs, JSON lines, CodeCarbon's emissions.csv.

    A run whose id is there already is not counted twice. A file is taken as a whole or not at all.
    """
    from joulecast.measure.exchange import RunsFormat, load_runs_file
    from joulecast.measure.store import Store
    from joulecast.report.runs import added_lines

    if not files:
        raise UsageError("name a file: joulecast runs import FILE...")
    loaded = [load_runs_file(path, RunsFormat(kind) if kind else None) for path in files]
    with Store.open(store) as opened:
        added = opened.add_all(run for file in loaded for run in file.runs)
        show_page(added_lines(added, opened.name, [column for file in loaded for column in file.left_out]))


@command.command("merge")
@click.argument("stores", nargs=-1, metavar="URL...")
@_store_option
def merge_stores(stores: tuple[str, ...], store: str | None) -> None:
    """Add the runs of other stores to the store; those stay as they are.

    A run whose id is there already is not counted twice.
    """
    from joulecast.measure.store import Store
    from joulecast.report.runs import added_lines

    if not stores:
        raise UsageError("name a store: joulecast runs merge URL...")
    runs: list[StoredRun] = []
    for url in stores:
        with Store.open(url, create=False) as other:
            runs += other.list()
    with Store.open(store) as opened:
        show_page(added_lines(opened.add_all(runs), opened.name))

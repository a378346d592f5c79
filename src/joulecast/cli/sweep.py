"""``joulecast sweep``."""

from collections.abc import Callable
from typing import Any

import click

from joulecast.cli.options import decorated, format_option, parameters_option
from joulecast.cli.show import counting, show_csv, show_json, show_page
from joulecast.errors import UsageError
from joulecast.explore.space import KEYS, MOST_SHOWN, Space, load_space, space_of
from joulecast.explore.sweep import Spread, in_processes, in_turn, save_sweep, sweep
from joulecast.model.parameters import load_parameters
from joulecast.report.sweeps import sweep_page

#: Keys that have no option of their own: ``--set`` changes hardware.
_NO_OPTION = ("hardware",)

_KEY_OPTIONS = tuple(
    click.option(
        f"--{key.replace('_', '-')}",
        key,
        multiple=True,
        metavar="V[,V...]" if kind in (str, bool) else "V[,V...] or START:STOP:STEP or START:STOP:xFACTOR",
    )
    for key, kind in KEYS.items()
    if key not in _NO_OPTION
)


def _key_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return decorated(command, _KEY_OPTIONS)


@click.command("sweep")
@click.argument("space", required=False, metavar="[SPACE.toml]")
@_key_options
@click.option(
    "--set", "changes", multiple=True, metavar="NAME=CHANGE", help="Change the cards: bandwidth=2x."
)
@click.option("--out", "-o", metavar="FILE", help="Keep all in FILE.parquet or FILE.csv; resumes.")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Of this machine, with --out.",
)
@click.option(
    "--dask", metavar="ADDRESS", help="Spread blocks over the cluster of this scheduler, with --out."
)
@parameters_option
@format_option
def command(
    space: str | None,
    changes: tuple[str, ...],
    out: str | None,
    processes: int,
    dask: str | None,
    parameters: str | None,
    output_format: str,
    **given: tuple[str, ...],
) -> None:
    """Predict every combination of the values of some keys, the columns of a file of runs.

    Keys stand in SPACE.toml (each a value, a list or a range), as options, or both; options win.
    """
    asked = _space(space, given, changes)
    fitted = load_parameters(parameters)
    if out is not None:
        try:
            with counting(len(asked), "predicting") as progress:
                n = save_sweep(
                    asked, out, parameters=fitted, spread=_spread(processes, dask), progress=progress
                )
        except KeyboardInterrupt:
            click.echo(f"{out} is not finished: the same command goes on where it stopped", err=True)
            raise
        click.echo(f"wrote {out}: {n} configurations")
        return
    if dask is not None or processes > 1:
        raise UsageError("--processes and --dask are for a sweep that is kept: give --out")
    if len(asked) > MOST_SHOWN:
        raise UsageError(f"{len(asked)} configurations are too many to show: keep them with --out R.parquet")
    result = sweep(asked, parameters=fitted)
    if output_format == "json":
        show_json({"schema": "joulecast/sweep/1", "space": asked.to_dict(), "rows": result.to_rows()})
    elif output_format == "csv":
        show_csv(result.to_rows())
    else:
        show_page(sweep_page(result))


def _space(path: str | None, given: dict[str, tuple[str, ...]], changes: tuple[str, ...]) -> Space:
    """Return the space of a file and of options."""
    values: dict[str, Any] = {} if path is None else dict(load_space(path).to_dict())
    for key, texts in given.items():
        items = [item.strip() for text in texts for item in text.split(",") if item.strip()]
        if items:
            values[key] = [item.lower() == "true" if KEYS[key] is bool else item for item in items]
    if changes:
        values["hardware"] = [",".join(changes)]
    return space_of(values)


def _spread(processes: int, dask: str | None) -> Spread:
    if dask is not None:
        from joulecast.explore.dask import on_cluster

        return on_cluster(dask)
    return in_processes(processes) if processes > 1 else in_turn

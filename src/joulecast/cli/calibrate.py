"""``joulecast calibrate``."""

from pathlib import Path
from typing import Any, Final

import click

from joulecast.calibrate.as_published import fit_as_published
from joulecast.calibrate.bench_fit import fit_bench
from joulecast.calibrate.explain import explain
from joulecast.calibrate.own import OwnOptions, calibrate_own, checkpoint_beside
from joulecast.calibrate.validation import check_writable
from joulecast.cli.options import comma_list, format_option
from joulecast.cli.show import show_csv, show_json, show_page
from joulecast.errors import UsageError
from joulecast.model.parameters import load_parameters, save_parameters
from joulecast.report.calibrations import bench_fit_page, explanation_page, own_page, published_page
from joulecast.report.tables import Sheet

#: What ``--explain`` takes for the set of the package.
SHIPPED: Final = "shipped"


@click.command("calibrate")
@click.option("--runs", metavar="RUNS.csv", help="Measured runs, one row each.")
@click.option("--ops", metavar="OPS.parquet", help="Measured single operators.")
@click.option("--start", metavar="SET.toml", help="The set to start from; the shipped one if not given.")
@click.option(
    "--only",
    multiple=True,
    callback=comma_list,
    metavar="STAGE[,STAGE...]",
    help="Of operators, host, bandwidth, efficiency, power, communication, memory; all if not given.",
)
@click.option(
    "--per-model", is_flag=True, help="A last stage gives each model of the runs a factor of its own."
)
@click.option(
    "--preset",
    type=click.Choice(("as-published", "bench")),
    help="The paper's own method, in sample; or all that one device's `joulecast bench` shows.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--out", metavar="SET.toml", help="Where the set goes.")
@click.option(
    "--explain", "explained", metavar="SET.toml", help="Show what a set says, or the one `shipped`."
)
@format_option
def command(
    *,
    runs: str | None,
    ops: str | None,
    start: str | None,
    only: tuple[str, ...],
    per_model: bool,
    preset: str | None,
    seed: int,
    out: str | None,
    explained: str | None,
    output_format: str,
) -> None:
    """Fit a parameter set to your own runs, from a handful to all of them, or explain a set.

    Each stage is kept only if the error of rows held out falls; what the runs do not determine stays as it
    was. An interrupted calibration goes on where it stood if it is started again as it was. CSV has one row
    for each stage, or for each parameter of the set that is explained.
    """
    if explained is not None:
        if runs is not None or ops is not None or out is not None:
            raise UsageError("--explain shows a set and fits none: leave out --runs, --ops and --out")
        _show_explained(explained, output_format)
        return
    if out is None:
        raise UsageError("name the file of the set with --out SET.toml")
    check_writable(out)
    parameters = load_parameters(start)
    if preset == "bench":
        if ops is None or runs is not None or only or per_model:
            raise UsageError("--preset bench takes --ops alone: the file of one device's joulecast bench")
        benched = fit_bench(ops, parameters, progress=_tell)
        save_parameters(benched.parameters, out)
        _show(benched.to_dict(), bench_fit_page(benched), output_format)
        return
    if preset is not None:
        if runs is None or ops is not None or only or per_model:
            raise UsageError("--preset as-published takes --runs, and neither --ops, --only nor --per-model")
        published = fit_as_published(runs, parameters, seed=seed, progress=_tell)
        save_parameters(published.parameters, out)
        _show(published.to_dict(), published_page(published), output_format)
        return
    checkpoint = checkpoint_beside(Path(out))
    own = calibrate_own(
        runs,
        parameters,
        OwnOptions(only=only, per_model=per_model, seed=seed),
        operators_path=ops,
        checkpoint=checkpoint,
        progress=_tell,
    )
    save_parameters(own.parameters, out)
    checkpoint.unlink(missing_ok=True)
    _show(own.to_dict(), own_page(own), output_format)


def _tell(line: str) -> None:
    click.echo(line, err=True)


def _show_explained(path: str, output_format: str) -> None:
    explanation = explain(load_parameters(None if path == SHIPPED else path))
    if output_format == "csv":
        show_csv(explanation.to_dict()["parameters"])
    elif output_format == "json":
        show_json(explanation.to_dict())
    else:
        show_page(explanation_page(explanation))


def _show(document: dict[str, Any], page: list[Sheet | str], output_format: str) -> None:
    if output_format == "json":
        show_json(document)
    elif output_format == "csv":
        show_csv(document["stages"])
    else:
        show_page(page)

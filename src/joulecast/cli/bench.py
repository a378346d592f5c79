"""``joulecast bench``."""

import os

import click

from joulecast.cli.options import comma_list, format_option, parameters_option, positive_float
from joulecast.cli.show import show_csv, show_json, show_page
from joulecast.measure.bench.cases import DTYPES
from joulecast.measure.bench.run import bench
from joulecast.model.parameters import load_parameters
from joulecast.report.benches import bench_page

_INTERRUPTED_EXIT_CODE = 130


@click.command("bench")
@click.option(
    "--device",
    type=click.Choice(("cuda", "cpu")),
    help="What to time; a GPU if there is one, if not given.",
)
@click.option(
    "--n-gpus",
    "-n",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Above 1, time all-reduces between so many too; on a processor, processes.",
)
@click.option(
    "--budget",
    type=float,
    default=120.0,
    show_default=True,
    callback=positive_float,
    help="Seconds to spend.",
)
@click.option(
    "--out",
    default="ops.parquet",
    show_default=True,
    metavar="OPS.parquet",
    help="Where the records go; what it holds of this device is not timed again.",
)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    callback=comma_list,
    metavar="D[,D...]",
    help=f"Of {', '.join(DTYPES)}; those of the device if not given, fp32 alone on a processor.",
)
@parameters_option
@format_option
def command(
    *,
    device: str | None,
    n_gpus: int,
    budget: float,
    out: str,
    dtypes: tuple[str, ...],
    parameters: str | None,
    output_format: str,
) -> int:
    """Time single operators where the parameters are least known, for `joulecast calibrate --ops`.

    Products, convolutions with both gradients, attention, memory-bound operators, optimizers, the launch of a
    kernel, the host's work. Interrupted, it keeps what it has; started again with the same --out, it goes on.
    CSV has one row for each group of operators.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    found = bench(
        load_parameters(parameters),
        device=device,
        n_gpus=n_gpus,
        dtypes=dtypes,
        budget_s=budget,
        out=out,
        progress=lambda line: click.echo(line, err=True),
    )
    if output_format == "json":
        show_json(found.to_dict())
    elif output_format == "csv":
        show_csv(found.rows())
    else:
        show_page(bench_page(found))
    return _INTERRUPTED_EXIT_CODE if found.ended == "interrupted" else 0

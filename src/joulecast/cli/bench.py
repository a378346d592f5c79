"""``joulecast bench``."""

import click

from joulecast.cli.options import (
    comma_list,
    device_option,
    devices_option,
    format_option,
    parameters_option,
    seconds_option,
)
from joulecast.cli.show import quiet_torch, show_csv, show_json, show_page
from joulecast.errors import INTERRUPTED_EXIT_CODE
from joulecast.measure.bench.cases import DTYPES
from joulecast.measure.bench.run import bench
from joulecast.model.parameters import load_parameters
from joulecast.report.benches import bench_page


@click.command("bench")
@device_option("What to time")
@devices_option("Above 1, time all-reduces between so many too; on a processor, processes.")
@seconds_option("--budget", 120.0, "Seconds to spend.")
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
    quiet_torch()
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
    return INTERRUPTED_EXIT_CODE if found.ended == "interrupted" else 0

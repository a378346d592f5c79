"""Options of commands about whole runs: what the run does, where it happens, what it is paid with."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

import click

from joulecast.cli.options import decorated, positive_float
from joulecast.errors import UsageError
from joulecast.explore.carbon import load_grid
from joulecast.explore.prices import Prices, prices
from joulecast.explore.whole_run import Embodied, Site, TrainingPlan
from joulecast.hardware.catalogue import load_gpu
from joulecast.units import GIGA, SECONDS_PER_HOUR

_Command = TypeVar("_Command", bound=Callable[..., Any])

_LENGTH_OPTIONS: Final = (
    click.option("--samples", type=click.IntRange(min=1), metavar="N", help="Samples of an epoch."),
    click.option(
        "--epochs", type=click.IntRange(min=1), metavar="E", help="Epochs, at most; 1 if not given."
    ),
    click.option(
        "--tokens", type=float, callback=positive_float, metavar="N", help="Tokens in all, instead of both."
    ),
    click.option(
        "--loader-rate",
        type=float,
        callback=positive_float,
        metavar="SAMPLES/S",
        help="The most that the input pipeline delivers to the whole job.",
    ),
)
_PLAN_OPTIONS: Final = (
    *_LENGTH_OPTIONS,
    click.option(
        "--stop-epochs", metavar="LOW-HIGH", help="Early stopping ends the run after so many epochs."
    ),
    click.option(
        "--eval-samples",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Samples of an evaluation pass.",
    ),
    click.option(
        "--evaluations", type=click.IntRange(min=0), metavar="N", help="Passes; one per epoch if not given."
    ),
    click.option(
        "--checkpoints",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Checkpoints in all; the GPUs wait for them.",
    ),
    click.option(
        "--checkpoint-rate",
        type=float,
        callback=positive_float,
        metavar="GB/S",
        help="Rate at which one is written.",
    ),
    click.option(
        "--trials",
        type=click.IntRange(min=1),
        default=1,
        metavar="N",
        help="Runs like it, one after another.",
    ),
)
_SITE_OPTIONS: Final = (
    click.option("--pue", type=float, metavar="X", help="Facility energy over the machines'."),
    click.option(
        "--node-gpus", type=click.IntRange(min=1), metavar="N", help="GPUs the job keeps, idle ones included."
    ),
    click.option(
        "--host-power",
        type=click.FloatRange(min=0),
        metavar="W",
        help="What CPUs, memory and fans of the node draw.",
    ),
    click.option(
        "--grid",
        metavar="G",
        help="gCO2e/kWh as a number, a country, or a CSV file of timestamp,gco2e_per_kwh.",
    ),
    click.option(
        "--start", metavar="TIME", help="When the run starts (ISO 8601), for a CSV file of the grid."
    ),
    click.option(
        "--electricity-price", type=click.FloatRange(min=0), metavar="PRICE", help="Per kWh at the meter."
    ),
    click.option(
        "--gpu-hour-price",
        multiple=True,
        metavar="[GPU=]PRICE",
        help="Per GPU and hour; repeatable, one for each card.",
    ),
    click.option("--currency", default="", metavar="NAME", help="Of the prices, for people."),
)
_EMBODIED_OPTIONS: Final = (
    click.option(
        "--embodied",
        type=click.FloatRange(min=0),
        metavar="KG",
        help="CO2e of making one GPU; shown apart. Needs --gpu-lifetime.",
    ),
    click.option(
        "--gpu-lifetime",
        type=float,
        callback=positive_float,
        metavar="HOURS",
        help="Hours in use over which it is spread.",
    ),
)


def length_options(command: _Command) -> _Command:
    """Add how long a run is."""
    return decorated(command, _LENGTH_OPTIONS)


def plan_options(command: _Command) -> _Command:
    """Add what a run does."""
    return decorated(command, _PLAN_OPTIONS)


def site_options(command: _Command) -> _Command:
    """Add where a run happens, and what it is paid with."""
    return decorated(command, _SITE_OPTIONS)


def embodied_options(command: _Command) -> _Command:
    """Add what making the cards emitted."""
    return decorated(command, _EMBODIED_OPTIONS)


def plan_of(given: dict[str, Any]) -> TrainingPlan:
    """Take a plan out of the command line's options."""
    samples, tokens, epochs = (given.pop(name) for name in ("samples", "tokens", "epochs"))
    if samples is None and tokens is None:
        raise UsageError("say how long the run is with --samples (of an epoch) or --tokens (in all)")
    checkpoint_rate = given.pop("checkpoint_rate", None)
    if given.get("checkpoints") and checkpoint_rate is None:
        raise UsageError("--checkpoints needs --checkpoint-rate, the GB/s at which one is written")
    return TrainingPlan(
        n_samples=samples,
        n_tokens=tokens,
        n_epochs=epochs or 1,
        stop_epochs=_range_of(given.pop("stop_epochs", None)),
        eval_samples=given.pop("eval_samples", 0),
        n_evaluations=given.pop("evaluations", None),
        n_checkpoints=given.pop("checkpoints", 0),
        checkpoint_bytes_per_s=None if checkpoint_rate is None else checkpoint_rate * GIGA,
        loader_samples_per_s=given.pop("loader_rate"),
        n_trials=given.pop("trials", 1),
    )


def _range_of(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    low, _, high = text.partition("-")
    try:
        return float(low), float(high or low)
    except ValueError:
        raise UsageError(f"--stop-epochs {text!r}: give the fewest and the most epochs, as 8-24") from None


def site_of(given: dict[str, Any]) -> Site:
    """Take a site out of the command line's options."""
    embodied_kg, lifetime_h = given.pop("embodied", None), given.pop("gpu_lifetime", None)
    if (embodied_kg is None) != (lifetime_h is None):
        raise UsageError("--embodied and --gpu-lifetime go together")
    grid, start = given.pop("grid"), given.pop("start")
    return Site(
        pue=given.pop("pue"),
        node_gpus=given.pop("node_gpus"),
        host_power_w=given.pop("host_power"),
        grid=None if grid is None else load_grid(grid),
        start=None if start is None else _moment_of(start),
        prices=_prices_of(given),
        embodied=None
        if embodied_kg is None
        else Embodied(gpu_kg=embodied_kg, lifetime_s=lifetime_h * SECONDS_PER_HOUR),
    )


def _moment_of(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--start {text!r} is no ISO 8601 time, such as 2026-03-01T08:00") from None


def _prices_of(given: dict[str, Any]) -> Prices | None:
    named = {}
    of_any: float | None = None
    for text in given.pop("gpu_hour_price"):
        gpu, _, price = text.rpartition("=")
        try:
            value = float(price)
        except ValueError:
            raise UsageError(f"--gpu-hour-price {text!r}: give a number, or GPU=number") from None
        if gpu:
            named[load_gpu(gpu).slug] = value
        else:
            of_any = value
    per_kwh, currency = given.pop("electricity_price"), given.pop("currency")
    if per_kwh is None and of_any is None and not named:
        return None
    return prices(per_kwh=per_kwh, per_gpu_hour=of_any, per_gpu_hour_by_gpu=named, currency=currency)

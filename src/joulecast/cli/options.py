"""Options that several commands share, and what they mean in SI units."""

from collections.abc import Callable, Container, Mapping
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from joulecast.units import MEGA
from joulecast.workload.policies import ATTENTIONS, MEMORY_FORMATS, MODES, OPTIMIZERS, PRECISIONS

_Command = TypeVar("_Command", bound=Callable[..., Any])

FORMATS: Final = ("table", "json", "csv")


def positive_float(_: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Return the value if it is a finite number above 0."""
    if value is not None and not 0 < value < float("inf"):
        raise click.BadParameter(f"{value:g} is not a number above 0", param=parameter)
    return value


def comma_list(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a repeatable option that also takes them separated by commas, each once."""
    names = (name.strip() for value in values for name in value.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def _list_of(names: Mapping[str, object] | tuple[str, ...]) -> str:
    return ", ".join(names)


_SIZE_OPTIONS: Final = (
    click.option(
        "--batch-size",
        "-b",
        type=click.IntRange(min=1),
        help="Samples per GPU and micro-batch; 32 if not given.",
    ),
    click.option(
        "--seq-len", "-s", type=click.IntRange(min=1), help="Tokens per sample; the model's own if not given."
    ),
)

_WORK_OPTIONS: Final = (
    click.option(
        "--image-size", type=click.IntRange(min=1), help="Pixels of a side; the model's own if not given."
    ),
    click.option(
        "--optimizer", metavar="NAME", help=f"One of {_list_of(OPTIMIZERS)}; the usual one if not given."
    ),
    click.option("--mode", type=click.Choice(MODES), default="train", show_default=True),
    click.option(
        "--attention", type=click.Choice(ATTENTIONS), help="The model's default, mostly sdpa, if not given."
    ),
    click.option(
        "--memory-format", type=click.Choice(MEMORY_FORMATS), default="contiguous", show_default=True
    ),
    click.option("--checkpointing", is_flag=True, help="Recompute the activations of repeated blocks."),
    click.option(
        "--accumulate",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Micro-batches per step.",
    ),
    click.option("--clip", is_flag=True, help="Clip gradients by their norm."),
)

_GPU_OPTIONS: Final = (
    click.option(
        "--n-gpus",
        "-n",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Data parallel, one node.",
    ),
    click.option(
        "--power-limit",
        type=float,
        callback=positive_float,
        metavar="W",
        help="Per GPU; the card's own if not given.",
    ),
    click.option("--clock", type=float, callback=positive_float, metavar="MHZ", help="Lock the SM clock."),
    click.option(
        "--sms", type=click.IntRange(min=1), metavar="N", help="Multiprocessors in use, where not all."
    ),
    click.option(
        "--set",
        "changes",
        multiple=True,
        metavar="NAME=CHANGE",
        help="Change a property of the card: bandwidth=2x, peak_bf16=+20%, l2=8e7 (SI).",
    ),
    click.option(
        "--force", is_flag=True, help="Go beyond the card's limits and clocks, and the model's positions."
    ),
)

gpu_list = click.option(
    "--gpu",
    "-g",
    "gpus",
    multiple=True,
    callback=comma_list,
    metavar="G[,G...]",
    help="A name that `joulecast gpus` knows, or a TOML file.",
)
precision_list = click.option(
    "--precision",
    "-p",
    "precisions",
    multiple=True,
    callback=comma_list,
    metavar="P[,P...]",
    help=f"fp32 if not given; of {_list_of(PRECISIONS)}.",
)
format_option = click.option(
    "--format", "output_format", type=click.Choice(FORMATS), default="table", show_default=True
)
parameters_option = click.option(
    "--parameters", metavar="TOML", help="A fitted parameter set, instead of the shipped one."
)


def device_option(purpose: str) -> Callable[[_Command], _Command]:
    """Return ``--device``: where real steps or operators run."""
    return click.option(
        "--device",
        type=click.Choice(("cuda", "cpu")),
        help=f"{purpose}; a GPU if there is one, if not given.",
    )


def devices_option(purpose: str) -> Callable[[_Command], _Command]:
    """Return ``--n-gpus``: how many of the devices at hand."""
    return click.option(
        "--n-gpus", "-n", type=click.IntRange(min=1), default=1, show_default=True, help=purpose
    )


def seconds_option(name: str, default: float, purpose: str) -> Callable[[_Command], _Command]:
    """Return an option of how long to go on. [s]."""
    return click.option(
        name, type=float, default=default, show_default=True, callback=positive_float, help=purpose
    )


def decorated(command: _Command, options: tuple[Callable[[_Command], _Command], ...]) -> _Command:
    """Add options to a command, in the order given."""
    for option in reversed(options):
        command = option(command)
    return command


def step_options(command: _Command) -> _Command:
    """Add what describes a step, whatever the card."""
    return decorated(command, (*_SIZE_OPTIONS, *_WORK_OPTIONS))


def work_options(command: _Command) -> _Command:
    """Add what describes a step besides its batch and sequence."""
    return decorated(command, _WORK_OPTIONS)


def gpu_options(command: _Command) -> _Command:
    """Add what describes the cards, besides their name."""
    return decorated(command, _GPU_OPTIONS)


def scenario_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the command line's options as fields of `Scenario`."""
    options = dict(given)
    clock_mhz = options.pop("clock", None)
    changes = options.pop("changes", ())
    return {
        "power_limit_w": options.pop("power_limit", None),
        "sm_clock_hz": None if clock_mhz is None else clock_mhz * MEGA,
        "n_sms": options.pop("sms", None),
        "hardware": ",".join(changes) or None,
        **options,
    }


def given_options(*, among: Container[str] | None = None, but: Container[str] = ()) -> list[str]:
    """Return the options that the user typed, of some parameters or of all but some."""
    context = click.get_current_context()
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if (among is None or parameter.name in among)
        and parameter.name not in but
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]

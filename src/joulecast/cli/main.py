"""The entry point: sub-commands by name, and errors as one line."""

import os
import sys
from importlib import import_module
from typing import Any, Final, NoReturn

import click

import joulecast
from joulecast.errors import INTERRUPTED_EXIT_CODE, JoulecastError

#: Sub-command -> its module in this package and one line of help; the modules load when they run.
_COMMANDS: Final = {
    "predict": "Time, power, energy and memory of a training step.",
    "trace": "FLOPs, bytes, intensity and kernels of a training step.",
    "sweep": "Every combination of models, cards, sizes, limits and clocks, as a table.",
    "sensitivity": "What each hardware property changes, and what would double efficiency.",
    "recommend": "The best configuration under limits, and how sure that is.",
    "cost": "Hours, kWh, CO2e and money of a whole training run.",
    "forecast": "A whole run, forecast anew from its first steps.",
    "study": "What precision, GPU count, sharing, batch and power limit change.",
    "report": "A page of figures about a sweep or a study.",
    "measure": "The same, by meters: a model's step on the device at hand, or any command.",
    "bench": "Single operators, timed where the parameters are least known.",
    "doctor": "Which sensors work, why not, and what to do; devices and drivers.",
    "compare": "The prediction beside the measurement, and what explains the difference.",
    "runs": "The runs that were measured: list, show, export, import, merge.",
    "validate": "Predictions against a file of measured runs.",
    "calibrate": "A parameter set fitted to your own runs; what a set says.",
    "gpus": "The cards that are known, or the sheet of one.",
    "models": "The models that are known.",
}

_BROKEN_PIPE_EXIT_CODE: Final = 141  # 128 + SIGPIPE, as a shell reports it


class _LazyGroup(click.Group):
    """A group whose commands are imported when they run, so that each loads only what it needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"joulecast.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(joulecast.__version__, prog_name="joulecast")
def cli() -> None:
    """Predict time, power, energy and memory of PyTorch training steps, without a GPU."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0, 2 for a wrong request, 1 for what else is on purpose."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; a bug keeps its traceback."""
    try:
        outcome: Any = cli.main(arguments, prog_name="joulecast", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except JoulecastError as error:
        return _complain(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", INTERRUPTED_EXIT_CODE)
    except BrokenPipeError:
        # the reader has gone: nothing more can be said, and the interpreter must not try at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE_EXIT_CODE
    return outcome if isinstance(outcome, int) else 0


def _complain(message: str, exit_code: int) -> int:
    print("joulecast: error: " + " ".join(message.split()), file=sys.stderr)
    return exit_code

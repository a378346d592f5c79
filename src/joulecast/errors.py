"""Everything joulecast raises on purpose.

::

    JoulecastError
    +-- UsageError (ValueError)             what the caller asked for cannot be     exit 2
    |   +-- UnknownNameError (LookupError)  a name that is not known; carries near misses
    |   |   +-- UnknownGpuError
    |   |   +-- UnknownModelError
    |   |   +-- UnknownCountryError
    |   |   +-- UnknownRunError
    |   +-- PowerLimitError                 a limit outside the card's range
    |   +-- DoesNotFitError                 a sequence, batch or option the model cannot take
    |   +-- InfeasibleError                 limits that no configuration keeps; names them
    |   +-- NothingFitsError                no configuration fits the memory; says what would
    |   +-- DeviceNotFoundError             a device to measure on that is not there
    |   +-- CommandNotFoundError            a command to measure that is not there   exit 127
    +-- MissingExtraError (ImportError)     an optional package is needed           exit 1
    +-- TraceError (RuntimeError)           the module could not be traced          exit 1
    +-- TableError (ValueError)             an op table file is corrupt             exit 1
    +-- CatalogueError (ValueError)         a hardware file is corrupt              exit 1
    +-- ParameterSetError (ValueError)      a fitted set is corrupt                 exit 1
    +-- RunsError (ValueError)              a file of runs is corrupt               exit 1
    +-- ClusterError (RuntimeError)         a Dask cluster does not answer          exit 1
    +-- IntensityError (ValueError)         a file of grid intensities is corrupt   exit 1
    +-- StoreError (OSError)                a store of runs cannot be read or written  exit 1
    +-- SensorUnavailableError (OSError)    a sensor is not there; carries the remedy  exit 1
    +-- UnstableMeasurementError (RuntimeError)  steps vary too much; carries the measurement  exit 1
    +-- OutOfDeviceMemoryError (MemoryError)     a step does not fit; carries the predicted need  exit 1

The command line turns each into one line on standard error and ``exit_code``; anything else keeps its
traceback, because it is a bug.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

#: Of a command that Ctrl-C ended: 128 + SIGINT, as a shell reports it.
INTERRUPTED_EXIT_CODE: Final = 130


class JoulecastError(Exception):
    """Root of the tree."""

    exit_code = 1


class UsageError(JoulecastError, ValueError):
    """The request itself is wrong: an option, a size, a combination."""

    exit_code = 2


class UnknownNameError(UsageError, LookupError):
    """A name that is not known, with the names it may have meant.

    Parameters
    ----------
    what : str
        The kind of thing, for the message: ``"GPU"``, ``"model"``.
    name : str
        What was asked for.
    known : iterable of str
        The names that exist.
    remedy : str
        What to do, ending the message.
    """

    def __init__(self, what: str, name: str, known: Iterable[str], remedy: str = "") -> None:
        names = sorted(known)
        self.name = name
        self.near = tuple(get_close_matches(name.lower(), names, n=5, cutoff=0.5))
        hint = f"; did you mean {', '.join(self.near)}?" if self.near else ""
        tail = f"{' ' if hint or remedy.startswith('(') else '; '}{remedy}" if remedy else ""
        super().__init__(f"unknown {what} {name!r}{hint}{tail}")


class UnknownGpuError(UnknownNameError):
    """No GPU of that name, or more than one."""


class UnknownModelError(UnknownNameError):
    """No model of that name."""


class UnknownCountryError(UnknownNameError):
    """No country of that name in the table of grid intensities."""


class UnknownRunError(UnknownNameError):
    """No run of that id in the store."""


class PowerLimitError(UsageError):
    """A power limit or clock outside the range of the card."""


class DoesNotFitError(UsageError):
    """A size the model cannot take, such as a sequence longer than its positions."""


class InfeasibleError(UsageError):
    """Limits that no configuration keeps together.

    Parameters
    ----------
    message : str
    limits : tuple of str
        The fewest limits that contradict each other, by name.
    """

    def __init__(self, message: str, limits: tuple[str, ...]) -> None:
        self.limits = limits
        super().__init__(message)


class NothingFitsError(UsageError):
    """No configuration fits the memory.

    Parameters
    ----------
    message : str
    changes : tuple of str
        Single changes that would make one fit, in words, the smallest first.
    """

    def __init__(self, message: str, changes: tuple[str, ...]) -> None:
        self.changes = changes
        super().__init__(message)


class DeviceNotFoundError(UsageError):
    """A device to measure on that this machine does not have."""


class CommandNotFoundError(UsageError):
    """A command to measure that cannot be started; exits as a shell does."""

    exit_code = 127


class MissingExtraError(JoulecastError, ImportError):
    """An optional package is needed for what was asked."""


class TraceError(JoulecastError, RuntimeError):
    """A module could not be traced; the message says where and why."""


class TableError(JoulecastError, ValueError):
    """An op table file is corrupt or of another version."""


class CatalogueError(JoulecastError, ValueError):
    """A hardware file is corrupt or contradicts itself."""


class ParameterSetError(JoulecastError, ValueError):
    """A fitted parameter set is corrupt or of another version."""


class RunsError(JoulecastError, ValueError):
    """A file of measured runs cannot be read."""


class IntensityError(JoulecastError, ValueError):
    """A file of grid intensities cannot be read."""


class StoreError(JoulecastError, OSError):
    """A store of runs cannot be opened, read or written: what was recorded before is still there."""


class SensorUnavailableError(JoulecastError, OSError):
    """A sensor that is not there, or cannot be read.

    Parameters
    ----------
    reason : str
        Why.
    remedy : str
        What would make it work; empty where nothing would.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{reason}: {remedy}" if remedy else reason)


class UnstableMeasurementError(JoulecastError, RuntimeError):
    """Steps varied too much for a mean that means something.

    Parameters
    ----------
    error_frac, wanted_frac : float
        Standard error of the mean step time over it, at the end of the time given; what was wanted. [1]
    measurement : Measurement
        The record all the same, flagged.
    """

    def __init__(self, error_frac: float, wanted_frac: float, measurement: Any) -> None:
        self.error_frac = error_frac
        self.wanted_frac = wanted_frac
        self.measurement = measurement
        super().__init__(
            f"unstable: the mean step time is known to {error_frac:.1%} after the time given, "
            f"{wanted_frac:.1%} was wanted; free the machine, or give more --seconds"
        )


class OutOfDeviceMemoryError(JoulecastError, MemoryError):
    """A step did not fit the device; the message has the predicted need."""


class ClusterError(JoulecastError, RuntimeError):
    """A cluster does not answer, has no workers, or lost them all."""

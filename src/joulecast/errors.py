"""Everything joulecast raises on purpose.

::

    JoulecastError
    +-- UsageError (ValueError)             what the caller asked for cannot be     exit 2
    |   +-- UnknownNameError (LookupError)  a name that is not known; carries near misses
    |   |   +-- UnknownGpuError
    |   |   +-- UnknownModelError
    |   |   +-- UnknownCountryError
    |   +-- PowerLimitError                 a limit outside the card's range
    |   +-- DoesNotFitError                 a sequence, batch or option the model cannot take
    |   +-- InfeasibleError                 limits that no configuration keeps; names them
    |   +-- NothingFitsError                no configuration fits the memory; says what would
    +-- MissingExtraError (ImportError)     an optional package is needed           exit 1
    +-- TraceError (RuntimeError)           the module could not be traced          exit 1
    +-- TableError (ValueError)             an op table file is corrupt             exit 1
    +-- CatalogueError (ValueError)         a hardware file is corrupt              exit 1
    +-- ParameterSetError (ValueError)      a fitted set is corrupt                 exit 1
    +-- RunsError (ValueError)              a file of runs is corrupt               exit 1
    +-- ClusterError (RuntimeError)         a Dask cluster does not answer          exit 1
    +-- IntensityError (ValueError)         a file of grid intensities is corrupt   exit 1

The command line turns each into one line on standard error and ``exit_code``; anything else keeps its
traceback, because it is a bug.
"""

from collections.abc import Iterable
from difflib import get_close_matches


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


class ClusterError(JoulecastError, RuntimeError):
    """A cluster does not answer, has no workers, or lost them all."""

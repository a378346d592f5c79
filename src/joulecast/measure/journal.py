"""Keeping the record of a run while it runs, so that nothing is lost however it ends.

The record goes into the store at the start, marked partial, and again every few seconds, on a thread of its
own, so that the run does not wait. A store that fails is reported and the run goes on.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Protocol, Self

from joulecast.errors import JoulecastError
from joulecast.results import Measurement

_LOG: Final = logging.getLogger(__name__)

#: Between two writes of a record that grows. [s]
_EVERY_S: Final = 2.0


class Keeper(Protocol):
    """What keeps records: a store."""

    def add(self, measurement: Measurement) -> object:
        """Keep a record."""

    def update(self, measurement: Measurement) -> object:
        """Keep a record in place of that of the same run."""


@contextmanager
def opened(store: Keeper | None, url: str | None) -> Iterator[Keeper | None]:
    """Return the store given, or open the one of an address."""
    if store is not None or url is None:
        yield store
        return
    from joulecast.measure.store import Store

    with Store.open(url) as opened:
        yield opened


class Journal:
    """Writes the record of a run as it grows, from ``with`` to its end.

    Parameters
    ----------
    keeper : Keeper or None
        None keeps nothing.
    current : callable
        Returns the record so far.
    every_s : float
        Between writes. [s]

    Attributes
    ----------
    failure : str
        Why the last write failed; empty if it did not.
    """

    def __init__(
        self, keeper: Keeper | None, current: Callable[[], Measurement], *, every_s: float = _EVERY_S
    ) -> None:
        self._keeper = keeper
        self._current = current
        self._every_s = every_s
        self._is_added = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failure = ""

    def __enter__(self) -> Self:
        if self._keeper is not None:
            self._write(self._current())
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def finish(self, measurement: Measurement) -> None:
        """Write the last record; the thread writes no more."""
        self.__exit__(None, None, None)
        if self._keeper is not None:
            self._write(measurement)

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self._write(self._current())

    def _write(self, measurement: Measurement) -> None:
        if self._keeper is None:
            return
        try:
            if self._is_added:
                self._keeper.update(measurement)
            else:
                self._keeper.add(measurement)
            self._is_added = True
            self.failure = ""
        except (JoulecastError, OSError) as error:
            if not self.failure:
                _LOG.warning("the run is not kept: %s; it goes on", error)
            self.failure = str(error)

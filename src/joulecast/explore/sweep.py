"""A space of configurations -> a table of predictions, one row each.

In: a `Space`, parameters. Out: `SweepResult`, columns named as in `Prediction.to_row`; or a file of any
length, written block by block, so that memory stays flat and an interrupted sweep goes on where it stopped.
"""

import hashlib
import json
import shutil
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from joulecast import __version__
from joulecast.errors import UsageError
from joulecast.explore.grid import Grid
from joulecast.explore.space import Space, check_space, space_of
from joulecast.explore.table import SweepResult, check_format, concatenate, join_files, table_bytes
from joulecast.model.parameters import ParameterSet, load_parameters
from joulecast.whole_file import whole_file

#: Most configurations, and most loads, evaluated in one pass over arrays: what fits a processor's caches.
PASS_SIZE: Final = 8_192
PASS_LOADS: Final = 256

#: Configurations of one part of a file.
BLOCK_SIZE: Final = 65_536


def sweep(
    space: Space | Mapping[str, Any],
    *,
    parameters: ParameterSet | None = None,
    progress: Callable[[int], None] | None = None,
) -> SweepResult:
    """Predict every configuration of a space.

    Parameters
    ----------
    space : Space or mapping
        As `space_of` takes it: ``{"model": "bert-base", "gpu": ["a100-sxm4-40gb", "t4"]}``.
    parameters : ParameterSet, optional
        By default the shipped set.
    progress : callable, optional
        Told the number of configurations done, each time some are.

    Returns
    -------
    SweepResult
        One row per configuration, the last key of the space fastest; what cannot be says why in
        ``skipped_reason``. It holds all rows: `save_sweep` is for millions.

    Raises
    ------
    UsageError
        The space is empty, or a key is unknown.
    UnknownNameError
        A model, a card or a choice is unknown.
    """
    asked = space if isinstance(space, Space) else space_of(space)
    check_space(asked)
    grid = Grid(asked, load_parameters() if parameters is None else parameters)
    return concatenate(list(_passes(grid, 0, len(asked), progress)))


def _passes(
    grid: Grid, start: int, stop: int, progress: Callable[[int], None] | None = None
) -> Iterator[SweepResult]:
    """Yield the passes over a range of configurations."""
    size = min(PASS_SIZE, PASS_LOADS * grid.space.n_sharing_a_load)
    for first in range(start, stop, size):
        last = min(first + size, stop)
        yield grid.block(first, last)
        if progress is not None:
            progress(last - first)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTask:
    """A block of a sweep, as it travels to whoever evaluates it.

    Attributes
    ----------
    space : Space
    parameters : ParameterSet
    ending : str
        Of the file: ``.parquet`` or ``.csv``.
    block, start, stop : int
        Number of the block; its first configuration, and the first after it.
    """

    space: Space
    parameters: ParameterSet
    ending: str
    block: int
    start: int
    stop: int

    @property
    def n_configurations(self) -> int:
        """Configurations of the block. [1]."""
        return self.stop - self.start

    def __call__(self) -> tuple[int, bytes]:
        """Return the number of the block and the content of its part of the file."""
        passes = _passes(Grid(self.space, self.parameters), self.start, self.stop)
        return self.block, table_bytes(concatenate(list(passes)), self.ending)


#: Evaluates blocks somewhere and yields them as they finish, in any order.
Blocks = Generator[tuple[int, bytes], None, None]
Spread = Callable[[Iterable[BlockTask]], Blocks]


def in_turn(tasks: Iterable[BlockTask]) -> Blocks:
    """Evaluate blocks here, one after another."""
    for task in tasks:
        yield task()


def in_processes(n_processes: int) -> Spread:
    """Return what evaluates blocks in so many processes of this machine."""

    def spread(tasks: Iterable[BlockTask]) -> Blocks:
        # whoever interrupts speaks to the parent, which lets running blocks end
        with ProcessPoolExecutor(
            n_processes,
            mp_context=get_context("spawn"),
            initializer=signal.signal,
            initargs=(signal.SIGINT, signal.SIG_IGN),
        ) as pool:
            futures = [pool.submit(task) for task in tasks]
            try:
                for future in as_completed(futures):
                    yield future.result()
                    futures.remove(future)  # a block done is not kept
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    return spread


def save_sweep(
    space: Space | Mapping[str, Any],
    path: str | Path,
    *,
    parameters: ParameterSet | None = None,
    spread: Spread = in_turn,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Predict every configuration of a space into a file, in memory that does not grow with the space.

    Parameters
    ----------
    space : Space or mapping
        As `space_of` takes it.
    path : str or Path
        Ends in ``.parquet`` (extra ``data``) or ``.csv``. Finished blocks lie in a folder beside it until all
        are done; a sweep that was interrupted takes them up.
    parameters : ParameterSet, optional
        By default the shipped set.
    spread : callable
        Where blocks are evaluated: `in_turn`, `in_processes` or `dask.on_cluster`.
    progress : callable, optional
        Told the number of configurations done, each time some are; those of an earlier attempt first.

    Returns
    -------
    int
        Configurations in the file.

    Raises
    ------
    UsageError
        The space is empty, a key is unknown, or the folder holds blocks of another sweep.
    UnknownNameError
        A model, a card or a choice is unknown.
    """
    target = Path(path)
    ending = check_format(target)
    asked = space if isinstance(space, Space) else space_of(space)
    check_space(asked)
    fitted = load_parameters() if parameters is None else parameters
    folder = _folder(target, asked, fitted)
    tasks = [
        BlockTask(
            space=asked,
            parameters=fitted,
            ending=ending,
            block=block,
            start=start,
            stop=min(start + BLOCK_SIZE, len(asked)),
        )
        for block, start in enumerate(range(0, len(asked), BLOCK_SIZE))
    ]
    files = [folder / f"{task.block:06d}{ending}" for task in tasks]
    todo = [task for task, file in zip(tasks, files, strict=True) if not file.exists()]
    if progress is not None:
        progress(len(asked) - sum(task.n_configurations for task in todo))
    with closing(spread(todo)) as done:
        for block, content in done:
            with whole_file(files[block]) as partial:
                partial.write_bytes(content)
            if progress is not None:
                progress(tasks[block].n_configurations)
    join_files(files, target)
    shutil.rmtree(folder)
    return len(asked)


def _folder(target: Path, space: Space, parameters: ParameterSet) -> Path:
    """Return the folder of finished blocks, made or found; refuse that of another sweep."""
    folder = target.with_name(target.name + ".blocks")
    asked = json.dumps([__version__, space.to_dict(), BLOCK_SIZE, asdict(parameters)], sort_keys=True)
    digest = hashlib.sha256(asked.encode()).hexdigest()
    label = folder / "sweep.txt"
    if not folder.exists():
        folder.mkdir(parents=True)
        label.write_text(digest, encoding="utf-8")
    if not label.is_file() or label.read_text(encoding="utf-8") != digest:
        raise UsageError(
            f"{folder} holds the blocks of another interrupted sweep: remove it, or name another file"
        )
    return folder

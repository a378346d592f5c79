"""Blocks of a sweep on a Dask cluster that runs already.

In: the address of its scheduler. Out: a `sweep.Spread`. A worker that dies loses its blocks; Dask gives them
to another. Needs the extra ``dask``; the workers need joulecast too.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from joulecast.errors import ClusterError, MissingExtraError
from joulecast.explore.sweep import Blocks, BlockTask, Spread

#: Blocks under way for each thread of the cluster: one runs, one waits.
_BLOCKS_PER_THREAD: Final = 2

_PATIENCE_S: Final = "10s"


def on_cluster(address: str) -> Spread:
    """Return what evaluates blocks on the cluster of a scheduler.

    Parameters
    ----------
    address : str
        As ``tcp://HOST:8786``.

    Raises
    ------
    MissingExtraError
        distributed is not installed.
    ClusterError
        Nothing answers at the address, it has no workers, or a block failed on it.
    """
    try:
        from distributed import Client, KilledWorker, as_completed
    except ImportError as error:
        raise MissingExtraError("a Dask cluster needs distributed: pip install 'joulecast[dask]'") from error

    def spread(tasks: Iterable[BlockTask]) -> Blocks:
        try:
            client = Client(address, timeout=_PATIENCE_S)
        except (OSError, ValueError) as error:
            raise ClusterError(f"no Dask scheduler answers at {address}: {error}") from None
        with client:
            n_threads = sum(client.nthreads().values())
            if n_threads == 0:
                raise ClusterError(f"the Dask cluster at {address} has no workers")
            waiting = iter(tasks)
            running = as_completed(
                [client.submit(task, pure=False) for task in islice(waiting, _BLOCKS_PER_THREAD * n_threads)]
            )
            for future in running:
                try:
                    done: tuple[int, bytes] = future.result()
                except KilledWorker as error:
                    raise ClusterError(f"a block killed every worker that took it: {error}") from None
                for task in islice(waiting, 1):
                    running.add(client.submit(task, pure=False))
                yield done

    return spread

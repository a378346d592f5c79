"""Which configurations no other beats on every count. Pure functions on arrays."""

import numpy as np
import numpy.typing as npt

from joulecast.workload.table import Floats

Booleans = npt.NDArray[np.bool_]


def pareto_front(costs: Floats) -> Booleans:
    """Return which rows are on the Pareto front: no row is as good on every count and better on one.

    Parameters
    ----------
    costs : ndarray [config, count]
        Smaller is better; finite.

    Returns
    -------
    ndarray of bool [config]
        Equal rows are on the front together or not at all.

    Notes
    -----
    Rows are visited by rising first, then second count and so on: a row can only be beaten by one that was
    visited before, so that one pass over the front found so far decides. Work grows with rows times front.
    """
    costs = np.asarray(costs, dtype=np.float64)
    distinct, rows_of = np.unique(costs, axis=0, return_inverse=True)  # sorted by count 0, then 1, ...
    on_front = np.zeros(len(distinct), dtype=np.bool_)
    front = np.empty_like(distinct)
    n_front = 0
    for i, row in enumerate(distinct):
        if not np.any(np.all(front[:n_front] <= row, axis=1)):
            on_front[i] = True
            front[n_front] = row
            n_front += 1
    chosen: Booleans = on_front[rows_of.reshape(-1)]
    return chosen

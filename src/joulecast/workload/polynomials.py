"""Recordings of one step at a few sizes -> rows and live bytes at any size."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from joulecast.workload.calls import Work
from joulecast.workload.recorder import Recording
from joulecast.workload.table import (
    FIXED_COLUMNS,
    LABEL_COLUMNS,
    MONOMIALS,
    SCALING_COLUMNS,
    Floats,
    monomials,
)

#: Blocks of the CUDA caching allocator are multiples of this.
_ALLOCATOR_BLOCK_BYTES: Final = 512

_FIXED_OF_WORK: Final = tuple(name for name in FIXED_COLUMNS if name != "n_calls")


def _fit(values: Floats, batch_sizes: Sequence[int], seq_lens: Sequence[int]) -> Floats:
    """Return the polynomials through values [batch, length, ...] as [..., term].

    Newton's divided differences, linear in the batch and quadratic in the length: exact in float64, since
    values and coefficients are integers or halves of integers.
    """
    in_batch = _newton(values, batch_sizes)  # [power of B, length, ...]
    in_both = _newton(np.moveaxis(in_batch, 1, 0), seq_lens)  # [power of S, power of B, ...]
    terms = np.zeros((*values.shape[2:], len(MONOMIALS)))
    for term, (i, j) in enumerate(MONOMIALS):
        if i < len(batch_sizes) and j < len(seq_lens):
            terms[..., term] = in_both[j, i]
    return terms


def _newton(values: Floats, points: Sequence[int]) -> Floats:
    """Return the coefficients [power, ...] of the polynomial through values [point, ...]."""
    if len(points) == 1:
        return values
    slope = (values[1] - values[0]) / (points[1] - points[0])
    if len(points) < 3:  # noqa: PLR2004  (a line takes two points, a parabola three)
        return np.stack([values[0] - slope * points[0], slope])
    second = ((values[2] - values[1]) / (points[2] - points[1]) - slope) / (points[2] - points[0])
    first = slope - second * (points[0] + points[1])
    return np.stack([values[0] - first * points[0] - second * points[0] ** 2, first, second])


@dataclass(frozen=True, slots=True)
class Grid:
    """Recordings of one step over batch sizes x lengths, length fastest."""

    recordings: list[Recording]
    batch_sizes: tuple[int, ...]
    seq_lens: tuple[int, ...]

    def polynomials(self, values: Floats) -> Floats:
        """Return the polynomials of values [recording, ...] as [..., term]."""
        shape = (len(self.batch_sizes), len(self.seq_lens), *values.shape[1:])
        return _fit(values.reshape(shape), self.batch_sizes, self.seq_lens)

    def is_aligned(self) -> bool:
        """Whether the same calls ran, and as many storages were born, at every size."""
        first = self.recordings[0]
        fixed = [[_fixed_of(w) for w in r.work] for r in self.recordings]
        return all(
            r.labels == first.labels and f == fixed[0] and len(r.born_bytes) == len(first.born_bytes)
            for r, f in zip(self.recordings[1:], fixed[1:], strict=True)
        )

    def is_quadratic_in_batch(self) -> bool:
        """Whether two axes of one result follow the batch: two batch sizes do not determine it then."""
        small, large = self.recordings[0], self.recordings[-len(self.seq_lens)]
        return any(
            len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) > 1
            for a, b in zip(small.shapes, large.shapes, strict=True)
        )


def _fixed_of(work: Work) -> tuple[float, ...]:
    return tuple(getattr(work, column) for column in _FIXED_OF_WORK)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a step: labels, what does not scale, and polynomials of what does [op, column, term]."""

    labels: dict[str, Any]
    fixed: dict[str, Floats]
    polynomials: Floats


def merged_rows(grid: Grid) -> Rows:
    """Merge equal calls into rows with their multiplicity."""
    first = grid.recordings[0]
    counts: Counter[Any] = Counter()
    for i, label in enumerate(first.labels):
        scaling = tuple(tuple(getattr(r.work[i], c) for c in SCALING_COLUMNS) for r in grid.recordings)
        counts[label, _fixed_of(first.work[i]), scaling] += 1
    keys = list(counts)
    labels = {name: np.array([k[0][i] for k in keys], dtype=np.str_) for i, name in enumerate(LABEL_COLUMNS)}
    fixed = {
        name: np.array([k[1][i] for k in keys], dtype=np.float64) for i, name in enumerate(_FIXED_OF_WORK)
    }
    fixed["n_calls"] = np.array([counts[k] for k in keys], dtype=np.float64)
    shape = (len(keys), len(grid.recordings), len(SCALING_COLUMNS))
    values = np.array([k[2] for k in keys], dtype=np.float64).reshape(shape)  # [op, recording, column]
    return Rows(labels=labels, fixed=fixed, polynomials=grid.polynomials(np.moveaxis(values, 1, 0)))


#: Sizes at which the candidates for the peak are looked for.
_PEAK_BATCHES: Final = np.unique(np.round(np.geomspace(1, 16384, 43)))
_PEAK_LENGTHS: Final = np.unique(np.round(np.geomspace(8, 32768, 13)))


def peak_candidates(grid: Grid) -> Floats:
    """Return the moments [candidate, term] that are the peak at some size.

    Live bytes are polynomials at every moment; only those that are largest somewhere on a grid of sizes
    are kept. Storages of constant size are rounded up to the allocator's blocks.
    """
    born = np.array([r.born_bytes for r in grid.recordings], dtype=np.float64)  # [recording, storage]
    if not born.size:
        return np.zeros((1, len(MONOMIALS)))
    constant = np.all(born == born[0], axis=0)
    blocks = np.ceil(born / _ALLOCATOR_BLOCK_BYTES) * _ALLOCATOR_BLOCK_BYTES
    born = np.where(constant, blocks, born)
    if len(grid.recordings) == 1:
        born = blocks
    sizes = grid.polynomials(born)  # [storage, term]
    events = np.array(grid.recordings[-1].events)
    changes = np.where((events >= 0)[:, None], sizes[events], -sizes[~events])
    live = np.cumsum(changes, axis=0)  # [event, term]
    lengths = _PEAK_LENGTHS if len(grid.seq_lens) > 1 else np.array([float(grid.seq_lens[0])])
    points = np.array([monomials(b, s) for b in _PEAK_BATCHES for s in lengths])  # [point, term]
    return np.asarray(live[np.unique(np.argmax(live @ points.T, axis=0))])

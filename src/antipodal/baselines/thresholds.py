"""Thresholds of projections that best separate dissimilar pairs, for `PSH` and `LDAHash`."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.paper.pairs import Pairs

_BLOCK_ENTRIES = 2**21


class Cuts(NamedTuple):
    """The best threshold of each direction, and its gap P(same | similar) - P(same | dissimilar).

    If all rows have the same value, it is the threshold, and the gap is -∞.
    """

    thresholds: NDArray[np.float32]
    gaps: NDArray[np.float64]


def best_cuts(
    rows: NDArray[np.float32],
    directions: NDArray[np.float32],
    pairs: NDArray[np.int64] | Pairs,
) -> Cuts:
    """Return the thresholds of largest gap g of the projections of the rows on each direction.

    They also minimise the sum of false negative and false positive rates, 1 - g. All midpoints
    between neighbouring values are tried.

    Parameters
    ----------
    rows : float32 (n, d)
    directions : float32 (d, m)
    pairs : int64 (n,) or Pairs
        Class numbers from 0, to use all pairs of rows, or the pairs to use.
    """
    n, m = len(rows), directions.shape[1]
    n_places = max(n, len(pairs.rows)) if isinstance(pairs, Pairs) else n
    thresholds, gaps = np.empty(m, np.float32), np.empty(m)
    for block in column_blocks(m, n_places):
        values = np.ascontiguousarray((rows @ directions[:, block]).T)
        order = np.argsort(values, axis=1)
        values = np.take_along_axis(values, order, axis=1)
        if isinstance(pairs, Pairs):
            similar, dissimilar = _pairs_cut(order, pairs)
        else:
            similar, dissimilar = _classes_cut(order, pairs)
        gap = dissimilar - similar
        gap[values[:, 1:] == values[:, :-1]] = -np.inf  # no threshold separates equal values
        best = gap.argmax(axis=1)
        at = np.arange(len(gap))
        gaps[block] = gap[at, best]
        below, above = values[at, best], values[at, best + 1]
        middle = below + (above - below) / 2
        thresholds[block] = np.where(middle < above, middle, below)  # neighbours in float32
    return Cuts(thresholds, gaps)


Shares = tuple[NDArray[np.float64], NDArray[np.float64]]


def _classes_cut(order: NDArray[np.int64], labels: NDArray[np.int64]) -> Shares:
    """Return the shares of all similar and all dissimilar pairs split by each cut of each order.

    (m, n) row numbers -> twice (m, n - 1). A cut after k rows, k_c of them of class c, splits
    Σ_c k_c(n_c - k_c) similar pairs, and k(n - k) pairs in total. Moving it past the next row, of
    class c, adds n_c - 1 - 2k_c to the first sum: one cumulative sum suffices for all classes.
    """
    m, n = order.shape
    counts = np.bincount(labels)
    labels = labels.astype(np.min_scalar_type(len(counts)))  # small integers sort faster
    in_order = labels[order]
    grouped = np.argsort(in_order, axis=1, kind="stable")
    place = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)  # k_c, by class
    k_c = np.empty_like(order)
    np.put_along_axis(k_c, grouped, np.broadcast_to(place, (m, n)), axis=1)
    similar = np.cumsum(counts[in_order] - 1 - 2 * k_c, axis=1)[:, :-1]
    k = np.arange(1, n)
    n_similar = (counts * (counts - 1) // 2).sum()
    n_dissimilar = n * (n - 1) // 2 - n_similar
    return similar / n_similar, (k * (n - k) - similar) / n_dissimilar


def _pairs_cut(order: NDArray[np.int64], pairs: Pairs) -> Shares:
    """Return the shares of listed similar and dissimilar pairs split by each cut of each order.

    A pair is split by the cuts from its lower position in the order to just before its higher one.
    """
    m, n = order.shape
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(n), (m, n)), axis=1)

    def share(ends: NDArray[np.int64]) -> NDArray[np.float64]:
        left, right = place[:, ends[:, 0]], place[:, ends[:, 1]]
        start = n * np.arange(m)[:, None]
        opens = np.bincount((start + np.minimum(left, right)).ravel(), minlength=m * n)
        closes = np.bincount((start + np.maximum(left, right)).ravel(), minlength=m * n)
        split = np.cumsum((opens - closes).reshape(m, n), axis=1)[:, :-1]
        shares: NDArray[np.float64] = split / len(ends)
        return shares

    return share(pairs.rows[pairs.similar]), share(pairs.rows[~pairs.similar])


def column_blocks(n_columns: int, n_rows: int) -> Iterator[slice]:
    """Yield slices of columns with a bounded number of entries."""
    size = max(1, _BLOCK_ENTRIES // n_rows)
    for start in range(0, n_columns, size):
        yield slice(start, start + size)

"""Thresholds along a direction that keep similar rows together."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from antipodal.paper.pair_sampling import ListedPairs

_BLOCK_ENTRIES = 2**21


class Cuts(NamedTuple):
    """A threshold for each direction, and the gap P(same | similar) - P(same | dissimilar).

    Where all rows have the same value, that is the threshold, and the gap is -∞.
    """

    thresholds: NDArray[np.float32]
    gaps: NDArray[np.float64]


def best_cuts(rows: Tensor, directions: Tensor, pairs: NDArray[np.int64] | ListedPairs) -> Cuts:
    """Find the threshold of largest gap for the values of the rows along each direction.

    The largest gap is also the least sum of false negative and false positive rates, 1 - g.
    Thresholds lie halfway between two neighbouring values; all of them are tried.

    Parameters
    ----------
    rows : float32 (n, d)
    directions : float32 (d, m)
    pairs : int64 (n,) or ListedPairs
        Class numbers from 0, for all pairs of rows, or the pairs to count.
    """
    n, m = len(rows), directions.shape[1]
    n_places = max(n, len(pairs.pairs)) if isinstance(pairs, ListedPairs) else n
    thresholds, gaps = np.empty(m, np.float32), np.empty(m)
    for block in column_blocks(m, n_places):
        values = (rows @ directions[:, block]).T.contiguous().numpy()
        order = np.argsort(values, axis=1)
        values = np.take_along_axis(values, order, axis=1)
        if isinstance(pairs, ListedPairs):
            similar, dissimilar = _pairs_cut(order, pairs)
        else:
            similar, dissimilar = _classes_cut(order, pairs)
        gap = dissimilar - similar
        gap[values[:, 1:] == values[:, :-1]] = -np.inf  # equal values cannot be cut apart
        best = gap.argmax(axis=1)
        at = np.arange(len(gap))
        gaps[block] = gap[at, best]
        below, above = values[at, best], values[at, best + 1]
        middle = below + (above - below) / 2
        thresholds[block] = np.where(middle < above, middle, below)  # neighbours in float32
    return Cuts(thresholds, gaps)


Shares = tuple[NDArray[np.float64], NDArray[np.float64]]


def _classes_cut(order: NDArray[np.int64], labels: NDArray[np.int64]) -> Shares:
    """Share of all similar and of all dissimilar pairs that each cut of each order splits.

    (m, n) row numbers -> twice (m, n - 1). Behind k_c rows of each class c, k in all, a cut
    splits Σ_c k_c(n_c - k_c) similar pairs, and k(n - k) pairs. To move it past the next row, of
    class c, adds n_c - 1 - 2k_c to the first sum, so one running sum does, whatever the number
    of classes.
    """
    m, n = order.shape
    counts = np.bincount(labels)
    labels = labels.astype(np.min_scalar_type(len(counts)))  # small ones sort faster
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


def _pairs_cut(order: NDArray[np.int64], pairs: ListedPairs) -> Shares:
    """Share of the listed similar and dissimilar pairs that each cut of each order splits.

    A pair is split by the cuts from its lower place in the order to just before its higher one.
    """
    m, n = order.shape
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(n), (m, n)), axis=1)
    flags = pairs.similar.numpy()

    def share(ends: NDArray[np.int64]) -> NDArray[np.float64]:
        left, right = place[:, ends[:, 0]], place[:, ends[:, 1]]
        start = n * np.arange(m)[:, None]
        opens = np.bincount((start + np.minimum(left, right)).ravel(), minlength=m * n)
        closes = np.bincount((start + np.maximum(left, right)).ravel(), minlength=m * n)
        split = np.cumsum((opens - closes).reshape(m, n), axis=1)[:, :-1]
        shares: NDArray[np.float64] = split / len(ends)
        return shares

    return share(pairs.pairs.numpy()[flags]), share(pairs.pairs.numpy()[~flags])


def column_blocks(n_columns: int, n_rows: int) -> Iterator[slice]:
    """Cut the columns into blocks of few enough entries to be worked on at once."""
    size = max(1, _BLOCK_ENTRIES // n_rows)
    for start in range(0, n_columns, size):
        yield slice(start, start + size)

"""Search results: neighbours of each query, or all items within a radius."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.index.scan import Distances
from antipodal.validation import Ids


class Neighbours(NamedTuple):
    """The nearest items of each query, one row per query, nearest first.

    Attributes
    ----------
    ids : int64 (n_queries, min(k, n_items))
    distances : int32, of the same shape
        Hamming distances.
    scores : float64, of the same shape, or None
        What the rows are ordered by after `rescore` or a search by vectors, larger for nearer.
    """

    ids: Ids
    distances: Distances
    scores: NDArray[np.float64] | None = None


class Ball(NamedTuple):
    """All items within a radius: the i-th query's are at offsets[i] : offsets[i + 1]."""

    offsets: NDArray[np.int64]
    ids: Ids
    distances: Distances

"""Training rows near an item: what the queries that should find it look like.

A query q scores an item y by ⟨q, v⟩, with v reconstructed from its code. An error of this score
matters most if q is near y, since it changes the order of the nearest items. Training rows near y
stand for such queries. [Zhang2023]
"""

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.operations import Array, chunks, product, unit_rows

N_NEAR = 24  # rows per item: recall is the same with 32
EXACT = 2**24  # float32 sums of integers are exact up to this size, in any order
_QUERIES = 20  # queries per row that `NearScores` is fitted to
_MIN_ROWS = 300  # fewer training rows say too little about queries: recall would be lower
_BITS_PER_FEATURE = 0.5  # with fewer, near rows are selected from more than `N_NEAR`
_FRACTION, _MAX_REACH = 150, 256  # at most one in 150 training rows
_ROWS_PER_LIST, _MAX_LISTS = 100, 512
_PROBES = 5  # lists that are searched for near rows: recall is the same with 20
_ITERATIONS = 4  # of k-means
_LARGEST = 7  # of the integers of a row, which have four bits
_STEP = 0.36  # between two integers, in standard deviations of a feature
_BLOCK = 8192  # rows that are assigned to lists at a time


class NearScores(NamedTuple):
    """Scores of queries near an item, ⟨q, v⟩ ≈ α⟨q, y⟩ + β; v is a shrunken estimate of y."""

    slope: float = 1.0  # α
    offset: float = 0.0  # β
    square: float = 0.0  # mean of ⟨q, y⟩²

    @classmethod
    def fit(cls, Y: Array, V: Array) -> Self:
        """Fit to reconstructions of the first rows, with their nearest rows as queries."""
        n = min(_QUERIES, len(Y) - 2)
        if n < 2:
            return cls()
        cosines = Y[: len(V)] @ Y.T
        np.fill_diagonal(cosines, -2)  # a row is not a query of itself
        near = np.argpartition(-cosines, n, axis=1)[:, :n]
        cosines = np.take_along_axis(cosines, near, axis=1).ravel()
        scores = np.take_along_axis(V @ Y.T, near, axis=1).ravel()
        A = np.stack([cosines, np.ones_like(cosines)], axis=1).astype(np.float64)
        slope, offset = np.linalg.lstsq(A, scores)[0]
        if not slope > 0:
            slope, offset = 1.0, 0.0
        return cls(float(slope), float(offset), float(np.square(A[:, 0]).mean()))


class NearRows:
    """Training rows in lists by direction, q = μ + s·k with integers k from -7 to 7 per feature.

    Products with rounded vectors are sums of integers that float32 represents exactly. The result
    does not depend on the order of summation, and so not on the other rows of a batch.

    Parameters
    ----------
    mean, steps : (n,)
        μ and s.
    values : (S, n), int8
        k, sorted by list.
    ends : (K,)
        End of each list; a list has at least `N_NEAR` rows.
    """

    def __init__(self, mean: Array, steps: Array, values: NDArray[np.int8], ends: Any) -> None:
        self.mean, self.steps, self.values = mean, steps, values
        self.starts = np.array([0, *ends[:-1]], np.intp)
        self.sizes = np.diff([0, *ends])
        sums = np.add.reduceat(values, self.starts, dtype=np.int64)
        centres = mean + steps * (sums / self.sizes[:, None]).astype(np.float32)
        self.centres = np.ascontiguousarray(unit_rows(centres).T)
        self.limit = max(EXACT // (_LARGEST * len(mean)), 1)

    @classmethod
    def fit(cls, Y: Array, mean: Array, rng: np.random.RandomState) -> Self | None:
        """Take all rows, or return None if there are too few."""
        if len(Y) < _MIN_ROWS:
            return None
        order, ends = _lists(Y, min(len(Y) // _ROWS_PER_LIST, _MAX_LISTS), rng)
        steps = np.float32(_STEP) * np.sqrt(np.square(Y - mean).mean(axis=0))
        values = (Y[order] - mean) / np.where(steps > 0, steps, 1)
        np.rint(values, out=values)
        return cls(mean, steps, values.clip(-_LARGEST, _LARGEST).astype(np.int8), ends)

    @classmethod
    def unpack(cls, mean: Array, steps: Array, packed: NDArray[np.uint8], ends: Any) -> Self:
        """Return the rows that `pack` wrote."""
        values = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.int8) - np.int8(8)
        return cls(mean, steps, values.reshape(len(packed), -1)[:, : len(mean)], ends)

    def pack(self) -> NDArray[np.uint8]:
        """Return the integers with four bits each, (S, ⌈n/2⌉)."""
        values = (self.values + 8).astype(np.uint8)
        values = np.pad(values, ((0, 0), (0, values.shape[1] % 2)))
        return values[:, ::2] | values[:, 1::2] << np.uint8(4)

    @property
    def ends(self) -> NDArray[np.int64]:
        """The end of each list."""
        return np.cumsum(self.sizes)

    def reach(self, n_bits: int) -> int:
        """Return how many nearest rows `nearest` should select from, for codes of n_bits bits.

        Codes with few bits per feature also confuse rows that are farther apart.
        """
        widest = min(len(self.values) // _FRACTION, _MAX_REACH)
        share = 1 - n_bits / (_BITS_PER_FEATURE * len(self.mean))
        return N_NEAR + int(max(widest - N_NEAR, 0) * max(share, 0))

    def nearest(self, Y: Array, reach: int = N_NEAR) -> NDArray[np.intp]:
        """Return the numbers of rows near to each row, (m, N_NEAR).

        They are selected from the `reach` nearest rows in the nearest lists: the distances between
        their ranks increase.
        """
        n_probes = min(_PROBES, len(self.sizes))
        cosines = product(Y, self.centres, np.empty((len(Y), len(self.sizes)), np.float32))
        probes = np.argpartition(-cosines, n_probes - 1, axis=1)[:, :n_probes]
        # The candidates of a row are those of its lists, one list after the other.
        sizes = self.sizes[probes]
        ends = sizes.cumsum(axis=1)
        slots = (ends - sizes).ravel()
        # A key orders candidates by score and then by number, so that no two are equal.
        n_rows = len(self.values)
        keys = np.full((len(Y), ends[:, -1].max()), np.iinfo(np.int64).min)
        rounded, _ = self._rounded(Y)
        order = np.argsort(probes, axis=None, kind="stable")
        lists, starts = np.unique(probes.ravel()[order], return_index=True)
        for i, part in zip(lists, np.split(order, starts[1:]), strict=True):
            numbers = np.arange(self.starts[i], self.starts[i] + self.sizes[i])
            values = self.values[numbers[0] : numbers[-1] + 1].astype(np.float32)
            rows = part // n_probes
            scores = (rounded[rows] @ values.T).astype(np.int64)
            columns = slots[part, None] + np.arange(len(numbers))
            keys[rows[:, None], columns] = scores * n_rows + numbers
        n_sorted = min(reach, keys.shape[1])
        keys.partition(keys.shape[1] - n_sorted, axis=1)
        best = np.sort(keys[:, -n_sorted:], axis=1)
        ranks = np.arange(N_NEAR)
        spread = np.minimum(reach, ends[:, -1:]) * ranks**2 // N_NEAR**2
        best = np.take_along_axis(best, n_sorted - 1 - np.maximum(ranks, spread), axis=1)
        return (best % n_rows).astype(np.intp)

    def products(self, near: NDArray[np.intp], X: Array) -> Array:
        """Return ⟨q, x⟩ for the rows q with given numbers, (m, r); x is rounded."""
        rounded, unit = self._rounded(X)
        sums = np.empty(near.shape, np.float32)
        for part in chunks(len(X)):
            values = self.values[near[part]].astype(np.float32)
            sums[part] = np.matmul(values, rounded[part, :, None])[..., 0]
        sums *= unit
        sums += np.vecdot(X, self.mean)[:, None]
        return sums

    def rows(self, numbers: NDArray[np.intp]) -> Array:
        """Return the rows with given numbers."""
        rows = self.values[numbers].astype(np.float32)
        rows *= self.steps
        rows += self.mean
        return rows

    def _rounded(self, X: Array) -> tuple[Array, Array]:
        """Return s·x in integer multiples of a unit, and the unit of each row."""
        scaled = X * self.steps
        unit = np.abs(scaled).max(axis=1, keepdims=True) / np.float32(self.limit)
        scaled /= np.where(unit > 0, unit, 1)
        return np.rint(scaled, out=scaled), unit


def _lists(
    Y: Array, n: int, rng: np.random.RandomState
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Cluster rows by k-means; return their order, and the ends of at most n lists."""
    centres = Y[rng.choice(len(Y), n, replace=False)]
    for _ in range(_ITERATIONS):
        order, ends = _assign(Y, centres)
        starts = np.unique([0, *ends[:-1]])  # of lists that are not empty
        centres = unit_rows(np.add.reduceat(Y[order], starts[starts < len(Y)]))
    order, ends = _assign(Y, centres)
    return _assign(Y, centres[np.diff(ends, prepend=0) >= N_NEAR])


def _assign(Y: Array, centres: Array) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the order of rows by nearest centre, and the ends of the lists."""
    parts = [(Y[i : i + _BLOCK] @ centres.T).argmax(axis=1) for i in range(0, len(Y), _BLOCK)]
    nearest = np.concatenate(parts)
    ends = np.bincount(nearest, minlength=len(centres)).cumsum()
    return np.argsort(nearest, kind="stable"), ends

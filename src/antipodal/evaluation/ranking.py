"""Rankings with ties: counts by Hamming distance, and metrics over all orders of the ties.

Hamming distance takes few values, so a ranking is a sequence of groups of equal distance, and
the order within a group is arbitrary. For each query and each group we count

    n  items in the group            M  items before the group
    r  relevant items in the group   R  relevant items before the group

Precision, recall and average precision follow from these counts in closed form, without sorting and
without breaking ties.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from antipodal.codes import Codes, check_codes

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
Unsigned = NDArray[np.unsignedinteger]
Words = NDArray[np.uint64]
Divisor = Literal["relevant", "found"]


def hamming_distances(query_codes: ArrayLike, database_codes: ArrayLike) -> Unsigned:
    """Return the Hamming distances of queries and items, (n_queries, n_database).

    Examples
    --------
    >>> hamming_distances(np.array([[0b101]], np.uint8), np.array([[0], [0b100]], np.uint8))
    array([[2, 1]], dtype=uint8)
    """
    n_bits = 8 * max(1, np.shape(query_codes)[-1])
    query = check_codes(query_codes, n_bits, "query_codes")
    database = check_codes(database_codes, n_bits, "database_codes")
    return _distances(to_words(query), to_words(database), np.min_scalar_type(n_bits))


def count_by_distance(
    query: Codes,
    database: Codes,
    query_labels: Unsigned,
    database_labels: Unsigned,
    n_bits: int,
    block_bytes: int,
) -> tuple[Counts, Counts]:
    """Count all items, and the relevant items, at distance 0 … n_bits from each query.

    Labels are ids (n,), where equal ids are relevant, or sets of concepts packed into words
    (n_words, n), where sets with a common bit are relevant.
    """
    query_words, database_words = to_words(query), to_words(database)
    labels, label_of = np.unique(query_labels, axis=-1, return_inverse=True)
    n_labels = labels.shape[-1]
    if len(query) < 4 * n_labels:  # few queries share a label: compare each pair of labels
        pair_labels = query_labels, database_labels
        both = _histograms(query_words, database_words, n_bits, block_bytes, pair_labels)
        other, relevant = np.split(both, 2, axis=1)
        return other + relevant, relevant
    # Queries with the same label split the database into the same relevant and other items, so
    # that only distances remain to be counted in each part.
    relevant, other = np.zeros((2, len(query), n_bits + 1), dtype=np.int64)
    for i in range(n_labels):
        rows = np.flatnonzero(label_of.ravel() == i)
        is_relevant = relevant_pairs(labels[..., i : i + 1], database_labels)[0]
        for counts, part in (relevant, is_relevant), (other, ~is_relevant):
            items = database_words.compress(part, axis=1)
            counts[rows] = _histograms(query_words[:, rows], items, n_bits, block_bytes)
    return other + relevant, relevant


def to_words(codes: Codes) -> Words:
    """Pad codes (n, width) to whole 64-bit words and transpose: (n_words, n)."""
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 8)))
    return np.ascontiguousarray(padded.view(np.uint64).T)


def blocks(length: int, size: int) -> Iterator[slice]:
    """Split range(length) into slices of length max(size, 1)."""
    return (slice(start, start + max(1, size)) for start in range(0, length, max(1, size)))


def _distances(query: Words, database: Words, dtype: DTypeLike) -> Unsigned:
    distances: Unsigned = np.bitwise_count(query[0][:, None] ^ database[0])
    distances = distances.astype(dtype, copy=False)
    for q, d in zip(query[1:], database[1:], strict=True):
        distances += np.bitwise_count(q[:, None] ^ d)
    return distances


def relevant_pairs(query: Unsigned, database: Unsigned) -> NDArray[np.bool_]:
    """Return which pairs of query and item are relevant, (n_queries, n_items)."""
    relevant: NDArray[np.bool_]
    if query.ndim == 1:
        relevant = query[:, None] == database
    else:
        shared = query[0][:, None] & database[0]
        for q, d in zip(query[1:], database[1:], strict=True):
            shared |= q[:, None] & d
        relevant = shared != 0
    return relevant


def _histograms(
    query: Words,
    database: Words,
    n_bits: int,
    block_bytes: int,
    labels: tuple[Unsigned, Unsigned] | None = None,
) -> Counts:
    """Count the items at each distance from each query: (n_queries, n_bits + 1).

    With `labels` of queries and items, the result has twice as many columns, for other and relevant
    items: a pair is counted in column distance + (n_bits + 1)·[relevant].
    """
    n_queries, n_items = query.shape[1], database.shape[1]
    n_columns = (n_bits + 1) * (1 if labels is None else 2)
    dtype = np.min_scalar_type(n_columns - 1)
    counts = np.zeros((n_queries, n_columns), dtype=np.int64)
    n_pairs = max(2, block_bytes // 32)  # 8 bytes per pair for its word, and more to count it
    item_block = max(1, min(n_items, n_pairs // 2))
    query_block = n_pairs // max(item_block, n_columns) // 2 * 2
    for rows in blocks(n_queries, query_block):
        for items in blocks(n_items, item_block):
            columns = _distances(query[:, rows], database[:, items], dtype)
            if labels is not None:
                relevant = relevant_pairs(labels[0][..., rows], labels[1][..., items])
                columns += relevant.view(np.uint8) * dtype.type(n_bits + 1)
            counts[rows] += _count_in_rows(columns, n_columns)
    return counts


def _count_in_rows(values: Unsigned, n_values: int) -> Counts:
    """Return the histogram of each row of values (n_rows, n_items): (n_rows, n_values).

    Incrementing a histogram is the slowest step, and two rows can share it: the pairs of their
    values are counted in a table of n_values × n_values, whose margins are the two histograms.
    This is faster if there are more items than cells in the table.
    """
    n_rows, n_items = values.shape
    together = 2 if n_rows % 2 == 0 and n_values**2 <= n_items else 1
    n_tables, n_cells = n_rows // together, n_values**together
    dtype = np.min_scalar_type(n_tables * n_cells)
    # np.bincount is one-dimensional: the i-th table starts at cell i·n_cells.
    cells = values[::together] + n_values * np.arange(n_tables, dtype=dtype)[:, None]
    if together == 2:
        cells *= dtype.type(n_values)
        cells += values[1::2]
    table = np.bincount(cells.ravel(), minlength=n_tables * n_cells)
    if together == 1:
        return table.reshape(n_rows, n_values)
    table = table.reshape(n_tables, n_values, n_values)
    counts = np.empty((n_rows, n_values), dtype=np.int64)
    counts[::2], counts[1::2] = table.sum(axis=2), table.sum(axis=1)
    return counts


class Scores(NamedTuple):
    """A score of each query: its mean over all orders of the ties, its least and its greatest."""

    expected: Floats
    worst: Floats
    best: Floats


class TiedRanking:
    """Rankings of one database for many queries, up to the order of ties.

    Parameters
    ----------
    items, relevant : integer arrays (n_queries, n_groups)
        Number of items and of relevant items in each group, nearest group first. Groups may be
        empty. Every query ranks the same number of items, at least one of them relevant.

    Examples
    --------
    Two items are tied for the first rank and one of them is relevant: AP is 1 or 1/2.

    >>> TiedRanking(np.array([[2, 1]]), np.array([[1, 0]])).average_precision()
    Scores(expected=array([0.75]), worst=array([0.5]), best=array([1.]))
    """

    def __init__(self, items: Counts, relevant: Counts) -> None:
        from scipy.special import digamma  # lazy: searching does not need it

        self.n, self.r = n, r = items, relevant
        self.M, self.R = M, R = np.cumsum(n, axis=1) - n, np.cumsum(r, axis=1) - r
        self.n_items = int(n[0].sum())
        self.n_relevant = r.sum(axis=1)
        # H(x) = digamma(x + 1) + constant, and only differences of harmonic numbers are used.
        self.H: Floats = digamma(np.arange(1.0, self.n_items + 2))
        sums = self._expected_sum(M, R, n, r), self._run(M + n - r, R, r), self._run(M, R, r)
        self.sums = [np.cumsum(part, axis=1) for part in sums]  # up to the end of each group

    def precision(self, k: int) -> Scores:
        """Return the share of relevant items among the first k, or among all if they are fewer.

        Of the group that contains rank k, m places are among the first k. They hold m·r/n relevant
        items on average, max(m - (n - r), 0) at worst and min(m, r) at best.
        """
        k = min(k, self.n_items)
        _, (n, r, _, R, m) = self._cut(k)
        parts = m * r / n, np.maximum(m - (n - r), 0), np.minimum(m, r)
        return Scores(*((R + part)[:, 0] / k for part in parts))

    def average_precision(self, k: int | None = None, divisor: Divisor = "relevant") -> Scores:
        """Return the mean, over the relevant items, of the precision at their rank.

        With `k`, ranks after k count as zero and the sum is divided by min(k, number of relevant
        items), its greatest possible value, or by the number of relevant items up to rank k.
        """
        if k is None or k >= self.n_items:
            return Scores(*(total[:, -1] / self.n_relevant for total in self.sums))
        if divisor == "found":
            return self._average_precision_of_found(k)
        before, (n, r, M, R, m) = self._cut(k)
        parts = (
            self._expected_sum(M, R, n, r, m),
            self._run(M + n - r, R, np.maximum(m - (n - r), 0)),  # relevant items last
            self._run(M, R, np.minimum(m, r)),  # relevant items first
        )
        n_best = np.minimum(k, self.n_relevant)
        return Scores(*((x + y)[:, 0] / n_best for x, y in zip(before, parts, strict=True)))

    def _average_precision_of_found(self, k: int) -> Scores:
        """Return average precision at k, divided by the number of relevant items up to rank k.

        That number is R + x, where x of the relevant items in the group that contains rank k fall
        on its m places up to k: a hypergeometric draw of m from n with r relevant. The expectation
        is over x; the worst and the best order are optima over x. Without relevant items it is 0.
        """
        from scipy.special import gammaln  # lazy: searching does not need it

        before, (n, r, M, R, m) = self._cut(k)
        fewest, most = np.maximum(m - (n - r), 0), np.minimum(m, r)
        draws = np.arange((most - fewest).max() + 1)
        log_factorial: Floats = gammaln(np.arange(1.0, self.n_items + 2))

        def log_choose(a: Counts, b: Counts) -> Floats:
            log: Floats = log_factorial[a] - log_factorial[b] - log_factorial[a - b]
            return log

        def score(rows: slice) -> Scores:
            n_, r_, M_, R_, m_ = (values[rows] for values in (n, r, M, R, m))
            x = np.minimum(
                fewest[rows] + draws, most[rows]
            )  # columns beyond the greatest x repeat it
            log_weight = log_choose(r_, x) + log_choose(n_ - r_, m_ - x)
            weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
            weight[fewest[rows] + draws > most[rows]] = 0
            found = np.maximum(R_ + x, 1)
            expected = (before[0][rows] + self._expected_sum(M_, R_, m_, x)) / found
            worst = (before[1][rows] + self._run(M_ + m_ - x, R_, x)) / found
            best = (before[2][rows] + self._run(M_, R_, x)) / found
            mean = (weight * expected).sum(axis=1) / weight.sum(axis=1)
            return Scores(mean, worst.min(axis=1), best.max(axis=1))

        scores = [score(rows) for rows in blocks(len(n), 2**18 // len(draws))]
        return Scores(*(np.concatenate(parts) for parts in zip(*scores, strict=True)))

    def _cut(self, k: int) -> tuple[list[Floats], list[Counts]]:
        """Return the group that contains rank k of each query, as columns (n_queries, 1).

        The first part is the sums of precisions before the group, for the three orders. The second
        is n, r, M, R and m, the number of its places among the first k.
        """
        group = np.argmax(self.M + self.n >= k, axis=1)[:, None]

        def at(values: NDArray[Any], group: Counts) -> NDArray[Any]:
            return np.take_along_axis(values, group, axis=1)

        n, r, M, R = (at(values, group) for values in (self.n, self.r, self.M, self.R))
        before = [np.where(group > 0, at(total, group - 1), 0.0) for total in self.sums]
        return before, [n, r, M, R, k - M]

    def _expected_sum(
        self, M: Counts, R: Counts, n: Counts, r: Counts, m: Counts | None = None
    ) -> Floats:
        """Return the expected sum of precisions at the first m places of a group, or at all n.

            (r/n) Σ_{j=1..m} [R + 1 + (j-1)(r-1)/(n-1)] / (M + j)

        The item at place j is relevant with probability r/n. Then R relevant items precede the
        group, and each of the other r - 1 precedes it with probability (j-1)/(n-1). With
        S = Σ 1/(M+j) = H(M+m) - H(M) and (j-1)/(M+j) = 1 - (M+1)/(M+j) the sum is

            (r/n) [(R + 1)·S + (r-1)/(n-1)·(m - (M+1)·S)]
        """
        m = n if m is None else m
        S: Floats = self.H[M + m] - self.H[M]
        others = (r - 1) / np.maximum(n - 1, 1)
        return r / np.maximum(n, 1) * ((R + 1) * S + others * (m - (M + 1) * S))

    def _run(self, M: Counts, R: Counts, length: Counts) -> Floats:
        """Return the sum of precisions of consecutive relevant items after M items, R relevant.

        Σ_{i=1..length} (R + i)/(M + i) = length - (M - R)·(H(M + length) - H(M))
        """
        S: Floats = self.H[M + length] - self.H[M]
        return length - (M - R) * S

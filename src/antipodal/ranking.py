"""Precision of a ranking with ties: the expected, the worst and the best order, in closed form.

Hamming distance takes few values, so a ranking of a database is a sequence of groups of equal
distance, and the order inside a group is left to chance. For each query and each group we know

    n  items in the group            M  items before the group
    r  relevant items in the group   R  relevant items before the group

and that is all that average precision and precision at k need: no sort, no order, no tie-breaker.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


class Scores(NamedTuple):
    """One score a query: its mean over all orders of the ties, the least and the greatest."""

    expected: Floats
    worst: Floats
    best: Floats


class TiedRanking:
    """Rankings of one database for many queries, known up to the order of their ties.

    Parameters
    ----------
    items, relevant : integer arrays (n_queries, n_groups)
        The items of each group and the relevant ones among them, nearest group first. Groups may
        be empty. Every query ranks the same number of items and has a relevant one among them.

    Examples
    --------
    Two items share the first place and one of them is relevant: AP is 1 or 1/2.

    >>> TiedRanking(np.array([[2, 1]]), np.array([[1, 0]])).average_precision()
    Scores(expected=array([0.75]), worst=array([0.5]), best=array([1.]))
    """

    def __init__(self, items: Counts, relevant: Counts) -> None:
        self.n, self.r = items, relevant
        self.M = np.cumsum(items, axis=1) - items
        self.R = np.cumsum(relevant, axis=1) - relevant
        self.n_items = int(items[0].sum())
        self.n_relevant = relevant.sum(axis=1)
        # Only differences of harmonic numbers are used, and H(x) = digamma(x + 1) + constant.
        self.H: Floats = digamma(np.arange(1.0, self.n_items + 2))

    def precision(self, k: int) -> Scores:
        """Share of relevant items among the first k, or among all items if they are fewer.

        Of a group's n places, m are among the first k. They hold m·r/n relevant items on average,
        all n - r others at worst, all r relevant ones at best.
        """
        k = min(k, self.n_items)
        n, r, m = self.n, self.r, self._places(k)
        expected = m * r / np.maximum(n, 1)
        worst, best = np.maximum(m - (n - r), 0), np.minimum(m, r)
        return Scores(*(hits.sum(axis=1) / k for hits in (expected, worst, best)))

    def average_precision(self, k: int | None = None) -> Scores:
        """Mean, over the relevant items, of the precision at their rank.

        With `k`, ranks after k count as zero and the sum is divided by min(k, number relevant),
        the greatest value it can take.
        """
        divisor = self.n_relevant if k is None else np.minimum(k, self.n_relevant)
        return Scores(*(part.sum(axis=1) / divisor for part in self._precision_sums(k)))

    def average_precision_of_found(self, k: int) -> Scores:
        """Average precision at k, divided by the number of relevant items found there.

        That number is R + x, where x relevant items of the one group that k cuts through fall on
        its m places before the cut: a hypergeometric draw of m from n with r relevant. The
        expectation runs over x, the worst and the best order are optima over x. Nothing found
        scores 0.
        """
        k = min(k, self.n_items)
        cut = np.argmax(self.M + self.n >= k, axis=1)[:, None]
        n, r, M, R, m = (
            np.take_along_axis(values, cut, axis=1)
            for values in (self.n, self.r, self.M, self.R, self._places(k))
        )
        before = [
            part.sum(axis=1, keepdims=True) - np.take_along_axis(part, cut, axis=1)
            for part in self._precision_sums(k)
        ]
        fewest, most = np.maximum(m - (n - r), 0), np.minimum(m, r)
        draws = np.arange((most - fewest).max() + 1)
        log_factorial: Floats = gammaln(np.arange(1.0, self.n_items + 2))

        def log_choose(a: Counts, b: Counts) -> Floats:
            return log_factorial[a] - log_factorial[b] - log_factorial[a - b]

        def score(rows: slice) -> Scores:
            n_, r_, M_, R_, m_ = (values[rows] for values in (n, r, M, R, m))
            x = np.minimum(fewest[rows] + draws, most[rows])  # past the most, x repeats itself
            log_weight = log_choose(r_, x) + log_choose(n_ - r_, m_ - x)
            weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
            weight[fewest[rows] + draws > most[rows]] = 0
            found = np.maximum(R_ + x, 1)
            expected = (before[0][rows] + self._expected_sum(M_, R_, m_, x, m_)) / found
            worst = (before[1][rows] + self._run(M_ + m_ - x, R_, x)) / found
            best = (before[2][rows] + self._run(M_, R_, x)) / found
            mean = (weight * expected).sum(axis=1) / weight.sum(axis=1)
            return Scores(mean, worst.min(axis=1), best.max(axis=1))

        size = max(1, 2**18 // len(draws))  # queries whose draws are held at once
        blocks = [score(slice(i, i + size)) for i in range(0, len(n), size)]
        return Scores(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))

    def _places(self, k: int | None) -> Counts:
        """How many of each group's places are among the first k (m above)."""
        return self.n if k is None else np.clip(k - self.M, 0, self.n)

    def _precision_sums(self, k: int | None) -> tuple[Floats, Floats, Floats]:
        """Sum of the precisions at the relevant ranks up to k, group by group, for each order."""
        n, r, M, R, m = self.n, self.r, self.M, self.R, self._places(k)
        return (
            self._expected_sum(M, R, n, r, m),
            self._run(M + n - r, R, np.maximum(m - (n - r), 0)),  # relevant items last
            self._run(M, R, np.minimum(m, r)),  # relevant items first
        )

    def _expected_sum(self, M: Counts, R: Counts, n: Counts, r: Counts, m: Counts) -> Floats:
        """Sum the precisions that the first m places of a group contribute on average.

            (r/n) Σ_{j=1..m} [R + 1 + (j-1)(r-1)/(n-1)] / (M + j)

        The item at place j is relevant with chance r/n; then R relevant ones come before the
        group, and of the other r - 1, each precedes it with chance (j-1)/(n-1). With
        S = Σ 1/(M+j) = H(M+m) - H(M) and (j-1)/(M+j) = 1 - (M+1)/(M+j) the sum is

            (r/n) [(R + 1)·S + (r-1)/(n-1)·(m - (M+1)·S)]
        """
        S = self.H[M + m] - self.H[M]
        others = (r - 1) / np.maximum(n - 1, 1)
        return r / np.maximum(n, 1) * ((R + 1) * S + others * (m - (M + 1) * S))

    def _run(self, M: Counts, R: Counts, length: Counts) -> Floats:
        """Sum the precisions of relevant items in a row, after M items of which R are relevant.

        Σ_{i=1..length} (R + i)/(M + i) = length - (M - R)·(H(M + length) - H(M))
        """
        return length - (M - R) * (self.H[M + length] - self.H[M])

"""Queries of a collection: codes or float queries for its store."""

import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.hashers.base import BaseHasher
from antipodal.index import SearchResult
from antipodal.stores import Snapshot
from antipodal.stores.filters import Where


class Query:
    """Queries of a store: codes, or float queries.

    Attributes
    ----------
    codes : uint8 (n, ⌈n_bits / 8⌉), optional
        For Hamming scoring.
    values : float64 (n, n_bits), optional
        For asymmetric scoring.
    rows : (n, n_features), optional
        Vectors for reranking.
    """

    def __init__(
        self,
        codes: Codes | None,
        values: NDArray[np.float64] | None,
        offsets: NDArray[np.float64] | None,
        rows: NDArray[Any] | None,
    ) -> None:
        self.codes, self.values, self.rows = codes, values, rows
        self._offsets = offsets
        self._own: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        values = self.codes if self.values is None else self.values
        return 0 if values is None else len(values)

    def part(self, part: slice | NDArray[np.intp]) -> "Query":
        """Return some of the queries."""

        def some(values: NDArray[Any] | None) -> NDArray[Any] | None:
            return None if values is None else values[part]

        query = Query(some(self.codes), some(self.values), some(self._offsets), some(self.rows))
        query._own = some(self._own)
        return query

    def leaving_out(self, numbers: NDArray[np.int64]) -> Self:
        """Return queries that exclude one item each from their results."""
        self._own = numbers
        return self

    def candidates(self, now: Snapshot, k: int, where: Where | None) -> SearchResult:
        """Return the k nearest items of each query, with scores that estimate cosines."""
        found = now.nearest(self.codes, self.values, k + (self._own is not None), where)
        if found.scores is not None and self._offsets is not None:
            scores = found.scores + self._offsets[:, None]
            found = SearchResult(found.ids, found.distances, scores)
        return found if self._own is None else _without(found, self._own, k)

    def within(self, now: Snapshot, r: int, where: Where | None) -> SearchResult:
        """Return the items at Hamming distance ≤ r of each query."""
        assert self.codes is not None
        found = now._radius(self.codes, r, where)
        if self._own is None:
            return found
        query = np.repeat(np.arange(len(self)), found.counts)
        is_other = found.ids != self._own[query]
        counts = np.bincount(query[is_other], minlength=len(self))
        offsets = np.concatenate(([0], np.cumsum(counts)))
        return SearchResult(found.ids[is_other], found.distances[is_other], offsets=offsets)


def chosen_scoring(model: BaseHasher, scoring: str | None) -> str:
    """Return the scoring of a search; warn about Hamming search of asymmetric codes."""
    if scoring not in (None, "hamming", "asymmetric"):
        raise ValueError(f"scoring must be hamming or asymmetric: got {scoring!r}")
    if scoring == "hamming" and model.scoring == "asymmetric":
        warnings.warn(
            f"the codes of {type(model).__name__} are designed for asymmetric search: recall by "
            "Hamming distance is far lower",
            stacklevel=3,
        )
    return scoring or model.scoring


def _without(found: SearchResult, own: NDArray[np.int64], k: int) -> SearchResult:
    """Return the first k results of each query, excluding its own item."""
    n_found = found.ids.shape[1]
    # Move the query's own item to the end. A stable sort keeps the order of the others.
    order = np.argsort(found.ids == own[:, None], axis=1, kind="stable")[:, :k]
    has_own = (found.ids == own[:, None]).any(axis=1)
    if n_found <= k and has_own.any():
        order = order[:, : n_found - 1]
    return SearchResult(
        np.take_along_axis(found.ids, order, axis=1),
        np.take_along_axis(found.distances, order, axis=1),
        None if found.scores is None else np.take_along_axis(found.scores, order, axis=1),
    )

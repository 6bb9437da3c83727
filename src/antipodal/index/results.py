"""The result type of every search: of an index, a store, a client and the service."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Distances = NDArray[np.int32]
Scores = NDArray[np.float64]
Offsets = NDArray[np.int64]


@dataclass(eq=False, slots=True)  # not frozen: that would slow single lookups down by 10 %
class SearchResult:
    """Items found for each query, nearest first.

    A k-NN search returns tables with one row per query. A radius search, which finds a different
    number of items for each query, returns flat arrays: the items of query i are at
    ``offsets[i]:offsets[i + 1]``.

    Attributes
    ----------
    ids : int64 or strings, (n_queries, min(k, n_items)) or (n_found,)
        Ids of the items, ordered by (distance, id) within a query, or by (score, id).
    distances : int32, same shape
        Hamming distances.
    scores : float64, same shape, or None
        Scores of a reranked or asymmetric search, larger for nearer.
    offsets : int64 (n_queries + 1,), or None
        Start of each query's items in the flat arrays of a radius search.
    metadata : list of lists of dict, or None
        Metadata of the items of each query, if requested from a collection.
    """

    ids: NDArray[Any]
    distances: Distances
    scores: Scores | None = None
    offsets: Offsets | None = None
    metadata: list[list[dict[str, Any]]] | None = None

    @classmethod
    def empty(cls, n_queries: int) -> "SearchResult":
        """Return a radius result without items."""
        return cls(
            np.empty(0, np.int64),
            np.empty(0, np.int32),
            offsets=np.zeros(n_queries + 1, np.int64),
        )

    @classmethod
    def stack(cls, queries: "Sequence[SearchResult]") -> "SearchResult":
        """Return the k-NN result of single queries that found the same number of items."""
        shape = (len(queries), len(queries[0].ids) if queries else 0)
        ids = np.array([query.ids for query in queries], np.int64).reshape(shape)
        distances = np.array([query.distances for query in queries], np.int32).reshape(shape)
        scores = [query.scores for query in queries if query.scores is not None]
        return cls(ids, distances, np.array(scores).reshape(shape) if scores else None)

    @classmethod
    def concatenate(cls, parts: "Sequence[SearchResult]") -> "SearchResult":
        """Return one radius result for the queries of all parts, in their order.

        A part is a radius result or the result of a single query.
        """
        if len(parts) == 1 and parts[0].offsets is not None:
            return parts[0]
        if not parts:
            return cls.empty(0)
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.distances for part in parts]),
            offsets=_offsets(np.concatenate([part.counts for part in parts])),
        )

    @classmethod
    def merge(cls, parts: "Sequence[SearchResult]") -> "SearchResult":
        """Return one radius result from several for the same queries and different items."""
        if len(parts) == 1:
            return parts[0]
        filled = [part for part in parts if len(part.ids)] or parts[:1]
        counts = [part.counts for part in filled]
        query = np.concatenate([np.repeat(np.arange(len(n)), n) for n in counts])
        ids = np.concatenate([part.ids for part in filled])
        distances = np.concatenate([part.distances for part in filled])
        order = np.lexsort((ids, distances, query))
        return cls(ids[order], distances[order], offsets=_offsets(np.sum(counts, axis=0)))

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of items of each query in a radius result."""
        if self.offsets is None:
            return np.array([len(self.ids)])
        return np.diff(self.offsets)

    def by_query(self) -> "list[SearchResult]":
        """Return the result of each query alone, in arrays of one dimension."""
        if self.offsets is None:
            parts = [slice(i, i + 1) for i in range(len(self.ids))]
        else:
            parts = list(map(slice, self.offsets[:-1].tolist(), self.offsets[1:].tolist()))
        return [
            SearchResult(
                self.ids[part].ravel(),
                self.distances[part].ravel(),
                None if self.scores is None else self.scores[part].ravel(),
            )
            for part in parts
        ]

    def flatten(self) -> "SearchResult":
        """Return a k-NN result in the flat form of a radius result."""
        n_queries, k = self.ids.shape
        scores = None if self.scores is None else self.scores.ravel()
        offsets = np.arange(n_queries + 1) * k
        return SearchResult(self.ids.ravel(), self.distances.ravel(), scores, offsets)

    def page(self, first: int, size: int | NDArray[np.int64]) -> "SearchResult":
        """Return up to `size` items of each query, from the item at position `first` on.

        `size` is one number or one per query. The result must be in flat form.
        """
        assert self.offsets is not None
        counts = np.clip(self.counts - first, 0, size)
        offsets = _offsets(counts)
        kept = np.repeat(self.offsets[:-1] + first - offsets[:-1], counts)
        kept += np.arange(len(kept))
        return self._take(kept, offsets)

    def select_queries(self, is_kept: NDArray[np.bool_]) -> "SearchResult":
        """Return the results of some of the queries, in flat form."""
        counts = self.counts
        return self._take(np.repeat(is_kept, counts), _offsets(counts[is_kept]))

    def sorted(self, k: int | None = None) -> "SearchResult":
        """Return the first k items of a single query by (distance, id), or all of them."""
        order = np.lexsort((self.ids, self.distances))[:k]
        return SearchResult(self.ids[order], self.distances[order])

    def first(self, k: int) -> "SearchResult":
        """Return the first k items of a single query."""
        scores = None if self.scores is None else self.scores[:k]
        return SearchResult(self.ids[:k], self.distances[:k], scores)

    def select(self, is_kept: NDArray[np.bool_]) -> "SearchResult":
        """Return a radius result with some of its items."""
        n_kept = np.concatenate([[0], np.cumsum(is_kept)])
        return self._take(is_kept, n_kept[self.offsets])

    def with_ids(self, ids: NDArray[Any]) -> "SearchResult":
        """Return the same result with other ids in the place of row numbers."""
        if ids is self.ids:
            return self
        return SearchResult(ids, self.distances, self.scores, self.offsets)

    def _take(self, items: NDArray[Any], offsets: Offsets) -> "SearchResult":
        scores = None if self.scores is None else self.scores[items]
        return SearchResult(self.ids[items], self.distances[items], scores, offsets)


def _offsets(counts: NDArray[np.int64]) -> Offsets:
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets

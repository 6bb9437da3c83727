"""Reranking of candidates by their vectors or by float queries."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import Codes
from antipodal.index.asymmetric import Floats, check_values, real_table, sign_scores
from antipodal.index.results import SearchResult
from antipodal.validation import Ids

OVERSAMPLE = 4  # default oversampling factor
_VALUES_AT_ONCE = 2**22


@dataclass(frozen=True)
class Vectors:
    """Vectors for reranking.

    Parameters
    ----------
    queries : (n_queries, n_features)
        One row per query.
    database : array (n, n_features) or callable
        An array with the vector of id i in row i. It may be memory-mapped: only the rows of
        candidates are read. If ids are not row numbers, a function from ids (m,) to their
        vectors (m, n_features).
    metric : "cosine" or "euclidean"
        The score is the cosine similarity (0 for a zero vector), or the negative distance.

    Examples
    --------
    >>> from antipodal import LSH, HammingIndex
    >>> X = np.random.default_rng(0).standard_normal((100, 16))
    >>> hasher, index = LSH(n_bits=64, random_state=0).fit(X), HammingIndex(64)
    >>> index.add(hasher.encode(X))
    >>> index.search(hasher.encode(X[:2]), k=1, rescore=Vectors(X[:2], X)).ids
    array([[0],
           [1]])
    """

    queries: ArrayLike
    database: Any | Callable[[Ids], ArrayLike]
    metric: Literal["cosine", "euclidean"] = "cosine"

    def scores(self, ids: Ids) -> Floats:
        """Return the scores of the candidates of every query: (n_queries, n_candidates)."""
        queries = real_table(self.queries, "queries of Vectors", len(ids))
        if self.metric not in ("cosine", "euclidean"):
            raise ValueError(f"metric must be cosine or euclidean: got {self.metric!r}")
        scores = np.empty(ids.shape)
        for part in query_blocks(len(ids), ids.shape[1] * queries.shape[1]):
            vectors = self._fetch(ids[part].ravel(), queries.shape[1])
            vectors = vectors.reshape(*ids[part].shape, queries.shape[1])
            scores[part] = vector_scores(queries[part], vectors, self.metric)
        return scores

    def _fetch(self, ids: Ids, n_features: int) -> Floats:
        if callable(self.database):
            vectors = np.asarray(self.database(ids), dtype=np.float64)
        else:
            n_rows = len(self.database)
            if len(ids) and (ids.min() < 0 or ids.max() >= n_rows):
                raise ValueError(
                    f"database of Vectors must have a row for each id: got {n_rows} rows and ids "
                    f"from {ids.min()} to {ids.max()}. If ids are not row numbers, pass a function"
                )
            rows = self.database
            vectors = np.asarray((rows if hasattr(rows, "dtype") else np.asarray(rows))[ids])
            vectors = vectors.astype(np.float64)
        if vectors.shape != (len(ids), n_features):
            raise ValueError(
                f"database of Vectors must return shape {(len(ids), n_features)} for {len(ids)} "
                f"ids and queries of {n_features} dimensions: got shape {vectors.shape}"
            )
        return vectors


def vector_scores(
    queries: Floats, vectors: Floats, metric: Literal["cosine", "dot", "euclidean"]
) -> Floats:
    """Return the scores (q, c) of each query (q, d) with its candidates (q, c, d)."""
    if metric == "euclidean":
        distances: Floats = np.linalg.norm(vectors - queries[:, None], axis=2)
        return -distances
    product: Floats = np.einsum("qd,qcd->qc", queries, vectors)
    if metric == "dot":
        return product
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(vectors, axis=2)
    return product / np.where(lengths > 0, lengths, 1)


def rerank(
    candidates: SearchResult,
    k: int,
    rescore: Vectors | ArrayLike,
    n_bits: int,
    codes: Callable[[], Codes],
) -> SearchResult:
    """Return the k best candidates of each query by (score, id), best first.

    Parameters
    ----------
    candidates : SearchResult
        Result of a k-NN search.
    k : int
        Number of results per query.
    rescore : Vectors or array (n_queries, n_bits)
        Vectors, or the float queries ``hasher.query(queries)``.
    n_bits : int
        Code length in bits.
    codes : callable
        Returns the candidates' codes (n_queries, n_candidates, ⌈n_bits / 8⌉). It is called only
        for float queries, since fetching codes may be slow.
    """
    if isinstance(rescore, Vectors):
        scores = rescore.scores(candidates.ids)
    else:
        scores = projection_scores(rescore, codes(), n_bits)
    best = best_first(scores, candidates.ids, k)
    return SearchResult(
        np.take_along_axis(candidates.ids, best, axis=1),
        np.take_along_axis(candidates.distances, best, axis=1),
        np.take_along_axis(scores, best, axis=1),
    )


def projection_scores(projections: ArrayLike, codes: Codes, n_bits: int) -> Floats:
    """Return the scores Σᵢ zᵢ·bᵢ of float queries z with the signs b = ±1 of candidates' codes.

    Values near zero, whose bits are uncertain, contribute little. With z = ±1 the score is
    n_bits - 2 × the Hamming distance.

    Parameters
    ----------
    projections : (n_queries, n_bits)
        Float queries, ``hasher.query(queries)``.
    codes : uint8 (n_queries, n_candidates, ⌈n_bits / 8⌉)
        Packed codes of the candidates of each query.

    Examples
    --------
    >>> codes = np.array([[[0b10000000], [0b11000000]]], np.uint8)
    >>> projection_scores([[0.9, -0.1]], codes, n_bits=2)
    array([[1. , 0.8]])
    """
    z = check_values(projections, "projections", n_bits, len(codes))
    return sign_scores(z, codes)


def best_first(scores: Floats, ids: Ids, k: int) -> NDArray[np.intp]:
    """Return the positions of the k best candidates of each row by (score, id), best first."""
    if not np.isfinite(scores).all():
        raise ValueError(
            "scores must be finite: a vector of a candidate has NaN or infinite values"
        )
    return np.lexsort((ids, -scores), axis=1)[:, :k]


def query_blocks(n_queries: int, n_values: int) -> Iterator[slice]:
    """Split queries that take n_values each into blocks of limited memory."""
    size = max(1, _VALUES_AT_ONCE // max(1, n_values))
    return (slice(start, start + size) for start in range(0, n_queries, size))

"""Reranking of the candidates of a Hamming search."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import Codes
from antipodal.index.asymmetric import Floats, check_values, real_table, sign_scores
from antipodal.index.results import Neighbours
from antipodal.validation import Ids

OVERSAMPLE = 4  # candidates for each result of a rescored search, unless told otherwise
_VALUES_AT_ONCE = 2**22


@dataclass(frozen=True)
class Vectors:
    """Vectors to compare candidates by.

    Parameters
    ----------
    queries : (n_queries, n_features)
        A row per query.
    database : array (n, n_features) or callable
        An array holds the vector of id i in row i, and may be memory-mapped: only the rows of
        candidates are read. Where ids are other numbers, give a function from ids (m,) to their
        vectors (m, n_features).
    metric : "cosine" or "euclidean"
        The score is the cosine of the angle (0 with a zero vector), or minus the distance.
    """

    queries: ArrayLike
    database: Any | Callable[[Ids], ArrayLike]
    metric: Literal["cosine", "euclidean"] = "cosine"

    def scores(self, ids: Ids) -> Floats:
        """Score the candidates of every query: (n_queries, n_candidates)."""
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
                    f"database of Vectors has {n_rows} rows, candidates have ids from {ids.min()} "
                    f"to {ids.max()}. Ids that are not row numbers need a function as database"
                )
            rows = self.database
            vectors = np.asarray((rows if hasattr(rows, "dtype") else np.asarray(rows))[ids])
            vectors = vectors.astype(np.float64)
        if vectors.shape != (len(ids), n_features):
            raise ValueError(
                f"database of Vectors must give {n_features} values for each of {len(ids)} ids, "
                f"as queries have: got shape {vectors.shape}"
            )
        return vectors


def vector_scores(
    queries: Floats, vectors: Floats, metric: Literal["cosine", "dot", "euclidean"]
) -> Floats:
    """Score each query (q, d) against its own candidates (q, c, d), larger for nearer: (q, c)."""
    if metric == "euclidean":
        distances: Floats = np.linalg.norm(vectors - queries[:, None], axis=2)
        return -distances
    product: Floats = np.einsum("qd,qcd->qc", queries, vectors)
    if metric == "dot":
        return product
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(vectors, axis=2)
    return product / np.where(lengths > 0, lengths, 1)


def rescored(
    found: Neighbours,
    k: int,
    rescore: Vectors | ArrayLike,
    n_bits: int,
    codes: Callable[[], Codes],
) -> Neighbours:
    """Return the k best of the candidates of each query by (score, id), best first.

    Parameters
    ----------
    found : Neighbours
        The candidates.
    k : int
        How many of them to keep.
    rescore : Vectors or array (n_queries, n_bits)
        What to compare by: vectors, or what `hasher.query` gives for the queries.
    n_bits : int
        Bits of a code.
    codes : callable
        Gives the candidates' codes (n_queries, n_candidates, ⌈n_bits / 8⌉). It is called only
        if they are needed: to fetch them may take long.
    """
    if isinstance(rescore, Vectors):
        scores = rescore.scores(found.ids)
    else:
        scores = projection_scores(rescore, codes(), n_bits)
    best = best_first(scores, found.ids, k)
    return Neighbours(
        np.take_along_axis(found.ids, best, axis=1),
        np.take_along_axis(found.distances, best, axis=1),
        np.take_along_axis(scores, best, axis=1),
    )


def projection_scores(projections: ArrayLike, codes: Codes, n_bits: int) -> Floats:
    """Score candidates by Σᵢ zᵢ·bᵢ, the query's real values z against signs b = ±1 of a code.

    The query keeps what its own bits lose: a bit that was nearly the other one counts little.
    With z = ±1 the score is n_bits - 2 × the Hamming distance.

    Parameters
    ----------
    projections : (n_queries, n_bits)
        What `hasher.query` gives for the queries.
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
    """Return the places of the k best candidates of each row, by (score, id), best first."""
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite: some vector of a candidate holds NaN or infinity")
    return np.lexsort((ids, -scores), axis=1)[:, :k]


def query_blocks(n_queries: int, n_values: int) -> Iterator[slice]:
    """Cut the queries, of which each takes n_values, into blocks that fit into memory."""
    size = max(1, _VALUES_AT_ONCE // max(1, n_values))
    return (slice(start, start + size) for start in range(0, n_queries, size))

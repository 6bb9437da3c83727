"""Codes under audit: building, searching, reranking and timing each of them."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.evaluation.recall import (
    OVERSAMPLING,
    Cost,
    Judgements,
    Metric,
    Rows,
    Setting,
    candidate_scores,
    drop_query_rows,
    prepared,
    ranks,
)
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.rows import draw_rows, row_blocks
from antipodal.index import HammingIndex
from antipodal.index.rerank import best_first
from antipodal.index.scan import load_faiss, threads_for
from antipodal.validation import Ids


class Int8Vectors:
    """Rows of X in one byte per feature: 255 levels between ± the largest value of the feature."""

    def __init__(self, X: Rows, metric: Metric) -> None:
        self.X, self.metric = X, metric
        self.largest = np.zeros(X.shape[1], np.float32)
        for block in row_blocks(X):
            rows = np.abs(prepared(X[block], metric)).max(axis=0)
            np.maximum(self.largest, rows, out=self.largest)

    def __getitem__(self, ids: Ids) -> NDArray[Any]:
        """Return rounded rows by row number."""
        rows = prepared(self.X[ids].reshape(-1, self.X.shape[1]), self.metric)
        step = np.where(self.largest > 0, self.largest, 1) / 127
        rounded: NDArray[Any] = (np.round(rows / step) * step).reshape(*ids.shape, -1)
        return rounded


_TRAINING_ROWS = 20_000  # for quantisers of Faiss


class AuditedCode(Protocol):
    """A code to build and search."""

    name: str
    bits: int
    bytes: int
    searches: tuple[str, ...]
    fit_seconds: float
    encode_seconds: float

    def build(self, X: Rows) -> None:
        """Fit, then encode all rows."""
        ...

    def search(self, queries: Rows, k: int, search: str) -> Ids:
        """Return the k best rows of each query; `search` is one of `searches`."""
        ...


class HasherCodes:
    """Codes of a hasher in an exact index."""

    def __init__(self, name: str, hasher: BaseHasher, *, fitted: bool = False) -> None:
        self.name, self.hasher, self.fitted = name, hasher, fitted
        self.bits = int(hasher.n_bits)
        self.bytes = -(-self.bits // 8)
        self.searches: tuple[str, ...] = ("hamming", "asymmetric")
        self.fit_seconds = self.encode_seconds = 0.0
        self.index = HammingIndex(n_bits=self.bits)

    def build(self, X: Rows) -> None:
        """Fit, unless fitted already, then encode and index all rows."""
        began = time.perf_counter()
        if not self.fitted:
            self.hasher.fit(X)
        fitted = time.perf_counter()
        codes = np.concatenate(list(self.hasher.encode_blocks(X)))
        self.fit_seconds = fitted - began
        self.encode_seconds = time.perf_counter() - fitted
        self.index.add(codes)

    def search(self, queries: Rows, k: int, search: str) -> Ids:
        """Return the k best rows of each query."""
        if search == "hamming":
            return self.index.search(self.hasher.encode(queries), k).ids
        return self.index.search(vectors=self.hasher.query(queries), k=k).ids

    def distances(self, queries: Rows, rows: Ids) -> NDArray[np.int64]:
        """Count the given rows of all queries by Hamming distance: (bits + 1,)."""
        codes = self.hasher.encode(queries)
        others = self.index.codes(rows.ravel()).reshape(*rows.shape, -1)
        apart = np.bitwise_count(codes[:, None] ^ others).sum(axis=2, dtype=np.int64)
        return np.bincount(apart.ravel(), minlength=self.bits + 1)


class GivenCodes:
    """Existing codes of rows and queries."""

    name = "codes"
    searches: tuple[str, ...] = ("hamming",)
    fit_seconds = encode_seconds = 0.0

    def __init__(self, codes: Codes, query_codes: Codes, n_bits: int) -> None:
        self.query_codes = query_codes
        self.bits, self.bytes = n_bits, codes.shape[1]
        self.index = HammingIndex(n_bits=n_bits)
        self.index.add(codes)

    def build(self, X: Rows) -> None:
        """Do nothing: the codes exist."""

    def search(self, queries: Rows, k: int, search: str) -> Ids:
        """Return the k best rows of the first `len(queries)` queries."""
        return self.index.search(self.query_codes[: len(queries)], k).ids


class FaissCodes:
    """A quantiser of Faiss by its factory string; `bytes` includes its correction factors."""

    searches: tuple[str, ...] = ("asymmetric",)

    def __init__(self, name: str, factory: str, n_features: int, metric: str, seed: int) -> None:
        faiss = load_faiss()
        self.name, self.metric, self.seed = name, metric, seed
        kind = faiss.METRIC_L2 if metric == "euclidean" else faiss.METRIC_INNER_PRODUCT
        self.index = faiss.index_factory(n_features, factory, kind)
        inner = faiss.downcast_index(self.index.index if "," in factory else self.index)
        if hasattr(inner, "qb"):
            inner.qb = 8  # float queries would take 50 times as long
        if hasattr(inner, "pq"):
            inner.pq.cp.min_points_per_centroid = 1  # no warning about small training sets
        self.bytes = int(inner.sa_code_size())
        self.bits = 8 * self.bytes
        self.fit_seconds = self.encode_seconds = 0.0

    def build(self, X: Rows) -> None:
        """Train on a sample, then add all rows."""
        rng = np.random.RandomState(self.seed)
        began = time.perf_counter()
        sample = self._rows(X[draw_rows(len(X), _TRAINING_ROWS, rng)])
        self.index.train(sample)
        trained = time.perf_counter()
        for block in row_blocks(X):
            rows = self._rows(X[block])
            with threads_for(len(rows), rows.nbytes):
                self.index.add(rows)
        self.fit_seconds, self.encode_seconds = trained - began, time.perf_counter() - trained

    def search(self, queries: Rows, k: int, search: str) -> Ids:
        """Return the k best rows of each query."""
        rows = self._rows(queries)
        with threads_for(len(rows), len(rows) * self.index.ntotal * self.bytes):
            found: Ids = self.index.search(rows, k)[1]
        return found

    def _rows(self, rows: Rows) -> NDArray[np.float32]:
        return prepared(rows, "cosine" if self.metric == "cosine" else "dot")


def faiss_quantizers(
    n_features: int, bits: tuple[int, ...], metric: str, seed: int
) -> Iterator[Callable[[], FaissCodes]]:
    """Yield constructors of RaBitQ and TurboQuant at 1, 2, 4 bits per feature, and of PQ."""
    made = partial(FaissCodes, n_features=n_features, metric=metric, seed=seed)
    for n in (1, 2, 4):
        yield partial(made, f"RaBitQ, {n} per feature", f"RR,RaBitQ{'' if n == 1 else n}")
        yield partial(made, f"TurboQuant, {n} per feature", f"RR,SQtqmse{n}")
    for n_bytes in (n_bits // 8 for n_bits in bits if n_bits % 8 == 0):
        if n_features % n_bytes == 0 and n_bytes < n_features:
            yield partial(made, "PQ", f"PQ{n_bytes}x8np")  # np: no polysemous training


_RERANKED = (2, 4, 8, 16)  # oversampling factors at which candidates are scored explicitly
_TIMED_QUERIES = (20, 200)  # least and greatest number; about one second of search in between
_OTHERS = 100  # random rows per query for the histogram of distances


@dataclass(frozen=True)
class Trial:
    """Vectors, queries and true neighbours to test codes with."""

    X: Rows
    queries: Rows
    query_rows: Ids | None
    truth: Ids
    k: int
    metric: Metric
    judgements: Judgements | None
    int8: Int8Vectors
    rng: np.random.RandomState

    def run(self, code: AuditedCode) -> Iterator[Setting]:
        """Build a code and yield the results of each of its searches."""
        code.build(self.X)
        n_self = int(self.query_rows is not None)
        n_found = min(self.k * OVERSAMPLING[-1], len(self.X) - n_self)
        for search in code.searches:
            began = time.perf_counter()
            found = code.search(self.queries, n_found + n_self, search)
            per_second = len(self.queries) / max(time.perf_counter() - began, 1e-9)
            candidates = drop_query_rows(found, self.query_rows, n_found)
            places = ranks(candidates, self.truth)
            # Reranking by float vectors ranks all true neighbours among the candidates first.
            tried = [r for r in OVERSAMPLING if r == 1 or self.k * r <= n_found]
            with_floats = {r: float((places < self.k * r).mean()) for r in tried}
            yield Setting(
                code.name, code.bits, search, (places < self.k).mean(axis=1), with_floats,
                self._with_int8(candidates) if search == "hamming" else {},
                self._cost(code, search, per_second), *self._judged(candidates),
                self._distances(code)
                if isinstance(code, HasherCodes) and search == "hamming" else None,
                candidates[:, : self.k],
            )  # fmt: skip

    def _with_int8(self, candidates: Ids) -> dict[int, float]:
        """Return the recall by oversampling factor, reranked by vectors of one byte per feature."""
        return {
            r: float((ranks(kept, self.truth) < self.k).mean())
            for r, kept in self._reranked(candidates, self.int8)
        }

    def _judged(self, candidates: Ids) -> tuple[dict[int, float], float | None]:
        """Return nDCG by oversampling factor, and recall, against the relevance judgements."""
        if self.judgements is None:
            return {}, None
        ndcg, recall = self.judgements.scores(candidates[:, : self.k])
        reranked = self._reranked(candidates, self.X)
        by_factor = {r: self.judgements.scores(kept)[0] for r, kept in reranked}
        return by_factor | {1: ndcg}, recall

    def _reranked(self, candidates: Ids, vectors: Any) -> Iterator[tuple[int, Ids]]:
        """Yield the k best candidates by their vectors, for each oversampling factor."""
        tried = [r for r in _RERANKED if self.k * r <= candidates.shape[1]]
        if not tried:
            return
        near = candidates[:, : self.k * tried[-1]]
        scores = candidate_scores(vectors, self.queries, near, self.metric)
        for r in tried:
            part = slice(None, self.k * r)
            order = best_first(scores[:, part], near[:, part], self.k)
            yield r, np.take_along_axis(near, order, axis=1)

    def _cost(self, code: AuditedCode, search: str, per_second: float) -> Cost:
        """Time the search for k results; `per_second` is the rate with all candidates."""
        some = self.queries[: int(np.clip(per_second, *_TIMED_QUERIES))]
        began = time.perf_counter()
        code.search(some, self.k, search)
        seconds = max(time.perf_counter() - began, 1e-9)
        return Cost(
            code.bytes, code.fit_seconds,
            len(self.X) / max(code.encode_seconds, 1e-9), len(some) / seconds,
        )  # fmt: skip

    def _distances(self, code: HasherCodes) -> NDArray[np.int64]:
        """Count the true neighbours and random other rows at each Hamming distance."""
        others = self.rng.randint(0, len(self.X), (len(self.queries), _OTHERS))
        return np.stack([code.distances(self.queries, ids) for ids in (self.truth, others)])

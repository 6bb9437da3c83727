"""Codes under audit: how each is built, searched and reranked."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.evaluation.recall import (
    OVERSAMPLES,
    Cost,
    Judgements,
    Metric,
    Rows,
    Setting,
    candidate_scores,
    prepared,
    ranks,
    without_own,
)
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.rows import draw_rows, row_blocks
from antipodal.index import HammingIndex
from antipodal.index.rerank import best_first
from antipodal.index.scan import load_faiss, threads_for
from antipodal.validation import Ids


class Int8Vectors:
    """Rows of X rounded to 255 steps, from minus to plus the largest value of each feature."""

    def __init__(self, X: Rows, metric: Metric) -> None:
        self.X, self.metric = X, metric
        self.largest = np.zeros(X.shape[1], np.float32)
        for block in row_blocks(X):
            rows = np.abs(prepared(X[block], metric)).max(axis=0)
            np.maximum(self.largest, rows, out=self.largest)

    def __getitem__(self, ids: Ids) -> NDArray[Any]:
        """Return rounded rows."""
        rows = prepared(self.X[ids].reshape(-1, self.X.shape[1]), self.metric)
        step = np.where(self.largest > 0, self.largest, 1) / 127
        rounded: NDArray[Any] = (np.round(rows / step) * step).reshape(*ids.shape, -1)
        return rounded


_TRAINING_ROWS = 20_000  # that a quantiser of Faiss learns from


class Contender(Protocol):
    """A code that can be built and searched."""

    name: str
    bits: int
    bytes: int
    searches: tuple[str, ...]
    fit_seconds: float
    encode_seconds: float

    def build(self, X: Rows) -> None:
        """Fit, then encode all rows."""
        ...

    def search(self, queries: Rows, k: int, way: str) -> Ids:
        """Return the rows of the k best of each query."""
        ...


class HasherCodes:
    """Codes of a hasher, over an exact index."""

    def __init__(self, name: str, hasher: BaseHasher, *, fitted: bool = False) -> None:
        self.name, self.hasher, self.fitted = name, hasher, fitted
        self.bits = int(hasher.n_bits)
        self.bytes = -(-self.bits // 8)
        self.searches: tuple[str, ...] = ("hamming", "asymmetric")
        self.fit_seconds = self.encode_seconds = 0.0
        self.index = HammingIndex(n_bits=self.bits)

    def build(self, X: Rows) -> None:
        """Fit, unless that was done, and fill the index."""
        began = time.perf_counter()
        if not self.fitted:
            self.hasher.fit(X)
        fitted = time.perf_counter()
        codes = np.concatenate(list(self.hasher.encode_blocks(X)))
        self.fit_seconds = fitted - began
        self.encode_seconds = time.perf_counter() - fitted
        self.index.add(codes)

    def search(self, queries: Rows, k: int, way: str) -> Ids:
        """Return the rows of the k best of each query."""
        if way == "hamming":
            return self.index.search(self.hasher.encode(queries), k).ids
        return self.index.search(vectors=self.hasher.query(queries), k=k).ids

    def distances(self, queries: Rows, rows: Ids) -> NDArray[np.int64]:
        """Count, by Hamming distance, the rows given for each query: (bits + 1,)."""
        codes = self.hasher.encode(queries)
        others = self.index.codes(rows.ravel()).reshape(*rows.shape, -1)
        apart = np.bitwise_count(codes[:, None] ^ others).sum(axis=2, dtype=np.int64)
        return np.bincount(apart.ravel(), minlength=self.bits + 1)


class GivenCodes:
    """Codes that exist already, of rows and of queries."""

    name = "codes"
    searches: tuple[str, ...] = ("hamming",)
    fit_seconds = encode_seconds = 0.0

    def __init__(self, codes: Codes, query_codes: Codes, n_bits: int) -> None:
        self.query_codes = query_codes
        self.bits, self.bytes = n_bits, codes.shape[1]
        self.index = HammingIndex(n_bits=n_bits)
        self.index.add(codes)

    def build(self, X: Rows) -> None:
        """Do nothing: that was done elsewhere."""

    def search(self, queries: Rows, k: int, way: str) -> Ids:
        """Return the rows of the k best of each query, which are the first of all queries."""
        return self.index.search(self.query_codes[: len(queries)], k).ids


class FaissCodes:
    """A quantiser of Faiss by its factory string; its bytes are all that it keeps of a row."""

    searches: tuple[str, ...] = ("asymmetric",)

    def __init__(self, name: str, factory: str, n_features: int, metric: str, seed: int) -> None:
        faiss = load_faiss()
        self.name, self.metric, self.seed = name, metric, seed
        kind = faiss.METRIC_L2 if metric == "euclidean" else faiss.METRIC_INNER_PRODUCT
        self.index = faiss.index_factory(n_features, factory, kind)
        inner = faiss.downcast_index(self.index.index if "," in factory else self.index)
        if hasattr(inner, "qb"):
            inner.qb = 8  # queries in 8 bits per feature: real ones take 50 times as long
        if hasattr(inner, "pq"):
            inner.pq.cp.min_points_per_centroid = 1  # else it complains of small sets
        self.bytes = int(inner.sa_code_size())
        self.bits = 8 * self.bytes
        self.fit_seconds = self.encode_seconds = 0.0

    def build(self, X: Rows) -> None:
        """Train on some rows, then add all."""
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

    def search(self, queries: Rows, k: int, way: str) -> Ids:
        """Return the rows of the k best of each query."""
        rows = self._rows(queries)
        with threads_for(len(rows), len(rows) * self.index.ntotal * self.bytes):
            found: Ids = self.index.search(rows, k)[1]
        return found

    def _rows(self, rows: Rows) -> NDArray[np.float32]:
        return prepared(rows, "cosine" if self.metric == "cosine" else "dot")


def faiss_peers(
    n_features: int, bits: tuple[int, ...], metric: str, seed: int
) -> Iterator[Callable[[], FaissCodes]]:
    """Yield what makes RaBitQ and TurboQuant at 1, 2, 4 bits per feature, and PQ at the bytes."""
    made = partial(FaissCodes, n_features=n_features, metric=metric, seed=seed)
    for n in (1, 2, 4):
        yield partial(made, f"RaBitQ, {n} per feature", f"RR,RaBitQ{'' if n == 1 else n}")
        yield partial(made, f"TurboQuant, {n} per feature", f"RR,SQtqmse{n}")
    for n_bytes in (n_bits // 8 for n_bits in bits if n_bits % 8 == 0):
        if n_features % n_bytes == 0 and n_bytes < n_features:
            yield partial(made, "PQ", f"PQ{n_bytes}x8np")  # np: nothing for Hamming distance


_REORDERED = (2, 4, 8, 16)  # candidates per result that are put in order one by one
_TIMED_QUERIES = (20, 200)  # at least and at most; in between, those of a second
_OTHERS = 100  # rows that are no neighbours of a query, for the histogram of distances


@dataclass(frozen=True)
class Trial:
    """Queries and their true neighbours, by which codes are judged."""

    X: Rows
    queries: Rows
    own: Ids | None
    truth: Ids
    k: int
    metric: Metric
    judgements: Judgements | None
    int8: Int8Vectors
    rng: np.random.RandomState

    def of(self, contender: Contender) -> Iterator[Setting]:
        """Build a code and yield what each way to search it keeps."""
        contender.build(self.X)
        n_own = int(self.own is not None)
        n_found = min(self.k * OVERSAMPLES[-1], len(self.X) - n_own)
        for way in contender.searches:
            began = time.perf_counter()
            found = contender.search(self.queries, n_found + n_own, way)
            per_second = len(self.queries) / max(time.perf_counter() - began, 1e-9)
            candidates = without_own(found, self.own, n_found)
            places = ranks(candidates, self.truth)
            # Vectors put true neighbours first, so that those among the candidates are all found.
            tried = [r for r in OVERSAMPLES if r == 1 or self.k * r <= n_found]
            with_floats = {r: float((places < self.k * r).mean()) for r in tried}
            yield Setting(
                contender.name, contender.bits, way, (places < self.k).mean(axis=1), with_floats,
                self._with_int8(candidates) if way == "hamming" else {},
                self._cost(contender, way, per_second), *self._judged(candidates),
                self._distances(contender)
                if isinstance(contender, HasherCodes) and way == "hamming" else None,
                candidates[:, : self.k],
            )  # fmt: skip

    def _with_int8(self, candidates: Ids) -> dict[int, float]:
        """Return the recall once candidates are put in order by vectors of one byte per feature."""
        return {
            r: float((ranks(kept, self.truth) < self.k).mean())
            for r, kept in self._reordered(candidates, self.int8)
        }

    def _judged(self, candidates: Ids) -> tuple[dict[int, float], float | None]:
        """Return nDCG by candidates per result, in order by vectors past one, and recall."""
        if self.judgements is None:
            return {}, None
        ndcg, recall = self.judgements.scores(candidates[:, : self.k])
        reordered = dict(self._reordered(candidates, self.X))
        by_candidates = {r: self.judgements.scores(kept)[0] for r, kept in reordered.items()}
        return by_candidates | {1: ndcg}, recall

    def _reordered(self, candidates: Ids, vectors: Any) -> Iterator[tuple[int, Ids]]:
        """Yield the k best by their vectors, of so many candidates per result."""
        tried = [r for r in _REORDERED if self.k * r <= candidates.shape[1]]
        if not tried:
            return
        near = candidates[:, : self.k * tried[-1]]
        scores = candidate_scores(vectors, self.queries, near, self.metric)
        for r in tried:
            part = slice(None, self.k * r)
            order = best_first(scores[:, part], near[:, part], self.k)
            yield r, np.take_along_axis(near, order, axis=1)

    def _cost(self, contender: Contender, way: str, per_second: float) -> Cost:
        """Time the k best alone; with all candidates it was so many queries per second."""
        some = self.queries[: int(np.clip(per_second, *_TIMED_QUERIES))]
        began = time.perf_counter()
        contender.search(some, self.k, way)
        seconds = max(time.perf_counter() - began, 1e-9)
        return Cost(
            contender.bytes, contender.fit_seconds,
            len(self.X) / max(contender.encode_seconds, 1e-9), len(some) / seconds,
        )  # fmt: skip

    def _distances(self, contender: HasherCodes) -> NDArray[np.int64]:
        """Return how many neighbours, and how many others, are at each Hamming distance."""
        others = self.rng.randint(0, len(self.X), (len(self.queries), _OTHERS))
        return np.stack([contender.distances(self.queries, ids) for ids in (self.truth, others)])

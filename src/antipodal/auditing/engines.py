"""Codes to be audited: what each is made of, how it is built, and how it is searched.

A contender is fitted, encodes all rows, and answers queries with row numbers, best first. Ours are
hashers over `HammingIndex`; peers are quantisers of Faiss, whose queries stay real.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from antipodal.auditing.truth import prepared
from antipodal.checks import Ids
from antipodal.codes import Codes
from antipodal.hashers import BaseHasher
from antipodal.hashers.parts.rows import draw_rows, row_blocks
from antipodal.index import HammingIndex
from antipodal.index.scan import load_faiss, threads_for

Rows = NDArray[Any]

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

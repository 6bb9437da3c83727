"""Codes under audit: building, searching, reranking and timing each of them."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.evaluation.recall import (
    OVERSAMPLING,
    Cost,
    Judgements,
    Rows,
    Scorer,
    Setting,
    Truth,
    drop_query_rows,
)
from antipodal.hashers.base import BaseHasher
from antipodal.index import HammingIndex
from antipodal.index.rerank import best_first, query_blocks
from antipodal.validation import Ids


class Int8Vectors:
    """Rows of X in one byte per dimension, with one scale per row: max |x| / 127."""

    def __init__(self, X: Rows) -> None:
        self.X = X

    def __getitem__(self, ids: Ids) -> NDArray[np.float32]:
        """Return rounded rows by row number."""
        rows = self.X[ids].astype(np.float32)
        step = np.abs(rows).max(axis=-1, keepdims=True) / 127
        step[step == 0] = 1
        rounded: NDArray[np.float32] = np.round(rows / step) * step
        return rounded

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.X)


class AuditedCode(Protocol):
    """A code to build and search.

    Attributes
    ----------
    bytes : int
        Everything that a search reads for an item.
    searches : tuple of str
        Ways of searching to measure.
    scoring : str, optional
        The scoring by which antipodal searches the code; None for other libraries.
    served : bool
        Whether `antipodal build` produces the same code from the vectors.
    """

    name: str
    bits: int
    bytes: int
    searches: tuple[str, ...]
    scoring: str | None
    served: bool
    fit_seconds: float
    encode_seconds: float

    def build(self, X: Rows, training: Rows) -> None:
        """Fit to the training rows, then encode all rows of X."""
        ...

    def search(self, queries: Rows, k: int, search: str) -> Ids:
        """Return the k best rows of each query; `search` is one of `searches`."""
        ...

    def candidates(self, queries: Rows, n: int, search: str) -> Ids:
        """Return the result of `search` for many results; this call is not timed."""
        ...


class HasherCodes:
    """Codes of a hasher in an exact index."""

    def __init__(self, name: str, hasher: BaseHasher, *, fitted: bool = False) -> None:
        self.name, self.hasher, self.fitted = name, hasher, fitted
        self.bits = int(hasher.n_bits)
        self.bytes = -(-self.bits // 8)
        self.searches: tuple[str, ...] = ("hamming", "asymmetric")
        self.scoring: str | None = hasher.scoring
        self.served = not fitted
        self.fit_seconds = self.encode_seconds = 0.0
        self.index = HammingIndex(n_bits=self.bits)

    def build(self, X: Rows, training: Rows) -> None:
        """Fit, unless fitted already, then encode and index all rows."""
        began = time.perf_counter()
        if not self.fitted:
            self.hasher.fit(training)
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

    def candidates(self, queries: Rows, n: int, search: str) -> Ids:
        """Return the n best rows of each query.

        The index computes the scores of most rows one by one if n is a large share of them. A
        matrix product takes a tenth of the time.
        """
        n_rows = len(self.index)
        if search == "hamming" or n * _MIN_SHARE < n_rows or n_rows * self.bits > _MAX_SIGNS:
            return self.search(queries, n, search)
        codes = self.index.codes(np.arange(n_rows))
        signs = 2.0 * np.unpackbits(codes, axis=1, count=self.bits) - 1
        values = self.hasher.query(queries).astype(np.float64)
        found = np.empty((len(queries), n), np.int64)
        for block in query_blocks(len(queries), n_rows):
            # Rounded, so that equal codes have equal scores.
            scores = (values[block] @ signs.T).astype(np.float32).astype(np.float64)
            best = np.argpartition(scores, n_rows - n, axis=1)[:, n_rows - n :]
            order = best_first(np.take_along_axis(scores, best, axis=1), best, n)
            found[block] = np.take_along_axis(best, order, axis=1)
        return found

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
    scoring: str | None = "hamming"
    served = False
    fit_seconds = encode_seconds = 0.0

    def __init__(self, codes: Codes, query_codes: Codes, n_bits: int) -> None:
        self.query_codes = query_codes
        self.bits, self.bytes = n_bits, codes.shape[1]
        self.index = HammingIndex(n_bits=n_bits)
        self.index.add(codes)

    def build(self, X: Rows, training: Rows) -> None:
        """Do nothing: the codes exist."""

    def search(self, queries: Rows, k: int, search: str) -> Ids:
        """Return the k best rows of the first `len(queries)` queries."""
        return self.index.search(self.query_codes[: len(queries)], k).ids

    candidates = search


_MIN_SHARE = 16  # with more than 1/16 of the rows as candidates, use a matrix product
_MAX_SIGNS = 2**24  # values of that product, 128 MiB
_RERANKED = (2, 4, 8, 16)  # oversampling factors at which candidates are scored explicitly
_TIMED_QUERIES = (20, 200)  # 200 if they take less than half a second
_OTHERS = 100  # random rows per query for the histogram of distances


@dataclass(frozen=True)
class Trial:
    """Queries and true neighbours to test codes with.

    Attributes
    ----------
    truth : Truth
        True neighbours, with the vectors and the queries.
    query_rows : (q,), optional
        Rows of X that are the queries.
    training : (n, d)
        Rows to fit codes to.
    all_rows : int
        Number of rows that the audited rows were sampled from.
    """

    truth: Truth
    query_rows: Ids | None
    judgements: Judgements | None
    rng: np.random.RandomState
    training: Rows
    all_rows: int

    @cached_property
    def _int8(self) -> Scorer:
        return Scorer(Int8Vectors(self.truth.X), self.truth.queries, self.truth.metric)

    @property
    def k(self) -> int:
        """Number of true neighbours of a query."""
        return int(self.truth.ids.shape[1])

    def run(self, code: AuditedCode) -> Iterator[Setting]:
        """Build a code and yield the results of each of its searches."""
        X, queries = self.truth.X, self.truth.queries
        code.build(X, self.training)
        n_self = int(self.query_rows is not None)
        n_found = min(self.k * OVERSAMPLING[-1], len(X) - n_self)
        for search in code.searches:
            found = code.candidates(queries, n_found + n_self, search)
            candidates = drop_query_rows(found, self.query_rows, n_found)
            correct = self.truth.hits(candidates)
            # Reranking by float vectors ranks all true neighbours among the candidates first.
            with_floats = {
                r: float((np.minimum(correct[:, : self.k * r].sum(axis=1), self.k) / self.k).mean())
                for r in OVERSAMPLING if r == 1 or self.k * r <= n_found
            }  # fmt: skip
            ndcg, judged_recall = self._judged(candidates)
            is_own = search == code.scoring
            yield Setting(
                code.name, code.bits, search, correct[:, : self.k], with_floats,
                self._with_int8(candidates) if is_own else {},
                self._cost(code, search),
                served=is_own and code.served,
                extrapolated=self._extrapolated(candidates),
                ndcg=ndcg, judged_recall=judged_recall,
                distances=self._distances(code)
                if isinstance(code, HasherCodes) and search == "hamming" else None,
                found=candidates[:, : self.k],
            )  # fmt: skip

    def _extrapolated(self, candidates: Ids) -> dict[int, float]:
        """Extrapolate recall@k by oversampling factor from the sample to all rows.

        The k-th neighbour among N rows is about as far away as neighbour j = k·n/N among n of them,
        and as hard to distinguish from the next one. So recall@k of all rows is about recall@j of
        the sample: interpolated, or extrapolated if j < 1, linearly in log j.
        """
        share = len(self.truth.X) / self.all_rows
        if share == 1:
            return {}
        log_j = np.log(np.arange(1, self.k + 1))
        wanted = np.log(self.k * share)
        extrapolated = {}
        for r in (r for r in OVERSAMPLING if r == 1 or self.k * r <= candidates.shape[1]):
            recalls = np.array(
                [self.truth.nearest(j).recall(candidates[:, : j * r]).mean()
                 for j in range(1, self.k + 1)]
            )  # fmt: skip
            recall = np.interp(wanted, log_j, recalls)
            if wanted < 0 and self.k > 1:
                recall += wanted * max(0.0, np.polyfit(log_j, recalls, 1)[0])
            extrapolated[r] = float(np.clip(recall, 0, 1))
        return extrapolated

    def _with_int8(self, candidates: Ids) -> dict[int, float]:
        """Return the recall by oversampling factor, reranked by vectors of one byte per feature."""
        return {
            r: float(self.truth.recall(kept).mean())
            for r, kept in self._reranked(candidates, self._int8)
        }

    def _judged(self, candidates: Ids) -> tuple[dict[int, float], float | None]:
        """Return nDCG by oversampling factor, and recall, against the relevance judgements."""
        if self.judgements is None:
            return {}, None
        ndcg, recall = self.judgements.scores(candidates[:, : self.k])
        reranked = self._reranked(candidates, self.truth.scorer)
        by_factor = {r: self.judgements.scores(kept)[0] for r, kept in reranked}
        return by_factor | {1: ndcg}, recall

    def _reranked(self, candidates: Ids, scorer: Scorer) -> Iterator[tuple[int, Ids]]:
        """Yield the k best candidates by their vectors, for each oversampling factor."""
        tried = [r for r in _RERANKED if self.k * r <= candidates.shape[1]]
        if not tried:
            return
        near = candidates[:, : self.k * tried[-1]]
        scores = scorer.scores(near)
        for r in tried:
            part = slice(None, self.k * r)
            order = best_first(scores[:, part], near[:, part], self.k)
            yield r, np.take_along_axis(near, order, axis=1)

    def _cost(self, code: AuditedCode, search: str) -> Cost:
        """Time the search for k results."""
        per_second = 0.0
        for n_queries in _TIMED_QUERIES:  # few, then more if the search is fast
            if per_second and n_queries > per_second / 2:
                break
            some = self.truth.queries[:n_queries]
            began = time.perf_counter()
            code.search(some, self.k, search)
            per_second = len(some) / max(time.perf_counter() - began, 1e-9)
        return Cost(
            code.bytes, code.fit_seconds,
            len(self.truth.X) / max(code.encode_seconds, 1e-9), per_second,
        )  # fmt: skip

    def _distances(self, code: HasherCodes) -> NDArray[np.int64]:
        """Count the true neighbours and random other rows at each Hamming distance."""
        queries = self.truth.queries
        others = self.rng.randint(0, len(self.truth.X), (len(queries), _OTHERS))
        return np.stack([code.distances(queries, ids) for ids in (self.truth.ids, others)])

"""Queries and their true neighbours, by which every code is judged in every way to search it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.auditing.engines import Contender, HasherCodes
from antipodal.auditing.int8 import Int8Vectors
from antipodal.auditing.judgements import Judgements
from antipodal.auditing.setting import OVERSAMPLES, Cost, Setting, ranks, without_own
from antipodal.auditing.truth import Metric, Rows, candidate_scores
from antipodal.checks import Ids
from antipodal.index.rescore import best_first

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

"""A search of the service: from a checked request to its answer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes, from_hex, to_hex
from antipodal.index import Neighbours
from antipodal.index.rerank import OVERSAMPLE, rescored
from antipodal.service.calls import check_wanted
from antipodal.service.coding import Coder
from antipodal.service.hitlists import HitLists
from antipodal.service.limits import Limits
from antipodal.service.prefixes import FirstBits, prefix_mask
from antipodal.service.problems import UnavailableError
from antipodal.service.schemas import SearchRequest
from antipodal.stores import Items, Snapshot, Store
from antipodal.stores.filters import matches, parse_where

_TRIES = 20
_BALLS_AT_ONCE = 16  # each may hold every item


class Search:
    """One request, of one query or of many, and what it is answered with."""

    def __init__(self, coder: Coder, store: Store, limits: Limits, request: SearchRequest) -> None:
        self._coder, self._store, self._limits = coder, store, limits
        self._request = request
        self._k = 10 if request.k is None else request.k

    def answer(self) -> dict[str, Any] | None:
        """Return the answer; None if it is by an id that is not there."""
        request, k = self._request, self._k
        if k > self._limits.k:
            raise ValueError(f"k must be at most {self._limits.k}: got {k}")
        if request.where is not None:
            check_where(request.where)
        codes, values = self._queries()
        if codes is None:
            return None
        if request.radius is None and len(codes) * k > self._limits.found:
            raise ValueError(
                f"a request may find at most {self._limits.found:,} items: got {len(codes)} "
                f"queries for {k} each. Send them in parts"
            )
        answers: list[dict[str, Any]] = []
        size = len(codes) if request.radius is None else _BALLS_AT_ONCE
        for start in range(0, len(codes), size):
            check_wanted()
            part = slice(start, start + size)
            some = None if values is None else values[part]
            answers += self._answers(codes[part], some, len(codes))
        return answers[0] if request.is_single else {"searches": answers}

    def _queries(self) -> tuple[Codes | None, NDArray[np.float32] | None]:
        """Return the queries' codes and, if they are known and needed, their real values."""
        request, coder = self._request, self._coder
        if request.id is not None:
            codes = self._store.get([request.id]).codes
            return (codes if len(codes) else None), None
        if request.code is not None or request.codes is not None:
            given = request.codes if request.code is None else [request.code]
            self._limits.check_batch(len(given or []), "codes")
            return from_hex(given or [], self._store.n_bits), None
        if request.image is not None:
            rows = coder.features([request.image])
        else:
            vectors = request.vectors if request.vector is None else [request.vector]
            self._limits.check_batch(len(vectors or []), "vectors")
            rows = coder.rows(vectors or [])
        values = None if request.rescore is None else coder.hasher.query(rows)
        return coder.encode(rows), values

    def _answers(
        self, codes: Codes, values: NDArray[np.float32] | None, n_queries: int
    ) -> list[dict[str, Any]]:
        """Search, and in Milvus again for those whose hits changed before they were fetched."""
        request = self._request
        answers: list[dict[str, Any]] = [{}] * len(codes)
        left = np.arange(len(codes))
        for _ in range(_TRIES):
            with self._store.snapshot() as now:
                seen = (
                    now if request.prefix is None else FirstBits(now, request.prefix, self._limits)
                )
                found = self._found(seen, codes[left], values is not None, n_queries)
                if not request.items and values is None:
                    return self._answered(found, found.bare(), codes)
                items = now.get(np.unique(found.ids))
            good = self._unchanged(found, items, codes[left])
            done, found = left[good], found.of(good)
            scores = None
            if values is not None:
                found, scores = self._rescored(found, items, values[done])
            results = self._with_items(found, items) if request.items else found.bare()
            for result, score in zip(results, scores or [], strict=False):
                result["score"] = score
            for place, answer in zip(
                done, self._answered(found, results, codes[done]), strict=True
            ):
                answers[place] = answer
            left = left[~good]
            if not len(left):
                return answers
        raise UnavailableError("the items found are being replaced too quickly: try again")

    def _found(self, store: Snapshot, codes: Codes, is_rescored: bool, n_queries: int) -> HitLists:
        """Search once."""
        request, k, where = self._request, self._k, self._request.where
        histogram = None
        n_near = k * OVERSAMPLE if is_rescored else k
        first, n_wanted = (0, n_near) if is_rescored else (request.offset, request.limit or n_near)
        if request.histogram:
            self._limits.check_counted(store.count(where))
        elif request.radius is None:
            near = store.search(codes, n_near, where=where)
            totals = np.full(len(codes), min(k, near.ids.shape[1]))
            window = slice(first, first + n_wanted)
            ids, distances = near.ids[:, window], near.distances[:, window]
            counts = np.full(len(codes), ids.shape[1])
            return HitLists(ids.ravel(), distances.ravel(), counts, totals, None)
        # With a histogram, one pass over all distances answers the rest as well.
        reach = store.n_bits if request.histogram else request.radius or 0
        ball = store.radius(codes, reach, where=where)
        if request.histogram:
            histogram = np.bincount(ball.distances, minlength=store.n_bits + 1).tolist()
        totals = np.diff(ball.offsets)
        if request.radius is None:
            there, totals = np.minimum(totals, n_near), np.minimum(totals, k)
        else:
            if request.histogram:
                totals = np.array([np.searchsorted(ball.distances, request.radius, side="right")])
            there = totals
            most = min(self._limits.results, max(1, self._limits.found // n_queries))
            n_wanted = min(request.limit or most, most)
        counts = np.clip(there - first, 0, n_wanted)
        kept = np.repeat(ball.offsets[:-1] + first - np.cumsum(counts) + counts, counts)
        kept += np.arange(len(kept))
        return HitLists(ball.ids[kept], ball.distances[kept], counts, totals, histogram)

    def _rescored(
        self, found: HitLists, items: Items, values: NDArray[np.float32]
    ) -> tuple[HitLists, list[float]]:
        """Put the hits of each query, which are equally many, into a finer order."""
        if not len(found.ids):
            return found, []
        table = (len(values), len(found.ids) // len(values))
        candidates = Neighbours(found.ids.reshape(table), found.distances.reshape(table))
        codes = items.codes[np.searchsorted(items.ids, candidates.ids)]
        best = rescored(candidates, self._k, values, self._store.n_bits, lambda: codes)
        offset = self._request.offset
        window = slice(offset, offset + (self._request.limit or self._k))
        ids, distances = best.ids[:, window], best.distances[:, window]
        scores = [] if best.scores is None else best.scores[:, window].ravel().tolist()
        counts = np.full(len(values), ids.shape[1])
        return found._replace(ids=ids.ravel(), distances=distances.ravel(), counts=counts), scores

    def _with_items(self, found: HitLists, items: Items) -> list[dict[str, Any]]:
        known = described(items, self._store.n_bits)
        places = np.searchsorted(items.ids, found.ids)
        return [
            known[place] | {"distance": distance}
            for place, distance in zip(places.tolist(), found.distances.tolist(), strict=True)
        ]

    def _answered(
        self, found: HitLists, results: list[dict[str, Any]], codes: Codes
    ) -> list[dict[str, Any]]:
        """Give each query its results."""
        ends = np.cumsum(found.counts).tolist()
        begins = [0, *ends][:-1]
        totals, names = found.totals.tolist(), to_hex(codes, self._store.n_bits)
        answers: list[dict[str, Any]] = [
            {"code": code, "results": results[begin:end], "total": total}
            for code, begin, end, total in zip(names, begins, ends, totals, strict=True)
        ]
        if found.histogram is not None:
            answers[0]["histogram"] = found.histogram
        return answers

    def _unchanged(self, found: HitLists, items: Items, codes: Codes) -> NDArray[np.bool_]:
        """Say of each query whether its hits are still what was found: nobody wrote them since."""
        good = np.ones(len(codes), np.bool_)
        if not len(found.ids):
            return good
        query = np.repeat(np.arange(len(codes)), found.counts)
        if not len(items.ids):
            good[query] = False
            return good
        where, prefix = self._request.where, self._request.prefix
        tree = None if where is None else parse_where(where)
        passing = [tree is None or matches(tree, metadata) for metadata in items.metadata]
        places = np.minimum(np.searchsorted(items.ids, found.ids), len(items.ids) - 1)
        compared = prefix_mask(prefix or self._store.n_bits, codes.shape[1])
        differing = np.bitwise_count((items.codes[places] ^ codes[query]) & compared).sum(axis=1)
        same = (items.ids[places] == found.ids) & (differing == found.distances)
        good[query[~(same & np.array(passing)[places])]] = False
        return good


def described(items: Items, n_bits: int) -> list[dict[str, Any]]:
    """Return items as they are answered."""
    return [
        {"id": number, "code": code, "metadata": metadata}
        for number, code, metadata in zip(
            items.ids.tolist(), to_hex(items.codes, n_bits), items.metadata, strict=True
        )
    ]


def check_where(where: Mapping[str, Any]) -> None:
    """Say that it is the filter which is wrong, in words that begin with its name."""
    try:
        parse_where(where)
    except (TypeError, ValueError) as error:
        raise ValueError(f"where is not a valid filter: {error}") from None

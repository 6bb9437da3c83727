"""Search of the service: from a validated request to its response."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes, code_width, from_hex, to_hex
from antipodal.index import HammingIndex, SearchResult
from antipodal.index.rerank import OVERSAMPLE, rerank
from antipodal.service.encoding import InputEncoder
from antipodal.service.errors import UnavailableError
from antipodal.service.limits import Limits
from antipodal.service.schemas import SearchRequest
from antipodal.stores import Items, Snapshot, Store
from antipodal.stores.filters import Where, matches, parse_where
from antipodal.stores.snapshot import ItemBatch
from antipodal.validation import Ids

_RETRIES = 20
_RADIUS_QUERIES = 16  # searched at once: the result of each may be the whole store


class ResultPage(NamedTuple):
    """The requested part of the results of each query, in flat form, and their total number."""

    results: SearchResult
    totals: NDArray[np.int64]
    histogram: list[int] | None

    def select_queries(self, is_kept: NDArray[np.bool_]) -> "ResultPage":
        """Return the results of some of the queries."""
        results = self.results.select_queries(is_kept)
        return ResultPage(results, self.totals[is_kept], self.histogram)


class Search:
    """A search request of one query or many."""

    def __init__(
        self, encoder: InputEncoder, store: Store, limits: Limits, request: SearchRequest
    ) -> None:
        self._encoder, self._store, self._limits = encoder, store, limits
        self._request = request
        self._k = 10 if request.k is None else request.k

    def answer(self) -> dict[str, Any] | None:
        """Return the response; None if the query is an id that does not exist."""
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
                f"a request may return at most {self._limits.found:,} items: got {len(codes)} "
                f"queries for {k} each. Split the request"
            )
        answers: list[dict[str, Any]] = []
        size = len(codes) if request.radius is None else _RADIUS_QUERIES
        for start in range(0, len(codes), size):
            part = slice(start, start + size)
            some = None if values is None else values[part]
            answers += self._answers(codes[part], some, len(codes))
        return answers[0] if request.is_single else {"searches": answers}

    def _queries(self) -> tuple[Codes | None, NDArray[np.float32] | None]:
        """Return the codes of the queries and, for reranking, their float values."""
        request, encoder = self._request, self._encoder
        if request.id is not None:
            codes = self._store.get([request.id]).codes
            return (codes if len(codes) else None), None
        if request.code is not None or request.codes is not None:
            given = request.codes if request.code is None else [request.code]
            self._limits.check_batch(len(given or []), "codes")
            return from_hex(given or [], self._store.n_bits), None
        if request.image is not None:
            rows = encoder.image_features(request.image)
        else:
            vectors = request.vectors if request.vector is None else [request.vector]
            self._limits.check_batch(len(vectors or []), "vectors")
            rows = encoder.rows(vectors or [])
        values = None if request.rescore is None else encoder.hasher.query(rows)
        return encoder.encode(rows), values

    def _answers(
        self, codes: Codes, values: NDArray[np.float32] | None, n_queries: int
    ) -> list[dict[str, Any]]:
        """Search. Without snapshots, repeat queries whose results changed before being fetched."""
        request = self._request
        answers: list[dict[str, Any]] = [{}] * len(codes)
        left = np.arange(len(codes))
        for _ in range(_RETRIES):
            with self._store.snapshot() as now:
                seen = (
                    now
                    if request.prefix is None
                    else PrefixSnapshot(now, request.prefix, self._limits)
                )
                found = self._found(seen, codes[left], values is not None, n_queries)
                if not request.items and values is None:
                    return self._answered(found, None, codes)
                items = now.get(np.unique(found.results.ids))
            is_valid = self._unchanged(found.results, items, codes[left])
            done, found = left[is_valid], found.select_queries(is_valid)
            if values is not None:
                reranked = self._reranked(found.results, items, values[done])
                found = found._replace(results=reranked)
            shown = items if request.items else None
            for i, answer in zip(done, self._answered(found, shown, codes[done]), strict=True):
                answers[i] = answer
            left = left[~is_valid]
            if not len(left):
                return answers
        raise UnavailableError("the results are being overwritten: retry later")

    def _found(
        self, store: Snapshot, codes: Codes, is_reranked: bool, n_queries: int
    ) -> ResultPage:
        """Search a snapshot; return the candidates of a search that is reranked."""
        request, k, where = self._request, self._k, self._request.where
        histogram = None
        n_near = k * OVERSAMPLE if is_reranked else k
        first, size = (0, n_near) if is_reranked else (request.offset, request.limit or n_near)
        if request.histogram:
            self._limits.check_histogram(store.count(where))
        elif request.radius is None:
            near = store.search(codes, n_near, where=where)
            totals = np.full(len(codes), min(k, near.ids.shape[1]))
            return ResultPage(near.flatten().page(first, size), totals, None)
        # A histogram needs all distances, which also contain the results.
        reach = store.n_bits if request.histogram else request.radius or 0
        near = store.radius(codes, reach, where=where)
        if request.histogram:
            histogram = np.bincount(near.distances, minlength=store.n_bits + 1).tolist()
        n_found = totals = near.counts
        if request.radius is None:
            n_found, totals = np.minimum(n_found, n_near), np.minimum(totals, k)
        else:
            if request.histogram:
                totals = np.array([np.searchsorted(near.distances, request.radius, side="right")])
                n_found = totals
            max_size = min(self._limits.results, max(1, self._limits.found // n_queries))
            size = min(request.limit or max_size, max_size)
        return ResultPage(near.page(first, np.clip(n_found - first, 0, size)), totals, histogram)

    def _reranked(
        self, found: SearchResult, items: Items, values: NDArray[np.float32]
    ) -> SearchResult:
        """Rerank the candidates, of which each query has the same number, by float queries."""
        if not len(found.ids):
            return found
        table = (len(values), len(found.ids) // len(values))
        candidates = SearchResult(found.ids.reshape(table), found.distances.reshape(table))
        codes = items.codes[np.searchsorted(items.ids, candidates.ids)]
        best = rerank(candidates, self._k, values, self._store.n_bits, lambda: codes)
        return best.flatten().page(self._request.offset, self._request.limit or self._k)

    def _answered(
        self, found: ResultPage, items: Items | None, codes: Codes
    ) -> list[dict[str, Any]]:
        """Return one response per query, with codes and metadata if items are given."""
        results = found.results
        numbers, distances = results.ids.tolist(), results.distances.tolist()
        if items is None:
            hits = [{"id": i, "distance": d} for i, d in zip(numbers, distances, strict=True)]
        else:
            known = described(items, self._store.n_bits)
            positions = np.searchsorted(items.ids, results.ids).tolist()
            hits = [known[p] | {"distance": d} for p, d in zip(positions, distances, strict=True)]
        if results.scores is not None:
            for hit, score in zip(hits, results.scores.tolist(), strict=True):
                hit["score"] = score
        ends = np.cumsum(results.counts).tolist()
        begins = [0, *ends][:-1]
        totals, names = found.totals.tolist(), to_hex(codes, self._store.n_bits)
        answers: list[dict[str, Any]] = [
            {"code": code, "results": hits[begin:end], "total": total}
            for code, begin, end, total in zip(names, begins, ends, totals, strict=True)
        ]
        if found.histogram is not None:
            answers[0]["histogram"] = found.histogram
        return answers

    def _unchanged(self, found: SearchResult, items: Items, codes: Codes) -> NDArray[np.bool_]:
        """Return for each query whether the fetched items still agree with its results."""
        is_valid = np.ones(len(codes), np.bool_)
        if not len(found.ids):
            return is_valid
        query = np.repeat(np.arange(len(codes)), found.counts)
        if not len(items.ids):
            is_valid[query] = False
            return is_valid
        where, prefix = self._request.where, self._request.prefix
        tree = None if where is None else parse_where(where)
        matching = [tree is None or matches(tree, metadata) for metadata in items.metadata]
        positions = np.minimum(np.searchsorted(items.ids, found.ids), len(items.ids) - 1)
        compared = prefix_mask(prefix or self._store.n_bits, codes.shape[1])
        differing = (items.codes[positions] ^ codes[query]) & compared
        distances = np.bitwise_count(differing).sum(axis=1)
        same = (items.ids[positions] == found.ids) & (distances == found.distances)
        is_valid[query[~(same & np.array(matching)[positions])]] = False
        return is_valid


def described(items: Items, n_bits: int) -> list[dict[str, Any]]:
    """Return items in the form of a response."""
    return [
        {"id": number, "code": code, "metadata": metadata}
        for number, code, metadata in zip(
            items.ids.tolist(), to_hex(items.codes, n_bits), items.metadata, strict=True
        )
    ]


def check_where(where: Mapping[str, Any]) -> None:
    """Raise ValueError, with a message that starts with `where`, if a filter is not valid."""
    try:
        parse_where(where)
    except (TypeError, ValueError) as error:
        raise ValueError(f"where is not a valid filter: {error}") from None


class PrefixSnapshot(Snapshot):
    """A snapshot searched by the first `n_bits` of its codes. Queries are whole codes.

    Stores do not search by a part of a code. All codes are fetched, so their number is limited.
    """

    def __init__(self, whole: Snapshot, n_bits: int, limits: Limits) -> None:
        if n_bits > whole.n_bits:
            raise ValueError(
                f"prefix must be at most the code length, {whole.n_bits}: got {n_bits}"
            )
        n_items = whole.count()
        if n_items > limits.histogram:
            raise ValueError(
                f"prefix searches at most {limits.histogram:,} items: the store has {n_items:,}"
            )
        self.place, self.n_bits, self._whole = whole.place, whole.n_bits, whole
        self._mask = prefix_mask(n_bits, code_width(whole.n_bits))
        ids, codes = whole.all_codes()
        self._index = HammingIndex(whole.n_bits)  # the other bits are zero in codes and queries
        self._index.add(codes & self._mask, ids)

    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items in batches, with their whole codes."""
        return self._whole.batches()

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        return self._whole._get(ids)

    def _search(self, codes: Codes, k: int, where: Where | None) -> SearchResult:
        return self._index.search(codes & self._mask, k, allowed=self._allowed(where))

    def _radius(self, codes: Codes, r: int, where: Where | None) -> SearchResult:
        return self._index.radius(codes & self._mask, r, allowed=self._allowed(where))

    def _count(self, where: Where | None) -> int:
        return self._whole._count(where)

    def _allowed(self, where: Where | None) -> Ids | None:
        if where is None:
            return None
        any_code = np.zeros((1, len(self._mask)), np.uint8)
        return np.sort(self._whole._radius(any_code, self.n_bits, where).ids)


def prefix_mask(n_bits: int, width: int) -> NDArray[np.uint8]:
    """Return packed bits: ones for the first `n_bits`, then zeros."""
    return np.packbits(np.arange(8 * width) < n_bits)

"""Search of the service: from a validated request to its response."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes, code_width, from_hex, to_hex
from antipodal.collection import Collection
from antipodal.collection.query import Query
from antipodal.index import HammingIndex, SearchResult
from antipodal.service.encoding import InputEncoder
from antipodal.service.errors import UnavailableError
from antipodal.service.limits import Limits
from antipodal.service.schemas import SearchOptions, SearchRequest
from antipodal.stores import Items, Snapshot
from antipodal.stores.filters import Where, matches, parse_where
from antipodal.stores.items import as_keys, take_key
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
    """A search of one query or many.

    The queries are those of a `SearchRequest`, or `rows` with other options.
    """

    def __init__(
        self,
        collection: Collection,
        encoder: InputEncoder,
        limits: Limits,
        request: SearchOptions,
        rows: NDArray[np.float32] | None = None,
    ) -> None:
        self._collection, self._store = collection, collection.store
        self._encoder, self._limits, self._request = encoder, limits, request
        self._rows = rows
        self._k = 10 if request.k is None else request.k
        self._where = None if request.where is None else check_where(request.where)

    def answer(self) -> dict[str, Any] | None:
        """Return the response; None if the query is an id that does not exist."""
        request, k = self._request, self._k
        if k > self._limits.k:
            raise ValueError(f"k must be at most {self._limits.k}: got {k}")
        self._check_scoring()
        try:
            if isinstance(request, SearchRequest):
                query, is_single = self._query_of(request), request.is_single
            else:
                assert self._rows is not None
                self._limits.check_batch(len(self._rows), "vectors")
                query = self._collection.query(self._rows, scoring=request.scoring)
                is_single = False
        except KeyError:  # an id that does not exist
            return None
        n_queries = len(query)
        n_candidates = k * (request.rerank or 1)
        if request.radius is None and n_queries * n_candidates > self._limits.found:
            raise ValueError(
                f"a request may return or rerank at most {self._limits.found:,} items: got "
                f"{n_queries} queries for {n_candidates} each. Split the request"
            )
        answers: list[dict[str, Any]] = []
        size = max(1, n_queries) if request.radius is None else _RADIUS_QUERIES
        for start in range(0, n_queries, size):
            answers += self._answers(query.part(slice(start, start + size)), n_queries)
        return answers[0] if is_single else {"searches": answers}

    def _check_scoring(self) -> None:
        """Raise ValueError for an implicit Hamming search of asymmetric codes."""
        request = self._request
        needs_hamming = [
            name
            for name in ("radius", "prefix", "histogram")
            if getattr(request, name) not in (None, False)
        ]
        scoring = request.scoring or self._collection.model.scoring
        if needs_hamming and scoring == "asymmetric":
            raise ValueError(
                f"{needs_hamming[0]} compares codes by Hamming distance, but the codes of this "
                "model are designed for asymmetric search. Omit it, or pass scoring: hamming"
            )

    def _query_of(self, request: SearchRequest) -> Query:
        collection, scoring = self._collection, request.scoring
        if request.id is not None:
            return collection.query(ids=[request.id], scoring=scoring)
        if request.code is not None or request.codes is not None:
            given = request.codes if request.code is None else [request.code]
            self._limits.check_batch(len(given or []), "codes")
            codes = from_hex(given or [], self._store.n_bits)
            return collection.query(codes=codes, scoring=scoring)
        if request.text is not None or request.texts is not None:
            texts = request.texts if request.text is None else [request.text]
            self._limits.check_batch(len(texts or []), "texts")
            return collection.query(texts=texts, scoring=scoring)
        if request.image is not None:
            rows = self._encoder.image_features(request.image)
        else:
            vectors = request.vectors if request.vector is None else [request.vector]
            self._limits.check_batch(len(vectors or []), "vectors")
            rows = self._encoder.rows(vectors or [])
        return collection.query(rows, scoring=scoring)

    def _answers(self, query: Query, n_queries: int) -> list[dict[str, Any]]:
        """Search. Without snapshots, repeat queries whose results changed meanwhile."""
        request = self._request
        answers: list[dict[str, Any]] = [{}] * len(query)
        left = np.arange(len(query))
        for _ in range(_RETRIES):
            some = query.part(left)
            with self._store.snapshot() as now:
                seen = (
                    now
                    if request.prefix is None
                    else PrefixSnapshot(now, request.prefix, self._limits)
                )
                found = self._found(seen, some, n_queries)
                if not request.items:
                    return self._answered(found, now.named(found.results), None, some)
                items = now._items_of(np.unique(found.results.ids))
            is_valid = self._unchanged(found.results, items, some)
            done, found = left[is_valid], found.select_queries(is_valid)
            shown = self._answered(found, found.results, items, query.part(done))
            for i, answer in zip(done, shown, strict=True):
                answers[i] = answer
            left = left[~is_valid]
            if not len(left):
                return answers
        raise UnavailableError("the results are being overwritten: retry later")

    def _found(self, store: Snapshot, query: Query, n_queries: int) -> ResultPage:
        """Search a snapshot."""
        request, k = self._request, self._k
        histogram = None
        size: Any
        first, size = request.offset, request.limit or k
        if request.histogram:
            self._limits.check_histogram(store._count(self._where))
        elif request.radius is None:
            near = self._collection.find(store, query, k, self._where, request.rerank)
            totals = np.full(len(query), min(k, near.ids.shape[1]))
            return ResultPage(near.flatten().page(first, size), totals, None)
        # A histogram needs all distances, which also contain the results.
        reach = store.n_bits if request.histogram else request.radius or 0
        near = _within(store, query, min(reach, store.n_bits), self._where)
        if request.histogram:
            histogram = np.bincount(near.distances, minlength=store.n_bits + 1).tolist()
        n_found = totals = near.counts
        if request.radius is None:
            n_found, totals = np.minimum(n_found, k), np.minimum(totals, k)
        else:
            if request.histogram:
                totals = np.array([np.searchsorted(near.distances, request.radius, side="right")])
                n_found = totals
            max_size = min(self._limits.results, max(1, self._limits.found // n_queries))
            size = min(request.limit or max_size, max_size)
        return ResultPage(near.page(first, np.clip(n_found - first, 0, size)), totals, histogram)

    def _answered(
        self, found: ResultPage, results: SearchResult, items: Items | None, query: Query
    ) -> list[dict[str, Any]]:
        """Return one response per query, with codes and metadata if items are given."""
        distances = results.distances.tolist()
        if items is None:
            hits = [
                {"id": i, "distance": d}
                for i, d in zip(results.ids.tolist(), distances, strict=True)
            ]
        else:
            known = described(named_items(items, self._store.id_type), self._store.n_bits)
            positions = np.searchsorted(items.ids, results.ids).tolist()
            hits = [known[p] | {"distance": d} for p, d in zip(positions, distances, strict=True)]
        if results.scores is not None:
            for hit, score in zip(hits, results.scores.tolist(), strict=True):
                hit["score"] = score
        ends = np.cumsum(results.counts).tolist()
        begins = [0, *ends][:-1]
        codes: list[str] | list[None] = [None] * len(query)
        if query.codes is not None:
            codes = to_hex(query.codes, self._store.n_bits)
        answers: list[dict[str, Any]] = [
            {"code": code, "results": hits[begin:end], "total": total}
            for code, begin, end, total in zip(
                codes, begins, ends, found.totals.tolist(), strict=True
            )
        ]
        if found.histogram is not None:
            answers[0]["histogram"] = found.histogram
        return answers

    def _unchanged(self, found: SearchResult, items: Items, some: Query) -> NDArray[np.bool_]:
        """Return for each query whether the fetched items still agree with its results."""
        is_valid = np.ones(len(some), np.bool_)
        if not len(found.ids):
            return is_valid
        query = np.repeat(np.arange(len(some)), found.counts)
        if not len(items.ids):
            is_valid[query] = False
            return is_valid
        matching = [self._where is None or matches(self._where, one) for one in items.metadata]
        positions = np.minimum(np.searchsorted(items.ids, found.ids), len(items.ids) - 1)
        same = (items.ids[positions] == found.ids) & np.array(matching)[positions]
        if some.codes is not None:
            width = some.codes.shape[1]
            compared = prefix_mask(self._request.prefix or self._store.n_bits, width)
            differing = (items.codes[positions] ^ some.codes[query]) & compared
            same &= np.bitwise_count(differing).sum(axis=1) == found.distances
        is_valid[query[~same]] = False
        return is_valid


def _within(store: Snapshot, query: Query, r: int, where: Where | None) -> SearchResult:
    """Return the items at Hamming distance ≤ r of each query, without those it excludes."""
    assert query.codes is not None
    found = store._radius(query.codes, r, where)
    if query.excluded is None:
        return found
    return found.select(found.ids != np.repeat(query.excluded, found.counts))


def named_items(items: Items, id_type: str) -> Items:
    """Return items with the ids of the store in the place of integer ids."""
    if id_type == "int64":
        return items
    return items._replace(ids=as_keys(take_key(fields) for fields in items.metadata))


def described(items: Items, n_bits: int) -> list[dict[str, Any]]:
    """Return items in the form of a response."""
    return [
        {"id": number, "code": code, "metadata": metadata}
        for number, code, metadata in zip(
            items.ids.tolist(), to_hex(items.codes, n_bits), items.metadata, strict=True
        )
    ]


def check_where(where: Mapping[str, Any]) -> Where:
    """Return a filter; raise ValueError, with a message that starts with `where`, if invalid."""
    try:
        return parse_where(where)
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
        self.id_type = whole.id_type
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

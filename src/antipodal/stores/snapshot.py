"""The read interface of stores and snapshots: items, k-NN and radius searches.

Arguments are checked here; an engine implements the methods with a leading underscore. A search
that needs several reads, such as the codes of candidates for reranking, uses one snapshot.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import Codes, check_codes, code_width
from antipodal.errors import StoreError
from antipodal.index import SearchResult
from antipodal.index.asymmetric import Floats, check_codes_or_vectors, check_values
from antipodal.index.rerank import OVERSAMPLE, Vectors, rerank
from antipodal.stores.filters import Where, parse_where
from antipodal.stores.items import IdType, as_keys, check_unique_ids, take_key
from antipodal.validation import Ids, check_whole

NO_APPROXIMATE = "only stores in PostgreSQL can have one, others are searched exactly"


class Items(NamedTuple):
    """Stored items: ids (n,), codes (n, ⌈n_bits / 8⌉) and a list of n metadata objects.

    Ids are int64, or an array of strings in a store of string ids.
    """

    ids: NDArray[Any]
    codes: Codes
    metadata: list[dict[str, Any]]


class ItemBatch(NamedTuple):
    """A batch of stored items as in the engine, with metadata as JSON text.

    Ids are integers in every store; string ids are in the field ``$id`` of the metadata. `vectors`
    are the kept vectors by integer id, if they were requested.
    """

    ids: Ids
    codes: Codes
    texts: list[str]
    vectors: Mapping[int, bytes] = MappingProxyType({})

    def kept(self) -> tuple[Ids, list[bytes]]:
        """Return the ids of the items with a vector, and their vectors."""
        kept = {
            number: self.vectors[number] for number in self.ids.tolist() if number in self.vectors
        }
        return np.array(list(kept), np.int64), list(kept.values())


def with_vectors(
    batches: Iterator[ItemBatch], kept_vectors: Callable[[Ids], Mapping[int, bytes]]
) -> Iterator[ItemBatch]:
    """Yield batches with the kept vectors of their items."""
    return (batch._replace(vectors=kept_vectors(batch.ids)) for batch in batches)


class Reader(ABC):
    """The reading methods of a store and of its snapshots."""

    place: str
    n_bits: int
    id_type: IdType = "int64"

    @abstractmethod
    def snapshot(self) -> AbstractContextManager["Snapshot"]:
        """Return a snapshot as a context manager; later writes are invisible to it.

        A snapshot has `get`, `search`, `radius` and `count`, must be used by one thread at a time,
        and ends with the block. Milvus has no snapshots: there, later writes are visible.
        """

    def get(self, ids: ArrayLike) -> Items:
        """Return the items with these ids, in the order given, without unknown ids."""
        given = check_unique_ids(ids, self.id_type)
        self._check_open()
        if self.id_type == "int64":
            return self._items_of(given)
        numbers = self._numbers_of(given.tolist()) if len(given) else {}
        found = self._items_of(np.array(sorted(numbers.values()), np.int64))
        by_key = {take_key(metadata): i for i, metadata in enumerate(found.metadata)}
        order = [by_key[key] for key in given.tolist() if key in by_key]
        metadata = [found.metadata[i] for i in order]
        return Items(as_keys(key for key in given if key in by_key), found.codes[order], metadata)

    def _items_of(self, numbers: Ids) -> Items:
        """Return the items with these integer ids, with all their metadata."""
        found = self._get(numbers) if len(numbers) else {}
        known = [number for number in numbers.tolist() if number in found]
        codes = b"".join(found[number][0] for number in known)
        return Items(
            np.array(known, np.int64),
            np.frombuffer(codes, np.uint8).reshape(-1, code_width(self.n_bits)).copy(),
            [found[number][1] for number in known],
        )

    def search(
        self,
        codes: ArrayLike | None = None,
        k: int = 10,
        *,
        vectors: ArrayLike | None = None,
        where: Mapping[str, Any] | None = None,
        rescore: Vectors | ArrayLike | None = None,
        oversample: int = OVERSAMPLE,
        exact: bool = True,
    ) -> SearchResult:
        """Return the k nearest items of each query, among the items that match a filter.

        `codes`, `vectors`, `rescore` and `oversample` are as in `HammingIndex.search`.

        Parameters
        ----------
        where : mapping, optional
            Metadata filter.
        exact : bool
            Pass False to use the approximate index of `Store.prepare_approximate`, which may miss
            items; `Store.recall` measures the recall.

        Returns
        -------
        SearchResult
            `ids` (n_queries, min(k, n_items)) and `distances` int32, each row ordered by
            (distance, id), or by (score, id) with `vectors` or `rescore`. String ids are ordered
            in the order of insertion.
        """
        check_whole(k, "k", 1)
        check_whole(oversample, "oversample", 1)
        check_codes_or_vectors(codes, vectors)
        if not exact and vectors is not None:
            raise ValueError("exact=False needs codes: vectors are always compared with every item")
        tree = None if where is None else parse_where(where)
        n_candidates = int(k) if rescore is None else int(k) * int(oversample)
        queries = None if codes is None else check_codes(codes, self.n_bits)
        values = None if vectors is None else check_values(vectors, "vectors", self.n_bits)
        with self.snapshot() as now:
            if values is not None:
                found = now._asymmetric(values, n_candidates, tree)
            else:
                assert queries is not None
                search = now._search if exact else now._search_approximate
                found = search(queries, n_candidates, tree)
            if rescore is not None:
                found = rerank(
                    found, int(k), rescore, self.n_bits, lambda: now._codes_of(found.ids)
                )
            return now.named(found)

    def radius(
        self, codes: ArrayLike, r: int, *, where: Mapping[str, Any] | None = None
    ) -> SearchResult:
        """Return all items at distance ≤ r of each query among those that match a filter.

        Returns
        -------
        SearchResult
            The items of query i are at ``offsets[i]:offsets[i + 1]`` of `ids` and `distances`,
            ordered by (distance, id).
        """
        check_whole(r, "r", 0)
        queries = check_codes(codes, self.n_bits)
        tree = None if where is None else parse_where(where)
        with self.snapshot() as now:
            return now.named(now._radius(queries, min(int(r), self.n_bits), tree))

    def count(self, where: Mapping[str, Any] | None = None) -> int:
        """Return the number of items, or of those that match a filter."""
        tree = None if where is None else parse_where(where)
        with self.snapshot() as now:
            return now._count(tree)

    @abstractmethod
    def _check_open(self) -> None:
        """Raise StoreError if it is closed."""

    @abstractmethod
    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]: ...

    def _numbers_of(self, keys: Sequence[str]) -> dict[str, int]:
        """Return the integer ids of the existing string ids."""
        raise StoreError(f"{self.place} has no string ids")


class Snapshot(Reader):
    """A consistent view of a store, created and closed by `Store.snapshot`."""

    is_closed = False
    version: int | None = None  # unique to this state of the store, in engines with versions

    def snapshot(self) -> AbstractContextManager[Self]:
        """Return this snapshot, which does not change."""
        self._check_open()
        return nullcontext(self)

    def _check_open(self) -> None:
        if self.is_closed:
            raise StoreError(f"{self.place}: this snapshot is closed. Use it within its block")

    @abstractmethod
    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items in batches."""

    def changes_since(self, version: int) -> tuple[int, Ids | None] | None:
        """Return the version of the items, and the ids changed since another version.

        The ids are None if any item may have changed. An engine without versions returns None.
        """
        return None

    def all_codes(self) -> tuple[Ids, Codes]:
        """Return all ids, increasing, and their codes."""
        parts = [(batch.ids, batch.codes) for batch in self.batches()]
        none = np.empty(0, np.int64), np.empty((0, code_width(self.n_bits)), np.uint8)
        ids, codes = (np.concatenate(some) for some in zip(none, *parts, strict=True))
        order = np.argsort(ids)
        return ids[order], codes[order]

    def named(self, found: SearchResult) -> SearchResult:
        """Return a result with the ids of the store in the place of integer ids."""
        if self.id_type == "int64":
            return found
        unique, positions = np.unique(found.ids, return_inverse=True)
        keys = self._keys_of(unique)
        if len(keys) < len(unique):  # in an engine without snapshots
            raise StoreError(f"{self.place}: items were deleted during the search. Search again")
        ids = as_keys(keys[number] for number in unique.tolist())
        return found.with_ids(ids[positions.reshape(found.ids.shape)])

    def _keys_of(self, ids: Ids) -> dict[int, str]:
        """Return the string ids of items."""
        return {number: take_key(metadata) for number, (_, metadata) in self._get(ids).items()}

    def kept_vectors(self, ids: Ids) -> dict[int, bytes]:
        """Return the stored vectors of items by integer id, without items that have none."""
        raise StoreError(f"{self.place} cannot keep vectors: use SQLite or PostgreSQL")

    @abstractmethod
    def _search(self, codes: Codes, k: int, where: Where | None) -> SearchResult:
        """Return the k nearest items of each code, with integer ids."""

    def _search_approximate(self, codes: Codes, k: int, where: Where | None) -> SearchResult:
        """Search the approximate index, in an engine that has one."""
        raise StoreError(f"{self.place} has no approximate index: {NO_APPROXIMATE}")

    @abstractmethod
    def _radius(self, codes: Codes, r: int, where: Where | None) -> SearchResult: ...

    @abstractmethod
    def _count(self, where: Where | None) -> int: ...

    def _asymmetric(self, values: Floats, k: int, where: Where | None) -> SearchResult:
        """Return the k items with the highest scores for each float query, with integer ids."""
        raise StoreError(f"{self.place} cannot be searched by vectors: pass codes")

    def _codes_of(self, ids: Ids) -> Codes:
        """Return the codes of items found by a search, in the shape of their ids."""
        unique, positions = np.unique(ids, return_inverse=True)
        codes = self._items_of(unique).codes
        if len(codes) < len(unique):  # in an engine without snapshots
            raise StoreError(f"{self.place}: items were deleted during the search. Search again")
        return codes[positions.reshape(ids.shape)]

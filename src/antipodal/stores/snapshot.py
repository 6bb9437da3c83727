"""What is asked of a store: its items, neighbours and balls, of whatever moment.

Both a store and a snapshot of it are asked the same. What needs more than one look, such as the
codes of the items that a search has found, is looked up in one snapshot, so that an answer is of
one moment. Arguments are checked here, once; an engine implements the methods with an underscore.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from antipodal.codes import Codes, check_codes, code_width
from antipodal.errors import StoreError
from antipodal.index import Ball, HammingIndex, Neighbours
from antipodal.index.asymmetric import Floats, check_one, check_values
from antipodal.index.rerank import OVERSAMPLE, Vectors, rescored
from antipodal.stores.filters import Where, parse_where
from antipodal.stores.loading import BATCH_SIZE, check_different
from antipodal.validation import Ids, check_whole

NO_APPROXIMATE = "only stores in PostgreSQL can have one, others are searched exactly"


class Items(NamedTuple):
    """Items as they are kept: ids (n,), codes (n, ⌈n_bits / 8⌉) and n metadata."""

    ids: Ids
    codes: Codes
    metadata: list[dict[str, Any]]


class ItemBatch(NamedTuple):
    """Some of the items, each with its metadata as the JSON text that is kept."""

    ids: Ids
    codes: Codes
    texts: list[str]


class Reader(ABC):
    """What a store and a snapshot of it answer."""

    place: str
    n_bits: int

    @abstractmethod
    def snapshot(self) -> AbstractContextManager["Snapshot"]:
        """Give the store as it is now: whatever is written meanwhile is not seen in it.

        It has `get`, `search`, `radius` and `count`, is for one thread, and ends with the block.
        A store in Milvus has no snapshots: there, writes between two questions are seen.
        """

    def get(self, ids: ArrayLike) -> Items:
        """Return the items with these ids, in this order; ids that are not there are left out."""
        numbers = check_different(ids)
        self._check_open()
        found = self._get(numbers) if len(numbers) else {}
        kept = [number for number in numbers.tolist() if number in found]
        codes = b"".join(found[number][0] for number in kept)
        return Items(
            np.array(kept, np.int64),
            np.frombuffer(codes, np.uint8).reshape(-1, code_width(self.n_bits)).copy(),
            [found[number][1] for number in kept],
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
    ) -> Neighbours:
        """Return the k nearest items of each code, among those that pass the filter.

        With `rescore` the ``k * oversample`` nearest are put into a finer order, of which the k
        best are returned. With `vectors` in place of codes, ``hasher.query(queries)``, every item
        is scored by these real values. Of both, see `HammingIndex.search`.

        With ``exact=False`` the approximate index that `Store.prepare_approximate` made is asked.
        It may miss items; `Store.recall` measures how many.

        Returns
        -------
        Neighbours
            `ids` (queries × min(k, items)) int64 and `distances` int32, each row ordered by
            (distance, id), or by (score, id) with `vectors` or `rescore`.
        """
        check_whole(k, "k", 1)
        check_whole(oversample, "oversample", 1)
        check_one(codes, vectors)
        if not exact and vectors is not None:
            raise ValueError("exact=False is for codes: real values are compared with every item")
        tree = None if where is None else parse_where(where)
        n_wanted = int(k) if rescore is None else int(k) * int(oversample)
        queries = None if codes is None else check_codes(codes, self.n_bits)
        values = None if vectors is None else check_values(vectors, "vectors", self.n_bits)
        with self.snapshot() as now:
            if queries is not None:
                ask = now._search if exact else now._search_approximately
                found = ask(queries, n_wanted, tree)
            else:
                found = now._best(values, n_wanted, tree)  # type: ignore[arg-type]
            if rescore is None:
                return found
            return rescored(found, int(k), rescore, self.n_bits, lambda: now._codes_of(found.ids))

    def radius(self, codes: ArrayLike, r: int, *, where: Mapping[str, Any] | None = None) -> Ball:
        """Return all items within distance r of each code, r included, that pass the filter.

        Returns
        -------
        Ball
            Those of query i are `ids[offsets[i]:offsets[i + 1]]`, with their `distances`, ordered
            by (distance, id).
        """
        check_whole(r, "r", 0)
        queries = check_codes(codes, self.n_bits)
        tree = None if where is None else parse_where(where)
        with self.snapshot() as now:
            return now._radius(queries, min(int(r), self.n_bits), tree)

    def count(self, where: Mapping[str, Any] | None = None) -> int:
        """Return the number of items, or of those that pass the filter."""
        tree = None if where is None else parse_where(where)
        with self.snapshot() as now:
            return now._count(tree)

    @abstractmethod
    def _check_open(self) -> None:
        """Raise StoreError if it cannot be asked any more."""

    @abstractmethod
    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]: ...


class Snapshot(Reader):
    """A store at one moment, made by `Store.snapshot`, which ends it."""

    is_over = False
    version: int | None = None  # a number that no other state has, in an engine that counts them

    def snapshot(self) -> AbstractContextManager[Self]:
        """Give this very snapshot: it does not change."""
        self._check_open()
        return nullcontext(self)

    def _check_open(self) -> None:
        if self.is_over:
            raise StoreError(f"{self.place}: this snapshot is over: ask within its block")

    @abstractmethod
    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items, some at a time."""

    def all_codes(self) -> tuple[Ids, Codes]:
        """Return all ids, increasing, and their codes."""
        parts = [(batch.ids, batch.codes) for batch in self.batches()]
        none = np.empty(0, np.int64), np.empty((0, code_width(self.n_bits)), np.uint8)
        ids, codes = (np.concatenate(some) for some in zip(none, *parts, strict=True))
        order = np.argsort(ids)
        return ids[order], codes[order]

    @abstractmethod
    def _search(self, codes: Codes, k: int, where: Where | None) -> Neighbours: ...

    def _search_approximately(self, codes: Codes, k: int, where: Where | None) -> Neighbours:
        """Search an index that may miss items, in an engine that has one."""
        raise StoreError(f"{self.place} has no approximate index: {NO_APPROXIMATE}")

    @abstractmethod
    def _radius(self, codes: Codes, r: int, where: Where | None) -> Ball: ...

    @abstractmethod
    def _count(self, where: Where | None) -> int: ...

    def _best(self, values: Floats, k: int, where: Where | None) -> Neighbours:
        """Score every item by real values. Engines know nothing of that: all codes are fetched."""
        nowhere = np.zeros((1, code_width(self.n_bits)), np.uint8)
        ids = np.sort(self._radius(nowhere, self.n_bits, where).ids)
        index = HammingIndex(self.n_bits)
        for start in range(0, len(ids), BATCH_SIZE):
            items = self.get(ids[start : start + BATCH_SIZE])
            index.add(items.codes, items.ids)
        return index.search(vectors=values, k=k)

    def _codes_of(self, ids: Ids) -> Codes:
        """Return the codes of items just found, in the shape of their ids."""
        kept, places = np.unique(ids, return_inverse=True)
        codes = self.get(kept).codes
        if len(codes) < len(kept):  # in an engine without snapshots
            raise StoreError(f"{self.place}: items were deleted during the search: search again")
        return codes[places.reshape(ids.shape)]

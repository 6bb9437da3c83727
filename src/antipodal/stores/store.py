"""The contract of every store: what it keeps, what it answers, and what it refuses.

A store keeps items: an id, a code, and metadata, a JSON object. Public methods check their
arguments here, once; an engine implements the methods with an underscore.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.checks import Ids, check_ids, check_whole
from antipodal.codes import Codes, check_codes, code_width
from antipodal.errors import StoreError
from antipodal.index import Ball, Neighbours
from antipodal.index.rescore import Vectors, projection_scores
from antipodal.stores.metadata import metadata_texts
from antipodal.stores.where import Where, parse_where

Distances: TypeAlias = NDArray[np.int32]
ItemHits: TypeAlias = list[tuple[Ids, Distances]]  # of each query, ordered by (distance, id)


class Items(NamedTuple):
    """Items as they are kept: ids (n,), codes (n, ⌈n_bits / 8⌉) and n metadata."""

    ids: Ids
    codes: Codes
    metadata: list[dict[str, Any]]


class About(NamedTuple):
    """What a store says of its codes: how long they are, and which model made them."""

    n_bits: int
    model: str | None

    @classmethod
    def of_new(cls, place: str, n_bits: int | None, model: str | None) -> Self:
        """Return what a store that is about to be made will say."""
        if n_bits is None:
            raise StoreError(f"there is no store at {place}: pass n_bits to make one")
        return cls(n_bits, model)

    def agree(self, place: str, n_bits: int | None, model: str | None) -> None:
        """Refuse to be opened for codes of another length or of another model."""
        if n_bits not in (None, self.n_bits):
            raise StoreError(
                f"{place} keeps codes of {self.n_bits} bits: it cannot be opened with "
                f"n_bits={n_bits}. Were these codes made by another model?"
            )
        if model not in (None, self.model):
            kept = "no model's identity" if self.model is None else f"codes of model {self.model!r}"
            raise StoreError(
                f"{place} keeps {kept}: it cannot be opened for model {model!r}. Codes of "
                "different models cannot be compared: keep them in stores of their own"
            )


class Store(ABC):
    """Items in a durable engine, searched exactly by Hamming distance.

    Every engine gives the same ids in the same order: by distance, and by id where distances are
    equal, also at the k-th place. Use it as a context manager, or call `close`.
    """

    place: str
    n_bits: int
    model: str | None

    def upsert(
        self,
        ids: ArrayLike,
        codes: ArrayLike,
        metadata: Iterable[Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Keep these items, in the place of those that have the same ids.

        When it returns the items are durable. An item without metadata has the object {}.
        """
        packed = check_codes(codes, self.n_bits)
        numbers = _check_different(ids)
        if len(numbers) != len(packed):
            raise ValueError(
                f"there must be one id a code: got {len(numbers)} ids for {len(packed)} codes"
            )
        texts = metadata_texts(metadata, len(packed))
        if len(packed):
            self._upsert(numbers, packed, texts)

    def load(
        self,
        ids: ArrayLike,
        codes: ArrayLike,
        metadata: Iterable[Mapping[str, Any] | None] | None = None,
        *,
        batch_size: int = 50_000,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Upsert many items in batches, each durable when `progress` gets the number done.

        Arrays may be memory-mapped and metadata an iterator: only one batch is in memory. A load
        that was interrupted at `done` items goes on with ids[done:], codes[done:] and the rest of
        the metadata; items that are loaded twice are there once.
        """
        check_whole(batch_size, "batch_size", 1)
        numbers, packed = np.asanyarray(ids), np.asanyarray(codes)
        if numbers.shape != packed.shape[:1]:
            raise ValueError(
                f"there must be one id a code: got {numbers.shape} for {packed.shape[:1]}"
            )
        rest = None if metadata is None else iter(metadata)
        for start in range(0, len(packed), batch_size):
            part = slice(start, min(start + batch_size, len(packed)))
            of_part = None if rest is None else list(islice(rest, part.stop - start))
            self.upsert(numbers[part], packed[part], of_part)
            if progress is not None:
                progress(part.stop)

    def delete(self, ids: ArrayLike) -> int:
        """Remove the items with these ids and return how many there were."""
        numbers = _check_different(ids)
        return self._delete(numbers) if len(numbers) else 0

    def get(self, ids: ArrayLike) -> Items:
        """Return the items with these ids, in this order; ids that are not there are left out."""
        numbers = _check_different(ids)
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
        codes: ArrayLike,
        k: int,
        *,
        where: Mapping[str, Any] | None = None,
        rescore: Vectors | ArrayLike | None = None,
        oversample: int = 4,
    ) -> Neighbours:
        """Return the k nearest items of each code, among those that pass the filter.

        With `rescore` the ``k * oversample`` nearest are put into a finer order, of which the k
        best are returned: see `HammingIndex.search`.

        Returns
        -------
        Neighbours
            `ids` (queries × min(k, items)) int64 and `distances` int32, each row ordered by
            (distance, id), or by (score, id) with `rescore`.
        """
        check_whole(k, "k", 1)
        check_whole(oversample, "oversample", 1)
        queries = check_codes(codes, self.n_bits)
        tree = None if where is None else parse_where(where)
        if rescore is None:
            return self._search(queries, int(k), tree)
        found = self._search(queries, int(k) * int(oversample), tree)
        if isinstance(rescore, Vectors):
            scores = rescore.scores(found.ids)
        else:
            scores = projection_scores(rescore, self._codes_of(found.ids), self.n_bits)
        return found.rescored(scores, int(k))

    def _codes_of(self, ids: Ids) -> Codes:
        """Return the codes of items just found, in the shape of their ids."""
        kept, places = np.unique(ids, return_inverse=True)
        codes = self.get(kept).codes
        if len(codes) < len(kept):
            raise StoreError(f"{self.place}: items were deleted during the search: search again")
        return codes[places.reshape(ids.shape)]

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
        return self._radius(queries, min(int(r), self.n_bits), tree)

    def count(self, where: Mapping[str, Any] | None = None) -> int:
        """Return the number of items, or of those that pass the filter."""
        return self._count(None if where is None else parse_where(where))

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections; closing twice is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def _upsert(self, ids: Ids, codes: Codes, metadata: list[str]) -> None: ...

    @abstractmethod
    def _delete(self, ids: Ids) -> int: ...

    @abstractmethod
    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]: ...

    @abstractmethod
    def _search(self, codes: Codes, k: int, where: Where | None) -> Neighbours: ...

    @abstractmethod
    def _radius(self, codes: Codes, r: int, where: Where | None) -> Ball: ...

    @abstractmethod
    def _count(self, where: Where | None) -> int: ...


def _check_different(ids: ArrayLike) -> Ids:
    numbers = check_ids(ids)
    ordered = np.sort(numbers)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise ValueError(f"ids must be different: {repeated[0]} comes more than once")
    return numbers


def by_distance_and_id(ids: Ids, distances: Distances) -> tuple[Ids, Distances]:
    """Sort one query's hits."""
    order = np.lexsort((ids, distances))
    return ids[order], distances[order]


def nearest(hits: ItemHits) -> Neighbours:
    """Join hits of equal number into the table that `search` returns."""
    shape = (len(hits), len(hits[0][0]) if hits else 0)
    ids = np.array([i for i, _ in hits], np.int64).reshape(shape)
    distances = np.array([d for _, d in hits], np.int32).reshape(shape)
    return Neighbours(ids, distances)


def within(hits: ItemHits) -> Ball:
    """Join the hits of each query into the lists that `radius` returns."""
    offsets = np.zeros(len(hits) + 1, np.int64)
    np.cumsum([len(ids) for ids, _ in hits], out=offsets[1:])
    return Ball(
        offsets,
        np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in hits)]),
        np.concatenate([np.empty(0, np.int32), *(distances for _, distances in hits)]),
    )

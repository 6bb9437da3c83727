"""The contract of every store: stored items, validation, transactions."""

import os
import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal import __version__
from antipodal.codes import Codes, check_codes
from antipodal.errors import IdsTakenError, NoStoreError, StoreError
from antipodal.index.scan import MAX_BITS
from antipodal.stores.loading import (
    BATCH_SIZE,
    Loaded,
    batches,
    batches_of_texts,
    check_different,
    check_items,
    check_length,
)
from antipodal.stores.metadata import Metadata, metadata_texts, same_metadata
from antipodal.stores.snapshot import NO_APPROXIMATE, ItemBatch, Reader
from antipodal.validation import MAX_ID, Ids, check_whole, some_ids


class About(NamedTuple):
    """What is kept beside the items, and never changes.

    The identity is drawn when a store is made: copies and backups of a store share it, any two
    others differ. `antipodal` is the version that made the store. Where either was not kept yet, it
    is None.
    """

    n_bits: int
    model: str | None
    identity: str | None = None
    antipodal: str | None = None

    @classmethod
    def of_new(cls, place: str, n_bits: int | None, model: str | None) -> Self:
        """Return what a store that is about to be made will say."""
        if n_bits is None:
            raise NoStoreError(place)
        if n_bits > MAX_BITS:
            raise ValueError(f"n_bits must be at most {MAX_BITS}: got {n_bits}")
        return cls(n_bits, model, secrets.token_hex(16), __version__)

    @classmethod
    def of_header(cls, header: Any) -> Self:
        """Return what a header, as JSON has it, says; raise ValueError if no store says so."""
        if not isinstance(header, dict):
            raise ValueError(f"its header is no object: got {type(header).__name__}")
        n_bits, *texts = (header.get(name) for name in cls._fields)
        if type(n_bits) is not int or not 1 <= n_bits <= MAX_BITS:
            raise ValueError(f"it must say how many bits its codes have, 1 to {MAX_BITS}")
        if not all(text is None or isinstance(text, str) for text in texts):
            raise ValueError("the names of its model, of itself and of its version must be text")
        return cls(n_bits, *texts)

    def agree(self, place: str, n_bits: int | None, model: str | None) -> None:
        """Refuse to be opened for codes of another length or of another model."""
        if n_bits not in (None, self.n_bits):
            raise StoreError(
                f"{place} keeps codes of {self.n_bits} bits: it cannot be opened for codes of "
                f"{n_bits}. Were these codes made by another model?"
            )
        if model not in (None, self.model):
            kept = "no model's identity" if self.model is None else f"codes of model {self.model!r}"
            raise StoreError(
                f"{place} keeps {kept}: it cannot be opened for model {model!r}. Codes of "
                "different models cannot be compared: keep them in stores of their own"
            )


class Store(Reader):
    """Items in a durable engine, searched exactly by Hamming distance.

    Every engine gives the same ids in the same order: by distance, and by id where distances are
    equal, also at the k-th place. Use it as a context manager, or call `close`.
    """

    model: str | None
    read_only = False

    def own_files(self) -> list[Path]:
        """Return the paths of all files that the store consists of, none if it is on a server.

        Files that SQLite creates only when needed are included.
        """
        return []

    def check_not_own_file(self, path: str | os.PathLike[str]) -> None:
        """Raise StoreError if `path` is one of the store's files, also by way of links."""
        for own in self.own_files():
            same = os.path.realpath(own) == os.path.realpath(path)
            if same or (os.path.exists(own) and os.path.exists(path) and own.samefile(path)):
                raise StoreError(
                    f"cannot write to {path}: expected another file than those of the store, got "
                    f"{own}, which is part of {self.place}. A store cannot be backed up, exported, "
                    "copied or restored to itself"
                )

    def upsert(
        self,
        ids: ArrayLike,
        codes: ArrayLike,
        metadata: Metadata | None = None,
        *,
        keep_metadata: bool = False,
    ) -> None:
        """Keep these items, in the place of those that have the same ids.

        When it returns the items are durable. An item without metadata has the object {}; with
        `keep_metadata` and no metadata, an item that was there keeps its own.
        """
        self._check_may_write()
        numbers, given = check_items(ids, codes, self.n_bits)
        packed = np.ascontiguousarray(given)
        texts = metadata_texts(metadata, len(packed))
        _check_keeping(keep_metadata, metadata)
        if len(packed) and numbers is not None:
            self._put(numbers, packed, None if keep_metadata else texts, replace=True)

    def add(
        self,
        codes: ArrayLike,
        ids: ArrayLike | None = None,
        metadata: Metadata | None = None,
    ) -> Ids:
        """Keep new items, each under an id of its own, and return their ids.

        Without ids, they continue after the largest, from 0. When it returns the items are
        durable.

        Raises
        ------
        IdsTakenError
            A ValueError: there are items with some of these ids. Nothing has changed.
        """
        self._check_may_write()
        numbers, given = check_items(ids, codes, self.n_bits)
        packed = np.ascontiguousarray(given)
        texts = metadata_texts(metadata, len(packed))
        if numbers is None:
            return self._append(packed, texts, len(packed))
        if len(packed):
            self._put(numbers, packed, texts, replace=False)
        return numbers

    def load(
        self,
        ids: ArrayLike | None,
        codes: ArrayLike,
        metadata: Metadata | None = None,
        *,
        replace: bool = True,
        resume: bool = False,
        keep_metadata: bool = False,
        batch_size: int = BATCH_SIZE,
        progress: Callable[[int], None] | None = None,
    ) -> Loaded:
        """Keep many items in batches, each durable when `progress` gets the number done.

        Codes may be memory-mapped and metadata an iterator: only one batch is in memory. Ids and
        codes are checked before anything is written.

        Parameters
        ----------
        ids : integers (n,) or None
            Without ids, they continue after the largest.
        codes : uint8 (n, ⌈n_bits / 8⌉)
        metadata : objects, optional
            One per item.
        replace : bool
            Whether items may take the place of those with the same ids. If not, all ids are
            looked up first, and one that is there is an error that changes nothing.
        resume : bool
            Pass over the items that are there as they are given, by their code and, if metadata
            are given, their metadata. Metadata are then read twice: give a list.
        keep_metadata : bool
            Items that are replaced keep the metadata they have; for loads without metadata.

        Raises
        ------
        IdsTakenError
            Without `replace`, for ids that are there (with `resume`, that are there with another
            code or other metadata). Items that another process adds meanwhile are not
            overwritten either; then the batches before them stay.
        """
        self._check_may_write()
        check_whole(batch_size, "batch_size", 1)
        numbers, packed = check_items(ids, codes, self.n_bits)
        check_length(metadata, len(packed))
        _check_keeping(keep_metadata, metadata)
        wanted = np.ones(len(packed), np.bool_)
        if resume:
            if numbers is None:
                raise ValueError("resume needs ids: without them every item is a new one")
            if metadata is not None and iter(metadata) is metadata:
                raise TypeError("resume reads metadata twice: give a list, not an iterator")
            wanted = self._wanted(numbers, packed, metadata, replace, batch_size)
        elif numbers is not None and not replace:
            self._check_new(numbers, batch_size)
        added = replaced = 0
        for part, texts in batches_of_texts(metadata, len(packed), batch_size):
            chosen = wanted[part]
            batch = check_codes(packed[part][chosen], self.n_bits)
            if texts is not None:
                texts = [text for text, is_wanted in zip(texts, chosen, strict=True) if is_wanted]
            elif not keep_metadata:
                texts = ["{}"] * len(batch)
            if numbers is None:
                numbers = self._append(batch, texts or [], len(packed))
            elif len(batch):
                try:
                    replaced += self._put(numbers[part][chosen], batch, texts, replace=replace)
                except IdsTakenError as error:
                    raise IdsTakenError(
                        f"{error} of this batch: another process added them meanwhile. "
                        f"The {part.start:,} items before it are stored"
                    ) from None
            added += len(batch)
            if progress is not None:
                progress(part.stop)
        ids_given = np.empty(0, np.int64) if numbers is None else numbers
        return Loaded(ids_given, added - replaced, replaced, len(packed) - added)

    def prepare_approximate(self, *, memory_mb: int | None = None) -> None:
        """Make the index behind ``search(…, exact=False)``; it is kept up from then on.

        In PostgreSQL that is HNSW, a graph over the codes. Making it can take minutes, during which
        others read, and wait to write. One that is there is left as it is.

        Parameters
        ----------
        memory_mb : int, optional
            What the server may use meanwhile, in place of its `maintenance_work_mem`. Where the
            graph does not fit, making it goes on more slowly.
        """
        raise StoreError(f"{self.place} cannot have an approximate index: {NO_APPROXIMATE}")

    def recall(self, codes: ArrayLike, k: int, *, where: Mapping[str, Any] | None = None) -> float:
        """Measure the share of the k nearest that ``search(…, exact=False)`` finds.

        As in `HammingIndex.recall`, an item counts as found if it is no farther than the k-th
        nearest: which of several items at that distance is returned does not matter.
        """
        with self.snapshot() as now:
            exact = now.search(codes, k, where=where).distances
            found = now.search(codes, k, where=where, exact=False).distances
        if not exact.size:
            raise ValueError("recall needs items in the store and queries")
        return float(np.mean(found <= exact[:, -1:]))

    def next_id(self) -> int:
        """Return the id after the largest, 0 if there are no items."""
        largest = self._largest_id()
        return 0 if largest is None else largest + 1

    def delete(self, ids: ArrayLike) -> int:
        """Remove the items with these ids and return how many there were."""
        self._check_may_write()
        numbers = check_different(ids)
        return self._delete(numbers) if len(numbers) else 0

    @contextmanager
    def item_batches(self) -> Iterator[Callable[[], Iterator[ItemBatch]]]:
        """Give what yields all items as they are now, by id, as often as it is called.

        A batch of them is in memory. Of Milvus, without snapshots, they are of the time it takes.
        """
        with self.snapshot() as now:
            yield now.batches

    def item_count(self) -> int:
        """Count the items, without making ready for a search."""
        return self.count()

    def vacuum(self) -> tuple[int, int]:
        """Clear up what deleted and replaced items took; return the bytes before and now."""
        raise StoreError(f"{self.place} has an engine that clears up by itself, when it sees fit")

    def prepare(self, radius: int = 2) -> None:
        """Make ready now for single `radius` queries up to this radius, and stay so.

        A SQLite store reads its items, if it has not yet, and makes the tables of
        `HammingIndex.prepare`, in memory: they follow changes, and end with `close`. Other
        engines have no such tables: there it does nothing.

        Raises
        ------
        ValueError
            In SQLite, if codes are too short for tables to be faster than a scan at this radius.
        """
        check_whole(radius, "radius", 0)
        self._check_open()
        self._prepare(int(radius))

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

    def _prepare(self, radius: int) -> None:
        """Make tables for small radii, in an engine that has them."""

    def _check_may_write(self) -> None:
        if self.read_only:
            raise StoreError(f"{self.place} is read-only: it was opened so")

    def _append(self, codes: Codes, metadata: list[str], n_ids: int) -> Ids:
        """Keep codes under the first of n_ids new ids after the largest; return all of these."""
        while True:
            first = self.next_id()
            if first + n_ids > MAX_ID + 1:
                raise ValueError(f"no ids are left after {first - 1}: give ids")
            ids = first + np.arange(n_ids, dtype=np.int64)
            try:
                if len(codes):
                    self._put(ids[: len(codes)], codes, metadata, replace=False)
            except IdsTakenError:
                continue  # another writer was faster: there is a new largest
            return ids

    def _check_new(self, ids: Ids, batch_size: int) -> None:
        """Refuse ids that are there."""
        largest = self._largest_id()
        if largest is None or not len(ids) or ids.min() > largest:
            return
        known = [self._known(ids[part]) for part in batches(len(ids), batch_size)]
        self._refuse(np.concatenate(known))

    def _wanted(
        self,
        ids: Ids,
        codes: NDArray[Any],
        metadata: Metadata | None,
        replace: bool,
        batch_size: int,
    ) -> NDArray[np.bool_]:
        """Say of each item whether it is to be written, since it is not there as it is given."""
        wanted = np.ones(len(ids), np.bool_)
        others = [np.empty(0, np.int64)]
        for part, texts in batches_of_texts(metadata, len(ids), batch_size):
            found = self.get(ids[part])
            there = np.flatnonzero(np.isin(ids[part], found.ids))  # found is in the same order
            same = (codes[part][there] == found.codes).all(axis=1)
            if texts is not None:
                given = (texts[place] for place in there.tolist())
                same &= np.fromiter(map(same_metadata, given, found.metadata), np.bool_)
            wanted[part.start + there] = ~same
            others.append(found.ids[~same])
        if not replace:
            self._refuse(np.concatenate(others), " with other codes or metadata")
        return wanted

    def _refuse(self, ids: Ids, how: str = "") -> None:
        """Raise IdsTakenError if there are any ids."""
        if len(ids):
            raise IdsTakenError(
                f"{self.place} has items with ids {some_ids(ids)} already{how}: nothing was stored"
            )

    @abstractmethod
    def _put(self, ids: Ids, codes: Codes, metadata: list[str] | None, *, replace: bool) -> int:
        """Keep items and return how many others they took the place of.

        Without metadata these keep theirs. If they are not to be replaced, call `_refuse`.
        """

    @abstractmethod
    def _known(self, ids: Ids) -> Ids:
        """Return those ids that are there, in any order."""

    @abstractmethod
    def _largest_id(self) -> int | None: ...

    @abstractmethod
    def _delete(self, ids: Ids) -> int: ...

    @abstractmethod
    def _replace_all(self, batches: Iterator[ItemBatch]) -> None:
        """Put items in the place of all there are: at once, in an engine with transactions."""


def _check_keeping(keep_metadata: bool, metadata: object) -> None:
    if keep_metadata and metadata is not None:
        raise ValueError("keep_metadata is for items without metadata: got some")

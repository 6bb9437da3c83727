"""`Store`: the interface of every engine, its header and its argument checks."""

import os
import secrets
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from antipodal.stores.items import (
    BATCH_SIZE,
    IdType,
    Keys,
    Loaded,
    Metadata,
    as_keys,
    batches,
    batches_of_texts,
    check_id_type,
    check_items,
    check_length,
    check_unique_ids,
    metadata_texts,
    same_metadata,
    with_keys,
)
from antipodal.stores.snapshot import NO_APPROXIMATE, ItemBatch, Reader, with_vectors
from antipodal.validation import MAX_ID, Ids, check_whole, some_ids

MODEL, SETTINGS = "model", "collection"  # names of the attachments of a collection


class StoreHeader(NamedTuple):
    """Properties of a store that never change.

    The identity is a random number drawn when a store is created, and kept by copies and backups.
    `antipodal` is the version that created the store. Both are None if not recorded. Stores of
    earlier versions have integer ids.
    """

    n_bits: int
    model: str | None
    identity: str | None = None
    antipodal: str | None = None
    id_type: IdType = "int64"

    @classmethod
    def new(
        cls, place: str, n_bits: int | None, model: str | None, id_type: IdType | None = None
    ) -> Self:
        """Return the header of a store to be created."""
        if n_bits is None:
            raise NoStoreError(place)
        if n_bits > MAX_BITS:
            raise ValueError(f"n_bits must be at most {MAX_BITS}: got {n_bits}")
        return cls(n_bits, model, secrets.token_hex(16), __version__, id_type or "int64")

    @classmethod
    def from_json(cls, header: Any) -> Self:
        """Return the header in a JSON value, or raise ValueError."""
        if not isinstance(header, dict):
            raise ValueError(f"its header must be an object: got {type(header).__name__}")
        n_bits, model, identity, version, id_type = map(header.get, cls._fields)
        if type(n_bits) is not int or not 1 <= n_bits <= MAX_BITS:
            raise ValueError(f"n_bits in its header must be an integer from 1 to {MAX_BITS}")
        if not all(text is None or isinstance(text, str) for text in (model, identity, version)):
            raise ValueError("model, identity and version in its header must be strings")
        known = check_id_type("int64" if id_type is None else id_type)
        return cls(n_bits, model, identity, version, known)

    def check(
        self, place: str, n_bits: int | None, model: str | None, id_type: IdType | None = None
    ) -> None:
        """Raise StoreError unless codes and ids have this length, model and type."""
        if id_type not in (None, self.id_type):
            raise StoreError(f"{place} has ids of type {self.id_type}, expected {id_type}")
        if n_bits not in (None, self.n_bits):
            raise StoreError(
                f"{place} has codes of {self.n_bits} bits, expected {n_bits}. Were these codes "
                "made by another model?"
            )
        if model not in (None, self.model):
            stored = "no model identity" if self.model is None else f"codes of model {self.model!r}"
            raise StoreError(
                f"{place} has {stored}, expected model {model!r}. Codes of different models cannot "
                "be compared: use a separate store for each model"
            )


class Store(Reader):
    """Durable codes with ids and metadata, searched exactly by Hamming distance.

    Every engine returns the same ids in the same order, by (distance, id), including ties at rank
    k. Use a store as a context manager, or call `close`.
    """

    model: str | None
    read_only = False
    keeps_vectors = True

    def own_files(self) -> list[Path]:
        """Return the paths of all files of the store, including those that may not exist yet.

        The list is empty for a store on a server.
        """
        return []

    def check_not_own_file(self, path: str | os.PathLike[str]) -> None:
        """Raise StoreError if `path` is, or links to, one of the store's files."""
        for own in self.own_files():
            same = os.path.realpath(own) == os.path.realpath(path)
            if same or (os.path.exists(own) and os.path.exists(path) and own.samefile(path)):
                raise StoreError(
                    f"cannot write to {path}: {own} is part of the store {self.place}. A store "
                    "cannot be backed up, exported, copied or restored to itself"
                )

    def upsert(
        self,
        ids: ArrayLike,
        codes: ArrayLike,
        metadata: Metadata | None = None,
        *,
        vectors: Sequence[bytes] | None = None,
        keep_metadata: bool = False,
    ) -> int:
        """Store items durably, and return the number of replaced items with the same ids.

        Items without metadata get the object {}. With `keep_metadata`, which requires that no
        metadata are given, replaced items keep their metadata. `vectors` are kept for reranking,
        one byte string per item: see `antipodal.Collection`.
        """
        self._check_may_write()
        given, rows = check_items(ids, codes, self.n_bits, self.id_type)
        packed = np.ascontiguousarray(rows)
        texts = metadata_texts(metadata, len(packed))
        _check_keeping(keep_metadata, metadata)
        if not len(packed) or given is None:
            return 0
        kept = None if keep_metadata else texts
        return self._write(given, packed, kept, vectors=vectors, replace=True)

    def add(
        self,
        codes: ArrayLike,
        ids: ArrayLike | None = None,
        metadata: Metadata | None = None,
        *,
        vectors: Sequence[bytes] | None = None,
    ) -> NDArray[Any]:
        """Store new items durably and return their ids.

        By default, integer ids continue after the largest, starting at 0. `vectors` are as in
        `upsert`.

        Raises
        ------
        IdsTakenError
            A ValueError: some ids are already in use. Nothing is stored.
        """
        self._check_may_write()
        given, rows = check_items(ids, codes, self.n_bits, self.id_type)
        packed = np.ascontiguousarray(rows)
        texts = metadata_texts(metadata, len(packed))
        if given is None:
            return self._append(packed, texts, len(packed), vectors)
        if len(packed):
            self._write(given, packed, texts, vectors=vectors, replace=False)
        return given

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
        """Store many items in batches, each durable when `progress` is called.

        Codes may be memory-mapped and metadata an iterator: only one batch is in memory. All ids
        and codes are checked before anything is written.

        Parameters
        ----------
        ids : integers or strings (n,), or None
            By default, integer ids continue after the largest.
        codes : uint8 (n, ⌈n_bits / 8⌉)
        metadata : objects, optional
            One per item.
        replace : bool
            Replace items with the same ids. If False, all ids are looked up first, and nothing is
            stored if one is in use.
        resume : bool
            Skip items that are already stored with the same code and, if given, the same
            metadata. Metadata are then read twice, so they must not be an iterator.
        keep_metadata : bool
            Keep the metadata of replaced items; for loads without metadata.
        batch_size : int
            Items per transaction.
        progress : callable, optional
            Called after each batch with the number of items done.

        Raises
        ------
        IdsTakenError
            Without `replace`, for ids in use (with `resume`, in use with another code or other
            metadata). Items that another process adds during the load are not overwritten; the
            batches before them remain stored.
        """
        self._check_may_write()
        check_whole(batch_size, "batch_size", 1)
        given, packed = check_items(ids, codes, self.n_bits, self.id_type)
        check_length(metadata, len(packed))
        _check_keeping(keep_metadata, metadata)
        wanted = np.ones(len(packed), np.bool_)
        if resume:
            if given is None:
                raise ValueError("resume needs ids: without ids every item is new")
            if metadata is not None and iter(metadata) is metadata:
                raise TypeError("resume reads metadata twice: pass a list, not an iterator")
            wanted = self._wanted(given, packed, metadata, replace, batch_size)
        elif given is not None and not replace:
            self._check_new(given, batch_size)
        added = replaced = 0
        for part, texts in batches_of_texts(metadata, len(packed), batch_size):
            chosen = wanted[part]
            batch = check_codes(packed[part][chosen], self.n_bits)
            if texts is not None:
                texts = [text for text, is_wanted in zip(texts, chosen, strict=True) if is_wanted]
            elif given is None or not keep_metadata:
                texts = ["{}"] * len(batch)
            if given is None:
                given = self._append(batch, texts or [], len(packed))
            elif len(batch):
                try:
                    replaced += self._write(given[part][chosen], batch, texts, replace=replace)
                except IdsTakenError as error:
                    raise IdsTakenError(
                        f"{error} of this batch: another process added them during the load. "
                        f"The {part.start:,} items before this batch are stored"
                    ) from None
            added += len(batch)
            if progress is not None:
                progress(part.stop)
        all_ids = np.empty(0, np.int64) if given is None else given
        return Loaded(all_ids, added - replaced, replaced, len(packed) - added)

    def prepare_approximate(self, *, memory_mb: int | None = None) -> None:
        """Build the index for ``search(…, exact=False)``, which is then kept up to date.

        In PostgreSQL it is an HNSW graph. Building it can take minutes, during which other clients
        can read but not write. An existing index is kept.

        Parameters
        ----------
        memory_mb : int, optional
            Memory of the server for the build, instead of its `maintenance_work_mem`. The build is
            slower if the graph does not fit.
        """
        raise StoreError(f"{self.place} cannot have an approximate index: {NO_APPROXIMATE}")

    def recall(self, codes: ArrayLike, k: int, *, where: Mapping[str, Any] | None = None) -> float:
        """Return the recall@k of ``search(…, exact=False)``.

        As in `HammingIndex.recall`, any item as near as the k-th nearest one counts as found.
        """
        with self.snapshot() as now:
            exact = now.search(codes, k, where=where).distances
            found = now.search(codes, k, where=where, exact=False).distances
        if not exact.size:
            raise ValueError("recall needs at least one item in the store and one query")
        return float(np.mean(found <= exact[:, -1:]))

    def next_id(self) -> int:
        """Return the integer id after the largest, 0 for an empty store."""
        largest = self._largest_id()
        return 0 if largest is None else largest + 1

    def delete(self, ids: ArrayLike) -> int:
        """Delete the items with these ids, and return the number of deleted items."""
        self._check_may_write()
        given = check_unique_ids(ids, self.id_type)
        if not len(given):
            return 0
        return self._delete(given) if self.id_type == "int64" else self._delete_keyed(given)

    @abstractmethod
    def read_attachment(self, name: str) -> bytes | None:
        """Return the bytes stored under a name, or None; raise StoreError if they are damaged."""

    def write_attachments(self, parts: Mapping[str, bytes], *, replace: bool = True) -> None:
        """Store bytes under names, atomically in SQLite and PostgreSQL.

        Without `replace`, raise StoreError if one of the names is in use.
        """
        self._check_may_write()
        self._write_attachments(parts, replace=replace)

    @contextmanager
    def item_batches(self, *, vectors: bool = False) -> Iterator[Callable[[], Iterator[ItemBatch]]]:
        """Return a function that iterates over all items of a snapshot, any number of times.

        With `vectors`, batches contain the kept vectors. Only one batch is in memory. Milvus has no
        snapshots: there, later writes are visible.
        """
        with self.snapshot() as now:
            if vectors and self.keeps_vectors:
                yield lambda: with_vectors(now.batches(), now.kept_vectors)
            else:
                yield now.batches

    def attachments(self) -> dict[str, bytes]:
        """Return the attachments of a collection by name."""
        found = {name: self.read_attachment(name) for name in (MODEL, SETTINGS)}
        return {name: data for name, data in found.items() if data is not None}

    def item_count(self) -> int:
        """Return the number of items without building a search index."""
        return self.count()

    def vacuum(self) -> tuple[int, int]:
        """Reclaim the space of deleted and replaced items; return the bytes before and after."""
        raise StoreError(
            f"{self.place} cannot be vacuumed: its engine reclaims space automatically"
        )

    def prepare(self, radius: int = 2) -> None:
        """Prepare for fast single `radius` queries up to this radius.

        A SQLite store reads its items, unless it has already, and builds the tables of
        `HammingIndex.prepare` in memory. They are kept up to date until `close`. With other
        engines this does nothing.

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
        """Close files and connections; closing twice is allowed."""

    def drop(self) -> None:
        """Delete the store with everything in it, and close it.

        The file of Milvus Lite remains, since it may contain other collections.
        """
        self._check_may_write()
        self._drop()
        self.close()

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
        """Build tables for small radii, in an engine that supports them."""

    def _check_may_write(self) -> None:
        if self.read_only:
            raise StoreError(f"{self.place} is read-only: it was opened with read_only=True")

    def _write(
        self,
        ids: NDArray[Any],
        codes: Codes,
        metadata: list[str] | None,
        *,
        replace: bool,
        vectors: Sequence[bytes] | None = None,
    ) -> int:
        """Store items under ids of either type, as `_put` does."""
        if vectors is not None and len(vectors) != len(codes):
            raise ValueError(
                f"vectors must have one entry per item: got {len(vectors)} for {len(codes)} items"
            )
        if self.id_type == "int64":
            return self._put(ids, codes, metadata, replace=replace, vectors=vectors)
        texts = None if metadata is None else with_keys(metadata, ids)
        return self._put_keyed(ids, codes, texts, replace=replace, vectors=vectors)

    def _append(
        self,
        codes: Codes,
        metadata: list[str],
        n_ids: int,
        vectors: Sequence[bytes] | None = None,
    ) -> Ids:
        """Store codes under the first of n_ids new ids; return all of the new ids."""
        while True:
            first = self.next_id()
            if first + n_ids > MAX_ID + 1:
                raise ValueError(f"no ids are left after {first - 1}: pass ids explicitly")
            ids = first + np.arange(n_ids, dtype=np.int64)
            try:
                if len(codes):
                    self._write(ids[: len(codes)], codes, metadata, replace=False, vectors=vectors)
            except IdsTakenError:
                continue  # another writer took these ids
            return ids

    def _check_new(self, ids: NDArray[Any], batch_size: int) -> None:
        """Raise IdsTakenError for ids in use."""
        largest = self._largest_id()
        if largest is None or not len(ids):
            return
        if self.id_type == "int64" and ids.min() > largest:
            return
        known = [self._in_use(ids[part]) for part in batches(len(ids), batch_size)]
        self._check_unused(np.concatenate(known))

    def _in_use(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Return the ids in use, of either type."""
        return (
            self._known(ids) if self.id_type == "int64" else as_keys(self._numbers_of(ids.tolist()))
        )

    def _wanted(
        self,
        ids: NDArray[Any],
        codes: NDArray[Any],
        metadata: Metadata | None,
        replace: bool,
        batch_size: int,
    ) -> NDArray[np.bool_]:
        """Return a mask of the items that are not stored with the same contents."""
        wanted = np.ones(len(ids), np.bool_)
        others = [ids[:0]]
        for part, texts in batches_of_texts(metadata, len(ids), batch_size):
            found = self.get(ids[part])
            known = _positions(ids[part], found.ids)
            same = (codes[part][known] == found.codes).all(axis=1)
            if texts is not None:
                given = (texts[i] for i in known.tolist())
                same &= np.fromiter(map(same_metadata, given, found.metadata), np.bool_)
            wanted[part.start + known] = ~same
            others.append(found.ids[~same])
        if not replace:
            self._check_unused(np.concatenate(others), " with other codes or metadata")
        return wanted

    def _check_unused(self, ids: NDArray[Any], difference: str = "") -> None:
        """Raise IdsTakenError unless ids is empty."""
        if len(ids):
            raise IdsTakenError(
                f"{self.place} already has items with ids {some_ids(ids)}{difference}: nothing was "
                "stored"
            )

    @abstractmethod
    def _put(
        self,
        ids: Ids,
        codes: Codes,
        metadata: list[str] | None,
        *,
        replace: bool,
        vectors: Sequence[bytes] | None = None,
    ) -> int:
        """Store items, and return the number of replaced items.

        Without metadata, replaced items keep theirs. Without vectors, they lose theirs. Without
        `replace`, ids in use must be passed to `_check_unused`.
        """

    @abstractmethod
    def _put_keyed(
        self,
        keys: Keys,
        codes: Codes,
        metadata: list[str] | None,
        *,
        replace: bool,
        vectors: Sequence[bytes] | None = None,
    ) -> int:
        """Store items under string ids, as `_put` does; `metadata` contains the ids."""

    def _check_names_unused(self, names: Collection[str]) -> None:
        """Raise StoreError if names are given: they are in use."""
        if names:
            raise StoreError(f"{self.place} already has the attachments {', '.join(sorted(names))}")

    @abstractmethod
    def _write_attachments(self, parts: Mapping[str, bytes], *, replace: bool) -> None:
        """Store bytes under names; names in use must be passed to `_check_names_unused`."""

    @abstractmethod
    def _drop(self) -> None: ...

    @abstractmethod
    def _known(self, ids: Ids) -> Ids:
        """Return the ids in use, in any order."""

    @abstractmethod
    def _largest_id(self) -> int | None: ...

    @abstractmethod
    def _delete(self, ids: Ids) -> int: ...

    @abstractmethod
    def _delete_keyed(self, keys: Keys) -> int:
        """Delete the items with these string ids, as `_delete` does."""

    @abstractmethod
    def _replace_all(self, batches: Iterator[ItemBatch]) -> None:
        """Replace all items, atomically in engines with transactions."""


def _positions(ids: NDArray[Any], found: NDArray[Any]) -> NDArray[np.intp]:
    """Return the positions of the ids that were found; both are in the same order."""
    known = set(found.tolist())
    return np.flatnonzero([number in known for number in ids.tolist()])


def _check_keeping(keep_metadata: bool, metadata: object) -> None:
    if keep_metadata and metadata is not None:
        raise ValueError("keep_metadata cannot be combined with metadata: got both")

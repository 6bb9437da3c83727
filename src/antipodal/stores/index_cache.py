"""In-memory index of a database store, updated with the changes of all writers."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Generic, Protocol, TypeVar

import numpy as np

from antipodal.codes import Codes
from antipodal.index import HammingIndex
from antipodal.index.segments import is_member
from antipodal.stores.filters import Where
from antipodal.validation import Ids

_MAX_FILTERS, _FILTER_BYTES = 16, 2**27  # limits of the filter cache

Connection = TypeVar("Connection", contravariant=True)


class VersionedItems(Protocol[Connection]):
    """The items of a store, as visible to a transaction of one of its connections.

    Every write gives the items a new version and adds the ids that it changes to a log.
    """

    n_bits: int

    def restart(self, connection: Connection) -> None:
        """End the transaction of a connection and begin a new one."""

    def version(self, connection: Connection) -> int:
        """Return the version of the items."""

    def changed_since(self, connection: Connection, version: int) -> Ids | None:
        """Return the ids changed since a version, or None if the log does not reach back to it."""

    def all(self, connection: Connection) -> Iterator[tuple[Ids, Codes]]:
        """Check the integrity of the items, and yield all ids and codes in blocks."""

    def among(self, connection: Connection, ids: Ids) -> Iterator[tuple[Ids, Codes]]:
        """Yield those of the given ids that exist, and their codes, in blocks."""

    def matching(self, connection: Connection, where: Where, among: Ids | None = None) -> Ids:
        """Return the ids that match a filter, increasing, among all items or among some."""


class ReadWriteLock:
    """A lock for many readers or one writer; waiting writers take precedence over new readers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._writing = False
        self._waiting = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock together with other readers."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writing and not self._waiting)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock exclusively."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._writing and not self._readers)
            finally:
                self._waiting -= 1
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()


class IndexCache(Generic[Connection]):
    """Index of the items of a store, with the ids that match recent filters."""

    def __init__(self, items: VersionedItems[Connection]) -> None:
        self._items = items
        self._lock = ReadWriteLock()  # guards the attributes below
        self._index: HammingIndex | None = None
        self._version = -1
        self._radius: int | None = None  # for which the index is prepared
        self._filters: OrderedDict[str, tuple[Where, Ids]] = OrderedDict()
        self._filters_lock = threading.Lock()

    @property
    def is_loaded(self) -> bool:
        """Whether the items have been read."""
        return self._index is not None

    def index(
        self, connection: Connection, *, may_restart: bool = True
    ) -> tuple[HammingIndex, int]:
        """Return an index of the items visible to a transaction, and their version.

        Later updates of the cache do not change the index. If the cache has another version, the
        transaction is restarted, since the cache may be newer. If it must not be restarted and the
        cache is newer, all items are read instead.
        """
        version = self._items.version(connection)
        with self._lock.reading():
            if self._index is not None and self._version == version:
                return copy(self._index), version
        with self._lock.writing():
            if may_restart:
                # The cache is locked, so it is not newer than a transaction that starts now.
                self._items.restart(connection)
                version = self._items.version(connection)
            if self._index is not None and self._version == version:
                return copy(self._index), version
            changed = self._items.changed_since(connection, self._version)
            if may_restart or self._index is None or changed is not None:
                self._index, self._version = self._refreshed(connection, changed), version
                return copy(self._index), version
        return self._loaded(connection), version

    def prepare(self, connection: Connection, radius: int) -> None:
        """Build radius tables for this index and for later versions of it.

        The tables are shared with the copies of the index that searches use, so that searches
        continue during the build.
        """
        HammingIndex(self._items.n_bits).prepare(radius)  # raises ValueError for an invalid radius
        self._radius = max(radius, self._radius or 0)
        self.index(connection)[0].prepare(self._radius)

    def matching(self, connection: Connection, version: int, where: Where) -> Ids:
        """Return the ids that match a filter, from the cache if the filter was used recently."""
        name = repr(where)  # not the tree itself, in which True would equal 1
        with self._lock.reading():
            if self._version != version:
                return self._items.matching(connection, where)
            with self._filters_lock:
                if name in self._filters:
                    self._filters.move_to_end(name)
                    return self._filters[name][1]
            ids = self._items.matching(connection, where)
            with self._filters_lock:
                self._filters[name] = where, ids
                while (
                    len(self._filters) > _MAX_FILTERS
                    or sum(map(_filter_bytes, self._filters.items())) > _FILTER_BYTES
                ):
                    self._filters.popitem(last=False)
            return ids

    def _refreshed(self, connection: Connection, changed: Ids | None) -> HammingIndex:
        """Return the index, and update the filters, at the version visible to the connection."""
        index, self._index = self._index, None  # after an error, the next search rebuilds it
        filters, self._filters = self._filters, OrderedDict()
        if index is None or changed is None or 2 * len(changed) > len(index):
            return self._loaded(connection)
        index.remove(changed[index.contains(changed)])
        for ids, codes in self._items.among(connection, changed):
            index.add(codes, ids)
        for name, (where, before) in filters.items():
            outdated = changed[is_member(changed, before)] if len(before) else changed[:0]
            others = np.delete(before, np.searchsorted(before, outdated))
            added = self._items.matching(connection, where, changed)
            now = np.insert(others, np.searchsorted(others, added), added)
            self._filters[name] = where, now
        return index

    def _loaded(self, connection: Connection) -> HammingIndex:
        """Return an index of all items."""
        index = HammingIndex(self._items.n_bits)
        for ids, codes in self._items.all(connection):
            index.add(codes, ids)
        if self._radius is not None:
            index.prepare(self._radius)
        return index


def _filter_bytes(remembered: tuple[str, tuple[Where, Ids]]) -> int:
    """Return an estimate of the memory of a filter: its text, its values and the matching ids."""
    name, (_, ids) = remembered
    return 10 * len(name) + ids.nbytes  # a value of 5 characters takes about 45 bytes

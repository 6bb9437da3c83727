"""The index in memory that answers the searches of a SQLite store: an image of the file.

It knows the version of the file that it was made from. A search brings it to the version that the
search sees, by reading again the items that changed since, or all of them if too much has
changed. Versions are numbers that no two states of any store share: they begin at random and grow
by random steps. A file in which our version is not written down has another past than the index,
because a backup of it was restored, or because it is another file: then all is read again.
"""

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from typing import LiteralString

import numpy as np
from numpy.typing import NDArray

from antipodal.checks import Ids
from antipodal.index import HammingIndex
from antipodal.stores.dialects import sqlite_condition
from antipodal.stores.locks import SharedLock
from antipodal.stores.sqlitefile import SqliteFile
from antipodal.stores.sqliteitems import AMONG, SqliteItems, id_list
from antipodal.stores.where import Where

_KEPT_FILTERS = 16


class IndexCache:
    """An index of the items of a file, and the ids that pass the last filters."""

    def __init__(self, file: SqliteFile, items: SqliteItems) -> None:
        self._file, self._items = file, items
        self._sharing = SharedLock()  # guards all of these
        self._index: HammingIndex | None = None
        self._version = -1
        self._radius: int | None = None  # that the index is prepared for
        self._filters: OrderedDict[str, tuple[Where, Ids]] = OrderedDict()
        self._filters_lock = threading.Lock()

    def index(
        self, connection: sqlite3.Connection, begin: Callable[[sqlite3.Connection], None]
    ) -> tuple[HammingIndex, int]:
        """Return an index of what the transaction of a connection sees, and its version.

        The index does not change when others bring theirs to newer versions. If it is not of this
        version, the transaction is begun anew, for it may have been overtaken.
        """
        version = self._file.tables.version(connection)
        with self._sharing.shared():
            if self._index is not None and self._version == version:
                return copy(self._index), version
        with self._sharing.alone():
            # Nobody else brings the index up now: it cannot be newer than what is seen from here.
            connection.execute("ROLLBACK")
            begin(connection)
            version = self._file.tables.version(connection)
            if self._index is None or self._version != version:
                self._index, self._version = self._refreshed(connection, version), version
            return copy(self._index), version

    def prepare(
        self,
        connection: sqlite3.Connection,
        begin: Callable[[sqlite3.Connection], None],
        radius: int,
    ) -> None:
        """Make tables for this radius, of this index and of those that take its place.

        They are shared with the copies that searches have: searches go on meanwhile.
        """
        HammingIndex(self._items.n_bits).prepare(radius)  # refuses what no index can
        self._radius = max(radius, self._radius or 0)
        self.index(connection, begin)[0].prepare(self._radius)

    def passing(self, connection: sqlite3.Connection, version: int, where: Where) -> Ids:
        """Return the ids that pass; those of the last filters are remembered and kept up."""
        name = repr(where)  # not the tree itself: true would equal 1
        with self._sharing.shared():
            if self._version != version:
                return _passing(connection, where)
            with self._filters_lock:
                if name in self._filters:
                    self._filters.move_to_end(name)
                    return self._filters[name][1]
            ids = _passing(connection, where)
            with self._filters_lock:
                self._filters[name] = where, ids
                while len(self._filters) > _KEPT_FILTERS:
                    self._filters.popitem(last=False)
            return ids

    def _refreshed(self, connection: sqlite3.Connection, version: int) -> HammingIndex:
        """Return the index at the version that the connection sees; bring the filters there."""
        changed = self._file.tables.changed_since(connection, self._version)
        index, self._index = self._index, None  # if anything fails, the next search starts anew
        filters, self._filters = self._filters, OrderedDict()
        if index is None or changed is None or 2 * len(changed) > len(index):
            self._file.check_pages(connection)
            index = HammingIndex(self._items.n_bits)
            for ids, codes, _ in self._items.all(connection):
                index.add(codes, ids)
            if self._radius is not None:
                index.prepare(self._radius)
        else:
            index.remove(changed[index.contains(changed)])
            for ids, codes, _ in self._items.among(connection, changed):
                index.add(codes, ids)
            for name, (where, before) in filters.items():
                places = _places(before, changed)
                others = np.delete(before, places[places >= 0])
                passing = _passing(connection, where, changed)
                now = np.insert(others, np.searchsorted(others, passing), passing)
                self._filters[name] = where, now
        return index


def _passing(connection: sqlite3.Connection, where: Where, among: Ids | None = None) -> Ids:
    """Return the ids of items that pass, increasing; of all items or of some."""
    condition, values = sqlite_condition(where)
    select: LiteralString = "SELECT id FROM items WHERE "
    if among is None:
        cursor = connection.execute(f"{select}{condition} ORDER BY id", values)
    else:
        query: LiteralString = f"{select}{AMONG} AND {condition} ORDER BY id"
        cursor = connection.execute(query, [id_list(among), *values])
    return np.fromiter((row[0] for row in cursor), np.int64)


def _places(ids: Ids, sought: Ids) -> NDArray[np.int64]:
    """Return the place of each sought id in the increasing ids, or -1."""
    places = np.searchsorted(ids, sought)
    found = places < len(ids)
    found[found] = ids[places[found]] == sought[found]
    return np.where(found, places, -1)

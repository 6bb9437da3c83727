"""Index segments: sorted items, recent changes to them, and k-NN search over both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.index.items import Column, IndexedItems, RowNumbers, take_rows
from antipodal.validation import Ids

# Number of pending changes above which they are merged into the main segment. Copying this many
# items with each change takes less than a millisecond. Smaller indexes are always merged.
_MAX_PENDING = 2**16
_PENDING_SHARE = 2**8  # large indexes may have one pending change per 256 items

_NONE: RowNumbers = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Segments:
    """Immutable contents of an index; a change returns new `Segments`.

    Row numbers below ``len(main)`` are rows of the main segment, larger ones those of the delta
    segment. No id occurs twice among the items that are not removed.

    Attributes
    ----------
    main : IndexedItems
        Most items.
    removed_rows : int64, increasing
        Rows of the main segment whose items were removed.
    delta : IndexedItems
        Items added when the main segment had larger ids.
    """

    main: IndexedItems
    removed_rows: RowNumbers
    delta: IndexedItems

    @classmethod
    def of(cls, items: IndexedItems, n_bits: int) -> "Segments":
        """Return segments without pending changes."""
        return cls(items, _NONE, IndexedItems.none(n_bits))

    def __len__(self) -> int:
        return len(self.main) - len(self.removed_rows) + len(self.delta)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and ids, without spare capacity."""
        return self.main.nbytes + self.removed_rows.nbytes + self.delta.nbytes

    @property
    def n_pending(self) -> int:
        """The number of changes that are not merged into the main segment."""
        return len(self.removed_rows) + len(self.delta)

    @cached_property
    def is_merged(self) -> bool:
        """Whether all items are in the main segment."""
        return self.n_pending == 0

    def next_id(self) -> int:
        """Return the id after the largest, 0 for an empty index."""
        # The i-th removed row r has r - i kept rows before it. It belongs to the removed rows at
        # the end of the segment if these are all the kept rows.
        n_kept_before = self.removed_rows - np.arange(len(self.removed_rows))
        n_kept = len(self.main) - len(self.removed_rows)
        n_at_end = int(np.count_nonzero(n_kept_before == n_kept))
        largest = [self.main.id_of(len(self.main) - n_at_end - 1)] if n_kept else []
        largest += [self.delta.id_of(-1)] if len(self.delta) else []
        return max(largest) + 1 if largest else 0

    @property
    def ids(self) -> Ids:
        """All ids, increasing."""
        kept = np.delete(self.main.ids, self.removed_rows) if self.n_pending else self.main.ids
        return np.sort(np.concatenate([kept, self.delta.ids])) if len(self.delta) else kept

    def rows_of(self, ids: Ids) -> RowNumbers:
        """Return the row of each id, -1 for ids that are not in the index."""
        rows = self.main.rows_of(ids)
        if len(self.removed_rows):
            rows[is_member(rows, self.removed_rows)] = -1
        if len(self.delta):
            delta_rows = self.delta.rows_of(ids)
            rows = np.where(delta_rows >= 0, delta_rows + len(self.main), rows)
        return rows

    def codes_of(self, rows: RowNumbers) -> Codes:
        """Return the padded codes of an array of rows of any shape."""
        if not len(self.delta):
            return self.main.rows[rows]
        in_delta = rows >= len(self.main)
        codes = self.main.rows[np.where(in_delta, 0, rows)]
        codes[in_delta] = self.delta.rows[rows[in_delta] - len(self.main)]
        return codes

    def by_segment(self, rows: RowNumbers) -> list[tuple[IndexedItems, RowNumbers]]:
        """Split increasing row numbers by segment; the delta segment only if it has any."""
        cut = int(np.searchsorted(rows, len(self.main)))
        parts = [(self.main, rows[:cut]), (self.delta, rows[cut:] - len(self.main))]
        return parts if cut < len(rows) else parts[:1]

    def added(self, codes: Codes, ids: range | Ids) -> "Segments":
        """Return the segments with new items, whose ids increase."""
        if not len(ids):
            return self
        if not len(self.main) or ids[0] > self.main.id_of(-1):
            return replace(self, main=self.main.added(codes, ids))
        if self._must_merge(self.n_pending + len(ids)):
            return self._with_main(self.merged().added(codes, ids))
        return replace(self, delta=self.delta.added(codes, ids))

    def removed(self, rows: RowNumbers) -> "Segments":
        """Return the segments without the items of these rows."""
        in_delta = rows >= len(self.main)
        delta = (
            self.delta.removed(rows[in_delta] - len(self.main)) if in_delta.any() else self.delta
        )
        removed = np.union1d(self.removed_rows, rows[~in_delta])
        left = replace(self, removed_rows=removed, delta=delta)
        return self._with_main(left.merged()) if self._must_merge(left.n_pending) else left

    def merged(self) -> IndexedItems:
        """Return all items in the order of their ids, copied if changes are pending."""
        kept = self.main.removed(self.removed_rows) if len(self.removed_rows) else self.main
        return kept.added(self.delta.rows, self.delta.ids) if len(self.delta) else kept

    def _must_merge(self, n_pending: int) -> bool:
        most = max(_MAX_PENDING, len(self.main) // _PENDING_SHARE)
        return len(self.main) <= _MAX_PENDING or n_pending > most

    def _with_main(self, main: IndexedItems) -> "Segments":
        return Segments(main, _NONE, IndexedItems(Column.of(self.delta.rows[:0]), range(0)))


def is_member(rows: RowNumbers, members: RowNumbers) -> NDArray[np.bool_]:
    """Return which rows are among the members, which are increasing and not empty."""
    positions = np.minimum(np.searchsorted(members, rows), len(members) - 1)
    found: NDArray[np.bool_] = members[positions] == rows
    return found


# A k-NN function of queries, codes and k, which returns rows and the values that order them,
# smallest first, both of shape (n_queries, k).
Search: TypeAlias = Callable[[Any, Codes, int], tuple[RowNumbers, Any]]

_SPARE = 32  # rows to find in addition to k, for removed ones
_SPARE_GROWTH = 8
_MAX_FOUND = 2**22  # rows found by one repeated search


def search_segments(
    search: Search,
    queries: NDArray[Any],
    k: int,
    segments: Segments,
    rows: RowNumbers | None = None,
    *,
    search_main: Search | None = None,
    search_among: Callable[[Any, RowNumbers, int], tuple[RowNumbers, Any]] | None = None,
) -> tuple[Ids, Any]:
    """Return the first min(k, n_items) items by (value, id), of all items or of some rows.

    `search_main`, if given, replaces `search` for the whole main segment, and `search_among` for
    some rows of it.
    """
    if rows is not None:
        parts = []
        for items, some in segments.by_segment(rows):
            n = min(k, len(some))
            if items is segments.main and search_among is not None:
                found, values = search_among(queries, some, n)
            else:
                found, values = search(queries, take_rows(items.rows, some), n)
                found = some[found]
            parts.append((items.ids_of(found), values))
        return _merge(parts, k)
    main, delta, removed = segments.main, segments.delta, segments.removed_rows
    in_main = search if search_main is None else search_main
    found, values = _search_kept(
        lambda part, n: in_main(part, main.rows, n),
        queries,
        min(k, len(main) - len(removed)),
        removed,
    )
    parts = [(main.ids_of(found), values)]
    if len(delta):
        found, values = search(queries, delta.rows, min(k, len(delta)))
        parts.append((delta.ids_of(found), values))
    return _merge(parts, k)


def _search_kept(
    search: Callable[[Any, int], tuple[RowNumbers, Any]],
    queries: NDArray[Any],
    k: int,
    removed: RowNumbers,
    spare: int = _SPARE,
) -> tuple[RowNumbers, Any]:
    """Return the first k rows that are not removed, of which at least k exist.

    The search asks for a few rows more than k. It is repeated with a larger number for queries
    that found fewer than k rows that are not removed.
    """
    if not len(removed) or not k:
        return search(queries, k)
    rows, values = search(queries, k + min(spare, len(removed)))
    is_removed = is_member(rows, removed)
    kept_first = np.argsort(is_removed, axis=1, kind="stable")[:, :k]
    found = np.take_along_axis(rows, kept_first, axis=1)
    best = np.take_along_axis(values, kept_first, axis=1)
    short = np.flatnonzero((~is_removed).sum(axis=1) < k)
    at_once = max(1, _MAX_FOUND // (k + _SPARE_GROWTH * spare))
    for start in range(0, len(short), at_once):
        part = short[start : start + at_once]
        found[part], best[part] = _search_kept(
            search, queries[part], k, removed, _SPARE_GROWTH * spare
        )
    return found, best


def _merge(parts: Sequence[tuple[Ids, Any]], k: int) -> tuple[Ids, Any]:
    """Return the first k columns by (value, id) of tables of ids and values."""
    if len(parts) == 1:
        return parts[0]
    ids, values = (np.concatenate(tables, axis=1) for tables in zip(*parts, strict=True))
    order = np.lexsort((ids, values), axis=1)[:, :k]
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1)

"""Index contents: a main segment, recent additions and removals, and merged results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.index.items import Column, IndexedItems, RowNumbers, take_rows
from antipodal.index.results import Ball
from antipodal.index.scan import RowHits, offsets_of
from antipodal.validation import Ids

# Removed and late items that an index may carry: copying them, with each change, takes less than
# a millisecond. An index that is no larger is copied itself.
_LOOSE = 2**16
_LOOSE_SHARE = 2**8  # or one of so many

_NONE: RowNumbers = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Contents:
    """Items at one moment; a change makes new `Contents`.

    A row number is one of the main run, or, from its length on, one of the late run.

    Attributes
    ----------
    main : IndexedItems
    removed_rows : int64, increasing
        Rows of the main run whose items are gone.
    late : IndexedItems
        Items that came when the main run had larger ids. No id is twice among what is there.
    """

    main: IndexedItems
    removed_rows: RowNumbers
    late: IndexedItems

    @classmethod
    def of(cls, items: IndexedItems, n_bits: int) -> "Contents":
        """Take over one run."""
        return cls(items, _NONE, IndexedItems.none(n_bits))

    def __len__(self) -> int:
        return len(self.main) - len(self.removed_rows) + len(self.late)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and ids, without what is spared for growing."""
        return self.main.nbytes + self.removed_rows.nbytes + self.late.nbytes

    @property
    def n_loose(self) -> int:
        """Items that are not where one run would have them."""
        return len(self.removed_rows) + len(self.late)

    @cached_property
    def is_one_run(self) -> bool:
        """Whether nothing is loose."""
        return self.n_loose == 0

    def next_id(self) -> int:
        """Return the id after the largest, 0 if there is none."""
        # The i-th removed row is i places after row r_i - i of those that stay: at the very end,
        # all of the places are taken.
        places = self.removed_rows - np.arange(len(self.removed_rows))
        n_kept = len(self.main) - len(self.removed_rows)
        n_at_end = int(np.count_nonzero(places == n_kept))
        largest = [self.main.id_of(len(self.main) - n_at_end - 1)] if n_kept else []
        largest += [self.late.id_of(-1)] if len(self.late) else []
        return max(largest) + 1 if largest else 0

    @property
    def ids(self) -> Ids:
        """All ids, increasing."""
        kept = np.delete(self.main.ids, self.removed_rows) if self.n_loose else self.main.ids
        return np.sort(np.concatenate([kept, self.late.ids])) if len(self.late) else kept

    def rows_of(self, ids: Ids) -> RowNumbers:
        """Return the row of each id, -1 where there is none."""
        rows = self.main.rows_of(ids)
        if len(self.removed_rows):
            rows[among(rows, self.removed_rows)] = -1
        if len(self.late):
            late = self.late.rows_of(ids)
            rows = np.where(late >= 0, late + len(self.main), rows)
        return rows

    def codes_of(self, rows: RowNumbers) -> Codes:
        """Return the padded codes of rows, whatever the shape of their array."""
        if not len(self.late):
            return self.main.rows[rows]
        is_late = rows >= len(self.main)
        codes = self.main.rows[np.where(is_late, 0, rows)]
        codes[is_late] = self.late.rows[rows[is_late] - len(self.main)]
        return codes

    def by_run(self, rows: RowNumbers) -> list[tuple[IndexedItems, RowNumbers]]:
        """Tell apart the rows, which increase, of each run that has any."""
        cut = int(np.searchsorted(rows, len(self.main)))
        runs = [(self.main, rows[:cut]), (self.late, rows[cut:] - len(self.main))]
        return runs if cut < len(rows) else runs[:1]

    def added(self, codes: Codes, ids: range | Ids) -> "Contents":
        """Return these items and others, whose ids increase and are new."""
        if not len(ids):
            return self
        if not len(self.main) or ids[0] > self.main.id_of(-1):
            return replace(self, main=self.main.added(codes, ids))
        if self._must_be_one(self.n_loose + len(ids)):
            return self._with_main(self.in_one_run().added(codes, ids))
        return replace(self, late=self.late.added(codes, ids))

    def removed(self, rows: RowNumbers) -> "Contents":
        """Return the items that are not in these rows."""
        is_late = rows >= len(self.main)
        late = self.late.removed(rows[is_late] - len(self.main)) if is_late.any() else self.late
        gone = np.union1d(self.removed_rows, rows[~is_late])
        left = replace(self, removed_rows=gone, late=late)
        return self._with_main(left.in_one_run()) if self._must_be_one(left.n_loose) else left

    def in_one_run(self) -> IndexedItems:
        """Return all items in the order of their ids, copied if any are loose."""
        kept = self.main.removed(self.removed_rows) if len(self.removed_rows) else self.main
        return kept.added(self.late.rows, self.late.ids) if len(self.late) else kept

    def _must_be_one(self, n_loose: int) -> bool:
        return len(self.main) <= _LOOSE or n_loose > max(_LOOSE, len(self.main) // _LOOSE_SHARE)

    def _with_main(self, main: IndexedItems) -> "Contents":
        nothing = IndexedItems(Column.of(self.late.rows[:0]), range(0))
        return Contents(main, _NONE, nothing)


def among(rows: RowNumbers, chosen: RowNumbers) -> NDArray[np.bool_]:
    """Say of each row whether it is among the chosen, of which there is one and which increase."""
    places = np.minimum(np.searchsorted(chosen, rows), len(chosen) - 1)
    is_one: NDArray[np.bool_] = chosen[places] == rows
    return is_one


Values = NDArray[Any]
# From queries, codes and k to rows and what they are ordered by, smallest first: (n_queries, k).
Search: TypeAlias = Callable[[Any, Codes, int], tuple[RowNumbers, Any]]

_SPARE = 32  # rows to look for beyond k, in case that many were removed
_MORE = 8  # times as many, where it was not enough
_FOUND_AT_ONCE = 2**22


def first_of_all(
    search: Search,
    queries: Values,
    k: int,
    held: Contents,
    rows: RowNumbers | None = None,
    *,
    search_main: Search | None = None,
) -> tuple[Ids, Any]:
    """Find the first min(k, items) items in the order (value, id), of all or of some rows.

    `search_main`, if given, takes the place of `search` for the whole of the main run.
    """
    if rows is not None:
        parts = []
        for items, some in held.by_run(rows):
            found, values = search(queries, take_rows(items.rows, some), min(k, len(some)))
            parts.append((items.ids_of(some[found]), values))
        return _merged(parts, k)
    main, late = held.main, held.late
    n_kept = len(main) - len(held.removed_rows)
    in_main = search if search_main is None else search_main
    found, values = _first_kept(
        lambda part, n: in_main(part, main.rows, n), queries, min(k, n_kept), held.removed_rows
    )
    parts = [(main.ids_of(found), values)]
    if len(late):
        found, values = search(queries, late.rows, min(k, len(late)))
        parts.append((late.ids_of(found), values))
    return _merged(parts, k)


def without(hits: RowHits, removed: RowNumbers) -> RowHits:
    """Leave out the rows that were removed."""
    if not len(removed) or not len(hits.rows):
        return hits
    kept = ~among(hits.rows, removed)
    n_kept = np.concatenate([[0], np.cumsum(kept)])
    return RowHits(n_kept[hits.offsets], hits.rows[kept], hits.distances[kept])


def union(balls: Sequence[Ball]) -> Ball:
    """Join balls around the same queries."""
    if len(balls) == 1:
        return balls[0]
    full = [ball for ball in balls if len(ball.ids)] or balls[:1]
    counts = [np.diff(ball.offsets) for ball in full]
    query = np.concatenate([np.repeat(np.arange(len(n)), n) for n in counts])
    ids = np.concatenate([ball.ids for ball in full])
    distances = np.concatenate([ball.distances for ball in full])
    order = np.lexsort((ids, distances, query))
    return Ball(offsets_of(np.sum(counts, axis=0)), ids[order], distances[order])


def _first_kept(
    search: Callable[[Any, int], tuple[RowNumbers, Any]],
    queries: Values,
    k: int,
    removed: RowNumbers,
    spare: int = _SPARE,
) -> tuple[RowNumbers, Any]:
    """Find the first k rows of a search that were not removed; there are at least so many.

    A few more are looked for than k. Where more than these were removed, the search is repeated.
    """
    if not len(removed) or not k:
        return search(queries, k)
    n_more = min(spare, len(removed))
    rows, values = search(queries, k + n_more)
    gone = among(rows, removed)
    kept_first = np.argsort(gone, axis=1, kind="stable")[:, :k]
    found = np.take_along_axis(rows, kept_first, axis=1)
    best = np.take_along_axis(values, kept_first, axis=1)
    short = np.flatnonzero((~gone).sum(axis=1) < k)
    at_once = max(1, _FOUND_AT_ONCE // (k + _MORE * spare))
    for start in range(0, len(short), at_once):
        part = short[start : start + at_once]
        found[part], best[part] = _first_kept(search, queries[part], k, removed, _MORE * spare)
    return found, best


def _merged(parts: Sequence[tuple[Ids, Any]], k: int) -> tuple[Ids, Any]:
    """Join tables of ids and of their values."""
    if len(parts) == 1:
        return parts[0]
    ids, values = (np.concatenate(tables, axis=1) for tables in zip(*parts, strict=True))
    order = np.lexsort((ids, values), axis=1)[:, :k]
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1)

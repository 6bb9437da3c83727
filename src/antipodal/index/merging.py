"""Answers without what was removed, and answers of several runs as one."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antipodal.checks import Ids
from antipodal.codes import Codes
from antipodal.index.answers import Ball
from antipodal.index.contents import Contents, among
from antipodal.index.items import RowNumbers, take_rows
from antipodal.index.scan import RowHits, offsets_of

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

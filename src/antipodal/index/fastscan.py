"""Asymmetric search by FastScan of Faiss: tables of 8-bit values for every 4 bits of a code.

    a = 255 / max_m span_m                       span_m the range of the values of table m
    q_m(c) = round(a·(t_m(c) - min t_m))         in 8 bits; sums of them in 16 bits

The scores q/a + Σ_m min t_m have an error of at most 1/(2a) per table, and rounding in single
precision adds less than 1/1000 of that. `asymmetric.best_rows` rescores enough candidates to find
the k best exactly, given this bound.
"""

import functools
import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.index.asymmetric import Floats, best_rows, scan_byte_tables
from antipodal.index.scan import threads_for
from antipodal.index.segments import IndexedItems, RowNumbers, take_rows
from antipodal.io.faiss import (
    add_codes,
    guard,
    halves_swapped,
    load_faiss,
    scanned_width,
    sign_index,
)

_RUN_ROWS = 2**20  # rows packed at once, which bounds temporary memory
_MIN_ROWS = 2**14  # fewer rows are scanned without packing
_TAIL_SHARE = 8  # an incomplete run is packed again when it has grown by one eighth
_PACK_COST = 6  # scans of byte tables that take as long as packing
_MAX_BYTES = 512  # with longer codes, the error bound admits too many candidates
_MIN_ALLOWED_SHARE = 10  # byte tables of a tenth of the rows take as long as FastScan of all


class _Run(NamedTuple):
    """Consecutive rows, packed by Faiss into blocks of 32."""

    start: int
    stop: int
    index: Any


class PackedCodes:
    """Codes of the main segment in the layout of FastScan: a second copy, created by searches.

    Rows are packed when searches have taken about as long as packing would. Appended rows are
    scanned with byte tables until there are enough of them to pack. The runs of packed rows are
    immutable and belong to one generation of items. Any number of threads and copies of an index
    may therefore share them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generation: object = None
        self._runs: tuple[_Run, ...] = ()
        self._n_scans = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the packed codes."""
        return sum(run.index.codes.size() for run in self._runs)

    def update(self, items: IndexedItems) -> None:
        """Drop the packed codes unless they are codes of these items."""
        if items.generation is not self._generation:
            with self._lock:
                self._generation, self._runs, self._n_scans = items.generation, (), 0

    def best_rows(
        self, z: Floats, items: IndexedItems, k: int, allowed: RowNumbers | None = None
    ) -> tuple[RowNumbers, Floats]:
        """Return the same rows as `asymmetric.best_rows`, with FastScan where it is faster."""
        is_most = allowed is None or len(allowed) * _MIN_ALLOWED_SHARE >= len(items)
        n_scanned = int(np.count_nonzero(z.any(axis=1)))
        runs = self._packed(items, n_scanned) if n_scanned and is_most else ()
        if runs:
            scan = functools.partial(_scan, runs=runs)
            return best_rows(z, items.rows, k, scan=scan, allowed=allowed)
        if allowed is None:
            return best_rows(z, items.rows, k)
        found, scores = best_rows(z, take_rows(items.rows, allowed), k)
        return allowed[found], scores

    def _packed(self, items: IndexedItems, n_queries: int) -> tuple[_Run, ...]:
        """Return the runs of packed rows, after packing further rows if that saves time."""
        if len(items) < _MIN_ROWS or items.rows.shape[1] > _MAX_BYTES:
            return ()
        with self._lock:
            if items.generation is not self._generation:  # items of an earlier snapshot
                return ()
            self._n_scans += n_queries
            last = self._runs[-1] if self._runs else _Run(0, 0, None)
            is_complete = last.stop - last.start in (0, _RUN_ROWS)
            n_repacked = 0 if is_complete else last.stop - last.start
            n_tail = len(items) - last.stop
            if n_tail >= max(_MIN_ROWS, n_repacked // _TAIL_SHARE) and self._n_scans >= _PACK_COST:
                kept = self._runs if is_complete else self._runs[:-1]
                self._runs = (*kept, *_pack(items.rows, last.stop - n_repacked))
            # After a snapshot was taken, its last rows may have been packed with appended ones.
            return tuple(run for run in self._runs if run.stop <= len(items))


def _pack(rows: Codes, start: int) -> list[_Run]:
    """Pack the rows from `start` on."""
    faiss = load_faiss()
    width, runs = scanned_width(rows.shape[1]), []
    for first in range(start, len(rows), _RUN_ROWS):
        part = rows[first : first + _RUN_ROWS]
        index = sign_index(width)
        add_codes(index, part)
        runs.append(_Run(first, first + len(part), faiss.IndexPQFastScan(index)))
    return runs


def _scan(
    z: Floats, rows: Codes, n: int, runs: tuple[_Run, ...]
) -> tuple[RowNumbers, Floats, Floats, Floats]:
    """Find candidates with FastScan, and with byte tables among rows that are not packed."""
    width = rows.shape[1]
    sums = np.abs(z).sum(axis=1)
    queries = halves_swapped(z, scanned_width(width))
    if scanned_width(width) > width:
        queries[:, 8 * width :] = guard(sums, width)
    error = _error_bound(queries, sums, -(-z.shape[1] // 4))
    parts = []
    for run in runs:
        with threads_for(len(z), len(z) * (run.stop - run.start) * width):
            scores, found = run.index.search(queries, min(n, run.stop - run.start))
        # Faiss omits rows whose sum of table entries is zero, the lowest possible score.
        rough = np.where(found < 0, -sums[:, None], scores)
        parts.append((np.where(found < 0, -1, found + run.start), rough, rough[:, -1]))
    stop = runs[-1].stop
    if stop < len(rows):
        found, scores, omitted, other = scan_byte_tables(z, rows[stop:], min(n, len(rows) - stop))
        parts.append((found + stop, scores, omitted))
        error = np.maximum(error, other)
    rows_found, scores_found, highest = zip(*parts, strict=True)
    return (
        np.concatenate(rows_found, axis=1),
        np.concatenate(scores_found, axis=1),
        np.max(highest, axis=0),
        error,
    )


def _error_bound(queries: NDArray[np.float32], sums: Floats, n_tables: int) -> Floats:
    """Return the largest error of a FastScan score; all tables but n_tables are exact."""
    spans = 2 * np.abs(queries.astype(np.float64)).reshape(len(queries), -1, 4).sum(axis=2)
    eps = float(np.finfo(np.float32).eps)
    quantisation: Floats = spans.max(axis=1) / 510 * (n_tables + 1) * (1 + 1e-3)
    return quantisation + 2 * eps * (n_tables + 16) * sums

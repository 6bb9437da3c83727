"""When there are tables for small radii: on request, and where a call pays for them itself."""

import numpy as np

from antipodal.codes import Codes
from antipodal.index.items import IndexedItems
from antipodal.index.scan import RowHits, within
from antipodal.index.tables import SCANNED_PER_CANDIDATE, Tables

_MIN_ROWS = 4096  # below, a scan takes microseconds
_MIN_BANDS = 3  # radius 2 is what most ask for; a smaller one needs only some of the bands
_SCANNED_PER_ENTRY = 512  # bytes that Faiss scans while one entry of a table is made
_OUTSIDE = 8  # of so many rows one may be outside the tables of a prepared index
_MAX_KEY_BITS = 57  # longer bands tell no more codes apart


class Bands:
    """The tables of an index that changes.

    Rows that were added at the end, behind those that are in the tables, are scanned. Tables that
    were prepared are made anew by a change that leaves too many rows outside. A search may still
    be of items as they were before a change: tables that it makes of these are not kept.
    """

    def __init__(self, n_bits: int) -> None:
        self.n_bits = n_bits
        self._n_prepared = 0  # bands
        self._made: tuple[object, Tables] | None = None  # and the era of their items
        self._era: object = None  # of the items there are now

    @property
    def nbytes(self) -> int:
        """Bytes of the tables there are."""
        return self._made[1].nbytes if self._made else 0

    def prepare(self, items: IndexedItems, radius: int) -> None:
        """Make tables of these items now, and keep them up from now on."""
        n_bands = max(_MIN_BANDS, radius + 1)
        if not _tell_apart(self.n_bits, n_bands):
            raise ValueError(
                f"codes of {self.n_bits} bits are too short for tables of radius {radius}: a scan "
                "is as fast, and needs no preparation"
            )
        self._n_prepared = n_bands
        if len(items) >= _MIN_ROWS and self.covering(items, n_bands) is None:
            self._make(items, n_bands)

    def follow(self, items: IndexedItems) -> None:
        """Keep up with a change."""
        self._era, n_tabled = items.era, 0
        if self._made is not None:
            era, tables = self._made
            if era is not items.era:
                self._made = None
            else:
                n_tabled = len(tables.codes)
                if not np.may_share_memory(tables.codes, items.rows):  # they moved in order to grow
                    self._made = era, tables.over(items.rows[:n_tabled])
        n_outside = len(items) - n_tabled
        if self._n_prepared and len(items) >= _MIN_ROWS and n_outside * _OUTSIDE > len(items):
            self._make(items, self._n_prepared)

    def keep(self, items: IndexedItems, tables: Tables) -> None:
        """Take over tables of all these items."""
        self._n_prepared, self._era = tables.n_bands, items.era
        self._made = items.era, tables

    def to_save(self, items: IndexedItems) -> Tables | None:
        """Return tables of all these items if they were prepared."""
        if not self._n_prepared or len(items) < _MIN_ROWS:
            return None
        tables = self.covering(items, self._n_prepared)
        return tables or Tables(items.rows, self.n_bits, self._n_prepared)

    def within(self, queries: Codes, items: IndexedItems, radius: int) -> list[RowHits]:
        """Find all rows at distance ≤ radius: in one part, or in two, each in its order."""
        tables = self.covering(items, radius + 1) or self._tables(items, radius, len(queries))
        if tables is None:
            return [within(queries, items.rows, radius)]
        hits, n_tabled = tables.within(queries, radius), len(tables.codes)
        if n_tabled == len(items.rows):
            return [hits]
        behind = within(queries, items.rows[n_tabled:], radius)
        return [hits, behind._replace(rows=behind.rows + n_tabled)]

    def covering(self, items: IndexedItems, n_bands: int) -> Tables | None:
        """Return tables of all these items, with so many bands or more."""
        made = self._made  # read once: another thread may put newer ones in their place
        if made is None or made[0] is not items.era:
            return None
        tables = made[1]
        is_all = len(tables.codes) == len(items.rows) and tables.n_bands >= n_bands
        return tables if is_all else None

    def _tables(self, items: IndexedItems, radius: int, n_queries: int) -> Tables | None:
        """Return the tables to use, or None where a scan is better.

        Tables are made here only if the queries of this one call would take longer to scan what
        is outside of them: no call waits for what later ones may need.
        """
        tables = self._fitting(items, radius + 1)
        n_outside = len(items.rows) - (0 if tables is None else len(tables.codes))
        if not n_outside:
            return tables
        n_bands = max(_MIN_BANDS, radius + 1)
        n_bytes = n_queries * n_outside * items.rows.shape[1]
        if n_bytes <= _SCANNED_PER_ENTRY * n_bands * len(items) or len(items) < _MIN_ROWS:
            return tables
        return self._make(items, n_bands) if _tell_apart(self.n_bits, n_bands) else tables

    def _fitting(self, items: IndexedItems, n_bands: int) -> Tables | None:
        """Return tables of these items, or of the first of them."""
        made = self._made  # read once: another thread may put newer ones in their place
        if made is None or made[0] is not items.era or made[1].n_bands < n_bands:
            return None
        return made[1] if len(made[1].codes) <= len(items.rows) else None

    def _make(self, items: IndexedItems, n_bands: int) -> Tables:
        tables = Tables(items.rows, self.n_bits, n_bands)
        if items.era is self._era:
            self._made = items.era, tables
        return tables


def _tell_apart(n_bits: int, n_bands: int) -> bool:
    """Whether codes without structure leave few enough candidates: n·n_bands / 2^width."""
    return 2 * SCANNED_PER_CANDIDATE * n_bands <= 1 << min(n_bits // n_bands, _MAX_KEY_BITS)

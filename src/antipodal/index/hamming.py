"""`HammingIndex`: add codes, search them exactly, keep them in a file."""

import operator
import os
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.checks import MAX_ID, Ids, check_ids, check_whole, some_ids
from antipodal.codes import Codes, check_codes, code_width
from antipodal.errors import IndexFileError
from antipodal.index import scan
from antipodal.index.answers import Ball, Neighbours
from antipodal.index.approximate import ENGINES, Approximate
from antipodal.index.asymmetric import Floats, best_rows, check_one, check_values
from antipodal.index.bands import Bands
from antipodal.index.indexfile import read_index_file, write_index_file
from antipodal.index.items import MAX_ITEMS, IndexedItems, RowNumbers, take_rows, to_rows
from antipodal.index.rescore import OVERSAMPLE, Vectors, rescored
from antipodal.index.scan import MAX_BITS, Distances


class HammingIndex:
    """Codes that are searched by Hamming distance, exactly, each under an id.

    Answers are ordered by (distance, id), and where a tie is cut, it is cut by id: the same
    items give the same answer, in whatever order they came, on any machine.

    Searches may run in several threads, also while one other thread adds or removes: a search
    sees the items as they were when it began.

    Parameters
    ----------
    n_bits : int
        Bits of a code. Codes are packed as by `antipodal.pack`.
    engine : "flat", "ivf" or "hnsw"
        "flat" compares a query with every code. The others are approximate: their `search`,
        unless it is filtered, may miss items (`recall` measures how many) and is meant for tens
        of millions of codes. "ivf" groups codes and looks into the nearest groups, "hnsw"
        follows a graph, whose making takes long. Everything else they do exactly, as "flat".

    Notes
    -----
    Memory: a code takes its bytes, rounded up to 4, 8, 16, 32 or a multiple of 8, for which
    there are fast kernels. Ids without gaps take nothing, others 8 bytes each. The tables
    behind small radii take about 6 bytes for each of their bands, of which radius 2 has 3; they
    are made when queries first pay for them. An approximate engine keeps a second copy of the
    codes, with 8 bytes ("ivf") or about 150 ("hnsw") for each.

    Adding ids larger than all others costs what is added. Adding others, and removing, copies
    the codes once a call: do many at a time.

    Examples
    --------
    >>> from antipodal import pack
    >>> index = HammingIndex(n_bits=4)
    >>> index.add(pack([[0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]]))
    >>> index.search(pack([[0, 0, 1, 1]]), k=2)
    Neighbours(ids=array([[1, 0]]), distances=array([[1, 2]], dtype=int32), scores=None)
    >>> index.radius(pack([[0, 0, 1, 1]]), 2).ids
    array([1, 0, 2])
    """

    def __init__(self, n_bits: int, *, engine: str = "flat") -> None:
        self.n_bits = operator.index(n_bits)
        if not 1 <= self.n_bits <= MAX_BITS:
            raise ValueError(f"n_bits must be from 1 to {MAX_BITS}: got {n_bits}")
        if engine not in ENGINES:
            raise ValueError(f"engine must be one of {', '.join(ENGINES)}: got {engine!r}")
        self.engine = engine
        self._items = IndexedItems.none(self.n_bits)
        self._bands = Bands(self.n_bits)
        self._approximate = None if engine == "flat" else Approximate(engine)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"HammingIndex(n_bits={self.n_bits}, engine={self.engine!r}): {len(self)} items"

    @property
    def ids(self) -> Ids:
        """All ids, increasing."""
        return self._items.ids.copy()

    @property
    def nbytes(self) -> int:
        """Bytes of codes, ids and band tables; for a loaded index most of them are in the map."""
        return self._items.nbytes + self._bands.nbytes

    def codes(self, ids: ArrayLike) -> Codes:
        """Return the packed codes of ids, in their order."""
        items = self._items
        rows = _known_rows(items, check_ids(ids))
        return items.rows[rows, : code_width(self.n_bits)]

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None) -> None:
        """Add codes (n, ⌈n_bits / 8⌉), each under an id of its own.

        Parameters
        ----------
        codes : uint8 (n, ⌈n_bits / 8⌉)
            Packed codes; they are copied.
        ids : integers (n,), optional
            In any order. Without them, ids continue after the largest, from 0.

        Raises
        ------
        ValueError
            Among other reasons if an id is given twice or is in the index already. An error
            leaves the index as it was.
        """
        items = self._items
        new = check_codes(codes, self.n_bits)
        if len(items) + len(new) > MAX_ITEMS:
            raise ValueError(f"an index holds at most {MAX_ITEMS} items")
        if ids is None:
            first = items.next_id()
            if first + len(new) > MAX_ID + 1:
                raise ValueError(f"no ids are left after {first - 1}: give ids")
            self._change_to(items.added(to_rows(new, self.n_bits), range(first, first + len(new))))
            return
        given = check_ids(ids)
        if len(given) != len(new):
            raise ValueError(f"there must be an id for each of {len(new)} codes: got {len(given)}")
        if not _increasing(given):
            order = np.argsort(given)
            given, new = given[order], new[order]
            twice = given[1:][given[1:] == given[:-1]]
            if len(twice):
                raise ValueError(f"ids must be unique: {some_ids(np.unique(twice))} given twice")
        known = given[items.rows_of(given) >= 0]
        if len(known):
            raise ValueError(f"ids {some_ids(known)} are in the index already: remove them first")
        self._change_to(items.added(to_rows(new, self.n_bits), given.copy()))

    def remove(self, ids: ArrayLike) -> None:
        """Remove the items with these ids.

        Raises
        ------
        ValueError
            If some ids are not in the index; it names them, and nothing is removed.
        """
        items = self._items
        rows = _known_rows(items, check_ids(ids))
        if len(rows):
            self._change_to(items.removed(rows))

    def search(
        self,
        codes: ArrayLike | None = None,
        k: int = 10,
        *,
        vectors: ArrayLike | None = None,
        allowed: ArrayLike | None = None,
        rescore: Vectors | ArrayLike | None = None,
        oversample: int = OVERSAMPLE,
    ) -> Neighbours:
        """Find the k nearest items of each query, in the order (distance, id).

        Parameters
        ----------
        codes : uint8 (n_queries, ⌈n_bits / 8⌉)
            Packed codes of the queries.
        k : int
            At least 1. If there are fewer items, all are found.
        vectors : (n_queries, n_bits), in place of codes
            Real values of the queries, ``hasher.query(queries)``. Every item is scored by their
            sum with the signs of its bits, Σ zᵢ·bᵢ with b = ±1, by a scan whatever the engine.
            The order is then (score, id), best first; `distances` are those to the signs of z.
        allowed : integers, optional
            Ids to search among, in any order. Ids that are not in the index are passed over.
        rescore : Vectors or array (n_queries, n_bits), optional
            Take the ``k * oversample`` nearest items and return the k best of them by the
            cosine or distance of their vectors (`antipodal.Vectors`), or by the sum of
            ``hasher.query(queries)`` with the signs of their bits. The order is then (score,
            id), best first.
        oversample : int
            Candidates for each result of a rescored search.
        """
        items = self._items
        check_one(codes, vectors)
        check_whole(k, "k", 1)
        check_whole(oversample, "oversample", 1)
        rows = None if allowed is None else _allowed_rows(items, allowed)
        n_wanted = k if rescore is None else k * oversample
        scores: Floats | None = None
        if codes is not None:
            queries = self._queries(codes)
            found, distances = self._nearest(queries, items, rows, n_wanted)
        else:
            values = check_values(vectors, "vectors", self.n_bits)
            found, distances, scores = self._best(values, items, rows, n_wanted)
        near = Neighbours(items.ids_of(found), distances, scores)
        if rescore is None:
            return near
        width = code_width(self.n_bits)
        return rescored(near, k, rescore, self.n_bits, lambda: items.rows[found, :width])

    def radius(self, codes: ArrayLike, r: int, *, allowed: ArrayLike | None = None) -> Ball:
        """Find all items at Hamming distance ≤ r of each query, in the order (distance, id).

        Small radii are looked up in tables where that is faster than a scan; the answer is the
        same. `allowed` is as in `search`.
        """
        items, queries = self._items, self._queries(codes)
        check_whole(r, "r", 0)
        radius = min(int(r), self.n_bits)
        if allowed is not None:
            rows = _allowed_rows(items, allowed)
            hits = scan.within(queries, take_rows(items.rows, rows), radius)
            hits = hits._replace(rows=rows[hits.rows])
        elif tables := self._bands.tables(items, radius, len(queries)):
            hits = tables.within(queries, radius)
        else:
            hits = scan.within(queries, items.rows, radius)
        return Ball(hits.offsets, items.ids_of(hits.rows), hits.distances)

    def recall(self, codes: ArrayLike, k: int) -> float:
        """Measure the share of the k nearest that `search` finds, against the exact scan.

        An item counts as found if it is no farther than the k-th nearest: which of several
        items at that distance is returned does not matter.
        """
        items, queries = self._items, self._queries(codes)
        check_whole(k, "k", 1)
        if not len(items) or not len(queries):
            raise ValueError("recall needs items in the index and queries")
        exact = scan.nearest(queries, items.rows, min(k, len(items)))[1]
        found = self._nearest(queries, items, None, k)[1]
        return float(np.mean(found <= exact[:, -1:]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a file, with a checksum; a file already there is replaced whole.

        An approximate engine is made if it is not yet, and is in the file. Tables for small
        radii are not: they are quick to make again.
        """
        items, engine_data = self._items, np.empty(0, dtype=np.uint8)
        if self._approximate is not None:
            engine_data = self._approximate.to_bytes(items)
        write_index_file(path, self.n_bits, self.engine, items, engine_data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Open a saved index. Its codes stay in the file, mapped; adding or removing copies them.

        Raises
        ------
        IndexFileError
            If the file is not an index, was truncated or does not match its checksum.
        """
        header, items, engine_data = read_index_file(path)
        try:
            index = cls(header.n_bits, engine=header.engine)
        except (TypeError, ValueError) as error:
            raise IndexFileError(f"{path} cannot be used: {error}") from error
        index._items = items
        if len(engine_data):
            index._approximate = Approximate(header.engine, engine_data, items.era)
        return index

    def _change_to(self, items: IndexedItems) -> None:
        self._items = items
        self._bands = Bands(self.n_bits)  # tables of other items would only keep their memory

    def _queries(self, codes: ArrayLike) -> Codes:
        return to_rows(check_codes(codes, self.n_bits, "query codes"), self.n_bits)

    def _nearest(
        self, queries: Codes, items: IndexedItems, rows: RowNumbers | None, k: int
    ) -> tuple[RowNumbers, Distances]:
        if rows is not None:
            found, distances = scan.nearest(queries, take_rows(items.rows, rows), min(k, len(rows)))
            return rows[found], distances
        k = min(k, len(items))
        if self._approximate is not None:
            return self._approximate.nearest(queries, items, k)
        return scan.nearest(queries, items.rows, k)

    def _best(
        self, values: Floats, items: IndexedItems, rows: RowNumbers | None, k: int
    ) -> tuple[RowNumbers, Distances, Floats]:
        if rows is None:
            found, scores = best_rows(values, items.rows, min(k, len(items)))
        else:
            found, scores = best_rows(values, take_rows(items.rows, rows), min(k, len(rows)))
            found = rows[found]
        signs = to_rows(np.packbits(values > 0, axis=1), self.n_bits)
        distances = np.bitwise_count(items.rows[found] ^ signs[:, None]).sum(axis=2, dtype=np.int32)
        return found, distances, scores


def _allowed_rows(items: IndexedItems, allowed: ArrayLike) -> RowNumbers:
    """Return the rows of the allowed ids that there are, increasing."""
    rows = items.rows_of(check_ids(allowed, "allowed"))
    rows = rows[rows >= 0]
    if _increasing(rows):
        return rows
    if len(rows) > len(items) // 4:  # mark them: sorting so many takes longer
        is_allowed = np.zeros(len(items), dtype=np.bool_)
        is_allowed[rows] = True
        return np.flatnonzero(is_allowed)
    rows.sort()
    return rows[scan.first_of_equals(rows)]


def _known_rows(items: IndexedItems, ids: Ids) -> RowNumbers:
    rows = items.rows_of(ids)
    unknown = ids[rows < 0]
    if len(unknown):
        raise ValueError(f"ids {some_ids(unknown)} are not in the index")
    return rows


def _increasing(numbers: NDArray[np.int64]) -> bool:
    return bool((numbers[1:] > numbers[:-1]).all())

"""`HammingIndex`: add codes, search them exactly, keep them in a file."""

import operator
import os
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import Codes, check_codes, code_width
from antipodal.errors import IndexFileError
from antipodal.index import scan
from antipodal.index.approximate import ENGINES, Approximate
from antipodal.index.asymmetric import Floats, best_rows, check_one, check_values
from antipodal.index.index_file import IndexDescription, read_index_file, write_index_file
from antipodal.index.items import MAX_ITEMS, IndexedItems, RowNumbers, row_width, take_rows, to_rows
from antipodal.index.radius_tables import Bands
from antipodal.index.rerank import OVERSAMPLE, Vectors, rescored
from antipodal.index.results import Ball, Neighbours
from antipodal.index.scan import MAX_BITS, RowHits
from antipodal.index.segments import Contents, first_of_all, union, without
from antipodal.validation import MAX_ID, Ids, check_ids, check_whole, some_ids


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
    model : str, optional
        Identity of the model that makes the codes, such as the SHA-256 of its file. It is kept
        in the file of the index, which then refuses to be loaded for another.

    Notes
    -----
    Memory: a code takes its bytes, rounded up to 4, 8, 16, 32 or a multiple of 8, for which
    there are fast kernels. Ids without gaps take nothing, others 8 bytes each. The tables
    behind small radii (`prepare`) take 4 to 12 bytes for each of their bands, of which radius 2
    has 3. An approximate engine keeps a second copy of the codes, with 8 bytes ("ivf") or about
    150 ("hnsw") for each.

    Adding ids larger than all others costs what is added. Others are kept apart, and what is
    removed is only noted: a change copies up to 65,536 items, or a 256th of them. Beyond that,
    one change copies all.

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

    def __init__(self, n_bits: int, *, engine: str = "flat", model: str | None = None) -> None:
        self.n_bits = operator.index(n_bits)
        if not 1 <= self.n_bits <= MAX_BITS:
            raise ValueError(f"n_bits must be from 1 to {MAX_BITS}: got {n_bits}")
        if engine not in ENGINES:
            raise ValueError(f"engine must be one of {', '.join(ENGINES)}: got {engine!r}")
        self.engine, self.model = engine, model
        self._held = Contents.of(IndexedItems.none(self.n_bits), self.n_bits)
        self._bands = Bands(self.n_bits)
        self._is_padded = row_width(self.n_bits) > code_width(self.n_bits)
        self._approximate = None if engine == "flat" else Approximate(engine)

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return f"HammingIndex(n_bits={self.n_bits}, engine={self.engine!r}): {len(self)} items"

    @property
    def ids(self) -> Ids:
        """All ids, increasing."""
        return self._held.ids.copy()

    @property
    def nbytes(self) -> int:
        """Bytes of codes, ids and band tables; for a loaded index most of them are in the map."""
        return self._held.nbytes + self._bands.nbytes

    def codes(self, ids: ArrayLike) -> Codes:
        """Return the packed codes of ids, in their order."""
        held = self._held
        codes = held.codes_of(_known_rows(held, check_ids(ids)))
        return np.ascontiguousarray(codes[:, : code_width(self.n_bits)])

    def contains(self, ids: ArrayLike) -> NDArray[np.bool_]:
        """Say of each id whether it is in the index."""
        return self._held.rows_of(check_ids(ids)) >= 0

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
        held = self._held
        new = check_codes(codes, self.n_bits)
        if len(held.main) + len(held.late) + len(new) > MAX_ITEMS:
            raise ValueError(f"an index holds at most {MAX_ITEMS} items")
        if ids is None:
            first = held.next_id()
            if first + len(new) > MAX_ID + 1:
                raise ValueError(f"no ids are left after {first - 1}: give ids")
            self._change_to(held.added(to_rows(new, self.n_bits), range(first, first + len(new))))
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
        known = given[held.rows_of(given) >= 0]
        if len(known):
            raise ValueError(f"ids {some_ids(known)} are in the index already: remove them first")
        self._change_to(held.added(to_rows(new, self.n_bits), given.copy()))

    def remove(self, ids: ArrayLike) -> None:
        """Remove the items with these ids.

        Raises
        ------
        ValueError
            If some ids are not in the index; it names them, and nothing is removed.
        """
        held = self._held
        rows = _known_rows(held, check_ids(ids))
        if len(rows):
            self._change_to(held.removed(rows))

    def prepare(self, radius: int = 2) -> None:
        """Make the tables that answer `radius` queries up to this radius without a scan.

        They take about as long as some 200 queries, and are then kept up and saved with the
        index. Without them queries are scanned, unless there are so many in one call that making
        tables is faster.

        Raises
        ------
        ValueError
            If codes are too short for tables to be faster than a scan at this radius.
        """
        check_whole(radius, "radius", 0)
        self._bands.prepare(self._held.main, int(radius))

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
        held = self._held
        check_one(codes, vectors)
        check_whole(k, "k", 1)
        check_whole(oversample, "oversample", 1)
        rows = None if allowed is None else _allowed_rows(held, allowed)
        n_wanted = k if rescore is None else k * oversample
        if codes is not None:
            near = self._nearest(self._queries(codes), held, rows, n_wanted)
        else:
            values = check_values(vectors, "vectors", self.n_bits)
            near = self._best(values, held, rows, n_wanted)
        if rescore is None:
            return near
        width = code_width(self.n_bits)
        return rescored(
            near, k, rescore, self.n_bits, lambda: _codes_found(held, near.ids)[..., :width]
        )

    def radius(self, codes: ArrayLike, r: int, *, allowed: ArrayLike | None = None) -> Ball:
        """Find all items at Hamming distance ≤ r of each query, in the order (distance, id).

        Small radii are looked up in tables where that is faster than a scan; the answer is the
        same. `allowed` is as in `search`.
        """
        held, queries = self._held, self._queries(codes)
        check_whole(r, "r", 0)
        radius = min(int(r), self.n_bits)
        if allowed is not None:
            some = held.by_run(_allowed_rows(held, allowed))
            return union(
                [
                    _ball(items, scan.within(queries, take_rows(items.rows, rows), radius), rows)
                    for items, rows in some
                ]
            )
        main, late = held.main, held.late
        hits = self._bands.within(queries, main, radius)
        if held.is_one_run and len(hits) == 1:  # the usual case, quickly
            offsets, rows, distances = hits[0]
            return Ball(offsets, main.ids_of(rows), distances)
        balls = [_ball(main, without(part, held.removed_rows)) for part in hits]
        if len(late):
            balls.append(_ball(late, scan.within(queries, late.rows, radius)))
        return union(balls)

    def recall(self, codes: ArrayLike, k: int) -> float:
        """Measure the share of the k nearest that `search` finds, against the exact scan.

        An item counts as found if it is no farther than the k-th nearest: which of several
        items at that distance is returned does not matter.
        """
        held, queries = self._held, self._queries(codes)
        check_whole(k, "k", 1)
        if not len(held) or not len(queries):
            raise ValueError("recall needs items in the index and queries")
        exact = first_of_all(scan.nearest, queries, k, held)[1]
        found = self._nearest(queries, held, None, k).distances
        return float(np.mean(found <= exact[:, -1:]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a file, with a checksum; a file already there is replaced whole.

        An approximate engine is made if it is not yet, and is in the file. So are the tables of
        an index that was prepared, and the identity of the model.
        """
        items, engine_data = self._held.in_one_run(), np.empty(0, dtype=np.uint8)
        if self._approximate is not None:
            engine_data = self._approximate.to_bytes(items)
        about = IndexDescription(self.n_bits, self.engine, self.model)
        write_index_file(path, about, items, engine_data, self._bands.to_save(items))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, model: str | None = None) -> Self:
        """Open a saved index. Its codes stay in the file, mapped.

        Parameters
        ----------
        path : path
        model : str, optional
            Identity of the model whose codes are to be compared with those in the file.

        Raises
        ------
        IndexFileError
            If the file is not an index, was truncated or does not match its checksum, or if it
            holds codes of another model, or does not say of which.
        """
        about, items, engine_data, tables = read_index_file(path)
        if model not in (None, about.model):
            held = (
                "does not say which model made its codes"
                if about.model is None
                else (f"holds codes of model {about.model!r}")
            )
            raise IndexFileError(
                f"{path} {held}: it cannot be searched by codes of model {model!r}. Distances "
                "between codes of different models mean nothing"
            )
        try:
            index = cls(about.n_bits, engine=about.engine, model=about.model)
        except (TypeError, ValueError) as error:
            raise IndexFileError(f"{path} cannot be used: {error}") from error
        index._change_to(Contents.of(items, index.n_bits))
        if tables is not None:
            index._bands.keep(items, tables)
        if len(engine_data):
            index._approximate = Approximate(about.engine, engine_data, items.era)
        return index

    def _change_to(self, held: Contents) -> None:
        self._held = held
        self._bands.follow(held.main)

    def _queries(self, codes: ArrayLike) -> Codes:
        checked = check_codes(codes, self.n_bits, "query codes")
        return to_rows(checked, self.n_bits) if self._is_padded else checked

    def _nearest(
        self, queries: Codes, held: Contents, rows: RowNumbers | None, k: int
    ) -> Neighbours:
        approximate = self._approximate
        if approximate is None:
            return Neighbours(*first_of_all(scan.nearest, queries, k, held, rows))
        return Neighbours(
            *first_of_all(
                scan.nearest,
                queries,
                k,
                held,
                rows,
                search_main=lambda part, _, n: approximate.nearest(part, held.main, n),
            )
        )

    def _best(self, values: Floats, held: Contents, rows: RowNumbers | None, k: int) -> Neighbours:
        def search(part: Floats, codes: Codes, n: int) -> tuple[RowNumbers, Floats]:
            found, scores = best_rows(part, codes, n)
            return found, -scores  # smaller is better, as for distances

        ids, costs = first_of_all(search, values, k, held, rows)
        signs = to_rows(np.packbits(values > 0, axis=1), self.n_bits)
        codes = _codes_found(held, ids)
        distances = np.bitwise_count(codes ^ signs[:, None]).sum(axis=2, dtype=np.int32)
        return Neighbours(ids, distances, -costs)


def _allowed_rows(held: Contents, allowed: ArrayLike) -> RowNumbers:
    """Return the rows of the allowed ids that there are, increasing."""
    rows = held.rows_of(check_ids(allowed, "allowed"))
    rows = rows[rows >= 0]
    if _increasing(rows):
        return rows
    n_rows = len(held.main) + len(held.late)
    if len(rows) > n_rows // 4:  # mark them: sorting so many takes longer
        is_allowed = np.zeros(n_rows, dtype=np.bool_)
        is_allowed[rows] = True
        return np.flatnonzero(is_allowed)
    rows.sort()
    return rows[scan.first_of_equals(rows)]


def _known_rows(held: Contents, ids: Ids) -> RowNumbers:
    rows = held.rows_of(ids)
    unknown = ids[rows < 0]
    if len(unknown):
        raise ValueError(f"ids {some_ids(unknown)} are not in the index")
    return rows


def _codes_found(held: Contents, ids: Ids) -> Codes:
    """Return the padded codes of items that a search has found, in the shape of their ids."""
    return held.codes_of(held.rows_of(ids.ravel()).reshape(ids.shape))


def _ball(items: IndexedItems, hits: RowHits, rows: RowNumbers | None = None) -> Ball:
    """Name the items that were found in a run, or in some of its rows."""
    found = hits.rows if rows is None else rows[hits.rows]
    return Ball(hits.offsets, items.ids_of(found), hits.distances)


def _increasing(numbers: NDArray[np.int64]) -> bool:
    return bool((numbers[1:] > numbers[:-1]).all())

"""`HammingIndex`: search of binary codes by Hamming distance or with float queries."""

import operator
import os
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import Codes, check_codes, code_width
from antipodal.errors import IndexFileError
from antipodal.index import scan
from antipodal.index.approximate import ENGINES, ApproximateEngine
from antipodal.index.asymmetric import Floats, best_rows, check_codes_or_vectors, check_values
from antipodal.index.fastscan import PackedCodes
from antipodal.index.index_file import IndexDescription, read_index_file, write_index_file
from antipodal.index.radius_tables import TableCache
from antipodal.index.rerank import OVERSAMPLE, Vectors, rerank
from antipodal.index.results import SearchResult
from antipodal.index.scan import MAX_BITS
from antipodal.index.segments import (
    MAX_ITEMS,
    IndexedItems,
    RowNumbers,
    Segments,
    is_member,
    row_width,
    search_segments,
    take_rows,
    to_rows,
)
from antipodal.validation import MAX_ID, Ids, check_ids, check_whole, some_ids


class HammingIndex:
    """Index of binary codes, for search by Hamming distance or with float queries.

    Results are ordered by (distance, id), and ties at the k-th place are broken by id. They depend
    only on the items, not on their insertion order or on the machine.

    Searches may run in several threads, even while another thread adds or removes items: a
    search uses a snapshot of the index taken when it starts.

    Parameters
    ----------
    n_bits : int
        Code length in bits. Codes are packed as by `antipodal.pack`.
    engine : "flat", "ivf" or "hnsw"
        "flat" compares a query with every code. The others are approximate and meant for tens of
        millions of codes: an unfiltered `search` may miss items (see `recall`). "ivf" clusters
        the codes and scans the nearest clusters, for queries by codes or vectors. "hnsw" follows a
        graph, which takes long to build, for queries by codes only. Filtered searches and radius
        searches are exact with every engine, and so are searches by vectors with "hnsw".
    model : str, optional
        Identity of the model of the codes, such as the SHA-256 of its file. It is saved
        with the index, and `load` can require it.
    dictionary : (features, n_bits), optional
        `dictionary_` of an asymmetric model, for "ivf" with queries by vectors. The index then
        clusters the reconstructions of the codes, with a much higher recall than clusters of the
        codes. It is saved with the index.
    n_probe : int, optional
        Number of lists that "ivf" scans for a query. There are √n lists for n items. By default, a
        query by codes scans one in 16 and at least 8, and a query by vectors one in 32 and at least
        32. It may be changed at any time and is not saved.

    Notes
    -----
    Memory: each code is padded to 4, 8, 16, 32 or a multiple of 8 bytes, for which Faiss has fast
    kernels. Consecutive ids take no memory, others 8 bytes each. The tables for small radii
    (`prepare`) take 4 to 12 bytes per item and band; radius 2 needs 3 bands. Asymmetric search of
    16,384 items or more makes a second copy of the codes, rearranged for Faiss, after the first few
    queries. An approximate engine stores a copy of the codes, with 8 bytes ("ivf") or about 150
    bytes ("hnsw") per item, and "ivf" another one for asymmetric search.

    Adding ids larger than all others takes time proportional to the added items. Other additions
    go to a small second segment, and removed items are only marked: such a change copies up to
    65,536 items, or 1/256 of them. Beyond that, the change copies the whole index.

    Examples
    --------
    >>> from antipodal import pack
    >>> index = HammingIndex(n_bits=4)
    >>> index.add(pack([[0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]]))
    >>> found = index.search(pack([[0, 0, 1, 1]]), k=2)
    >>> found.ids, found.distances
    (array([[1, 0]]), array([[1, 2]], dtype=int32))
    >>> index.radius(pack([[0, 0, 1, 1]]), 2).ids
    array([1, 0, 2])
    """

    def __init__(
        self,
        n_bits: int,
        *,
        engine: str = "flat",
        model: str | None = None,
        dictionary: ArrayLike | None = None,
        n_probe: int | None = None,
    ) -> None:
        self.n_bits = operator.index(n_bits)
        if not 1 <= self.n_bits <= MAX_BITS:
            raise ValueError(f"n_bits must be from 1 to {MAX_BITS}: got {n_bits}")
        if engine not in ENGINES:
            raise ValueError(f"engine must be one of {', '.join(ENGINES)}: got {engine!r}")
        self.engine, self.model = engine, model
        self._segments = Segments.of(IndexedItems.none(self.n_bits), self.n_bits)
        self._tables = TableCache(self.n_bits)
        self._packed = PackedCodes()
        self._is_padded = row_width(self.n_bits) > code_width(self.n_bits)
        if dictionary is not None and engine != "ivf":
            raise ValueError(f'dictionary is for engine="ivf": got engine={engine!r}')
        self._dictionary = (
            None
            if dictionary is None
            else check_values(dictionary, "dictionary", self.n_bits).astype(np.float32)
        )
        self._approximate = (
            None if engine == "flat" else ApproximateEngine(engine, self._dictionary)
        )
        if n_probe is not None:
            self.n_probe = n_probe

    def __len__(self) -> int:
        return len(self._segments)

    def __repr__(self) -> str:
        return f"HammingIndex(n_bits={self.n_bits}, engine={self.engine!r}): {len(self)} items"

    @property
    def n_probe(self) -> int | None:
        """Number of lists that "ivf" scans for a query; None for the default."""
        return None if self._approximate is None else self._approximate.n_probe

    @n_probe.setter
    def n_probe(self, n_probe: int | None) -> None:
        if self._approximate is None or self.engine != "ivf":
            raise ValueError(f'n_probe is for engine="ivf": got engine={self.engine!r}')
        if n_probe is not None:
            check_whole(n_probe, "n_probe", 1)
        self._approximate.n_probe = n_probe

    @property
    def ids(self) -> Ids:
        """All ids, increasing."""
        return self._segments.ids.copy()

    @property
    def nbytes(self) -> int:
        """Bytes of codes, ids, radius tables and packed codes, including memory-mapped ones."""
        return self._segments.nbytes + self._tables.nbytes + self._packed.nbytes

    def codes(self, ids: ArrayLike) -> Codes:
        """Return the packed codes of ids, in the order given."""
        segments = self._segments
        codes = segments.codes_of(_known_rows(segments, check_ids(ids)))
        return np.ascontiguousarray(codes[:, : code_width(self.n_bits)])

    def contains(self, ids: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each id is in the index."""
        return self._segments.rows_of(check_ids(ids)) >= 0

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None) -> None:
        """Add codes, each under a new id.

        Parameters
        ----------
        codes : uint8 (n, ⌈n_bits / 8⌉)
            Packed codes, which are copied.
        ids : integers (n,), optional
            Unique, in any order. By default, ids continue after the largest, starting at 0.

        Raises
        ------
        ValueError
            If an id is repeated or already in the index, among other reasons. The index is then
            unchanged.
        """
        segments = self._segments
        new = check_codes(codes, self.n_bits)
        if len(segments.main) + len(segments.delta) + len(new) > MAX_ITEMS:
            raise ValueError(f"an index can have at most {MAX_ITEMS} items")
        if ids is None:
            first = segments.next_id()
            if first + len(new) > MAX_ID + 1:
                raise ValueError(f"no ids are left after {first - 1}: pass ids explicitly")
            rows = to_rows(new, self.n_bits)
            self._replace_segments(segments.added(rows, range(first, first + len(new))))
            return
        given = check_ids(ids)
        if len(given) != len(new):
            raise ValueError(f"ids must have one id for each of {len(new)} codes: got {len(given)}")
        if not _increasing(given):
            order = np.argsort(given)
            given, new = given[order], new[order]
            twice = given[1:][given[1:] == given[:-1]]
            if len(twice):
                raise ValueError(f"ids must be unique: got {some_ids(np.unique(twice))} twice")
        known = given[segments.rows_of(given) >= 0]
        if len(known):
            raise ValueError(f"ids {some_ids(known)} are already in the index: remove them first")
        self._replace_segments(segments.added(to_rows(new, self.n_bits), given.copy()))

    def remove(self, ids: ArrayLike) -> None:
        """Remove the items with these ids.

        Raises
        ------
        ValueError
            If ids are not in the index. Nothing is removed.
        """
        segments = self._segments
        rows = _known_rows(segments, check_ids(ids))
        if len(rows):
            self._replace_segments(segments.removed(rows))

    def prepare(self, radius: int = 2) -> None:
        """Build the tables that answer `radius` queries up to this radius without a scan.

        Building them takes about as long as 200 queries. They are then kept up to date and saved
        with the index. Without them, queries are answered by a scan, unless one call has enough
        queries for building tables to be faster.

        Raises
        ------
        ValueError
            If codes are too short for tables to be faster than a scan at this radius.
        """
        check_whole(radius, "radius", 0)
        self._tables.prepare(self._segments.main, int(radius))

    def search(
        self,
        codes: ArrayLike | None = None,
        k: int = 10,
        *,
        vectors: ArrayLike | None = None,
        allowed: ArrayLike | None = None,
        rescore: Vectors | ArrayLike | None = None,
        oversample: int = OVERSAMPLE,
    ) -> SearchResult:
        """Return the k nearest items of each query, ordered by (distance, id).

        Parameters
        ----------
        codes : uint8 (n_queries, ⌈n_bits / 8⌉)
            Packed codes of the queries.
        k : int
            Number of neighbours, at least 1. All items are returned if there are fewer.
        vectors : (n_queries, n_bits), in place of codes
            Float queries for asymmetric search, ``hasher.query(queries)``. Every item is scored
            by Σ zᵢ·bᵢ with the signs b = ±1 of its bits. The order is then (score, id), best
            first; `distances` are those to the signs of z. Σ|zᵢ| must not overflow.
        allowed : integers, optional
            Ids to search among, in any order. Ids that are not in the index are ignored.
        rescore : Vectors or array (n_queries, n_bits), optional
            Rerank the ``k * oversample`` nearest items and return the k best of them, ordered by
            (score, id). Scores are computed from vectors (`antipodal.Vectors`), or from
            ``hasher.query(queries)`` as in asymmetric search.
        oversample : int
            Oversampling factor of reranking: the number of candidates is ``k * oversample``.

        Returns
        -------
        SearchResult
            `ids` and `distances` have one row per query.
        """
        segments = self._segments
        check_codes_or_vectors(codes, vectors)
        check_whole(k, "k", 1)
        check_whole(oversample, "oversample", 1)
        rows = None if allowed is None else _allowed_rows(segments, allowed)
        n_candidates = k if rescore is None else k * oversample
        if codes is not None:
            near = self._nearest(self._queries(codes), segments, rows, n_candidates)
        else:
            values = check_values(vectors, "vectors", self.n_bits)
            near = self._asymmetric(values, segments, rows, n_candidates)
        if rescore is None:
            return near
        width = code_width(self.n_bits)
        return rerank(
            near, k, rescore, self.n_bits, lambda: _codes_of(segments, near.ids)[..., :width]
        )

    def radius(self, codes: ArrayLike, r: int, *, allowed: ArrayLike | None = None) -> SearchResult:
        """Return all items at Hamming distance ≤ r of each query, ordered by (distance, id).

        Small radii are looked up in tables where that is faster than a scan, with equal results.
        `allowed` is as in `search`.

        Returns
        -------
        SearchResult
            The items of query i are at ``offsets[i]:offsets[i + 1]`` of `ids` and `distances`.
        """
        segments, queries = self._segments, self._queries(codes)
        check_whole(r, "r", 0)
        radius, parts = min(int(r), self.n_bits), []
        if allowed is not None:
            for items, rows in segments.by_segment(_allowed_rows(segments, allowed)):
                found = scan.within(queries, take_rows(items.rows, rows), radius)
                parts.append(found.with_ids(items.ids_of(rows[found.ids])))
            return SearchResult.merge(parts)
        main, delta, removed = segments.main, segments.delta, segments.removed_rows
        in_main = self._tables.within(queries, main, radius)
        if segments.is_merged and len(in_main) == 1:  # the common case, with little overhead
            return in_main[0].with_ids(main.ids_of(in_main[0].ids))
        for found in in_main:
            if len(removed) and len(found.ids):
                found = found.select(~is_member(found.ids, removed))
            parts.append(found.with_ids(main.ids_of(found.ids)))
        if len(delta):
            found = scan.within(queries, delta.rows, radius)
            parts.append(found.with_ids(delta.ids_of(found.ids)))
        return SearchResult.merge(parts)

    def recall(
        self, codes: ArrayLike | None = None, k: int = 10, *, vectors: ArrayLike | None = None
    ) -> float:
        """Return the recall@k of `search` by codes or by vectors, compared with an exact scan.

        Any result as near as the k-th nearest item, or with a score as high, is correct: the
        choice among ties does not matter.
        """
        segments = self._segments
        check_codes_or_vectors(codes, vectors)
        check_whole(k, "k", 1)
        queries: NDArray[Any] = (
            check_values(vectors, "vectors", self.n_bits) if codes is None else self._queries(codes)
        )
        if not len(segments) or not len(queries):
            raise ValueError("recall needs at least one item in the index and one query")
        if codes is not None:
            exact = search_segments(scan.nearest, queries, k, segments)[1]
            found = self._nearest(queries, segments, None, k).distances
            return float(np.mean(found <= exact[:, -1:]))
        exact = self._scored(queries, segments, None, k, exact=True)[1]
        costs = self._scored(queries, segments, None, k, exact=self.engine != "ivf")[1]
        return float(np.mean(costs <= exact[:, -1:]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a file with a checksum, replacing an existing file atomically.

        The file includes the approximate engine, which is built first if necessary, the tables of
        a prepared index, and the identity of the model.
        """
        items, engine_data = self._segments.merged(), np.empty(0, dtype=np.uint8)
        if self._approximate is not None:
            engine_data = self._approximate.to_bytes(items)
        description = IndexDescription(self.n_bits, self.engine, self.model, self._dictionary)
        write_index_file(path, description, items, engine_data, self._tables.to_save(items))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, model: str | None = None) -> Self:
        """Open a saved index; its codes are memory-mapped.

        Parameters
        ----------
        path : path
        model : str, optional
            Identity of the model that encodes the queries; the file must contain the same identity.

        Raises
        ------
        IndexFileError
            If the file is not an index, is truncated or does not match its checksum, or if it
            contains another identity or none.
        """
        description, items, engine_data, tables = read_index_file(path)
        if model not in (None, description.model):
            stored = (
                "does not name the model of its codes"
                if description.model is None
                else f"has codes of model {description.model!r}"
            )
            raise IndexFileError(
                f"{path} {stored}: it cannot be searched with codes of model {model!r}. Distances "
                "between codes of different models are meaningless"
            )
        try:
            index = cls(**description._asdict())
        except (TypeError, ValueError) as error:
            raise IndexFileError(f"{path} cannot be used: {error}") from error
        index._replace_segments(Segments.of(items, index.n_bits))
        if tables is not None:
            index._tables.set(items, tables)
        if len(engine_data):
            index._approximate = ApproximateEngine(
                index.engine, index._dictionary, saved=engine_data, generation=items.generation
            )
        return index

    def _replace_segments(self, segments: Segments) -> None:
        self._segments = segments
        self._tables.update(segments.main)
        self._packed.update(segments.main)

    def _queries(self, codes: ArrayLike) -> Codes:
        checked = check_codes(codes, self.n_bits, "query codes")
        return to_rows(checked, self.n_bits) if self._is_padded else checked

    def _nearest(
        self, queries: Codes, segments: Segments, rows: RowNumbers | None, k: int
    ) -> SearchResult:
        approximate = self._approximate
        if approximate is None:
            return SearchResult(*search_segments(scan.nearest, queries, k, segments, rows))
        return SearchResult(
            *search_segments(
                scan.nearest,
                queries,
                k,
                segments,
                rows,
                search_main=lambda part, _, n: approximate.nearest(part, segments.main, n),
            )
        )

    def _asymmetric(
        self, values: Floats, segments: Segments, rows: RowNumbers | None, k: int
    ) -> SearchResult:
        ids, costs = self._scored(values, segments, rows, k, exact=self.engine != "ivf")
        signs = to_rows(np.packbits(values > 0, axis=1), self.n_bits)
        codes = _codes_of(segments, ids)
        distances = np.bitwise_count(codes ^ signs[:, None]).sum(axis=2, dtype=np.int32)
        return SearchResult(ids, distances, -costs)

    def _scored(
        self, values: Floats, segments: Segments, rows: RowNumbers | None, k: int, *, exact: bool
    ) -> tuple[Ids, Floats]:
        """Return the ids of the k best items and their negated scores: smaller is better."""
        main, packed = segments.main, self._packed
        approximate = None if exact else self._approximate
        best_in_main = packed.best_rows if approximate is None else approximate.best_rows

        def negate(found: tuple[RowNumbers, Floats]) -> tuple[RowNumbers, Floats]:
            return found[0], -found[1]

        return search_segments(
            lambda part, codes, n: negate(best_rows(part, codes, n)),
            values,
            k,
            segments,
            rows,
            search_main=lambda part, _, n: negate(best_in_main(part, main, n)),
            search_among=lambda part, some, n: negate(packed.best_rows(part, main, n, some)),
        )


def _allowed_rows(segments: Segments, allowed: ArrayLike) -> RowNumbers:
    """Return the rows of those allowed ids that are in the index, increasing."""
    rows = segments.rows_of(check_ids(allowed, "allowed"))
    rows = rows[rows >= 0]
    if _increasing(rows):
        return rows
    n_rows = len(segments.main) + len(segments.delta)
    if len(rows) > n_rows // 4:  # a mask is faster than sorting this many
        is_allowed = np.zeros(n_rows, dtype=np.bool_)
        is_allowed[rows] = True
        return np.flatnonzero(is_allowed)
    rows.sort()
    return rows[scan.first_of_equals(rows)]


def _known_rows(segments: Segments, ids: Ids) -> RowNumbers:
    rows = segments.rows_of(ids)
    unknown = ids[rows < 0]
    if len(unknown):
        raise ValueError(f"ids {some_ids(unknown)} are not in the index")
    return rows


def _codes_of(segments: Segments, ids: Ids) -> Codes:
    """Return the padded codes of items found by a search, in the shape of their ids."""
    return segments.codes_of(segments.rows_of(ids.ravel()).reshape(ids.shape))


def _increasing(numbers: NDArray[np.int64]) -> bool:
    return bool((numbers[1:] > numbers[:-1]).all())

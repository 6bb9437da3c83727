"""Approximate k-NN engines for tens of millions of codes: IVF and HNSW of Faiss.

They answer unfiltered k-NN queries only, IVF also with float queries. Radius searches, filters and
removal use the codes of the index itself. Faiss stores a second copy of the codes, and a third one
for float queries.
"""

import math
import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.index.asymmetric import Floats, best_rows, scan_byte_tables
from antipodal.index.results import Distances
from antipodal.index.scan import nearest, threads_for
from antipodal.index.segments import IndexedItems, RowNumbers
from antipodal.io.faiss import halves_swapped, load_faiss, sign_index

ENGINES = ("flat", "ivf", "hnsw")

_MIN_ROWS = 10_000  # a scan of fewer rows is as fast
_RETRAIN_GROWTH = 4  # clusters are trained again when the number of rows has grown this much
_MAX_NEW_SHARE = 64  # lists for float queries are packed again when they lack 1/64 of the rows
_LINKS = 16


class ApproximateEngine:
    """A Faiss index over the main segment, built by the first search.

    Appended rows are added to it; after any other change it is rebuilt. A lock admits one thread
    at a time.

    Parameters
    ----------
    engine : "ivf" or "hnsw"
    saved : uint8 array, optional
        Result of `to_bytes` for items of this `generation`; deserialised when first needed.
    """

    def __init__(
        self, engine: str, saved: NDArray[np.uint8] | None = None, generation: object = None
    ) -> None:
        self.engine = engine
        self._lock = threading.Lock()
        self._saved = saved
        self._generation = generation
        self._index: Any = None
        self._n_trained = 0
        self._lists: _SignLists | None = None

    def nearest(self, queries: Codes, items: IndexedItems, k: int) -> tuple[RowNumbers, Distances]:
        """Return k rows per query, ordered by (distance, row), that are likely the nearest.

        Queries for which the engine finds fewer than k rows are answered by a scan.
        """
        if len(items) < _MIN_ROWS:
            return nearest(queries, items.rows, k)
        with self._lock:
            index = self._up_to_date(items)
            self._set_effort(index, k)
            with threads_for(len(queries), len(queries) * items.rows.nbytes // 32):
                distances, rows = index.search(queries, k)
        # Faiss returns -1 for a missing result. Rows past the end were added by another thread
        # while this search waited for the lock.
        short = np.flatnonzero(((rows < 0) | (rows >= len(items))).any(axis=1))
        if len(short):
            rows[short], distances[short] = nearest(queries[short], items.rows, k)
        order = np.lexsort((rows, distances), axis=1)
        return np.take_along_axis(rows, order, axis=1), np.take_along_axis(distances, order, axis=1)

    def best_rows(self, z: Floats, items: IndexedItems, k: int) -> tuple[RowNumbers, Floats]:
        """Return k rows per float query, ordered by (score, row), that are likely the best.

        Only the engine "ivf" supports float queries. Scores are exact, and queries for which it
        finds fewer than k rows are answered exactly.
        """
        if len(items) < _MIN_ROWS:
            return best_rows(z, items.rows, k)
        with self._lock:
            index, lists = self._up_to_date(items), self._lists
            n_new = index.ntotal - (0 if lists is None else lists.index.ntotal)
            if lists is None or n_new > max(_MIN_ROWS, index.ntotal // _MAX_NEW_SHARE):
                self._lists = lists = _SignLists.of(index)
        return best_rows(z, items.rows, k, scan=lists.scan)

    def to_bytes(self, items: IndexedItems) -> NDArray[np.uint8]:
        """Return the Faiss index over these items, serialised; empty for few items."""
        if len(items) < _MIN_ROWS:
            return np.empty(0, dtype=np.uint8)
        with self._lock:
            data: NDArray[np.uint8] = load_faiss().serialize_index_binary(self._up_to_date(items))
        return data

    def _up_to_date(self, items: IndexedItems) -> Any:
        if self._saved is not None:
            self._index, self._saved = load_faiss().deserialize_index_binary(self._saved), None
            self._n_trained = self._index.ntotal
        outgrown = len(items) > _RETRAIN_GROWTH * self._n_trained
        if self._generation is not items.generation or outgrown:
            self._index, self._lists = self._new_index(items.rows), None
            self._generation, self._n_trained = items.generation, len(items)
        n_indexed = self._index.ntotal
        if n_indexed < len(items):
            with threads_for(len(items) - n_indexed, items.rows.nbytes):
                self._index.add(items.rows[n_indexed:])
        return self._index

    def _new_index(self, rows: Codes) -> Any:
        """Return an empty Faiss index, trained on a sample of the rows if it needs training."""
        faiss = load_faiss()
        n_bits = 8 * rows.shape[1]
        if self.engine == "hnsw":
            return faiss.IndexBinaryHNSW(n_bits, _LINKS)
        n_lists = round(math.sqrt(len(rows)))
        index = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(n_bits), n_bits, n_lists)
        n_sample = min(len(rows), 64 * n_lists)
        sample = np.random.default_rng(0).choice(len(rows), n_sample, replace=False)
        with threads_for(n_sample, rows.nbytes):
            index.train(rows[np.sort(sample)])
        return index

    def _set_effort(self, index: Any, k: int) -> None:
        if self.engine == "hnsw":
            index.hnsw.efSearch = max(128, 2 * k)
        else:
            index.nprobe = max(8, index.nlist // 16)


class _SignLists(NamedTuple):
    """The inverted lists of a binary IVF, packed for FastScan of float queries.

    Attributes
    ----------
    index : faiss.IndexIVFPQFastScan
    centroids : faiss.IndexFlatIP
        Signs of the centroids. A query probes the lists whose centroids score highest.
    """

    index: Any
    centroids: Any

    @classmethod
    def of(cls, binary: Any) -> "_SignLists":
        faiss = load_faiss()
        width = binary.code_size
        codes = faiss.vector_to_array(faiss.downcast_IndexBinary(binary.quantizer).xb)
        signs = np.where(np.unpackbits(codes.reshape(-1, width), axis=1), 1, -1)
        centroids = faiss.IndexFlatIP(8 * width)
        centroids.add(halves_swapped(signs, width))
        signed = sign_index(width)  # keeps `pq` alive: Faiss holds no reference
        lists = faiss.IndexIVFPQ(
            centroids, 8 * width, binary.nlist, 2 * width, 4, faiss.METRIC_INNER_PRODUCT
        )
        lists.by_residual = False
        faiss.copy_array_to_vector(faiss.vector_to_array(signed.pq.centroids), lists.pq.centroids)
        lists.is_trained, lists.ntotal = True, binary.ntotal
        lists.replace_invlists(binary.invlists, False)
        lists.own_invlists = True  # FastScan creates lists only for an index that owns its own
        packed = faiss.IndexIVFPQFastScan(lists)
        lists.own_invlists, packed.orig_invlists = False, None
        packed.nprobe = _n_probed(binary)
        return cls(packed, centroids)

    def scan(self, z: Floats, rows: Codes, n: int) -> tuple[RowNumbers, Floats, Floats, Floats]:
        """Find candidates as in `asymmetric.Scan`, in the probed lists only."""
        with threads_for(len(z), len(z) * rows.nbytes // 32):
            scores, found = self.index.search(halves_swapped(z, rows.shape[1]), n)
        found[found >= len(rows)] = -1  # added by another thread after a snapshot was taken
        parts = [(found, scores.astype(np.float64))]
        n_listed = self.index.ntotal
        if n_listed < len(rows):
            new, values, *_ = scan_byte_tables(z, rows[n_listed:], min(n, len(rows) - n_listed))
            parts.append((new + n_listed, values))
        near, rough = (np.concatenate(tables, axis=1) for tables in zip(*parts, strict=True))
        return near, rough, np.full(len(z), -np.inf), np.full(len(z), np.finfo(np.float64).max)


def _n_probed(index: Any) -> int:
    """Return the number of lists to scan for a float query: fewer than for a code."""
    return max(32, int(index.nlist) // 32)

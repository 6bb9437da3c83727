"""Approximate k-NN engines for very many codes: IVF and HNSW of Faiss.

They only answer unfiltered k-NN queries. Radius searches, filters and removal use the codes of the
index itself, of which Faiss stores a second copy.
"""

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.index.items import IndexedItems, RowNumbers
from antipodal.index.results import Distances
from antipodal.index.scan import load_faiss, nearest, threads_for

ENGINES = ("flat", "ivf", "hnsw")

_MIN_ROWS = 10_000  # a scan of fewer rows is as fast
_RETRAIN_GROWTH = 4  # clusters are trained again when the number of rows has grown this much
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
            self._index = self._new_index(items.rows)
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

"""Engines that may miss: faster than a scan of very many codes, and only used by name.

They find rows by k-NN and can do no more: ranges, filters and removal are left to the codes that
the index keeps. Faiss keeps its own copy of the codes for them.
"""

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.index.items import IndexedItems, RowNumbers
from antipodal.index.scan import Distances, load_faiss, nearest, threads_for

ENGINES = ("flat", "ivf", "hnsw")

_MIN_ROWS = 10_000  # below, there is nothing to gain
_RETRAIN = 4  # lists are learned anew when the rows are so many times as many
_LINKS = 16


class Approximate:
    """A Faiss index over the rows of the newest items, made by the first search and kept up.

    Rows added at the end are added to it; any other change makes it anew. One thread at a time.

    Parameters
    ----------
    engine : "ivf" or "hnsw"
    saved : uint8 array, optional
        What `to_bytes` gave, for items of the era `era`. It is read when first needed.
    """

    def __init__(
        self, engine: str, saved: NDArray[np.uint8] | None = None, era: object = None
    ) -> None:
        self.engine = engine
        self._lock = threading.Lock()
        self._saved = saved
        self._era = era
        self._index: Any = None
        self._n_trained = 0

    def nearest(self, queries: Codes, items: IndexedItems, k: int) -> tuple[RowNumbers, Distances]:
        """Find k rows per query, in the order (distance, row), usually but not surely the nearest.

        A query for which the engine finds fewer than k is answered by a scan.
        """
        if len(items) < _MIN_ROWS:
            return nearest(queries, items.rows, k)
        with self._lock:
            index = self._up_to_date(items)
            self._set_effort(index, k)
            with threads_for(len(queries), len(queries) * items.rows.nbytes // 32):
                distances, rows = index.search(queries, k)
        # -1 is nothing found; a row past the end was added while this search waited
        short = np.flatnonzero(((rows < 0) | (rows >= len(items))).any(axis=1))
        if len(short):
            rows[short], distances[short] = nearest(queries[short], items.rows, k)
        order = np.lexsort((rows, distances), axis=1)
        return np.take_along_axis(rows, order, axis=1), np.take_along_axis(distances, order, axis=1)

    def to_bytes(self, items: IndexedItems) -> NDArray[np.uint8]:
        """Return the engine over these items in the form of Faiss; nothing if they are few."""
        if len(items) < _MIN_ROWS:
            return np.empty(0, dtype=np.uint8)
        with self._lock:
            data: NDArray[np.uint8] = load_faiss().serialize_index_binary(self._up_to_date(items))
        return data

    def _up_to_date(self, items: IndexedItems) -> Any:
        if self._saved is not None:
            self._index, self._saved = load_faiss().deserialize_index_binary(self._saved), None
            self._n_trained = self._index.ntotal
        if self._era is not items.era or len(items) > _RETRAIN * self._n_trained:
            self._index = self._make(items.rows)
            self._era, self._n_trained = items.era, len(items)
        n_known = self._index.ntotal
        if n_known < len(items):
            with threads_for(len(items) - n_known, items.rows.nbytes):
                self._index.add(items.rows[n_known:])
        return self._index

    def _make(self, rows: Codes) -> Any:
        """Make an empty index, trained where it needs that."""
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

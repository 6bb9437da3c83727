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
_BLOCK = 16_384  # rows whose reconstructions are in memory at the same time


class ApproximateEngine:
    """A Faiss index over the main segment, built by the first search.

    Appended rows are added to it; after any other change it is rebuilt. A lock admits one thread
    at a time.

    Parameters
    ----------
    engine : "ivf" or "hnsw"
    dictionary : float32 (features, n_bits), optional
        With "ivf", cluster the reconstructions D(2b - 1) of the codes b, not the codes.
    n_probe : int, optional
        With "ivf", number of lists that are scanned for a query.
    saved : uint8 array, optional
        Result of `to_bytes` for items of this `generation`; deserialised when first needed.
    """

    def __init__(
        self,
        engine: str,
        dictionary: NDArray[np.float32] | None = None,
        n_probe: int | None = None,
        saved: NDArray[np.uint8] | None = None,
        generation: object = None,
    ) -> None:
        self.engine, self.n_probe = engine, n_probe
        self._clusters = None if dictionary is None else _Clusters(dictionary)
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
                if self._clusters is None:
                    distances, rows = index.search(queries, k)
                else:
                    lists = self._clusters.nearest(queries, index.nprobe)
                    distances, rows = index.search_preassigned(queries, k, lists, None)
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
                self._lists = lists = _SignLists.of(index, self._clusters)
            # Fewer lists than for a code.
            lists.index.nprobe = self.n_probe or max(32, index.nlist // 32)
        return best_rows(z, items.rows, k, scan=lists.scan)

    def to_bytes(self, items: IndexedItems) -> NDArray[np.uint8]:
        """Return the Faiss index over these items, serialised; empty for few items."""
        if len(items) < _MIN_ROWS:
            return np.empty(0, dtype=np.uint8)
        with self._lock:
            data: NDArray[np.uint8] = load_faiss().serialize_index_binary(self._up_to_date(items))
        if self._clusters is not None:
            data = np.concatenate([self._clusters.to_bytes(), data])
        return data

    def _up_to_date(self, items: IndexedItems) -> Any:
        if self._saved is not None:
            data, self._saved = self._saved, None
            if self._clusters is not None:
                data = self._clusters.read(data)
            self._index = load_faiss().deserialize_index_binary(data)
            self._n_trained = self._index.ntotal
        outgrown = len(items) > _RETRAIN_GROWTH * self._n_trained
        if self._generation is not items.generation or outgrown:
            self._index, self._lists = self._new_index(items.rows), None
            self._generation, self._n_trained = items.generation, len(items)
        n_indexed = self._index.ntotal
        if n_indexed < len(items):
            with threads_for(len(items) - n_indexed, items.rows.nbytes):
                if self._clusters is None:
                    self._index.add(items.rows[n_indexed:])
                else:
                    self._clusters.add(self._index, items.rows[n_indexed:])
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
            if self._clusters is None:
                index.train(rows[np.sort(sample)])
            else:
                self._clusters.fit(rows[np.sort(sample)], n_lists)
                index.quantizer.add(np.packbits(self._clusters.in_signs(n_bits) > 0, axis=1))
                index.is_trained = True
        return index

    def _set_effort(self, index: Any, k: int) -> None:
        if self.engine == "hnsw":
            index.hnsw.efSearch = max(128, 2 * k)
        else:
            index.nprobe = self.n_probe or max(8, index.nlist // 16)


class _Clusters:
    """Clusters of the directions of D(2b - 1), whose inner products with a query y are its scores.

    Codes with similar reconstructions may differ in many bits, so that clusters of codes are a
    poor choice for float queries.

    Parameters
    ----------
    dictionary : (features, n_bits)
        D.
    """

    def __init__(self, dictionary: NDArray[np.float32]) -> None:
        self._D = dictionary
        self._centroids = np.empty((0, len(dictionary)), np.float32)  # rows of length 1

    def fit(self, rows: Codes, n_lists: int) -> None:
        """Cluster these rows by spherical k-means."""
        faiss = load_faiss()
        vectors = np.concatenate([self._directions(rows[part]) for part in _blocks(len(rows))])
        means = faiss.Kmeans(vectors.shape[1], n_lists, niter=10, spherical=True, seed=1)
        means.train(vectors)
        self._centroids = means.centroids

    def nearest(self, rows: Codes, n: int) -> NDArray[np.int64]:
        """Return the numbers of the n centroids nearest to each reconstruction, the best first."""
        centroids = load_faiss().IndexFlatIP(len(self._D))
        centroids.add(self._centroids)
        numbers = np.empty((len(rows), n), np.int64)
        for part in _blocks(len(rows)):
            numbers[part] = centroids.search(self._directions(rows[part]), n)[1]
        return numbers

    def add(self, binary: Any, rows: Codes) -> None:
        """Add rows to the lists of a binary IVF, each to that of its nearest centroid."""
        faiss = load_faiss()
        for part in _blocks(len(rows)):
            codes = np.ascontiguousarray(rows[part])
            lists = self.nearest(codes, 1)
            pointers = faiss.swig_ptr(codes), None, faiss.swig_ptr(lists)
            binary.add_core(len(codes), *pointers)

    def in_signs(self, n_bits: int) -> NDArray[np.float32]:
        """Return m for each centroid c = Dm, so that ⟨y, c⟩ = ⟨Dᵀy, m⟩; padded with zeros."""
        m = self._centroids @ np.linalg.pinv(self._D).T
        return np.pad(m, ((0, 0), (0, n_bits - m.shape[1]))).astype(np.float32)

    def to_bytes(self) -> NDArray[np.uint8]:
        """Return the number of centroids, uint64, and the centroids, float32; little-endian."""
        arrays = np.array([len(self._centroids)], "<u8"), self._centroids.astype("<f4")
        return np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays])

    def read(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Read the centroids from the start of `data`, and return the rest of it."""
        n_lists = int.from_bytes(data[:8].tobytes(), "little")
        end = 8 + 4 * n_lists * len(self._D)
        if end > len(data):
            raise ValueError(f"{len(data)} bytes are too few for {n_lists} centroids")
        self._centroids = data[8:end].copy().view("<f4").reshape(n_lists, -1).astype(np.float32)
        return data[end:]

    def _directions(self, rows: Codes) -> NDArray[np.float32]:
        bits = np.unpackbits(rows, axis=1, count=self._D.shape[1])
        vectors: NDArray[np.float32] = (2 * bits.astype(np.float32) - 1) @ self._D.T
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors /= np.maximum(lengths, np.finfo(np.float32).tiny)
        return vectors


def _blocks(n_rows: int) -> list[slice]:
    return [slice(first, first + _BLOCK) for first in range(0, n_rows, _BLOCK)]


class _SignLists(NamedTuple):
    """The inverted lists of a binary IVF, packed for FastScan of float queries.

    Attributes
    ----------
    index : faiss.IndexIVFPQFastScan
    centroids : faiss.IndexFlatIP
        Signs of the centroids, or m of `_Clusters`. A query probes the lists whose centroids
        score highest.
    """

    index: Any
    centroids: Any

    @classmethod
    def of(cls, binary: Any, clusters: _Clusters | None) -> "_SignLists":
        faiss = load_faiss()
        width = binary.code_size
        if clusters is None:
            codes = faiss.vector_to_array(faiss.downcast_IndexBinary(binary.quantizer).xb)
            values = np.where(np.unpackbits(codes.reshape(-1, width), axis=1), 1, -1)
        else:
            values = clusters.in_signs(8 * width)
        centroids = faiss.IndexFlatIP(8 * width)
        centroids.add(halves_swapped(values, width))
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

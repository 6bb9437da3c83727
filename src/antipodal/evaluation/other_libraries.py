"""Baselines of an audit: quantisers of other libraries.

`bytes` counts everything that a search reads for an item: its code, correction factors, and its id
if items are grouped in lists. All lists are searched, so recall is that of an exhaustive search.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.errors import missing_extra
from antipodal.evaluation.audited_codes import AuditedCode
from antipodal.evaluation.recall import Metric, Rows, prepared
from antipodal.hashers.preprocessing import draw_rows, row_blocks
from antipodal.index.scan import threads_for
from antipodal.io.faiss import load_faiss
from antipodal.validation import Ids

_TRAINING_ROWS = 50_000
_LISTS = 64  # number of inverted lists
_ID_BYTES = 8  # size of an id in an inverted list of Faiss


@dataclass(frozen=True)
class Data:
    """Vectors and code length for which a baseline is built."""

    n_rows: int
    n_features: int
    bits: tuple[int, ...]
    metric: Metric
    seed: int

    @property
    def bytes(self) -> list[int]:
        """The code lengths in bytes."""
        return [n_bits // 8 for n_bits in self.bits if n_bits % 8 == 0]


class OtherCodes:
    """A quantiser of another library, searched with float queries."""

    searches: tuple[str, ...] = ("asymmetric",)
    scoring: str | None = None
    served = False

    def __init__(self, name: str, n_bytes: int, data: Data) -> None:
        self.name, self.bytes, self.data = name, n_bytes, data
        self.bits = 8 * n_bytes
        self.fit_seconds = self.encode_seconds = 0.0

    def build(self, X: Rows, training: Rows) -> None:
        """Train on a sample of the training rows, then add all rows of X."""
        rng = np.random.RandomState(self.data.seed)
        began = time.perf_counter()
        self.train(self.rows(training[draw_rows(len(training), _TRAINING_ROWS, rng)]))
        trained = time.perf_counter()
        self.add(X)
        self.fit_seconds, self.encode_seconds = trained - began, time.perf_counter() - trained

    def rows(self, rows: Rows) -> NDArray[np.float32]:
        """Return rows as float32, normalised for the cosine."""
        return prepared(rows, "cosine" if self.data.metric == "cosine" else "dot")

    def train(self, sample: NDArray[np.float32]) -> None:
        """Learn from a sample."""

    def add(self, X: Rows) -> None:
        """Encode all rows."""
        raise NotImplementedError

    def search(self, queries: Rows, k: int, search: str) -> Ids:
        """Return the k best rows of each query."""
        raise NotImplementedError

    def candidates(self, queries: Rows, n: int, search: str) -> Ids:
        """Return the n best rows of each query."""
        return self.search(queries, n, search)


class FaissCodes(OtherCodes):
    """A quantiser of Faiss by its factory string.

    Parameters
    ----------
    by_distance : bool
        Rank by Euclidean distance instead of the inner product, even for the cosine, for which
        both orders agree. Quantisers that store norms use them in distances only, and RaBitQ in an
        inverted file has a lower recall by inner product.
    """

    def __init__(self, name: str, factory: str, data: Data, *, by_distance: bool = False) -> None:
        faiss = load_faiss()
        by_distance = by_distance or data.metric == "euclidean"
        kind = faiss.METRIC_L2 if by_distance else faiss.METRIC_INNER_PRODUCT
        self.index = faiss.index_factory(data.n_features, factory, kind)
        is_wrapped = isinstance(self.index, faiss.IndexPreTransform)
        inner = faiss.downcast_index(self.index.index) if is_wrapped else self.index
        if hasattr(inner, "qb"):
            inner.qb = 8  # float queries would take 50 times as long
        if hasattr(inner, "pq"):
            inner.pq.cp.min_points_per_centroid = 1  # no warning about small training sets
        n_bytes = int(getattr(inner, "code_size", 0) or inner.sa_code_size())
        if hasattr(inner, "nprobe"):
            inner.nprobe = inner.nlist
            inner.cp.min_points_per_centroid = 1
            n_bytes += _ID_BYTES
        super().__init__(name, n_bytes, data)

    def train(self, sample: NDArray[np.float32]) -> None:
        """Train the index."""
        self.index.train(sample)

    def add(self, X: Rows) -> None:
        """Add all rows in blocks."""
        for block in row_blocks(X):
            rows = self.rows(X[block])
            with threads_for(len(rows), rows.nbytes):
                self.index.add(rows)

    def search(self, queries: Rows, k: int, search: str) -> Ids:
        """Return the k best rows of each query."""
        rows = self.rows(queries)
        with threads_for(len(rows), len(rows) * self.index.ntotal * self.bytes):
            found: Ids = self.index.search(rows, k)[1]
        return found


class RaBitQLibrary(OtherCodes):
    """RaBitQ inside an inverted file, by its authors (PyPI `rabitqlib`)."""

    def __init__(self, n_bits: int, data: Data) -> None:
        factors = 12 if n_bits == 1 else 24  # with a 4-byte id: the file size per row of one list
        n_bytes = -(-data.n_features // 8) * n_bits + factors + 4 * (n_bits == 1)
        super().__init__(f"rabitqlib IVF{_LISTS}, {n_bits} bit", n_bytes, data)
        self.n_bits = n_bits

    def train(self, sample: NDArray[np.float32]) -> None:
        """Find the centroids of the lists."""
        faiss = load_faiss()
        means = faiss.Kmeans(
            sample.shape[1], _LISTS, seed=self.data.seed + 1, min_points_per_centroid=1
        )
        means.train(sample)
        self.centroids, self.nearest = means.centroids, means.index

    def add(self, X: Rows) -> None:
        """Assign all rows to lists and encode them."""
        from rabitqlib import IvfIndex

        rows = self.rows(X)
        lists = self.nearest.search(rows, 1)[1][:, 0].astype(np.uint32)
        metric = "l2" if self.data.metric == "euclidean" else "ip"
        self.index = IvfIndex(
            dim=rows.shape[1], max_elements=len(rows), num_clusters=_LISTS, nbits=self.n_bits,
            metric=metric,
        )  # fmt: skip
        self.index.build(rows, self.centroids, lists)

    def search(self, queries: Rows, k: int, search: str) -> Ids:
        """Return the k best rows of each query."""
        return np.asarray(self.index.search(self.rows(queries), k, _LISTS)[0]).astype(np.int64)


class TurboVec(OtherCodes):
    """TurboQuant, calibrated (PyPI `turbovec`); 4 bytes per item are its scale."""

    def __init__(self, n_bits: int, data: Data) -> None:
        n_bytes = -(-data.n_features * n_bits // 8) + 4
        super().__init__(f"turbovec, {n_bits} bit", n_bytes, data)
        self.n_bits = n_bits

    def train(self, sample: NDArray[np.float32]) -> None:
        """Calibrate an empty index."""
        from turbovec import TurboQuantIndex

        self.index = TurboQuantIndex(dim=sample.shape[1], bit_width=self.n_bits)
        self.index.calibrate(sample)

    def add(self, X: Rows) -> None:
        """Add all rows in blocks."""
        for block in row_blocks(X):
            self.index.add(self.rows(X[block]))

    def search(self, queries: Rows, k: int, search: str) -> Ids:
        """Return the k best rows of each query."""
        return np.asarray(self.index.search(self.rows(queries), k=k)[1], dtype=np.int64)


class ScaNN(OtherCodes):
    """Anisotropic product quantisation (PyPI `scann`), 4 bits per block of dimensions."""

    def __init__(self, per_block: int, data: Data) -> None:
        blocks = -(-data.n_features // per_block)
        super().__init__("ScaNN", -(-blocks // 2), data)
        self.per_block = per_block

    def add(self, X: Rows) -> None:
        """Train on all rows and encode them: the library does both at once."""
        from scann.scann_ops.py import scann_ops_pybind

        metric = "squared_l2" if self.data.metric == "euclidean" else "dot_product"
        builder = scann_ops_pybind.builder(self.rows(X), 10, metric)
        self.index = builder.score_ah(
            self.per_block, anisotropic_quantization_threshold=0.2
        ).build()

    def search(self, queries: Rows, k: int, search: str) -> Ids:
        """Return the k best rows of each query."""
        found, _ = self.index.search_batched(self.rows(queries), final_num_neighbors=k)
        return np.asarray(found).astype(np.int64)


class USearch(OtherCodes):
    """One byte ("i8") or the sign ("b1") of each dimension (PyPI `usearch`), searched exactly."""

    def __init__(self, kind: str, data: Data) -> None:
        n_bytes = data.n_features if kind == "i8" else -(-data.n_features // 8)
        super().__init__(f"USearch {kind}", n_bytes, data)
        self.kind = kind
        if kind == "b1":
            self.searches = ("hamming",)

    def add(self, X: Rows) -> None:
        """Add all rows."""
        from usearch.index import Index

        metric = {"cosine": "cos", "dot": "ip", "euclidean": "l2sq"}[self.data.metric]
        metric = "hamming" if self.kind == "b1" else metric
        self.index = Index(ndim=X.shape[1], metric=metric, dtype=self.kind)
        for block in row_blocks(X):
            rows = self._quantised(X[block])
            self.index.add(np.arange(block.start, block.start + len(rows)), rows)

    def search(self, queries: Rows, k: int, search: str) -> Ids:
        """Return the k best rows of each query."""
        found = self.index.search(self._quantised(queries), k, exact=True)
        return np.asarray(found.keys).reshape(len(queries), -1).astype(np.int64)

    def _quantised(self, rows: Rows) -> NDArray[Any]:
        floats = self.rows(rows)
        return np.packbits(floats > 0, axis=1) if self.kind == "b1" else floats


Codes = Iterator[Callable[[], AuditedCode]]


class UnsuitableError(Exception):
    """A baseline does not support these vectors."""


def _rabitq(data: Data) -> Codes:
    for n in (1, 2, 4):
        yield partial(FaissCodes, f"RaBitQ, {n} bit", f"RR,RaBitQ{'' if n == 1 else n}", data)


def _turboquant(data: Data) -> Codes:
    for n in (1, 2, 4):
        yield partial(FaissCodes, f"TurboQuant, {n} bit", f"RR,SQtqmse{n}", data)


def _pq(data: Data, rotation: str = "") -> Codes:
    _require_rows(data, 256)
    for n_bytes in data.bytes:
        if data.n_features % n_bytes == 0 and n_bytes < data.n_features:
            optimised = f"OPQ{n_bytes}," if rotation else ""
            # np: no polysemous training
            yield partial(FaissCodes, f"{rotation}PQ", f"{optimised}PQ{n_bytes}x8np", data)


def _additive(data: Data, kind: str, norm: str = "") -> Codes:
    """Yield additive quantisers of two 4-bit codebooks per byte: LSQ or RQ."""
    _require_rows(data, 16)
    if norm and data.metric == "dot":
        raise UnsuitableError("its norms are used in Euclidean distances only")
    name = f"{kind} with norm" if norm else kind
    for n_bytes in data.bytes:
        factory = f"{kind}{2 * n_bytes}x4{norm}"
        yield partial(FaissCodes, name, factory, data, by_distance=bool(norm))


def _ivf_rabitq(data: Data) -> Codes:
    _require_rows(data, _LISTS)
    for n in (1, 2, 4):
        factory = f"RR,IVF{_LISTS},RaBitQ{'' if n == 1 else n}"
        name, by_distance = f"RaBitQ IVF{_LISTS}, {n} bit", data.metric == "cosine"
        yield partial(FaissCodes, name, factory, data, by_distance=by_distance)


def _rabitqlib(data: Data) -> Codes:
    _require_module("rabitqlib")
    _require_rows(data, _LISTS)
    for n in (1, 2, 4):
        yield partial(RaBitQLibrary, n, data)


def _turbovec(data: Data) -> Codes:
    _require_module("turbovec")
    if data.metric == "euclidean" or data.n_features % 8:
        raise UnsuitableError("it needs inner products, and a multiple of 8 dimensions")
    for n in (2, 4):
        yield partial(TurboVec, n, data)


def _scann(data: Data) -> Codes:
    _require_module("scann")
    _require_rows(data, 16)
    for per_block in (4, 2):
        yield partial(ScaNN, per_block, data)


def _usearch(data: Data) -> Codes:
    _require_module("usearch")
    for kind in ("i8", "b1"):
        yield partial(USearch, kind, data)


BASELINES: dict[str, Callable[[Data], Codes]] = {
    "rabitq": _rabitq,
    "turboquant": _turboquant,
    "pq": _pq,
    "opq": partial(_pq, rotation="O"),
    "rq": partial(_additive, kind="RQ"),
    "lsq": partial(_additive, kind="LSQ"),
    "lsq-norm": partial(_additive, kind="LSQ", norm="_Nqint8"),
    "ivf-rabitq": _ivf_rabitq,
    "rabitqlib": _rabitqlib,
    "turbovec": _turbovec,
    "scann": _scann,
    "usearch": _usearch,
}
QUICK = ("rabitq", "turboquant", "pq")


def baseline_names(baselines: str | Sequence[str]) -> list[str]:
    """Return the names of baselines from a list, a comma-separated list, or the name of a set."""
    if isinstance(baselines, str):
        sets = {"quick": QUICK, "all": tuple(BASELINES), "none": (), "": ()}
        baselines = sets.get(baselines) or [
            name.strip() for name in baselines.split(",") if baselines not in sets
        ]
    for name in baselines:
        if name not in BASELINES:
            raise ValueError(
                f"baselines must be quick, all, none, or names among {', '.join(BASELINES)}: "
                f"got {name!r}"
            )
    return list(baselines)


def make_baselines(
    names: Sequence[str], data: Data
) -> tuple[list[Callable[[], AuditedCode]], list[str]]:
    """Return a constructor for each code, and a sentence for each baseline that is skipped."""
    codes: list[Callable[[], AuditedCode]] = []
    skipped = []
    for name in names:
        try:
            codes += BASELINES[name](data)
        except UnsuitableError as error:
            skipped.append(f"Baseline {name} skipped: {error}.")
    return codes, skipped


def _require_rows(data: Data, n_rows: int) -> None:
    if data.n_rows < n_rows:
        raise UnsuitableError(f"it needs at least {n_rows} rows, got {data.n_rows}")


def _require_module(module: str) -> None:
    if find_spec(module) is None:
        raise UnsuitableError(missing_extra("it", module, "compare"))

"""Compare real values of a query with signs of codes, which keeps what the query's bits would lose.

    score(z, b) = Σᵢ zᵢ·bᵢ            z the query's values, b = ±1 the signs of a code

Eight bits have 256 patterns. So what one byte of a code adds to the score is an entry in a table
of 256, made once per query, and a score takes one entry per byte: a product quantizer whose
centroids are the corners of a cube. Faiss scans with such tables in single precision; what it
finds is scored again in double precision, so that the order (score, row) is exact.
"""

import functools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import Codes
from antipodal.index.items import RowNumbers
from antipodal.index.scan import load_faiss, threads_for

Floats = NDArray[np.float64]

_SPARE = 16  # rows to look at beyond those asked for, among which rounding may have moved the last
_QUERIES_AT_ONCE = 64  # so many have their tables in memory
_VALUES_AT_ONCE = 2**22
_SIGNS = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1), 1.0, -1.0)


def check_one(codes: object, vectors: object) -> None:
    """Refuse a search by codes and vectors, or by neither."""
    if (codes is None) == (vectors is None):
        raise ValueError(
            "search by codes, or by vectors in their place: got "
            f"{'neither' if codes is None else 'both'}. To order the nearest codes by real values, "
            "give codes, and the values as rescore"
        )


def check_values(
    values: ArrayLike | None, name: str, n_bits: int, n_rows: int | None = None
) -> Floats:
    """Return the queries' real values, one per bit, or say what is wrong with them."""
    z = real_table(values, name, n_rows)
    if z.shape[1] != n_bits:
        raise ValueError(
            f"{name} must have {n_bits} values per row, one per bit: got shape {z.shape}. They are "
            "what `hasher.query` gives"
        )
    return z


def real_table(values: ArrayLike | None, name: str, n_rows: int | None = None) -> Floats:
    """Return finite real numbers, a row per query."""
    table = np.asarray(values)
    if table.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be real numbers: got {table.dtype}")
    if table.ndim != 2 or len(table) != (len(table) if n_rows is None else n_rows):
        wanted = "one row" if n_rows is None else f"{n_rows} rows, one"
        raise ValueError(f"{name} must have {wanted} per query: got shape {table.shape}")
    if not np.isfinite(table).all():
        raise ValueError(f"{name} must be finite: some are NaN or infinite")
    return table.astype(np.float64)


def sign_scores(z: Floats, codes: Codes) -> Floats:
    """Score each query's own candidates, uint8 (n_queries, n_candidates, width): Σᵢ zᵢ·bᵢ.

    Equal codes have equal scores, to the last digit, wherever they stand. Bits beyond the values
    of z count nothing.
    """
    scores = np.empty(codes.shape[:2])
    n_values = codes.shape[2] * max(256, codes.shape[1])
    size = max(1, _VALUES_AT_ONCE // n_values)
    for start in range(0, len(codes), size):
        part = slice(start, start + size)
        tables = _by_bytes(z[part], codes.shape[2]) @ _SIGNS.T  # (queries, bytes, 256)
        entries = np.take_along_axis(tables, codes[part].transpose(0, 2, 1).astype(np.intp), axis=2)
        scores[part] = entries.sum(axis=1)
    return scores


def best_rows(z: Floats, rows: Codes, k: int) -> tuple[RowNumbers, Floats]:
    """Find the k first rows in the order (score, row), best first, and their scores.

    k is at most the number of rows, which are padded codes (`items.to_rows`), C-contiguous.
    """
    found = np.empty((len(z), k), dtype=np.int64)
    scores = np.empty((len(z), k))
    if not k:
        return found, scores
    # A query's length does not change its order, and 1 neither over- nor underflows.
    largest = np.abs(z).max(axis=1, initial=0.0)[:, None]
    scaled = z / np.where(largest > 0, largest, 1.0)
    for start in range(0, len(z), _QUERIES_AT_ONCE):
        left = np.arange(start, min(start + _QUERIES_AT_ONCE, len(z)))
        n_near = min(k + _SPARE, len(rows))
        while len(left):
            near, rough = _nearest_roughly(scaled[left], rows, n_near)
            # Sums of so many single-precision numbers are off by no more than this. What the scan
            # left out scores at most its last + error, and the k-th is no worse than its own - it.
            error = _rounding(rows.shape[1]) * np.abs(scaled[left]).sum(axis=1)
            sure = (rough[:, -1] + error < rough[:, k - 1] - error) | (n_near == len(rows))
            done = left[sure]
            exact = sign_scores(z[done], rows[near[sure]])
            best = np.lexsort((near[sure], -exact), axis=1)[:, :k]
            found[done] = np.take_along_axis(near[sure], best, axis=1)
            scores[done] = np.take_along_axis(exact, best, axis=1)
            left, n_near = left[~sure], min(2 * n_near, len(rows))
    return found, scores


def _nearest_roughly(z: Floats, rows: Codes, k: int) -> tuple[RowNumbers, NDArray[np.float32]]:
    """Find k rows by scores in single precision, best first."""
    faiss = load_faiss()
    width = rows.shape[1]
    queries = _by_bytes(z, width).astype(np.float32)
    found = np.empty((len(z), k), dtype=np.int64)
    scores = np.empty((len(z), k), dtype=np.float32)
    heaps = faiss.float_minheap_array_t()
    heaps.nh, heaps.k = len(z), k
    heaps.ids, heaps.val = faiss.swig_ptr(found), faiss.swig_ptr(scores)
    with threads_for(len(z), len(z) * rows.nbytes):
        _cube(width).search_ip(
            faiss.swig_ptr(queries), len(z), faiss.swig_ptr(rows), len(rows), heaps, True
        )
    return found, scores


@functools.lru_cache(maxsize=8)
def _cube(width: int) -> Any:
    """Return the product quantizer that reads a byte of a code as eight signs."""
    faiss = load_faiss()
    quantizer = faiss.ProductQuantizer(8 * width, width, 8)
    faiss.copy_array_to_vector(
        np.tile(_SIGNS.astype(np.float32), (width, 1)).ravel(), quantizer.centroids
    )
    return quantizer


def _by_bytes(z: Floats, width: int) -> Floats:
    """Return values as (n_queries, bytes, 8), those beyond the bits of a code zero."""
    padded = np.zeros((len(z), 8 * width))
    padded[:, : z.shape[1]] = z
    return padded.reshape(len(z), width, 8)


def _rounding(width: int) -> float:
    """Bound the error of a score of so many bytes, in relation to Σ|zᵢ|."""
    return float(np.finfo(np.float32).eps) * (width + 16)

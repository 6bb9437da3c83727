"""Asymmetric search: float queries against binary codes.

    score(z, b) = Σᵢ zᵢ·bᵢ            z the values of the query, b = ±1 the signs of a code

The contribution of one byte of a code to the score is one of 256 values, which are tabulated once
per query, so a score takes one table lookup per byte. This is a product quantiser whose centroids
are the corners of a cube. Faiss scans these tables in single precision. The rows it finds are then
scored in double precision, so that the order by (score, row) is exact.
"""

import functools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import Codes
from antipodal.index.items import RowNumbers
from antipodal.index.scan import load_faiss, threads_for

Floats = NDArray[np.float64]

_SPARE = 16  # rows found in addition to k, since rounding may misplace the last ones
_QUERIES_AT_ONCE = 64  # whose tables are in memory at the same time
_VALUES_AT_ONCE = 2**22
_SIGNS = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1), 1.0, -1.0)


def check_codes_or_vectors(codes: object, vectors: object) -> None:
    """Raise ValueError unless exactly one of codes and vectors is given."""
    if (codes is None) == (vectors is None):
        raise ValueError(
            "search needs either codes or vectors: got "
            f"{'neither' if codes is None else 'both'}. To rerank the nearest codes by float "
            "queries, pass codes, and the float queries as rescore"
        )


def check_values(
    values: ArrayLike | None, name: str, n_bits: int, n_rows: int | None = None
) -> Floats:
    """Return float queries with one value per bit, or raise an error that names the argument."""
    z = real_table(values, name, n_rows)
    if z.shape[1] != n_bits:
        raise ValueError(
            f"{name} must have {n_bits} values per row, one per bit: got shape {z.shape}. Use the "
            "result of `hasher.query`"
        )
    return z


def real_table(values: ArrayLike | None, name: str, n_rows: int | None = None) -> Floats:
    """Return a table of finite real numbers with one row per query."""
    table = np.asarray(values)
    if table.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be real numbers: got {table.dtype}")
    if table.ndim != 2 or len(table) != (len(table) if n_rows is None else n_rows):
        wanted = "one row" if n_rows is None else f"{n_rows} rows, one"
        raise ValueError(f"{name} must have {wanted} per query: got shape {table.shape}")
    if not np.isfinite(table).all():
        raise ValueError(f"{name} must be finite: got NaN or infinite values")
    return table.astype(np.float64)


def sign_scores(z: Floats, codes: Codes) -> Floats:
    """Return the scores Σᵢ zᵢ·bᵢ of each query's candidates: (n_queries, n_candidates).

    `codes` is uint8 (n_queries, n_candidates, width). Equal codes have exactly equal scores,
    whatever their position. Bits beyond the values of z are ignored.
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
    """Return the k first rows of each query by (score, row), best first, and their scores.

    `rows` are padded codes (`items.to_rows`), C-contiguous; k is at most their number.
    """
    found = np.empty((len(z), k), dtype=np.int64)
    scores = np.empty((len(z), k))
    if not k:
        return found, scores
    # Scaling a query does not change its order; with a maximum of 1 no sum over- or underflows.
    largest = np.abs(z).max(axis=1, initial=0.0)[:, None]
    scaled = z / np.where(largest > 0, largest, 1.0)
    for start in range(0, len(z), _QUERIES_AT_ONCE):
        left = np.arange(start, min(start + _QUERIES_AT_ONCE, len(z)))
        n_near = min(k + _SPARE, len(rows))
        while len(left):
            near, rough = _nearest_in_float32(scaled[left], rows, n_near)
            # Rows that the scan omitted score at most its last score + error, and the exact k-th
            # score is at least the rough k-th score - error.
            error = _error_bound(rows.shape[1]) * np.abs(scaled[left]).sum(axis=1)
            sure = (rough[:, -1] + error < rough[:, k - 1] - error) | (n_near == len(rows))
            done = left[sure]
            exact = sign_scores(z[done], rows[near[sure]])
            best = np.lexsort((near[sure], -exact), axis=1)[:, :k]
            found[done] = np.take_along_axis(near[sure], best, axis=1)
            scores[done] = np.take_along_axis(exact, best, axis=1)
            left, n_near = left[~sure], min(2 * n_near, len(rows))
    return found, scores


def _nearest_in_float32(z: Floats, rows: Codes, k: int) -> tuple[RowNumbers, NDArray[np.float32]]:
    """Return k rows per query and their scores in single precision, best first."""
    faiss = load_faiss()
    width = rows.shape[1]
    queries = _by_bytes(z, width).astype(np.float32)
    found = np.empty((len(z), k), dtype=np.int64)
    scores = np.empty((len(z), k), dtype=np.float32)
    heaps = faiss.float_minheap_array_t()
    heaps.nh, heaps.k = len(z), k
    heaps.ids, heaps.val = faiss.swig_ptr(found), faiss.swig_ptr(scores)
    with threads_for(len(z), len(z) * rows.nbytes):
        _sign_quantizer(width).search_ip(
            faiss.swig_ptr(queries), len(z), faiss.swig_ptr(rows), len(rows), heaps, True
        )
    return found, scores


@functools.lru_cache(maxsize=8)
def _sign_quantizer(width: int) -> Any:
    """Return the product quantiser that decodes each byte of a code to eight signs."""
    faiss = load_faiss()
    quantizer = faiss.ProductQuantizer(8 * width, width, 8)
    faiss.copy_array_to_vector(
        np.tile(_SIGNS.astype(np.float32), (width, 1)).ravel(), quantizer.centroids
    )
    return quantizer


def _by_bytes(z: Floats, width: int) -> Floats:
    """Return values as (n_queries, width, 8), with zeros for padding bits."""
    padded = np.zeros((len(z), 8 * width))
    padded[:, : z.shape[1]] = z
    return padded.reshape(len(z), width, 8)


def _error_bound(width: int) -> float:
    """Return the largest error of a float32 score, relative to Σ|zᵢ|."""
    return float(np.finfo(np.float32).eps) * (width + 16)

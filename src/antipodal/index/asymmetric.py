"""Asymmetric search: float queries against binary codes.

    score(z, b) = Σᵢ zᵢ·bᵢ            z the values of the query, b = ±1 the signs of a code

A scan finds candidates with approximate scores. They are then scored in double precision, so that
the order by (score, row) is exact. The scan here tabulates the contribution of each byte of a code
to the score, one of 256 values, in single precision. `fastscan` is faster, but needs a second copy
of the codes.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import Codes
from antipodal.index.scan import threads_for
from antipodal.index.segments import RowNumbers, is_member, take_rows
from antipodal.io.faiss import load_faiss

Floats = NDArray[np.float64]

# A search scores 2·k + 64 candidates at first, then eight times that number, then all rows. Scoring
# all rows is also faster than finding more than an eighth of them.
_SPARE = 64
_GROWTH = _MAX_GROWTH = 8
_MIN_SHARE = 8
_QUERIES_AT_ONCE = 64  # tables of these queries are in memory at the same time
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
    with np.errstate(over="ignore"):
        if not np.isfinite(np.abs(z).sum(axis=1)).all():
            raise ValueError(
                f"{name} must have finite scores: the sum of the absolute values of a row exceeds "
                f"the largest float64, {np.finfo(np.float64).max:.2e}. Scale the row down"
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


def best_rows(
    z: Floats,
    rows: Codes,
    k: int,
    *,
    scan: "Scan | None" = None,
    allowed: RowNumbers | None = None,
) -> tuple[RowNumbers, Floats]:
    """Return the k first rows of each query by (score, row), best first, and their scores.

    `scan` finds candidates with approximate scores, whose exact scores are then computed. The
    number of candidates is increased until all other rows are known to score lower. If that takes
    too many, for instance because many rows tie, all rows are scored.

    Parameters
    ----------
    z : (n_queries, n_bits)
        Float queries whose sums Σ|zᵢ| are finite.
    rows : uint8 (n, row_width)
        Padded codes (`segments.to_rows`), C-contiguous.
    k : int
        At most the number of rows, or of allowed rows.
    scan : Scan, optional
        By default a scan of byte tables.
    allowed : int64, increasing, optional
        Rows to choose from.
    """
    n_allowed = len(rows) if allowed is None else len(allowed)
    found = np.empty((len(z), k), dtype=np.int64)
    scores = np.zeros((len(z), k))
    largest = np.abs(z).max(axis=1, initial=0.0)
    found[largest == 0] = np.arange(k) if allowed is None else allowed[:k]  # all scores tie
    candidates = scan or scan_byte_tables
    if not k:
        return found, scores
    fewest = math.ceil((2 * k + _SPARE) * len(rows) / n_allowed)
    for left in _split(np.flatnonzero(largest), _QUERIES_AT_ONCE):
        n_near = fewest
        while len(left) and n_near <= min(_MAX_GROWTH * fewest, len(rows) // _MIN_SHARE):
            # Scaling a query does not change the order of its results. With a maximum of 1, nothing
            # overflows.
            scaled = z[left] / largest[left, None]
            near, rough, highest_omitted, error = candidates(scaled, rows, n_near)
            exact = sign_scores(z[left], rows[near])
            off = np.where(near < 0, 0, np.abs(exact / largest[left, None] - rough))
            exact[near < 0 if allowed is None else ~is_member(near, allowed)] = -np.inf
            best = np.lexsort((near, -exact), axis=1)[:, :k]
            kth = np.take_along_axis(exact, best[:, -1:], axis=1)[:, 0] / largest[left]
            # An error beyond the bound is a bug in Faiss: its candidates are not used.
            sure = (kth > highest_omitted + error) & (off <= error[:, None]).all(axis=1)
            found[left[sure]] = np.take_along_axis(near, best, axis=1)[sure]
            scores[left[sure]] = np.take_along_axis(exact, best, axis=1)[sure]
            left, n_near = left[~sure], _GROWTH * n_near
        for i in left:
            found[i], scores[i] = _best_of_all(z[i], rows, k, allowed)
    return found, scores


# A function of float queries (with largest absolute value 1), codes, and n, at most their number.
# It returns four values for each query: the rows of at least n candidates, -1 for none, and their
# approximate scores; an upper bound of the approximate scores of all other rows; and a bound of
# the error of approximate scores.
Scan: TypeAlias = Callable[[Floats, Codes, int], tuple[RowNumbers, Floats, Floats, Floats]]


def scan_byte_tables(z: Floats, rows: Codes, n: int) -> tuple[RowNumbers, Floats, Floats, Floats]:
    """Find candidates with tables of 256 values per byte, in single precision."""
    found, scores = _nearest_in_float32(z, rows, n)
    error = float(np.finfo(np.float32).eps) * (rows.shape[1] + 16) * np.abs(z).sum(axis=1)
    return found, scores.astype(np.float64), scores[:, -1].astype(np.float64), error


def _best_of_all(
    z: Floats, rows: Codes, k: int, allowed: RowNumbers | None
) -> tuple[RowNumbers, Floats]:
    """Return the k first rows of one query by (score, row) from the exact scores of all."""
    numbers = np.arange(len(rows)) if allowed is None else allowed
    found, scores = numbers[:0], np.empty(0)
    for some in _split(numbers, max(k, _VALUES_AT_ONCE // rows.shape[1])):
        more = sign_scores(z[None], take_rows(rows, some)[None])[0]
        kept = np.flatnonzero(more >= scores[-1]) if len(scores) == k else slice(None)
        found, scores = np.append(found, some[kept]), np.append(scores, more[kept])
        best = np.lexsort((found, -scores))[:k]
        found, scores = found[best], scores[best]
    return found, scores


def _split(numbers: NDArray[Any], size: int) -> Iterator[NDArray[Any]]:
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


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

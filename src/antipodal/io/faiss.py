"""Codes in the formats of Faiss.

For Faiss, a packed code is the code of a product quantiser with two sub-quantisers of 4 bits per
byte, whose 16 centroids are the corners of {-1, 1}⁴. The low half of a byte comes first. The inner
product of a float query with the decoded code is then its asymmetric score, Σ zᵢ·bᵢ, and
FastScan, the fastest scan of Faiss, applies: it looks up 32 codes at once in tables of 8 bits.
"""

import functools
import importlib
import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import Codes, check_codes, code_width
from antipodal.errors import AntipodalError
from antipodal.io.atomic import replacing_by_name
from antipodal.validation import Ids, check_ids

FloatArray = NDArray[np.floating[Any]]

# FastScan adds table entries of up to 255 in 16 bits. More than 257 could overflow: codes of more
# bytes get one byte of zeros, whose query values (`guard`) bound the scale of the tables.
_UNGUARDED_BYTES = 128
_LARGEST_SUM = 2**16 - 1
_BLOCK_ROWS = 2**16
_OVERSAMPLE = 4  # oversampling factor of an index with vectors


@functools.cache
def load_faiss() -> Any:
    """Import Faiss with OpenMP threads that sleep while idle.

    OpenMP threads spin by default, which makes a single query many times slower on a machine that
    runs other programs. OpenMP reads the policy once, when it is loaded. A policy that the user
    has set is kept.
    """
    name = "OMP_WAIT_POLICY"
    unset = name not in os.environ
    if unset:
        os.environ[name] = "passive"
    try:
        return importlib.import_module("faiss")
    finally:
        if unset:
            del os.environ[name]


def scanned_width(width: int) -> int:
    """Return the bytes per code that FastScan needs for codes of `width` bytes."""
    return width + (width > _UNGUARDED_BYTES)


def sign_index(width: int) -> Any:
    """Return an empty `IndexPQ` for packed codes of `width` bytes, to be added as they are."""
    faiss = load_faiss()
    corners = np.where(np.arange(16)[:, None] >> np.arange(3, -1, -1) & 1, 1, -1)
    index = faiss.IndexPQ(8 * width, 2 * width, 4, faiss.METRIC_INNER_PRODUCT)
    centroids = np.tile(corners.astype(np.float32), (2 * width, 1)).ravel()
    faiss.copy_array_to_vector(centroids, index.pq.centroids)
    index.is_trained = True
    return index


def add_codes(index: Any, codes: Codes) -> None:
    """Append packed codes to a `sign_index`, padded with zeros to its width."""
    missing = index.code_size - codes.shape[1]
    padded = np.pad(codes, ((0, 0), (0, missing))) if missing else np.ascontiguousarray(codes)
    index.add_sa_codes(padded)


def halves_swapped(values: NDArray[Any], width: int) -> NDArray[np.float32]:
    """Return values per bit, (n, n_bits), in the order of `sign_index`: (n, 8 * width).

    Padding bits get the value 0.
    """
    padded = np.zeros((len(values), 8 * width), dtype=np.float32)
    padded[:, : values.shape[1]] = values
    halves = padded.reshape(len(values), width, 2, 4)
    return np.ascontiguousarray(halves[:, :, ::-1]).reshape(len(values), -1)


def guard(sums: NDArray[Any], width: int) -> NDArray[np.float32]:
    """Return the query values of the guard byte of codes of `width` bytes: (n, 8).

    They add 0 to the score of every code. They widen the range of one table, and thereby the
    quantisation step, so that the table entries of a query with Σ|zᵢ| = sum fit into 16 bits.
    """
    n_tables = 2 * (width + 1)
    span = 255 * 2 * np.asarray(sums) / (_LARGEST_SUM - 128 - n_tables)
    return (span[:, None] / 8 * [1, 1, -1, -1, 0, 0, 0, 0]).astype(np.float32)


def write_faiss(
    path: str | os.PathLike[str],
    codes: ArrayLike | Iterable[ArrayLike],
    n_bits: int,
    *,
    ids: ArrayLike | None = None,
    query: Callable[[FloatArray], FloatArray] | None = None,
    n_features: int = 0,
    refine: ArrayLike | Iterable[ArrayLike] | None = None,
) -> None:
    """Write codes as a Faiss index, replacing an existing file atomically.

    Parameters
    ----------
    path : path
    codes : uint8 (n, ⌈n_bits / 8⌉), or an iterable of such blocks
    n_bits : int
    ids : integers (n,), optional
        Unique; row numbers by default.
    query : callable, optional
        The function `hasher.query` of n_features features, which must be linear in the rows or in
        rows scaled to length 1. The index is then searched with rows, otherwise with codes.
    refine : (n, n_features), or an iterable of blocks, optional
        Vectors for reranking by cosine similarity.
    """
    faiss = load_faiss()
    width = code_width(n_bits)
    blocks = (check_codes(block, n_bits) for block in _blocks(codes))
    if query is None:
        if refine is not None:
            raise ValueError("refine needs asymmetric scoring: this model has Hamming scoring")
        index = faiss.IndexBinaryFlat(8 * width)
        for block in blocks:
            index.add(block)
    else:
        transforms, is_scaled = _query_transforms(query, n_features, n_bits)
        flat = sign_index(scanned_width(width))
        for block in blocks:
            add_codes(flat, block)
        scan = faiss.IndexPQFastScan(flat)
        scan.is_trained = False  # `add` raises an error, and `search` does not check it
        index = _chained(transforms[-1], scan)
        if refine is not None:
            if not is_scaled:
                raise ValueError("refine needs a model that compares rows by cosine similarity")
            vectors = _refining_index(refine, n_features)
            if vectors.ntotal != index.ntotal:
                raise ValueError(
                    f"refine must have one row for each of {index.ntotal} codes: got "
                    f"{vectors.ntotal}"
                )
            index = faiss.IndexRefine(index, vectors)
            index.k_factor = _OVERSAMPLE
        for transform in transforms[:-1]:
            index = _chained(transform, index)
    write = faiss.write_index if query is not None else faiss.write_index_binary
    if ids is not None:
        index = _with_ids(index, check_ids(ids))
    with replacing_by_name(path) as temporary:
        try:
            write(index, os.fspath(temporary))
        except RuntimeError as error:
            raise AntipodalError(f"cannot write {path}: {error}") from error


def _blocks(rows: ArrayLike | Iterable[ArrayLike]) -> Iterator[NDArray[Any]]:
    """Yield the rows of a table, or the given blocks."""
    if isinstance(rows, np.ndarray):
        for start in range(0, len(rows), _BLOCK_ROWS):
            yield rows[start : start + _BLOCK_ROWS]
    else:
        yield from map(np.asarray, cast("Iterable[ArrayLike]", rows))


def _query_transforms(
    query: Callable[[FloatArray], FloatArray], n_features: int, n_bits: int
) -> tuple[list[Any], bool]:
    """Return the Faiss transforms from rows to queries, and whether they scale rows to length 1.

    The matrix of the linear map is found by applying `query` to unit vectors. The result is
    compared with `query` for random rows.
    """
    faiss = load_faiss()
    offset = query(np.zeros((1, n_features), dtype=np.float32))
    A = query(np.eye(n_features, dtype=np.float32)) - offset
    rows = np.random.default_rng(0).standard_normal((32, n_features))
    rows = (rows * np.geomspace(0.1, 10, len(rows))[:, None]).astype(np.float32)
    expected = query(rows)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    errors = [np.abs(Y @ A + offset - expected).max() for Y in (unit, rows)]
    is_scaled = bool(errors[0] < errors[1])
    if min(errors) > 1e-3 * np.abs(expected).max():
        raise AntipodalError(
            "the float queries of this model are not a linear map of its rows, or of rows scaled "
            "to length 1: Faiss cannot compute them"
        )
    width = code_width(n_bits)
    bias = halves_swapped(offset, scanned_width(width))
    if scanned_width(width) > width:
        if not is_scaled:
            raise AntipodalError(
                f"codes of {n_bits} bits could overflow the sums of Faiss, since the queries of "
                f"this model have no maximum length: use at most {8 * _UNGUARDED_BYTES} bits"
            )
        largest = math.sqrt(n_bits) * np.linalg.norm(A, 2) + np.abs(offset).sum()  # of Σ|zᵢ|
        bias[:, 8 * width :] = guard(np.array([largest]), width)
    linear = faiss.LinearTransform(n_features, 8 * scanned_width(width), True)
    weights = halves_swapped(A, scanned_width(width)).T
    faiss.copy_array_to_vector(np.ascontiguousarray(weights).ravel(), linear.A)
    faiss.copy_array_to_vector(bias.ravel(), linear.b)
    linear.is_trained = True
    scaling = [faiss.NormalizationTransform(n_features, 2.0)] if is_scaled else []
    return [*scaling, linear], is_scaled


def _chained(transform: Any, index: Any) -> Any:
    """Return an index that first transforms its queries, even if `index` is marked as untrained."""
    chained = load_faiss().IndexPreTransform(transform, index)
    chained.is_trained = True
    return chained


def _refining_index(vectors: ArrayLike | Iterable[ArrayLike], n_features: int) -> Any:
    """Return an index of vectors scaled to length 1, in half precision if they are float16."""
    faiss = load_faiss()
    index: Any = None
    for block in _blocks(vectors):
        if index is None:
            half = faiss.ScalarQuantizer.QT_fp16
            index = (
                faiss.IndexScalarQuantizer(n_features, half, faiss.METRIC_INNER_PRODUCT)
                if block.dtype == np.float16
                else faiss.IndexFlatIP(n_features)
            )
        if block.ndim != 2 or block.shape[1] != n_features:
            raise ValueError(f"refine must have {n_features} features: got shape {block.shape}")
        rows = block.astype(np.float64)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        if not np.isfinite(lengths).all():
            raise ValueError("refine must be finite: got NaN or infinite values")
        index.add((rows / np.where(lengths > 0, lengths, 1)).astype(np.float32))
    return faiss.IndexFlatIP(n_features) if index is None else index


def _with_ids(index: Any, ids: Ids) -> Any:
    """Return the index with ids in the place of row numbers."""
    faiss = load_faiss()
    if len(ids) != index.ntotal:
        raise ValueError(f"ids must have one id for each of {index.ntotal} codes: got {len(ids)}")
    order = np.sort(ids)
    if (order[1:] == order[:-1]).any():
        raise ValueError("ids must be unique")
    kind = faiss.IndexBinaryIDMap2 if isinstance(index, faiss.IndexBinary) else faiss.IndexIDMap2
    index.ntotal = 0  # the next constructor requires an empty index
    mapped = kind(index)
    index.ntotal = mapped.ntotal = len(ids)
    faiss.copy_array_to_vector(ids, mapped.id_map)
    mapped.construct_rev_map()
    return mapped

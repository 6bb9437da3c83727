"""Vectors kept in a store for reranking, as bytes: float32, float16, or int8 with a scale."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

VectorType: TypeAlias = Literal["float32", "float16", "int8"]

_SCALE = np.dtype("<f4")
_INT8_MAX = 127
_RANGES = {
    "float32": (float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)),
    "float16": (float(np.finfo(np.float16).tiny), float(np.finfo(np.float16).max)),
    "int8": (_INT8_MAX * float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)),
}


def check_vector_type(value: object) -> VectorType | None:
    """Return a valid type of kept vectors, None for none, or raise ValueError."""
    if value is not None and value not in get_args(VectorType):
        raise ValueError(f"keep_vectors must be None, float32, float16 or int8: got {value!r}")
    return value  # type: ignore[return-value]


def vector_bytes(n_features: int, kind: VectorType) -> int:
    """Return the bytes of one kept vector."""
    if kind == "int8":
        return _SCALE.itemsize + n_features
    return n_features * np.dtype(kind).itemsize


def pack_vectors(rows: NDArray[Any], kind: VectorType) -> list[bytes]:
    """Return one byte string per row. An int8 row is its scale, max |x| / 127, and x / scale.

    Raises ValueError for rows that the type cannot represent: too large, or too close to zero.
    """
    highest, lowest = (f(axis=1, initial=0).astype(np.float64) for f in (rows.max, rows.min))
    largest = np.maximum(highest, -lowest)
    least, most = _RANGES[kind]
    is_lost = (largest != 0) & ~((largest >= least) & (largest <= most))
    if is_lost.any():
        raise ValueError(
            f"vectors must fit {kind}, with the largest value from {least:.0e} to {most:.0e}: got "
            f"{largest[is_lost][0]:g}. Scale the vectors to length 1"
        )
    values = np.asarray(rows, np.float32)
    if kind == "int8":
        scales = (largest / _INT8_MAX).astype(_SCALE)
        steps = np.rint(values / np.where(scales > 0, scales, 1)[:, None]).astype(np.int8)
        packed = np.concatenate([scales[:, None].view(np.uint8), steps.view(np.uint8)], axis=1)
    else:
        packed = values.astype(np.dtype(kind).newbyteorder("<"))
    return [row.tobytes() for row in packed]


def unpack_vectors(
    packed: Sequence[bytes], n_features: int, kind: VectorType
) -> NDArray[np.float32]:
    """Return kept vectors as an array (n, n_features); raise ValueError for another size."""
    size = vector_bytes(n_features, kind)
    if any(len(row) != size for row in packed):
        raise ValueError(f"kept vectors of {n_features} values must have {size} bytes as {kind}")
    table = np.frombuffer(b"".join(packed), np.uint8).reshape(-1, size)
    if kind != "int8":
        rows = table.view(np.dtype(kind).newbyteorder("<"))
        return rows.astype(np.float32)
    scales = np.ascontiguousarray(table[:, : _SCALE.itemsize]).view(_SCALE)
    return table[:, _SCALE.itemsize :].view(np.int8) * scales

"""File format of an index: a checked header, then the arrays as they are in memory.

    bytes   0 …  7   b"antipidx"
            8 … 11   format version      } little-endian, unsigned
           12 … 15   length of the header }
           16 … 47   SHA-256 of every other byte of the file
           48 …      header: JSON, padded with spaces to a multiple of 64 bytes
           then      codes, n_items × row_width bytes, padded with zeros to a multiple of 8
           then      ids, int64 little-endian, unless they are consecutive (see the header)
           then      radius tables of a prepared index: start of each bucket, uint32 (uint64 from
                     2³² entries), and the rows of all buckets, uint32, each padded with zeros to
                     a multiple of 8
           then      dictionary of the model, if given: float32, features × n_bits, padded likewise
           then      approximate engine, if any, as serialised by Faiss; with a dictionary, it
                     follows the number of centroids, uint64, and the centroids, float32

Version 1 has neither radius tables nor the identity of a model, and version 2 no dictionary. Both
can still be read, and an index without a dictionary is written as version 2.

The arrays are memory-mapped: opening a file takes one pass for the checksum, only the parts that a
search reads take memory, and processes share them. Replacing the file does not affect processes
that have it open. Truncating it in place would, but antipodal never does that.
"""

import hashlib
import json
import mmap
import os
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.errors import IndexFileError
from antipodal.index.radius_tables import BandTables, table_arrays
from antipodal.index.segments import MAX_ITEMS, IndexedItems, row_width
from antipodal.io.atomic import replacing
from antipodal.validation import Ids

FORMAT_VERSION = 3

Bytes = NDArray[np.uint8]

_MAGIC = b"antipidx"
_START = struct.Struct("<8sII")
_DIGEST = slice(_START.size, _START.size + 32)


class IndexDescription(NamedTuple):
    """Properties of the codes: their model's identity and dictionary, if recorded."""

    n_bits: int
    engine: str
    model: str | None
    dictionary: NDArray[np.float32] | None = None


class Header(NamedTuple):
    """The JSON header; `first_id` is None if ids are stored as an array."""

    n_bits: int
    engine: str
    n_items: int
    first_id: int | None
    engine_bytes: int
    model: str | None = None
    bands: int = 0  # bands of the radius tables, 0 without tables
    features: int = 0  # rows of the dictionary, 0 without one


def write_index_file(
    path: str | os.PathLike[str],
    description: IndexDescription,
    items: IndexedItems,
    engine_data: Bytes,
    tables: BandTables | None,
) -> None:
    """Write an index, replacing an existing file atomically."""
    ids = items.id_column
    first_id = (ids.start if len(ids) else 0) if isinstance(ids, range) else None
    n_bits, engine, model, dictionary = description
    bands = 0 if tables is None else tables.n_bands
    header = Header(n_bits, engine, len(items), first_id, len(engine_data), model, bands)._asdict()
    if dictionary is None:
        version = FORMAT_VERSION - 1
        del header["features"]
    else:
        version, header["features"] = FORMAT_VERSION, len(dictionary)
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-(_DIGEST.stop + len(text)) % 64)
    start = _START.pack(_MAGIC, version, len(text))
    arrays: list[NDArray[Any]] = [np.ascontiguousarray(items.rows)]
    if first_id is None:
        arrays.append(items.ids.astype("<i8", copy=False))
    if tables is not None:
        arrays += [a.astype(a.dtype.newbyteorder("<"), copy=False) for a in tables.arrays]
    if dictionary is not None:
        arrays.append(np.ascontiguousarray(dictionary, "<f4"))
    parts: list[Any] = [text]
    for array in arrays:
        parts += [array.reshape(-1).view(np.uint8).data, b"\0" * (-array.nbytes % 8)]
    parts.append(engine_data.data)
    digest = hashlib.sha256(start)
    for part in parts:
        digest.update(part)
    with replacing(path) as file:
        for part in (start, digest.digest(), *parts):
            file.write(part)


def read_index_file(
    path: str | os.PathLike[str],
) -> tuple[IndexDescription, IndexedItems, Bytes, BandTables | None]:
    """Memory-map an index file, or raise IndexFileError with the reason why it cannot be read."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < _DIGEST.stop:
                raise IndexFileError(f"{path} is not an index file, or is truncated")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise IndexFileError(f"cannot read {path}: {reason}") from error
    magic, version, length = _START.unpack(data[: _START.size])
    if magic != _MAGIC:
        raise IndexFileError(f"{path} is not an index file of antipodal")
    if not 1 <= version <= FORMAT_VERSION:
        raise IndexFileError(
            f"{path} has format version {version}, expected 1 to {FORMAT_VERSION}. It was written "
            "by a newer version of antipodal, or is damaged"
        )
    digest = hashlib.sha256(data[: _START.size])
    digest.update(data[_DIGEST.stop :])
    if digest.digest() != data[_DIGEST]:
        raise IndexFileError(
            f"{path} does not match its checksum: it is truncated, modified or damaged"
        )
    try:
        header = Header(**json.loads(bytes(data[_DIGEST.stop : _DIGEST.stop + length])))
        items, tables, dictionary, engine_data = _contents(header, data[_DIGEST.stop + length :])
    except (TypeError, ValueError, RecursionError) as error:  # not written by antipodal
        raise IndexFileError(f"{path} cannot be read: {error}") from error
    description = IndexDescription(header.n_bits, header.engine, header.model, dictionary)
    return description, items, engine_data, tables


def _contents(
    header: Header, data: memoryview
) -> tuple[IndexedItems, BandTables | None, NDArray[np.float32] | None, Bytes]:
    _check(header)
    n_bits, _, n_items, first_id, engine_bytes, _, bands, features = header
    width = row_width(n_bits)
    kinds: list[tuple[Any, int]] = [(np.uint8, n_items * width)]
    kinds += [(np.int64, n_items)] if first_id is None else []
    kinds += table_arrays(n_items, n_bits, bands) if bands else []
    kinds += [(np.float32, features * n_bits)] if features else []
    whole, position = np.frombuffer(data, dtype=np.uint8), 0
    arrays = []
    for kind, n in kinds:
        dtype = np.dtype(kind)
        stored = whole[position : position + n * dtype.itemsize]
        if len(stored) < n * dtype.itemsize:
            break
        arrays.append(stored.view(dtype.newbyteorder("<")).astype(dtype, copy=False).view(dtype))
        position += len(stored) + -len(stored) % 8
    if len(arrays) < len(kinds) or len(whole) != position + engine_bytes:
        raise ValueError(f"{len(data)} bytes do not match {n_items} items of {n_bits} bits")
    rows = arrays[0].reshape(n_items, width)
    _check_padding(rows, n_bits)
    ids: range | Ids = arrays[1] if first_id is None else range(first_id, first_id + n_items)
    if not isinstance(ids, range) and not (ids[1:] > ids[:-1]).all():
        raise ValueError("its ids must be in increasing order")
    dictionary = arrays.pop().reshape(features, n_bits) if features else None
    tables = BandTables(rows, n_bits, bands, *arrays[-2:]) if bands else None
    return IndexedItems.of(rows, ids), tables, dictionary, whole[position:]


def _check(header: Header) -> None:
    """Raise TypeError or ValueError for a header that `write_index_file` cannot have written."""
    n_bits, _, n_items, first_id, engine_bytes, model, bands, features = header
    numbers = (n_bits, n_items, first_id or 0, engine_bytes, bands, features)
    if not all(type(number) is int for number in numbers):
        raise TypeError(f"numbers in its header must be integers: got {header}")
    if model is not None and type(model) is not str:
        raise TypeError(f"the model in its header must be a string: got {model!r}")
    if n_bits < 1 or not 0 <= n_items <= MAX_ITEMS or engine_bytes < 0 or features < 0:
        raise ValueError(f"its header has invalid sizes: {n_items} items of {n_bits} bits")
    if not 0 <= bands <= min(n_bits, 64 * n_items):
        raise ValueError(
            f"its header has invalid sizes: tables of {bands} bands for {n_items} items"
        )
    if first_id is not None and not -(2**63) <= first_id <= 2**63 - n_items:
        raise ValueError(f"its ids, starting at {first_id}, do not fit into 64 bits")


def _check_padding(rows: Codes, n_bits: int) -> None:
    """Raise ValueError for set padding bits, which would add to distances."""
    padding = np.bitwise_or.reduce(rows[:, n_bits // 8 :], axis=0)
    padding[:1] &= 0xFF >> n_bits % 8
    if padding.any():
        raise ValueError(f"its codes have bits set in the padding after bit {n_bits}")

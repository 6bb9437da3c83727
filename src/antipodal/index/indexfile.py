"""The file of an index: a short checked header, then the arrays as they are in memory.

    bytes   0 …  7   b"antipidx"
            8 … 11   format version      } little-endian, unsigned
           12 … 15   length of the header }
           16 … 47   SHA-256 of every other byte of the file
           48 …      header: JSON, padded with spaces to a multiple of 64 bytes
           then      codes, n_items × row_width bytes, padded with zeros to a multiple of 8
           then      ids, int64 little-endian, unless they are a range and stand in the header
           then      an approximate engine in the form of Faiss, if there is one

The arrays are mapped, not read: opening a file costs one pass for the checksum, memory is taken
only for what is searched, and processes that open one file share it. A file that is replaced
while open stays as it was for those who have it open. Only a file cut short in place, which
nothing here does, can hurt them.
"""

import hashlib
import json
import mmap
import os
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.checks import Ids
from antipodal.codes import Codes
from antipodal.errors import IndexFileError
from antipodal.index.items import MAX_ITEMS, IndexedItems, row_width, without_gaps
from antipodal.storage.files import replacing

FORMAT_VERSION = 1

Bytes = NDArray[np.uint8]

_MAGIC = b"antipidx"
_START = struct.Struct("<8sII")
_DIGEST = slice(_START.size, _START.size + 32)


class Header(NamedTuple):
    """What the file says before its arrays; `first_id` is None where ids are stored."""

    n_bits: int
    engine: str
    n_items: int
    first_id: int | None
    engine_bytes: int


def write_index_file(
    path: str | os.PathLike[str], n_bits: int, engine: str, items: IndexedItems, engine_data: Bytes
) -> None:
    """Write the items; a file already at `path` is replaced at once or not at all."""
    ids = items.id_column
    first_id = (ids.start if len(ids) else 0) if isinstance(ids, range) else None
    header = Header(n_bits, engine, len(items), first_id, len(engine_data))
    text = json.dumps(header._asdict(), sort_keys=True).encode()
    text += b" " * (-(_DIGEST.stop + len(text)) % 64)
    start = _START.pack(_MAGIC, FORMAT_VERSION, len(text))
    rows = np.ascontiguousarray(items.rows)
    parts: list[Any] = [text, rows.data.cast("B") if rows.size else b""]
    parts.append(b"\0" * (-rows.nbytes % 8))
    if first_id is None:
        parts.append(items.ids.astype("<i8", copy=False).data.cast("B"))
    parts.append(engine_data.data)
    digest = hashlib.sha256(start)
    for part in parts:
        digest.update(part)
    with replacing(path) as file:
        for part in (start, digest.digest(), *parts):
            file.write(part)


def read_index_file(path: str | os.PathLike[str]) -> tuple[Header, IndexedItems, Bytes]:
    """Map what `write_index_file` wrote, or raise IndexFileError saying what is wrong with it."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < _DIGEST.stop:
                raise IndexFileError(f"{path} is not an index file, or was truncated")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise IndexFileError(f"cannot read {path}: {reason}") from error
    magic, version, length = _START.unpack(data[: _START.size])
    if magic != _MAGIC:
        raise IndexFileError(f"{path} is not an index file of antipodal")
    if version != FORMAT_VERSION:
        raise IndexFileError(
            f"{path} has format version {version}, this antipodal reads {FORMAT_VERSION}. "
            "It was written by a newer version, or is damaged"
        )
    digest = hashlib.sha256(data[: _START.size])
    digest.update(data[_DIGEST.stop :])
    if digest.digest() != data[_DIGEST]:
        raise IndexFileError(
            f"{path} does not match its checksum: it was truncated, changed or damaged"
        )
    try:
        header = Header(**json.loads(bytes(data[_DIGEST.stop : _DIGEST.stop + length])))
        rows, ids, engine_data = _arrays(header, data[_DIGEST.stop + length :])
    except (TypeError, ValueError, RecursionError) as error:  # the checksum holds: not our writer
        raise IndexFileError(f"{path} cannot be read: {error}") from error
    return header, IndexedItems.of(rows, ids), engine_data


def _arrays(header: Header, data: memoryview) -> tuple[Codes, range | Ids, Bytes]:
    n_bits, _, n_items, first_id, engine_bytes = header
    if not all(type(number) is int for number in (n_bits, n_items, first_id or 0, engine_bytes)):
        raise TypeError(f"numbers in its header are not whole: {header}")
    if n_bits < 1 or not 0 <= n_items <= MAX_ITEMS or engine_bytes < 0:
        raise ValueError(f"its header claims {n_items} items of {n_bits} bits")
    width = row_width(n_bits)
    rows_end = n_items * width
    ids_begin = rows_end + -rows_end % 8
    ids_end = ids_begin + (8 * n_items if first_id is None else 0)
    if len(data) != ids_end + engine_bytes:
        raise ValueError(f"{len(data)} bytes do not hold {n_items} items of {n_bits} bits")
    array = np.frombuffer(data, dtype=np.uint8)
    rows, engine_data = array[:rows_end].reshape(n_items, width), array[ids_end:]
    _check_padding(rows, n_bits)
    if first_id is not None:
        if not -(2**63) <= first_id <= 2**63 - n_items:
            raise ValueError(f"its ids from {first_id} on do not fit into 64 bits")
        return rows, range(first_id, first_id + n_items), engine_data
    ids = array[ids_begin:ids_end].view("<i8").astype(np.int64, copy=False)
    if not (ids[1:] > ids[:-1]).all():
        raise ValueError("its ids are not in increasing order")
    return rows, without_gaps(ids), engine_data


def _check_padding(rows: Codes, n_bits: int) -> None:
    """Refuse bits behind the last one of a code: they would count as distance."""
    behind = np.bitwise_or.reduce(rows[:, n_bits // 8 :], axis=0)
    behind[:1] &= 0xFF >> n_bits % 8
    if behind.any():
        raise ValueError(f"its codes have bits behind the {n_bits} that they should have")

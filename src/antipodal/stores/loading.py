"""Validation and batching of items to be stored."""

from collections.abc import Iterator, Mapping, Sized
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import check_codes
from antipodal.stores.ids import IdType, check_unique_ids
from antipodal.stores.metadata import Metadata, metadata_texts

BATCH_SIZE = 50_000  # items in one transaction


class Loaded(NamedTuple):
    """Result of `Store.load`.

    Attributes
    ----------
    ids : int64 or strings (n,)
        Ids of all items given.
    added, replaced : int
        Number of new items, and of items that replaced others.
    unchanged : int
        Number of items that were already stored with the same contents.
    """

    ids: NDArray[Any]
    added: int
    replaced: int
    unchanged: int


def check_items(
    ids: ArrayLike | None, codes: ArrayLike, n_bits: int, id_type: IdType
) -> tuple[NDArray[Any] | None, NDArray[Any]]:
    """Return valid ids and codes as arrays; codes may be memory-mapped."""
    packed = np.asanyarray(codes)
    check_codes(packed[:0] if packed.ndim == 2 else packed, n_bits)
    for part in batches(len(packed), BATCH_SIZE):
        check_codes(packed[part], n_bits)
    if ids is None:
        if id_type == "string":
            raise ValueError("ids are required: this store has string ids, and got none")
        return None, packed
    given = check_unique_ids(ids, id_type)
    if len(given) != len(packed):
        raise ValueError(
            f"there must be one id per code: got {len(given)} ids for {len(packed)} codes"
        )
    return given, packed


def batches(n: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` that cover n items."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def check_length(metadata: Metadata | None, n: int) -> None:
    """Raise ValueError if metadata of known length do not have one object per item."""
    if isinstance(metadata, Sized) and not isinstance(metadata, (str, bytes, Mapping)):
        n_objects = len(metadata)
        if n_objects != n:
            raise ValueError(
                f"metadata must have one object per item: got {n_objects} for {n} items"
            )


def batches_of_texts(
    metadata: Metadata | None, n: int, size: int
) -> Iterator[tuple[slice, list[str] | None]]:
    """Yield slices that cover n items, each with the JSON texts of its metadata, if any."""
    if isinstance(metadata, (str, bytes, Mapping)):
        metadata_texts(metadata, n)  # raises TypeError
    rest = None if metadata is None else iter(metadata)
    for part in batches(n, size):
        n_items = part.stop - part.start
        yield part, None if rest is None else metadata_texts(islice(rest, n_items), n_items)

"""Many items at once: what is checked before the first is written, and what is counted after."""

from collections.abc import Iterator, Mapping, Sized
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import check_codes
from antipodal.stores.metadata import Metadata, metadata_texts
from antipodal.validation import Ids, check_ids

BATCH_SIZE = 50_000  # items in one transaction


class Loaded(NamedTuple):
    """What a load did, counted item by item.

    Attributes
    ----------
    ids : int64 (n,)
        Of all items that were given.
    added, replaced : int
        Items that are new, and items that took the place of others.
    unchanged : int
        Items that were there as they were given.
    """

    ids: Ids
    added: int
    replaced: int
    unchanged: int


def check_items(
    ids: ArrayLike | None, codes: ArrayLike, n_bits: int
) -> tuple[Ids | None, NDArray[Any]]:
    """Return ids and codes as arrays if all of them can be kept; codes may be memory-mapped."""
    packed = np.asanyarray(codes)
    check_codes(packed[:0] if packed.ndim == 2 else packed, n_bits)
    for part in batches(len(packed), BATCH_SIZE):
        check_codes(packed[part], n_bits)
    if ids is None:
        return None, packed
    numbers = check_different(ids)
    if len(numbers) != len(packed):
        raise ValueError(
            f"there must be one id per code: got {len(numbers)} ids for {len(packed)} codes"
        )
    return numbers, packed


def check_different(ids: ArrayLike) -> Ids:
    """Return ids as a row of int64, each of them once."""
    numbers = check_ids(ids)
    if (numbers[1:] > numbers[:-1]).all():
        return numbers
    ordered = np.sort(numbers)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise ValueError(f"ids must be different: {repeated[0]} comes more than once")
    return numbers


def batches(n: int, size: int) -> Iterator[slice]:
    """Cut n items into slices of at most `size`."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def check_length(metadata: Metadata | None, n: int) -> None:
    """Refuse another number of metadata than of items, where it is known beforehand."""
    if isinstance(metadata, Sized) and not isinstance(metadata, (str, bytes, Mapping)):
        n_objects = len(metadata)
        if n_objects != n:
            raise ValueError(
                f"metadata must have one object per item: got {n_objects} for {n} items"
            )


def batches_of_texts(
    metadata: Metadata | None, n: int, size: int
) -> Iterator[tuple[slice, list[str] | None]]:
    """Go through n items in batches, each with the JSON texts of its metadata, if there are any."""
    if isinstance(metadata, (str, bytes, Mapping)):
        metadata_texts(metadata, n)  # says what is wrong with them
    rest = None if metadata is None else iter(metadata)
    for part in batches(n, size):
        n_items = part.stop - part.start
        yield part, None if rest is None else metadata_texts(islice(rest, n_items), n_items)

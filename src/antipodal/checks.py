"""Checks of arguments that several parts make alike."""

from numbers import Integral, Real
from typing import TypeAlias, get_args, get_origin

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ids: TypeAlias = NDArray[np.int64]
MAX_ID = 2**63 - 1
_BLOCK_ROWS = 4096


def check_whole(value: object, name: str, least: int) -> None:
    """Refuse what is not a whole number, or is less than `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number: got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}: got {value}")


def check_type(value: object, name: str, kind: object) -> None:
    """Refuse a value that is not of the kind that a parameter is declared as.

    Kinds are whole numbers, numbers, strings, true or false, each perhaps "or None", and lists of
    whole numbers, declared as a tuple or list; of other kinds nothing is said.
    """
    if get_origin(kind) in (tuple, list):
        if not isinstance(value, (list, tuple)) or not all(
            isinstance(entry, Integral) and not isinstance(entry, bool) for entry in value
        ):
            raise TypeError(f"{name} must be a list of whole numbers: got {value!r}")
        return
    kinds = get_args(kind) or (kind,)
    if value is None and type(None) in kinds:
        return
    for known, allowed, called in (
        (int, Integral, "a whole number"),
        (float, Real, "a number"),
        (bool, (bool, np.bool_), "True or False"),
        (str, str, "a string"),
    ):
        if known in kinds:
            is_one = isinstance(value, allowed) and (known is bool or not isinstance(value, bool))
            if not is_one:
                unless = ", or None" if type(None) in kinds else ""
                raise TypeError(f"{name} must be {called}{unless}: got {value!r}")
            return


def check_ids(ids: ArrayLike, name: str = "ids") -> Ids:
    """Return ids as a row of int64, or say what is wrong with them."""
    array = np.asarray(ids)
    if array.ndim != 1:
        raise ValueError(f"{name} must be a list of integers: got shape {array.shape}")
    if not array.size:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers: got {array.dtype}")
    if array.dtype.kind == "u" and array.max() > MAX_ID:
        raise ValueError(f"{name} must be at most {MAX_ID}, the last of 64 bits: got {array.max()}")
    return array.astype(np.int64, copy=False)


def some_ids(ids: Ids) -> str:
    """Name a few ids, for a message."""
    named = ", ".join(str(i) for i in ids[:5].tolist())
    return f"{named} and {len(ids) - 5:,} more" if len(ids) > 5 else named


def check_finite(
    rows: NDArray[np.generic], name: str = "X", numbers: NDArray[np.int64] | None = None
) -> None:
    """Refuse rows that float32 cannot hold, and name the first of them. A block at a time.

    Where the rows were drawn from a larger table, `numbers` says which they are in it.
    """
    for start in range(0, len(rows), _BLOCK_ROWS):
        with np.errstate(over="ignore"):  # what overflows is named below
            finite = np.isfinite(rows[start : start + _BLOCK_ROWS].astype(np.float32, copy=False))
        if not finite.all():
            first = start + int((~finite).any(axis=1).argmax())
            raise ValueError(
                f"{name} contains NaN, infinity or a value too large for float32, first in row "
                f"{first if numbers is None else numbers[first]}: features must be finite"
            )

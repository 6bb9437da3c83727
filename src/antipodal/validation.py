"""Checks of arguments shared by several packages: arrays, ids, labels and pairs."""

import numbers
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, TypeAlias, get_args, get_origin

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ids: TypeAlias = NDArray[np.int64]
MAX_ID = 2**63 - 1
_BLOCK_ROWS = 4096


def check_random_state(seed: Any) -> np.random.RandomState:
    """Return the random generator of a seed, as `sklearn.utils.check_random_state` does."""
    from sklearn.utils import check_random_state  # not at the top: it takes a second

    generator: np.random.RandomState = check_random_state(seed)
    return generator


def check_whole(value: object, name: str, least: int) -> None:
    """Raise TypeError or ValueError unless `value` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer: got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}: got {value}")


def check_type(value: object, name: str, kind: object) -> None:
    """Raise TypeError unless `value` has the type that a parameter is declared with.

    Checked types are int, float, str and bool, each with or without None, and tuples or lists
    of int. Values of other types pass unchecked.
    """
    if get_origin(kind) in (tuple, list):
        if not isinstance(value, (list, tuple)) or not all(
            isinstance(entry, Integral) and not isinstance(entry, bool) for entry in value
        ):
            raise TypeError(f"{name} must be a list of integers: got {value!r}")
        return
    kinds = get_args(kind) or (kind,)
    if value is None and type(None) in kinds:
        return
    for known, allowed, description in (
        (int, Integral, "an integer"),
        (float, Real, "a number"),
        (bool, (bool, np.bool_), "True or False"),
        (str, str, "a string"),
    ):
        if known in kinds:
            if not isinstance(value, allowed) or (known is not bool and isinstance(value, bool)):
                or_none = ", or None" if type(None) in kinds else ""
                raise TypeError(f"{name} must be {description}{or_none}: got {value!r}")
            return


def check_nested(nested: Sequence[int], n_bits: int) -> None:
    """Raise TypeError or ValueError unless `nested` are ascending code lengths below n_bits."""
    check_type(nested, "nested", tuple[int, ...])
    if list(nested) != sorted(set(nested)) or not all(1 <= n < n_bits for n in nested):
        raise ValueError(
            "nested must be distinct code lengths in ascending order, at least 1 and below "
            f"{n_bits}, the value of n_bits: got {nested}"
        )


def check_vectors(vectors: ArrayLike | None, name: str, n_features: int) -> NDArray[Any]:
    """Return vectors as a finite matrix with n_features columns."""
    rows = np.asarray(vectors)
    if rows.ndim != 2 or rows.shape[1] != n_features:
        raise ValueError(
            f"{name} must have shape (n, {n_features}), like the vectors of the model: got "
            f"{rows.shape}"
        )
    check_finite(rows, name)
    return rows


def check_ids(ids: ArrayLike, name: str = "ids") -> Ids:
    """Return ids as a one-dimensional int64 array after checking them."""
    array = np.asarray(ids)
    if array.ndim != 1:
        raise ValueError(f"{name} must be a list of integers: got shape {array.shape}")
    if not array.size:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers: got {array.dtype}")
    if array.dtype.kind == "u" and array.max() > MAX_ID:
        raise ValueError(f"{name} must be at most {MAX_ID}, to fit int64: got {array.max()}")
    return array.astype(np.int64, copy=False)


def some_ids(ids: NDArray[Any]) -> str:
    """Return the first five ids as text, for an error message."""
    first = ", ".join(str(i) for i in ids[:5].tolist())
    return f"{first} and {len(ids) - 5:,} more" if len(ids) > 5 else first


def check_finite(
    rows: NDArray[np.generic], name: str = "X", row_numbers: NDArray[np.int64] | None = None
) -> None:
    """Raise ValueError with the first row that is not finite in float32; read rows in blocks.

    `row_numbers` are the numbers to report, if the rows were drawn from a larger table.
    """
    for start in range(0, len(rows), _BLOCK_ROWS):
        with np.errstate(over="ignore"):  # an overflow is reported below
            finite = np.isfinite(rows[start : start + _BLOCK_ROWS].astype(np.float32, copy=False))
        if not finite.all():
            first = start + int((~finite).any(axis=1).argmax())
            raise ValueError(
                f"{name} contains NaN, infinity or a value too large for float32, first in row "
                f"{first if row_numbers is None else row_numbers[first]}: features must be finite"
            )


_PANDAS_MISSING = ("NAType", "NaTType")  # pandas.NA and NaT, recognised without importing pandas


def known_labels(y: ArrayLike, name: str = "labels") -> NDArray[Any]:
    """Return labels as an array after checking that none is missing and all have one type.

    None, NaN, NaT, pandas.NA and masked entries count as missing. `np.unique` would make a class
    of each of them, or sort objects with NaN wrongly and so repeat the other classes.

    Parameters
    ----------
    y : array-like (n,) or (n, c)
    name : str
        Name of the argument, for error messages.

    Returns
    -------
    array (n,) or (n, c)
        Objects that are all strings become a string array, and objects with floats a float array.
    """
    labels: NDArray[Any] = np.asarray(y)
    kind = labels.dtype.kind
    if kind == "T" or (kind in "US" and not hasattr(y, "dtype")):
        # NumPy converts None, NaN and numbers in a list to strings: check the original objects.
        labels = np.asarray(y, dtype=object)
    if labels.dtype.kind == "O":
        missing = np.array([_is_missing(label) for label in labels.flat], bool)
    elif labels.dtype.kind in "fcmM":
        missing = np.not_equal(labels, labels).ravel()
    else:
        missing = np.zeros(labels.size, bool)
    if isinstance(y, np.ma.MaskedArray):
        missing = missing | np.ma.getmaskarray(y).ravel()
    if labels.ndim and missing.any():
        rows: NDArray[np.bool_] = np.any(missing.reshape(len(labels), -1), axis=1)
        raise ValueError(
            f"{name} must be given for every row: {int(rows.sum())} of {len(rows)} are missing "
            f"(None, NaN, NaT or NA), the first in row {int(rows.argmax())}. Remove those rows, "
            "or pass them as `unlabelled` to a hasher that learns from unlabelled rows"
        )
    return _unify_types(labels, name) if labels.dtype.kind == "O" else labels


def _is_missing(label: Any) -> bool:
    if label is None or type(label).__name__ in _PANDAS_MISSING:
        return True
    try:
        return bool(label != label)
    except (TypeError, ValueError):  # a list or array in place of a label
        return False


def _unify_types(labels: NDArray[Any], name: str) -> NDArray[Any]:
    """Raise ValueError for objects of several types, which cannot be sorted."""
    kinds = [_kind(label) for label in labels.flat]
    counts = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    if len(counts) > 1:
        found = " and ".join(
            f"{count} {kind} such as {labels.flat[kinds.index(kind)]!r}"
            for kind, count in counts.items()
        )
        raise ValueError(
            f"{name} must be all integers or all strings: got {found}. If a column was read with "
            "mixed types, pass labels.astype(str)"
        )
    if "strings" in counts:
        return labels.astype(str)
    if "numbers" in counts and not all(
        isinstance(label, numbers.Integral | np.bool_) for label in labels.flat
    ):
        return labels.astype(np.float64)
    return labels


def _kind(label: Any) -> str:
    if isinstance(label, str):
        return "strings"
    if isinstance(label, numbers.Number | np.bool_):
        return "numbers"
    return f"of type {type(label).__name__}"


def check_labels(y: ArrayLike, n_samples: int) -> NDArray[Any]:
    """Return labels as class numbers (n,) int64 or multi-hot concepts (n, c) bool.

    Raise ValueError if a label is missing, or if all pairs are similar or all are dissimilar.
    """
    labels = known_labels(y)
    if labels.ndim not in (1, 2):
        raise ValueError(f"labels must be (n,) or multi-hot (n, c): got shape {labels.shape}")
    if len(labels) != n_samples:
        raise ValueError(
            f"labels must have one entry per row: {n_samples} rows, {len(labels)} labels"
        )
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind == "f" and np.isinf(labels).any():
        raise ValueError(f"labels must be finite: {int(np.isinf(labels).sum())} are infinite")
    if labels.ndim == 1:
        if labels.dtype.kind == "f":
            if (labels != np.floor(labels)).any():
                raise ValueError("Unknown label type: labels must be classes, got real numbers")
            largest = np.abs(labels).max(initial=0)
            if largest >= 2.0 ** (np.finfo(labels.dtype).nmant + 1):
                raise ValueError(
                    f"labels as large as {largest:.0f} may have been rounded to {labels.dtype}: "
                    "pass integers"
                )
        classes, class_numbers = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"labels must contain at least two classes: got one class, {classes[:1].tolist()}. "
                "Without dissimilar pairs all codes would become equal"
            )
        if len(classes) == n_samples:
            raise ValueError(
                f"no two of the {n_samples} labels are equal: there are no similar pairs to learn "
                "from. Are these identifiers or measurements instead of classes?"
            )
        return class_numbers.astype(np.int64)
    if not np.isin(labels, (0, 1)).all():
        raise ValueError("multi-hot labels must be 0 or 1: got other values")
    concepts = labels.astype(bool)
    counts = concepts.sum(axis=0)
    if counts.max(initial=0) < 2:
        raise ValueError("no two rows share a concept: there are no similar pairs to learn from")
    if (counts == n_samples).any():
        raise ValueError(
            f"every row has concept {int(np.argmax(counts == n_samples))}: all pairs are similar "
            "and all codes would become equal. Remove that concept"
        )
    return concepts


def check_pairs(
    pairs: ArrayLike, similar: ArrayLike, n_samples: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return explicit pairs as row numbers (P, 2) and booleans (P,) after checking them."""
    rows, flags = np.asarray(pairs), np.asarray(similar)
    if rows.ndim != 2 or rows.shape[1] != 2 or len(rows) == 0:
        raise ValueError(f"pairs must be (P, 2) with P ≥ 1: got shape {rows.shape}")
    if not np.issubdtype(rows.dtype, np.integer):
        raise TypeError(f"pairs must be row numbers, integers: got {rows.dtype}")
    if rows.min() < 0 or rows.max() >= n_samples:
        raise ValueError(
            f"pairs must be row numbers from 0 to {n_samples - 1}: "
            f"got values from {rows.min()} to {rows.max()}"
        )
    if flags.shape != (len(rows),):
        raise ValueError(f"similar must have one entry per pair, ({len(rows)},): got {flags.shape}")
    if not np.isin(flags, (0, 1)).all():
        raise ValueError("similar must be true or false (1 or 0) for each pair")
    flags = flags.astype(bool)
    if flags.all() or not flags.any():
        kind = "similar" if flags.all() else "dissimilar"
        raise ValueError(
            f"pairs must be of both kinds, similar and dissimilar: all {len(rows)} are {kind}"
        )
    return rows.astype(np.int64), flags

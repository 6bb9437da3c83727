"""NumPy arrays of the columns of Arrow, which must be without gaps."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.errors import AntipodalError, missing_extra
from antipodal.reading.columns import Role, TableColumn


def arrow_module(name: str, path: str) -> Any:
    """Import pyarrow or a part of it, or say how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise AntipodalError(missing_extra(f"reading {path}", "pyarrow", "arrow")) from error


def describe_column(kind: Any) -> TableColumn:
    """Say what a column of this type of Arrow can be to a vector."""
    types = import_module("pyarrow.types")
    kind = _storage_type(kind)
    if _is_list(kind):
        role = Role.VECTOR if _is_number(kind.value_type) else Role.OTHER
    elif _is_bytes(kind):
        role = Role.VECTOR  # packed codes
    else:
        role = Role.NUMBER if _is_number(kind) else Role.OTHER
    return TableColumn("text" if types.is_string(kind) else str(kind), role)


def stack_vectors(values: Any, name: str, first: int, width: int | None) -> NDArray[Any]:
    """Stack lists of numbers, or bytes, of equal length into (n, width), if they can be.

    Parameters
    ----------
    values : pyarrow.Array
    name, first
        The column and the number of its first row, for messages.
    width : int or None
        Of the rows before, if there were any.
    """
    compute = import_module("pyarrow.compute")
    if hasattr(values, "storage"):  # a type from outside, such as a tensor
        values = values.storage
    _refuse_nulls(values, name, first)
    is_list = _is_list(values.type)
    lengths = (compute.list_value_length if is_list else compute.binary_length)(values)
    lengths = lengths.to_numpy(zero_copy_only=False)
    if width is None:
        width = int(lengths[0])
    odd = np.flatnonzero(lengths != width)
    if len(odd):
        raise ValueError(
            f"the column {name!r} must be of vectors of equal length: row 0 has {width} values, "
            f"row {first + odd[0]} has {lengths[odd[0]]}"
        )
    if not is_list:
        return _stack_bytes(values, width)
    flat = values.flatten()  # no copy: they lie one after the other
    _refuse_nulls(flat, name, first, width)
    matrix: NDArray[Any] = flat.to_numpy(zero_copy_only=False).reshape(len(values), width)
    return matrix


def batch_vectors(batch: Any, names: Sequence[str], first: int, width: int | None) -> NDArray[Any]:
    """Return the vectors in the column of this name, or in the columns of numbers, of a batch."""
    if len(names) > 1:
        return np.column_stack([as_numbers(batch.column(name), name, first) for name in names])
    return stack_vectors(batch.column(names[0]), names[0], first, width)


def as_numbers(values: Any, name: str, first: int) -> NDArray[Any]:
    """Return a column of numbers."""
    _refuse_nulls(values, name, first)
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers


def as_values(values: Any, name: str, first: int, width: int | None) -> NDArray[Any]:
    """Return numbers or words (n,), or lists of numbers (n, width): labels or ids."""
    types = import_module("pyarrow.types")
    kind = values.type
    if describe_column(kind).role is Role.VECTOR:
        return stack_vectors(values, name, first, width)
    if types.is_nested(kind):
        raise ValueError(f"the column {name!r} must be of numbers, words or lists, not of {kind}")
    _refuse_nulls(values, name, first)
    if types.is_string(kind) or types.is_large_string(kind):
        values = values.dictionary_encode()
    if types.is_dictionary(values.type):
        words = np.array(values.dictionary.to_pylist())
        chosen: NDArray[Any] = words[values.indices.to_numpy(zero_copy_only=False)]
        return chosen
    return as_numbers(values, name, first)


def _stack_bytes(values: Any, width: int) -> NDArray[np.uint8]:
    arrow = import_module("pyarrow")
    values = values.cast(arrow.binary(width))
    data = np.frombuffer(values.buffers()[1], np.uint8)
    start = values.offset * width
    return data[start : start + len(values) * width].reshape(len(values), width)


def _refuse_nulls(values: Any, name: str, first: int, width: int = 1) -> None:
    if values.null_count:
        place = int(values.is_null().to_numpy(zero_copy_only=False).argmax())
        raise ValueError(
            f"the column {name!r} must have no gaps: a value is missing in row "
            f"{first + place // width}"
        )


def _storage_type(kind: Any) -> Any:
    return getattr(kind, "storage_type", kind)


def _is_list(kind: Any) -> bool:
    types = import_module("pyarrow.types")
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_bytes(kind: Any) -> bool:
    types = import_module("pyarrow.types")
    return bool(
        types.is_fixed_size_binary(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )


def _is_number(kind: Any) -> bool:
    types = import_module("pyarrow.types")
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))

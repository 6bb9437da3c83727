"""Features and labels from the columns of a parquet file, a column at a time and not a row."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.errors import AntipodalError, missing_extra


def read_parquet(path: Path, features: str, labels: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read a column of lists of numbers, (m, n), and one of numbers, words or lists.

    Words come as their places in the alphabet of all words.
    """
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise AntipodalError(missing_extra(f"reading {path}", "pyarrow", "parquet")) from error
    try:
        dataset = parquet.ParquetDataset(path, page_checksum_verification=True)  # if it has any
        columns = dataset.schema.names
        for name in (features, labels):
            if name not in columns:
                raise AntipodalError(
                    f"{path} has no column {name!r}: it has {', '.join(columns) or 'none'}"
                )
        table = dataset.read(columns=[features, labels])
        if table.num_rows == 0:
            raise ValueError("it has no rows")
        return _as_matrix(table[features], features), _as_labels(table[labels], labels)
    except AntipodalError:
        raise
    except Exception as error:  # pyarrow raises many kinds
        raise AntipodalError(f"cannot read {path}: {error}") from error


def _as_matrix(column: Any, name: str) -> NDArray[Any]:
    """Stack lists of equal length."""
    arrow = import_module("pyarrow")
    kinds = (arrow.types.is_list, arrow.types.is_large_list, arrow.types.is_fixed_size_list)
    if not any(is_kind(column.type) for is_kind in kinds):
        raise ValueError(f"the column {name!r} must be of lists, and is of {column.type}")
    _refuse_nulls(column, name)
    lengths = arrow.compute.list_value_length(column).to_numpy()
    odd = np.flatnonzero(lengths != lengths[:1])
    if len(odd):
        raise ValueError(
            f"the column {name!r} must be of lists of equal length: row 0 has {lengths[0]} "
            f"values, row {odd[0]} has {lengths[odd[0]]}"
        )
    flat = [chunk.flatten() for chunk in column.chunks]
    for values in flat:
        _refuse_nulls(values, name)
    # their values lie one after the other already
    matrix = np.concatenate([values.to_numpy(zero_copy_only=False) for values in flat])
    return matrix.reshape(len(lengths), -1)


def _refuse_nulls(values: Any, name: str) -> None:
    if values.null_count:
        raise ValueError(f"the column {name!r} has {values.null_count:,} missing values")


def _as_labels(column: Any, name: str) -> NDArray[Any]:
    types = import_module("pyarrow.types")
    if types.is_nested(column.type):
        return _as_matrix(column, name)
    _refuse_nulls(column, name)
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        values: NDArray[Any] = column.to_numpy()
        return values
    encoded = column.dictionary_encode().combine_chunks()
    words = np.array(encoded.dictionary.to_pylist(), np.str_)
    places = np.unique(words, return_inverse=True)[1]
    classes: NDArray[Any] = places[encoded.indices.to_numpy()]
    return classes

"""Tables of rows and columns, and the choice of the vector column."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.errors import AntipodalError
from antipodal.io.formats import DataFile

_MAX_LISTED = 20  # columns in an error message


class Role(Enum):
    """Role of a column in a vector: the whole vector, one dimension, or none."""

    VECTOR = "vector"
    NUMBER = "number"
    OTHER = "other"


class Column(NamedTuple):
    """The type of a column, as its format names it, and its role."""

    type: str
    role: Role


class NoRowsError(AntipodalError):
    """A file has no rows, so its number of dimensions is unknown."""

    def __init__(self, path: str) -> None:
        super().__init__(f"cannot read {path}: it has no rows")


class Table(ABC):
    """A file of vectors. Every method opens the file and reads it from the beginning."""

    def __init__(self, file: DataFile, columns: Mapping[str, Column]) -> None:
        self.file = file
        self.columns = columns

    @property
    def layout(self) -> Mapping[str, str]:
        """The columns and types that must be equal in all files that are read together."""
        return {name: column.type for name, column in self.columns.items()}

    @abstractmethod
    def count(self, names: Sequence[str]) -> int:
        """Return the number of rows of these columns."""

    @abstractmethod
    def blocks(
        self, names: Sequence[str], max_rows: int, width: int | None = None
    ) -> Iterator[NDArray[Any]]:
        """Yield the vectors in these columns, up to max_rows at a time.

        They must have `width` dimensions, by default those of the first row.
        """

    def blocks_with(
        self, rows: NDArray[np.int64], names: Sequence[str], max_rows: int, width: int
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the blocks that contain these rows, each with the number of its first row."""
        first = 0
        for block in self.blocks(names, max_rows, width):
            yield first, block
            first += len(block)

    def first_row(self, names: Sequence[str]) -> NDArray[Any]:
        """Return the first vector in these columns, (1, n_features)."""
        for row in self.blocks(names, 1):
            return row
        raise NoRowsError(self.file.path)

    def values(self, name: str) -> NDArray[Any]:
        """Return a whole column: numbers or strings (n,), or lists of equal length (n, c)."""
        raise KeyError(name)

    def records(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the values of these columns row by row, as JSON values."""
        raise KeyError(*names)


def choose_columns(
    path: str,
    columns: Mapping[str, Column],
    requested: str | Sequence[str] | None,
    leave_out: Collection[str],
) -> tuple[str, ...]:
    """Return the name of the vector column, or of the number columns that form the vector.

    Parameters
    ----------
    path : str
        The name of the file in error messages.
    columns : mapping
        All columns of the file.
    requested : str, sequence of str or None
        A name, or names and patterns (`f*`) as a list or separated by commas. None is the only
        vector column or, if all columns are numbers, all of them.
    leave_out : collection of str
        Columns that are not part of the vector, such as labels.
    """
    if requested is None:
        return _default_columns(path, columns, leave_out)
    chosen = _matching_columns(path, columns, requested)
    repeated = next((name for name in chosen if chosen.count(name) > 1), None)
    if repeated is not None:
        raise AntipodalError(f"{path}: the column {repeated!r} is named more than once")
    role, expected = Role.NUMBER, "numbers, since several columns form the vector"
    if len(chosen) == 1:
        role, expected = Role.VECTOR, "lists of numbers, since it is the vector column"
    for name in chosen:
        if columns[name].role is not role:
            raise AntipodalError(
                f"cannot read {path}: the column {name!r} must contain {expected}: it contains "
                f"{columns[name].type}"
            )
    return chosen


def check_column(path: str, columns: Mapping[str, Column], name: str) -> None:
    """Raise an error that lists the columns if the named one is missing."""
    if name not in columns:
        raise AntipodalError(f"{path} has no column {name!r}: it has {_listed(columns)}")


def _default_columns(
    path: str, columns: Mapping[str, Column], leave_out: Collection[str]
) -> tuple[str, ...]:
    names = [name for name in columns if name not in leave_out]
    vectors = tuple(name for name in names if columns[name].role is Role.VECTOR)
    if len(vectors) == 1:
        return vectors
    if len(names) > 1 and all(columns[name].role is Role.NUMBER for name in names):
        return tuple(names)
    if vectors:
        raise AntipodalError(
            f"{path} has several vector columns ({_listed(vectors)}): choose one, such as "
            f"{path}:{vectors[0]}"
        )
    types = [f"{name} ({column.type})" for name, column in columns.items()]
    raise AntipodalError(
        f"{path} has no column of vectors: it has {_listed(types)}. To combine several columns of "
        f"numbers into one vector, name them: {path}:FIRST,SECOND or a pattern such as {path}:f*"
    )


def _matching_columns(
    path: str, columns: Mapping[str, Column], requested: str | Sequence[str]
) -> tuple[str, ...]:
    if isinstance(requested, str):
        if requested in columns:
            return (requested,)
        requested = [part.strip() for part in requested.split(",")]
    chosen: list[str] = []
    for part in requested:
        matching = [part] if part in columns else [n for n in columns if fnmatchcase(n, part)]
        if not matching:
            check_column(path, columns, part)
        chosen += matching
    return tuple(chosen)


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_MAX_LISTED]) or "none"
    n_more = len(names) - _MAX_LISTED
    return f"{shown} and {n_more:,} more" if n_more > 0 else shown

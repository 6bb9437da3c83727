"""Tables of rows and columns, and the choice of the vector column."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.errors import AntipodalError
from antipodal.io.file_kinds import FoundFile

_MOST_NAMED = 20  # columns, in a message


class Role(Enum):
    """What a column can be to a vector: all of it, one number of it, or nothing."""

    VECTOR = "vector"
    NUMBER = "number"
    OTHER = "other"


class TableColumn(NamedTuple):
    """The type of a column, in the words of its format, and what it can be to a vector."""

    type: str
    role: Role


def choose_columns(
    path: str,
    columns: Mapping[str, TableColumn],
    asked: str | Sequence[str] | None,
    leave_out: Collection[str],
) -> tuple[str, ...]:
    """Return the one column of vectors, or the columns of numbers that together are the vector.

    Parameters
    ----------
    path : str
        For messages.
    columns : mapping
        All there are.
    asked : str, sequence of str or None
        A name; names and patterns (`f*`), in a list or with commas between; None for the only
        column of vectors or, where all are numbers, for all of them.
    leave_out : collection of str
        Columns that are something else, such as labels.
    """
    if asked is None:
        return _the_only_choice(path, columns, leave_out)
    chosen = _named(path, columns, asked)
    repeated = next((name for name in chosen if chosen.count(name) > 1), None)
    if repeated is not None:
        raise AntipodalError(f"{path}: the column {repeated!r} is named more than once")
    alone = len(chosen) == 1
    for name in chosen:
        if columns[name].role is not (Role.VECTOR if alone else Role.NUMBER):
            raise AntipodalError(
                f"cannot read {path}: the column {name!r} must be of "
                f"{'lists of numbers to be the vector' if alone else 'numbers to be part of one'}, "
                f"and is of {columns[name].type}"
            )
    return chosen


def check_column(path: str, columns: Mapping[str, TableColumn], name: str) -> None:
    """Refuse the name of a column that is not there, and say which are."""
    if name not in columns:
        raise AntipodalError(f"{path} has no column {name!r}: it has {_listed(columns)}")


def _the_only_choice(
    path: str, columns: Mapping[str, TableColumn], leave_out: Collection[str]
) -> tuple[str, ...]:
    names = [name for name in columns if name not in leave_out]
    vectors = tuple(name for name in names if columns[name].role is Role.VECTOR)
    if len(vectors) == 1:
        return vectors
    numbers = tuple(name for name in names if columns[name].role is Role.NUMBER)
    if len(numbers) == len(names) > 1:
        return numbers
    if vectors:
        raise AntipodalError(
            f"{path} has several columns of vectors ({_listed(vectors)}): name one, as "
            f"{path}:{vectors[0]}"
        )
    types = [f"{name} of {column.type}" for name, column in columns.items()]
    raise AntipodalError(
        f"{path} has no column of vectors: it has {_listed(types)}. Numbers in several columns "
        f"become one vector if these are named: {path}:FIRST,SECOND or, by a pattern, {path}:f*"
    )


def _named(
    path: str, columns: Mapping[str, TableColumn], asked: str | Sequence[str]
) -> tuple[str, ...]:
    if isinstance(asked, str):
        if asked in columns:
            return (asked,)
        asked = [part.strip() for part in asked.split(",")]
    chosen: list[str] = []
    for part in asked:
        if part in columns:
            chosen.append(part)
            continue
        matching = [name for name in columns if fnmatchcase(name, part)]
        if not matching:
            check_column(path, columns, part)
        chosen += matching
    return tuple(chosen)


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_MOST_NAMED]) or "none"
    more = len(names) - _MOST_NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown


class NoRowsError(AntipodalError):
    """A file has no rows, and so does not say how long its vectors are."""


class VectorType(NamedTuple):
    """How long the vectors of a file are, and of which numbers."""

    n_features: int
    dtype: np.dtype[Any]


class Table(ABC):
    """One file. Each of its methods opens it, and reads it from its beginning."""

    def __init__(self, file: FoundFile, columns: Mapping[str, TableColumn]) -> None:
        self.file = file
        self.columns = columns

    @property
    def form(self) -> Mapping[str, str]:
        """Of each column what must be the same in all files that are read together."""
        return {name: column.type for name, column in self.columns.items()}

    @abstractmethod
    def count(self, names: Sequence[str]) -> int:
        """Return the number of rows of these columns, counting them where the file does not say."""

    @abstractmethod
    def vector_type(self, names: Sequence[str]) -> VectorType:
        """Return what the vectors in these columns are."""

    @abstractmethod
    def matrices(
        self, names: Sequence[str], rows: VectorType, max_rows: int
    ) -> Iterator[NDArray[Any]]:
        """Yield the vectors in these columns, which must be of this type, up to max_rows a time."""

    @abstractmethod
    def values(self, name: str) -> NDArray[Any]:
        """Return a whole column: numbers or words (n,), or lists of equal length (n, c)."""

    @abstractmethod
    def records(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the values of these columns row by row, as JSON has them."""

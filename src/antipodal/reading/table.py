"""A file with rows and columns, as all kinds of files are read."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.errors import AntipodalError
from antipodal.reading.columns import TableColumn
from antipodal.reading.filekinds import FoundFile


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

"""NumPy files: .npy arrays, memory-mapped, and .npz archives, read while unpacking."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, cast
from zipfile import ZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from antipodal.errors import AntipodalError
from antipodal.io.arrays import open_npz, read_array
from antipodal.io.columns import Role, Table, TableColumn, VectorType
from antipodal.io.file_kinds import FoundFile

_NUMBERS = "fiub"


class NpyTable(Table):
    """One array, of a file or a pipe. It has no columns of other things."""

    def __init__(self, file: FoundFile) -> None:
        super().__init__(file, {})
        self.array = np.asarray(read_array(file.path))  # a memory map is an array like any
        if self.array.ndim != 2:
            raise AntipodalError(
                f"{file.path} must have a row per item and a column per feature: got shape "
                f"{self.array.shape}"
            )
        if len(self.array) and not self.array.size:
            raise AntipodalError(f"{file.path} has no columns: got shape {self.array.shape}")
        if self.array.dtype.kind not in _NUMBERS:
            raise AntipodalError(f"{file.path} must hold numbers: got {self.array.dtype}")

    def count(self, names: Sequence[str]) -> int:
        """Return the rows of the array."""
        return len(self.array)

    def vector_type(self, names: Sequence[str]) -> VectorType:
        """Return what the rows of the array are."""
        return VectorType(self.array.shape[1], self.array.dtype)

    def matrices(
        self, names: Sequence[str], rows: VectorType, max_rows: int
    ) -> Iterator[NDArray[Any]]:
        """Yield slices of the array."""
        return _slices(self.array, max_rows)

    def values(self, name: str) -> NDArray[Any]:
        """Find nothing: there are no columns."""
        raise KeyError(name)

    def records(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Find nothing: there are no columns."""
        raise KeyError(*names)


class NpzTable(Table):
    """Arrays of a zip file, which are its columns. They need not have equally many rows."""

    def __init__(self, file: FoundFile) -> None:
        self._heads: dict[str, _Head] = {}
        with open_npz(file.path) as members:
            for name in members.files:
                with _open_member(members, name) as (head, _):
                    self._heads[name] = head
        if not self._heads:
            raise AntipodalError(f"{file.path} holds no array")
        super().__init__(file, {name: head.as_column() for name, head in self._heads.items()})

    @property
    def form(self) -> Mapping[str, str]:
        """The arrays and their types; their numbers of rows may differ."""
        return {name: str(head.dtype) for name, head in self._heads.items()}

    def count(self, names: Sequence[str]) -> int:
        """Return the rows of the first of the arrays."""
        return self._heads[names[0]].shape[0]

    def vector_type(self, names: Sequence[str]) -> VectorType:
        """Return what the rows of the array are."""
        [name] = names
        return VectorType(self._heads[name].shape[1], self._heads[name].dtype)

    def matrices(
        self, names: Sequence[str], rows: VectorType, max_rows: int
    ) -> Iterator[NDArray[Any]]:
        """Yield the rows as they unpack; the end of the array tells whether its bytes are right."""
        [name] = names
        with open_npz(self.file.path) as members, _open_member(members, name) as (head, stream):
            n_rows, n_features = head.shape
            if head.fortran_order:  # then no row is in one piece
                yield from _slices(_unpacked(stream, head), max_rows)
                return
            for start in range(0, n_rows, max_rows):
                size = min(max_rows, n_rows - start)
                data = stream.read(size * n_features * head.dtype.itemsize)
                yield np.frombuffer(data, head.dtype).reshape(size, n_features)
            if stream.read(1):
                raise ValueError("there is more than the array")

    def values(self, name: str) -> NDArray[Any]:
        """Return an array."""
        return read_array(f"{self.file.path}:{name}")

    def records(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield a value of each array, row by row."""
        columns = [self.values(name).tolist() for name in names]
        return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


class _Head(NamedTuple):
    """What an array in a file says of itself."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]

    def as_column(self) -> TableColumn:
        is_vector = len(self.shape) == 2 and self.dtype.kind in _NUMBERS and self.shape[1] > 0
        called = f"{self.dtype} {self.shape}"
        return TableColumn(called, Role.VECTOR if is_vector else Role.OTHER)


@contextmanager
def _open_member(members: NpzFile, name: str) -> Iterator[tuple[_Head, IO[bytes]]]:
    with cast(ZipFile, members.zip).open(f"{name}.npy") as stream:
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        yield _Head(*readers[np.lib.format.read_magic(stream)](stream)), stream


def _unpacked(stream: IO[bytes], head: _Head) -> NDArray[Any]:
    with TemporaryFile() as file:
        copyfileobj(stream, file)
        file.flush()
        return np.memmap(file, head.dtype, "r", shape=head.shape, order="F")


def _slices(array: NDArray[Any], max_rows: int) -> Iterator[NDArray[Any]]:
    for start in range(0, len(array), max_rows):
        yield array[start : start + max_rows]

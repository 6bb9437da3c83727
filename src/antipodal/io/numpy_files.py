"""NumPy files: .npy arrays, memory-mapped or written in blocks, and .npz archives."""

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any, BinaryIO, NamedTuple, cast
from zipfile import ZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import DTypeLike, NDArray

from antipodal.codes import Codes
from antipodal.errors import AntipodalError
from antipodal.io.atomic import replacing
from antipodal.io.columns import Column, Role, Table
from antipodal.io.formats import NPY, NPZ, DataFile

_NUMBERS = "fiub"  # kinds of dtypes
_START_BYTES = 8  # enough to recognise the format


def read_array(source: str) -> NDArray[Any]:
    """Read `FILE.npy`, memory-mapped, an array of an archive as `FILE.npz:NAME`, or `-`, a pipe.

    The name may be omitted if the archive has a single array. A pipe (standard input or a named
    pipe) must contain one .npy file, which is read into memory.
    """
    if source == "-":
        return _read_stream(sys.stdin.buffer, "standard input")
    path, zipped, name = source.rpartition(".npz:")
    if zipped:
        return _read_member(f"{path}.npz", name)
    if source.endswith(".npz"):
        return _read_member(source, None)
    data_file = DataFile(source, NPY, "because an array is required")
    with data_file.naming_errors(), open(source, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return _read_stream(file, source)
        data_file.check_start(file.read(_START_BYTES))
        array: NDArray[Any] = np.load(source, mmap_mode="r", allow_pickle=False)
        return array


def _read_stream(stream: BinaryIO, name: str) -> NDArray[Any]:
    data_file = DataFile(name, NPY, "because it is a pipe")
    with data_file.naming_errors():
        data = stream.read()
        data_file.check_start(data[:_START_BYTES])
        array: NDArray[Any] = np.load(BytesIO(data), allow_pickle=False)
        return array


def _read_member(path: str, name: str | None) -> NDArray[Any]:
    """Return the array of this name in an archive, or its only array."""
    with open_npz(path) as archive:
        if not archive.files:
            raise AntipodalError(f"{path} contains no array")
        first, *others = archive.files
        names = ", ".join(archive.files)
        if name is None and others:
            raise AntipodalError(
                f"{path} contains several arrays ({names}): choose one, such as {path}:{first}"
            )
        if name is not None and name not in archive.files:
            raise AntipodalError(f"{path} has no array {name!r}: it contains {names}")
        return np.asarray(archive[first if name is None else name])


@contextmanager
def open_npz(path: str | os.PathLike[str]) -> Iterator[NpzFile]:
    """Open an archive of arrays; errors in the block become errors that name the file.

    Arrays are read by ``archive[name]``, which raises an error if one is damaged.
    """
    data_file = DataFile(os.fspath(path), NPZ, "because an archive is required")
    # np.load does not close a damaged file that it opened itself.
    with data_file.naming_errors(), open(path, "rb") as stream:
        data_file.check_start(stream.read(_START_BYTES))
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as archive:
            yield archive


def write_codes(
    path: str | os.PathLike[str], blocks: Iterable[Codes], n_rows: int, width: int
) -> None:
    """Write blocks of packed codes to one .npy file of n_rows × width bytes; `-` is a pipe."""
    if str(path) == "-":
        _write(sys.stdout.buffer, blocks, n_rows, width)
        sys.stdout.buffer.flush()
        return
    with replacing(Path(path)) as file:
        _write(file, blocks, n_rows, width)


def _write(file: BinaryIO, blocks: Iterable[Codes], n_rows: int, width: int) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": (n_rows, width)}
    np.lib.format.write_array_header_1_0(file, header)
    for block in blocks:
        file.write(np.ascontiguousarray(block).data)


def mapped_rows(
    blocks: Iterable[NDArray[Any]], shape: tuple[int, int], dtype: DTypeLike, name: str
) -> NDArray[Any]:
    """Write all blocks to a temporary file and return it as one memory-mapped array.

    Parameters
    ----------
    blocks : iterable of (m, n)
        The rows in order, of this dtype.
    shape : (int, int)
        The shape of all rows together.
    name : str
        The name of the source, for the error message if the disk is full.
    """
    if 0 in shape:
        return np.empty(shape, dtype)
    try:
        with TemporaryFile() as file:
            for block in blocks:
                file.write(np.ascontiguousarray(block).data)
            file.flush()
            return np.memmap(file, dtype, "r", shape=shape)
    except OSError as error:
        raise AntipodalError(
            f"cannot unpack {name} into {gettempdir()}: {error.strerror or error}. "
            "Set TMPDIR to use another folder"
        ) from error


class NpyTable(Table):
    """One array, in a file or a pipe. It has no named columns."""

    def __init__(self, file: DataFile) -> None:
        super().__init__(file, {})
        self.array = np.asarray(read_array(file.path))  # a plain view of the memory map
        if self.array.ndim != 2:
            raise AntipodalError(
                f"{file.path} must have a row per item and a column per feature: got shape "
                f"{self.array.shape}"
            )
        if self.array.dtype.kind not in _NUMBERS:
            raise AntipodalError(f"{file.path} must contain numbers: got {self.array.dtype}")

    def count(self, names: Sequence[str]) -> int:
        """Return the number of rows of the array."""
        return len(self.array)

    def first_row(self, names: Sequence[str]) -> NDArray[Any]:
        """Return the first row, or none if the array is empty."""
        return self.array[:1]

    def blocks(
        self, names: Sequence[str], max_rows: int, width: int | None = None
    ) -> Iterator[NDArray[Any]]:
        """Yield slices of the array."""
        return _slices(self.array, max_rows)


class NpzTable(Table):
    """An archive of arrays, its columns. The arrays may differ in their numbers of rows."""

    def __init__(self, file: DataFile) -> None:
        self._headers: dict[str, _Header] = {}
        with open_npz(file.path) as archive:
            for name in archive.files:
                with _open_member(archive, name) as (header, _):
                    self._headers[name] = header
        if not self._headers:
            raise AntipodalError(f"{file.path} contains no array")
        super().__init__(file, {name: h.as_column() for name, h in self._headers.items()})

    @property
    def layout(self) -> Mapping[str, str]:
        """The arrays and their dtypes; their shapes may differ from file to file."""
        return {name: str(header.dtype) for name, header in self._headers.items()}

    def count(self, names: Sequence[str]) -> int:
        """Return the number of rows of the first of these arrays."""
        return self._headers[names[0]].shape[0]

    def first_row(self, names: Sequence[str]) -> NDArray[Any]:
        """Return an array without rows, of the type of the vectors."""
        header = self._headers[names[0]]
        return np.empty((0, header.shape[1]), header.dtype)

    def blocks(
        self, names: Sequence[str], max_rows: int, width: int | None = None
    ) -> Iterator[NDArray[Any]]:
        """Yield the rows while they are decompressed; the checksum is verified at the end."""
        [name] = names
        with open_npz(self.file.path) as archive, _open_member(archive, name) as (header, stream):
            n_rows, n_features = header.shape
            if header.fortran_order:  # rows are not contiguous
                yield from _slices(_unpacked(stream, header), max_rows)
                return
            for start in range(0, n_rows, max_rows):
                size = min(max_rows, n_rows - start)
                data = stream.read(size * n_features * header.dtype.itemsize)
                yield np.frombuffer(data, header.dtype).reshape(size, n_features)
            if stream.read(1):
                raise ValueError("the member is longer than its array")

    def values(self, name: str) -> NDArray[Any]:
        """Return an array."""
        return read_array(f"{self.file.path}:{name}")

    def records(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield a value of each array, row by row."""
        columns = [self.values(name).tolist() for name in names]
        return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


class _Header(NamedTuple):
    """The header of an .npy file."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]

    def as_column(self) -> Column:
        is_vector = len(self.shape) == 2 and self.dtype.kind in _NUMBERS and self.shape[1] > 0
        return Column(f"{self.dtype} {self.shape}", Role.VECTOR if is_vector else Role.OTHER)


@contextmanager
def _open_member(archive: NpzFile, name: str) -> Iterator[tuple[_Header, IO[bytes]]]:
    with cast(ZipFile, archive.zip).open(f"{name}.npy") as stream:
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        yield _Header(*readers[np.lib.format.read_magic(stream)](stream)), stream


def _unpacked(stream: IO[bytes], header: _Header) -> NDArray[Any]:
    with TemporaryFile() as file:
        copyfileobj(stream, file)
        file.flush()
        return np.memmap(file, header.dtype, "r", shape=header.shape, order="F")


def _slices(array: NDArray[Any], max_rows: int) -> Iterator[NDArray[Any]]:
    for start in range(0, len(array), max_rows):
        yield array[start : start + max_rows]

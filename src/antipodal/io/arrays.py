"""NumPy array files: read as memory maps, written in blocks."""

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import DTypeLike, NDArray

from antipodal.codes import Codes
from antipodal.errors import AntipodalError
from antipodal.io.atomic import replacing

_ARRAY, _ARRAYS = "an array, as FILE.npy or FILE.npz:NAME", "an .npz file of arrays"
_NPY, _ZIP = b"\x93NUMPY", b"PK"  # how these files begin


def read_array(source: str) -> NDArray[Any]:
    """Read `file.npy`, memory-mapped, one array of a zip file as `file.npz:name`, or `-`, a pipe.

    The name may be left out where the file holds a single array. A pipe, standard input or one
    with a name, holds one .npy file, and is read whole.
    """
    if source == "-":
        return _read_stream(sys.stdin.buffer, "standard input")
    path, zipped, name = source.rpartition(".npz:")
    if zipped:
        return _read_member(f"{path}.npz", name)
    if source.endswith(".npz"):
        return _read_member(source, None)
    with _naming(source, _ARRAY), open(source, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return _read_stream(file, source)
        _check_start(file.read(len(_NPY)), _NPY)
        array: NDArray[Any] = np.load(source, mmap_mode="r", allow_pickle=False)
        return array


def _read_stream(stream: BinaryIO, name: str) -> NDArray[Any]:
    with _naming(name, _ARRAY):
        data = stream.read()
        _check_start(data[: len(_NPY)], _NPY)
        array: NDArray[Any] = np.load(BytesIO(data), allow_pickle=False)
        return array


def _read_member(path: str, name: str | None) -> NDArray[Any]:
    """Return an array of a zip file by its name, or its only one."""
    with open_npz(path) as file:
        held = ", ".join(file.files) or "nothing"
        if name is None and len(file.files) != 1:
            raise AntipodalError(
                f"{path} holds several arrays ({held}): name one of them, as {path}:{file.files[0]}"
                if file.files
                else f"{path} holds no array"
            )
        if name is not None and name not in file.files:
            raise AntipodalError(f"{path} has no array {name!r}: it holds {held}")
        return np.asarray(file[file.files[0] if name is None else name])


@contextmanager
def open_npz(path: str | os.PathLike[str]) -> Iterator[NpzFile]:
    """Open a file of plain arrays; what fails while it is open is an error that names the file.

    Arrays are read, and may prove damaged, only when asked for: ``file[name]``.
    """
    # np.load would leave a file open that it opened itself and found damaged
    with _naming(path, _ARRAYS), open(path, "rb") as stream:
        _check_start(stream.read(len(_NPY)), _ZIP)
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as file:
            yield file


class _UnlikeError(Exception):
    """A file is of another kind, said in our own words."""


def _check_start(start: bytes, wanted: bytes) -> None:
    """Tell kinds of files apart by their first bytes."""
    if start.startswith(wanted):
        return
    if not start:
        raise _UnlikeError("it is empty")
    if start == _NPY:
        raise _UnlikeError("it holds a single array, as .npy files do")
    if start.startswith(_ZIP):
        raise _UnlikeError("it is a zip file: if it holds arrays, its name must end in .npz")
    raise _UnlikeError("not a NumPy file")


@contextmanager
def _naming(path: str | os.PathLike[str], expected: str) -> Iterator[None]:
    """Turn whatever fails into an error that names the file and says what was expected."""
    try:
        yield
    except AntipodalError:
        raise
    except Exception as error:  # zipfile and NumPy raise many kinds
        if isinstance(error, _UnlikeError):
            reason = str(error)
        elif "Object arrays" in str(error) or "Python objects" in str(error):  # says NumPy
            reason = "it holds Python objects, which only pickle reads: save numbers or strings"
        else:
            reason = getattr(error, "strerror", None) or "it is truncated or damaged"
        raise AntipodalError(f"cannot read {path}: {reason}. Expected {expected}") from error


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
    """Return the rows of all blocks as one mapped array; the file goes with the map of it.

    Parameters
    ----------
    blocks : iterable of (m, n)
        The rows in order, of that dtype.
    shape : (int, int)
        Of all rows together.
    name : str
        What is unpacked, for the message when the disk is full.
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
            "The variable TMPDIR names another folder"
        ) from error

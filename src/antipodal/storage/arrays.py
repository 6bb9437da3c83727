"""Read arrays from files without loading what is not needed, and write codes as they come."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.errors import AntipodalError
from antipodal.storage.files import replacing


def read_array(source: str) -> NDArray[Any]:
    """Read `file.npy`, memory-mapped, one array of a zip file as `file.npz:name`, or `-`, a pipe.

    A pipe, standard input, holds one .npy file, and is read whole.
    """
    if source == "-":
        with _naming("standard input", "not a NumPy file"):
            piped: NDArray[Any] = np.load(BytesIO(sys.stdin.buffer.read()), allow_pickle=False)
            return piped
    path, zipped, name = source.partition(".npz")
    if not zipped:
        with _naming(path, "not a NumPy file"):
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
            return array
    path += zipped
    with open_npz(path) as file:
        if name[1:] not in file.files:
            raise AntipodalError(
                f"{path} holds several arrays ({', '.join(file.files)}): "
                f"name one of them, as {path}:{(file.files or ['X'])[0]}"
            )
        return np.asarray(file[name[1:]])


@contextmanager
def open_npz(path: str | os.PathLike[str]) -> Iterator[NpzFile]:
    """Open a file of plain arrays; what fails while it is open is an error that names the file.

    Arrays are read, and may prove damaged, only when asked for: ``file[name]``.
    """
    # np.load would leave a file open that it opened itself and found damaged
    with _naming(path, "not an .npz file of plain arrays"), open(path, "rb") as stream:
        file = np.load(stream, allow_pickle=False)
        if not isinstance(file, NpzFile):
            raise ValueError("a single array")
        with file:
            yield file


@contextmanager
def _naming(path: str | os.PathLike[str], problem: str) -> Iterator[None]:
    try:
        yield
    except AntipodalError:
        raise
    except Exception as error:  # zipfile and NumPy raise many kinds
        reason = getattr(error, "strerror", None) or f"{problem}, or damaged"
        raise AntipodalError(f"cannot read {path}: {reason}") from error


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

"""Read arrays from files without loading what is not needed, and write codes as they come."""

import os
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.errors import AntipodalError
from antipodal.files import replacing


def read_array(source: str) -> NDArray[Any]:
    """Read `file.npy`, memory-mapped, or one array of a zip file as `file.npz:name`."""
    path, zipped, name = source.partition(".npz")
    try:
        if not zipped:
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
            return array
        path += zipped
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            if name[1:] in arrays.files:
                return np.asarray(arrays[name[1:]])
            names = arrays.files
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "not a NumPy file, or damaged"
        raise AntipodalError(f"cannot read {path}: {reason}") from error
    raise AntipodalError(
        f"{path} holds several arrays ({', '.join(names)}): "
        f"name one of them, as {path}:{(names or ['X'])[0]}"
    )


def write_codes(
    path: str | os.PathLike[str], blocks: Iterable[Codes], n_rows: int, width: int
) -> None:
    """Write blocks of packed codes to one .npy file of n_rows × width bytes."""
    header = {"descr": "|u1", "fortran_order": False, "shape": (n_rows, width)}
    with replacing(Path(path)) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block).data)

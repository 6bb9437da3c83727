"""Read arrays from files without loading what is not needed, and write codes as they come."""

import os
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
    path, _, name = source.partition(".npz:")
    if name:
        path += ".npz"
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or "not a NumPy file, or damaged"
        raise AntipodalError(f"cannot read {path}: {reason}") from error
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        if name not in loaded.files:
            raise AntipodalError(
                f"{path} holds several arrays ({', '.join(loaded.files)}): "
                f"name one of them, as {path}:{(loaded.files or ['X'])[0]}"
            )
        try:
            array: NDArray[Any] = loaded[name]
        except Exception as error:  # zipfile raises many kinds
            raise AntipodalError(f"cannot read {name} in {path}: it is damaged") from error
        return array


def write_codes(
    path: str | os.PathLike[str], blocks: Iterable[Codes], n_rows: int, width: int
) -> None:
    """Write blocks of packed codes to one .npy file of n_rows × width bytes."""
    header = {"descr": "|u1", "fortran_order": False, "shape": (n_rows, width)}
    with replacing(Path(path)) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block).data)

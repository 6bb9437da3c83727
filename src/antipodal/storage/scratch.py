"""Rows that may not fit in memory, in a temporary file without a name, which is mapped."""

from collections.abc import Iterable
from tempfile import TemporaryFile, gettempdir
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from antipodal.errors import AntipodalError


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

"""IDX files, plain or gzip-compressed: MNIST, Fashion-MNIST and others.

An IDX file consists of two zero bytes, a type (8: uint8), the number of dimensions, each dimension
as a big-endian 32-bit number, and the values.
"""

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from antipodal.datasets.dataset import Dataset
from antipodal.datasets.download import find_directory
from antipodal.errors import AntipodalError

_HELP = (
    "`antipodal datasets mnist` and `antipodal datasets fashion-mnist` download these datasets, "
    "each to its own folder"
)


def idx(dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Read the four IDX files in a directory: the training rows, then the test rows.

    The features are the pixels, uint8; the dataset is named after the directory.

    Parameters
    ----------
    dir : path, optional
        The directory of the files. By default the environment variable ANTIPODAL_DATA, or else the
        user's cache directory.
    """
    directory = find_directory(dir, _HELP)
    images, labels = [], []
    for part in ("train", "t10k"):
        images.append(_read(_find(directory, f"{part}-images-idx3-ubyte"), 3))
        labels.append(_read(_find(directory, f"{part}-labels-idx1-ubyte"), 1))
        if len(images[-1]) != len(labels[-1]):
            raise AntipodalError(
                f"{directory}: {part} has {len(images[-1])} images and {len(labels[-1])} labels"
            )
    if images[0].shape[1:] != images[1].shape[1:]:
        sizes = " and ".join(f"{h} × {w}" for _, h, w in (images[0].shape, images[1].shape))
        raise AntipodalError(f"{directory}: training and test images differ in size, {sizes}")
    pixels = np.concatenate(images)
    classes = np.concatenate(labels).astype(np.int64)
    if pixels.size == 0:
        raise AntipodalError(f"{directory}: the IDX files contain no images")
    name = directory.resolve().name
    return Dataset(name, pixels.reshape(len(pixels), -1), classes, pixels, directory)


def _find(directory: Path, name: str) -> Path:
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    folders = sorted({path.parent for path in directory.glob(f"*/{name}*")})
    raise AntipodalError(
        f"{directory} has neither {name} nor {name}.gz; "
        + (f"pass {' or '.join(map(str, folders))} instead" if folders else _HELP)
    )


def _read(path: Path, n_dims: int) -> NDArray[np.uint8]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _parse(path, file, n_dims)
    except (OSError, EOFError, zlib.error, MemoryError, OverflowError) as error:
        raise AntipodalError(f"cannot read {path}: it is truncated or damaged ({error})") from error


def _parse(path: Path, file: BinaryIO | gzip.GzipFile, n_dims: int) -> NDArray[np.uint8]:
    magic = bytes([0, 0, 8, n_dims])
    header = file.read(4 + 4 * n_dims)
    if header[:4] != magic or len(header) < 4 + 4 * n_dims:
        raise AntipodalError(
            f"{path} is not an IDX file of {n_dims}-dimensional uint8: it should begin with "
            f"{magic.hex(' ')}, but begins with {header[:4].hex(' ') or 'nothing'}"
        )
    shape = struct.unpack(f">{n_dims}I", header[4:])
    expected = math.prod(shape)
    values = file.read(expected + 1)  # one more, to detect longer files
    if len(values) != expected:
        found = "more" if len(values) > expected else f"only {len(values):,}"
        raise AntipodalError(
            f"{path} is truncated or damaged: {' × '.join(map(str, shape))} needs {expected:,} "
            f"values, but it has {found}"
        )
    return np.frombuffer(values, np.uint8).reshape(shape)

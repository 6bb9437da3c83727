"""CIFAR-10 in its official binary layout or its official Python layout.

The Python layout is pickled. No code in it is executed: see `_DataOnly`.
"""

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.datasets.dataset import Dataset
from antipodal.datasets.download import find_directory
from antipodal.errors import AntipodalError

_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_PER_BATCH = 10_000
_PIXELS = 3 * 32 * 32
_HELP = (
    "`antipodal datasets cifar10` downloads it; or download the binary version from "
    "https://www.cs.toronto.edu/~kriz/cifar.html and unpack it there"
)

Batch = tuple[NDArray[np.uint8], NDArray[Any]]  # pixels (b, 3072), labels (b,)


def cifar10(dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Read the 60,000 images: the five training batches, then the test batch.

    The features are None: compute them from the images.

    Parameters
    ----------
    dir : path, optional
        The folder ``cifar-10-batches-bin`` or ``cifar-10-batches-py``, or a folder that contains
        one of them. By default the environment variable ANTIPODAL_DATA, or else the folder of
        `download`.
    """
    folder, suffix = _find(find_directory(dir, _HELP))
    read = _read_binary if suffix else _read_pickle
    images = np.empty((len(_BATCHES), _PER_BATCH, 32, 32, 3), np.uint8)
    labels = np.empty((len(_BATCHES), _PER_BATCH), np.int64)
    for number, name in enumerate(_BATCHES):
        path = folder / (name + suffix)
        try:
            pixels, classes = read(path)
        except OSError as error:
            raise AntipodalError(
                f"cannot read {path}: {error.strerror or error}. If it is missing, {_HELP}"
            ) from error
        if classes.min() < 0 or classes.max() > 9:
            raise AntipodalError(
                f"{path} is damaged: labels must be from 0 to 9: got {classes.min()} to "
                f"{classes.max()}; {_HELP}"
            )
        images[number] = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # stored by channel
        labels[number] = classes
    return Dataset("cifar10", None, labels.reshape(-1), images.reshape(-1, 32, 32, 3), folder)


def _find(directory: Path) -> tuple[Path, str]:
    """Return the folder of the batches and the suffix of their names: ".bin", or "" if pickled."""
    for folder, suffix in (
        (directory / "cifar-10-batches-bin", ".bin"),
        (directory / "cifar-10-batches-py", ""),
        (directory, ".bin"),
        (directory, ""),
    ):
        if any((folder / (name + suffix)).is_file() for name in _BATCHES):
            return folder, suffix
    raise AntipodalError(
        f"{directory} has no CIFAR-10: neither cifar-10-batches-bin/data_batch_1.bin nor "
        f"cifar-10-batches-py/data_batch_1; {_HELP}"
    )


def _read_binary(path: Path) -> Batch:
    """Read records of one label byte and 3,072 pixels."""
    expected, size = _PER_BATCH * (1 + _PIXELS), path.stat().st_size
    if size != expected:
        raise AntipodalError(
            f"{path} is truncated or not a CIFAR-10 batch: it should have {expected:,} bytes, but "
            f"has {size:,}; {_HELP}"
        )
    records = np.fromfile(path, np.uint8).reshape(_PER_BATCH, 1 + _PIXELS)
    return records[:, 1:], records[:, 0]


def _read_pickle(path: Path) -> Batch:
    """Read a pickled dict of an array `data` and a list `labels`."""
    content = path.read_bytes()
    try:
        batch = _DataOnly(io.BytesIO(content), encoding="bytes").load()
        pixels = _as_pixels(batch[b"data"])
        labels = batch[b"labels"]
        if len(labels) != _PER_BATCH or not all(type(label) is int for label in labels):
            raise ValueError(f"its labels are not {_PER_BATCH:,} integers")
        return pixels, np.array(labels, np.int64)
    except Exception as error:  # a crafted pickle can raise any type
        reason = error if str(error) else type(error).__name__
        raise AntipodalError(
            f"{path} is truncated or not a CIFAR-10 batch ({reason}); {_HELP}"
        ) from error


class _DataOnly(pickle.Unpickler):
    """Unpickler of numbers, bytes and containers; the names that an array needs become `_Part`.

    Any other name is an error, so that the file cannot execute code.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }:
            return _Part(name)
        raise pickle.UnpicklingError(
            f"it refers to {module}.{name}, which image data does not need"
        )


class _Part:
    """A part of a pickled array: records its arguments without executing anything."""

    def __init__(self, name: str, *args: Any) -> None:
        self.name, self.args = name, args
        self.state: Any = ()

    def __call__(self, *args: Any) -> Any:
        if self.name == "encode":  # the form of bytes in pickles for Python 2
            text, encoding = args
            if encoding not in ("latin1", b"latin1"):
                raise pickle.UnpicklingError(f"it has bytes encoded as {encoding!r}")
            return text.encode("latin1")
        return _Part(self.name, *args)

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _as_pixels(array: Any) -> NDArray[np.uint8]:
    """Create the array from its pickled state: version, shape, dtype, column order, bytes."""
    if not isinstance(array, _Part) or array.name != "_reconstruct":
        raise ValueError("its data is not an array")
    _, shape, dtype, by_column, values = array.state
    if dtype.name != "dtype" or dtype.args[0] not in ("u1", b"u1"):
        raise ValueError("its data is not of type uint8")
    if shape != (_PER_BATCH, _PIXELS):
        raise ValueError(f"its data has shape {shape}, expected {(_PER_BATCH, _PIXELS)}")
    return np.frombuffer(values, np.uint8).reshape(shape, order="F" if by_column else "C")

"""A dataset of one's own: arrays in .npz, .npy or parquet files."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.datasets.dataset import Dataset
from antipodal.datasets.parquet import read_parquet
from antipodal.errors import AntipodalError
from antipodal.storage.arrays import open_npz, read_array

_Pair = tuple[NDArray[Any], NDArray[Any]]


def arrays(path: str | os.PathLike[str], features: str = "X", labels: str = "y") -> Dataset:
    """Read features (m, n) and labels: classes (m,), numbers or words, or 0/1 concepts (m, c).

    Parameters
    ----------
    path : path
        Ends in .npz, .npy or .parquet; the dataset is named after it.
    features : str
        Name of the array in the .npz file or the column of the parquet file, whose entries are
        lists of equal length.
    labels : str
        Name of the array or column; in an .npz file "Y" stands in for a missing "y". Beside an
        .npy file of features: the path of an .npy file of labels.
    """
    source = Path(path)
    readers = {".npz": _read_npz, ".npy": _read_npy, ".parquet": read_parquet}
    if source.suffix not in readers:
        raise ValueError(f"path must end in .npz, .npy or .parquet: got {source}")
    X, y = readers[source.suffix](source, features, labels)
    try:
        return Dataset(source.stem, X, _as_labels(y), directory=source.parent)
    except ValueError as error:
        raise AntipodalError(f"{source} is not a dataset: {error}") from error


def _as_labels(y: NDArray[Any]) -> NDArray[Any]:
    """Return classes as int64 (words by alphabet), concepts as bool; the rest as it is."""
    if y.ndim == 2 and y.dtype.kind in "fiu" and np.isin(y, (0, 1)).all():
        return y.astype(bool)
    if y.ndim == 1 and y.dtype.kind == "U":
        return np.unique(y, return_inverse=True)[1].astype(np.int64)
    if y.ndim == 1 and y.dtype.kind in "fiub":
        with np.errstate(invalid="ignore"):  # what does not fit differs, and is left as it is
            classes = y.astype(np.int64)
        return classes if (classes == y).all() else y
    return y


def _read_npz(path: Path, features: str, labels: str) -> _Pair:
    with open_npz(path) as file:
        if labels == "y" and "y" not in file.files and "Y" in file.files:
            labels = "Y"
        for name in (features, labels):
            if name not in file.files:
                raise AntipodalError(
                    f"{path} has no array {name!r}: it has {', '.join(file.files) or 'none'}"
                )
        return file[features], file[labels]


def _read_npy(path: Path, features: str, labels: str) -> _Pair:
    if not labels.endswith(".npy"):
        raise ValueError(f"labels must be the path of an .npy file, as the features: got {labels}")
    return read_array(str(path)), np.asarray(read_array(labels))

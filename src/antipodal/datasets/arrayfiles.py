"""Datasets in the user's own files, and the digits of scikit-learn."""

import glob
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.datasets.dataset import Dataset
from antipodal.errors import AntipodalError
from antipodal.io.formats import split_column
from antipodal.io.vectors import column_names, open_vectors, read_column

_FEATURES, _LABELS = ("X",), ("y", "Y", "label", "labels")  # default names


def arrays(
    path: str | os.PathLike[str], features: str | None = None, labels: str | None = None
) -> Dataset:
    """Read features (m, n) and labels: classes (m,), numbers or strings, or 0/1 concepts (m, c).

    Parameters
    ----------
    path : path
        A file, folder or glob pattern, as in `antipodal.open_vectors`. The dataset is named after
        it.
    features : str, optional
        The array of an .npz file, or the vector column or columns of other files; also as
        `FILE:COLUMN`. By default "X", or the default of `antipodal.open_vectors`.
    labels : str, optional
        The array or column of labels, by default the first of "y", "Y", "label" and "labels" that
        exists. For an .npy file of features, the path of the file of labels.
    """
    place, column = split_column(os.fspath(path))
    names = column_names(place)
    if not names and labels is None:
        raise ValueError(f"{place} has no columns: labels must be the path of a file of labels")
    if names:
        features = features or column or next((n for n in _FEATURES if n in names), None)
        labels = labels or next((n for n in _LABELS if n in names), _LABELS[0])
    vectors = open_vectors(place, features if names else column, leave_out=[str(labels)])
    y = vectors.column(str(labels)) if names else read_column(str(labels))
    try:
        return Dataset(
            _name(place), np.asarray(vectors), _as_labels(y), directory=Path(place).parent
        )
    except ValueError as error:
        raise AntipodalError(f"{place} is not a dataset: {error}") from error


def _name(place: str) -> str:
    """Return the name of a file without its suffix, or of the folder that a pattern is in."""
    path = Path(place)
    while glob.has_magic(str(path)):
        path = path.parent
    return path.name.removesuffix(".gz").rpartition(".")[0] or path.resolve().name


def _as_labels(y: NDArray[Any]) -> NDArray[Any]:
    """Convert classes to int64 (strings in alphabetical order), 0/1 concepts to bool."""
    if y.ndim == 2 and y.dtype.kind in "fiu" and np.isin(y, (0, 1)).all():
        return y.astype(bool)
    if y.ndim == 1 and y.dtype.kind == "U":
        return np.unique(y, return_inverse=True)[1].astype(np.int64)
    if y.ndim == 1 and y.dtype.kind in "fiub":
        with np.errstate(invalid="ignore"):  # such values differ below
            classes = y.astype(np.int64)
        return classes if (classes == y).all() else y
    return y


def digits() -> Dataset:
    """Return 1,797 handwritten digits: pixels 0 to 16 as features, images scaled to 0 to 255."""
    from sklearn.datasets import load_digits  # not at the top: it is slow to import

    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)
    return Dataset("digits", data.data, data.target.astype(np.int64), images)

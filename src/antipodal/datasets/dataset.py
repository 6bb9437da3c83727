"""Datasets: images, features and labels, with cached descriptors and a reader of data files."""

import glob
import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from antipodal.datasets import protocols
from antipodal.datasets.protocols import Split
from antipodal.errors import AntipodalError, ModelFileError
from antipodal.features import gist, mirror_permutation
from antipodal.io.formats import split_column
from antipodal.io.model_file import read_model_file, write_model_file
from antipodal.io.vectors import column_names, open_vectors, read_column
from antipodal.validation import known_labels

FOLDER = ".antipodal"
_DEFINITION = 1  # to be increased whenever the values of `gist` change

Features = NDArray[np.float32]


def cached_gist(
    images: NDArray[np.uint8],
    directory: Path,
    *,
    orientations: Sequence[int],
    grid: int,
    colour: bool,
    border: int | None,
) -> Features:
    """Return the GIST descriptors of the images, read from a cache file in `directory` if possible.

    Otherwise compute them and write the file; if that fails, warn.
    """
    # The first image checks the parameters, and the contents of the cache file.
    first = gist(images[:1], orientations=orientations, grid=grid, colour=colour, border=border)
    recipe = {
        "feature": "gist",
        "definition": _DEFINITION,
        "orientations": [int(number) for number in orientations],
        "grid": int(grid),
        "colour": bool(colour),
        "border": None if border is None else int(border),
        "images": _digest(images),
    }
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    path = directory / FOLDER / f"gist-{key[:16]}.antipodal"
    features = _read(path, recipe, len(images), first)
    if features is None:
        features = gist(images, orientations=orientations, grid=grid, colour=colour, border=border)
        _write(path, recipe, features)
    return features


def _read(path: Path, recipe: dict[str, Any], n_rows: int, first: Features) -> Features | None:
    """Return the cached features, or None if the file is missing, damaged or does not match."""
    try:
        header, arrays = read_model_file(path, "features")
    except ModelFileError:
        return None
    features = arrays.get("features")
    if (
        header != recipe
        or features is None
        or features.dtype != np.float32
        or features.shape != (n_rows, first.shape[1])
        or not np.allclose(features[0], first[0], rtol=0, atol=1e-3)  # larger than rounding errors
    ):
        return None
    return features


def _write(path: Path, recipe: dict[str, Any], features: Features) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        write_model_file(path, "features", recipe, {"features": features})
    except (OSError, AntipodalError) as error:
        warnings.warn(
            f"cannot cache the GIST features in {path.parent}, they will be computed again next "
            f"time: {error}",
            stacklevel=4,  # the caller of Dataset.with_gist
        )


def _digest(images: NDArray[np.uint8]) -> str:
    digest = hashlib.sha256(json.dumps(images.shape).encode())
    digest.update(np.ascontiguousarray(images).data)
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows with labels, and features or images or both.

    Parameters
    ----------
    name : str
        Name of the dataset in reports.
    features : array (m, n) or None
        None until computed: `with_gist`, or ``dataclasses.replace(dataset, features=...)``.
    labels : integer array (m,) or bool array (m, c)
        A class per row, or the concepts of each row.
    images : uint8 array (m, h, w) or (m, h, w, 3), or None
    directory : path or None
        The folder of its files, where computed features are cached.
    mirror : integer array (n,) or None
        The permutation that maps the features of an image to those of the mirrored image:
        ``features[:, mirror]``. Set by `with_gist`.
    """

    name: str
    features: NDArray[Any] | None
    labels: NDArray[Any]
    images: NDArray[np.uint8] | None = None
    directory: Path | None = None
    mirror: NDArray[np.intp] | None = None

    def __post_init__(self) -> None:
        labels, features, images = self.labels, self.features, self.images
        known_labels(labels)
        kinds = {1: "iu", 2: "b"}.get(labels.ndim, "")
        if labels.dtype.kind not in kinds or labels.size == 0:
            raise ValueError(
                "labels must be integers (m,) or booleans (m, c), not empty: "
                f"got {labels.dtype} {labels.shape}"
            )
        if features is not None and (features.ndim != 2 or features.dtype.kind not in "fiub"):
            raise ValueError(
                f"features must be numbers (m, n): got {features.dtype} {features.shape}"
            )
        if images is not None and not (
            images.dtype == np.uint8 and (images.ndim == 3 or images.shape[3:] == (3,))
        ):
            raise ValueError(
                f"images must be uint8 (m, h, w) or (m, h, w, 3): got {images.dtype} {images.shape}"
            )
        for name, rows in (("features", features), ("images", images)):
            if rows is not None and len(rows) != len(labels):
                raise ValueError(
                    f"there must be one label per row: {len(rows)} {name}, {len(labels)} labels"
                )
        if self.mirror is not None and (
            features is None
            or not np.array_equal(np.sort(self.mirror), np.arange(features.shape[1]))
        ):
            raise ValueError("mirror must be a permutation of the features")

    def __len__(self) -> int:
        return len(self.labels)

    def with_gist(
        self,
        *,
        orientations: Sequence[int] = (8, 8, 8),
        grid: int = 4,
        colour: bool = False,
        border: int | None = None,
        cache: bool = True,
    ) -> Self:
        """Return the dataset with the GIST of its images as features, float32.

        Parameters
        ----------
        orientations, grid, colour, border
            As in `antipodal.features.gist`.
        cache : bool
            Cache the features in the folder ``.antipodal`` of `directory`, and read them from there
            for the same images and parameters.

        Examples
        --------
        >>> from antipodal.datasets import digits
        >>> digits().with_gist(orientations=(4, 4), grid=2).features.shape
        (1797, 32)
        """
        if self.images is None:
            raise ValueError(
                f"GIST requires images, and the dataset {self.name!r} has none: use its features "
                "directly"
            )
        if cache and self.directory is not None:
            features = cached_gist(
                self.images,
                self.directory,
                orientations=orientations,
                grid=grid,
                colour=colour,
                border=border,
            )
        else:
            features = gist(
                self.images, orientations=orientations, grid=grid, colour=colour, border=border
            )
        mirror = mirror_permutation(orientations, grid, colour=colour)
        return replace(self, features=features, mirror=mirror)

    def split(
        self,
        protocol: str,
        seed: int,
        *,
        n_train: int | None = None,
        n_query: int = 100,
        n_concepts: int = 21,
        n_pairs: int = 100_000,
    ) -> Split:
        """Split the rows. Labels, protocol, seed and counts determine the split.

        Parameters
        ----------
        protocol : "paper" or "unseen"
            "paper", one label per row: `n_train` training rows (default 200) and `n_query` queries
            per class; the database is every row but the queries, training rows included.
            "paper", several labels per row: the `n_concepts` most frequent concepts, `n_query`
            queries per concept; the database is every other row with one of the concepts, `train`
            is the database or a sample of `n_train` rows, and `n_pairs` training pairs are drawn.
            "unseen", one label per row: `n_train` training rows (default 200) per class from seven
            tenths of the classes, `n_query` queries per class from the other classes; the database
            is the remaining rows of the other classes.
        seed : int
            At least 0.
        n_train, n_query, n_concepts, n_pairs : int
            The last two apply to datasets with several labels per row; `n_pairs` may be 0.

        Examples
        --------
        >>> from antipodal.datasets import digits
        >>> split = digits().split("paper", seed=0, n_train=50, n_query=10)
        >>> len(split.train), len(split.query), len(split.database)
        (500, 100, 1697)
        """
        for name, value, least in (
            ("seed", seed, 0),
            ("n_train", 1 if n_train is None else n_train, 1),
            ("n_query", n_query, 1),
            ("n_concepts", n_concepts, 1),
            ("n_pairs", n_pairs, 0),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}: got {value}")
        if protocol not in ("paper", "unseen"):
            raise ValueError(f"protocol must be 'paper' or 'unseen': got {protocol!r}")
        if self.labels.ndim == 2:
            if protocol == "unseen":
                raise ValueError("the unseen protocol requires one label per row")
            return protocols.paper_multilabel(
                self.labels, seed, n_train, n_query, n_concepts, n_pairs
            )
        draw = protocols.paper if protocol == "paper" else protocols.unseen
        return draw(self.labels, seed, 200 if n_train is None else n_train, n_query)


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
    """Return 1,797 handwritten digits: pixels 0 to 16 as features, images scaled to 0 to 255.

    Examples
    --------
    >>> digits().features.shape, digits().images.shape
    ((1797, 64), (1797, 8, 8))
    """
    from sklearn.datasets import load_digits  # not at the top: it is slow to import

    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)
    return Dataset("digits", data.data, data.target.astype(np.int64), images)

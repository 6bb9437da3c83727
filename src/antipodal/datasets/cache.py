"""GIST features kept beside the images that they were computed from.

A file is named by a digest of all that its features depend on, so it never has to be brought up to
date: other images, other parameters and another definition of GIST have files of their own.
"""

import hashlib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.errors import AntipodalError, ModelFileError
from antipodal.features import gist
from antipodal.storage.modelfile import read_model_file, write_model_file

FOLDER = ".antipodal"
_DEFINITION = 1  # raised whenever `gist` gives other values for the same images

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
    """Return the GIST of the images, from its file in `directory` if there is one.

    Otherwise it is computed and the file is written; where that fails, a warning says so.
    """
    # One image costs little. It makes `gist` refuse wrong parameters, and gives a row to expect.
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
    """Return the features in the file, or None if it is missing, damaged or of something else."""
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
        or not np.allclose(features[0], first[0], rtol=0, atol=1e-3)  # beyond any rounding
    ):
        return None
    return features


def _write(path: Path, recipe: dict[str, Any], features: Features) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        write_model_file(path, "features", recipe, {"features": features})
    except (OSError, AntipodalError) as error:
        warnings.warn(
            f"cannot keep the GIST features in {path.parent}, so that they will be computed again "
            f"next time: {error}",
            stacklevel=4,  # the caller of Dataset.with_gist
        )


def _digest(images: NDArray[np.uint8]) -> str:
    digest = hashlib.sha256(json.dumps(images.shape).encode())
    digest.update(np.ascontiguousarray(images).data)
    return digest.hexdigest()

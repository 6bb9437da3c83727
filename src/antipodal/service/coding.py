"""Vectors and images in, codes out: what a service checks of them before its model sees them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes, code_width
from antipodal.hashers.base import BaseHasher
from antipodal.service.imagefeatures import ImageFeatures
from antipodal.service.limits import Limits

_NO_IMAGES = (
    "this service takes no images: it was started without --images, which says how the features "
    "of the model are made. Send vectors"
)


class Coder:
    """A fitted hasher, and how images become its features: see `ImageFeatures`."""

    def __init__(self, hasher: BaseHasher, images: str | None, limits: Limits) -> None:
        self.hasher, self._limits = hasher, limits
        self._images = None if images is None else ImageFeatures(images, limits)
        if self._images is not None and self._images.n_features != hasher.n_features_in_:
            raise ValueError(
                f"{images} makes {self._images.n_features} features, the model was fitted on "
                f"{hasher.n_features_in_}: it was not fitted on such features"
            )

    @property
    def takes_images(self) -> bool:
        """Whether there are features of images."""
        return self._images is not None

    def close(self) -> None:
        """End what decodes images."""
        if self._images is not None:
            self._images.close()

    def rows(self, vectors: Sequence[Sequence[float]]) -> NDArray[np.float32]:
        """Return vectors as a table, each of the width that the model was fitted on."""
        n_features = self.hasher.n_features_in_
        for place, vector in enumerate(vectors):
            if len(vector) != n_features:
                raise ValueError(
                    f"vectors must have {n_features} values, as those the model was fitted on: "
                    f"vector {place} has {len(vector)}"
                )
        with np.errstate(over="ignore"):  # too large for float32: the hasher names the row
            return np.array(vectors, np.float64).reshape(-1, n_features).astype(np.float32)

    def features(self, images: Sequence[str]) -> NDArray[Any]:
        """Return the features of images, given in base64."""
        if not images:
            return np.empty((0, self.hasher.n_features_in_))
        if self._images is None:
            raise ValueError(_NO_IMAGES)
        self._limits.check_batch(len(images), "images")
        return self._images(images)

    def encode(self, rows: NDArray[Any]) -> Codes:
        """Return the packed codes of a table of vectors."""
        if not len(rows):  # hashers, as scikit-learn's estimators, want at least one
            return np.empty((0, code_width(self.hasher.n_bits)), np.uint8)
        return self.hasher.encode(rows)

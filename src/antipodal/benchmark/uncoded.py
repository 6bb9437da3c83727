"""Rankings by floats that never became bits: what codes are held against.

"Ceiling" ranks by class probabilities, "Cosine" by the angle between rows as they came, and
"CentredCosine" by the angle after the mean of the database was taken off. They are methods of a
benchmark like any other, of 0 bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers import ClassifierLSH
from antipodal.hashers.methods import make_hasher

Array = NDArray[Any]


class Uncoded(Protocol):
    """A method whose values are ranked by their inner products."""

    uses_labels: bool
    uses_unlabelled: bool

    def fit(self, X: Array, y: Array | None = None) -> object:
        """Learn from the database, or from training rows and their labels."""
        ...

    def values(self, X: Array) -> Array:
        """Return what to rank rows by."""
        ...

    def get_params(self, deep: bool = False) -> dict[str, Any]:
        """Return the settings."""
        ...


@dataclass
class Cosine:
    """Rows as they are, or less the mean of the database, at length 1; a row of zeros stays."""

    uses_labels = False
    uses_unlabelled = False

    centred: bool
    mean: Array | float = field(init=False, default=0.0)

    def fit(self, X: Array, y: Array | None = None) -> None:
        """Learn the mean, where it is taken off."""
        if self.centred:
            self.mean = X.mean(axis=0, dtype=np.float64).astype(np.float32)

    def values(self, X: Array) -> Array:
        """Return rows of length 1, whose inner product is the cosine."""
        rows = X.astype(np.float32) - self.mean
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        unit: Array = rows / np.where(lengths > 0, lengths, 1)
        return unit

    def get_params(self, deep: bool = False) -> dict[str, Any]:
        """Return whether the mean is taken off."""
        return {"centred": self.centred}


class Ceiling:
    """The class probabilities of `ClassifierLSH`, before any bit is made of them."""

    uses_labels = True
    uses_unlabelled = False

    def __init__(self, seed: int) -> None:
        hasher = make_hasher("ClassifierLSH", 1, seed)
        assert isinstance(hasher, ClassifierLSH)
        self.hasher = hasher

    def fit(self, X: Array, y: Array | None = None) -> None:
        """Fit the classifier."""
        self.hasher.fit(X, y)

    def values(self, X: Array) -> Array:
        """Return the probability of each class."""
        return self.hasher.class_probabilities(X)

    def get_params(self, deep: bool = False) -> dict[str, Any]:
        """Return the settings of the classifier."""
        settings: dict[str, Any] = self.hasher.get_params(deep)
        return settings


UNCODED: dict[str, Callable[[int], Uncoded]] = {
    "Ceiling": Ceiling,
    "Cosine": lambda seed: Cosine(centred=False),
    "CentredCosine": lambda seed: Cosine(centred=True),
}

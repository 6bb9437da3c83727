"""The demonstration: learn codes of handwritten digits, score them, look at neighbours."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.arrays import write_codes
from antipodal.benchmark import Rows
from antipodal.datasets import digits
from antipodal.hashers import HASHERS, NetworkHasher
from antipodal.methods import make_hasher
from antipodal.metrics import Evaluation, evaluate, hamming_distances

SHADES = " ░▒▓█"


@dataclass(frozen=True)
class Score:
    """One line of the table."""

    method: str
    uses_labels: bool
    fit_seconds: float
    evaluation: Evaluation


@dataclass(frozen=True)
class Neighbours:
    """A query and its nearest items: row numbers and Hamming distances."""

    query: int
    nearest: NDArray[np.intp]
    distances: NDArray[Any]


class Demo:
    """Scikit-learn's 1,797 images of digits, 50 labelled a class, 20 queries a class."""

    def __init__(self, n_bits: int, n_epochs: int | None, seed: int) -> None:
        data = digits()
        self.images, self.labels = np.asarray(data.features), data.labels
        self.n_bits = n_bits
        self.split = data.split("paper", seed, n_train=50, n_query=20)
        self.hashers = {name: make_hasher(name, n_bits, seed) for name in HASHERS}
        for hasher in self.hashers.values():
            if isinstance(hasher, NetworkHasher) and n_epochs is not None:
                hasher.n_epochs = n_epochs
        self.deep = self.hashers["DeepLinf"]

    def scores(self) -> Iterator[Score]:
        """Fit and score one method after the other."""
        X, y, rows = self.images, self.labels, self.split
        for name, hasher in self.hashers.items():
            began = time.perf_counter()
            Rows(X, y, rows).fit(hasher)
            seconds = time.perf_counter() - began
            queries, database = hasher.encode(X[rows.query]), hasher.encode(X[rows.database])
            result = evaluate(
                queries, database, y[rows.query], y[rows.database], n_bits=self.n_bits
            )
            yield Score(name, hasher.uses_labels, seconds, result)

    def save(self, directory: Path) -> tuple[Path, Path]:
        """Write model and database codes; return their paths."""
        directory.mkdir(parents=True, exist_ok=True)
        model, codes = directory / "digits.antipodal", directory / "digits-codes.npy"
        self.deep.save(model)
        packed = self.deep.encode(self.images[self.split.database])
        write_codes(codes, [packed], *packed.shape)
        return model, codes

    def neighbours(self, n_queries: int, k: int) -> list[Neighbours]:
        """Ask the first query of each of some classes for its k nearest database items."""
        queries = self.split.query
        classes = np.linspace(0, 9, n_queries, dtype=int)
        asked = [queries[self.labels[queries] == label][0] for label in classes]
        database = self.split.database
        distances = hamming_distances(
            self.deep.encode(self.images[asked]), self.deep.encode(self.images[database])
        )
        found = []
        for query, row in zip(asked, distances, strict=True):
            order = np.argsort(row, kind="stable")[:k]
            found.append(Neighbours(int(query), database[order], row[order]))
        return found

    def picture(self, rows: list[int], captions: list[str]) -> list[str]:
        """Images side by side as lines of text, two characters a pixel."""
        lines = ["   ".join(caption.ljust(16) for caption in captions)]
        for y in range(8):
            cells = []
            for row in rows:
                pixels = self.images[row].reshape(8, 8)[y] / 16
                cells.append("".join(2 * SHADES[round(p * (len(SHADES) - 1))] for p in pixels))
            lines.append("   ".join(cells))
        return [line.rstrip() for line in lines]

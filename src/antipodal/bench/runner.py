"""Benchmark runs: fit and score methods × code lengths × seeds."""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

import antipodal
from antipodal import datasets
from antipodal.bench.records import Record
from antipodal.bench.workers import run_jobs
from antipodal.codes import pack
from antipodal.datasets import Dataset, Split
from antipodal.evaluation.float_ranking import evaluate_floats
from antipodal.evaluation.metrics import evaluate
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.classifierlsh import ClassifierLSH
from antipodal.hashers.registry import make_hasher

FILES = ("multilabel", "arrays")  # read from one file; the others from a directory, or from none
NAMES = ("cifar10", "nuswide", "idx", "digits", *FILES)


def load_dataset(
    name: str,
    path: str | os.PathLike[str] | None = None,
    *,
    features: str | None = None,
    skip_concepts: int = 0,
    labels: str | None = None,
) -> Dataset:
    """Read a dataset; its own name then also says what was made of it.

    Parameters
    ----------
    name : "cifar10", "nuswide", "idx", "digits", "multilabel" or "arrays"
    path : path, optional
        The file of the last two, as `antipodal.open_vectors` takes it; of the first three the
        directory, by default where the loader looks.
    features : "gist" or "pixels", optional
        Of images: by default GIST for CIFAR-10, pixels otherwise.
    skip_concepts : int
        Leave out as many of the most frequent concepts.
    labels : str, optional
        Column of the labels in that file, or the file of them, as `datasets.arrays` takes it.

    Examples
    --------
    >>> load_dataset("digits", features="gist").name
    'digits-gist'
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}: got {name!r}")
    if features not in (None, "gist", "pixels"):
        raise ValueError(f"features must be 'gist' or 'pixels': got {features!r}")
    if labels is not None and name not in FILES:
        raise ValueError(f"labels are a column of a file, and {name} has its own")
    dataset = _read(name, path, labels)
    if features is not None and dataset.images is None:
        raise ValueError(f"features of images are asked for, and {dataset.name} has no images")
    if features == "gist" or (features is None and name == "cifar10"):
        dataset = replace(dataset.with_gist(), name=f"{dataset.name}-gist")
    elif dataset.features is None and dataset.images is not None:
        pixels = dataset.images.reshape(len(dataset), -1)
        dataset = replace(dataset, features=pixels, name=f"{dataset.name}-pixels")
    return _without_top_concepts(dataset, skip_concepts) if skip_concepts else dataset


def _read(name: str, path: str | os.PathLike[str] | None, labels: str | None) -> Dataset:
    if name == "digits":
        return datasets.digits()
    if name not in FILES:
        loaders = {
            "cifar10": datasets.cifar10, "nuswide": datasets.nus_wide, "idx": datasets.idx
        }  # fmt: skip
        return loaders[name](path)
    if path is None:
        raise ValueError(f"{name} is read from a file: pass its path")
    dataset = datasets.arrays(path, labels=labels)
    if name == "multilabel" and dataset.labels.ndim == 1:
        raise ValueError(f"{path} has one label per row: use `antipodal bench arrays {path}`")
    return dataset


def _without_top_concepts(dataset: Dataset, n_concepts: int) -> Dataset:
    labels = dataset.labels
    if labels.ndim == 1 or n_concepts >= labels.shape[1]:
        raise ValueError(
            f"the {n_concepts} most frequent concepts cannot be left out: {dataset.name} has no "
            "more concepts"
        )
    rare = np.sort(np.argsort(-labels.sum(axis=0), kind="stable")[n_concepts:])
    return replace(dataset, labels=labels[:, rare], name=f"{dataset.name}-without-top-{n_concepts}")


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


_MOST_CONCEPT_ROWS = 5000  # training rows of a multi-label set, unless told otherwise


class Cell(NamedTuple):
    """One fit and its scores. A method that ranks by floats has 0 bits."""

    method: str
    bits: int
    seed: int


@dataclass(frozen=True)
class Rows:
    """A dataset's features and labels, split; and what its images become in the mirror, if used."""

    X: Array
    y: Array
    split: Split
    mirror: Array | None = None

    def fit(self, hasher: BaseHasher | Uncoded, **options: Any) -> None:
        """Fit to the training rows, with labels, where a method uses them; else to the database.

        A method that can use both learns from the rest of the database as well, without its
        labels. The options are those of the hasher's own `fit`.
        """
        if not hasher.uses_labels:
            hasher.fit(self._features(self.split.database), None, **options)
            return
        if hasher.uses_unlabelled:
            others = np.setdiff1d(self.split.database, self.split.train)
            if len(others):
                options["unlabelled"] = self._features(others)
        y = self.y[self.split.train]
        if self.mirror is not None:
            y = np.concatenate([y, y])
        hasher.fit(self._features(self.split.train), y, **options)

    def _features(self, chosen: Array) -> Array:
        """Return the features of some rows, with those of their mirror images where these count."""
        X = self.X[chosen]
        return X if self.mirror is None else np.concatenate([X, X[:, self.mirror]])

    def values(self, function: Callable[[Array], Array], chosen: Array) -> Array:
        """Return the function of chosen rows, or its mean with that of their mirror images."""
        X = self.X[chosen]
        if self.mirror is None:
            return function(X)
        return (function(X) + function(X[:, self.mirror])) / 2


@dataclass(frozen=True)
class Benchmark:
    """A dataset and the protocol it is split by.

    Parameters
    ----------
    dataset : Dataset
        With features.
    protocol : str
        As `Dataset.split` takes it.
    n_train, n_query : int, optional
        Training rows (default 200) and queries a class. In sets with several labels a row:
        training rows in all, by default the database or 5,000 rows of it, and queries a concept.
    n_concepts : int
        How many of the most frequent concepts count, where rows have several.
    split : Split, optional
        Taken for every seed, in place of those that the protocol draws.
    mirrored : bool
        Whether methods learn from images and their mirror images, and the bits of an image are
        the signs of the mean projection of both; for features whose `Dataset.mirror` is known.
    """

    dataset: Dataset
    protocol: str = "paper"
    n_train: int | None = None
    n_query: int = 100
    n_concepts: int = 21
    split: Split | None = None
    mirrored: bool = False
    identity: Record = field(init=False)

    def __post_init__(self) -> None:
        if self.dataset.features is None:
            raise ValueError(f"{self.dataset.name} has no features: compute them first")
        # Workers get a copy of all this, and need no images.
        object.__setattr__(self, "dataset", replace(self.dataset, images=None))
        if self.mirrored and self.dataset.mirror is None:
            raise ValueError(
                f"{self.dataset.name} does not say what becomes of its features in the mirror: "
                "GIST does"
            )
        if self.n_train is None and not self.multilabel:
            object.__setattr__(self, "n_train", 200)
        identity: Record = {"dataset": self.dataset.name, "data": _digest(self.dataset)}
        if self.split is None:
            identity |= {
                "protocol": self.protocol, "n_train": self.n_train, "n_query": self.n_query
            }  # fmt: skip
            if self.multilabel:
                identity["n_concepts"] = self.n_concepts
        else:
            parts = (self.split.train, self.split.query, self.split.database)
            identity["protocol"] = f"given-{_digest_arrays(parts)}"
        if self.mirrored:
            identity["mirrored"] = True
        object.__setattr__(self, "identity", identity | {"antipodal": antipodal.__version__})

    @property
    def multilabel(self) -> bool:
        """Whether rows have several labels."""
        return self.dataset.labels.ndim == 2

    def identify(self, cell: Cell) -> Record:
        """Return what tells the record of a cell from all others.

        All parameters of the method are in it, also those that `cell.method` does not name: a
        default may be another one in time.
        """
        return self.identity | cell._asdict() | {"parameters": parameters(method_of(cell))}

    def matching(self, cells: Iterable[Cell], records: Sequence[Record]) -> dict[Cell, Record]:
        """Return the records that are there already, by cell; of several the last."""
        known = {_key(record): record for record in records}
        found = ((cell, known.get(_key(self.identify(cell)))) for cell in cells)
        return {cell: record for cell, record in found if record is not None}

    def draw(self, seed: int) -> Split:
        """Return the split of a seed."""
        if self.split is not None:
            return self.split
        options = {"n_query": self.n_query, "n_concepts": self.n_concepts, "n_pairs": 0}
        split = self.dataset.split(self.protocol, seed, n_train=self.n_train, **options)
        if self.n_train is None and len(split.train) > _MOST_CONCEPT_ROWS:
            split = self.dataset.split(self.protocol, seed, n_train=_MOST_CONCEPT_ROWS, **options)
        return split

    def rows(self, seed: int) -> Rows:
        """Return the data as the split of a seed has it; of concepts, those that count."""
        split, y = self.draw(seed), self.dataset.labels
        return Rows(
            np.asarray(self.dataset.features),
            y if split.concepts is None else y[:, split.concepts],
            split,
            self.dataset.mirror if self.mirrored else None,
        )


def _key(record: Record) -> tuple[Any, ...]:
    """Return what tells records apart; what a record does not name, it has not."""
    names = ("protocol", "n_train", "n_query", "n_concepts", "mirrored", "antipodal")
    values = (record.get(name) for name in ("dataset", "data", *names, *Cell._fields))
    return (*values, json.dumps(record.get("parameters"), sort_keys=True))


def method_of(cell: Cell) -> BaseHasher | Uncoded:
    """Return what to fit: a hasher, or a method that ranks by floats."""
    if cell.method in UNCODED:
        return UNCODED[cell.method](cell.seed)
    return make_hasher(cell.method, cell.bits, cell.seed)


def parameters(hasher: BaseHasher | Uncoded) -> Record:
    """Return all parameters but length and seed, as JSON holds them."""
    values = hasher.get_params(deep=False).items()
    return {name: _written(v) for name, v in values if name not in ("n_bits", "random_state")}


def _written(value: Any) -> Any:
    """Return a value as it is read back from JSON; functions and classes by their names."""
    if isinstance(value, np.ndarray):
        return f"array {_digest_arrays([value])}"
    if isinstance(value, np.generic):
        value = value.item()
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        return repr(value)


def learned_from(hasher: BaseHasher | Uncoded) -> str:
    """Return what a method is fitted to: "labels", "labels and database", "database", "nothing"."""
    if isinstance(hasher, Cosine) and not hasher.centred:
        return "nothing"
    if not hasher.uses_labels:
        return "database"
    return "labels and database" if hasher.uses_unlabelled else "labels"


def grid(methods: Sequence[str], bits: Sequence[int], seeds: Sequence[int]) -> list[Cell]:
    """Return all cells, after checking that every method can be made."""
    cells: list[Cell] = []
    for method in methods:
        lengths = [0] if method in UNCODED else bits
        cells += [Cell(method, *rest) for rest in product(lengths, seeds)]
        method_of(cells[-1])
    return cells


def run_cells(
    benchmark: Benchmark, cells: Iterable[Cell], n_processes: int = 1
) -> Iterator[tuple[Cell, Record | Exception]]:
    """Yield the record of each cell, or why it has none, as they are done."""
    yield from run_jobs(run_cell, benchmark, cells, n_processes)


def run_cell(benchmark: Benchmark, cell: Cell) -> Record:
    """Fit a method, encode queries and database, and score them: values in percent, seconds, MB.

    `map_without_training` is mAP over the database without the training rows in it; there is
    none if all of the database was trained on.
    """
    rows = benchmark.rows(cell.seed)
    split, y = rows.split, rows.y
    hasher = method_of(cell)
    began = time.perf_counter()
    rows.fit(hasher)
    fitted = time.perf_counter()
    query_labels, item_labels = y[split.query], y[split.database]
    if not isinstance(hasher, BaseHasher):
        p = rows.values(hasher.values, split.query)
        q = rows.values(hasher.values, split.database)

        def score(kept: Array | slice) -> dict[str, float | int]:
            return asdict(evaluate_floats(p, q[kept], query_labels, item_labels[kept]))
    else:
        projections = rows.values(hasher.project, split.database)
        query = pack(rows.values(hasher.project, split.query) > 0)
        database = pack(projections > 0)

        def score(kept: Array | slice) -> dict[str, float | int]:
            return evaluate(
                query, database[kept], query_labels, item_labels[kept], n_bits=cell.bits,
                top=(10, 5000) if benchmark.multilabel else (), projections=projections[kept],
            ).to_dict()  # fmt: skip

    encoded = time.perf_counter()
    scores = score(slice(None))
    is_new = np.isin(split.database, split.train, invert=True)
    if is_new.any():
        scores["map_without_training"] = (scores if is_new.all() else score(is_new))["map"]
    return (
        benchmark.identify(cell)
        | {name: round(value, 6) for name, value in scores.items()}
        | {
            "train": len(split.train),
            "learned_from": learned_from(hasher),
            "fit_seconds": round(fitted - began, 3),
            "encode_seconds": round(encoded - fitted, 3),
            "peak_mb": _peak_mb(),
        }
    )


def _peak_mb() -> int | None:
    """Return the most memory this process has held so far, where the system tells."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10))


def _digest(dataset: Dataset) -> str:
    return _digest_arrays([np.asarray(dataset.features), dataset.labels])


def _digest_arrays(arrays: Iterable[np.ndarray[Any, Any]]) -> str:
    """Return a short name for the contents of some arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:12]

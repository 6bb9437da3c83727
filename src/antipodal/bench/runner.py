"""Benchmarks: fit and evaluate methods across code lengths and seeds."""

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
from antipodal.hashers.network import NetworkHasher
from antipodal.hashers.registry import current_method, make_hasher
from antipodal.hashers.training import REMOVED, RENAMED, Training

FILES = ("multilabel", "arrays")  # read from one file; others from a directory or built in
NAMES = ("cifar10", "nuswide", "idx", "digits", *FILES)


def load_dataset(
    name: str,
    path: str | os.PathLike[str] | None = None,
    *,
    features: str | None = None,
    skip_concepts: int = 0,
    labels: str | None = None,
) -> Dataset:
    """Read a dataset with features; its name includes the kind of features.

    Parameters
    ----------
    name : "cifar10", "nuswide", "idx", "digits", "multilabel" or "arrays"
    path : path, optional
        File of the last two, in any format of `antipodal.open_vectors`; directory of the first
        three, by default that of the loader.
    features : "gist" or "pixels", optional
        Features of images: GIST for CIFAR-10 and pixels otherwise by default.
    skip_concepts : int
        Number of the most frequent concepts to omit.
    labels : str, optional
        Column of the labels in the file, or their file, as in `datasets.arrays`.

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
        raise ValueError(f"labels is only for datasets read from a file: {name} has its own labels")
    dataset = _read(name, path, labels)
    if features is not None and dataset.images is None:
        raise ValueError(f"features={features!r} needs images: {dataset.name} has no images")
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
        raise ValueError(f"{name} is read from a file: pass path")
    dataset = datasets.arrays(path, labels=labels)
    if name == "multilabel" and dataset.labels.ndim == 1:
        raise ValueError(f"{path} has one label per row: use `antipodal bench arrays {path}`")
    return dataset


def _without_top_concepts(dataset: Dataset, n_concepts: int) -> Dataset:
    labels = dataset.labels
    if labels.ndim == 1 or n_concepts >= labels.shape[1]:
        raise ValueError(
            f"skip_concepts must be less than the number of concepts of {dataset.name}: got "
            f"{n_concepts}"
        )
    rare = np.sort(np.argsort(-labels.sum(axis=0), kind="stable")[n_concepts:])
    return replace(dataset, labels=labels[:, rare], name=f"{dataset.name}-without-top-{n_concepts}")


Array = NDArray[Any]


class UncompressedMethod(Protocol):
    """A reference without codes: float values ranked by inner product."""

    uses_labels: bool
    uses_unlabelled: bool

    def fit(self, X: Array, y: Array | None = None) -> object:
        """Fit to the database, or to training rows and their labels."""
        ...

    def values(self, X: Array) -> Array:
        """Return the values to rank by."""
        ...

    def get_params(self, deep: bool = False) -> dict[str, Any]:
        """Return the settings."""
        ...


@dataclass
class Cosine:
    """Cosine similarity of the vectors, optionally mean-centred."""

    uses_labels = False
    uses_unlabelled = False

    centred: bool
    mean: Array | float = field(init=False, default=0.0)

    def fit(self, X: Array, y: Array | None = None) -> None:
        """Compute the mean if vectors are centred."""
        if self.centred:
            self.mean = X.mean(axis=0, dtype=np.float64).astype(np.float32)

    def values(self, X: Array) -> Array:
        """Return rows of length 1, whose inner product is the cosine; zero rows stay zero."""
        rows = X.astype(np.float32) - self.mean
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        unit: Array = rows / np.where(lengths > 0, lengths, 1)
        return unit

    def get_params(self, deep: bool = False) -> dict[str, Any]:
        """Return whether vectors are centred."""
        return {"centred": self.centred}


class Ceiling:
    """Upper bound: the uncompressed class probabilities of `ClassifierLSH`."""

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


UNCOMPRESSED: dict[str, Callable[[int], UncompressedMethod]] = {
    "Ceiling": Ceiling,
    "Cosine": lambda seed: Cosine(centred=False),
    "CentredCosine": lambda seed: Cosine(centred=True),
}


_MAX_MULTILABEL_TRAIN = 5000  # default number of training rows


class Cell(NamedTuple):
    """One fit of the grid; uncompressed methods have 0 bits."""

    method: str
    bits: int
    seed: int


@dataclass(frozen=True)
class Rows:
    """Features and labels of a split dataset, and the feature order of mirror images, if used."""

    X: Array
    y: Array
    split: Split
    mirror: Array | None = None

    def fit(self, hasher: BaseHasher | UncompressedMethod, **options: Any) -> None:
        """Fit to the labelled training rows if the method uses labels, else to the database.

        A method that also uses unlabelled rows gets the rest of the database, and one that samples
        pairs gets those of the split, if it has any. Options are passed to `fit`.
        """
        if not hasher.uses_labels:
            hasher.fit(self._features(self.split.database), None, **options)
            return
        if hasher.uses_unlabelled:
            others = np.setdiff1d(self.split.database, self.split.train)
            if len(others):
                options["unlabelled"] = self._features(others)
        X, y = self._features(self.split.train), self.y[self.split.train]
        if self.split.pairs is not None and n_sampled_pairs(hasher):
            assert isinstance(hasher, NetworkHasher)
            assert self.split.similar is not None
            hasher.fit_pairs(X, self.split.pairs, self.split.similar, **options)
            return
        if self.mirror is not None:
            y = np.concatenate([y, y])
        hasher.fit(X, y, **options)

    def _features(self, chosen: Array) -> Array:
        """Return the features of some rows, followed by those of their mirror images, if used."""
        X = self.X[chosen]
        return X if self.mirror is None else np.concatenate([X, X[:, self.mirror]])

    def values(self, function: Callable[[Array], Array], chosen: Array) -> Array:
        """Return the function of chosen rows, averaged over mirror images if they are used."""
        X = self.X[chosen]
        if self.mirror is None:
            return function(X)
        return (function(X) + function(X[:, self.mirror])) / 2


@dataclass(frozen=True)
class Benchmark:
    """A dataset and its evaluation protocol.

    Parameters
    ----------
    dataset : Dataset
        Dataset with features.
    protocol : str
        Protocol of `Dataset.split`.
    n_train, n_query : int, optional
        Training rows (default 200) and queries per class. For multi-label datasets: training rows
        in total, by default the database or 5,000 rows of it, and queries per concept.
    n_concepts : int
        Number of the most frequent concepts to evaluate, for multi-label datasets.
    split : Split, optional
        Split to use for every seed instead of drawing one.
    mirrored : bool
        Whether to fit to images and their mirror images and to average their projections. Requires
        features with a known `Dataset.mirror`.
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
        # Worker processes get a copy and need no images.
        object.__setattr__(self, "dataset", replace(self.dataset, images=None))
        if self.mirrored and self.dataset.mirror is None:
            raise ValueError(
                f"{self.dataset.name} has no mirror order of its features, which mirrored=True "
                "needs: use GIST"
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
        """Whether a row may have several labels."""
        return self.dataset.labels.ndim == 2

    def identify(self, cell: Cell) -> Record:
        """Return the fields that identify the record of a cell.

        They include all parameters of the method, since defaults may change between versions.
        """
        return self.identity | cell._asdict() | {"parameters": parameters(method_of(cell))}

    def matching(self, cells: Iterable[Cell], records: Sequence[Record]) -> dict[Cell, Record]:
        """Return the existing record of each cell; the last one if there are several."""
        known = {_key(record): record for record in records}
        found = ((cell, known.get(_key(self.identify(cell)))) for cell in cells)
        return {cell: record for cell, record in found if record is not None}

    def draw(self, seed: int, n_pairs: int = 0) -> Split:
        """Return the split of a seed, with training pairs for multi-label datasets."""
        if self.split is not None:
            return self.split
        options = {"n_query": self.n_query, "n_concepts": self.n_concepts, "n_pairs": n_pairs}
        split = self.dataset.split(self.protocol, seed, n_train=self.n_train, **options)
        if self.n_train is None and len(split.train) > _MAX_MULTILABEL_TRAIN:
            split = self.dataset.split(
                self.protocol, seed, n_train=_MAX_MULTILABEL_TRAIN, **options
            )
        return split

    def rows(self, seed: int, n_pairs: int = 0) -> Rows:
        """Return features and labels with the split of a seed; only evaluated concepts."""
        split, y = self.draw(seed, n_pairs), self.dataset.labels
        return Rows(
            np.asarray(self.dataset.features),
            y if split.concepts is None else y[:, split.concepts],
            split,
            self.dataset.mirror if self.mirrored else None,
        )


def _key(record: Record) -> tuple[Any, ...]:
    """Return the identifying fields of a record as a hashable key; missing fields are None."""
    names = ("protocol", "n_train", "n_query", "n_concepts", "mirrored", "antipodal")
    values = (record.get(name) for name in ("dataset", "data", *names, "bits", "seed"))
    method = current_method(str(record.get("method")))
    return (*values, method, json.dumps(_current(record.get("parameters")), sort_keys=True))


def _current(recorded: Any) -> Any:
    """Return recorded parameters with the names of this version.

    Parameters that no longer exist are omitted if they had no effect.
    """
    if not isinstance(recorded, dict):
        return recorded
    return {
        RENAMED.get(name, name): value
        for name, value in recorded.items()
        if name not in REMOVED or value != REMOVED[name]
    }


def method_of(cell: Cell) -> BaseHasher | UncompressedMethod:
    """Return the hasher or uncompressed method of a cell."""
    if cell.method in UNCOMPRESSED:
        return UNCOMPRESSED[cell.method](cell.seed)
    return make_hasher(cell.method, cell.bits, cell.seed)


def n_sampled_pairs(hasher: BaseHasher | UncompressedMethod) -> int:
    """Return the number of pairs that a method is trained on, 0 if it uses labels directly."""
    if not isinstance(hasher, NetworkHasher):
        return 0
    options = hasher.training or Training()
    return options.n_pairs if options.pairs == "sampled" else 0


def parameters(hasher: BaseHasher | UncompressedMethod) -> Record:
    """Return all parameters and training options except code length and seed, as JSON values."""
    values = hasher.get_params(deep=False)
    if isinstance(hasher, NetworkHasher):
        options = values.pop("training") or Training()
        values = {**options.get_params(), **values}
        if "init" not in values:
            del values["sparsity"]  # an option of K-SVD initialisation only
    return {
        name: _json_value(v) for name, v in values.items() if name not in ("n_bits", "random_state")
    }


def _json_value(value: Any) -> Any:
    """Convert a value as a round trip through JSON does; functions and classes become names."""
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


def learned_from(hasher: BaseHasher | UncompressedMethod) -> str:
    """Return the data of a fit: "labels", "labels and database", "database" or "nothing"."""
    if isinstance(hasher, Cosine) and not hasher.centred:
        return "nothing"
    if not hasher.uses_labels:
        return "database"
    return "labels and database" if hasher.uses_unlabelled else "labels"


def grid(methods: Sequence[str], bits: Sequence[int], seeds: Sequence[int]) -> list[Cell]:
    """Return all cells; raise an error for a method or setting that does not exist."""
    cells: list[Cell] = []
    for method in methods:
        lengths = [0] if method in UNCOMPRESSED else bits
        cells += [Cell(method, *rest) for rest in product(lengths, seeds)]
        method_of(cells[-1])
    return cells


def run_cells(
    benchmark: Benchmark, cells: Iterable[Cell], n_processes: int = 1
) -> Iterator[tuple[Cell, Record | Exception]]:
    """Yield each finished cell with its record or its error."""
    yield from run_jobs(run_cell, benchmark, cells, n_processes)


def run_cell(benchmark: Benchmark, cell: Cell) -> Record:
    """Fit a method, encode queries and database, and return the record of its evaluation.

    Scores are in percent. `map_without_training` is mAP over the database without training rows;
    it is missing if there are no other rows.
    """
    hasher = method_of(cell)
    rows = benchmark.rows(cell.seed, n_sampled_pairs(hasher))
    split, y = rows.split, rows.y
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
    """Return the peak memory of this process, or None if the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10))


def _digest(dataset: Dataset) -> str:
    return _digest_arrays([np.asarray(dataset.features), dataset.labels])


def _digest_arrays(arrays: Iterable[np.ndarray[Any, Any]]) -> str:
    """Return a short hash of some arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:12]

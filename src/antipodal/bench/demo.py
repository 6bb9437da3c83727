"""Demonstration: texts without labels, and codes of handwritten digits learned from labels."""

import base64
import importlib
import inspect
import io
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer

from antipodal.bench.runner import Benchmark
from antipodal.collection import Collection
from antipodal.datasets.dataset import digits
from antipodal.evaluation.metrics import Evaluation, evaluate, hamming_distances
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.network import NetworkHasher
from antipodal.hashers.registry import make_hasher
from antipodal.io.atomic import replacing
from antipodal.io.numpy_files import write_codes

TOPICS = {
    "text": "re string textwrap difflib unicodedata codecs gettext locale",
    "time": "datetime calendar time zoneinfo sched timeit",
    "collections": "collections heapq bisect queue copy enum types weakref itertools functools",
    "numbers": "math cmath decimal fractions random statistics numbers secrets",
    "files": "os pathlib glob fnmatch shutil tempfile stat io fileinput linecache mmap",
    "formats": "json csv configparser plistlib zipfile tarfile gzip lzma zlib pickle sqlite3",
    "network": "socket ssl http.client urllib.parse ftplib smtplib poplib imaplib mailbox",
    "threads": "threading multiprocessing subprocess concurrent.futures asyncio signal contextlib",
    "Python": "ast inspect dis tokenize traceback unittest warnings logging argparse",
}
N_FEATURES = 384
QUERIES = (
    "copy a directory and everything in it",
    "run a command and read its output",
    "wait until a thread is finished",
)


@cache
def docstrings() -> list[dict[str, Any]]:
    """Return functions, classes and methods with the first paragraph of their docstring."""
    found: dict[str, dict[str, Any]] = {}
    for topic, modules in TOPICS.items():
        for module in modules.split():
            for name, thing in _members(module):
                text = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
                item = {"title": f"{module}.{name}", "text": text, "topic": topic, "module": module}
                if len(text.split()) > 3:
                    found.setdefault(text, item)  # a text is listed once
    return list(found.values())


def _members(module: str) -> Iterator[tuple[str, Any]]:
    """Yield the public callables of a module and of its classes."""
    known = " ".join(TOPICS.values()).split()
    for name, thing in sorted(vars(importlib.import_module(module)).items()):
        elsewhere = getattr(thing, "__module__", None) in {*known} - {module}
        if not callable(thing) or name.startswith("_") or elsewhere:
            continue
        yield name, thing
        if inspect.isclass(thing):
            for method in sorted(vars(thing)):
                if not method.startswith("_") and callable(getattr(thing, method, None)):
                    yield f"{name}.{method}", getattr(thing, method)


@cache
def _model() -> Pipeline:
    words = TfidfVectorizer(sublinear_tf=True, stop_words="english", min_df=2)
    return make_pipeline(words, TruncatedSVD(N_FEATURES, random_state=0), Normalizer()).fit(
        [_searched(item) for item in docstrings()]
    )


def _searched(item: dict[str, Any]) -> str:
    return f"{re.sub('[._]', ' ', item['title'])} {item['text']}"


def embed(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return unit vectors of texts: latent semantic analysis of the docstrings.

    It replaces an embedding model and needs no download. Texts without a known word become zero
    vectors.
    """
    return np.asarray(_model().transform(texts), np.float32)


def write_texts(path: Path) -> int:
    """Write the docstrings and their vectors as JSON Lines; return their number."""
    vectors = embed([_searched(item) for item in docstrings()]).astype(np.float64).round(5)
    with replacing(path) as file:
        for item, vector in zip(docstrings(), vectors, strict=True):
            file.write(json.dumps(item | {"embedding": vector.tolist()}).encode() + b"\n")
    return len(vectors)


if TYPE_CHECKING:
    from antipodal.paper.training import Progress


SHADES = " ░▒▓█"
# The paper's networks, and baselines that train in seconds. The first is saved and searched.
METHODS = ("DeepLinf", "NNHash", "SparseHash", "KSH", "PSH", "AGH", "LDAHash", "ITQ", "LSH")
WITHOUT_TORCH = ("KSH", "PSH", "AGH", "LDAHash", "ITQ", "LSH")


@dataclass(frozen=True)
class Score:
    """Evaluation of one method."""

    method: str
    uses_labels: bool
    fit_seconds: float
    evaluation: Evaluation


@dataclass(frozen=True)
class NearestImages:
    """A query and its nearest items: row numbers and Hamming distances."""

    query: int
    nearest: NDArray[np.intp]
    distances: NDArray[Any]


class Demo:
    """Demonstration on the digits of scikit-learn: 50 labelled rows and 20 queries per class."""

    def __init__(
        self, n_bits: int, n_epochs: int | None, seed: int, methods: Sequence[str] = METHODS
    ) -> None:
        data = digits()
        self.rows = Benchmark(data, n_train=50, n_query=20).rows(seed)
        self.images, self.labels, self.split = self.rows.X, self.rows.y, self.rows.split
        self.pixels = np.asarray(data.images)
        self.n_bits = n_bits
        self.hashers: dict[str, BaseHasher] = {
            name: make_hasher(name, n_bits, seed) for name in methods
        }
        for hasher in self.hashers.values():
            if isinstance(hasher, NetworkHasher) and n_epochs is not None:
                hasher.set_params(training__n_epochs=n_epochs)
        self.name, self.hasher = next(iter(self.hashers.items()))

    def scores(self) -> Iterator[Score]:
        """Fit and evaluate each method."""
        for name, hasher in self.hashers.items():
            began = time.perf_counter()
            self.rows.fit(hasher)
            yield self._score(name, time.perf_counter() - began)

    def score_first(self, progress: "Progress | None" = None) -> Score:
        """Fit and evaluate the first method."""
        began = time.perf_counter()
        if isinstance(self.hasher, NetworkHasher):
            self.rows.fit(self.hasher, progress=progress)
        else:
            self.rows.fit(self.hasher)
        return self._score(self.name, time.perf_counter() - began)

    def _score(self, name: str, seconds: float) -> Score:
        X, y, rows, hasher = self.images, self.labels, self.split, self.hashers[name]
        queries, database = hasher.encode(X[rows.query]), hasher.encode(X[rows.database])
        result = evaluate(queries, database, y[rows.query], y[rows.database], n_bits=self.n_bits)
        return Score(name, hasher.uses_labels, seconds, result)

    def save(self, directory: Path) -> tuple[Path, Path]:
        """Write the model and the codes of the database; return their paths."""
        directory.mkdir(parents=True, exist_ok=True)
        model, codes = directory / "digits.antipodal", directory / "digits-codes.npy"
        self.hasher.save(model)
        packed = self.hasher.encode(self.images[self.split.database])
        write_codes(codes, [packed], *packed.shape)
        return model, codes

    def build(self, directory: Path) -> Path:
        """Create a collection of the database with labels and thumbnails; return its path.

        The collection of an earlier demonstration is deleted, since its codes belong to another
        model.
        """
        path = directory / "digits.db"
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        rows = self.split.database
        metadata = [
            {"label": int(self.labels[row]), "thumbnail": data_url(self.pixels[row])}
            for row in rows
        ]
        Collection.create(
            path, self.images[rows], ids=rows, metadata=metadata, model=self.hasher
        ).close()
        return path

    def write_queries(self, directory: Path) -> Path:
        """Write an image of each digit that is not in the training set; return their folder."""
        folder = directory / "unseen"
        folder.mkdir(parents=True, exist_ok=True)
        queries = self.split.query
        for label in range(10):
            row = queries[self.labels[queries] == label][0]
            with replacing(folder / f"{label}.png") as file:
                file.write(png(self.pixels[row]))
        return folder

    def neighbours(self, n_queries: int, k: int) -> list[NearestImages]:
        """Return the k nearest items of the first query of some classes."""
        queries = self.split.query
        classes = np.linspace(0, 9, n_queries, dtype=int)
        chosen = [queries[self.labels[queries] == label][0] for label in classes]
        database = self.split.database
        distances = hamming_distances(
            self.hasher.encode(self.images[chosen]), self.hasher.encode(self.images[database])
        )
        found = []
        for query, row in zip(chosen, distances, strict=True):
            order = np.argsort(row, kind="stable")[:k]
            found.append(NearestImages(int(query), database[order], row[order]))
        return found

    def picture(self, rows: list[int], captions: list[str]) -> list[str]:
        """Return images in a row as lines of text, two characters per pixel."""
        lines = ["   ".join(caption.ljust(16) for caption in captions)]
        for y in range(8):
            cells = []
            for row in rows:
                pixels = self.images[row].reshape(8, 8)[y] / 16
                cells.append("".join(2 * SHADES[round(p * (len(SHADES) - 1))] for p in pixels))
            lines.append("   ".join(cells))
        return [line.rstrip() for line in lines]


def png(image: NDArray[np.uint8]) -> bytes:
    """Return a grey image (height, width) as PNG. Requires Pillow, of the extra `serve`."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def data_url(image: NDArray[np.uint8]) -> str:
    """Return a grey image as a data URL."""
    return "data:image/png;base64," + base64.b64encode(png(image)).decode()

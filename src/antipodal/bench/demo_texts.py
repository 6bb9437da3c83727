"""Demonstration without labels: the docstrings of Python's standard library and their vectors."""

import importlib
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer

from antipodal.io.atomic import replacing

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

    It stands in for an embedding model, and needs no download. Texts without a known word are
    vectors of zeros.
    """
    return np.asarray(_model().transform(texts), np.float32)


def write_texts(path: Path) -> int:
    """Write the docstrings and their vectors as JSON Lines; return their number."""
    vectors = embed([_searched(item) for item in docstrings()]).astype(np.float64).round(5)
    with replacing(path) as file:
        for item, vector in zip(docstrings(), vectors, strict=True):
            file.write(json.dumps(item | {"embedding": vector.tolist()}).encode() + b"\n")
    return len(vectors)

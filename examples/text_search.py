"""Search texts: encode the docstrings of Python's standard library and browse them in the web UI.

    python examples/text_search.py
    antipodal serve --model texts.antipodal --store sqlite:///texts.db

The web UI shows the fields `title` and `text`. The vectors are TF-IDF; embeddings work as well.
"""

import importlib
import inspect
import re

from safetensors import safe_open
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

from antipodal import ITQ, open_store

TOPICS = {
    "text": "re string textwrap difflib unicodedata codecs gettext locale",
    "time": "datetime calendar time zoneinfo sched timeit",
    "numbers": "math cmath decimal fractions random statistics numbers secrets",
    "collections": "collections heapq bisect queue copy enum types weakref itertools functools",
    "files": "os pathlib glob fnmatch shutil tempfile stat io fileinput linecache mmap",
    "formats": "json csv configparser plistlib zipfile tarfile gzip lzma zlib pickle sqlite3",
    "network": "socket ssl http.client urllib.parse ftplib smtplib poplib imaplib mailbox",
    "threads": "threading multiprocessing subprocess concurrent.futures asyncio signal contextlib",
    "Python": "ast inspect dis tokenize traceback unittest warnings logging argparse",
}


def library(topics):
    """Return functions and classes with the first paragraph of their docstring, without copies."""
    found = {}
    for topic, module in [(topic, m) for topic, names in topics.items() for m in names.split()]:
        for name, thing in sorted(vars(importlib.import_module(module)).items()):
            words = (inspect.getdoc(thing) or "").split("\n\n")[0].split()
            if callable(thing) and not name.startswith("_") and len(words) > 3:
                item = {"title": f"{module}.{name}", "text": " ".join(words)}
                found[item["text"]] = item | {"topic": topic, "module": module, "words": len(words)}
    return list(found.values())


def vectors(items, n_features):
    """Return a unit vector for each item, computed from its name and text."""
    texts = [2 * (re.sub(r"[._]", " ", i["title"]) + " ") + i["text"] for i in items]
    counts = TfidfVectorizer(sublinear_tf=True, min_df=2, stop_words="english").fit_transform(texts)
    return normalize(TruncatedSVD(n_features, random_state=0).fit_transform(counts))


if __name__ == "__main__":
    rows = vectors(items := library(TOPICS), 128)
    hasher = ITQ(64, random_state=0).fit(rows)
    hasher.save("texts.antipodal")
    with safe_open("texts.antipodal", "np") as file:
        model = file.metadata()["sha256"]  # the store refuses codes of any other model
    with open_store("sqlite:///texts.db", n_bits=64, model=model) as store:
        store.upsert(range(len(items)), hasher.encode(rows), items)
        print(f"{store.count()} texts in texts.db, 8 bytes per code")

"""Time of finding items by words: a scan of the items, and the FTS5 index of a process.

python benchmarks/words.py --items 1000000

The items have a title of 5 words and a text of 25, drawn from 30,000 words with the frequencies of
Zipf's law, in a SQLite store of 384 bits. Times are processor time.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from antipodal import open_store
from antipodal.stores.text_search import WordIndex, find_words

N_WORDS, BATCH, LIMIT = 30_000, 50_000, 24


def main() -> None:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=200_000)
    n_items = parser.parse_args().items
    rng = np.random.default_rng(0)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    words = ["".join(rng.choice(letters, rng.integers(3, 11))) for _ in range(N_WORDS)]
    frequencies = 1 / np.arange(1, N_WORDS + 1)
    queries = {"most frequent": words[0], "frequent": words[100], "rare": words[20_000]}
    with (
        tempfile.TemporaryDirectory() as folder,
        open_store(f"sqlite:///{folder}/words.db", n_bits=384) as store,
    ):
        for first in range(0, n_items, BATCH):
            ids = np.arange(first, min(first + BATCH, n_items))
            drawn = rng.choice(N_WORDS, (len(ids), 30), p=frequencies / frequencies.sum())
            texts = [[words[j] for j in row] for row in drawn]
            metadata = [{"title": " ".join(t[:5]), "text": " ".join(t[5:])} for t in texts]
            store.upsert(ids, rng.integers(0, 256, (len(ids), 48), np.uint8), metadata)
        with store.snapshot() as now:
            for name, word in queries.items():
                with timed(f"scan of all items, {name} word"):
                    find_words(now, word, LIMIT, n_items)
        index = WordIndex(store)
        with timed("index built, with a scan meanwhile"):
            index.find("nothing", LIMIT)
            if index._builder is not None:
                index._builder.join()
        for name, word in queries.items():
            with timed(f"index, {name} word"):
                found = index.find(word, LIMIT)
            assert found.n_searched == n_items
        store.upsert([0], np.zeros((1, 48), np.uint8), [{"title": words[-1]}])
        with timed("index, after a write"):
            index.find(words[-1], LIMIT)
        assert index._database is not None
        (n_pages,) = index._database.execute("PRAGMA page_count").fetchone()
        print(f"index of {n_items:,} items: {n_pages * 4096 / 1e6:.0f} MB")
        index.close()


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Print the processor time of a block."""
    start = time.process_time()
    yield
    print(f"{name}: {time.process_time() - start:.3f} s", flush=True)


if __name__ == "__main__":
    main()

"""Full-text search in item metadata: an FTS5 index of SQLite, or a scan of the items.

The index is in a temporary file of this process. The files and tables of the store are not changed.
"""

import heapq
import math
import re
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from antipodal.errors import StoreError
from antipodal.stores.base import Store
from antipodal.stores.items import parse_metadata
from antipodal.stores.snapshot import Items, Snapshot
from antipodal.validation import Ids

MAX_SCANNED = 200_000  # items
_BUILT_AT_ONCE = 20_000  # items; an index of more is built in the background
_MAX_PAGES = 2**18  # of 4 KiB: the largest index
_SHORT = 100  # characters; shorter values, such as titles, have a higher weight
_SHORT_WEIGHT = 3.0
_CREATE = (
    # A contentless index cannot delete: replaced documents are removed from the table of items
    # only.
    "CREATE VIRTUAL TABLE words USING fts5(short, long, content='')",
    "CREATE TABLE items (document INTEGER PRIMARY KEY, id INTEGER UNIQUE)",
)
_MATCHING = f"""
SELECT id FROM words JOIN items ON document = words.rowid WHERE words MATCH ?
ORDER BY bm25(words, {_SHORT_WEIGHT}, 1.0), id LIMIT ?
"""
# Scripts without spaces between words: each character is indexed as a word.
_CHARACTER = re.compile("([\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff])")


class TextMatches(NamedTuple):
    """Ids of matching items, most relevant first, and the number of items searched."""

    ids: Ids
    n_searched: int


class FoundItems(NamedTuple):
    """Matching items, and the numbers of items searched and stored."""

    items: Items
    n_searched: int
    n_items: int


class WordIndex:
    """Index of the words in the metadata of a store, ordered by BM25.

    The first search builds it; later searches update it with the changes of all writers. Large
    indexes are built in the background. `find_words` scans the items until then, and where no index
    is possible: in an engine without versions (Milvus), in a Python without FTS5, or beyond 1 GiB.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()  # guards the attributes below
        self._database: sqlite3.Connection | None = None
        self._version = -1
        self._n_documents = 0  # indexed, including those of replaced items
        self._builder: threading.Thread | None = None
        self._is_possible = _has_fts5()
        self._is_closed = False

    def close(self) -> None:
        """Delete the index, and stop building it."""
        self._is_closed = True
        if self._builder is not None:
            self._builder.join()
        with self._lock:
            self._clear()

    def find(self, words: str, limit: int) -> FoundItems:
        """Return the most relevant items that contain all words, whole or as prefixes of words."""
        # Lock first, so that the snapshot is not older than the index.
        with self._lock, self._store.snapshot() as now:
            if self._is_possible and self._update(now):
                return _found(now, self._matching(words, limit))
        with self._store.snapshot() as now:
            return _found(now, find_words(now, words, limit, MAX_SCANNED))

    def _update(self, now: Snapshot) -> bool:
        """Update the index to a snapshot, or return False if it is not available."""
        if self._builder is not None and self._builder.is_alive():
            return False
        self._builder = None
        changes = now.changes_since(self._version)
        if changes is None:
            return False
        version, changed = changes
        n_items = now.count()
        try:
            if (
                changed is None
                or len(changed) > _BUILT_AT_ONCE
                or self._n_documents + len(changed) > 2 * n_items + 1000
            ):
                if n_items > _BUILT_AT_ONCE:
                    self._builder = threading.Thread(target=self._build_all, daemon=True)
                    self._builder.start()
                    return False
                self._build(now)
            elif len(changed):
                self._replace(now, changed)
            self._version = version
        except sqlite3.Error:  # no space: scan from now on
            self._is_possible = False
            self._clear()
        return self._is_possible

    def _build_all(self) -> None:
        """Build the index in the background; if the store fails, a later search tries again."""
        try:
            with suppress(StoreError, ValueError), self._store.snapshot() as now:
                if self._build(now) and (changes := now.changes_since(-1)) is not None:
                    self._version = changes[0]
        except sqlite3.Error:
            self._is_possible = False
            self._clear()

    def _build(self, now: Snapshot) -> bool:
        """Index all items; return False if the index was closed meanwhile."""
        self._clear()
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in (f"PRAGMA max_page_count={_MAX_PAGES}", "PRAGMA journal_mode=OFF"):
            self._database.execute(statement)
        for statement in _CREATE:
            self._database.execute(statement)
        for batch in now.batches():
            if self._is_closed:
                return False
            self._add(zip(batch.ids.tolist(), map(parse_metadata, batch.texts), strict=True))
        return True

    def _replace(self, now: Snapshot, changed: Ids) -> None:
        assert self._database is not None
        found = now._get(changed)
        numbers = ((number,) for number in changed.tolist())
        self._database.executemany("DELETE FROM items WHERE id = ?", numbers)
        self._add((number, metadata) for number, (_, metadata) in found.items())

    def _add(self, items: Iterable[tuple[int, dict[str, Any]]]) -> None:
        assert self._database is not None
        rows = [
            (self._n_documents + i, number, *_columns(metadata))
            for i, (number, metadata) in enumerate(items)
        ]
        self._n_documents += len(rows)
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO items VALUES (?, ?)", (row[:2] for row in rows))
        self._database.executemany(
            "INSERT INTO words (rowid, short, long) VALUES (?, ?, ?)",
            ((document, short, long) for document, _, short, long in rows),
        )
        self._database.execute("COMMIT")

    def _matching(self, words: str, limit: int) -> TextMatches:
        assert self._database is not None
        phrases = [
            '"' + _indexed(word).replace('"', " ") + '"'
            for word in words.split()
            if any(map(str.isalnum, word))  # FTS5 ignores punctuation in items
        ]
        query = " AND ".join(f"({phrase} OR {phrase}*)" for phrase in phrases)
        rows = self._database.execute(_MATCHING, [query, limit]).fetchall() if query else []
        (n_items,) = self._database.execute("SELECT count(*) FROM items").fetchone()
        return TextMatches(np.array([number for (number,) in rows], np.int64), n_items)

    def _clear(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database, self._version, self._n_documents = None, -1, 0


def _found(now: Snapshot, matches: TextMatches) -> FoundItems:
    return FoundItems(now._items_of(matches.ids), matches.n_searched, now.count())


def _columns(metadata: dict[str, Any]) -> tuple[str, str]:
    """Return the short and the long values of an item."""
    texts = _texts(metadata)
    short = "\n".join(text for text in texts if len(text) <= _SHORT)
    return _indexed(short), _indexed("\n".join(text for text in texts if len(text) > _SHORT))


def _indexed(text: str) -> str:
    """Return a text, or a word of a query, as FTS5 reads it: no lone surrogates, no NUL."""
    if not text.isascii():
        text = _CHARACTER.sub(r" \1 ", text.encode(errors="replace").decode())
    return text.replace("\0", " ")


def _has_fts5() -> bool:
    database = sqlite3.connect(":memory:")
    try:
        database.execute(_CREATE[0])
        return True
    except sqlite3.OperationalError:
        return False
    finally:
        database.close()


def find_words(store: Snapshot, words: str, limit: int, max_scanned: int) -> TextMatches:
    """Return the most relevant items whose metadata contain every word, ignoring case.

    Whole words count more than parts of words, and short values, such as titles, more than long
    ones. Equally relevant items are ordered by id.

    At most `max_scanned` items are scanned. Field names and images (`data:` URLs) are not searched.
    """
    folded = words.casefold().split()
    found: list[tuple[float, int]] = []  # the relevance and the negative id
    n_searched = 0
    for batch in store.batches() if folded else ():
        for number, text in zip(batch.ids.tolist(), batch.texts, strict=True):
            if n_searched >= max_scanned:
                break
            n_searched += 1
            if _may_match(text, folded) and (value := relevance(parse_metadata(text), folded)):
                keep = heapq.heappush if len(found) < limit else heapq.heappushpop
                keep(found, (value, -number))
        if n_searched >= max_scanned:
            break
    return TextMatches(np.array([-i for _, i in sorted(found, reverse=True)], np.int64), n_searched)


def _may_match(text: str, words: list[str]) -> bool:
    """Return False for most texts without the words; words that JSON escapes are not checked."""
    folded = text.casefold()
    return all(word in folded or '"' in word or "\\" in word for word in words)


def relevance(metadata: dict[str, Any], words: list[str]) -> float:
    """Return the relevance of an item for folded words, 0 if it does not contain all of them."""
    values = [value.casefold() for value in _texts(metadata)]
    best = [max((_weight(word, value) for value in values), default=0.0) for word in words]
    return sum(best) if all(best) else 0.0


def _weight(word: str, value: str) -> float:
    if word not in value:
        return 0.0
    quoted = re.escape(word)
    if re.search(rf"(?<!\w){quoted}(?!\w)", value):
        match = 1.0
    else:
        match = 0.5 if re.search(rf"(?<!\w){quoted}", value) else 0.25
    return match / (1 + math.log1p(len(value) / 100))


def _texts(value: Any) -> list[str]:
    """Return all strings and numbers in a value, at any depth, as texts."""
    if isinstance(value, str):
        return [] if value.startswith("data:") else [value]
    if isinstance(value, dict):
        return [text for part in value.values() for text in _texts(part)]
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    return [] if value is None or isinstance(value, bool) else [str(value)]

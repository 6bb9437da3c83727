"""Fuzz targets that users type: keys, filters, addresses."""

import random
import sqlite3
from pathlib import Path

from antipodal.service.auth import Keys
from antipodal.stores.filters import (
    EXACT_REAL,
    matches,
    milvus_narrowing,
    parse_where,
    postgres_condition,
    sqlite_condition,
)
from antipodal.stores.items import metadata_text
from antipodal.stores.url import parse_url, shown_url
from fuzz_targets import Target
from mutations import changed_bytes, changed_json

_KEYS = (
    "# keys\nread  3k2aaaaaaaaaaaaaaaaa    # the web site\n\nwrite 9xQ#bbbbbbbbbbbbbbbb\n"
    "read ~~~~~~~~~~~~~~~~~~\n"
)


class KeyFile(Target):
    """Key files of a service."""

    def case(self, draw: random.Random) -> bool:
        """Change bytes."""
        data = changed_bytes(draw, _KEYS.encode())
        self.path.write_bytes(data)
        keys = Keys.find(self.path)
        assert keys is not None
        assert len(keys) >= 1
        assert keys.role(b"") is None
        assert keys.role(b"read") is None
        return True

    def refused(self, error: Exception) -> bool:
        """Check that an error message contains no key."""
        return super().refused(error) and not any(key in str(error) for key in ("3k2a", "Q#bb"))


_FILTERS = [
    {"label": 3, "half": {"gte": 0.25, "lt": 10}},
    {"or": [{"name": "ä"}, {"not": {"a.b": {"exists": True}}}]},
    {"and": [{"label": {"in": [1, 3, "3", None]}}, {"half": {"gt": -1, "lte": 2**53}}]},
    {"not": {"yes": True}, "none": None, "a.0": "x"},
]


_ITEMS = [
    {"label": 3, "half": 0.5, "name": "ä", "yes": True, "none": None, "a": {"b": 7, "0": "x"}},
    {"label": "3", "half": 2**53 + 1, "name": "", "list": [1], "a": 1},
    {"label": -0.0, "half": 1e308, "name": "x", "yes": 1, "a": {"b": None}},
    {},
]


class Filters(Target):
    """Filters: their SQL translation must select the same items."""

    arguments = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._database = sqlite3.connect(":memory:")
        self._database.create_function(EXACT_REAL, 1, float, deterministic=True)
        self._database.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, metadata TEXT)")
        self._database.executemany(
            "INSERT INTO items VALUES (?, ?)",
            [(number, metadata_text(item)) for number, item in enumerate(_ITEMS)],
        )

    def case(self, draw: random.Random) -> bool:
        """Change a filter and use it."""
        where = changed_json(draw, draw.choice(_FILTERS))
        if draw.random() < 0.3:
            where = changed_json(draw, where)
        tree = parse_where(where)
        condition, values = sqlite_condition(tree)
        rows = self._database.execute(f"SELECT id FROM items WHERE {condition} ORDER BY id", values)
        found = [number for (number,) in rows]
        expected = [n for n, item in enumerate(_ITEMS) if matches(tree, item)]
        assert found == expected, (where, found, expected)
        postgres_condition(tree)
        milvus_narrowing(tree)
        return True


_URLS = [
    "sqlite:///codes.db?timeout=5",
    "sqlite:////tmp/a%20b.db",
    "postgresql://user:s3cr3t@host:5432/db?table=codes&sslmode=require",
    "postgres://user@a,b:5432/db?password=s3cr3t&schema=x",
    "milvus:///codes.db?collection=c",
    "milvus+http://host:19530?token=s3cr3t",
    "milvus+https://root:s3cr3t@host:19530/?collection=c",
]


_SECRET = "s3cr3t"


class Urls(Target):
    """Store addresses: messages must not contain secrets."""

    arguments = True

    def case(self, draw: random.Random) -> bool:
        """Change characters."""
        good = draw.choice(_URLS)
        self._url = url = changed_bytes(draw, good.encode()).decode(errors="replace")
        # The secret is known only if the text before it is unchanged.
        start = good.find(_SECRET)
        self._is_secret = (
            start >= 0 and url.startswith(good[: start + len(_SECRET)]) and url.count(_SECRET) == 1
        )
        address = parse_url(url)
        assert not self._shows(f"{address!r} {address.shown}"), url
        return True

    def refused(self, error: Exception) -> bool:
        """Check that an error message contains no secret."""
        return isinstance(error, ValueError) and not self._shows(str(error))

    def _shows(self, text: str) -> bool:
        return self._is_secret and _SECRET in text + shown_url(self._url)

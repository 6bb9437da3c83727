"""Reading items of a SQLite store in blocks, and its prepared index."""

import sqlite3

import numpy as np
import pytest

from antipodal.errors import StoreError
from antipodal.index import radius_tables
from antipodal.stores import open_store, sqlite_file
from antipodal.stores.sqlite_file import SqliteItems

SMALLEST, LARGEST = -(2**63), 2**63 - 1


@pytest.fixture
def path(tmp_path):
    return tmp_path / "codes.db"


def make(path, ids, n_bits=20):
    rng = np.random.default_rng(len(ids))
    codes = np.packbits(rng.integers(0, 2, (len(ids), n_bits), dtype=np.uint8), axis=1)
    texts = [{"name": "ä\n,'" * (i % 4), "at": i} if i % 3 else {} for i in range(len(ids))]
    with open_store(f"sqlite:///{path}", n_bits=n_bits) as store:
        store.upsert(ids, codes, texts)


def read(path, n_bits=20):
    connection = sqlite3.connect(path)
    connection.text_factory = bytes
    try:
        blocks = list(SqliteItems("codes.db", n_bits, "int64").all(connection))
        rows = connection.execute("SELECT id, code, metadata FROM items ORDER BY id").fetchall()
    finally:
        connection.close()
    return blocks, rows


@pytest.mark.parametrize(
    "ids",
    [
        np.arange(17),
        np.arange(100, 131),
        np.array([SMALLEST, SMALLEST + 1, -5, 0, 3, 4, 5, 6, 7, 8, 2**40, LARGEST - 1, LARGEST]),
        np.arange(LARGEST - 9, LARGEST) + 1,
        np.array([7]),
        np.random.default_rng(0).permutation(200)[:60],
    ],
    ids=["from 0", "from 100", "extremes", "largest", "one", "gaps"],
)
@pytest.mark.parametrize("block", [1, 7, 10, 5_000])
def test_blocks_contain_every_item_once_and_in_order(path, monkeypatch, ids, block):
    make(path, ids)
    monkeypatch.setattr(sqlite_file, "_BLOCK", block)
    monkeypatch.setattr(SqliteItems, "_checked", lambda *_: pytest.fail("read row by row"))
    blocks, rows = read(path)
    assert [len(some.ids) for some in blocks[:-1]] == [block] * (len(blocks) - 1)
    assert np.concatenate([some.ids for some in blocks]).tolist() == [row[0] for row in rows]
    assert b"".join(some.codes.tobytes() for some in blocks) == b"".join(row[1] for row in rows)
    assert [text for some in blocks for text in some.texts] == [row[2] for row in rows]


def test_an_empty_store_has_no_blocks(path):
    open_store(f"sqlite:///{path}", n_bits=20).close()
    assert read(path) == ([], [])


@pytest.mark.parametrize(
    "change",
    [
        "code = x'ffffff' WHERE id = 4",
        "code = code || x'00' WHERE id = 9",
        "code = CASE id WHEN 4 THEN substr(code, 1, 2) ELSE code || x'00' END WHERE id IN (4, 5)",
        "metadata = metadata || char(10) WHERE id = 4",
        "metadata = '' WHERE id = 0",
        "metadata = '{}' || char(10) || '{}' WHERE id IN (2, 3)",
        "checksum = checksum + 1 WHERE id = 9",
        "checksum = 'no number' WHERE id = 3",
        "id = 77 WHERE id = 4",
        "checksum = (SELECT checksum FROM items WHERE id = 9 - i.id) FROM items AS i "
        "WHERE items.id = i.id",
    ],
)
def test_a_modified_item_is_detected(path, change):
    make(path, np.arange(10))
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE items SET {change}")
    connection.close()
    with pytest.raises(StoreError, match="checksum"):
        read(path)
    with (
        open_store(f"sqlite:///{path}") as store,
        pytest.raises(StoreError, match="checksum"),
    ):
        store.search(np.zeros((1, 3), np.uint8), 1)


def test_blocks_that_cannot_be_split_are_read_row_by_row(path, monkeypatch):
    """Metadata may contain a line feed, valid in JSON, although stores never write it."""
    make(path, np.arange(10))
    text = b'{\n"a": 1}'
    with sqlite3.connect(path) as connection:
        code = connection.execute("SELECT code FROM items WHERE id = 4").fetchone()[0]
        (checksum,) = sqlite_file._checksums(np.array([4]), [code], [text])
        connection.execute(
            "UPDATE items SET metadata = ?, checksum = ? WHERE id = 4", (text.decode(), checksum)
        )
    connection.close()
    (block,), rows = read(path)
    assert list(block.texts) == [row[2] for row in rows]
    with open_store(f"sqlite:///{path}") as store:
        assert store.count({"a": 1}) == 1
        assert store.search(np.zeros((1, 3), np.uint8), 10).ids.shape == (1, 10)


def test_a_prepared_store_uses_tables_after_changes_by_others(path, monkeypatch):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (6_000, 8), dtype=np.uint8)
    scans = []
    scan = radius_tables.within
    monkeypatch.setattr(
        radius_tables, "within", lambda q, rows, r: scans.append(len(rows)) or scan(q, rows, r)
    )
    url = f"sqlite:///{path}"
    with open_store(url, n_bits=64) as store, open_store(url) as other:
        store.load(None, codes[:5_000])
        store.prepare()

        def find(row):
            near = codes[row : row + 1] ^ np.array([[1, 0, 0, 0, 0, 0, 0, 128]], np.uint8)
            return store.radius(near, 2).ids.tolist()

        assert find(17) == [17]
        assert scans == []
        other.delete([17])
        other.add(codes[5_000:5_100])
        assert find(17) == []
        assert find(5_050) == [5_050]
        assert max(scans) == 100  # rows after the tables
        scans.clear()
        other.delete(np.arange(3_000))  # most items: the index is rebuilt
        other.upsert(np.arange(3_000), codes[:3_000])
        assert find(18) == [18]
        assert scans == []
        with store.snapshot() as before:
            other.delete(np.arange(4_000, 4_500))
            assert find(4_200) == []
            scans.clear()
            before.radius(np.tile(codes[4_200:4_201], (5_000, 1)), 2)  # builds its own tables
        assert find(4_900) == [4_900]
        assert scans == []


def test_an_invalid_radius_raises_and_the_store_remains_usable(path):
    make(path, np.arange(10))
    with open_store(f"sqlite:///{path}") as store:
        with pytest.raises(ValueError, match=r"\b20\b.*\bradius\b.*\b3\b"):
            store.prepare(radius=3)
        with pytest.raises(ValueError, match=r"\bradius\b.*\b0\b.*-1\b"):
            store.prepare(-1)
        assert store.count() == 10
    with pytest.raises(StoreError, match="closed"):
        store.prepare()

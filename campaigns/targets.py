"""What the fuzz opens: files of every kind, filters and addresses, each changed in its structure.

A target makes good examples once. A case changes one, makes its checksum anew, opens it and uses
it. It is refused by an error of ours that names the file, or it can be used. In some cases the
checksum is left as it was: then it must be refused, or answer as before.
"""

import hashlib
import json
import random
import shutil
import sqlite3
import struct
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from antipodal import HammingIndex, load, open_store
from antipodal.benchmark.records import read_records
from antipodal.checks import check_ids
from antipodal.codes import check_codes
from antipodal.errors import AntipodalError
from antipodal.hashers import HASHERS
from antipodal.reading import open_vectors
from antipodal.service.keys import Keys
from antipodal.storage.modelfile import read_model_file
from antipodal.stores.address import parse_url, shown_url
from antipodal.stores.dialects import (
    EXACT_REAL,
    milvus_narrowing,
    postgres_condition,
    sqlite_condition,
)
from antipodal.stores.metadata import metadata_text
from antipodal.stores.where import matches, parse_where
from mutations import changed_array, changed_bytes, changed_json, json_text

ROWS = np.random.default_rng(0).standard_normal((60, 10)).astype(np.float32)
LABELS = np.arange(60) % 3


class Target(ABC):
    """A kind of input."""

    arguments = False  # is it an argument, for which ValueError and TypeError are right?

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "case"

    @abstractmethod
    def case(self, draw: random.Random) -> bool:
        """Try one case; return whether it could be used. What is wrong is an AssertionError."""

    def refused(self, error: Exception) -> bool:
        """Say whether an error is the right way to refuse a case."""
        if self.arguments:
            return isinstance(error, (AntipodalError, ValueError, TypeError))
        return isinstance(error, AntipodalError) and "case" in str(error)


def write_safetensors(path: Path, metadata: dict[str, str], arrays: dict[str, Any]) -> None:
    """Write a file of arrays as `write_model_file` does, with whatever metadata."""
    from safetensors.numpy import save

    from antipodal.storage.modelfile import _digest

    metadata = {**metadata, "sha256": _digest(metadata, arrays)}
    path.write_bytes(save(arrays, metadata))


class Model(Target):
    """Models of every hasher."""

    def __init__(self, folder: Path, methods: tuple[str, ...] = tuple(HASHERS)) -> None:
        super().__init__(folder)
        self._made = []
        for method in methods:
            networks = ("DeepLinf", "NNHash", "SparseHash", "OrthoHash", "CSQ")
            settings = {"n_epochs": 1} if method in networks else {}
            hasher = HASHERS[method](8, random_state=0, **settings).fit(ROWS, LABELS)
            hasher.save(self.path)
            header, arrays = read_model_file(self.path, "hasher")
            self._made.append((header, arrays, self.path.read_bytes(), hasher.encode(ROWS)))

    def case(self, draw: random.Random) -> bool:
        """Change what a file says, its arrays, or a byte."""
        header, arrays, data, expected = draw.choice(self._made)
        how = draw.random()
        if how < 0.15:
            self.path.write_bytes(changed_bytes(draw, data))
            np.testing.assert_array_equal(load(self.path).encode(ROWS), expected)
            return True
        if how < 0.6:
            header = changed_json(draw, header)
        else:
            arrays = _changed_arrays(draw, arrays)
        text = json_text(header)
        metadata = {"format": "antipodal", "version": "1", "kind": "hasher", "header": text}
        write_safetensors(self.path, metadata, arrays)
        hasher = load(self.path)
        codes = hasher.encode(ROWS)
        assert codes.shape == (len(ROWS), -(-hasher.n_bits // 8)), codes.shape
        assert np.isfinite(hasher.query(ROWS)).all()
        repr(hasher)
        return True


def _changed_arrays(draw: random.Random, arrays: dict[str, Any]) -> dict[str, Any]:
    arrays = dict(arrays)
    name = draw.choice(list(arrays))
    how = draw.random()
    if how < 0.1:
        del arrays[name]
    elif how < 0.2:
        arrays[draw.choice(("fit", "encode", "n_bits", "__class__", name + "_"))] = arrays[name]
    else:
        arrays[name] = np.ascontiguousarray(changed_array(draw, arrays[name]))
    return arrays


class Checkpoint(Target):
    """Checkpoints of a training."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from antipodal.storage.checkpoint import save_checkpoint
        from operations import _training

        encoder, optimizer = _training(0)
        history = {"loss": [2.0, 1.0], "validation_loss": [3.0, 2.0], "best_epoch": 1}
        save_checkpoint(self.path, "run", encoder, optimizer, history, encoder.state_dict())
        self._header, self._arrays = read_model_file(self.path, "checkpoint")
        self._good = self.path.read_bytes()

    def case(self, draw: random.Random) -> bool:
        """Change what a file says, its arrays, or a byte."""
        from antipodal.storage.checkpoint import restore_checkpoint
        from operations import _training

        header, arrays, how = self._header, self._arrays, draw.random()
        if how < 0.15:
            self.path.write_bytes(changed_bytes(draw, self._good))
        else:
            if how < 0.6:
                header = changed_json(draw, header)
            else:
                arrays = _changed_arrays(draw, arrays)
            text = json_text(header)
            metadata = {"format": "antipodal", "version": "1", "kind": "checkpoint", "header": text}
            write_safetensors(self.path, metadata, arrays)
        encoder, optimizer = _training(1)
        history, best = restore_checkpoint(self.path, "run", encoder, optimizer)
        encoder.load_state_dict(best)
        optimizer.step()
        assert len(history["loss"]) >= history["best_epoch"]
        return True


class Index(Target):
    """Files of indexes: with ids and without, with tables, and approximate."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        rng = np.random.default_rng(0)
        self._made = []
        self._queries = rng.integers(0, 256, (2, 8), dtype=np.uint8)
        for ids, prepared in ((None, False), (rng.permutation(500)[:80], False), (None, True)):
            index = HammingIndex(64)
            index.add(rng.integers(0, 256, (80, 8), dtype=np.uint8), ids)
            if prepared:
                index.prepare(radius=1)
            index.save(self.path)
            self._made.append((self.path.read_bytes(), self._answers()))

    def _answers(self) -> Any:
        index = HammingIndex.load(self.path)
        queries = np.resize(self._queries, (2, -(-index.n_bits // 8)))
        if index.n_bits % 8:
            queries[:, -1] &= 256 - (1 << 8 - index.n_bits % 8)
        near, ball = index.search(queries, 5), index.radius(queries, 1)
        return near.ids.tolist(), near.distances.tolist(), ball.ids.tolist(), len(index)

    def case(self, draw: random.Random) -> bool:
        """Change the header or the rest, and make the checksum anew; or change a byte."""
        data, expected = draw.choice(self._made)
        if draw.random() < 0.15:
            self.path.write_bytes(changed_bytes(draw, data))
            assert self._answers() == expected
            return True
        length = struct.unpack("<I", data[12:16])[0]
        text, rest = data[48 : 48 + length], data[48 + length :]
        if draw.random() < 0.6:
            text = json_text(changed_json(draw, json.loads(text))).encode(errors="surrogatepass")
            text += b" " * (-(48 + len(text)) % 64)
        else:
            rest = changed_bytes(draw, rest)
        start = data[:8] + struct.pack("<II", draw.choice((1, 2, 2, 2)), len(text))
        digest = hashlib.sha256(start + text + rest).digest()
        self.path.write_bytes(start + digest + text + rest)
        self._answers()
        return True


class StoreFile(Target):
    """Files of SQLite stores."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._good = folder / "good.db"
        rng = np.random.default_rng(0)
        codes = rng.integers(0, 256, (60, 2), dtype=np.uint8)
        metadata = [{"label": int(i % 7), "text": f"item {i}"} for i in range(60)]
        with open_store(f"sqlite:///{self._good}", n_bits=16, model="m") as store:
            store.upsert(np.arange(60), codes, metadata)
            store.delete([3])
        with sqlite3.connect(self._good) as connection:
            self._header = json.loads(connection.execute("SELECT header FROM about").fetchone()[0])
        connection.close()
        shutil.copy(self._good, self.path)
        self._expected = self._answers()

    def _answers(self) -> Any:
        with open_store(f"sqlite:///{self.path}") as store:
            width = -(-store.n_bits // 8)
            zero = np.zeros((1, width), np.uint8)
            near, ball = store.search(zero, 5), store.radius(zero, 4, where={"label": 3})
            items = store.get(np.arange(60))
            said = near.ids.tolist(), ball.ids.tolist(), items.codes.tolist(), items.metadata
            store.upsert([100], zero, [{"new": 1}])
            store.delete([100])
            return said, store.count()

    def case(self, draw: random.Random) -> bool:
        """Change header, items or versions, and make the checksum anew; or change a byte."""
        for ending in ("-wal", "-shm"):  # of the case before
            Path(f"{self.path}{ending}").unlink(missing_ok=True)
        if draw.random() < 0.3:
            self.path.write_bytes(changed_bytes(draw, self._good.read_bytes()))
            assert self._answers() == self._expected
            return True
        shutil.copy(self._good, self.path)
        with sqlite3.connect(self.path) as connection:
            connection.execute("PRAGMA synchronous=OFF")
            self._forge(draw, connection)
        connection.close()
        self._answers()
        return True

    def _forge(self, draw: random.Random, connection: sqlite3.Connection) -> None:
        what = draw.choice(("header", "item", "item", "changes", "schema"))
        if what == "header":
            text = json_text(changed_json(draw, self._header)).encode(errors="surrogatepass")
            connection.execute(
                "UPDATE about SET header = CAST(? AS TEXT), checksum = ?", (text, crc32(text))
            )
        elif what == "item":
            number = draw.choice((0, 5, 59))
            code = draw.choice((b"", b"\0", b"\0\0", b"\xff" * 2, b"\0" * 3))
            text = json_text(changed_json(draw, {"label": 3, "a": {"b": [1]}}))
            data = text.encode(errors="surrogatepass")
            checksum = crc32(data, crc32(code, number))
            connection.execute(
                "UPDATE items SET code = ?, metadata = CAST(? AS TEXT), checksum = ? WHERE id = ?",
                (code, data, checksum, number),
            )
        elif what == "changes":
            numbers = (0, 1, -1, 2**62, 2**63 - 1, None, "x", b"x", 0.5)
            column = draw.choice(("version", "total", "ids"))
            try:
                connection.execute(
                    f"UPDATE OR REPLACE changes SET {column} = ?", (draw.choice(numbers),)
                )
            except sqlite3.Error:
                connection.execute("DELETE FROM changes")
        else:
            connection.execute(
                draw.choice(
                    (
                        "DROP TABLE changes",
                        "DELETE FROM about",
                        "INSERT INTO about SELECT * FROM about",
                        "ALTER TABLE items ADD COLUMN more TEXT",
                        "CREATE TABLE more (a)",
                        "CREATE TRIGGER t AFTER INSERT ON items BEGIN DELETE FROM items; END",
                        "CREATE INDEX i ON items (json_extract(metadata, '$.a'))",
                        "CREATE VIEW v AS SELECT * FROM items",
                        "PRAGMA application_id = 0",
                        "PRAGMA user_version = 99",
                    )
                )
            )


_RECORDS = [{"method": "LSH", "bits": 16, "seed": n, "map": 12.5, "more": [1]} for n in range(3)]


class Records(Target):
    """Records of benchmarks, JSON lines."""

    def case(self, draw: random.Random) -> bool:
        """Change a line, or a byte."""
        lines = [json_text(changed_json(draw, record)) for record in _RECORDS]
        data = "\n".join(lines).encode(errors="surrogatepass") + b"\n" * draw.randrange(2)
        self.path.write_bytes(changed_bytes(draw, data) if draw.random() < 0.5 else data)
        assert all(isinstance(record, dict) for record in read_records(self.path))
        return True


class Codes(Target):
    """Arrays of codes, .npy."""

    def case(self, draw: random.Random) -> bool:
        """Change the header of an array, or its bytes."""
        path = self.folder / "case.npy"
        header = {
            "descr": draw.choice(("|u1", "|u1", "<f4", "|O", "<U3", "|V2", "<M8[s]", "|b1", "x")),
            "fortran_order": draw.choice((False, False, True, 0, None)),
            "shape": draw.choice(((5, 2), (5, 2), (10,), (), (2**62, 0), (5, 10**9), (-1, 2), 5)),
        }
        if draw.random() < 0.1:
            header.popitem()
        text = (repr(header) + " " * 20 + "\n").encode()
        data = b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + bytes(range(10))
        path.write_bytes(changed_bytes(draw, data) if draw.random() < 0.5 else data)
        vectors = open_vectors(path, text_dtype=np.uint8)
        rows = np.asarray(vectors)
        assert rows.shape == vectors.shape
        for block in vectors.blocks(3):
            assert block.shape[1] == vectors.n_features
        try:
            check_codes(rows, 16)
        except (ValueError, TypeError):
            return False
        return True


_LINES = [{"id": n, "vector": [0.5, 1, -n], "name": "é", "more": {"a": [n]}} for n in range(4)]


class JsonLines(Target):
    """Vectors, ids and metadata, JSON lines."""

    def case(self, draw: random.Random) -> bool:
        """Change lines, or bytes."""
        path = self.folder / "case.jsonl"
        lines = [
            json_text(changed_json(draw, row) if draw.random() < 0.4 else row) for row in _LINES
        ]
        data = "\n".join(lines).encode(errors="surrogatepass")
        path.write_bytes(changed_bytes(draw, data) if draw.random() < 0.4 else data)
        return _read_all(path)


def _read_all(path: Path) -> bool:
    """Read vectors, ids and metadata of a file."""
    vectors = open_vectors(path, None if path.suffix == ".parquet" else "vector")
    n_rows = sum(len(block) for block in vectors.blocks(3))
    assert (n_rows, vectors.n_features) == vectors.shape
    try:
        check_ids(vectors.column("id"))
    except (ValueError, TypeError):  # of their values, not of the file
        return False
    assert len(list(vectors.records(["name", "more"]))) == n_rows
    return True


class Parquet(Target):
    """Vectors, ids and metadata, parquet."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import pyarrow as pa

        vectors = [[0.5, 1.0], [2.0, -1.0], [0.0, 3.0]]
        self._columns = {
            "vector": [
                pa.array(vectors, pa.list_(pa.float32(), 2)),
                pa.array(vectors, pa.list_(pa.float64())),
                pa.array(vectors, pa.large_list(pa.float16())),
                pa.array([[1.0], None, [2.0, 3.0]], pa.list_(pa.float32())),
                pa.array([[1.0, None], [2.0, 3.0], [1.0, 1.0]], pa.list_(pa.float32(), 2)),
                pa.array([["a", "b"]] * 3),
                pa.array([[[1.0]]] * 3),
                pa.array([b"ab", b"cd", b"ef"], pa.binary(2)),
                pa.array([1, 2, 3]),
                pa.nulls(3),
                pa.array([], pa.list_(pa.float32(), 2)),
                pa.array([{"a": 1}] * 3),
            ],
            "id": [
                pa.array([1, 2, 3]),
                pa.array([1, None, 3]),
                pa.array(["a", "b", "c"]),
                pa.array([1.5, 2.0, float("nan")]),
                pa.array([2**64 - 1, 0, 1], pa.uint64()),
                pa.array([1, 2, 3], pa.timestamp("ns")),
                pa.array(["a", "b", "a"]).dictionary_encode(),
                pa.array([b"x", b"y", b"z"]),
                pa.array([True, False, None]),
                pa.array([1, 2, 3]).cast(pa.decimal128(38, 2)),
                pa.array([[1], [2], [3]]),
            ],
        }
        self._columns["name"] = self._columns["more"] = [
            *self._columns["id"],
            *self._columns["vector"],
            pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
            pa.array([{"a": None}, {"a": [float("inf")]}, None]),
            pa.array([b"\xff", b"\x00", None], pa.large_binary()),
        ]

    def case(self, draw: random.Random) -> bool:
        """Write columns of any kinds, and sometimes change bytes."""
        import pyarrow as pa
        from pyarrow import parquet

        path = self.folder / "case.parquet"
        columns = {
            name: draw.choice(kinds[:2] if draw.random() < 0.5 else kinds)
            for name, kinds in self._columns.items()
            if draw.random() < 0.95
        }
        n = min((len(column) for column in columns.values()), default=0)
        table = pa.table({name: column[:n] for name, column in columns.items()})
        parquet.write_table(table, path, row_group_size=draw.choice((1, 2, 100)))
        if draw.random() < 0.5:
            path.write_bytes(changed_bytes(draw, path.read_bytes()))
        return _read_all(path)


_KEYS = (
    "# keys\nread  3k2aaaaaaaaaaaaaaaaa    # the web site\n\nwrite 9xQ#bbbbbbbbbbbbbbbb\n"
    "read ~~~~~~~~~~~~~~~~~~\n"
)


class KeyFile(Target):
    """Files of keys of a service."""

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
        """Keys are not told."""
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
    """Filters: what SQLite finds by them is what they mean."""

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
        """Change a filter, and use it."""
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
    """Addresses of stores: no secret is ever shown."""

    arguments = True

    def case(self, draw: random.Random) -> bool:
        """Change characters."""
        good = draw.choice(_URLS)
        self._url = url = changed_bytes(draw, good.encode()).decode(errors="replace")
        # What is to be hidden is known while what is before it is as it was.
        start = good.find(_SECRET)
        self._is_secret = (
            start >= 0 and url.startswith(good[: start + len(_SECRET)]) and url.count(_SECRET) == 1
        )
        address = parse_url(url)
        assert not self._shows(f"{address!r} {address.shown}"), url
        return True

    def refused(self, error: Exception) -> bool:
        """Secrets are not told."""
        return isinstance(error, ValueError) and not self._shows(str(error))

    def _shows(self, text: str) -> bool:
        return self._is_secret and _SECRET in text + shown_url(self._url)


TARGETS: dict[str, type[Target]] = {
    "model": Model,
    "checkpoint": Checkpoint,
    "index": Index,
    "store": StoreFile,
    "records": Records,
    "codes": Codes,
    "jsonlines": JsonLines,
    "parquet": Parquet,
    "keys": KeyFile,
    "where": Filters,
    "urls": Urls,
}

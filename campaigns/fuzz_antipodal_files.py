"""Fuzz targets that only antipodal writes: models, checkpoints, indexes, stores."""

import hashlib
import json
import random
import shutil
import sqlite3
import struct
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from antipodal import HammingIndex, Training, load, open_store
from antipodal.hashers.registry import built_in_hashers, make_hasher
from antipodal.io.model_file import read_model_file
from fuzz_targets import Target
from mutations import changed_array, changed_bytes, changed_json, json_text

ROWS = np.random.default_rng(0).standard_normal((60, 10)).astype(np.float32)
LABELS = np.arange(60) % 3
METHODS = (*built_in_hashers(), "LinfHash.asymmetric")
MANY_ROWS = np.random.default_rng(1).standard_normal((320, 10)).astype(np.float32)


def write_safetensors(path: Path, metadata: dict[str, str], arrays: dict[str, Any]) -> None:
    """Write arrays like `write_model_file`, with arbitrary metadata."""
    from safetensors.numpy import save

    from antipodal.io.model_file import _digest

    metadata = {**metadata, "sha256": _digest(metadata, arrays)}
    path.write_bytes(save(arrays, metadata))


class Model(Target):
    """Models of every hasher."""

    def __init__(self, folder: Path, methods: tuple[str, ...] = METHODS) -> None:
        super().__init__(folder)
        self._made = []
        for method in methods:
            networks = ("DeepLinf", "NNHash", "SparseHash", "OrthoHash", "CSQ")
            hasher = make_hasher(method, 8, seed=0)
            if method in networks:
                hasher.set_params(training=Training(n_epochs=1))
            if method == "LinfHash.asymmetric":
                hasher.fit(MANY_ROWS)  # enough for near rows
            else:
                hasher.fit(ROWS, LABELS)
            hasher.save(self.path)
            header, arrays = read_model_file(self.path, "hasher")
            self._made.append((header, arrays, self.path.read_bytes(), hasher.encode(ROWS)))

    def case(self, draw: random.Random) -> bool:
        """Change the metadata, the arrays or a byte of a file."""
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
    name = draw.choice(sorted(arrays))  # the order in a file varies between processes
    how = draw.random()
    if how < 0.1:
        del arrays[name]
    elif how < 0.2:
        arrays[draw.choice(("fit", "encode", "n_bits", "__class__", name + "_"))] = arrays[name]
    else:
        arrays[name] = np.ascontiguousarray(changed_array(draw, arrays[name]))
    return arrays


class Checkpoint(Target):
    """Training checkpoints."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from antipodal.paper.training import save_checkpoint
        from operations import training

        encoder, optimizer = training(0)
        history = {"loss": [2.0, 1.0], "validation_loss": [3.0, 2.0], "best_epoch": 1}
        save_checkpoint(self.path, "run", encoder, optimizer, history, encoder.state_dict())
        self._header, self._arrays = read_model_file(self.path, "checkpoint")
        self._good = self.path.read_bytes()

    def case(self, draw: random.Random) -> bool:
        """Change the metadata, the arrays or a byte of a file."""
        from antipodal.paper.training import restore_checkpoint
        from operations import training

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
        encoder, optimizer = training(1)
        history, best = restore_checkpoint(self.path, "run", encoder, optimizer)
        encoder.load_state_dict(best)
        optimizer.step()
        assert len(history["loss"]) >= history["best_epoch"]
        return True


class Index(Target):
    """Index files: with and without ids, with tables, approximate."""

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
        """Change the header or the data and recompute the checksum, or change a byte."""
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
    """SQLite store files."""

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
        """Change header, items or versions and recompute the checksum, or change a byte."""
        for ending in ("-wal", "-shm"):  # of the previous case
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

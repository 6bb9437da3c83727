"""Fuzz targets that users write: benchmark records, codes, JSON Lines, Parquet, Arrow bodies."""

import io
import random
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa

from antipodal.bench.records import read_records
from antipodal.codes import check_codes
from antipodal.io.vectors import open_vectors
from antipodal.service.bodies import ARROW, read_rows
from antipodal.service.limits import Limits
from antipodal.validation import check_ids
from fuzz_targets import Target
from mutations import changed_bytes, changed_json, json_text

_RECORDS = [{"method": "LSH", "bits": 16, "seed": n, "map": 12.5, "more": [1]} for n in range(3)]


class Records(Target):
    """Benchmark records, JSON Lines."""

    def case(self, draw: random.Random) -> bool:
        """Change a line or a byte."""
        lines = [json_text(changed_json(draw, record)) for record in _RECORDS]
        data = "\n".join(lines).encode(errors="surrogatepass") + b"\n" * draw.randrange(2)
        self.path.write_bytes(changed_bytes(draw, data) if draw.random() < 0.5 else data)
        assert all(isinstance(record, dict) for record in read_records(self.path))
        return True


class Codes(Target):
    """Arrays of codes, .npy."""

    def case(self, draw: random.Random) -> bool:
        """Change the header or the bytes of an array."""
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
    """Vectors, ids and metadata, JSON Lines."""

    def case(self, draw: random.Random) -> bool:
        """Change lines or bytes."""
        path = self.folder / "case.jsonl"
        lines = [
            json_text(changed_json(draw, row) if draw.random() < 0.4 else row) for row in _LINES
        ]
        data = "\n".join(lines).encode(errors="surrogatepass")
        path.write_bytes(changed_bytes(draw, data) if draw.random() < 0.4 else data)
        return _read_all(path)


def _read_all(path: Path) -> bool:
    """Read the vectors, ids and metadata of a file."""
    vectors = open_vectors(path, None if path.suffix == ".parquet" else "vector")
    n_rows = sum(len(block) for block in vectors.blocks(3))
    assert (n_rows, vectors.n_features) == vectors.shape
    try:
        check_ids(vectors.column("id"))
    except (ValueError, TypeError):  # an error of the values, not of the file
        return False
    assert len(list(vectors.records(["name", "more"]))) == n_rows
    return True


class Parquet(Target):
    """Vectors, ids and metadata, Parquet."""

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
        """Write columns of arbitrary types, and sometimes change bytes."""
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


class ArrowBody(Target):
    """Vectors in the body of a request, an Arrow stream."""

    arguments = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        table = pa.table({"vector": pa.array([[1.0, 2.0]] * 5, pa.list_(pa.float32()))})
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
        self.body = sink.getvalue()

    def case(self, draw: random.Random) -> bool:
        """Change bytes, mostly to small numbers: types and offsets."""
        body = self.body
        for _ in range(draw.choice((1, 1, 2, 4))):
            if draw.random() < 0.3:
                body = changed_bytes(draw, body)
            elif body:
                place = draw.randrange(len(body))
                body = body[:place] + bytes([draw.randrange(16)]) + body[place + 1 :]
        assert read_rows(ARROW, body, 2, Limits()).shape[1] == 2
        return True

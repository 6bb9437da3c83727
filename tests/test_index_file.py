"""Index files: round trips, damaged files, and crash safety."""

import hashlib
import json
import os
import signal
import struct
import tracemalloc

import numpy as np
import pytest

from antipodal.codes import pack
from antipodal.errors import AntipodalError, IndexFileError
from antipodal.index import HammingIndex, index_file, radius_tables
from antipodal.index.approximate import ApproximateEngine
from antipodal.index.radius_tables import BandTables
from processes import lines_of, start_program


def make_index(n_bits=20, n_items=7, gaps=True, engine="flat"):
    rng = np.random.default_rng(n_bits)
    index = HammingIndex(n_bits, engine=engine)
    ids = rng.permutation(2 * n_items)[:n_items] if gaps else None
    index.add(pack(rng.random((n_items, n_bits)) < 0.5), ids)
    return index


def check_same(index, other):
    assert (index.n_bits, index.engine, len(index)) == (other.n_bits, other.engine, len(other))
    np.testing.assert_array_equal(index.ids, other.ids)
    np.testing.assert_array_equal(index.codes(index.ids), other.codes(other.ids))


@pytest.mark.parametrize("n_bits", [1, 20, 64, 70, 256])
@pytest.mark.parametrize("n_items", [0, 1, 7])
@pytest.mark.parametrize("gaps", [True, False])
def test_load_restores_a_saved_index(tmp_path, n_bits, n_items, gaps):
    index = make_index(n_bits, n_items, gaps)
    index.save(tmp_path / "index")
    loaded = HammingIndex.load(tmp_path / "index")
    check_same(loaded, index)
    queries = pack(np.random.default_rng(1).random((3, n_bits)) < 0.5)
    np.testing.assert_array_equal(loaded.search(queries, 3).ids, index.search(queries, 3).ids)
    np.testing.assert_array_equal(loaded.radius(queries, 9).ids, index.radius(queries, 9).ids)


def test_a_loaded_index_has_its_engine_and_is_memory_mapped(tmp_path):
    index = make_index(64, 50, gaps=True, engine="hnsw")
    index.save(tmp_path / "index")
    loaded = HammingIndex.load(tmp_path / "index")
    check_same(loaded, index)
    for array in (loaded._segments.main.rows, loaded._segments.main.id_column.rows):
        assert not array.flags.owndata
        assert not array.flags.writeable


def test_changes_after_loading_do_not_change_the_file(tmp_path):
    index = make_index()
    index.save(tmp_path / "index")
    before = (tmp_path / "index").read_bytes()
    loaded = HammingIndex.load(tmp_path / "index")
    loaded.add(index.codes(index.ids))
    loaded.remove(index.ids[:3])
    assert len(loaded) == 11
    assert (tmp_path / "index").read_bytes() == before
    loaded.save(tmp_path / "index")  # over the file it is mapped from
    check_same(HammingIndex.load(tmp_path / "index"), loaded)


def test_an_open_index_is_not_affected_by_replacing_its_file(tmp_path):
    first, second = make_index(64, 2_000, gaps=False), make_index(64, 10, gaps=False)
    first.save(tmp_path / "index")
    loaded = HammingIndex.load(tmp_path / "index")
    second.save(tmp_path / "index")
    check_same(loaded, first)
    (tmp_path / "index").unlink()
    queries = first.codes([5, 1999])
    assert loaded.search(queries, 1).ids.tolist() == [[5], [1999]]


@pytest.mark.parametrize("gaps", [True, False])
def test_one_flipped_byte_anywhere_is_rejected(tmp_path, gaps):
    path = tmp_path / "index"
    make_index(20, 3, gaps).save(path)
    good = path.read_bytes()
    for position in range(len(good)):
        for flip in (0x01, 0x80, 0xFF):
            bad = bytearray(good)
            bad[position] ^= flip
            path.write_bytes(bad)
            with pytest.raises(IndexFileError, match=str(path)):
                HammingIndex.load(path)


def test_a_file_of_any_other_length_is_rejected(tmp_path):
    path = tmp_path / "index"
    make_index(20, 3).save(path)
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(IndexFileError, match=str(path)):
            HammingIndex.load(path)
    path.write_bytes(good + b"\0")
    with pytest.raises(IndexFileError, match="checksum"):
        HammingIndex.load(path)


def test_other_files_are_rejected(tmp_path):
    path = tmp_path / "index"
    with pytest.raises(IndexFileError, match="No such file"):
        HammingIndex.load(path)
    with pytest.raises(IndexFileError, match="directory"):
        HammingIndex.load(tmp_path)
    path.write_bytes(b"PK\3\4" + bytes(200))
    with pytest.raises(IndexFileError, match=str(path)):
        HammingIndex.load(path)
    make_index().save(path)
    data = bytearray(path.read_bytes())
    data[8:12] = struct.pack("<I", 4)
    path.write_bytes(data)
    with pytest.raises(IndexFileError, match=r"\b4\b.*\b1\b.*\b3\b"):
        HammingIndex.load(path)


def write_file(path, header, body, version=1):
    """Write any header and body with a valid checksum."""
    header += b" " * (-(48 + len(header)) % 64)
    start = struct.pack("<8sII", b"antipidx", version, len(header))
    digest = hashlib.sha256(start + header + body).digest()
    path.write_bytes(start + digest + header + body)


VALID_HEADER = {"n_bits": 20, "engine": "flat", "n_items": 3, "first_id": 0, "engine_bytes": 0}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"n_items": 9},
        {"n_items": -1},
        {"n_items": True},
        {"n_bits": 0},
        {"n_bits": 20.0},
        {"n_bits": "20"},
        {"first_id": 1.5},
        {"first_id": 2**63},
        {"first_id": None},
        {"engine": "other"},
        {"engine": []},
        {"engine_bytes": 7},
        {"engine_bytes": -8},
        {"unknown": 1},
        {"model": 5},
        {"bands": 3},
        {"bands": -1},
        {"bands": 1.0},
        {"features": 1},
        {"features": -1},
        {"features": 1.0},
    ],
)
def test_an_invalid_header_with_a_valid_checksum_is_rejected(tmp_path, change):
    path = tmp_path / "index"
    body = bytes(16)  # three rows of 4 bytes, padded to a multiple of 8
    for version in (1, 2, 3):
        write_file(path, json.dumps(VALID_HEADER | change).encode(), body, version)
        if not change:
            loaded = HammingIndex.load(path)
            assert (len(loaded), loaded.model) == (3, None)
    if not change:
        return
    with pytest.raises(IndexFileError, match=str(path)):
        HammingIndex.load(path)


@pytest.mark.parametrize("header", [b"not JSON", b"\xff\xfe", b"[]", b"{}", b"[" * 100_000])
def test_a_header_that_is_not_a_json_object_is_rejected(tmp_path, header):
    write_file(tmp_path / "index", header, bytes(16))
    with pytest.raises(IndexFileError, match="index"):
        HammingIndex.load(tmp_path / "index")


@pytest.mark.parametrize("ids", [[3, 2, 1], [1, 1, 2]])
def test_ids_out_of_order_with_a_valid_checksum_are_rejected(tmp_path, ids):
    body = bytes(16) + struct.pack("<3q", *ids)
    write_file(tmp_path / "index", json.dumps(VALID_HEADER | {"first_id": None}).encode(), body)
    with pytest.raises(IndexFileError, match="order"):
        HammingIndex.load(tmp_path / "index")


@pytest.mark.parametrize("engine", ["ivf", "hnsw"])
def test_an_approximate_engine_is_saved(tmp_path, monkeypatch, engine):
    index = make_index(64, 12_000, gaps=True, engine=engine)
    index.save(tmp_path / "index")
    queries = index.codes(index.ids[::1000])
    found = index.search(queries, 10)
    with monkeypatch.context() as patch:
        patch.setattr(ApproximateEngine, "_new_index", lambda *_: pytest.fail("rebuilt"))
        loaded = HammingIndex.load(tmp_path / "index")
        again = loaded.search(queries, 10)
        np.testing.assert_array_equal(again.ids, found.ids)
        np.testing.assert_array_equal(again.distances, found.distances)
        loaded.add(queries)  # appended, hence added to the engine
        assert loaded.search(queries, 1).distances.tolist() == [[0]] * 12
        assert loaded.recall(queries, 2) > 0.9
    loaded = HammingIndex.load(tmp_path / "index")
    loaded.remove(index.ids[::1000])  # before the engine was used
    assert not np.isin(loaded.search(queries, 10).ids, index.ids[::1000]).any()


def test_a_save_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "index"
    old = make_index(20, 5)
    old.save(path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AntipodalError, match="No space left"):
        make_index(64, 500).save(path)
    monkeypatch.undo()
    check_same(HammingIndex.load(path), old)
    assert list(tmp_path.iterdir()) == [path]


def test_a_save_that_is_killed_leaves_the_old_file(tmp_path):
    path = tmp_path / "index"
    old = make_index(20, 5)
    old.save(path)
    program = """
import os, signal, sys, numpy as np
from antipodal.index import HammingIndex
index = HammingIndex(64)
index.add(np.zeros((10_000, 8), np.uint8))
def wait(handle):  # everything is written, but not renamed yet
    print("written", flush=True)
    signal.pause()
os.fsync = wait
index.save(sys.argv[1])
"""
    process = start_program(program, path, files=[tmp_path / "printed"])
    assert lines_of(tmp_path / "printed", 1) == ["written"]
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    check_same(HammingIndex.load(path), old)


def test_opening_a_million_codes_copies_nothing(tmp_path):
    index = HammingIndex(64)
    index.add(np.random.default_rng(0).integers(0, 256, (1_000_000, 8), dtype=np.uint8))
    index.save(tmp_path / "index")
    tracemalloc.start()
    try:
        assert len(HammingIndex.load(tmp_path / "index")) == 1_000_000
        assert tracemalloc.get_traced_memory()[1] < 100_000  # the file has 8 MB
    finally:
        tracemalloc.stop()


def test_the_written_layout_is_the_documented_one(tmp_path):
    index = HammingIndex(20)
    index.add(pack(np.eye(3, 20, dtype=bool)), [5, 1, 9])
    index.save(tmp_path / "index")
    data = (tmp_path / "index").read_bytes()
    magic, version, length = struct.unpack("<8sII", data[:16])
    assert (magic, version) == (b"antipidx", index_file.FORMAT_VERSION - 1)
    assert data[16:48] == hashlib.sha256(data[:16] + data[48:]).digest()
    assert json.loads(data[48 : 48 + length]) == {
        "n_bits": 20, "engine": "flat", "n_items": 3, "first_id": None, "engine_bytes": 0,
        "model": None, "bands": 0,
    }  # fmt: skip
    assert (48 + length) % 64 == 0
    body = data[48 + length :]
    assert body[:12] == bytes([64, 0, 0, 0, 128, 0, 0, 0, 32, 0, 0, 0])
    assert struct.unpack("<3q", body[16:]) == (1, 5, 9)


@pytest.mark.parametrize("gaps", [True, False])
def test_prepared_tables_are_saved_and_memory_mapped(tmp_path, monkeypatch, gaps):
    index = make_index(64, 5_000, gaps)
    index.prepare(radius=2)
    index.remove(index.ids[:7])
    index.save(tmp_path / "index")
    queries = index.codes(index.ids[::100]) ^ np.uint8(1 << 6)
    monkeypatch.setattr(BandTables, "_fill", lambda *_: pytest.fail("rebuilt"))
    loaded = HammingIndex.load(tmp_path / "index")
    check_same(loaded, index)
    assert loaded.nbytes == index.nbytes
    for array in loaded._tables._cached[1].arrays:
        assert not array.flags.owndata
    monkeypatch.setattr(radius_tables, "within", lambda *_: pytest.fail("scanned"))
    for part in (queries, queries[:1]):
        found, expected = loaded.radius(part, 2), index.radius(part, 2)
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.distances, expected.distances)
        np.testing.assert_array_equal(found.offsets, expected.offsets)


def test_an_index_of_one_model_is_not_loaded_for_another(tmp_path):
    index = HammingIndex(64, model="3f9c")
    index.add(np.zeros((3, 8), np.uint8))
    index.save(tmp_path / "index")
    for model in ("3f9c", None):
        loaded = HammingIndex.load(tmp_path / "index", model=model)
        assert loaded.model == "3f9c"
    loaded.save(tmp_path / "copy")
    with pytest.raises(IndexFileError, match=r"'3f9c'.*'77aa'"):
        HammingIndex.load(tmp_path / "copy", model="77aa")
    make_index().save(tmp_path / "index")
    with pytest.raises(IndexFileError, match="model"):
        HammingIndex.load(tmp_path / "index", model="77aa")

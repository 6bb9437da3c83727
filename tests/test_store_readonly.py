"""Read-only SQLite stores: searched and served, but not written."""

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from antipodal import LSH, open_store
from antipodal.errors import StoreError
from antipodal.io.model_file import model_identity
from antipodal.service.engine import Engine
from antipodal.service.schemas import SearchRequest, UpsertRequest

CODES = np.array([[0], [3], [255]], np.uint8)
ZERO = np.zeros((1, 1), np.uint8)


@contextmanager
def without_rights():
    """Run as user nobody, since permissions do not apply to root."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def folder():
    # Not tmp_path, which user nobody cannot read.
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    with open_store(f"sqlite:///{path}/warm.db", n_bits=8) as store:
        store.search(ZERO, 1)  # do lazy imports as root
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


def make(folder):
    url = f"sqlite:///{folder}/codes.db"
    with open_store(url, n_bits=8) as store:
        store.upsert([1, 2, 3], CODES, [{"a": 1}, {}, {}])
    return url


def assert_readable_only(url, n_items=3):
    with open_store(url, n_bits=8) as store:
        assert store.count() == n_items
        assert store.search(ZERO, 2).ids.tolist() == [[1, 2]]
        assert store.search(ZERO, 2, where={"a": 1}).ids.tolist() == [[1]]
        assert store.get([3]).codes.tolist() == [[255]]
        for write in (
            lambda: store.upsert([9], ZERO),
            lambda: store.add(ZERO),
            lambda: store.delete([1]),
        ):
            with pytest.raises(StoreError, match=r"codes\.db\b.*\bread-only\b"):
                write()
        assert store.count() == n_items


@pytest.mark.parametrize(
    ("file", "parent"), [(0o444, 0o555), (0o444, 0o777), (0o666, 0o555)], ids=oct
)
def test_files_and_folders_without_write_permission_can_be_read(folder, file, parent):
    url = make(folder)
    (folder / "codes.db").chmod(file)
    folder.chmod(parent)
    with without_rights():
        assert_readable_only(url)
    folder.chmod(0o755)
    (folder / "codes.db").chmod(0o644)
    with open_store(url) as store:  # still intact
        store.upsert([4], ZERO)
        assert store.count() == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write where others cannot")
def test_a_read_only_reader_sees_writes_of_others(folder):
    url = make(folder)
    with without_rights():
        reader = open_store(url)
        assert reader.count() == 3  # without a log
    with open_store(url) as writer:
        writer.upsert([4], ZERO)
        with without_rights():
            assert reader.count() == 4  # with the log of the writer
        writer.delete([1, 2])
        with without_rights():
            assert reader.search(ZERO, 1).ids.tolist() == [[4]]
    with without_rights():
        assert reader.count() == 2
        reader.close()


def test_a_file_changed_during_a_read_raises(folder, monkeypatch):
    url = make(folder)
    (folder / "codes.db").chmod(0o444)
    folder.chmod(0o555)
    with without_rights(), open_store(url) as store:
        stamps = iter([0, 1])
        monkeypatch.setattr(store._file, "_stamp", lambda: (next(stamps, 2), 0, 0))
        with pytest.raises(StoreError, match=r"codes\.db"):
            store.count()
        assert store.count() == 3


def test_a_log_without_write_permission_raises(folder):
    url = make(folder)
    (folder / "codes.db-wal").write_bytes(b"log")
    folder.chmod(0o555)
    with without_rights(), pytest.raises(StoreError, match="-wal"):
        open_store(url)


def test_an_empty_or_foreign_file_raises(folder):
    (folder / "codes.db").write_bytes(b"")
    (folder / "other.db").write_bytes(b"no store" * 100)
    folder.chmod(0o555)
    with without_rights():
        for name in ("codes", "other"):
            with pytest.raises(StoreError, match=rf"{name}\.db"):
                open_store(f"sqlite:///{folder}/{name}.db", n_bits=8)


def test_a_read_only_store_can_be_served(folder):
    X = np.random.default_rng(0).standard_normal((30, 5)).astype(np.float32)
    hasher = LSH(8, random_state=0).fit(X)
    hasher.save(folder / "model")
    url = f"sqlite:///{folder}/codes.db"
    with open_store(url, n_bits=8, model=model_identity(folder / "model")) as store:
        store.upsert(range(30), hasher.encode(X))
    request = SearchRequest(vector=X[3].tolist(), k=30)
    expected = Engine.open(url, folder / "model").search(request)
    (folder / "codes.db").chmod(0o444)
    folder.chmod(0o555)
    with without_rights():
        engine = Engine.open(url, folder / "model")
        assert engine.search(request) == expected
        with pytest.raises(StoreError, match="read-only"):
            engine.upsert(UpsertRequest(items=[{"id": 1, "code": "00"}]))
        engine.store.close()

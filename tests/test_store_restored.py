"""SQLite stores whose file is restored, replaced or removed while open."""

import json
import os
import shutil
import sqlite3
import threading
from zlib import crc32

import numpy as np
import pytest

from antipodal.errors import StoreError
from antipodal.stores import open_store

ZERO = np.zeros((1, 1), np.uint8)
ONES = np.full((1, 1), 255, np.uint8)


def call_in_thread(call):
    """Return the result of a call in a thread, and fail if it hangs."""
    results = []

    def run():
        try:
            results.append((call(), None))
        except StoreError as error:
            results.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(600)
    assert results, "the call has not returned"
    result, error = results[0]
    if error is not None:
        raise error
    return result


def copy_database(source, target):
    """Copy a database with SQLite into a file that may be open."""
    with sqlite3.connect(source) as old, sqlite3.connect(target) as new:
        old.backup(new)
    old.close()
    new.close()


def nearest(store, k=10):
    return call_in_thread(lambda: store.search(ZERO, k)).ids[0].tolist()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "codes.db"


@pytest.fixture
def store(path, tmp_path):
    """Open a store at version 2, with a copy of its version 1 in backup.db."""
    with open_store(f"sqlite:///{path}", n_bits=8) as store:
        store.upsert([1], ZERO)
        copy_database(path, tmp_path / "backup.db")
        store.upsert([2], ZERO)
        assert nearest(store) == [1, 2]
        yield store


def test_a_restored_state_is_searched(store, path, tmp_path):
    copy_database(tmp_path / "backup.db", path)
    assert nearest(store) == [1]
    assert call_in_thread(store.count) == 1
    store.upsert([3], ZERO)
    assert nearest(store) == [1, 3]


def test_new_writes_after_a_restore_are_not_confused_with_lost_ones(store, path, tmp_path):
    store.upsert([7], ZERO)
    assert nearest(store) == [1, 2, 7]
    assert call_in_thread(lambda: store.count({"a": {"exists": True}})) == 0
    copy_database(tmp_path / "backup.db", path)
    with open_store(f"sqlite:///{path}") as other:
        other.upsert([8], ZERO, [{"a": 1}])
        other.upsert([9], ONES, [{"a": 1}])
    assert nearest(store) == [1, 8, 9]
    assert call_in_thread(lambda: store.count({"a": {"exists": True}})) == 2
    # More writes than were lost, with a filter cached before the restore.
    copy_database(tmp_path / "backup.db", path)
    with open_store(f"sqlite:///{path}") as other:
        for number in range(20, 26):
            other.upsert([number], ZERO)
    assert nearest(store) == [1, *range(20, 26)]
    assert call_in_thread(lambda: store.count({"a": {"exists": True}})) == 0


def test_an_index_is_not_updated_from_a_lost_version(path, tmp_path):
    """A reader must not apply the change log of a restored file to its index."""
    with open_store(f"sqlite:///{path}", n_bits=8) as store:
        store.upsert(np.arange(100), np.zeros((100, 1), np.uint8))
        copy_database(path, tmp_path / "backup.db")
        store.upsert([200], ZERO)
        assert nearest(store, 200) == [*range(100), 200]
        copy_database(tmp_path / "backup.db", path)
        with open_store(f"sqlite:///{path}") as other:
            for number in range(300, 320):  # to a version after the lost one
                other.upsert([number], ZERO)
        assert nearest(store, 200) == [*range(100), *range(300, 320)]


def test_a_replaced_file_is_read_and_the_next_write_raises(store, path, tmp_path):
    os.replace(tmp_path / "backup.db", path)
    with pytest.raises(StoreError, match=r"codes\.db"):
        call_in_thread(lambda: store.upsert([3], ZERO))
    assert nearest(store) == [1]
    store.upsert([4], ZERO)  # into the new file
    assert nearest(store) == [1, 4]
    with open_store(f"sqlite:///{path}") as other:
        assert nearest(other) == [1, 4]


def test_the_log_of_a_replaced_file_stays_with_it(store, path, tmp_path):
    os.rename(path, tmp_path / "before.db")  # with its last writes in the log, codes.db-wal
    shutil.copy(tmp_path / "backup.db", path)
    assert nearest(store) == [1]
    store.upsert([5], ZERO)
    with open_store(f"sqlite:///{tmp_path}/before.db") as before:
        assert nearest(before) == [1, 2]
    with open_store(f"sqlite:///{path}") as other:
        assert nearest(other) == [1, 5]


def test_another_store_at_the_path_is_read_but_not_written(store, path, tmp_path):
    for move in (os.replace, copy_database):
        with open_store(f"sqlite:///{tmp_path}/other.db", n_bits=8) as other:
            other.upsert([50], ZERO)
            other.upsert([51], ZERO)
        move(tmp_path / "other.db", path)
        assert nearest(store) == [50, 51]
        for _ in range(2):
            with pytest.raises(StoreError, match=r"codes\.db"):
                call_in_thread(lambda: store.upsert([3], ZERO))
        with open_store(f"sqlite:///{path}") as other:
            assert call_in_thread(other.count) == 2


def test_another_store_with_another_code_length_raises(store, path, tmp_path):
    with open_store(f"sqlite:///{tmp_path}/other.db", n_bits=16) as other:
        other.upsert([50], np.zeros((1, 2), np.uint8))
    copy_database(tmp_path / "other.db", path)
    for call in (lambda: store.search(ZERO, 1), lambda: store.get([50]), store.count):
        with pytest.raises(StoreError, match=r"\b16 bits\b"):
            call_in_thread(call)
    with pytest.raises(StoreError, match=r"codes\.db"):
        store.upsert([3], ZERO)


def test_a_deleted_file_is_neither_read_nor_written(store, path):
    path.unlink()
    for call in (lambda: store.upsert([3], ZERO), lambda: store.search(ZERO, 1), store.count):
        with pytest.raises(StoreError, match=r"codes\.db"):
            call_in_thread(call)
    assert not path.exists()


def test_replacing_the_file_during_a_write_raises(store, path, tmp_path, monkeypatch):
    record_change = store._tables.record_change

    def replace_after(connection, ids):
        record_change(connection, ids)
        os.replace(tmp_path / "backup.db", path)

    monkeypatch.setattr(store._tables, "record_change", replace_after)
    with pytest.raises(StoreError, match=r"codes\.db"):
        call_in_thread(lambda: store.upsert([3], ZERO))
    monkeypatch.undo()
    assert nearest(store) == [1]


def test_a_store_without_identity_can_be_read_and_written(store, path):
    """Versions up to 0.3 created such stores: versions count from 0."""
    header = json.dumps({"format": 1, "n_bits": 8, "model": None})
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE about SET header = ?, checksum = ?", (header, crc32(header.encode()))
        )
        connection.execute("DELETE FROM changes")
        connection.execute("INSERT INTO changes VALUES (0, 0, x'')")
        connection.execute("INSERT INTO changes VALUES (1, 1, ?)", (np.int64(1).tobytes(),))
    connection.close()
    with open_store(f"sqlite:///{path}", n_bits=8) as old:
        assert nearest(old) == [1, 2]
        old.upsert([3], ZERO)
        assert nearest(old) == [1, 2, 3]

"""A SQLite store whose file is restored, replaced or removed while it is open."""

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


def at_once(call):
    """Return what a call returns, and fail if it hangs: it runs in a thread of its own."""
    answers = []

    def run():
        try:
            answers.append((call(), None))
        except StoreError as error:
            answers.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(600)
    assert answers, "the call has not returned"
    answer, error = answers[0]
    if error is not None:
        raise error
    return answer


def copy_database(source, target):
    """Copy a database as SQLite does it, into a file that others may have open."""
    with sqlite3.connect(source) as old, sqlite3.connect(target) as new:
        old.backup(new)
    old.close()
    new.close()


def nearest(store, k=10):
    return at_once(lambda: store.search(ZERO, k)).ids[0].tolist()


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


def test_an_older_state_that_is_restored_is_what_is_searched(store, path, tmp_path):
    copy_database(tmp_path / "backup.db", path)
    assert nearest(store) == [1]
    assert at_once(store.count) == 1
    store.upsert([3], ZERO)
    assert nearest(store) == [1, 3]


def test_as_many_writes_as_were_lost_are_not_taken_for_the_lost_ones(store, path, tmp_path):
    store.upsert([7], ZERO)
    assert nearest(store) == [1, 2, 7]
    assert at_once(lambda: store.count({"a": {"exists": True}})) == 0
    copy_database(tmp_path / "backup.db", path)
    with open_store(f"sqlite:///{path}") as other:
        other.upsert([8], ZERO, [{"a": 1}])
        other.upsert([9], ONES, [{"a": 1}])
    assert nearest(store) == [1, 8, 9]
    assert at_once(lambda: store.count({"a": {"exists": True}})) == 2
    # More writes than were lost, and the filter that was remembered is of before.
    copy_database(tmp_path / "backup.db", path)
    with open_store(f"sqlite:///{path}") as other:
        for number in range(20, 26):
            other.upsert([number], ZERO)
    assert nearest(store) == [1, *range(20, 26)]
    assert at_once(lambda: store.count({"a": {"exists": True}})) == 0


def test_a_large_store_does_not_go_on_from_a_version_that_is_gone(path, tmp_path):
    """Where few items have changed, only these are read again: not after a restore."""
    with open_store(f"sqlite:///{path}", n_bits=8) as store:
        store.upsert(np.arange(100), np.zeros((100, 1), np.uint8))
        copy_database(path, tmp_path / "backup.db")
        store.upsert([200], ZERO)
        assert nearest(store, 200) == [*range(100), 200]
        copy_database(tmp_path / "backup.db", path)
        with open_store(f"sqlite:///{path}") as other:
            for number in range(300, 320):  # to a version after the one that is gone
                other.upsert([number], ZERO)
        assert nearest(store, 200) == [*range(100), *range(300, 320)]


def test_a_file_moved_into_place_is_read_and_not_written_unawares(store, path, tmp_path):
    os.replace(tmp_path / "backup.db", path)
    with pytest.raises(StoreError, match=r"codes\.db"):
        at_once(lambda: store.upsert([3], ZERO))
    assert nearest(store) == [1]
    store.upsert([4], ZERO)  # into the file that is there
    assert nearest(store) == [1, 4]
    with open_store(f"sqlite:///{path}") as other:
        assert nearest(other) == [1, 4]


def test_the_log_of_the_file_before_stays_with_that_file(store, path, tmp_path):
    os.rename(path, tmp_path / "before.db")  # with its last writes in the log, codes.db-wal
    shutil.copy(tmp_path / "backup.db", path)
    assert nearest(store) == [1]
    store.upsert([5], ZERO)
    with open_store(f"sqlite:///{tmp_path}/before.db") as before:
        assert nearest(before) == [1, 2]
    with open_store(f"sqlite:///{path}") as other:
        assert nearest(other) == [1, 5]


def test_another_store_in_its_place_is_read_but_not_written(store, path, tmp_path):
    for move in (os.replace, copy_database):
        with open_store(f"sqlite:///{tmp_path}/other.db", n_bits=8) as other:
            other.upsert([50], ZERO)
            other.upsert([51], ZERO)
        move(tmp_path / "other.db", path)
        assert nearest(store) == [50, 51]
        for _ in range(2):
            with pytest.raises(StoreError, match=r"codes\.db"):
                at_once(lambda: store.upsert([3], ZERO))
        with open_store(f"sqlite:///{path}") as other:
            assert at_once(other.count) == 2


def test_codes_of_another_length_in_its_place_are_refused(store, path, tmp_path):
    with open_store(f"sqlite:///{tmp_path}/other.db", n_bits=16) as other:
        other.upsert([50], np.zeros((1, 2), np.uint8))
    copy_database(tmp_path / "other.db", path)
    for call in (lambda: store.search(ZERO, 1), lambda: store.get([50]), store.count):
        with pytest.raises(StoreError, match=r"\b16 bits\b"):
            at_once(call)
    with pytest.raises(StoreError, match=r"codes\.db"):
        store.upsert([3], ZERO)


def test_a_file_that_is_gone_is_neither_read_nor_written(store, path):
    path.unlink()
    for call in (lambda: store.upsert([3], ZERO), lambda: store.search(ZERO, 1), store.count):
        with pytest.raises(StoreError, match=r"codes\.db"):
            at_once(call)
    assert not path.exists()


def test_a_file_replaced_during_a_write_is_no_success(store, path, tmp_path, monkeypatch):
    record_change = store._tables.record_change

    def replace_after(connection, ids):
        record_change(connection, ids)
        os.replace(tmp_path / "backup.db", path)

    monkeypatch.setattr(store._tables, "record_change", replace_after)
    with pytest.raises(StoreError, match=r"codes\.db"):
        at_once(lambda: store.upsert([3], ZERO))
    monkeypatch.undo()
    assert nearest(store) == [1]


def test_a_store_without_identity_is_read_and_written_as_before(store, path):
    """As versions up to 0.3 made them: versions count from 0, and there is no identity."""
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

"""SQLite stores: kill -9, concurrent processes and threads, damaged files."""

import itertools
import os
import random
import shutil
import sqlite3
import threading
import time

import numpy as np
import pytest

from antipodal.errors import StoreError
from antipodal.stores import open_store, sqlite, sqlite_file
from effort import rounds
from kills import kill_milvus, kill_postgresql, kill_sqlite
from processes import processes

HANG = 600  # seconds that only a hang exceeds


def codes_of(batch, n):
    """Return n codes that encode the batch number."""
    return np.tile(np.frombuffer(int(batch).to_bytes(4, "big"), np.uint8), (n, 1))


@pytest.mark.parametrize(
    ("kill", "n_kills"), [(kill_sqlite, 15), (kill_postgresql, 4), (kill_milvus, 3)]
)
def test_kill_9_loses_no_acknowledged_write_and_leaves_no_partial_one(kill, n_kills):
    found = kill(n_kills, seed=0)
    assert not found["failures"]
    # Some kills interrupt a creation. The first store is killed after some acknowledgements.
    assert found["kills after an acknowledgement"] >= max(1, n_kills // 3)


# ------------------------------------------------------------------------ other processes


def write_some(url, numbers, started):
    started.wait(HANG)
    with open_store(url, n_bits=8) as store:
        for number in numbers:
            store.upsert([number], np.array([[number % 256]], np.uint8), [{"number": number}])


@pytest.mark.parametrize("n_items", [300, 6, 7, 8, 9])
def test_concurrent_processes_create_and_write_a_store_without_losses(tmp_path, n_items):
    url = f"sqlite:///{tmp_path}/codes.db?timeout={HANG}"
    started = processes.Barrier(3)
    writers = [
        processes.Process(target=write_some, args=(url, range(first, n_items, 3), started))
        for first in range(3)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    with open_store(url) as store:
        items = store.get(np.arange(n_items))
    assert [fields["number"] for fields in items.metadata] == list(range(n_items))


def test_a_blocked_writer_times_out(tmp_path):
    url = f"sqlite:///{tmp_path}/codes.db?timeout=0.2"
    with open_store(url, n_bits=8) as store:
        store.upsert([1], np.zeros((1, 1), np.uint8))
        other = sqlite3.connect(tmp_path / "codes.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with pytest.raises(StoreError, match=r"codes\.db.*\bprocess\b"):
            store.upsert([2], np.zeros((1, 1), np.uint8))
        with pytest.raises(StoreError, match=r"codes\.db.*\bprocess\b"):
            store.delete([1])
        assert time.monotonic() - began >= 0.4
        assert store.count() == 1  # readers do not wait
        other.execute("COMMIT")
        other.close()
        store.upsert([2], np.zeros((1, 1), np.uint8))
        assert store.count() == 2


def test_a_reader_sees_writes_of_others_without_rebuilding_its_index(tmp_path, monkeypatch):
    rebuilt = []
    check_pages = sqlite.SqliteFile.check_pages
    monkeypatch.setattr(
        sqlite.SqliteFile, "check_pages", lambda *a: rebuilt.append(1) or check_pages(*a)
    )
    url = f"sqlite:///{tmp_path}/codes.db"
    query = np.zeros((1, 1), np.uint8)
    with open_store(url, n_bits=8) as reader, open_store(url, n_bits=8) as writer:
        writer.upsert(np.arange(100), np.full((100, 1), 255, np.uint8), [{"old": True}] * 100)
        assert reader.search(query, 1).ids.tolist() == [[0]]
        assert rebuilt == [1]
        writer.upsert([50, 200], np.zeros((2, 1), np.uint8))
        assert reader.search(query, 2).ids.tolist() == [[50, 200]]
        assert reader.count({"old": True}) == 99
        writer.delete([50, 51, 999])
        assert reader.search(query, 2).ids.tolist() == [[200, 0]]
        assert reader.count() == 99
        assert reader.count({"old": True}) == 98
        assert rebuilt == [1]
        writer.upsert(np.arange(90), np.zeros((90, 1), np.uint8))  # rebuilding is cheaper now
        assert reader.count({"old": True}) == 10
        assert rebuilt == [1, 1]


@pytest.mark.parametrize(("versions", "ids"), [(5, 10**6), (10**6, 5)])
def test_a_reader_behind_the_change_log_rebuilds_its_index(tmp_path, monkeypatch, versions, ids):
    monkeypatch.setattr(sqlite_file, "_KEPT_VERSIONS", versions)
    monkeypatch.setattr(sqlite_file, "_KEPT_IDS", ids)
    url = f"sqlite:///{tmp_path}/codes.db"
    with open_store(url, n_bits=8) as reader, open_store(url, n_bits=8) as writer:
        writer.upsert(np.arange(100), np.zeros((100, 1), np.uint8))
        assert reader.count() == 100
        for number in range(20):
            writer.upsert([number], np.ones((1, 1), np.uint8))
            writer.delete([99 - number])
        assert len(reader.radius(np.ones((1, 1), np.uint8), 0).ids) == 20
        assert reader.count() == 80
    with sqlite3.connect(tmp_path / "codes.db") as connection:
        assert connection.execute("SELECT count(*) FROM changes").fetchone()[0] <= 6


# -------------------------------------------------------------------------------- threads


def test_readers_see_atomic_writes(tmp_path):
    n, stop, failures, counts = 60, threading.Event(), [], []

    def search(store, where):
        query = np.zeros((1, 1), np.uint8)
        try:
            while not stop.is_set():
                near = store.search(query, n, where=where)
                assert near.ids.tolist() in ([list(range(n))], [[]])
                assert len(set(near.distances[0].tolist())) <= 1
                # Even batches have even distances: filter and codes have the same version.
                assert where is None or not near.distances[0].any() or near.distances[0, 0] % 2 == 0
                counts.append(len(near.ids[0]))
        except BaseException as error:
            failures.append(error)
            raise

    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=8) as store:
        threads = [
            threading.Thread(target=search, args=(store, where))
            for where in (None, None, {"even": True}, {"even": True})
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + HANG
        for batch in itertools.count():
            bits = batch % 9
            codes = np.full((n, 1), (1 << bits) - 1, np.uint8)
            store.upsert(np.arange(n), codes, [{"even": bits % 2 == 0}] * n)
            if batch >= 120 and ({0, n} <= set(counts) or failures or time.monotonic() > deadline):
                break
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert {0, n} <= set(counts)  # the readers met even and odd batches


def test_closing_during_reads_returns_results_or_raises_store_error(tmp_path):
    errors = []
    store = open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=8)
    store.upsert(np.arange(1000), np.zeros((1000, 1), np.uint8), [{"a": 1}] * 1000)

    reading = threading.Barrier(5, timeout=HANG)

    def read():
        try:
            store.count({"a": 1})
            reading.wait()
            for number in range(1000):
                store.count({"a": number % 30})
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    reading.wait()
    store.close()
    for thread in threads:
        thread.join()
    assert all(isinstance(error, StoreError) for error in errors)


# -------------------------------------------------------------------------- damaged files

N = 400


def make(path):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (N, 4), dtype=np.uint8)
    metadata = [{"label": int(i % 7), "text": f"item {i}"} for i in range(N)]
    with open_store(f"sqlite:///{path}", n_bits=32, model="m") as store:
        store.upsert(np.arange(N), codes, metadata)
        store.upsert(np.arange(0, N, 3), codes[::3], metadata[::3])
        store.delete(np.arange(5))
    return read_all(path)


def read_all(path):
    """Return the results of all reading methods of a store."""
    with open_store(f"sqlite:///{path}", n_bits=32) as store:
        queries = np.array([[1, 2, 3, 4], [200, 0, 0, 9]], np.uint8)
        near, within = store.search(queries, 20), store.radius(queries, 9, where={"label": 3})
        items = store.get(np.arange(N))
        results = (
            store.count(),
            store.count({"label": {"in": [1, 2]}}),
            near.ids.tolist(),
            near.distances.tolist(),
            within.ids.tolist(),
            items.ids.tolist(),
            items.codes.tolist(),
            items.metadata,
            store.model,
        )
        store.upsert([N], np.zeros((1, 4), np.uint8))
        store.delete([N])
        return results


def test_a_changed_byte_is_reported_or_harmless(tmp_path):
    expected = make(tmp_path / "good.db")
    good = (tmp_path / "good.db").read_bytes()
    choice = random.Random(1)
    pages = range(0, len(good), 4096)
    positions = [*range(0, 100, 2), *(choice.randrange(len(good)) for _ in range(rounds(60, 5000)))]
    positions += [page + i for page in pages for i in (0, 3, 4, 8, 9, 11, 13, 4094)]
    reported = 0
    for number, position in enumerate(positions):
        bad = bytearray(good)
        bad[position] ^= choice.randrange(1, 256)
        path = tmp_path / f"bad{number}.db"
        path.write_bytes(bad)
        try:
            assert read_all(path) == expected, f"byte {position}"
        except StoreError:
            reported += 1
    assert reported > 60


def test_items_missing_from_a_page_are_reported(tmp_path):
    make(tmp_path / "good.db")
    good = (tmp_path / "good.db").read_bytes()
    leaves = [
        page
        for page in range(4096, len(good), 4096)
        if good[page] == 0x0D and any(good[page + 3 : page + 5])  # not of an empty table
    ]
    for page in leaves:
        bad = bytearray(good)
        n_cells = int.from_bytes(bad[page + 3 : page + 5], "big")
        bad[page + 3 : page + 5] = (n_cells - 1).to_bytes(2, "big")
        path = tmp_path / f"bad{page}.db"
        path.write_bytes(bad)
        with pytest.raises(StoreError, match="damaged"):
            read_all(path)
    assert len(leaves) > 5


def test_a_truncated_file_is_reported(tmp_path):
    expected = make(tmp_path / "good.db")
    good = (tmp_path / "good.db").read_bytes()
    lengths = [1, 50, 100, 500, 4096, 9000, *range(10_000, len(good), 1777), len(good) - 1]
    reported = []
    for length in lengths:
        path = tmp_path / f"cut{length}.db"
        path.write_bytes(good[:length])
        try:
            assert read_all(path) == expected  # the end of the last page may be unused
        except StoreError:
            reported.append(length)
    assert reported[: len(lengths) - 4] == lengths[: len(lengths) - 4]


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0" + bytes(5000)])
def test_other_files_are_rejected_and_unchanged(tmp_path, content):
    path = tmp_path / "other.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"other\.db"):
        open_store(f"sqlite:///{path}", n_bits=8)
    assert path.read_bytes() == content


def test_foreign_databases_are_rejected_and_unchanged(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY)")
    content = path.read_bytes()
    for n_bits in (None, 8):
        with pytest.raises(StoreError, match=r"other\.db.*antipodal"):
            open_store(f"sqlite:///{path}", n_bits=n_bits)
    assert path.read_bytes() == content


def test_a_damaged_log_never_yields_a_partial_write(tmp_path):
    path = tmp_path / "codes.db"
    with open_store(f"sqlite:///{path}", n_bits=32) as store:
        for batch in range(1, 6):
            store.upsert(np.arange(100), codes_of(batch, 100), [{"batch": batch}] * 100)
        choice = random.Random(2)
        log = (tmp_path / "codes.db-wal").read_bytes()
        outcomes = set()
        for number in range(60):
            copy = tmp_path / f"copy{number}.db"
            shutil.copy(path, copy)
            bad = bytearray(log)
            bad[choice.randrange(len(bad))] ^= choice.randrange(1, 256)
            (tmp_path / f"copy{number}.db-wal").write_bytes(bad)
            try:
                with open_store(f"sqlite:///{copy}") as damaged:
                    found = {tuple(code) for code in damaged.get(range(100)).codes.tolist()}
                    found |= {tuple(codes_of(b, 1)[0].tolist()) for b in range(6)} & {
                        tuple(codes_of(fields["batch"], 1)[0].tolist())
                        for fields in damaged.get(range(100)).metadata
                    }
                    assert len(found) <= 1
                    assert damaged.count() in (0, 100)
                    outcomes |= found
            except StoreError:
                outcomes.add("reported")
    assert len(outcomes) > 2


def test_missing_folders_and_stores_are_named(tmp_path):
    with pytest.raises(StoreError, match=r"nowhere/codes\.db"):
        open_store(f"sqlite:///{tmp_path}/nowhere/codes.db", n_bits=8)
    with pytest.raises(StoreError, match="n_bits"):
        open_store(f"sqlite:///{tmp_path}/codes.db")
    assert os.listdir(tmp_path) == []

"""Backups of every engine: verified snapshots, restored into any engine."""

import hashlib
import itertools
import json
import os
import re
import threading
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from antipodal.cli import app
from antipodal.errors import StoreError
from antipodal.stores import open_store
from antipodal.stores.transfer import back_up, check_backup, restore
from engines import ENGINES, engines  # noqa: F401

N, N_BITS = 300, 20
_names = (f"backup_{number}" for number in itertools.count())


def fill(store, seed=0):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (N, 3), dtype=np.uint8) & [255, 255, 0xF0]
    metadata = [{"n": int(i), "é": "ü" * (i % 5), "x": 1e300 if i % 7 else -0.5} for i in range(N)]
    store.upsert(rng.permutation(10 * N)[:N], codes.astype(np.uint8), metadata)


def contents(store):
    with store.snapshot() as now:
        return {
            number: (code.tobytes(), json.loads(text))
            for ids, codes, texts, _ in now.batches()
            for number, code, text in zip(ids.tolist(), codes, texts, strict=True)
        }


@pytest.mark.parametrize("engine", ENGINES)
def test_a_backup_is_a_store_and_can_be_restored_to_any_engine(tmp_path, engines, engine):  # noqa: F811
    path = tmp_path / "backup.db"
    url = engines.url(engine, next(_names))
    with open_store(url, n_bits=N_BITS, model="m") as store:
        fill(store)
        made = back_up(store, path)
        assert made.items == N
        assert made.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        expected = contents(store)
        assert len(expected) == N
        assert store.get(list(expected)[:1]).metadata[0] == next(iter(expected.values()))[1]
        fill(store, seed=1)
        store.delete(list(expected)[:10])
        assert contents(store) != expected
        assert restore(path, url, sha256=made.sha256) == made
        assert contents(store) == expected  # also in an open store
        assert store.count() == N
        query = np.zeros((1, 3), np.uint8)
        near = store.search(query, 20)
    elsewhere = f"sqlite:///{tmp_path}/new.db"
    restore(path, elsewhere)
    for address in (elsewhere, f"sqlite:///{path}"):
        with open_store(address, n_bits=N_BITS, model="m") as other:
            assert contents(other) == expected
            assert other.search(query, 20).ids.tolist() == near.ids.tolist()
    assert sorted(os.listdir(tmp_path)) == ["backup.db", "new.db"]


def test_a_backup_is_a_snapshot_during_writes(tmp_path):
    stop, failures = threading.Event(), []

    def write(store):
        try:
            for number in itertools.count(1):
                if stop.is_set():
                    return
                store.upsert(np.arange(500), np.full((500, 1), number % 256, np.uint8))
                time.sleep(0.01)  # lets other threads write
        except BaseException as error:
            failures.append(error)

    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=8) as store:
        store.upsert(np.arange(500), np.zeros((500, 1), np.uint8))
        thread = threading.Thread(target=write, args=(store,))
        thread.start()
        try:
            for number in range(4):
                assert back_up(store, tmp_path / f"{number}.db").items == 500
                with open_store(f"sqlite:///{tmp_path}/{number}.db") as copy:
                    assert len({code for code, _ in contents(copy).values()}) == 1
                if number % 2:
                    restore(tmp_path / f"{number - 1}.db", f"sqlite:///{tmp_path}/codes.db")
                    assert len(set(store.search(np.zeros((1, 1), np.uint8), 500).distances[0])) == 1
        finally:
            stop.set()
            thread.join()
    assert not failures


def test_a_damaged_or_unexpected_backup_changes_nothing(tmp_path):
    url, path = f"sqlite:///{tmp_path}/codes.db", tmp_path / "backup.db"
    with open_store(url, n_bits=N_BITS) as store:
        fill(store)
        back_up(store, path)
        fill(store, seed=1)
        before = contents(store)
        good = path.read_bytes()
        text = good.index('"é":"ü'.encode())
        for bad in (b"", good[:3000], good[: len(good) // 2], b"x" * 5000):
            path.write_bytes(bad)
            with pytest.raises(StoreError, match=r"backup\.db"):
                restore(path, url)
        path.write_bytes(good[:text] + b"?" + good[text + 1 :])
        with pytest.raises(StoreError, match="checksum"):
            check_backup(path)
        path.write_bytes(good)
        with pytest.raises(StoreError, match="SHA-256"):
            restore(path, url, sha256="0" * 64)
        with pytest.raises(StoreError, match=r"codes\.db"):
            restore(tmp_path / "codes.db", url)
        with open_store(f"sqlite:///{tmp_path}/other.db", n_bits=8) as other:
            other.upsert([1], np.zeros((1, 1), np.uint8))
            back_up(other, tmp_path / "short.db")
        with pytest.raises(StoreError, match=r"\b20\b.*\b8\b"):
            restore(tmp_path / "short.db", url)
        assert contents(store) == before


def test_the_backup_and_restore_commands(tmp_path):
    url, path = f"sqlite:///{tmp_path}/codes.db", str(tmp_path / "backup.db")
    with open_store(url, n_bits=N_BITS) as store:
        fill(store)
        expected = contents(store)
    run = CliRunner()
    done = run.invoke(app, ["store", "backup", path, "--store", url, "--json"])
    assert done.exit_code == 0
    made = json.loads(done.stdout)
    assert made["items"] == N
    assert made["bytes"] == os.path.getsize(path)
    os.unlink(tmp_path / "codes.db")
    done = run.invoke(
        app,
        ["store", "restore", path, "--sha256", made["sha256"]],
        env={"ANTIPODAL_STORE": url},
    )
    assert done.exit_code == 0
    assert re.search(r"\b300\b", done.stdout)
    with open_store(url) as store:
        assert contents(store) == expected
    assert run.invoke(app, ["store", "backup", path], env={}).exit_code == 2
    missing = run.invoke(app, ["store", "backup", path, "--store", f"sqlite:///{tmp_path}/no.db"])
    assert isinstance(missing.exception, StoreError)

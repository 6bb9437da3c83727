"""Creation of a collection: kills, resumption, concurrent creations, full disks and damage."""

import signal
import sqlite3
import threading

import numpy as np
import pytest

from antipodal import Collection, open_store
from antipodal.collection import create
from antipodal.errors import AntipodalError, StoreError
from antipodal.stores.sqlite import SqliteStore
from engines import ENGINES, engines  # noqa: F401
from processes import run_program

N = 2_000
ROWS = np.random.default_rng(0).standard_normal((N, 8)).astype(np.float32)
IDS = [f"item {i}" for i in range(N)]
METADATA = [{"i": i} for i in range(N)]
OPTIONS = {"ids": IDS, "metadata": METADATA, "bits": 16, "keep_vectors": "int8"}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(create, "_BATCH_ROWS", 256)


def contents(docs):
    """Return everything in a collection except the settings of its creation."""
    items = docs.get(IDS if docs.id_type == "string" else np.arange(N))
    with docs.store.snapshot() as now:
        numbers = now.all_codes()[0]
        vectors = now.kept_vectors(numbers) if docs.keep_vectors else {}
    return docs.identity, items.ids.tolist(), items.codes.tolist(), items.metadata, vectors


class Interrupted(BaseException):
    """Stops a creation, as Ctrl-C does."""


def interrupted_at(n_rows):
    def progress(step, done, total):
        if step == "encode" and done >= n_rows:
            raise Interrupted

    return progress


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("n_rows", [0, 600, N])
def test_an_interrupted_creation_does_not_open_and_resumes(engine, n_rows, engines):  # noqa: F811
    options = OPTIONS if engine != "milvus" else OPTIONS | {"keep_vectors": None}
    whole, url = (engines.url(engine, f"{name}_{n_rows}") for name in ("whole", "part"))
    with pytest.raises(Interrupted):
        Collection.create(url, ROWS, progress=interrupted_at(n_rows), **options)
    with pytest.raises(StoreError, match="interrupted"):
        Collection.open(url)
    for changed in (
        {"bits": 24},
        {"random_state": 1},
        {"ids": IDS[::-1]},
    ):
        with pytest.raises(StoreError, match="other vectors or settings"):
            Collection.create(url, ROWS, **options | changed)
    with (
        Collection.create(url, ROWS, **options) as resumed,
        Collection.create(whole, ROWS, **options) as expected,
    ):
        assert contents(resumed) == contents(expected)


_CREATE = """
import os, signal, sys
import numpy as np
import test_collection_crash as test
from antipodal import Collection
from antipodal.collection import create
from antipodal.stores.sqlite import SqliteStore
create._BATCH_ROWS = 256
left = [{calls}]
method = SqliteStore.{method}
def kill_after(*arguments, **options):
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return method(*arguments, **options)
SqliteStore.{method} = kill_after
Collection.create({place!r}, test.ROWS, **test.OPTIONS)
"""


@pytest.mark.parametrize(
    ("method", "calls"), [("_write_attachments", 0), ("_put_keyed", 3), ("_write_attachments", 1)]
)
def test_a_killed_creation_does_not_open_and_resumes(method, calls, tmp_path):
    place = str(tmp_path / "docs.db")
    program = _CREATE.format(calls=calls, method=method, place=place)
    killed = run_program(program)
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(StoreError):
        Collection.open(place)
    with (
        Collection.create(place, ROWS, **OPTIONS) as resumed,
        Collection.create(tmp_path / "whole.db", ROWS, **OPTIONS) as expected,
    ):
        assert contents(resumed) == contents(expected)


def test_of_concurrent_creations_one_completes_and_the_others_leave_it_alone(tmp_path):
    results = []

    def run():
        try:
            Collection.create(tmp_path / "docs.db", ROWS, **OPTIONS).close()
            results.append("created")
        except StoreError as error:
            results.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count("created") == 1, results
    with (
        Collection.open(tmp_path / "docs.db") as docs,
        Collection.create(tmp_path / "whole.db", ROWS, **OPTIONS) as expected,
    ):
        assert contents(docs) == contents(expected)


def test_a_full_disk_is_an_error_after_which_the_same_call_resumes(tmp_path, monkeypatch):
    original = SqliteStore._put_items
    left = [4]

    def put(self, connection, *arguments):
        original(self, connection, *arguments)
        left[0] -= 1
        if left[0] == 0:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count={pages}")

    monkeypatch.setattr(SqliteStore, "_put_items", put)
    with pytest.raises(StoreError, match="full"):
        Collection.create(tmp_path / "docs.db", ROWS, **OPTIONS)
    with pytest.raises(StoreError, match="interrupted"):
        Collection.open(tmp_path / "docs.db")
    with (
        Collection.create(tmp_path / "docs.db", ROWS, **OPTIONS) as resumed,
        Collection.create(tmp_path / "whole.db", ROWS, **OPTIONS) as expected,
    ):
        assert contents(resumed) == contents(expected)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE attachments SET data = substr(data, 2) WHERE name = 'model'",
        "UPDATE attachments SET data = x'00' WHERE name = 'collection'",
        "DELETE FROM attachments WHERE name = 'model'",
        "UPDATE vectors SET vector = zeroblob(12) WHERE id = 7",
        "DELETE FROM vectors WHERE id = 7",
        "UPDATE keys SET id = 8 WHERE id = 7",
    ],
)
def test_damage_is_an_error(damage, tmp_path):
    Collection.create(tmp_path / "docs.db", ROWS, **OPTIONS).close()
    connection = sqlite3.connect(tmp_path / "docs.db")
    assert connection.execute(damage).rowcount == 1
    connection.commit()
    connection.close()
    with (  # noqa: PT012
        pytest.raises(AntipodalError),
        Collection.open(tmp_path / "docs.db") as docs,
    ):
        docs.search(ROWS[7:8], k=5, rerank=4)
        docs.delete(["item 7"])


def test_vectors_of_a_deleted_or_replaced_item_are_deleted(tmp_path):
    with Collection.create(tmp_path / "docs.db", ROWS, **OPTIONS) as docs:
        docs.delete(["item 7"])
        docs.upsert(ROWS[:1], ids=["item 9"])
        with docs.store.snapshot() as now:
            kept = now.kept_vectors(np.arange(N))
        assert len(kept) == N - 1
        assert kept[9] == kept[0]
    with open_store(f"sqlite:///{tmp_path}/docs.db") as store:
        store.upsert(["item 3"], store.get(["item 3"]).codes)  # a code without its vector
    with Collection.open(tmp_path / "docs.db") as docs, pytest.raises(StoreError, match="vector"):
        docs.search(ROWS[3:4], k=1, rerank=N)

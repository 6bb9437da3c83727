"""Asymmetric search in every engine, compared with brute force, while other clients write."""

import itertools
import json
import threading

import numpy as np
import psycopg
import pytest

from antipodal import pack
from antipodal.errors import StoreError
from antipodal.stores import open_store, postgres_items
from antipodal.stores.filters import matches, parse_where
from antipodal.stores.index_cache import IndexCache
from antipodal.stores.milvus import MAX_HITS
from antipodal.stores.snapshot import ItemBatch
from antipodal.stores.url import parse_url
from engines import ENGINES, engines  # noqa: F401
from processes import run_program

N_BITS = 28  # not a whole number of bytes
FOLLOWING = ("sqlite", "postgresql")  # engines whose index in memory follows the store
_names = (f"asymmetric_{number}" for number in itertools.count())


@pytest.fixture(params=ENGINES)
def url(request, engines):  # noqa: F811
    return engines.url(request.param, next(_names))


@pytest.fixture(params=FOLLOWING)
def following_url(request, engines):  # noqa: F811
    return engines.url(request.param, next(_names))


@pytest.fixture
def postgres_url(engines):  # noqa: F811
    return engines.url("postgresql", next(_names))


def connect(url):
    return psycopg.connect(parse_url(url).target, autocommit=True)


def random_items(rng, n):
    bits = rng.integers(0, 2, (n, N_BITS))
    bits[: n // 4] = bits[n // 4 : 2 * (n // 4)]  # duplicates, which tie
    return bits, [{"label": int(label)} for label in rng.integers(0, 4, n)]


def brute_force(items, z, k, where=None):
    """Return ids by (score, id), scores and distances, from a dictionary of bits and metadata."""
    tree = None if where is None else parse_where(where)
    ids = sorted(i for i, (_, fields) in items.items() if tree is None or matches(tree, fields))
    bits = np.array([items[i][0] for i in ids]).reshape(-1, N_BITS)
    scores = np.array([[np.sum(np.where(row, q, -q)) for row in bits] for q in z])
    scores = scores.reshape(len(z), len(ids)).round(9)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    distances = (bits[order] != (z > 0)[:, None]).sum(axis=2)
    return np.array(ids, np.int64)[order], np.take_along_axis(scores, order, axis=1), distances


def assert_same(store, items, z, k, where=None):
    ids, scores, distances = brute_force(items, z, k, where)
    found = store.search(vectors=z, k=k, where=where)
    assert found.ids.dtype == np.int64
    assert found.distances.dtype == np.int32
    np.testing.assert_array_equal(found.ids, ids)
    np.testing.assert_array_equal(found.distances, distances)
    np.testing.assert_allclose(found.scores, scores, atol=1e-8)


WHERES = [None, {"label": 2}, {"label": {"in": [0, 1, 2]}}, {"label": 9}]


def test_results_are_those_of_brute_force_after_every_kind_of_change(url, fresh_rng):
    rng, items = fresh_rng, {}
    with open_store(url, n_bits=N_BITS) as store, open_store(url, n_bits=N_BITS) as other:
        z = rng.standard_normal((3, N_BITS))
        assert store.search(vectors=z, k=3).ids.shape == (3, 0)
        for n_changed in (90, 12, 1, 70):
            ids = rng.choice(200, n_changed, replace=False)
            bits, metadata = random_items(rng, n_changed)
            other.upsert(ids, pack(bits), metadata)
            items |= dict(zip(ids.tolist(), zip(bits, metadata, strict=True), strict=True))
            for number in rng.choice(200, n_changed // 3, replace=False).tolist():
                other.delete([number])
                items.pop(number, None)
            for where in WHERES:
                assert_same(store, items, z, 7, where)
        assert_same(store, items, z, 500)
        assert store.search(vectors=z[:0], k=3).ids.shape[0] == 0


def test_all_items_of_a_replaced_store_are_new(following_url, fresh_rng):
    with open_store(following_url, n_bits=N_BITS) as store:
        z = fresh_rng.standard_normal((2, N_BITS))
        for _ in range(3):
            bits, metadata = random_items(fresh_rng, 40)
            ids = fresh_rng.choice(100, 40, replace=False)
            batch = ItemBatch(ids.astype(np.int64), pack(bits), list(map(json.dumps, metadata)))
            store._replace_all(iter([batch]))
            items = dict(zip(ids.tolist(), zip(bits, metadata, strict=True), strict=True))
            assert_same(store, items, z, 9, {"label": {"lt": 3}})


def test_a_snapshot_is_searched_as_it_was(following_url, fresh_rng):
    bits, metadata = random_items(fresh_rng, 30)
    items = dict(enumerate(zip(bits, metadata, strict=True)))
    z = fresh_rng.standard_normal((2, N_BITS))
    with open_store(following_url, n_bits=N_BITS) as store:
        store.upsert(range(30), pack(bits), metadata)
        for _ in range(2):  # before and after the index is read for the first time
            with store.snapshot() as before:
                store.delete([len(items) - 1])
                assert_same(before, items, z, 5, {"label": {"gte": 0}})
                kept = {number: item for number, item in items.items() if number < len(items) - 1}
                assert_same(store, kept, z, 5)
                assert_same(before, items, z, 5)
            items = kept
        assert_same(store, items, z, 5)


def test_an_index_that_is_newer_than_a_snapshot_is_not_used(postgres_url, fresh_rng):
    bits, metadata = random_items(fresh_rng, 30)
    items = dict(enumerate(zip(bits, metadata, strict=True)))
    z = fresh_rng.standard_normal((2, N_BITS))
    with open_store(postgres_url, n_bits=N_BITS) as store:
        store.upsert(range(30), pack(bits), metadata)
        with store.snapshot() as before:  # when no index was in memory
            store.delete([3])
            store.search(vectors=z, k=1)  # reads the index
            assert_same(before, items, z, 30, {"label": {"gte": 0}})
        assert 3 not in store.search(vectors=z, k=30).ids


def test_only_changed_items_are_read_again(following_url, fresh_rng, monkeypatch):
    read = []
    load = IndexCache._loaded
    monkeypatch.setattr(IndexCache, "_loaded", lambda *a: read.append(1) or load(*a))
    bits, metadata = random_items(fresh_rng, 300)
    z = fresh_rng.standard_normal((1, N_BITS))
    with open_store(following_url, n_bits=N_BITS) as store, open_store(following_url) as other:
        store.upsert(range(300), pack(bits), metadata)
        store.search(vectors=z)
        read.clear()
        for number in range(5):
            other.upsert([number], pack(bits[10:11]))
            other.delete([20 + number])
            assert 20 + number not in store.search(vectors=z, k=300).ids
        assert not read


def test_changes_of_another_process_are_followed(following_url, fresh_rng):
    bits, metadata = random_items(fresh_rng, 20)
    z = np.where(bits[:1], 1.0, -1.0)
    text = (
        "import numpy as np; from antipodal.stores import open_store\n"
        f"with open_store({following_url!r}) as store:\n"
        "    store.delete([1]); store.upsert([99], store.get([0]).codes)\n"
        "    store.delete([0])\n"
    )
    with open_store(following_url, n_bits=N_BITS) as store:
        store.upsert(range(20), pack(bits), metadata)
        assert {0, 1} <= set(store.search(vectors=z, k=20).ids[0].tolist())
        assert run_program(text).returncode == 0
        found = store.search(vectors=z, k=20)
    assert len(found.ids[0]) == 19
    assert not {0, 1} & set(found.ids[0].tolist())
    assert (99, N_BITS) in zip(found.ids[0].tolist(), found.scores[0].tolist(), strict=True)


def test_every_result_belongs_to_one_state_while_others_write(following_url):
    """Each writer moves a group of items to one of two codes at a time, all in one transaction."""
    n_groups, size, n_rounds = 3, 40, 12
    codes = pack(np.array([[0] * N_BITS, [1] * N_BITS]))
    z = np.ones((1, N_BITS))
    failures = []
    done = threading.Event()

    def write(group):
        try:
            with open_store(following_url) as store:
                ids = np.arange(group * size, (group + 1) * size)
                for turn in range(n_rounds):
                    if turn % 4 == 3:
                        store.delete(ids)
                    else:
                        store.upsert(ids, np.repeat(codes[turn % 2 : turn % 2 + 1], size, axis=0))
        except BaseException as error:
            failures.append(error)

    def read(store):
        try:
            while not done.is_set():
                found = store.search(vectors=z, k=n_groups * size)
                groups, scores = found.ids[0] // size, found.scores[0]
                for group in np.unique(groups):
                    assert (groups == group).sum() == size
                    assert len(np.unique(scores[groups == group])) == 1
        except BaseException as error:
            failures.append(error)

    with open_store(following_url, n_bits=N_BITS) as store:
        writers = [threading.Thread(target=write, args=[group]) for group in range(n_groups)]
        readers = [threading.Thread(target=read, args=[store]) for _ in range(2)]
        for thread in writers + readers:
            thread.start()
        for thread in writers:
            thread.join()
        done.set()
        for thread in readers:
            thread.join()
        assert not failures
        assert store.search(vectors=z, k=999).ids.shape == (1, 0)  # the last turn deletes


# ------------------------------------------------------------------------------- PostgreSQL


def test_changes_by_sql_are_followed(postgres_url, fresh_rng):
    bits, metadata = random_items(fresh_rng, 60)
    items = dict(enumerate(zip(bits, metadata, strict=True)))
    z = fresh_rng.standard_normal((2, N_BITS))
    table = parse_url(postgres_url).options["table"]
    ones = "1" * N_BITS
    with open_store(postgres_url, n_bits=N_BITS) as store, connect(postgres_url) as connection:
        store.upsert(range(60), pack(bits), metadata)
        where = {"label": {"gte": 0}}
        assert_same(store, items, z, 9, where)
        connection.execute(f"UPDATE {table} SET id = id + 1000 WHERE id < 5")
        for number in range(5):
            items[number + 1000] = items.pop(number)
        assert_same(store, items, z, 9, where)
        connection.execute(f"INSERT INTO {table} VALUES (7777, B'{ones}', '{{}}')")
        items[7777] = np.ones(N_BITS, int), {}
        assert_same(store, items, z, 9, where)
        connection.execute(f"UPDATE {table} SET metadata = '{{\"label\": 2}}' WHERE id = 7777")
        items[7777] = np.ones(N_BITS, int), {"label": 2}
        assert_same(store, items, z, 9, {"label": 2})
        connection.execute(f"TRUNCATE {table}")
        assert_same(store, {}, z, 9, where)
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT 1")
            store.upsert([1], pack(bits[:1]), metadata[:1])
            connection.execute(f"INSERT INTO {table} VALUES (2, B'{ones}', '{{}}')")
        assert_same(store, {1: (bits[0], metadata[0]), 2: (bits[0] | 1, {})}, z, 9)


@pytest.mark.parametrize(("kept_versions", "kept_ids"), [(3, 10**6), (1000, 20)])
def test_a_short_log_is_enough(postgres_url, monkeypatch, fresh_rng, kept_versions, kept_ids):
    monkeypatch.setattr(postgres_items, "_KEPT_VERSIONS", kept_versions)
    monkeypatch.setattr(postgres_items, "_KEPT_IDS", kept_ids)
    z = fresh_rng.standard_normal((2, N_BITS))
    items = {}
    with open_store(postgres_url, n_bits=N_BITS) as store, connect(postgres_url) as connection:
        store.search(vectors=z)
        for turn in range(12):
            bits, metadata = random_items(fresh_rng, 7 if turn % 4 else 30)
            ids = fresh_rng.choice(50, len(bits), replace=False)
            store.upsert(ids, pack(bits), metadata)
            items |= dict(zip(ids.tolist(), zip(bits, metadata, strict=True), strict=True))
            if turn % 5 == 0:
                assert_same(store, items, z, 9)
            table = parse_url(postgres_url).options["table"]
            lengths = connection.execute(f"SELECT cardinality(ids) FROM {table}_changes").fetchall()
            assert len(lengths) <= kept_versions + 1
            assert sum(length for (length,) in lengths) <= kept_ids + 60


def drop_log(connection, table):
    for name in ("lock", "insert", "update", "delete", "truncate"):
        connection.execute(f"DROP TRIGGER antipodal_{name} ON {table}")
    connection.execute(f"DROP FUNCTION {table}_record")
    connection.execute(f"DROP TABLE {table}_changes")


def test_a_store_of_an_older_version_gets_a_log_when_it_is_opened(postgres_url):
    table = parse_url(postgres_url).options["table"]
    z = np.ones((1, N_BITS))
    code = pack(np.ones((1, N_BITS), int))
    with connect(postgres_url) as connection:
        with open_store(postgres_url, n_bits=N_BITS) as store:
            store.upsert([4], code)
        drop_log(connection, table)
        with open_store(postgres_url, read_only=True) as store:
            assert store.search(code, 1).ids.tolist() == [[4]]
            with pytest.raises(StoreError, match=f"{table}_changes"):
                store.search(vectors=z)
            assert store.count() == 1
        with open_store(postgres_url) as store, open_store(postgres_url) as other:
            assert store.search(vectors=z, k=2).ids.tolist() == [[4]]
            other.upsert([5], code)
            assert store.search(vectors=z, k=2).ids.tolist() == [[4, 5]]


def test_a_user_without_permissions_searches_codes(postgres_url):
    table = parse_url(postgres_url).options["table"]
    role = f"reader_{table}"
    reader = f"{postgres_url}&options=-crole%3D{role}"
    z, code = np.ones((1, N_BITS)), pack(np.ones((1, N_BITS), int))
    with open_store(postgres_url, n_bits=N_BITS) as store, connect(postgres_url) as connection:
        store.upsert([4], code)
        drop_log(connection, table)
        connection.execute(f"CREATE ROLE {role}")
        connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role}")
        connection.execute(f"GRANT SELECT ON {table}_about TO {role}")
        with open_store(reader) as limited:  # may not create the log
            assert limited.search(code, 1).ids.tolist() == [[4]]
            with pytest.raises(StoreError, match=f"{table}_changes"):
                limited.search(vectors=z)
        with open_store(postgres_url) as owner, open_store(reader) as limited:
            with pytest.raises(StoreError, match=r"\bSELECT\b"):
                limited.search(vectors=z)
            assert owner.search(vectors=z).ids.tolist() == [[4]]
            limited.upsert([9], code)  # recorded by a trigger with the rights of the owner
            assert owner.search(vectors=z).ids.tolist() == [[4, 9]]
            connection.execute(f"GRANT SELECT ON {table}_changes TO {role}")
            assert limited.search(vectors=z).ids.tolist() == [[4, 9]]


def test_long_and_unusual_names_have_a_log(engines):  # noqa: F811
    for table in ("x" * 57, "é" * 28, "a%22b$body$'c"):
        with open_store(engines.url("postgresql", table), n_bits=8) as store:
            store.upsert([1], np.zeros((1, 1), np.uint8))
            assert store.search(vectors=np.ones((1, 8))).ids.tolist() == [[1]]
            store.delete([1])
            assert store.search(vectors=np.ones((1, 8))).ids.shape == (1, 0)


def test_transactions_of_several_statements_do_not_deadlock(postgres_url):
    table = parse_url(postgres_url).options["table"]
    code = "0" * N_BITS
    failures = []

    def write(order):
        try:
            with connect(postgres_url) as connection:
                for _ in range(30):
                    with connection.transaction():
                        for number in order:
                            connection.execute(
                                f"INSERT INTO {table} VALUES (%s, B'{code}', '{{}}') "
                                "ON CONFLICT (id) DO UPDATE SET code = EXCLUDED.code",
                                [number],
                            )
        except BaseException as error:
            failures.append(error)

    with open_store(postgres_url, n_bits=N_BITS) as store:
        threads = [threading.Thread(target=write, args=[o]) for o in ((1, 2, 3), (3, 2, 1))]
        for thread in threads:
            thread.start()
        for _ in range(10):
            store._replace_all(iter([]))
            store.search(vectors=np.ones((1, N_BITS)))
        for thread in threads:
            thread.join()
    assert not failures


# ----------------------------------------------------------------------------------- Milvus


def test_milvus_finds_the_best_of_a_limited_number_of_candidates(engines, fresh_rng):  # noqa: F811
    codes = fresh_rng.integers(0, 256, (5_000, 8), dtype=np.uint8)
    z = fresh_rng.standard_normal((4, 64))
    with open_store(engines.url("milvus", next(_names)), n_bits=64) as store:
        store.load(None, codes)
        fetched = []
        items = store._items
        store._items = lambda ids, fields: fetched.append(len(ids)) or items(ids, fields)
        found = store.search(vectors=z, k=10)
        assert max(fetched) < 4 * 1_000
        signs = np.where(np.unpackbits(codes, axis=1), 1.0, -1.0)
        scores = np.take_along_axis(z @ signs.T, found.ids, axis=1)
        np.testing.assert_allclose(found.scores, scores)
        assert (np.diff(found.scores, axis=1) <= 0).all()
        z = fresh_rng.standard_normal((100, 64))  # fewer queries may have 0.9 by chance
        found = store.search(vectors=z, k=10)
        best = np.argsort(-(z @ signs.T), axis=1)[:, :10]
        assert np.mean([np.isin(a, b).mean() for a, b in zip(found.ids, best, strict=True)]) > 0.9
        with pytest.raises(ValueError, match=r"\bk\b"):
            store.search(vectors=z, k=MAX_HITS + 1)

"""String ids, attachments and kept vectors in every engine."""

import itertools
import threading

import numpy as np
import psycopg
import pytest

from antipodal.errors import IdsTakenError, StoreError
from antipodal.stores import milvus, milvus_attachments, open_store
from antipodal.stores.snapshot import ItemBatch
from antipodal.stores.url import parse_url
from engines import ENGINES, engines  # noqa: F401

KEEPING = ("sqlite", "postgresql")  # engines that keep vectors
_names = (f"keyed_{number}" for number in itertools.count())


@pytest.fixture(params=ENGINES)
def url(request, engines):  # noqa: F811
    return engines.url(request.param, next(_names))


@pytest.fixture(params=KEEPING)
def keeping_url(request, engines):  # noqa: F811
    return engines.url(request.param, next(_names))


@pytest.fixture
def store(url):
    with open_store(url, n_bits=16, id_type="string") as opened:
        yield opened


def codes_of(*numbers):
    return np.array([[number, 0] for number in numbers], np.uint8)


KEYS = ["a", "https://example.org/ä?x=%20&y=\"'", "9a6c-uuid", "1", "x" * 512, "with\n\\line"]


def test_items_are_stored_under_any_string_and_found_by_it(store):
    assert store.upsert(KEYS, codes_of(*range(6)), [{"n": i} for i in range(6)]) == 0
    items = store.get([*reversed(KEYS), "unknown"])
    assert items.ids.tolist() == KEYS[::-1]
    assert items.codes[:, 0].tolist() == [5, 4, 3, 2, 1, 0]
    assert items.metadata == [{"n": i} for i in (5, 4, 3, 2, 1, 0)]
    for i, key in enumerate(KEYS):
        assert store.search(codes_of(i), 1).ids.tolist() == [[key]]
        assert store.radius(codes_of(i), 0).ids.tolist() == [key]
        assert store.search(codes_of(0), 1, where={"$id": key}).ids.tolist() == [[key]]
        assert store.search(codes_of(0), 9, where={"n": i}).ids.tolist() == [[key]]
    z = np.where(np.unpackbits(codes_of(3), axis=1), 1.0, -1.0)
    assert store.search(vectors=z, k=1).ids.tolist() == [["1"]]
    assert store.search(codes_of(0), 3, where={"n": 99}).ids.shape == (1, 0)


def test_writes_are_idempotent_by_string_id(store):
    for _ in range(2):
        store.upsert(KEYS, codes_of(*range(6)), [{"n": i} for i in range(6)])
        assert store.count() == 6
    assert store.upsert(["new", *KEYS[:2]], codes_of(70, 80, 90), keep_metadata=True) == 2
    items = store.get(["new", *KEYS[:2]])
    assert items.codes[:, 0].tolist() == [70, 80, 90]
    assert items.metadata == [{}, {"n": 0}, {"n": 1}]
    loaded = store.load(["new", "newer"], codes_of(70, 71), [{}, {}], resume=True)
    assert (loaded.added, loaded.replaced, loaded.unchanged) == (1, 0, 1)
    assert loaded.ids.tolist() == ["new", "newer"]
    assert store.delete(["new", "unknown", KEYS[0]]) == 2
    assert store.count() == 6
    assert KEYS[0] not in store.radius(codes_of(0), 16).ids.tolist()
    store.upsert([KEYS[0]], codes_of(1))
    assert store.get([KEYS[0]]).metadata == [{}]


def test_ids_in_use_are_not_added(store):
    store.add(codes_of(1, 2), ids=["a", "b"])
    with pytest.raises(IdsTakenError, match=r"\bb\b"):
        store.add(codes_of(3, 4), ids=["c", "b"])
    assert store.get(["a", "b", "c"]).ids.tolist() == ["a", "b"]
    with pytest.raises(IdsTakenError):
        store.load(["d", "a"], codes_of(3, 4), replace=False)
    assert store.count() == 2


def test_the_type_of_ids_is_fixed(url):
    with open_store(url, n_bits=16, id_type="string") as store:
        with pytest.raises(TypeError, match=r"\bstrings\b.*\bint\b"):
            store.upsert([1], codes_of(1))
        with pytest.raises(ValueError, match=r"\bids\b"):
            store.add(codes_of(1))
        with pytest.raises(ValueError, match=r"\$id"):
            store.upsert(["a"], codes_of(1), [{"$id": "b"}])
        with pytest.raises(ValueError, match=r"\b512\b.*\b513\b"):
            store.upsert(["x" * 513], codes_of(1))
        assert store.count() == 0
    with open_store(url) as store:
        assert store.id_type == "string"
        assert store.get(["a"]).ids.tolist() == []
    with pytest.raises(StoreError, match=r"\bstring\b.*\bint64\b"):
        open_store(url, id_type="int64")


def test_a_snapshot_and_all_items_have_string_ids(store):
    store.upsert(KEYS, codes_of(*range(6)))
    with store.snapshot() as now:
        texts = [text for batch in now.batches() for text in batch.texts]
        assert now.get([KEYS[1]]).ids.tolist() == [KEYS[1]]
        assert now.search(codes_of(2), 1).ids.tolist() == [[KEYS[2]]]
    assert all('"$id"' in text for text in texts)
    ids = np.array([5, 6], np.int64)
    if isinstance(store, milvus.MilvusStore):
        ids = milvus._hashed(["p", "q"])
    store._replace_all(iter([ItemBatch(ids, codes_of(1, 2), ['{"$id":"p"}', '{"$id":"q"}'])]))
    assert store.get(["p", "q", *KEYS]).ids.tolist() == ["p", "q"]
    store.upsert(["q", "r"], codes_of(3, 4))
    assert sorted(store.radius(codes_of(0), 16).ids.tolist()) == ["p", "q", "r"]


@pytest.mark.parametrize("engine", KEEPING)
def test_concurrent_writers_of_the_same_strings_store_each_once(engine, engines):  # noqa: F811
    url = engines.url(engine, next(_names))
    failures = []

    def write(seed):
        try:
            rng = np.random.default_rng(seed)
            with open_store(url) as store:
                for _ in range(8):
                    keys = [f"key {i}" for i in rng.permutation(60)[:20]]
                    store.upsert(keys, np.tile(codes_of(seed), (20, 1)), [{"k": k} for k in keys])
                    store.delete([f"own {seed}"])
                    store.upsert([f"own {seed}"], codes_of(seed), [{"k": f"own {seed}"}])
        except BaseException as error:
            failures.append(error)

    with open_store(url, n_bits=16, id_type="string") as store:
        threads = [threading.Thread(target=write, args=[seed]) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        found = store.radius(codes_of(0), 16).ids.tolist()
        assert len(found) == len(set(found)) == store.count()
        items = store.get(found)
        assert [fields["k"] for fields in items.metadata] == found


def test_strings_with_equal_hashes_are_refused_by_milvus(engines, monkeypatch):  # noqa: F811
    with open_store(engines.url("milvus", next(_names)), n_bits=16, id_type="string") as store:
        digest = milvus.hashlib.blake2b
        monkeypatch.setattr(milvus.hashlib, "blake2b", lambda *_, **o: digest(b"same", **o))
        store.upsert(["a"], codes_of(1))
        with pytest.raises(StoreError, match=r"'b'.*'a'"):
            store.upsert(["b"], codes_of(2))
        with pytest.raises(StoreError, match=r"'b'.*'c'"):
            store.upsert(["b", "c"], codes_of(2, 3))
        assert store.get(["b"]).ids.tolist() == []
        assert store.delete(["b"]) == 0
        assert store.get(["a"]).codes.tolist() == [[1, 0]]


def test_attachments_are_stored_and_replaced(url, fresh_rng):
    large = fresh_rng.bytes(300_001)
    with open_store(url, n_bits=16) as store:
        assert store.read_attachment("model") is None
        store.write_attachments({"model": large, "settings": b"", "other": b"\0\xff"})
        with open_store(url, read_only=True) as reader:
            assert reader.read_attachment("model") == large
            with pytest.raises(StoreError, match="read"):
                reader.write_attachments({"model": b""})
        store.write_attachments({"model": large[:50_000]})
    with open_store(url) as store:
        assert store.read_attachment("model") == large[:50_000]
        assert store.read_attachment("settings") == b""
        assert store.read_attachment("other") == b"\0\xff"
        assert store.read_attachment("Model") is None
        assert store.count() == 0


def test_a_damaged_attachment_is_detected(engines):  # noqa: F811
    url = engines.url("postgresql", next(_names))
    with open_store(url, n_bits=16) as store:
        store.write_attachments({"model": b"right"})
        table = parse_url(url).options["table"]
        with psycopg.connect(parse_url(url).target) as connection:
            connection.execute(f"UPDATE {table}_attachments SET data = 'wrong'")
        with pytest.raises(StoreError, match="model"):
            store.read_attachment("model")
    with open_store(engines.url("milvus", next(_names)), n_bits=16) as store:
        store.write_attachments({"model": b"right"})
        rows = milvus_attachments._get(store._client, store._attachments, ["model"])
        (key,) = milvus_attachments._part_keys("model", milvus.json.loads(rows["model"]))
        milvus_attachments._put(store._client, store._attachments, [key], ["d3Jvbmc="])
        with pytest.raises(StoreError, match="model"):
            store.read_attachment("model")
        store._client.delete(store._attachments, ids=[key])
        with pytest.raises(StoreError, match="model"):
            store.read_attachment("model")


def kept(store, ids):
    with store.snapshot() as now:
        return now.kept_vectors(np.asarray(ids, np.int64))


def test_vectors_are_kept_with_their_items(keeping_url):
    with open_store(keeping_url, n_bits=16) as store:
        store.upsert([1, 2, 3], codes_of(1, 2, 3), vectors=[b"one", b"\0two", b"3" * 5_000])
        assert kept(store, [1, 2, 3, 4]) == {1: b"one", 2: b"\0two", 3: b"3" * 5_000}
        store.add(codes_of(4), ids=[4], vectors=[b"four"])
        with pytest.raises(IdsTakenError):
            store.add(codes_of(4, 5), ids=[5, 4], vectors=[b"x", b"y"])
        with pytest.raises(ValueError, match=r"\bvectors?\b.*\b1\b.*\b2\b"):
            store.upsert([5, 4], codes_of(4, 5), vectors=[b"x"])
        with store.snapshot() as before:
            store.upsert([1], codes_of(1), vectors=[b"uno"])
            store.upsert([2], codes_of(9))  # without a vector
            store.delete([3])
            assert set(before.kept_vectors(np.arange(9))) == {1, 2, 3, 4}
        assert kept(store, range(9)) == {1: b"uno", 4: b"four"}
        store.upsert([3], codes_of(3))
        assert kept(store, [3]) == {}
        store._replace_all(iter([ItemBatch(np.array([4]), codes_of(7), ["{}"])]))
        assert kept(store, range(9)) == {}


def test_vectors_are_kept_under_string_ids(keeping_url):
    with open_store(keeping_url, n_bits=16, id_type="string") as store:
        store.upsert(["a", "b"], codes_of(1, 2), vectors=[b"A", b"B"])
        store.upsert(["b", "c"], codes_of(2, 3), vectors=[b"BB", b"C"])
        with store.snapshot() as now:
            numbers = now._numbers_of(["a", "b", "c"])
            vectors = now.kept_vectors(np.array(list(numbers.values())))
        assert [vectors[numbers[key]] for key in "abc"] == [b"A", b"BB", b"C"]
        store.delete(["a", "c"])
        assert kept(store, list(numbers.values())) == {numbers["b"]: b"BB"}


def test_milvus_keeps_no_vectors(engines):  # noqa: F811
    for id_type, name in (("int64", 1), ("string", "a")):
        with open_store(engines.url("milvus", next(_names)), n_bits=16, id_type=id_type) as store:
            with pytest.raises(StoreError, match="SQLite"):
                store.upsert([name], codes_of(1), vectors=[b"x"])
            assert store.count() == 0
            with pytest.raises(StoreError, match="SQLite"):
                store.kept_vectors(np.array([1]))


def test_a_postgres_store_of_an_older_version_is_upgraded_when_opened(engines):  # noqa: F811
    url = engines.url("postgresql", next(_names))
    table = parse_url(url).options["table"]
    with psycopg.connect(parse_url(url).target, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute(
            f"CREATE TABLE {table} (id bigint PRIMARY KEY, code bit(16) NOT NULL, "
            "metadata jsonb NOT NULL)"
        )
        connection.execute(f"CREATE TABLE {table}_about (n_bits integer NOT NULL, model text)")
        connection.execute(f"INSERT INTO {table}_about VALUES (16, 'one')")
        connection.execute(f"INSERT INTO {table} VALUES (7, B'1000000000000001', '{{}}')")
    with open_store(url, read_only=True) as store:
        assert (store.n_bits, store.model, store.id_type) == (16, "one", "int64")
        assert store.read_attachment("model") is None
        assert kept(store, [7]) == {}
    with open_store(url) as store:
        store.write_attachments({"model": b"bytes"})
        store.upsert([8], codes_of(1), vectors=[b"x"])
        assert store.read_attachment("model") == b"bytes"
        assert kept(store, [7, 8]) == {8: b"x"}
        assert store.get([7]).codes.tolist() == [[128, 1]]

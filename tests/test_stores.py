"""The store interface with every engine, compared with brute force."""

import itertools
import subprocess
import sys
from contextlib import nullcontext
from urllib.parse import quote

import numpy as np
import psycopg
import pytest
from pymilvus import MilvusClient
from pymilvus.exceptions import MilvusException

from antipodal import open_store, pack
from antipodal.errors import IdsTakenError, StoreError
from antipodal.index import HammingIndex, Vectors
from antipodal.stores import milvus
from antipodal.stores.filters import matches, parse_where
from antipodal.stores.milvus import MAX_HITS
from antipodal.stores.url import parse_url
from engines import ENGINES, engines  # noqa: F401

N_BITS, N_ITEMS = 16, 10_000
FILTERS = [
    None,
    {"label": 3},
    {"label": {"in": [1, 2]}, "year": {"gte": 2000, "lt": 2010}},
    {"or": [{"label": 0}, {"not": {"flag": True}}]},
    {"tag.name": {"exists": True}},
    {"label": 99},
]
_names = (f"store_{number}" for number in itertools.count())


class Model:
    """Reference implementation of a store: a dictionary, loops and a sort."""

    def __init__(self, n_bits=N_BITS):
        self.n_bits = n_bits
        self.items = {}

    def upsert(self, ids, codes, metadata):
        for number, code, fields in zip(ids, codes, metadata, strict=True):
            self.items[int(number)] = (np.unpackbits(code), fields)

    def delete(self, ids):
        return sum(self.items.pop(int(number), None) is not None for number in ids)

    def ranking(self, query, where):
        tree = None if where is None else parse_where(where)
        matching = sorted(
            number
            for number, (_, fields) in self.items.items()
            if tree is None or matches(tree, fields)
        )
        if not matching:
            return []
        table = np.array([self.items[number][0] for number in matching])
        distances = (table != np.unpackbits(query)).sum(axis=1)
        return sorted(zip(distances.tolist(), matching, strict=True))


def assert_same_results(store, model, queries, k, r, where):
    near = store.search(queries, k, where=where)
    within = store.radius(queries, r, where=where)
    assert near.ids.dtype == within.ids.dtype == within.offsets.dtype == np.int64
    assert near.distances.dtype == within.distances.dtype == np.int32
    assert len(within.offsets) == len(queries) + 1
    for i, query in enumerate(queries):
        ranking = model.ranking(query, where)
        assert near.ids[i].tolist() == [number for _, number in ranking[:k]]
        assert near.distances[i].tolist() == [distance for distance, _ in ranking[:k]]
        part = slice(within.offsets[i], within.offsets[i + 1])
        hits = list(zip(within.distances[part].tolist(), within.ids[part].tolist(), strict=True))
        assert hits == [hit for hit in ranking if hit[0] <= r]
    assert store.count(where) == len(model.ranking(queries[0], where))


def random_items(rng, ids, width=N_BITS // 8):
    """Return codes with many duplicates, and metadata with optional fields."""
    pool = rng.integers(0, 256, (max(1, len(ids) // 3), width), dtype=np.uint8)
    codes = pool[rng.integers(0, len(pool), len(ids))]
    metadata = []
    for _ in ids:
        fields = {"label": int(rng.integers(5)), "year": int(rng.integers(1990, 2020))}
        if rng.random() < 0.5:
            fields["flag"] = bool(rng.integers(2))
        if rng.random() < 0.2:
            fields["tag"] = {"name": None}
        metadata.append(fields)
    return codes, metadata


@pytest.fixture(params=ENGINES)
def new_url(request, engines):  # noqa: F811
    """Return a function that returns the URL of a new store."""
    return lambda: engines.url(request.param, next(_names))


@pytest.fixture
def store(new_url):
    with open_store(new_url(), n_bits=N_BITS) as opened:
        yield opened


@pytest.fixture(scope="module", params=ENGINES)
def large(request, engines):  # noqa: F811
    """Return a store of 10,000 items with unsorted ids, and its model."""
    rng = np.random.default_rng(0)
    ids = rng.permutation(10 * N_ITEMS)[:N_ITEMS]
    codes, metadata = random_items(rng, ids)
    model = Model()
    model.upsert(ids, codes, metadata)
    with open_store(engines.url(request.param, next(_names)), n_bits=N_BITS) as opened:
        opened.load(ids, codes, metadata, batch_size=4000)
        yield opened, model


@pytest.mark.parametrize("where", FILTERS, ids=str)
@pytest.mark.parametrize(("k", "r"), [(1, 0), (300, 4)])
def test_results_are_those_of_brute_force(large, where, k, r, fresh_rng):
    store, model = large
    queries = fresh_rng.integers(0, 256, (4, 2), dtype=np.uint8)
    assert_same_results(store, model, queries, k, r, where)


@pytest.mark.parametrize("where", [None, {"label": 3}], ids=str)
def test_k_larger_than_the_store_returns_all_items(large, where):
    store, model = large
    queries = np.random.default_rng(1).integers(0, 256, (2, 2), dtype=np.uint8)
    assert_same_results(store, model, queries, 20_000, N_BITS, where)


def test_results_are_correct_after_updates_and_deletes(store, fresh_rng):
    rng = fresh_rng
    model = Model()
    for n_changed in (300, 200, 20, 20, 1, 20, 300):  # large and small changes
        ids = rng.choice(600, n_changed, replace=False)
        codes, metadata = random_items(rng, ids)
        store.upsert(ids, codes, metadata)
        model.upsert(ids, codes, metadata)
        deleted = rng.choice(600, n_changed // 3, replace=False)
        assert store.delete(deleted) == model.delete(deleted)
        queries = rng.integers(0, 256, (3, 2), dtype=np.uint8)
        for where in FILTERS:
            assert_same_results(store, model, queries, 7, 3, where)


def test_a_prepared_store_returns_the_same_results_after_changes(new_url, fresh_rng):
    model = Model(64)
    with open_store(new_url(), n_bits=64) as store:
        store.prepare(radius=2)  # while still empty
        for change in range(3):
            ids = fresh_rng.permutation(9_000)[: 4_500 if change == 0 else 200]
            codes, metadata = random_items(fresh_rng, ids, width=8)
            store.upsert(ids, codes, metadata)
            model.upsert(ids, codes, metadata)
            assert store.delete(ids[:20]) == model.delete(ids[:20])
            store.prepare()
            for query in codes[20:23] ^ np.uint8(1):
                assert_same_results(store, model, query[None] ^ np.uint8(1), 3, 2, None)


def test_ties_are_broken_by_the_smallest_ids(store):
    ids = np.random.default_rng(3).permutation(500)
    store.upsert(ids, np.zeros((500, 2), np.uint8))
    result = store.search(np.full((2, 2), 255, np.uint8), 5)
    assert result.ids.tolist() == [[0, 1, 2, 3, 4]] * 2
    assert (result.distances == 16).all()


def test_radius_is_inclusive(store):
    store.upsert([1, 2, 3], pack([[0] * 16, [1, 1] + [0] * 14, [1, 1, 1] + [0] * 13]))
    assert store.radius(pack([[0] * 16]), 2).ids.tolist() == [1, 2]
    assert store.radius(pack([[0] * 16]), 0).ids.tolist() == [1]
    assert store.radius(pack([[0] * 16]), 1_000).distances.tolist() == [0, 2, 3]


@pytest.mark.parametrize("n_bits", [1, 13, 24, 100])
def test_codes_of_any_length_are_stored_and_compared(new_url, n_bits):
    rng = np.random.default_rng(n_bits)
    codes = pack(rng.integers(0, 2, (60, n_bits)))
    model = Model(n_bits)
    model.upsert(range(60), codes, [{}] * 60)
    with open_store(new_url(), n_bits=n_bits) as store:
        store.upsert(range(60), codes)
        np.testing.assert_array_equal(store.get(range(60)).codes, codes)
        assert_same_results(store, model, codes[:3], 9, n_bits // 3, None)


def test_items_are_returned_unchanged(store):
    fields = {
        "text": "é \" \\ ' % 𝄞 \n",
        "": {"a b": [1, None, {"deep": True}]},
        "numbers": [2**63 - 1, -(2**63), 2**53 + 1, 0.1, 1e300, 5e-324, -1.5e-7, 3.0],
        "semi;colon'--": False,
    }
    code = np.array([[170, 1]], np.uint8)
    store.upsert([7], code, [fields])
    items = store.get([8, 7])
    assert items.ids.tolist() == [7]
    assert items.codes.tolist() == code.tolist()
    assert items.metadata == [fields]
    kinds = [type(number) for number in items.metadata[0]["numbers"]]
    assert kinds == [int, int, int, float, float, float, float, int]


def test_get_preserves_the_order_of_ids_and_upsert_replaces_whole_items(store):
    store.upsert([5, 1, 3], np.array([[5, 0], [1, 0], [3, 0]], np.uint8), [{"a": 1}, None, {}])
    store.upsert([5], np.array([[9, 0]], np.uint8))
    items = store.get([3, 5, 4, 1])
    assert items.ids.tolist() == [3, 5, 1]
    assert items.codes[:, 0].tolist() == [3, 9, 1]
    assert items.metadata == [{}, {}, {}]


def largest_id(store):
    """Return the largest allowed id: servers of Milvus reject 2⁶³ - 1."""
    return 2**63 - (2 if "milvus+" in store.place else 1)


def all_ids(store):
    with store.snapshot() as now:
        return [number for batch in now.batches() for number in batch.ids.tolist()]


def test_ids_may_be_any_64_bit_number(store):
    ids = [-(2**63), 1 - 2**63, -1, 0, 2**31, 2**53 + 1, largest_id(store)]
    store.upsert(ids, np.zeros((7, 2), np.uint8), [{"a": 1}] * 7)
    for where in (None, {"a": 1}):
        assert store.search(np.zeros((1, 2), np.uint8), 7, where=where).ids.tolist() == [ids]
    assert store.get([-(2**63), -1]).ids.tolist() == [-(2**63), -1]
    assert store.get([2**53 + 1, 2**53]).ids.tolist() == [2**53 + 1]
    assert all_ids(store) == ids
    assert store.delete([ids[-1], 5]) == 1
    store.delete(ids[1:])  # the smallest id remains
    assert store.count({"a": 1}) == 1
    assert all_ids(store) == ids[:1]


def test_an_empty_store_and_empty_arguments_return_empty_results(store):
    query = np.zeros((2, 2), np.uint8)
    assert store.count() == 0
    assert store.search(query, 3).ids.shape == (2, 0)
    assert store.radius(query, 3).offsets.tolist() == [0, 0, 0]
    assert store.search(query, 3, where={"a": 1}).ids.shape == (2, 0)
    store.upsert([], np.empty((0, 2), np.uint8))
    assert store.delete([]) == 0
    assert store.delete([1]) == 0
    assert store.get([]).codes.shape == (0, 2)
    store.upsert([1], np.zeros((1, 2), np.uint8))
    assert store.search(np.empty((0, 2), np.uint8), 3).ids.shape[0] == 0
    assert store.radius(np.empty((0, 2), np.uint8), 3).offsets.tolist() == [0]


def test_items_persist_when_the_store_is_reopened(new_url):
    url = new_url()
    with open_store(url, n_bits=16, model="sha256:abc") as store:
        store.upsert([4], np.array([[1, 2]], np.uint8), [{"a": "b"}])
    with open_store(url) as store:
        assert (store.n_bits, store.model) == (16, "sha256:abc")
        assert store.get([4]).metadata == [{"a": "b"}]
        assert store.search(np.array([[1, 2]], np.uint8), 1).ids.tolist() == [[4]]
    open_store(url, n_bits=16, model="sha256:abc").close()


def test_codes_of_another_length_or_model_raise(new_url):
    url = new_url()
    with pytest.raises(StoreError, match="pass n_bits"):
        open_store(url)
    with open_store(url, n_bits=16, model="one") as store:
        for codes in (np.zeros((1, 3), np.uint8), np.zeros((1, 1), np.uint8)):
            with pytest.raises(ValueError, match=r"\b16 bits\b.*\b2 bytes\b"):
                store.upsert([1], codes)
            with pytest.raises(ValueError, match=r"\b16 bits\b.*\b2 bytes\b"):
                store.search(codes, 1)
    with pytest.raises(StoreError, match=r"\b16\b.*\b15\b"):
        open_store(url, n_bits=15)
    with pytest.raises(StoreError, match=r"'one'.*'two'"):
        open_store(url, n_bits=16, model="two")
    url = new_url()
    open_store(url, n_bits=16).close()
    with pytest.raises(StoreError, match="model"):
        open_store(url, model="one")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s, c: s.upsert([1, 1], c), ValueError, r"\bids\b.*\b1\b"),
        (lambda s, c: s.upsert([1], c), ValueError, r"\b1\b.*\b2\b"),
        (lambda s, c: s.upsert([0.5, 1], c), TypeError, r"\bids\b.*\bfloat64\b"),
        (
            lambda s, c: s.upsert(np.array([2**63, 1], np.uint64), c),
            ValueError,
            r"\bids\b.*\b9223372036854775808\b",
        ),
        (lambda s, c: s.upsert([[1, 2]], c), ValueError, r"\bids\b.*\(1, 2\)"),
        (lambda s, c: s.upsert([1, 2], c, [{}]), ValueError, r"\bmetadata\b.*\b1\b.*\b2\b"),
        (lambda s, c: s.upsert([1, 2], c, {"a": 1}), TypeError, r"\bmetadata\b.*\bdict\b"),
        (lambda s, c: s.upsert([1, 2], c, [{}, 3]), TypeError, r"metadata\[1\].*\bint\b"),
        (lambda s, c: s.upsert([1, 2], c, [{}, {"a": np.nan}]), ValueError, "finite"),
        (lambda s, c: s.upsert([1, 2], c, [{}, {"a": 2**63}]), ValueError, r"\b64 bits\b"),
        (lambda s, c: s.upsert([1, 2], c, [{}, {"a": "\0"}]), ValueError, r"U\+0000"),
        (lambda s, c: s.upsert([1, 2], c, [{}, {"\ud800": 1}]), ValueError, "surrogates"),
        (lambda s, c: s.upsert([1, 2], c, [{}, {1: 1}]), TypeError, r"metadata\[1\].*\b1$"),
        (lambda s, c: s.upsert([1, 2], c, [{}, {"a": {1}}]), TypeError, r"\bset\b"),
        (lambda s, c: s.search(c, 0), ValueError, r"\bk\b.*\b1\b.*\b0\b"),
        (lambda s, c: s.radius(c, -1), ValueError, r"\br\b.*\b0\b.*-1\b"),
        (lambda s, c: s.search(c, 1, where={"a": [1]}), TypeError, '"in"'),
    ],
)
def test_invalid_arguments_raise_and_change_nothing(store, call, error, message):
    store.upsert([1], np.zeros((1, 2), np.uint8), [{"kept": True}])
    with pytest.raises(error, match=message):
        call(store, np.ones((2, 2), np.uint8))
    assert store.count() == 1
    assert store.get([1]).metadata == [{"kept": True}]


def test_a_closed_store_raises_and_can_be_closed_again(new_url):
    store = open_store(new_url(), n_bits=16)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.count()
    with pytest.raises(StoreError, match="closed"):
        store.upsert([1], np.zeros((1, 2), np.uint8))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_read_only_store_is_neither_created_nor_written(engine, engines):  # noqa: F811
    url = engines.url(engine, next(_names))
    with pytest.raises(StoreError, match="n_bits"):
        open_store(url, n_bits=16, read_only=True)
    code = np.zeros((1, 2), np.uint8)
    with open_store(url, n_bits=16, model="one") as store:
        store.upsert([1], code)
        with open_store(url, n_bits=16, model="one", read_only=True) as reader:
            store.upsert([2], code)
            assert reader.search(code, 5).ids.tolist() == [[1, 2]]  # writes of others are visible
            for write in (
                lambda: reader.upsert([3], code),
                lambda: reader.add(code),
                lambda: reader.load([3], code),
                lambda: reader.delete([1]),
            ):
                with pytest.raises(StoreError, match="read-only"):
                    write()
            if engine != "milvus":  # the engine enforces it as well
                with pytest.raises(StoreError, match="read-only"):
                    reader._put(np.array([3]), code, ["{}"], replace=True)
        assert store.count() == 2
    with pytest.raises(StoreError, match=r"\b16\b.*\b15\b"):
        open_store(url, n_bits=15, read_only=True)
    with pytest.raises(StoreError, match=r"'one'.*'two'"):
        open_store(url, model="two", read_only=True)


def test_load_reports_durable_batches_and_resumes_after_an_interruption(new_url):
    class InterruptedLoadError(Exception):
        pass

    rng = np.random.default_rng(4)
    ids = np.arange(1000)
    codes, metadata = random_items(rng, ids)
    done = []

    def stop_at_600(number):
        done.append(number)
        if number == 600:
            raise InterruptedLoadError

    url = new_url()
    with open_store(url, n_bits=16) as store, pytest.raises(InterruptedLoadError):
        store.load(ids, codes, iter(metadata), batch_size=300, progress=stop_at_600)
    assert done == [300, 600]
    with open_store(url) as store:
        assert store.count() == 600
        store.load(ids[600:], codes[600:], iter(metadata[600:]), batch_size=300)
        items = store.get(ids)
    np.testing.assert_array_equal(items.codes, codes)
    assert items.metadata == metadata


def test_two_stores_of_one_engine_do_not_mix(new_url):
    with open_store(new_url(), n_bits=16) as one, open_store(new_url(), n_bits=8) as two:
        one.upsert([1], np.zeros((1, 2), np.uint8))
        two.upsert([2, 3], np.zeros((2, 1), np.uint8))
        assert (one.count(), two.count()) == (1, 2)


# ------------------------------------------------------------------- adding and replacing


def test_added_items_continue_after_the_largest_id(store):
    codes = np.arange(10, dtype=np.uint8).reshape(5, 2)
    assert store.next_id() == 0
    assert store.add(codes).tolist() == [0, 1, 2, 3, 4]
    assert store.add(codes[:1], [70], [{"a": 1}]).tolist() == [70]
    assert store.add(codes[:2], metadata=[{"b": 1}, None]).tolist() == [71, 72]
    store.delete([72])
    assert store.next_id() == 72
    items = store.get([0, 4, 70, 71])
    assert items.codes.tolist() == codes[[0, 4, 0, 0]].tolist()
    assert items.metadata == [{}, {}, {"a": 1}, {"b": 1}]
    assert store.add(codes[:0]).tolist() == []


def test_the_largest_id_may_be_any_64_bit_number(store):
    code = np.zeros((1, 2), np.uint8)
    last = largest_id(store)
    for largest in (-(2**63), -5, -1, 2**40 + 3, last - 1):
        store.upsert([largest], code)
        assert store.next_id() == largest + 1
    assert store.add(code).tolist() == [last]
    with pytest.raises(ValueError, match=rf"\bids\b.*{last}|{last}.*\bids\b"):
        store.add(code)
    assert store.count() == 6


def test_adding_an_id_in_use_raises_and_changes_nothing(store):
    codes = np.arange(10, dtype=np.uint8).reshape(5, 2)
    store.add(codes, [10, 11, 12, 13, 14], [{"kept": True}] * 5)
    with pytest.raises(IdsTakenError, match=r"\bids\b.*\b14\b"):
        store.add(codes[::-1], [1, 2, 3, 14, 15])
    # With several batches, all ids are checked first.
    with pytest.raises(IdsTakenError, match=r"\bids\b.*\b10, 14\b"):
        store.load([1, 2, 10, 3, 14], codes, replace=False, batch_size=2)
    items = store.get(range(20))
    assert items.ids.tolist() == [10, 11, 12, 13, 14]
    assert items.codes.tolist() == codes.tolist()
    assert items.metadata == [{"kept": True}] * 5


def test_items_added_by_another_process_during_a_load_are_not_overwritten(new_url):
    codes = np.arange(12, dtype=np.uint8).reshape(6, 2)
    url = new_url()
    with open_store(url, n_bits=16) as store, open_store(url) as other:
        for ids in (range(6), None):
            store.delete(range(20))

            def interfere(done, other=other):
                if done == 2:
                    other.upsert([3], np.full((1, 2), 255, np.uint8), [{"other": True}])

            with pytest.raises(IdsTakenError, match=r"\bids\b.*\b3\b.*\b2\b"):
                store.load(ids, codes, replace=False, batch_size=2, progress=interfere)
            items = store.get(range(20))
            assert items.ids.tolist() == [0, 1, 3]
            assert items.codes[2].tolist() == [255, 255]
            assert items.metadata[2] == {"other": True}


def test_concurrent_appends_retry_with_new_ids(store, monkeypatch):
    codes = np.zeros((2, 2), np.uint8)
    store.add(codes)
    outdated = iter([0, 1])  # next ids before other writers
    next_id = store.next_id
    monkeypatch.setattr(store, "next_id", lambda: next(outdated, None) or next_id())
    assert store.add(codes).tolist() == [2, 3]


def test_keep_metadata_preserves_the_metadata_of_replaced_items(store):
    codes = np.arange(6, dtype=np.uint8).reshape(3, 2)
    fields = {"text": "é 𝄞", "number": 0.1, "list": [1, None]}
    store.upsert([1, 2], codes[:2], [fields, {"a": 1}])
    store.upsert([1, 3], codes[1:], keep_metadata=True)
    items = store.get([1, 2, 3])
    assert items.codes.tolist() == codes[[1, 1, 2]].tolist()
    assert items.metadata == [fields, {"a": 1}, {}]
    assert store.search(codes[[1]], 2, where={"number": 0.1}).ids.tolist() == [[1]]
    with pytest.raises(ValueError, match="keep_metadata"):
        store.upsert([1], codes[:1], [{}], keep_metadata=True)


def test_loads_without_ids_and_with_keep_metadata_add_items_without_metadata(store):
    codes = np.arange(10, dtype=np.uint8).reshape(5, 2)
    loaded = store.load(None, codes, keep_metadata=True, batch_size=2)
    assert (loaded.ids.tolist(), loaded.added) == ([0, 1, 2, 3, 4], 5)
    items = store.get(loaded.ids)
    assert items.codes.tolist() == codes.tolist()
    assert items.metadata == [{}] * 5


def test_a_load_counts_added_replaced_and_unchanged_items(store):
    rng = np.random.default_rng(8)
    ids = rng.permutation(100)
    codes, metadata = random_items(rng, ids)
    store.upsert(ids[:30], codes[:30], metadata[:30])
    others = [{"label": True}, *metadata[1:30]]
    store.upsert(ids[:30], np.concatenate([codes[:20], 255 - codes[20:30]]), others)
    with pytest.raises(IdsTakenError, match=r"\bids\b"):
        store.load(ids, codes, metadata, resume=True, replace=False, batch_size=40)
    assert store.count() == 30
    loaded = store.load(ids, codes, metadata, resume=True, batch_size=40)
    assert loaded[1:] == (70, 11, 19)
    assert loaded.ids.tolist() == ids.tolist()
    items = store.get(ids)
    np.testing.assert_array_equal(items.codes, codes)
    assert items.metadata == metadata
    assert store.load(ids[:60] + 50, codes[:60], batch_size=40)[1:] == (
        int((ids[:60] >= 50).sum()),
        int((ids[:60] < 50).sum()),
        0,
    )
    assert store.load(None, codes[:5])[1:] == (5, 0, 0)


def test_an_invalid_load_raises_before_writing(store):
    codes = np.zeros((4, 2), np.uint8)

    def load(*arguments, **options):
        store.load(*arguments, batch_size=2, **options)

    with pytest.raises(ValueError, match=r"\bids\b.*\b2\b"):
        load([1, 2, 3, 2], codes)
    with pytest.raises(ValueError, match=r"\b3\b.*\b4\b"):
        load([1, 2, 3], codes)
    with pytest.raises(ValueError, match=r"\bmetadata\b.*\b3\b.*\b4\b"):
        load([1, 2, 3, 4], codes, [{}] * 3)
    with pytest.raises(TypeError, match=r"\bmetadata\b.*\blist\b"):
        load([1, 2, 3, 4], codes, iter([{}] * 4), resume=True)
    with pytest.raises(ValueError, match=r"\bresume\b"):
        load(None, codes, resume=True)
    with pytest.raises(TypeError, match=r"\bmetadata\b.*\bdict\b"):
        load([1, 2, 3, 4], codes, {"a": 1})
    assert store.count() == 0


def test_reranked_results_are_those_of_the_index(store):
    rng = np.random.default_rng(9)
    ids = rng.permutation(200)
    codes, _ = random_items(rng, ids)
    index = HammingIndex(N_BITS)
    index.add(codes, ids)
    store.upsert(ids, codes)
    X, Q, z = rng.random((200, 3)), rng.random((4, 3)), rng.standard_normal((4, N_BITS))
    for rescore in (z, Vectors(Q, X)):
        expected = index.search(codes[:4], 5, rescore=rescore)
        found = store.search(codes[:4], 5, rescore=rescore)
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.distances, expected.distances)
        np.testing.assert_array_equal(found.scores, expected.scores)


# ------------------------------------------------------------------------ opening by URL


@pytest.mark.parametrize(
    ("url", "target", "options"),
    [
        ("sqlite:///codes.db", "codes.db", {}),
        ("sqlite:////data/a%3Fb%23c.db?timeout=3", "/data/a?b#c.db", {"timeout": "3"}),
        ("milvus:///codes.db?collection=x", "codes.db", {"collection": "x"}),
        ("milvus+http://host:19530", "http://host:19530", {}),
        ("milvus+https://host?token=a:b", "https://host", {"token": "a:b"}),
        ("milvus+https://a:b%40c@host:1", "https://host:1", {"token": "a:b@c"}),
        ("postgresql://u:p@host:5433/db", "postgresql://u:p@host:5433/db", {}),
        (
            "postgres:///db?host=/tmp/x&table=a%22b&sslmode=require",
            "postgresql:///db?host=/tmp/x&sslmode=require",
            {"table": 'a"b'},
        ),
    ],
)
def test_urls_are_split_into_engine_address_and_options(url, target, options):
    address = parse_url(url)
    assert (address.target, address.options) == (target, options)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("codes.db", r"codes\.db.*sqlite:///"),
        ("mysql://host/db", "sqlite:///codes.db, postgresql://"),
        ("sqlite://codes.db", r"sqlite:///.*\.db"),
        ("sqlite:///", "sqlite:///"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite:///a.db?table=x", "'table'.*sqlite"),
        ("sqlite:///a.db?timeout=soon", r"\btimeout\b.*soon"),
        ("milvus:///codes.sqlite", r"\.db\b"),
        ("milvus+http://", "host:port"),
        ("milvus+http://host/x", "host:port"),
    ],
)
def test_invalid_urls_raise(url, message):
    with pytest.raises(ValueError, match=message):
        open_store(url, n_bits=8)


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("postgresql://host/db", "psycopg", "postgres"),
        ("milvus:///x.db", "pymilvus", "milvus"),
    ],
)
def test_a_missing_dependency_names_its_extra(monkeypatch, url, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(StoreError, match=rf"\[{extra}\]"):
        open_store(url, n_bits=8)


def test_the_stores_do_not_import_torch():
    code = "import sys, antipodal.stores.sqlite; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ---------------------------------------------------------------------------- PostgreSQL


def test_postgres_is_exact_in_the_presence_of_an_approximate_index(engines):  # noqa: F811
    rng = np.random.default_rng(5)
    codes = np.repeat(rng.integers(0, 256, (20, 2), dtype=np.uint8), 150, axis=0)
    model = Model()
    model.upsert(range(3000), codes, [{}] * 3000)
    url = engines.url("postgresql", "indexed")
    with open_store(url, n_bits=16) as store:
        store.load(np.arange(3000), codes)
        with psycopg.connect(parse_url(url).target, autocommit=True) as connection:
            connection.execute("CREATE INDEX ON indexed USING hnsw (code bit_hamming_ops)")
            connection.execute("ANALYZE indexed")
            connection.execute("ALTER DATABASE postgres SET enable_seqscan = off")
        try:
            with open_store(url) as again:
                assert_same_results(again, model, codes[[0, 1000]], 200, 3, None)
        finally:
            with psycopg.connect(parse_url(url).target, autocommit=True) as connection:
                connection.execute("ALTER DATABASE postgres RESET enable_seqscan")


@pytest.fixture(scope="module")
def approximate(engines):  # noqa: F811
    """Return a store with HNSW of 20,000 codes around 50 centres, 1 % of them with label 3."""
    rng = np.random.default_rng(7)
    centres = rng.integers(0, 256, (50, 8), dtype=np.uint8)
    flips = np.packbits(rng.random((20_100, 64)) < 0.15, axis=1)
    codes = centres[rng.integers(0, 50, 20_100)] ^ flips
    with open_store(engines.url("postgresql", "approximate"), n_bits=64) as store:
        labels = [{"label": i % 100, "rare": i % 5000 == 0} for i in range(20_000)]
        store.load(np.arange(20_000), codes[:20_000], labels)
        with pytest.raises(StoreError, match=r"prepare_approximate\(\)"):
            store.search(codes[:1], 5, exact=False)
        store.prepare_approximate(memory_mb=64)
        store.prepare_approximate()  # already built
        yield store, codes[:20_000], codes[20_000:]


def test_approximate_search_has_high_and_measured_recall(approximate):
    store, codes, queries = approximate
    true = np.sort((np.unpackbits(queries[:, None] ^ codes, axis=2)).sum(axis=2), axis=1)[:, :10]
    found = store.search(queries, 10, exact=False)
    distances = np.unpackbits(queries[:, None] ^ codes[found.ids], axis=2).sum(axis=2)
    np.testing.assert_array_equal(distances, found.distances)
    keys = found.distances.astype(np.int64) * 2**32 + found.ids
    assert (np.diff(keys) > 0).all()  # by (distance, id), each once
    recall = np.mean(found.distances <= true[:, -1:])
    assert 0.9 < recall == store.recall(queries, 10)
    np.testing.assert_array_equal(store.search(queries, 10).distances, true)


@pytest.mark.parametrize(("where", "n_matching"), [({"label": 3}, 200), ({"rare": True}, 4)])
def test_approximate_search_returns_k_items_with_filters(approximate, where, n_matching):
    store, _, queries = approximate
    found = store.search(queries[:20], 10, where=where, exact=False)
    assert found.ids.shape == (20, min(10, n_matching))
    matching = store.radius(queries[:1], 64, where=where).ids
    assert np.isin(found.ids, matching).all()
    assert store.recall(queries[:20], 10, where=where) > 0.8


def test_only_approximate_search_uses_the_index(approximate):
    store, _, queries = approximate
    scans = (
        "SELECT sum(pg_stat_get_xact_numscans(indexrelid)) FROM pg_index "
        "WHERE indrelid = 'approximate'::regclass AND NOT indisunique"
    )
    for exact, expected in ((True, 0), (False, 5)):
        with store.snapshot() as now:
            # Counts include scans of earlier transactions that PostgreSQL has not yet flushed.
            (before,) = now._cursor.execute(scans).fetchone()
            now.search(queries[:5], 10, exact=exact)
            (after,) = now._cursor.execute(scans).fetchone()
            assert after - before == expected


def test_only_postgres_has_an_approximate_index(engines):  # noqa: F811
    for engine in ("sqlite", "milvus"):
        with open_store(engines.url(engine, "exact_only"), n_bits=8) as store:
            for call in (
                store.prepare_approximate,
                lambda: store.search(np.zeros((1, 1), np.uint8), exact=False),
                lambda: store.recall(np.zeros((1, 1), np.uint8), 3),
            ):
                with pytest.raises(StoreError, match="PostgreSQL"):
                    call()


def test_postgres_scans_with_several_processes(engines):  # noqa: F811
    url = engines.url("postgresql", "parallel")
    now = "&options=-c%20min_parallel_table_scan_size%3D0%20-c%20parallel_setup_cost%3D0"
    launched = "SELECT parallel_workers_launched FROM pg_stat_database WHERE datname = 'postgres'"
    rng = np.random.default_rng(8)
    codes = rng.integers(0, 256, (5000, 2), dtype=np.uint8)
    model = Model()
    model.upsert(range(5000), codes, [{}] * 5000)
    with (
        open_store(url + now, n_bits=16) as store,
        psycopg.connect(parse_url(url).target, autocommit=True) as connection,
    ):
        store.load(np.arange(5000), codes)
        before = connection.execute(launched).fetchone()[0]
        found = store.search(codes[:3], 10)
        for query, ids in zip(codes[:3], found.ids.tolist(), strict=True):
            assert ids == [number for _, number in model.ranking(query, None)[:10]]
        with store.snapshot() as snapshot:
            snapshot._cursor.execute("SELECT pg_stat_force_next_flush()")
        assert connection.execute(launched).fetchone()[0] > before


def test_postgres_names_are_quoted(engines):  # noqa: F811
    table = 'a"; DROP TABLE codes; --{x}'
    url = engines.url("postgresql", quote(table))
    for _ in range(2):
        with open_store(url, n_bits=16) as store:
            store.upsert([1], np.zeros((1, 2), np.uint8), [{"a": 1}])
            assert store.count({"a": 1}) == 1
            assert store.search(np.zeros((1, 2), np.uint8), 2).ids.tolist() == [[1]]
    with psycopg.connect(parse_url(url).target) as connection:
        row = connection.execute("SELECT count(*) FROM pg_tables WHERE tablename = %s", [table])
        assert row.fetchone() == (1,)
    for name in ("x" * 58, "", "a%25s"):
        with pytest.raises(ValueError, match="1 to 57 bytes"):
            open_store(engines.url("postgresql", name), n_bits=16)


def test_postgres_uses_the_given_schema(engines):  # noqa: F811
    url = engines.url("postgresql", "codes")
    with psycopg.connect(parse_url(url).target, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA "my schema"')
    with (
        open_store(url, n_bits=16) as here,
        open_store(f"{url}&schema=my%20schema", n_bits=8) as elsewhere,
    ):
        elsewhere.upsert([1], np.zeros((1, 1), np.uint8))
        assert (here.count(), elsewhere.count()) == (0, 1)
    with pytest.raises(StoreError, match="nowhere"):
        open_store(f"{url}&schema=nowhere", n_bits=8)


def test_postgres_rejects_foreign_tables(engines):  # noqa: F811
    url = engines.url("postgresql", "foreign_table")
    with psycopg.connect(parse_url(url).target, autocommit=True) as connection:
        connection.execute("CREATE TABLE foreign_table (id bigint)")
    with pytest.raises(StoreError, match="antipodal"):
        open_store(url, n_bits=16)


def test_postgres_reconnects_after_a_lost_connection(engines):  # noqa: F811
    url = engines.url("postgresql", "lost")
    with open_store(url, n_bits=16) as store:
        store.upsert([1], np.zeros((1, 2), np.uint8))
        with store.snapshot() as now:  # not the connections of other tests
            (process,) = now._cursor.execute("SELECT pg_backend_pid()").fetchone()
        with psycopg.connect(parse_url(url).target, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", (process,))
        with pytest.raises(StoreError, match="terminating connection"):
            store.count()
        assert store.count() == 1


def test_unreachable_postgres_raises_a_store_error():
    with pytest.raises(StoreError, match=r"postgresql://127\.0\.0\.1:1/db"):
        open_store("postgresql://user:secret@127.0.0.1:1/db", n_bits=8)


# -------------------------------------------------------------------------------- Milvus


def test_milvus_returns_all_ties_beyond_its_limit_of_hits(engines):  # noqa: F811
    n_items = MAX_HITS + 1_000
    ids = np.random.default_rng(6).permutation(n_items)
    with open_store(engines.url("milvus", "ties"), n_bits=8) as store:
        store.load(ids, np.zeros((n_items, 1), np.uint8))
        query = np.array([[3]], np.uint8)
        assert store.search(query, 4).ids.tolist() == [[0, 1, 2, 3]]
        np.testing.assert_array_equal(store.radius(query, 2).ids, np.arange(n_items))
        assert len(store.radius(query, 1).ids) == 0
        np.testing.assert_array_equal(store.search(query, n_items).ids[0], np.arange(n_items))


@pytest.mark.parametrize("n_before", [0, 1])  # indexes: of the codes, of the attachments
def test_a_milvus_store_interrupted_before_its_index_resumes(n_before, engines, monkeypatch):  # noqa: F811
    url, created = engines.url("milvus", f"without_index_{n_before}"), []
    create = MilvusClient.create_index

    def interrupt(self, collection, *arguments, **options):
        if len(created) == n_before:
            raise KeyboardInterrupt
        created.append(collection)
        return create(self, collection, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MilvusClient, "create_index", interrupt)
        with pytest.raises(KeyboardInterrupt), open_store(url, n_bits=8) as store:
            store.write_attachments({"name": b"old"})
    with open_store(url, n_bits=8) as store:
        assert store.read_attachment("name") is None
        store.write_attachments({"name": b"new"})
        assert store.read_attachment("name") == b"new"
        store.upsert([1], np.zeros((1, 1), np.uint8))
        assert store.search(np.zeros((1, 1), np.uint8), 1).ids.tolist() == [[1]]


@pytest.mark.parametrize(("url", "n_calls"), [("milvus:///x.db", 3), ("milvus+http://h:1", 1)])
def test_a_starting_milvus_lite_is_waited_for(url, n_calls, monkeypatch):
    calls = []

    def client(*args, **options):
        calls.append(args)
        if len(calls) < 3:
            raise MilvusException(code=2, message="server unavailable")
        return "client"

    monkeypatch.setattr(milvus, "MilvusClient", client)
    with nullcontext() if n_calls == 3 else pytest.raises(MilvusException):
        assert milvus.connect(parse_url(url)) == "client"
    assert len(calls) == n_calls


def test_milvus_joins_partial_results(engines, monkeypatch):  # noqa: F811
    monkeypatch.setattr(milvus, "MAX_HITS", 20)
    monkeypatch.setattr(milvus, "_MAX_IDS", 30)
    monkeypatch.setattr(milvus, "_MAX_ANSWERS", 30)
    monkeypatch.setattr(milvus, "_BATCH", 40)
    rng = np.random.default_rng(7)
    ids = rng.permutation(1000)[:200]
    codes, metadata = random_items(rng, ids)
    model = Model()
    model.upsert(ids, codes, metadata)
    with open_store(engines.url("milvus", "parts"), n_bits=16) as store:
        store.upsert(ids, codes, metadata)
        assert sorted(store.get(ids).ids) == sorted(ids)
        for where in FILTERS:
            for k, r in ((3, 3), (20, 7), (21, 8)):
                assert_same_results(store, model, codes[:3], k, r, where)
        assert store.delete(ids[:90]) == 90
        assert store.count() == 110


def test_embedded_milvus_is_not_pinged(tmp_path, engines):  # noqa: F811
    engines.start_milvus_lite()
    with open_store(f"milvus:///{tmp_path}/quiet.db", n_bits=8) as store:
        options = store._client._handler._grpc_options  # waiting for a disconnect takes a minute
    assert options == {"grpc.keepalive_time_ms": 2**31 - 1}


def test_milvus_rejects_foreign_collections(engines):  # noqa: F811
    url = engines.url("milvus", "foreign")
    client = MilvusClient(parse_url(url).target)
    client.create_collection("foreign", dimension=4)
    client.close()
    with pytest.raises(StoreError, match="antipodal"):
        open_store(url, n_bits=8)


def test_unreachable_milvus_raises_a_store_error():
    with pytest.raises(StoreError, match=r"milvus\+http://127.0.0.1:1"):
        open_store("milvus+http://user:secret@127.0.0.1:1", n_bits=8)

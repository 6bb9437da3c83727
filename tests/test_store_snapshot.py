"""Snapshot consistency: candidates, codes and metadata of a result during writes."""

import itertools

import numpy as np
import pytest

from antipodal import LSH, open_store
from antipodal.errors import StoreError
from antipodal.service.schemas import SearchRequest
from antipodal.stores.snapshot import Reader, Snapshot
from engines import engines  # noqa: F401
from served import engine_of
from snapshot import ask as ask_codes
from snapshot import ask_collection

N_BITS = 8
HASHER = LSH(N_BITS, random_state=0).fit(np.random.default_rng(0).standard_normal((40, 4)))
_names = (f"snapshot_{number}" for number in itertools.count())


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, engines):  # noqa: F811
    with open_store(engines.url(request.param, next(_names)), n_bits=N_BITS) as opened:
        yield opened


def write(store, number):
    """Write state `number`: item 0 keeps its code, item 1 is near in odd states only."""
    codes = np.array([[1], [0 if number % 2 else 255]], np.uint8)
    store.upsert([0, 1], codes, [{"state": number, "even": number % 2 == 0}] * 2)


def check(answer, request):
    """Check that a response agrees with the state named in its metadata."""
    results = answer["results"]
    if request.where is not None and not results:
        return
    [number] = {result["metadata"]["state"] for result in results}
    if number % 2:
        assert request.where is None
        expected, counts = [(1, 0), (0, 1)], [1, 1, 0, 0, 0, 0, 0, 0, 0]
    else:
        expected, counts = [(0, 1)], [0, 1, 0, 0, 0, 0, 0, 0, 1]
    found = [(result["id"], result["distance"]) for result in results]
    assert found == (expected if request.radius else expected[:1])
    assert answer.get("histogram") in (None, counts)


REQUESTS = [
    SearchRequest(code="00", k=1),
    SearchRequest(code="00", k=1, where={"even": True}),
    SearchRequest(code="00", radius=1, histogram=True),
]


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_write_between_search_and_fetch_is_not_visible(store, request_, monkeypatch):
    numbers, get = itertools.count(1), Reader._items_of

    def get_after_a_write(self, ids):
        write(store, next(numbers))
        return get(self, ids)

    write(store, 0)
    monkeypatch.setattr(Reader, "_items_of", get_after_a_write)
    for _ in range(6):
        check(engine_of(store, HASHER).search(request_), request_)
    assert next(numbers) == 7  # no read was repeated


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
@pytest.mark.parametrize("ask", [ask_codes, ask_collection])
def test_every_response_agrees_with_one_state(engines, engine, ask):  # noqa: F811
    for _ in range(10):  # on a busy machine all responses may precede the writes
        found = ask(engines.url(engine, next(_names)), 150, seed=0)
        assert not found["failures"]
        if found["states"] > 5:
            break
    assert found["states"] > 5  # writes did happen


def test_a_snapshot_does_not_change(store):
    zero, ones = np.zeros((1, 1), np.uint8), np.full((1, 1), 255, np.uint8)
    store.upsert([1, 2, 3], np.zeros((3, 1), np.uint8), [{"a": 1}, {"a": 1}, {"a": 2}])
    with store.snapshot() as before:
        assert before.count() == 3
        store.upsert([1, 4], np.full((2, 1), 255, np.uint8), [{"a": 9}] * 2)
        store.delete([2])
        assert store.count({"a": 1}) == 0
        with store.snapshot() as after:
            for _ in range(2):
                assert before.search(zero, 9).ids.tolist() == [[1, 2, 3]]
                assert before.search(zero, 9, where={"a": 1}).ids.tolist() == [[1, 2]]
                assert before.count({"a": 1}) == 2
                assert before.radius(ones, 0).ids.tolist() == []
                assert before.get([1, 2, 4]).metadata == [{"a": 1}, {"a": 1}]
                assert [batch.ids.tolist() for batch in before.batches()] == [[1, 2, 3]]
                assert after.search(zero, 9).ids.tolist() == [[3, 1, 4]]
                assert after.get([1, 2, 4]).metadata == [{"a": 9}] * 2
    for call in (lambda: before.get([1]), before.count, lambda: before.search(zero, 1)):
        with pytest.raises(StoreError, match="snapshot"):
            call()


def test_reranking_uses_codes_of_the_same_snapshot(store, monkeypatch):
    codes = np.arange(8, dtype=np.uint8)[:, None]
    store.upsert(np.arange(8), codes)
    values = np.where(np.unpackbits(codes[5:6], axis=1), 1.0, -1.0).astype(np.float32)
    expected = store.search(codes[:1], 3, rescore=values)
    codes_of = Snapshot._codes_of

    def after_a_write(self, ids):
        store.upsert(np.arange(8), np.full((8, 1), 255, np.uint8))
        return codes_of(self, ids)

    monkeypatch.setattr(Snapshot, "_codes_of", after_a_write)
    found = store.search(codes[:1], 3, rescore=values)
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.scores.tolist() == expected.scores.tolist()

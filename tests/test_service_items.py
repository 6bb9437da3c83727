"""Items over HTTP: store, replace, get, count, delete, sample; the model card."""
# ruff: noqa: F811 (imported fixtures)

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from antipodal import open_store
from antipodal.codes import to_hex
from antipodal.service import Limits, create_app
from served import (  # noqa: F401
    CODES,
    HANG,
    HASHER,
    IDS,
    LIMITS,
    N_BITS,
    N_FEATURES,
    N_ITEMS,
    ROWS,
    VECTOR,
    TestClient,
    client,
    contents,
    engine_of,
    expire,
    fill,
    is_problem,
    kept_store,
    label,
    reader,
    store,
    timeouts,
    unchanged,
    wait_until,
)


def test_items_are_stored_replaced_and_deleted(client, store):
    new = [
        {"id": 2, "vector": ROWS[0].tolist(), "metadata": {"a": [1, {"b": None}]}},
        {"id": 2**63 - 1, "code": "abcde0"},
        {"id": int(IDS[0]), "code": "000000", "metadata": {"replaced": True}},
    ]
    assert client.put("/v1/items", json={"items": new}).json() == {"upserted": 3, "replaced": 1}
    assert client.get("/v1/items/2").json() == {
        "id": 2,
        "code": to_hex(CODES[:1], N_BITS)[0],
        "metadata": {"a": [1, {"b": None}]},
    }
    assert client.get(f"/v1/items/{2**63 - 1}").json()["code"] == "abcde0"
    assert client.get(f"/v1/items/{IDS[0]}").json()["metadata"] == {"replaced": True}
    answer = client.request("DELETE", "/v1/items", json={"ids": [2, 2, 2**63 - 1, 77_777]})
    assert answer.json() == {"deleted": 2}
    assert "2" in is_problem(client.get("/v1/items/2"), 404)
    assert store.count() == N_ITEMS


def test_items_are_returned_in_the_order_of_the_ids(reader):
    ids = [int(IDS[9]), 10**9, int(IDS[2]), int(IDS[5])]
    items = reader.post("/v1/items/get", json={"ids": ids}).json()["items"]
    assert [item["id"] for item in items] == [ids[0], ids[2], ids[3]]
    assert items == [reader.get(f"/v1/items/{item['id']}").json() for item in items]
    assert reader.post("/v1/items/get", json={"ids": []}).json() == {"items": []}
    too_many = reader.post("/v1/items/get", json={"ids": list(range(51))})
    assert "50 ids" in is_problem(too_many, 422)
    twice = reader.post("/v1/items/get", json={"ids": [1, 1]})
    is_problem(twice, 422)


def test_a_filter_selects_the_items_that_are_counted(reader):
    assert reader.post("/v1/count", json={}).json() == {"count": N_ITEMS}
    counted = reader.post("/v1/count", json={"where": {"label": 1}}).json()
    assert counted == {"count": sum(label(i) == 1 for i in IDS)}
    response = reader.post("/v1/count", json={"where": {"a": [1]}})
    assert is_problem(response, 422).startswith("where ")


def test_existing_items_or_their_metadata_are_kept_on_request(client, store):
    before = contents(store)
    new = {"id": 2, "code": "000000"}
    old = {"id": int(IDS[3]), "code": "abcde0"}
    refused = client.put("/v1/items", json={"items": [new, old], "replace": False})
    assert str(IDS[3]) in is_problem(refused, 409)
    assert contents(store) == before
    client.put("/v1/items", json={"items": [new], "replace": False})
    assert store.count() == N_ITEMS + 1
    client.put("/v1/items", json={"items": [old], "keep_metadata": True})
    item = client.get(f"/v1/items/{IDS[3]}").json()
    assert (item["code"], item["metadata"]["title"]) == ("abcde0", f"item {IDS[3]}")
    both = {"items": [old | {"metadata": {}}], "keep_metadata": True}
    assert "keep_metadata" in is_problem(client.put("/v1/items", json=both), 422)


def test_the_store_route_returns_the_limits_for_clients(reader):
    about = reader.get("/v1/store").json()
    assert (about["n_bits"], about["next_id"]) == (N_BITS, int(IDS.max()) + 1)
    assert about["limits"] == {
        name: getattr(LIMITS, name)
        for name in ("body", "binary_body", "batch", "k", "results", "found")
    }


def test_a_sample_has_distinct_items_and_is_reproducible(reader, kept_store):
    first = reader.get("/v1/items?limit=40&seed=3").json()["items"]
    assert len({item["id"] for item in first}) == 40
    assert first == reader.get("/v1/items?limit=40&seed=3").json()["items"]
    assert first != reader.get("/v1/items?limit=40&seed=4").json()["items"]
    few = engine_of(kept_store, limits=Limits(histogram=10))
    assert 1 < len(few.sample(40, 3)) <= 40


def test_the_model_card_describes_the_model_and_the_stored_codes(store):
    engine = engine_of(store, identity="abc", scores={"map": 91.5})
    card = TestClient(create_app(engine)).get("/v1/model").json()
    health = card.pop("bit_health")
    bits = np.unpackbits(CODES, axis=1, count=N_BITS)
    share = bits.mean(axis=0)
    assert health["bit_balance"] == pytest.approx(100 * np.minimum(share, 1 - share).mean())
    assert health["distinct_codes"] == len(np.unique(CODES, axis=0))
    assert health["sample"] == N_ITEMS
    assert card == {
        "method": "LSH",
        "n_bits": N_BITS,
        "n_features": N_FEATURES,
        "parameters": {"n_bits": N_BITS, "random_state": 0},
        "identity": "abc",
        "scoring": "hamming",
        "id_type": "int64",
        "keep_vectors": None,
        "texts": False,
        "items": N_ITEMS,
        "images": False,
        "scores": {"map": 91.5},
    }


def test_one_invalid_item_refuses_the_whole_batch(unchanged):
    good = {"id": 999, "code": "000000"}
    for bad in BAD_ITEMS:
        is_problem(unchanged.put("/v1/items", json={"items": [good, bad]}), 422)
    twice = unchanged.put("/v1/items", json={"items": [good, good]})
    assert "999" in is_problem(twice, 422)


BAD_ITEMS = [
    {"id": 1},
    {"id": 1, "code": "000000", "vector": VECTOR},
    {"id": 1, "vector": VECTOR[:-1]},
    {"id": 1, "code": "0000ff"},
    {"id": 1, "code": "00"},
    {"id": 2**63, "code": "000000"},
    {"id": -(2**63) - 1, "code": "000000"},
    {"id": "1", "code": "000000"},
    {"id": "../1", "code": "000000"},
    {"id": 1.5, "code": "000000"},
    {"id": None, "code": "000000"},
    {"code": "000000"},
    {"id": 1, "code": "000000", "metadata": []},
    {"id": 1, "code": "000000", "metadata": "text"},
    {"id": 1, "code": "000000", "extra": 1},
    {"id": 1, "image": "iVBORw0KGgo="},  # the service accepts no images
]


def test_a_write_that_waits_too_long_for_another_process_is_a_503(tmp_path):
    url = f"sqlite:///{tmp_path}/codes.db"
    with open_store(f"{url}?timeout=0.1", n_bits=N_BITS) as store:
        fill(store)
        client = TestClient(create_app(engine_of(store)))
        lock = sqlite3.connect(tmp_path / "codes.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        request = {"items": [{"id": 1, "code": "000000"}]}
        busy = client.put("/v1/items", json=request)
        is_problem(busy, 503)
        assert busy.headers["retry-after"] == "1"
        assert client.post("/v1/search", json={"code": "000000"}).status_code == 200
        lock.execute("ROLLBACK")
        lock.close()
        assert client.put("/v1/items", json=request).json() == {"upserted": 1, "replaced": 1}


def test_a_write_that_timed_out_in_the_queue_is_not_carried_out(store, monkeypatch, timeouts):
    engine = engine_of(store)
    release, began = threading.Event(), threading.Event()

    def wait(*_):
        began.set()
        release.wait(HANG)

    monkeypatch.setattr(engine, "delete", wait)
    before = contents(store)
    with TestClient(create_app(engine)) as client:
        slow = threading.Thread(
            target=lambda: client.request("DELETE", "/v1/items", json={"ids": [1]})
        )
        slow.start()
        assert began.wait(HANG)
        with ThreadPoolExecutor(1) as pool:
            items = [{"id": 1, "code": "000000"}]
            response = pool.submit(client.put, "/v1/items", json={"items": items})
            wait_until(lambda: len(timeouts) == 2)  # of the delete and of this request
            expire(client, timeouts[1])
        assert "not started" in is_problem(response.result(), 503)
        release.set()
        slow.join()
    with open_store(f"sqlite:///{store.place}") as again:
        assert contents(again) == before

"""The service in one process: its answers, what it refuses, and what it never does."""

import asyncio
import base64
import dataclasses
import inspect
import io
import json
import logging
import socket
import sqlite3
import threading
import time
import warnings
import zlib
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from PIL import Image
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from sklearn.datasets import load_digits
from starlette.applications import Starlette
from starlette.routing import Mount as Under
from typer.testing import CliRunner

from antipodal import LSH, HammingIndex, gist, open_store
from antipodal.cli import main
from antipodal.cli.serve import app as commands
from antipodal.cli.serve import serve
from antipodal.codes import from_hex, to_hex
from antipodal.errors import AntipodalError, StoreError
from antipodal.service import Engine, Keys, Limits, create_app, guesses, imagefeatures
from antipodal.service.guard import GuardedRoute
from antipodal.service.logs import JsonFormatter
from antipodal.service.mounts import Mount
from antipodal.service.searching import Search
from antipodal.service.server import Settings, check_address, check_host, is_loopback
from effort import examples
from engines import ENGINES, engines  # noqa: F401

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Using `httpx` with `starlette.testclient`")
    from starlette.testclient import TestClient

N_BITS, N_FEATURES, N_ITEMS = 20, 6, 200
LIMITS = Limits(body=100_000, batch=50, k=100, results=30, histogram=1_000, seconds=600)
ROUTES = [
    ("POST", "/v1/encode"),
    ("POST", "/v1/search"),
    ("PUT", "/v1/items"),
    ("DELETE", "/v1/items"),
    ("POST", "/v1/items/get"),
    ("POST", "/v1/count"),
    ("POST", "/v1/find"),
    ("GET", "/v1/items"),
    ("GET", "/v1/items/{id}"),
    ("GET", "/v1/map"),
    ("GET", "/v1/fields"),
    ("GET", "/v1/store"),
    ("GET", "/v1/model"),
    ("GET", "/v1/mounts"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
]
RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((N_ITEMS, N_FEATURES))
HASHER = LSH(N_BITS, random_state=0).fit(ROWS)
CODES = HASHER.encode(ROWS)
IDS = np.arange(N_ITEMS) * 3 - 50


def label(number):
    return int(number) % 4


def fill(store):
    store.upsert(IDS, CODES, [{"label": label(i), "title": f"item {i}"} for i in IDS])


def contents(store):
    """Return all that the store keeps, in a form that can be compared."""
    found = store.get(np.sort(store.radius(np.zeros((1, 3), np.uint8), N_BITS).ids))
    return found.ids.tolist(), found.codes.tolist(), found.metadata


def distances(code):
    return np.bitwise_count(CODES ^ code).sum(axis=1)


def nearest(code, wanted=None):
    """Rank the items by (distance, id), by brute force."""
    distance = distances(code)
    order = np.lexsort((IDS, distance))
    order = order if wanted is None else order[[label(IDS[i]) == wanted for i in order]]
    return IDS[order].tolist(), distance[order].tolist()


@pytest.fixture(autouse=True)
def answers_to_wrong_keys_at_once(monkeypatch):
    """Many are sent here; that they wait is tested elsewhere."""
    monkeypatch.setattr(guesses, "_EVERY", 0.0)


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=N_BITS) as store:
        fill(store)
        yield store


@pytest.fixture
def client(store):
    with TestClient(create_app(Engine(HASHER, store, limits=LIMITS))) as client:
        yield client


@pytest.fixture(scope="module")
def kept_store(tmp_path_factory):
    """A store for all tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("kept")
    with open_store(f"sqlite:///{folder}/codes.db", n_bits=N_BITS) as store:
        fill(store)
        yield store


@pytest.fixture(scope="module")
def reader(kept_store):
    """A client of it that only reads."""
    with TestClient(create_app(Engine(HASHER, kept_store, limits=LIMITS))) as client:
        yield client


def is_problem(response, *statuses):
    assert response.headers["content-type"] == "application/problem+json", response.text
    body = response.json()
    assert set(body) == {"type", "title", "status", "detail"}
    assert body["status"] == response.status_code
    assert response.status_code in (statuses or range(400, 500)), response.text
    assert body["detail"]
    assert "Traceback" not in response.text
    assert ".py" not in response.text
    return body["detail"]


# ---------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_answers_behind_the_service(engine, engines):  # noqa: F811
    store = open_store(engines.url(engine, "service"), n_bits=N_BITS)
    with TestClient(create_app(Engine(HASHER, store, limits=LIMITS))) as client:
        for start in range(0, N_ITEMS, LIMITS.batch):
            part = range(start, min(start + LIMITS.batch, N_ITEMS))
            items = [
                {
                    "id": int(IDS[i]),
                    "vector": ROWS[i].tolist(),
                    "metadata": {"label": label(IDS[i])},
                }
                for i in part
            ]
            assert client.put("/v1/items", json={"items": items}).json() == {
                "upserted": len(part),
                "replaced": 0,
            }
        code, asked = CODES[3:4], {"id": int(IDS[3])}
        for where, wanted in ((None, None), ({"label": 2}, 2)):
            ids, near = nearest(code, wanted)
            for bound in ({"k": 9}, {"radius": 8}):
                answer = client.post("/v1/search", json=asked | bound | {"where": where}).json()
                within = min(int(np.searchsorted(near, 8, side="right")), LIMITS.results)
                n = bound.get("k", within)
                assert [hit["id"] for hit in answer["results"]] == ids[:n]
                assert [hit["distance"] for hit in answer["results"]] == near[:n]
        gone = {"ids": [int(IDS[3]), int(IDS[5]), 10**9]}
        assert client.request("DELETE", "/v1/items", json=gone).json() == {"deleted": 2}
        is_problem(client.post("/v1/search", json=asked), 404)
        assert client.get(f"/v1/items/{IDS[4]}").json()["metadata"] == {"label": label(IDS[4])}


def test_encoding_gives_the_hashers_codes(reader):
    answer = reader.post("/v1/encode", json={"vectors": ROWS[:7].tolist()}).json()
    assert answer == {"n_bits": N_BITS, "codes": to_hex(CODES[:7], N_BITS)}


@pytest.mark.parametrize("where", [None, {"label": 2}])
@pytest.mark.parametrize("histogram", [False, True])
def test_the_k_nearest_are_those_of_brute_force(reader, where, histogram):
    for row in RNG.standard_normal((10, N_FEATURES)):
        code = HASHER.encode(row[None])
        ids, near = nearest(code, where and 2)
        request = {"vector": row.tolist(), "k": 7, "where": where, "histogram": histogram}
        answer = reader.post("/v1/search", json=request).json()
        assert answer["code"] == to_hex(code, N_BITS)[0]
        assert [hit["id"] for hit in answer["results"]] == ids[:7]
        assert [hit["distance"] for hit in answer["results"]] == near[:7]
        assert answer["total"] == 7
        for hit in answer["results"]:
            assert hit["code"] == to_hex(CODES[hit["id"] == IDS], N_BITS)[0]
            assert hit["metadata"] == {"label": label(hit["id"]), "title": f"item {hit['id']}"}
        counts = np.bincount(near, minlength=N_BITS + 1).tolist() if histogram else None
        assert answer.get("histogram") == counts


@pytest.mark.parametrize("histogram", [False, True])
def test_a_radius_counts_all_and_returns_the_nearest(reader, histogram):
    code = CODES[17]
    ids, near = nearest(code)
    for radius in (0, 3, 8, N_BITS, 10**6):
        request = {"id": int(IDS[17]), "radius": radius, "histogram": histogram}
        answer = reader.post("/v1/search", json=request).json()
        total = sum(distance <= radius for distance in near)
        assert answer["total"] == total
        assert [hit["id"] for hit in answer["results"]] == ids[: min(total, LIMITS.results)]
        if histogram:
            assert sum(answer["histogram"]) == N_ITEMS


def test_codes_search_as_vectors_do(reader):
    by_code = reader.post("/v1/search", json={"code": to_hex(CODES[4:5], N_BITS)[0]}).json()
    by_vector = reader.post("/v1/search", json={"vector": ROWS[4].tolist()}).json()
    assert by_code == by_vector
    assert len(by_code["results"]) == 10


@pytest.mark.parametrize("histogram", [False, True])
def test_rescored_searches_are_those_of_the_index(reader, histogram):
    index = HammingIndex(N_BITS)
    index.add(CODES, IDS)
    for row in RNG.standard_normal((10, N_FEATURES)):
        values = HASHER.project(row[None])
        expected = index.search(HASHER.encode(row[None]), 6, rescore=values)
        request = {"vector": row.tolist(), "k": 6, "rescore": "project", "histogram": histogram}
        answer = reader.post("/v1/search", json=request).json()
        assert [hit["id"] for hit in answer["results"]] == expected.ids[0].tolist()
        assert [hit["distance"] for hit in answer["results"]] == expected.distances[0].tolist()
        scores = [hit["score"] for hit in answer["results"]]
        np.testing.assert_allclose(scores, expected.scores[0], rtol=1e-6)


def test_an_empty_store_answers_with_nothing(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=N_BITS) as store:
        client = TestClient(create_app(Engine(HASHER, store)))
        for extra in ({"k": 3}, {"radius": 3}, {"rescore": "project"}):
            request = {"vector": [1.0] * N_FEATURES, "histogram": True, **extra}
            answer = client.post("/v1/search", json=request).json()
            assert (answer["results"], answer["total"]) == ([], 0)
            assert answer["histogram"] == [0] * (N_BITS + 1)
        assert client.get("/v1/items").json() == {"items": []}
        assert client.get("/v1/model").json()["bit_health"] is None
        assert client.put("/v1/items", json={"items": []}).json() == {"upserted": 0, "replaced": 0}
        assert client.request("DELETE", "/v1/items", json={"ids": []}).json() == {"deleted": 0}


def test_items_are_kept_replaced_and_removed(client, store):
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
    assert "there is no item 2" in is_problem(client.get("/v1/items/2"), 404)
    assert store.count() == N_ITEMS


def test_many_items_come_in_the_order_asked_for(reader):
    ids = [int(IDS[9]), 10**9, int(IDS[2]), int(IDS[5])]
    items = reader.post("/v1/items/get", json={"ids": ids}).json()["items"]
    assert [item["id"] for item in items] == [ids[0], ids[2], ids[3]]
    assert items == [reader.get(f"/v1/items/{item['id']}").json() for item in items]
    assert reader.post("/v1/items/get", json={"ids": []}).json() == {"items": []}
    too_many = reader.post("/v1/items/get", json={"ids": list(range(51))})
    assert "at most 50 ids" in is_problem(too_many, 422)
    twice = reader.post("/v1/items/get", json={"ids": [1, 1]})
    assert "1 comes more than once" in is_problem(twice, 422)


def test_items_are_counted_by_a_filter(reader):
    assert reader.post("/v1/count", json={}).json() == {"count": N_ITEMS}
    counted = reader.post("/v1/count", json={"where": {"label": 1}}).json()
    assert counted == {"count": sum(label(i) == 1 for i in IDS)}
    response = reader.post("/v1/count", json={"where": {"a": [1]}})
    assert is_problem(response, 422).startswith("where is not a valid filter: ")


def test_items_that_are_there_stay_as_they_are_if_asked_to(client, store):
    before = contents(store)
    new = {"id": 2, "code": "000000"}
    old = {"id": int(IDS[3]), "code": "abcde0"}
    refused = client.put("/v1/items", json={"items": [new, old], "replace": False})
    assert f"has items with ids {IDS[3]} already" in is_problem(refused, 409)
    assert contents(store) == before
    client.put("/v1/items", json={"items": [new], "replace": False})
    assert store.count() == N_ITEMS + 1
    client.put("/v1/items", json={"items": [old], "keep_metadata": True})
    item = client.get(f"/v1/items/{IDS[3]}").json()
    assert (item["code"], item["metadata"]["title"]) == ("abcde0", f"item {IDS[3]}")
    both = {"items": [old | {"metadata": {}}], "keep_metadata": True}
    assert "got some" in is_problem(client.put("/v1/items", json=both), 422)


def test_a_client_is_told_what_it_must_know(reader):
    about = reader.get("/v1/store").json()
    assert (about["n_bits"], about["next_id"]) == (N_BITS, int(IDS.max()) + 1)
    assert about["limits"] == {
        name: getattr(LIMITS, name) for name in ("body", "batch", "k", "results", "found")
    }


def test_a_sample_is_of_different_items_and_repeats_by_its_seed(reader, kept_store):
    first = reader.get("/v1/items?limit=40&seed=3").json()["items"]
    assert len({item["id"] for item in first}) == 40
    assert first == reader.get("/v1/items?limit=40&seed=3").json()["items"]
    assert first != reader.get("/v1/items?limit=40&seed=4").json()["items"]
    few = Engine(HASHER, kept_store, limits=Limits(histogram=10))  # more items than it counts
    assert 1 < len(few.sample(40, 3)) <= 40


def test_the_model_card_describes_the_model_and_the_stored_codes(store):
    engine = Engine(HASHER, store, identity="abc", scores={"map": 91.5})
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
        "items": N_ITEMS,
        "images": False,
        "scores": {"map": 91.5},
    }


def test_metrics_count_requests_and_items(client):
    client.post("/v1/search", json={"id": int(IDS[0])})
    client.get("/nowhere/else")
    text = client.get("/metrics").text
    assert 'antipodal_requests_total{method="POST",route="/v1/search",status="200"} 1.0' in text
    assert f"antipodal_items {N_ITEMS}" in text
    assert 'route="/v1/search"' in text
    assert "nowhere" not in text


# ----------------------------------------------------------------------------------- images


def png(pixels, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


def test_images_of_digits_become_the_features_of_digits(tmp_path):
    digits = load_digits().data
    hasher = LSH(32, random_state=0).fit(digits)
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=32) as store:
        client = TestClient(create_app(Engine(hasher, store, images="pixels:8x8")))
        # 17 levels of grey, 15 apart and each 4 × 4 pixels large: 16 is white when scaled by 17/16.
        level = np.round(digits[:20].reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
        images = [png(np.kron(image, np.ones((4, 4), np.uint8))) for image in level]
        answer = client.post("/v1/encode", json={"images": images}).json()
        expected = hasher.encode(level.reshape(-1, 64) * (16 / 255))
        assert answer["codes"] == to_hex(expected, 32)
        close = np.bitwise_count(from_hex(answer["codes"], 32) ^ hasher.encode(digits[:20]))
        assert close.sum(axis=1).max() <= 1  # but for rounding to 256 levels, the digits themselves
        items = [{"id": i, "image": image} for i, image in enumerate(images)]
        assert client.put("/v1/items", json={"items": items}).json() == {
            "upserted": 20,
            "replaced": 0,
        }
        found = client.post("/v1/search", json={"image": images[5], "k": 1}).json()
        assert found["results"][0]["distance"] == 0
        request = {"image": images[5], "rescore": "project"}
        assert client.post("/v1/search", json=request).status_code == 200
        assert client.get("/v1/model").json()["images"] is True


def test_images_are_described_by_gist(tmp_path):
    pixels = RNG.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    features = gist(pixels)
    hasher = LSH(64, random_state=0).fit(features)
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=64) as store:
        client = TestClient(create_app(Engine(hasher, store, images="gist")))
        answer = client.post("/v1/encode", json={"images": [png(image) for image in pixels]})
        assert answer.json()["codes"] == to_hex(hasher.encode(features), 64)


def odd_images():
    grey = np.full((8, 8), 200, np.uint8)
    clear = np.zeros((8, 8, 4), np.uint8)
    palette = Image.fromarray(grey).convert("P")
    palette.info["transparency"] = 0
    file = io.BytesIO()
    palette.save(file, "PNG", transparency=bytes(range(256)))
    deep = (grey.astype(np.uint16) << 8) + 7
    return {
        "grey": (png(grey), 200),
        "transparent is white": (png(clear), 255),
        "sixteen bits": (png(deep), 200),
        "palette": (base64.b64encode(file.getvalue()).decode(), None),
        "jpeg": (png(grey, "JPEG"), 200),
        "gif": (png(grey, "GIF"), 200),
        "tall": (png(np.full((40, 3), 200, np.uint8)), 200),
    }


@pytest.mark.parametrize("name", odd_images())
def test_images_of_many_kinds_are_read(name):
    text, level = odd_images()[name]
    features = imagefeatures.ImageFeatures("pixels:2x4:255", Limits())([text])
    assert features.shape == (1, 8)
    if level is not None:
        np.testing.assert_allclose(features, level, atol=1)


def bomb():
    """A PNG of some bytes that says it has 50,000 × 50,000 pixels."""
    data = bytearray(base64.b64decode(png(np.zeros((1, 1), np.uint8))))
    data[16:24] = (50_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("@@@", "not base64"),
        ("YWJj", "is not a PNG"),
        (png(RNG.integers(0, 256, (64, 64), dtype=np.uint8))[:400], "cannot be decoded"),
        (bomb(), "at most"),
        (png(np.zeros((200, 200), np.uint8)), "at most 10,000 are taken"),
        (base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0\n").decode(), "is not a PNG"),
    ],
)
def test_hostile_images_are_refused(tmp_path, image, words):
    hasher = LSH(8, random_state=0).fit(RNG.standard_normal((20, 64)))
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=8) as store:
        engine = Engine(hasher, store, images="pixels:8x8", limits=Limits(pixels=10_000))
        client = TestClient(create_app(engine))
        assert words in is_problem(client.post("/v1/encode", json={"images": [image]}), 422)
        assert words in is_problem(client.post("/v1/search", json={"image": image}), 422)
        items = {"items": [{"id": 1, "image": image}]}
        assert words in is_problem(client.put("/v1/items", json=items), 422)
        assert store.count() == 0


@pytest.fixture
def image_engine(tmp_path):
    hasher = LSH(8, random_state=0).fit(RNG.standard_normal((20, 64)))
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=8) as store:
        yield Engine(hasher, store, images="pixels:8x8", limits=Limits(threads=1))


def test_many_small_files_of_many_pixels_are_refused_before_one_is_decoded(image_engine):
    file = io.BytesIO()
    Image.new("1", (4_000, 4_000)).save(file, "PNG", optimize=True)
    image = base64.b64encode(file.getvalue()).decode()
    n_images = 300
    assert n_images * len(image) < Limits().body  # its bytes are few
    client = TestClient(create_app(image_engine))
    for method, path, body in [
        ("POST", "/v1/encode", {"images": [image] * n_images}),
        ("PUT", "/v1/items", {"items": [{"id": i, "image": image} for i in range(n_images)]}),
    ]:
        began = time.monotonic()
        message = is_problem(client.request(method, path, json=body), 422)
        assert time.monotonic() - began < 5  # all of them: minutes
        assert "at most 64,000,000 pixels together" in message
        assert "images 0 to 4" in message


def test_images_up_to_the_limits_of_a_request_are_taken(image_engine):
    image = png(np.zeros((100, 100), np.uint8))
    for most, n_taken in ((30_000, 3), (29_999, 2)):
        features = imagefeatures.ImageFeatures("pixels:8x8", Limits(request_pixels=most))
        assert features([image] * n_taken).shape == (n_taken, 64)
        with pytest.raises(ValueError, match="pixels together"):
            features([image] * (n_taken + 1))


def test_health_checks_searches_and_writes_do_not_wait_for_images(image_engine, monkeypatch):
    decoding, release = threading.Semaphore(0), threading.Event()

    def slow(self, images):
        decoding.release()
        assert release.wait(30)
        return np.zeros((len(images), 64), np.float32)

    monkeypatch.setattr(imagefeatures.ImageFeatures, "__call__", slow)
    image = png(np.zeros((8, 8), np.uint8))
    requests = [
        ("POST", "/v1/encode", {"images": [image]}),
        ("POST", "/v1/search", {"image": image}),
        ("PUT", "/v1/items", {"items": [{"id": 1, "image": image}]}),
    ]
    answers = []
    with TestClient(create_app(image_engine)) as client:
        callers = [
            threading.Thread(target=lambda r=r: answers.append(client.request(*r[:2], json=r[2])))
            for r in requests
        ]
        for caller in callers:
            caller.start()
        assert decoding.acquire(timeout=30)
        assert client.get("/readyz").json() == {"status": "ready"}
        item = {"id": 2, "code": "00"}
        assert client.put("/v1/items", json={"items": [item]}).status_code == 200
        assert client.get("/metrics").status_code == 200
        assert client.post("/v1/search", json={"code": "00"}).status_code == 200
        assert answers == []
        release.set()
        for caller in callers:
            caller.join()
    assert [answer.status_code for answer in answers] == [200] * 3


def test_images_that_do_not_fit_the_model_are_refused_at_the_start(store):
    with pytest.raises(ValueError, match="makes 64 features, the model was fitted on 6"):
        Engine(HASHER, store, images="pixels:8x8")
    for kind in ("pixels", "pixels:0x8", "pixels:8x8:0", "sift", "pixels:8x8:-1"):
        with pytest.raises(ValueError, match="images are described by"):
            Engine(HASHER, store, images=kind)


# ------------------------------------------------------------------------------- refusals

VECTOR = [0.5] * N_FEATURES
HUGE = {"vectors": [VECTOR] * 51}
BAD_JSON = [
    b"",
    b"{",
    b"nonsense",
    b"\xff\xfe",
    b"[]",
    b"null",
    b"7",
    b'"text"',
    b"[" * 60_000,
    b'{"vector": [NaN, 1, 1, 1, 1, 1]}',
    b'{"vector": [Infinity, 1, 1, 1, 1, 1]}',
    b'{"vector": [-Infinity, 1, 1, 1, 1, 1]}',
    b'{"vector": [1e999, 1, 1, 1, 1, 1]}',
    b'{"vectors": [[NaN, 1, 1, 1, 1, 1]]}',
    b'{"vector": [1e39, 1, 1, 1, 1, 1]}',
    b'{"vectors": [[1e300, 1, 1, 1, 1, 1]]}',
    b'{"items": [{"id": 1, "code": "000000", "metadata": {"a": NaN}}]}',
    b'{"items": [{"id": 1, "code": "000000", "metadata": {"a": 1e999}}]}',
    b'{"items": [{"id": 1, "code": "000000", "metadata": {"a": 99999999999999999999}}]}',
    b'{"items": [{"id": 1, "code": "000000", "metadata": {"a": "\\ud800"}}]}',
    b'{"items": [{"id": 1, "code": "000000", "metadata": {"a": "\\u0000"}}]}',
    b'{"items": [{"id": 1, "vector": [1e300, 1, 1, 1, 1, 1]}]}',
    b'{"id": 1' + b"0" * 5000 + b"}",
    b'{"code": "000000", "where": {"a": NaN}}',
]
BAD_SEARCHES = [
    {},
    {"vector": VECTOR, "code": "000000"},
    {"vector": VECTOR, "k": 0},
    {"vector": VECTOR, "k": 101},
    {"vector": VECTOR, "k": 2**70},
    {"vector": VECTOR, "k": 1.5},
    {"vector": VECTOR, "k": True},
    {"vector": VECTOR, "k": "3"},
    {"vector": VECTOR, "k": 3, "radius": 3},
    {"vector": VECTOR, "radius": -1},
    {"vector": VECTOR, "radius": 2, "rescore": "project"},
    {"vector": VECTOR, "rescore": "cosine"},
    {"code": "000000", "rescore": "project"},
    {"vector": VECTOR, "unknown": 1},
    {"vector": VECTOR[:5]},
    {"vector": [*VECTOR, 1.0]},
    {"vector": []},
    {"vector": ["1"] * N_FEATURES},
    {"vector": [True] * N_FEATURES},
    {"vector": [None] * N_FEATURES},
    {"vector": [VECTOR]},
    {"vector": [10**400, *VECTOR[1:]]},
    {"code": "00000"},
    {"code": "0000"},
    {"code": "00000000"},
    {"code": "00000f"},  # beyond the 20 bits
    {"code": "zzzzzz"},
    {"code": "../../etc/passwd"},
    {"id": 2**63},
    {"id": 1.0},
    {"id": "7"},
    {"id": True},
    {"image": "AAAA"},
    {"vector": VECTOR, "where": []},
    {"vector": VECTOR, "where": {"../../etc/passwd": 1}},
    {"vector": VECTOR, "where": {'a"] OR 1=1 --': 1}},
    {"vector": VECTOR, "where": {"a": {"; DROP TABLE items": 1}}},
    {"vector": VECTOR, "where": {"a\\": 1}},
    {"vector": VECTOR, "where": {"": 1}},
    {"vector": VECTOR, "where": {"a": {"in": 3}}},
    {"vector": VECTOR, "where": {"a": {"lt": None}}},
    {"vector": VECTOR, "where": {"or": []}},
    {"vector": VECTOR, "where": {"or": [{"a": i} for i in range(600)]}},
    {"vector": VECTOR, "where": {"a": [1]}},
]
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
    {"id": 1, "image": png(np.zeros((8, 8), np.uint8))},
]


@pytest.fixture
def unchanged(reader, kept_store):
    """Check that after the test the service is alive and the store as it was."""
    before = contents(kept_store)
    yield reader
    assert reader.get("/healthz").json() == {"status": "alive"}
    assert reader.get("/readyz").json() == {"status": "ready"}
    assert contents(kept_store) == before


def test_bodies_that_are_not_good_json_are_refused(unchanged):
    for body in BAD_JSON:
        for method, path in ROUTES[:7]:
            headers = {"Content-Type": "application/json"}
            is_problem(unchanged.request(method, path, content=body, headers=headers), 400, 422)


def test_bad_searches_are_refused(unchanged):
    for body in BAD_SEARCHES:
        assert len(is_problem(unchanged.post("/v1/search", json=body), 422)) < 3_000, body


def test_one_bad_item_keeps_out_the_whole_batch(unchanged):
    good = {"id": 999, "code": "000000"}
    for bad in BAD_ITEMS:
        is_problem(unchanged.put("/v1/items", json={"items": [good, bad]}), 422)
    twice = unchanged.put("/v1/items", json={"items": [good, good]})
    assert "999 comes more than once" in is_problem(twice, 422)


def test_a_filter_that_is_not_valid_is_named_as_what_is_wrong(unchanged):
    for where in ({"a": {"in": 3}}, {"": 1}, {"or": []}, {"a": [1]}, {"a": {"lt": None}}):
        response = unchanged.post("/v1/search", json={"code": "000000", "where": where})
        assert is_problem(response, 422).startswith("where is not a valid filter: ")


def test_huge_batches_are_refused(unchanged):
    items = [{"id": i, "code": "000000"} for i in range(51)]
    for method, path, body in [
        ("POST", "/v1/encode", HUGE),
        ("PUT", "/v1/items", {"items": items}),
        ("DELETE", "/v1/items", {"ids": list(range(51))}),
    ]:
        message = is_problem(unchanged.request(method, path, json=body), 422)
        assert "at most 50" in message
    assert "limit must be" in is_problem(unchanged.get("/v1/items?limit=101"), 422)


def test_a_histogram_over_too_many_items_is_refused(store):
    client = TestClient(create_app(Engine(HASHER, store, limits=Limits(histogram=150))))
    request = {"code": "000000", "histogram": True}
    assert "at most 150 items" in is_problem(client.post("/v1/search", json=request), 422)
    narrow = client.post("/v1/search", json=request | {"where": {"label": 1}})
    assert sum(narrow.json()["histogram"]) == sum(label(i) == 1 for i in IDS)


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_over_the_limit_are_refused_while_they_are_read(unchanged, chunked):
    body = b'{"items": [' + b" " * LIMITS.body + b"]}"
    content = iter([body[i : i + 10_000] for i in range(0, len(body), 10_000)]) if chunked else body
    headers = {"Content-Type": "application/json"}
    response = unchanged.put("/v1/items", content=content, headers=headers)
    assert "at most 100,000 bytes" in is_problem(response, 413)


def test_an_endless_body_is_not_read_to_its_end(store):
    """Neither its bytes nor its time: asked of the application itself, chunk by chunk."""
    limits = Limits(body=1_000, seconds=0.2)
    app = create_app(Engine(HASHER, store, limits=limits))
    n_chunks = 0

    async def endless():
        nonlocal n_chunks
        n_chunks += 1
        return {"type": "http.request", "body": b"x" * 100, "more_body": True}

    async def silent():
        await asyncio.sleep(60)

    assert asyncio.run(status_of(app, endless)) == 413
    assert n_chunks < 100
    began = time.monotonic()
    assert asyncio.run(status_of(app, silent)) == 408
    assert time.monotonic() - began < 10


async def status_of(app, receive):
    scope = {
        "type": "http",
        "method": "PUT",
        "path": "/v1/items",
        "raw_path": b"/v1/items",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
    }
    sent = []

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/items/..%2f..%2fetc%2fpasswd",
        "/v1/items/%2e%2e",
        "/v1/items/1;DROP TABLE items",
        "/v1/items/1%00",
        "/v1/items/NaN",
        "/v1/items/1e3",
        "/v1/items/9223372036854775808",
        "/v1/items/" + "9" * 5000,
        "/v1/items/\N{ARABIC-INDIC DIGIT ONE}x",
        "/v1/items?limit=x",
        "/v1/items?limit=0",
        "/v1/items?seed=-1",
        "/v1/items?seed=9223372036854775808",
        "/v1//items",
        "/v2/items",
        "/static/../app.py",
        "/static/..%2f..%2fkeys.py",
        "/static/%2e%2e/%2e%2e/keys.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/a%00b",
        "/static/",
        "/static",
        "/../../etc/passwd",
    ],
)
def test_tricks_with_paths_lead_nowhere(unchanged, path):
    is_problem(unchanged.get(path, follow_redirects=False), 404, 422)


def test_a_body_must_say_that_it_is_json(unchanged):
    """Otherwise any web page could send one: browsers let plain text through without asking."""
    body = b'{"ids": [1]}'
    for kind in ({}, {"Content-Type": "text/plain"}):
        response = unchanged.request("DELETE", "/v1/items", content=body, headers=kind)
        assert "application/json" in is_problem(response, 422)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
names = ("vector", "code", "id", "k", "radius", "where", "items", "ids", "vectors", "histogram")


@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.binary(max_size=60)
    | json_values.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(st.sampled_from(names), json_values, max_size=4).map(
        lambda value: json.dumps(value).encode()
    ),
    route=st.sampled_from(ROUTES[:7]),
)
def test_any_bytes_get_an_answer_that_is_no_accident(client, body, route):
    headers = {"Content-Type": "application/json"}
    response = client.request(*route, content=body, headers=headers)
    if response.status_code != 200:
        is_problem(response, 400, 404, 422)


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [(*route, GenerationMode.POSITIVE) for route in ROUTES]
    + [(*route, GenerationMode.NEGATIVE) for route in ROUTES[:10]],  # the others take nothing
)
def test_the_service_keeps_to_its_openapi_description(store, method, path, mode):
    app = create_app(Engine(HASHER, store, limits=LIMITS))
    operation = schemathesis.openapi.from_asgi("/openapi.json", app)[path][method]
    checks = [*CHECKS, negative_data_rejection] if mode is GenerationMode.NEGATIVE else CHECKS

    @examples(15, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case):
        case.call_and_validate(checks=checks, timeout=60)

    run()


def test_the_openapi_description_has_examples_that_work(reader):
    described = reader.get("/openapi.json").json()
    requests = [name for name in described["components"]["schemas"] if name.endswith("Request")]
    assert len(requests) == 6
    for name in requests:
        assert described["components"]["schemas"][name]["examples"]
    assert set(described["components"]["securitySchemes"]) == {"bearer", "header"}
    assert described["paths"]["/v1/items"]["put"]["security"]
    assert "security" not in described["paths"]["/healthz"]["get"]


# ----------------------------------------------------------------------------------- keys

READ, WRITE = "r3ad-k3y-of-the-web-site", "wr1te-k3y-of-the-import"
KEYS = f"# who may do what\nread {READ}   # the site\n\nwrite\t{WRITE}\n"


def keyed_routes():
    code = {"code": "000000"}
    return [
        ("POST", "/v1/encode", {"vectors": [VECTOR]}, "read"),
        ("POST", "/v1/search", code, "read"),
        ("GET", "/v1/items", None, "read"),
        ("GET", f"/v1/items/{IDS[0]}", None, "read"),
        ("POST", "/v1/find", {"text": "item"}, "read"),
        ("GET", "/v1/map?limit=20", None, "read"),
        ("GET", "/v1/fields", None, "read"),
        ("POST", "/v1/items/get", {"ids": [1]}, "read"),
        ("POST", "/v1/count", {}, "read"),
        ("GET", "/v1/store", None, "read"),
        ("GET", "/v1/model", None, "read"),
        ("GET", "/v1/mounts", None, "read"),
        ("GET", "/metrics", None, "read"),
        ("PUT", "/v1/items", {"items": [{"id": 1, **code}]}, "write"),
        ("DELETE", "/v1/items", {"ids": [1]}, "write"),
    ]


@pytest.mark.parametrize("header", ["Authorization", "X-API-Key"])
def test_keys_open_what_their_role_may_do_and_stay_out_of_logs(store, caplog, header):
    caplog.set_level(logging.DEBUG)
    client = TestClient(create_app(Engine(HASHER, store), keys=Keys.parse(KEYS, "keys")))
    wrong = "wr0ng-k3y-that-nobody-has"

    def status(method, path, body, key):
        value = f"Bearer {key}" if header == "Authorization" else key
        headers = {} if key is None else {header: value}
        response = client.request(method, path, json=body, headers=headers)
        if response.status_code >= 400:
            is_problem(response)
        if response.status_code == 401:
            assert response.headers["www-authenticate"] == "Bearer"
        for secret in (READ, WRITE, wrong):
            assert secret not in response.text + str(response.headers)
        return response.status_code

    for method, path, body, role in keyed_routes():
        assert status(method, path, body, None) == 401
        assert status(method, path, body, wrong) == 401
        assert status(method, path, body, "") == 401
        assert status(method, path, body, READ[:-1]) == 401
        assert status(method, path, body, READ) == (403 if role == "write" else 200)
        assert status(method, path, body, WRITE) == 200
    assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/")] == [200] * 3
    lines = [JsonFormatter().format(record) for record in caplog.records]
    requests = [line for line in map(json.loads, lines) if line["event"] == "request"]
    assert len(requests) == 6 * len(keyed_routes()) + 3
    for secret in (READ, WRITE, wrong, READ[:-1]):
        assert not any(secret in line for line in lines)


def test_a_body_without_a_key_is_not_read(store):
    app = create_app(Engine(HASHER, store), keys=Keys.parse(KEYS, "keys"))

    async def receive():
        raise AssertionError("the body was asked for")

    assert asyncio.run(status_of(app, receive)) == 401


@pytest.fixture(scope="module")
def guarded(kept_store):
    """The application with keys, mounted and not."""
    app = create_app(Engine(HASHER, kept_store), keys=Keys.parse(KEYS, "keys"))
    return {
        "": app,
        "/api": Starlette(routes=[Under("/api", app)]),
        "/a/b": Starlette(routes=[Under("/a", Starlette(routes=[Under("/b", app)]))]),
    }


@pytest.mark.parametrize("root_path", ["", "/proxy"])
@pytest.mark.parametrize("prefix", ["", "/api", "/a/b"])
def test_keys_are_asked_for_wherever_the_application_is_mounted(
    guarded, kept_store, prefix, root_path
):
    client = TestClient(guarded[prefix], root_path=root_path, raise_server_exceptions=False)
    before = contents(kept_store)
    wrong = {"X-API-Key": "wr0ng-k3y-that-nobody-has"}
    for method, path, body, role in keyed_routes():
        # A proxy may send its own prefix along or take it off; a mount needs it.
        for start in {root_path + prefix} if prefix else {"", root_path}:
            for headers in ({}, wrong):
                response = client.request(method, start + path, json=body, headers=headers)
                is_problem(response, 401)
                assert response.headers["www-authenticate"] == "Bearer"
            reading = {"Authorization": f"Bearer {READ}"}
            response = client.request(method, start + path, json=body, headers=reading)
            assert response.status_code == (403 if role == "write" else 200)
    assert contents(kept_store) == before
    for path in ("/healthz", "/readyz", "/", "/openapi.json"):
        assert client.get(root_path + prefix + path).status_code == 200


@pytest.mark.parametrize("prefix", ["", "/api"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/items",
        "//v1/items",
        "/v1//items",
        "///v1///items",
        "/v1/items/",
        "/v1%2Fitems",
        "/%761/items",
        "/v1/%69tems",
        "/v1/items%2F",
        "/V1/items",
        "/./v1/items",
        "/healthz/../v1/items",
        "/static/../v1/items",
        "/v1/items;/healthz",
        "/v1/items?x=/healthz",
        "/v1/items%3Fx",
        "/v1/items%00",
        "/v1/items%20",
        "/v1/items/1",
        "/metrics",
    ],
)
def test_no_way_of_writing_a_path_passes_by_the_keys(guarded, kept_store, path, prefix):
    before = contents(kept_store)
    app = guarded[prefix]
    target, _, query = path.partition("?")
    for method in ("GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH", "get", "delete"):
        for key in (None, "wr0ng-k3y-that-nobody-has", READ):
            status, body = asyncio.run(raw(app, method, prefix + target, query, key))
            reads = method == "GET" and key == READ
            assert status in ((200, 404, 422) if reads else (401, 403, 404, 405)), (method, key)
            assert reads or b"label" not in body
    assert contents(kept_store) == before


async def raw(app, method, path, query, key):
    """Ask as a server does: the path decoded once, as it came, and tidied up by nobody."""
    body = json.dumps({"ids": [int(IDS[0])]}).encode()
    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    if key is not None:
        headers.append((b"authorization", b"Bearer " + key.encode()))
    scope = {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def test_every_route_demands_a_role_but_the_page_and_the_signs_of_life(guarded):
    """Whoever adds a route must say who may call it."""
    open_to_all = {"/", "/docs", "/healthz", "/readyz", "/openapi.json", "/static"}
    app = guarded[""]
    roles = {}
    for route in app.routes:
        if route.path in open_to_all:
            continue
        assert isinstance(route, GuardedRoute), route.path
        (guard,) = route.guards
        roles |= {(method, route.path): guard.role for method in route.methods}
    writing = {("PUT", "/v1/items"), ("DELETE", "/v1/items")}
    keyed = {route for route in ROUTES if route[1] not in open_to_all}
    assert roles == {route: "write" if route in writing else "read" for route in keyed}
    described = app.openapi()["paths"]
    for method, path in ROUTES:
        ways = described[path][method.lower()].get("security", [])
        assert ways == ([{"bearer": []}, {"header": []}] if path not in open_to_all else [])


@pytest.mark.parametrize("key", [None, "wr0ng-k3y-that-nobody-has", READ])
def test_what_is_wrong_with_a_body_is_told_only_to_who_may_send_it(guarded, key):
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"X-API-Key": key})
    client = TestClient(guarded[""])
    for content in (b"{", b'{"unknown": 1}', b" " * (Limits().body + 1)):
        response = client.put("/v1/items", content=content, headers=headers)
        is_problem(response, 401 if key != READ else 403)


def test_a_comment_needs_a_blank_before_it():
    hashed = "9#kd83-k3y-with-a-hash"
    keys = Keys.parse(f"#read {READ}\n  # {READ}\nwrite {hashed} # a comment\n", "keys")
    assert len(keys) == 1
    assert keys.role(hashed.encode()) == "write"
    for other in ("9", READ, f"{hashed} # a comment"):
        assert keys.role(other.encode()) is None
    with pytest.raises(AntipodalError, match="line 2 must be `read KEY`"):
        Keys.parse(f"read {READ}\nwrite #{hashed}", "keys")


def test_short_keys_are_refused_by_their_line_and_not_quoted():
    short = "secret-of-15-ch"
    with pytest.raises(AntipodalError) as error:
        Keys.parse(f"# keys\nread {READ}\nwrite {short}", "keys.txt")
    assert "keys.txt, line 3: a key must have at least 16 characters" in str(error.value)
    assert short not in str(error.value)
    assert len(Keys.parse(f"write {short}s", "keys.txt")) == 1


def test_key_files_are_read_or_refused_without_quoting_them(tmp_path, monkeypatch):
    path = tmp_path / "keys"
    path.write_text(KEYS)
    keys = Keys.find(path)
    assert [keys.role(key.encode()) for key in (READ, WRITE, "", "x")] == [
        "read",
        "write",
        None,
        None,
    ]
    assert READ not in repr(vars(keys))
    for text in (
        "",
        "# none",
        f"admin {READ}",
        READ,
        f"read {READ} x",
        f"read {READ}\nread {READ}",
    ):
        path.write_text(text)
        with pytest.raises(AntipodalError) as error:
            Keys.find(path)
        assert READ not in str(error.value)
    with pytest.raises(AntipodalError, match="No such file"):
        Keys.find(tmp_path / "missing")
    monkeypatch.delenv("ANTIPODAL_KEYS", raising=False)
    assert Keys.find(None) is None
    monkeypatch.setenv("ANTIPODAL_KEYS", f"read {READ},write {WRITE}")
    assert len(Keys.find(None)) == 2


def test_without_keys_only_loopback_is_listened_on(tmp_path):
    for host in ("127.0.0.1", "127.9.8.7", "::1", "localhost"):
        assert is_loopback(host)
        check_host(host, False)
    for host in ("0.0.0.0", "::", "", "192.168.1.5", "example.org", "localhost.example.org"):
        assert not is_loopback(host)
        check_host(host, True)
        with pytest.raises(AntipodalError, match="--allow-anyone"):
            check_host(host, False)


def test_without_keys_other_names_for_this_machine_are_refused(store):
    """Else a web page whose name was made to mean 127.0.0.1 could read the store."""
    client = TestClient(create_app(Engine(HASHER, store), hosts={"127.0.0.1", "[::1]"}))
    for host in ("127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000"):
        assert client.get("/v1/model", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""):
        is_problem(client.get("/v1/model", headers={"Host": host}), 421)


# --------------------------------------------------------------------- failures, limits, logs


def test_a_failure_inside_says_nothing_but_its_request_id(store, caplog, monkeypatch):
    engine = Engine(HASHER, store)
    monkeypatch.setattr(engine, "card", lambda: 1 / 0)
    response = TestClient(create_app(engine)).get("/v1/model")
    request_id = response.headers["x-request-id"]
    assert is_problem(response, 500) == f"internal error, request {request_id}"
    line = json.loads(JsonFormatter().format(caplog.records[0]))
    assert line["request_id"] == request_id
    assert "ZeroDivisionError" in line["trace"]


def test_a_store_that_cannot_answer_is_a_503_to_try_again(store, monkeypatch):
    client = TestClient(create_app(Engine(HASHER, store)))

    def busy(*_):
        raise StoreError("codes.db is being written by another process")

    monkeypatch.setattr(store, "snapshot", busy)
    monkeypatch.setattr(store, "_read", busy)
    assert is_problem(client.get("/readyz"), 503) == "the store does not answer"
    response = client.get("/metrics")
    assert is_problem(response, 503) == "codes.db is being written by another process"
    assert response.headers["retry-after"] == "1"


def test_writes_wait_for_another_process_only_so_long(tmp_path):
    url = f"sqlite:///{tmp_path}/codes.db"
    with open_store(f"{url}?timeout=0.1", n_bits=N_BITS) as store:
        fill(store)
        client = TestClient(create_app(Engine(HASHER, store)))
        lock = sqlite3.connect(tmp_path / "codes.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        request = {"items": [{"id": 1, "code": "000000"}]}
        busy = client.put("/v1/items", json=request)
        assert "being written by another process" in is_problem(busy, 503)
        assert busy.headers["retry-after"] == "1"
        assert client.post("/v1/search", json={"code": "000000"}).status_code == 200
        lock.execute("ROLLBACK")
        lock.close()
        assert client.put("/v1/items", json=request).json() == {"upserted": 1, "replaced": 1}


def test_slow_work_is_given_up_and_holds_nobody_else_up(store, monkeypatch):
    engine = Engine(HASHER, store, limits=Limits(seconds=0.3, threads=1, waiting=1))
    release = threading.Event()
    monkeypatch.setattr(engine, "card", lambda: release.wait(20) and {})
    with TestClient(create_app(engine)) as client:
        answers = []
        callers = [
            threading.Thread(target=lambda: answers.append(client.get("/v1/model")))
            for _ in range(3)
        ]
        for caller in callers:
            caller.start()
        assert client.get("/healthz").status_code == 200  # the loop is free
        assert client.put("/v1/items", json={"items": []}).status_code == 200  # and so are writers
        for caller in callers:
            caller.join()
        release.set()
        messages = sorted(is_problem(answer, 503) for answer in answers)
        assert "may still be carried out" in messages[0]
        assert "nothing was done" in messages[1]
        assert "too many requests are waiting" in messages[2]


def test_a_write_that_never_began_is_never_done(store, monkeypatch):
    engine = Engine(HASHER, store, limits=Limits(seconds=0.2))
    release, began = threading.Event(), threading.Event()

    def wait(*_):
        began.set()
        release.wait(20)

    monkeypatch.setattr(engine, "delete", wait)
    before = contents(store)
    with TestClient(create_app(engine)) as client:
        slow = threading.Thread(
            target=lambda: client.request("DELETE", "/v1/items", json={"ids": [1]})
        )
        slow.start()
        assert began.wait(10)
        response = client.put("/v1/items", json={"items": [{"id": 1, "code": "000000"}]})
        assert "nothing was done" in is_problem(response, 503)
        release.set()
        slow.join()
    with open_store(f"sqlite:///{store.place}") as again:
        assert contents(again) == before


def test_items_that_change_between_search_and_fetch_are_searched_again(store, monkeypatch):
    """In a store without snapshots, as in Milvus: a fast writer must never be seen half."""
    monkeypatch.setattr(store, "snapshot", lambda: nullcontext(store))
    for name in ("_search", "_radius", "_count"):
        monkeypatch.setattr(store, name, partial(asked_anew, store, name), raising=False)
    engine = Engine(HASHER, store)
    get, n_changes = store.get, 0

    def get_later(ids):
        nonlocal n_changes
        n_changes += 1
        if 1 <= n_changes <= 3:
            differing = np.array([[2**n_changes - 1, 0, 0]], np.uint8)  # in 1, 2, 3 bits
            store.upsert([IDS[0]], CODES[:1] ^ differing)
        return get(ids)

    monkeypatch.setattr(store, "get", get_later)
    client = TestClient(create_app(engine))
    code = to_hex(CODES[:1], N_BITS)[0]
    hit = client.post("/v1/search", json={"code": code, "radius": N_BITS}).json()
    for result in hit["results"]:
        query, own = from_hex([code], N_BITS), from_hex([result["code"]], N_BITS)
        assert result["distance"] == np.bitwise_count(query ^ own).sum()
    assert n_changes > 3
    n_changes = -(10**9)
    monkeypatch.setattr(
        Search, "_unchanged", lambda _, found, *__: np.zeros(len(found.counts), bool)
    )
    response = client.post("/v1/search", json={"code": code})
    assert "too quickly" in is_problem(response, 503)


def asked_anew(store, name, *arguments):
    with type(store).snapshot(store) as now:
        return getattr(now, name)(*arguments)


def test_every_request_is_one_line_of_json(reader, caplog):
    caplog.set_level(logging.INFO)
    response = reader.post(
        "/v1/search?secret=1", json={"code": "000000", "where": {"word": "hidden"}}
    )
    (record,) = [one for one in caplog.records if one.name == "antipodal.service"]
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert line.pop("request_id") == response.headers["x-request-id"]
    assert 0 < line.pop("ms") < 60_000
    assert line.pop("time").endswith("Z")
    assert line.pop("pid")
    assert line == {
        "level": "info",
        "event": "request",
        "client": "testclient",
        "method": "POST",
        "path": "/v1/search",
        "status": 200,
    }
    reader.get('/v1/items/"%0A{evil}')
    assert "\n" not in JsonFormatter().format(caplog.records[-1])


def test_limits_must_make_sense():
    for wrong in ({"k": 0}, {"seconds": float("inf")}, {"seconds": float("nan")}, {"body": -1}):
        with pytest.raises(ValueError, match="must be more than 0"):
            Limits(**wrong)


def test_the_options_of_serve_have_the_defaults_of_the_limits():
    options = inspect.signature(serve).parameters
    for field in dataclasses.fields(Limits):
        name = field.name if field.name in options else f"max_{field.name}"
        if field.name != "waiting":  # the only one that is no option
            assert options[name].default == field.default


# ------------------------------------------------------------------------------------ page


def test_the_page_is_served_with_a_strict_policy(store, tmp_path):
    page = tmp_path / "page"
    page.mkdir()
    (tmp_path / "secret").write_text("secret")
    client = TestClient(create_app(Engine(HASHER, store), page=page))
    is_problem(client.get("/"), 404)
    is_problem(client.get("/static/app.js"), 404)
    for name, kind in (
        ("index.html", "text/html; charset=utf-8"),
        ("app.js", "text/javascript; charset=utf-8"),
        ("style.css", "text/css; charset=utf-8"),
    ):
        (page / name).write_text("hello")
        response = client.get("/" if name == "index.html" else f"/static/{name}")
        assert (response.text, response.headers["content-type"]) == ("hello", kind)
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; img-src 'self' data:;")
        assert response.headers["x-content-type-options"] == "nosniff"
    is_problem(client.get("/docs"), 404)
    (page / "link").symlink_to(tmp_path / "secret")
    for trick in ("..%2fsecret", "%2e%2e/secret", "link"):
        assert "secret" not in client.get(f"/static/{trick}").json()["detail"]


# ------------------------------------------------------------------------------------ start


@pytest.mark.parametrize(
    ("options", "keys", "words"),
    [
        (["--host", "0.0.0.0"], None, "could read and write the store"),
        (["--host", "0.0.0.0"], "admin x", "must be `read KEY`"),
        (["--keys", "missing"], None, "cannot read the keys in missing"),
        (["--images", "pixels:8x8"], None, "makes 64 features"),
        (["--model", "missing"], None, "cannot read missing"),
        (["--scores", "missing"], None, "cannot read the scores in missing"),
    ],
)
def test_what_is_wrong_is_said_before_anything_listens(tmp_path, monkeypatch, options, keys, words):
    monkeypatch.delenv("ANTIPODAL_KEYS", raising=False)
    if keys is not None:
        monkeypatch.setenv("ANTIPODAL_KEYS", keys)
    HASHER.save(tmp_path / "model")
    arguments = ["--model", str(tmp_path / "model"), "--store", f"sqlite:///{tmp_path}/codes.db"]
    result = CliRunner().invoke(commands, ["serve", *arguments, *options])
    assert isinstance(result.exception, (AntipodalError, ValueError))
    assert words in str(result.exception)


@pytest.mark.parametrize("by_variable", [False, True])
def test_the_password_of_a_store_is_not_printed(tmp_path, monkeypatch, capsys, by_variable):
    HASHER.save(tmp_path / "model")
    secret = "s3cret-of-the-database"
    url = f"postgresql://reader:{secret}@127.0.0.1:9/codes"  # where nothing listens
    given = [] if by_variable else ["--store", url]
    if by_variable:
        monkeypatch.setenv("ANTIPODAL_STORE", url)
    model = ["--model", str(tmp_path / "model")]
    monkeypatch.setattr("sys.argv", ["antipodal", "serve", "--port", "0", *model, *given])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 1
    assert "127.0.0.1" in printed.err  # it is said which store
    assert secret not in printed.out + printed.err
    assert secret not in repr(Settings({"": Mount(tmp_path, url)}))


def test_an_address_that_cannot_be_listened_on_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ANTIPODAL_KEYS", f"read {READ}")
    model = ["--model", "missing", "--store", f"sqlite:///{tmp_path}/codes.db"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for host, words in (
            ("127.0.0.1", "Address already in use. Is it running already?"),
            ("192.0.2.7", "Cannot assign requested address"),  # kept for documents: nobody has it
            ("no.such.name.invalid", "port"),
        ):
            arguments = ["antipodal", "serve", *model, "--host", host, "--port", port]
            monkeypatch.setattr("sys.argv", arguments)
            with pytest.raises(SystemExit) as ended:
                main()
            printed = capsys.readouterr()
            assert (ended.value.code, printed.out) == (1, "")
            assert printed.err.startswith(f"antipodal: cannot listen on {host} port {port}: ")
            assert words in printed.err
            assert printed.err.count("\n") == 1
    check_address("127.0.0.1", int(port))  # free again
    check_address("localhost", 0)


def test_a_store_of_another_model_is_refused_at_the_start(tmp_path):
    for seed in (0, 1):
        LSH(16, random_state=seed).fit(ROWS).save(tmp_path / f"model{seed}")
    url = f"sqlite:///{tmp_path}/codes.db"
    engine = Engine.open(tmp_path / "model0", url)  # makes it
    assert (engine.store.n_bits, engine.store.count()) == (16, 0)
    engine.store.close()
    with pytest.raises(StoreError, match="cannot be opened for model"):
        Engine.open(tmp_path / "model1", url)


def test_settings_reach_the_workers_as_they_are(tmp_path):
    settings = Settings(
        mounts={
            "a": Mount(tmp_path / "model", "sqlite:///codes.db", keys=tmp_path / "keys"),
            "b": Mount(tmp_path / "model", "sqlite:///codes.db", None, "gist", tmp_path / "scores"),
        },
        mounts_file=tmp_path / "mounts",
        keys=tmp_path / "keys",
        proxies=("10.0.0.7", "10.0.1.0/24"),
        limits=Limits(k=7, seconds=1.5),
    )
    assert Settings.from_json(settings.to_json()) == settings
    relative = Settings({"": Mount(Path("model"), "sqlite:///codes.db")}, keys=Path("keys"))
    again = Settings.from_json(relative.to_json())
    assert again.mounts[""].model == Path("model").absolute()
    assert again.keys == Path("keys").absolute()

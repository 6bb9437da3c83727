"""`antipodal.Client`: retries, errors, limits of requests and keys; the answers of a service."""

import json
import socket
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from antipodal import LSH, Client, Collection
from antipodal.errors import IdsTakenError, StoreError
from antipodal.service import Engine, Limits, create_app
from http_server import http_server
from served import listening

KEY = "wr1te-k3y-of-the-import"
LIMITS = {"body": 2000, "binary_body": 64, "batch": 3, "k": 100, "results": 50, "found": 100}
ABOUT = {
    "n_bits": 16,
    "n_features": 2,
    "model": "sha",
    "scoring": "hamming",
    "id_type": "int64",
    "keep_vectors": None,
    "texts": False,
    "next_id": 5,
    "limits": LIMITS,
}
ROWS = np.arange(16, dtype=np.float32).reshape(8, 2)
BUSY = (503, {"detail": "too many requests are waiting"}, {"Retry-After": "2"})


@contextmanager
def scripted(*responses):
    """Return a client of a server with scripted responses, and the list of its requests.

    A response is a status, a body and headers, or None to close the connection.
    """
    left, requests = list(responses), []

    def respond(request):
        if request.path.endswith("/v1/store"):
            return 200, ABOUT, {}
        is_json = request.headers["Content-Type"] == "application/json"
        sent = json.loads(request.body) if is_json else request.body or None
        requests.append((request.method, request.path, sent, request.headers["Authorization"]))
        return left.pop(0)

    with http_server(respond) as url, Client(f"{url}/at/", KEY, retries=2) as client:
        yield client, requests


pytestmark = pytest.mark.usefixtures("pauses")
OK = {
    "count": (200, {"count": 7}, {}),
    "upsert": (200, {"upserted": 1, "replaced": 0}, {}),
    "delete": (200, {"deleted": 1}, {}),
    "add": (200, {"upserted": 1, "replaced": 0}, {}),
    "search": (200, {"searches": [{"code": "0000", "results": [], "total": 0}]}, {}),
}
CALLS = {
    "count": lambda client: client.count(),
    "upsert": lambda client: client.upsert(ROWS[:1], [1]),
    "delete": lambda client: client.delete([1]),
    "add": lambda client: client.add(ROWS[:1]),
    "search": lambda client: client.search(ROWS[:1]),
}


@pytest.mark.parametrize("name", ["count", "upsert", "search"])
def test_idempotent_requests_are_retried(name, pauses):
    with scripted(BUSY, None, OK[name]) as (client, requests):
        CALLS[name](client)
        assert len(requests) == 3
        assert requests[0] == requests[1] == requests[2]
        assert 2 <= pauses[0] <= 3  # Retry-After
        assert 0.2 <= pauses[1] <= 0.3
    for failures, words in (
        ([BUSY] * 3, BUSY[1]["detail"]),
        ([None] * 3, r"http://127\.0\.0\.1:\d+/at"),
    ):
        with scripted(*failures) as (client, requests):
            with pytest.raises(StoreError, match=words):
                CALLS[name](client)
            assert len(requests) == 3


@pytest.mark.parametrize("name", ["delete", "add"])
@pytest.mark.parametrize(
    ("failure", "words"), [(BUSY, BUSY[1]["detail"]), (None, r"http://127\.0\.0\.1:\d+/at")]
)
def test_other_requests_are_not_retried(name, failure, words):
    with scripted(failure, OK[name]) as (client, requests):
        with pytest.raises(StoreError, match=words):
            CALLS[name](client)
        assert len(requests) == 1


def test_connections_to_an_unreachable_service_are_retried(pauses):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(StoreError, match=rf"{url}.*Connection refused") as error:
        Client(url, KEY, retries=3)
    assert len(pauses) == 3
    assert KEY not in str(error.value)
    with scripted() as (client, _):
        client._transport.url = url  # unreachable: a delete cannot have been received
        pauses.clear()
        with pytest.raises(StoreError, match="Connection refused"):
            client.delete([1])
        assert len(pauses) == 2


def test_timeouts_are_not_retried(pauses):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(StoreError, match=rf"{url}.*\b0\.1 s\b"):
            Client(url, timeout=0.1)
    assert not pauses


@pytest.mark.parametrize(
    ("response", "kind", "words"),
    [
        ((401, {"detail": "a key is needed"}, {}), StoreError, r"/at\b.*a key is needed"),
        ((403, {"detail": "this key may read"}, {}), StoreError, "this key may read"),
        ((404, {"detail": "Not Found"}, {}), StoreError, "Not Found"),
        ((405, {"detail": "Method Not Allowed"}, {}), StoreError, "read-only"),
        ((409, {"detail": "has items"}, {}), IdsTakenError, "has items"),
        ((413, {"detail": "at most 10 bytes"}, {}), StoreError, "at most 10 bytes"),
        ((422, {"detail": "k must be at most"}, {}), ValueError, "k must be at most"),
        ((503, {"detail": "may still be done"}, {}), StoreError, "may still be done"),
        ((500, {"detail": "internal error"}, {}), StoreError, "internal error"),
        ((302, b"", {"Location": "http://127.0.0.1:9/"}), StoreError, r"\b302\b"),
        ((200, b"<html>", {}), StoreError, r"/at\b.*\b200\b"),
        ((200, [], {}), StoreError, r"/at\b.*\b200\b"),
        ((502, b"<html>", {}), StoreError, r"\b502\b"),
    ],
)
def test_error_responses_raise_with_the_detail_and_the_address(response, kind, words):
    with scripted(response) as (client, requests):
        with pytest.raises(kind, match=words) as error:
            client.count()
        assert KEY not in str(error.value)
        if kind is StoreError:
            assert client.place in str(error.value)
        assert len(requests) == 1


def test_the_key_is_sent_and_never_displayed():
    with scripted(OK["count"]) as (client, requests):
        client.count()
        assert requests[0][3] == f"Bearer {KEY}"
        shown = repr(client) + repr(vars(client)) + repr(vars(client._transport)) + client.place
        assert KEY not in shown + repr(client._transport._session.auth)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("127.0.0.1:8000", r"\bhttps?://"),
        ("ftp://host", r"\bhttps?://"),
        ("http://", r"\bhttps?://"),
        ("http://host:port", r"\bhttps?://"),
        ("http://:s3cret-key@host", r"\bkey="),
        ("http://host?key=s3cret", r"\bkey="),
    ],
)
def test_invalid_urls_raise_without_being_quoted(url, words):
    with pytest.raises(ValueError, match=words) as error:
        Client(url)
    assert "s3cret" not in str(error.value)


def test_invalid_arguments_raise():
    for key in ("", "two words", "line\nbreak", "schlüssel"):
        with pytest.raises(ValueError, match=r"\bkey\b"):
            Client("http://127.0.0.1:9", key)
    with pytest.raises(ValueError, match=r"\btimeout\b.*\b0\b"):
        Client("http://127.0.0.1:9", timeout=0)
    with pytest.raises(ValueError, match=r"\bretries\b.*\b0\b.*-1\b"):
        Client("http://127.0.0.1:9", retries=-1)


def test_services_of_another_version_are_refused(monkeypatch):
    monkeypatch.delitem(ABOUT, "scoring")
    with pytest.raises(StoreError, match=r"/at\b.*scoring"), scripted():
        pass


def ids_sent(requests):
    return [[item["id"] for item in request[2]["items"]] for request in requests]


def test_uploads_are_split_by_number_and_by_size():
    responses = [(200, {"upserted": 3, "replaced": 2}, {})] * 3
    with scripted(*responses) as (client, requests):
        assert client.upsert(ROWS, range(8)) == 6
        assert ids_sent(requests) == [[0, 1, 2], [3, 4, 5], [6, 7]]
        sent = [item["vector"] for request in requests for item in request[2]["items"]]
        np.testing.assert_array_equal(sent, ROWS)
    metadata = [{"text": "x" * size} for size in (400, 400, 400, 400, 3000, 1, 1, 1)]
    with scripted(*responses * 2) as (client, requests):
        client.upsert(ROWS, range(8), metadata)
        assert ids_sent(requests) == [[0, 1], [2, 3], [4], [5, 6, 7]]
        assert [i["metadata"] for request in requests for i in request[2]["items"]] == metadata


def test_searches_are_split_and_sent_as_float32():
    none = {"code": "0000", "results": [], "total": 0}
    answers = [(200, {"searches": [none] * n}, {}) for n in (3, 3, 2)]
    with scripted(*answers) as (client, requests):
        where = {"label": {"in": ["a b", "ü&?"]}}
        found = client.search(ROWS.astype(np.float64), 7, where=where, scoring="hamming")
        assert found.ids.shape == (8, 0)
        assert np.frombuffer(b"".join(request[2] for request in requests), "<f4").tolist() == list(
            range(16)
        )
        for _, path, *_ in requests:
            address = urlsplit(path)
            assert address.path == "/at/v1/search"
            (options,) = parse_qs(address.query)["options"]
            expected = {"k": 7, "items": False, "where": where, "scoring": "hamming"}
            assert json.loads(options) == expected
    with scripted(*[(200, {"searches": [none]}, {})] * 8) as (client, requests):
        client.search(ROWS, 25, rerank=4)  # 100 candidates per query, and 100 per request
        assert len(requests) == 8
    long = {"label": {"in": ["x" * 1500] * 3}}
    with scripted(*[(200, {"searches": [none]}, {})]) as (client, requests):
        client._limits["body"] = 10_000
        client.search(ROWS[:1], where=long)  # too long for a URL
        assert requests[0][2]["where"] == long
        assert requests[0][2]["vectors"] == [[0.0, 1.0]]


def test_a_conflict_after_the_first_part_is_not_an_ids_taken_error():
    """IdsTakenError would mean that nothing was stored."""
    unused = (200, {"items": []}, {})
    taken = (409, {"detail": "has items with ids 4 already"}, {})
    with (
        scripted(unused, unused, unused, OK["add"], taken) as (client, _),
        pytest.raises(StoreError, match=r"\b3 items\b"),
    ):
        client.add(ROWS, range(8))
    in_use = (200, {"items": [{"id": 1, "code": "0000", "metadata": {}}]}, {})
    with scripted(in_use, unused, unused) as (client, requests):
        with pytest.raises(IdsTakenError):
            client.add(ROWS, range(8))
        assert {method for method, *_ in requests} == {"POST"}


# ------------------------------------------------------------------------------------ services

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3_000, 12)).astype(np.float32)
QUERIES = RNG.standard_normal((9, 12)).astype(np.float32)


@contextmanager
def served(collection, **options):
    """Yield a client of a collection behind a service with small limits."""
    limits = Limits(body=100_000, binary_body=20_000, batch=700, k=4_000, results=900, found=9_000)
    app = create_app(Engine(collection, limits=limits, **options))
    with listening(app) as port, Client(f"http://127.0.0.1:{port}") as client:
        yield client


@pytest.fixture(scope="module", params=["asymmetric", "hamming"])
def pair(request, tmp_path_factory):
    """A collection of string ids with kept vectors, and a client of it."""
    model = LSH(24, random_state=0).fit(X) if request.param == "hamming" else None
    how = {"bits": 24} if model is None else {"model": model}
    collection = Collection.create(
        tmp_path_factory.mktemp("served") / "docs.db",
        X,
        ids=[f"doc {i}/{i % 7}?ü" for i in range(len(X))],
        metadata=({"i": i, "odd": i % 2 == 1} for i in range(len(X))),
        keep_vectors="int8",
        **how,
    )
    with collection, served(collection) as client:
        yield collection, client


def assert_same(found, expected):
    assert found.ids.dtype == expected.ids.dtype
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.distances, expected.distances)
    assert (found.scores is None) == (expected.scores is None)
    if expected.scores is not None:
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6, atol=1e-6)
    assert found.metadata == expected.metadata


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 4_000},
        {"where": {"odd": True}},
        {"rerank": 4},
        {"rerank": 4, "where": {"i": {"lt": 50}}, "metadata": True},
        {"scoring": "asymmetric"},
        {"metadata": True},
    ],
    ids=str,
)
def test_a_client_finds_what_the_collection_finds(pair, options):
    collection, client = pair
    assert_same(client.search(QUERIES, **options), collection.search(QUERIES, **options))
    ids = [f"doc {i}/{i % 7}?ü" for i in (5, 3, 700)]
    found = client.search(ids=ids, **options)
    assert_same(found, collection.search(ids=ids, **options))
    for own, row in zip(ids, found.ids.tolist(), strict=True):
        assert own not in row
    if "rerank" not in options:
        codes = collection.get(ids).codes
        assert_same(
            client.search(codes=codes, **options), collection.search(codes=codes, **options)
        )


def test_a_client_describes_gets_and_counts_what_the_collection_has(pair):
    collection, client = pair
    for name in ("identity", "id_type", "keep_vectors", "n_features"):
        assert getattr(client, name) == getattr(collection, name)
    assert (client.n_bits, client.scoring) == (24, collection.model.scoring)
    ids = ["doc 9/2?ü", "missing", "doc 3/3?ü"]
    found, expected = client.get(ids), collection.get(ids)
    assert found.ids.tolist() == expected.ids.tolist() == [ids[0], ids[2]]
    np.testing.assert_array_equal(found.codes, expected.codes)
    assert found.metadata == expected.metadata
    assert len(client) == client.count() == len(X)
    assert client.count({"odd": True}) == len(X) // 2
    with pytest.raises(KeyError, match="missing"):
        client.search(ids=ids)


@pytest.mark.parametrize("n_rows", [400, 2_500])
def test_a_client_measures_drift_as_the_collection_does(pair, n_rows):
    collection, client = pair
    for shift in (0.0, 3.0):
        new = RNG.standard_normal((n_rows, 12)).astype(np.float32)
        new[:, :6] += shift
        sent = new[np.linspace(0, n_rows - 1, min(n_rows, 416)).astype(int)]  # in one request
        found, expected = client.check(new), collection.check(sent)
        assert (found, str(found)) == (expected, str(expected))
        assert found.has_drifted == expected.has_drifted
    with pytest.raises(ValueError, match="100"):
        client.check(new[:99])


def test_large_radius_results_are_read_in_pages(tmp_path):
    model = LSH(16, random_state=0).fit(X)
    with (
        Collection.create(tmp_path / "docs.db", X, model=model) as collection,
        served(collection) as client,
    ):
        for r in (8, 16):
            found, expected = client.radius(QUERIES[:3], r), collection.radius(QUERIES[:3], r)
            assert np.diff(expected.offsets).max() > 900
            assert_same(found, expected)
            np.testing.assert_array_equal(found.offsets, expected.offsets)
        codes = model.encode(QUERIES[:2])
        assert_same(client.radius(codes=codes, r=5), collection.radius(codes=codes, r=5))
        expected = collection.radius(codes=codes, r=7, where={"a": 1})
        assert_same(client.radius(codes=codes, r=7, where={"a": 1}), expected)


def test_a_client_writes_what_a_collection_would_have_written(tmp_path):
    with (
        Collection.create(tmp_path / "docs.db", X[:100], bits=24) as collection,
        served(collection) as client,
    ):
        fields = [{"n": i} for i in range(900)]
        assert client.add(X[100:1_000], metadata=fields).tolist() == list(range(100, 1_000))
        assert client.add(X[1_000:1_002], [5_000, -3]).tolist() == [5_000, -3]
        with pytest.raises(IdsTakenError):
            client.add(X[:2], [7_000, 5_000])
        assert client.upsert(X[2_000:2_003], [5, 6, 9_000]) == 2
        assert client.delete([5_000, 12_345]) == 1
        with pytest.raises(ValueError, match="12"):
            client.add(X[:2, :5])
        with pytest.raises(TypeError, match="strings"):
            client.upsert(X[:1], ["a"])
        assert collection.count() == 1_002
        items = collection.get([100, 999, -3, 5, 9_000])
        rows = X[[100, 999, 1_001, 2_000, 2_002]]
        np.testing.assert_array_equal(items.codes, collection.model.encode(rows))
        assert items.metadata == [{"n": 0}, {"n": 899}, {}, {}, {}]


def test_a_read_only_service_refuses_writes(tmp_path):
    with (
        Collection.create(tmp_path / "docs.db", X[:100], bits=24) as collection,
        served(collection, is_read_only=True) as client,
    ):
        with pytest.raises(StoreError, match="read-only"):
            client.delete([1])
        assert client.search(X[:3], 1).ids.tolist() == collection.search(X[:3], 1).ids.tolist()


def test_opening_the_address_of_a_service_returns_a_client(tmp_path):
    with (
        Collection.create(tmp_path / "docs.db", X[:100], bits=24) as collection,
        served(collection) as client,
        Collection.open(client.place) as opened,
    ):
        assert isinstance(opened, Client)
        assert opened.count() == 100

"""`antipodal.Client`: retries, errors, limits of requests and keys."""

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from antipodal import Client, open_store
from antipodal.client import _filter
from antipodal.errors import IdsTakenError, StoreError
from antipodal.stores.filters import parse_where
from served import PREFIX, service  # noqa: F401
from served import open_store as open_served

KEY = "wr1te-k3y-of-the-import"
LIMITS = {"body": 1000, "batch": 3, "k": 100, "results": 50, "found": 100}
ABOUT = {"n_bits": 16, "model": "sha", "next_id": 5, "limits": LIMITS}
CODES = np.arange(16, dtype=np.uint8).reshape(8, 2)
BUSY = (503, {"detail": "too many requests are waiting"}, {"Retry-After": "2"})


@contextmanager
def scripted(*responses):
    """Return a client of a server with scripted responses, and the list of its requests.

    A response is a status, a body and headers, or None to close the connection.
    """
    left, requests = list(responses), []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path.endswith("/v1/store"):
                status, value, headers = 200, ABOUT, {}
            else:
                sent = json.loads(body) if body else None
                requests.append((self.command, self.path, sent, self.headers["Authorization"]))
                response = left.pop(0)
                if response is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                status, value, headers = response
            text = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            for name, header in {"Content-Length": str(len(text)), **headers}.items():
                self.send_header(name, header)
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_DELETE = respond  # noqa: N815

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        with Client(f"http://127.0.0.1:{server.server_port}/at/", KEY, retries=2) as client:
            yield client, requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """Record the pauses between retries instead of waiting."""
    recorded = []
    monkeypatch.setattr("antipodal.client.time.sleep", recorded.append)
    return recorded


OK = {
    "count": (200, {"count": 7}, {}),
    "upsert": (200, {"upserted": 1, "replaced": 0}, {}),
    "delete": (200, {"deleted": 1}, {}),
    "add": (200, {"upserted": 1, "replaced": 0}, {}),
}
CALLS = {
    "count": lambda client: client.count(),
    "upsert": lambda client: client.upsert([1], CODES[:1]),
    "delete": lambda client: client.delete([1]),
    "add": lambda client: client.add(CODES[:1], [1]),
}


@pytest.mark.parametrize("name", ["count", "upsert"])
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


def test_uploads_are_split_by_number_and_by_size():
    responses = [(200, {"upserted": 3, "replaced": 2}, {})] * 3
    with scripted(*responses) as (client, requests):
        assert client.load(range(8), CODES).replaced == 6
        sent = [[item["id"] for item in request[2]["items"]] for request in requests]
        assert sent == [[0, 1, 2], [3, 4, 5], [6, 7]]
    metadata = [{"text": "x" * size} for size in (300, 300, 300, 300, 2000, 1, 1, 1)]
    with scripted(*responses * 2) as (client, requests):
        client.upsert(range(8), CODES, metadata)
        sent = [[item["id"] for item in request[2]["items"]] for request in requests]
        assert sent == [[0, 1], [2, 3], [4], [5, 6, 7]]
        assert [i["metadata"] for request in requests for i in request[2]["items"]] == metadata


def test_a_conflict_after_the_first_part_is_not_an_ids_taken_error():
    """IdsTakenError would mean that nothing was stored."""
    unused = (200, {"items": []}, {})
    taken = (409, {"detail": "has items with ids 4 already"}, {})
    with (
        scripted(unused, unused, unused, OK["add"], taken) as (client, _),
        pytest.raises(StoreError, match=r"\b3 items\b"),
    ):
        client.add(CODES, range(8))
    in_use = (200, {"items": [{"id": 1, "code": "0000", "metadata": {}}]}, {})
    with scripted(in_use, unused, unused) as (client, requests):
        with pytest.raises(IdsTakenError, match=r"\bids 1\b"):
            client.add(CODES, range(8))
        assert {method for method, *_ in requests} == {"POST"}


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"label": 3},
        {"label": None, "flag": True, "a.b": "x"},
        {"year": {"gte": 2000, "lt": 2010.5}, "label": {"in": [1, "1", None]}},
        {"or": [{"a": 1}, {"not": {"b": {"exists": True}}}, {}]},
        {"and": [{"a": {"exists": False}}]},
    ],
)
def test_filters_survive_serialisation(where):
    tree = parse_where(where)
    assert parse_where(json.loads(json.dumps(_filter(tree)))) == tree


def test_large_radius_results_and_all_items_are_read_in_pages(service, tmp_path):  # noqa: F811
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (4_000, 2), dtype=np.uint8)
    with open_served(f"{PREFIX}sqlite:///{tmp_path}/codes.db", n_bits=16) as client:
        client.load(np.arange(4_000), codes, ({"i": i} for i in range(4_000)))
        with open_store(f"sqlite:///{tmp_path}/codes.db") as store:
            for r in (8, 16):
                found, expected = client.radius(codes[:3], r), store.radius(codes[:3], r)
                assert np.diff(expected.offsets).max() > 3_000 or r == 8
                np.testing.assert_array_equal(found.ids, expected.ids)
                np.testing.assert_array_equal(found.distances, expected.distances)
                np.testing.assert_array_equal(found.offsets, expected.offsets)
            values = rng.standard_normal((2, 16))
            found, expected = client.search(vectors=values), store.search(vectors=values)
            np.testing.assert_array_equal(found.ids, expected.ids)
        batches = list(client.batches())
        assert np.concatenate([batch.ids for batch in batches]).tolist() == list(range(4_000))
        texts = [text for batch in batches for text in batch.texts]
        assert texts == [f'{{"i":{i}}}' for i in range(4_000)]

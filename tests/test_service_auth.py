"""API keys and roles, and the hosts that a service without keys accepts."""
# ruff: noqa: F811 (imported fixtures)

import asyncio
import json
import logging
from urllib.parse import unquote

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount as Under

from antipodal.errors import AntipodalError
from antipodal.service import Keys, Limits, create_app
from antipodal.service.app import ServiceRoute
from antipodal.service.metrics import JsonFormatter
from antipodal.service.server import check_host, is_loopback
from served import (  # noqa: F401
    HASHER,
    IDS,
    KEYS,
    READ,
    VECTOR,
    WRITE,
    TestClient,
    contents,
    engine_of,
    is_problem,
    kept_store,
    label,
    store,
)


def keyed_routes():
    code = {"code": "000000"}
    return [
        ("POST", "/v1/encode", {"vectors": [VECTOR]}, "read"),
        ("POST", "/v1/search", code, "read"),
        ("POST", "/v1/check", {"vectors": [VECTOR] * 100}, "read"),
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
def test_keys_permit_their_role_and_are_never_logged(store, caplog, header):
    caplog.set_level(logging.DEBUG)
    client = TestClient(create_app(engine_of(store), keys=Keys.parse(KEYS, "keys")))
    wrong = "wr0ng-k3y-that-nobody-has"

    def status(method, path, body, key):
        value = f"Bearer {key}" if header == "Authorization" else key
        headers = {} if key is None else {header: value}
        response = client.request(method, path, json=body, headers=headers)
        if response.status_code >= 400:
            is_problem(response)
        if response.status_code == 401:
            # A wrong key is told apart from a missing one.
            challenge = 'Bearer error="invalid_token"' if key else "Bearer"
            assert response.headers["www-authenticate"] == challenge
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


def test_the_body_of_a_request_without_a_key_is_not_read(store):
    app = create_app(engine_of(store), keys=Keys.parse(KEYS, "keys"))

    async def receive():
        raise AssertionError("the body was read")

    status, _ = asyncio.run(raw(app, "PUT", "/v1/items", "", None, receive))
    assert status == 401


@pytest.fixture(scope="module")
def guarded(kept_store):
    """The application with keys, by the prefix it is mounted at."""
    app = create_app(engine_of(kept_store), keys=Keys.parse(KEYS, "keys"))
    return {
        "": app,
        "/api": Starlette(routes=[Under("/api", app)]),
        "/a/b": Starlette(routes=[Under("/a", Starlette(routes=[Under("/b", app)]))]),
    }


@pytest.mark.parametrize("root_path", ["", "/proxy"])
@pytest.mark.parametrize("prefix", ["", "/api", "/a/b"])
def test_keys_are_required_wherever_the_application_is_mounted(
    guarded, kept_store, prefix, root_path
):
    client = TestClient(guarded[prefix], root_path=root_path, raise_server_exceptions=False)
    before = contents(kept_store)
    wrong = {"X-API-Key": "wr0ng-k3y-that-nobody-has"}
    for method, path, body, role in keyed_routes():
        # A proxy may keep its prefix or remove it; a mount needs its own.
        for start in {root_path + prefix} if prefix else {"", root_path}:
            for headers in ({}, wrong):
                response = client.request(method, start + path, json=body, headers=headers)
                is_problem(response, 401)
                challenge = 'Bearer error="invalid_token"' if headers else "Bearer"
                assert response.headers["www-authenticate"] == challenge
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
def test_no_spelling_of_a_path_bypasses_the_keys(guarded, kept_store, path, prefix):
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


async def raw(app, method, path, query, key, receive=None):
    """Call an application as a server does, with a path that no client has normalised."""
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

    async def send_body():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    await app(scope, receive or send_body, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def test_every_route_requires_a_role_except_the_page_and_the_probes(guarded):
    open_to_all = {"/", "/docs", "/healthz", "/readyz", "/openapi.json", "/static"}
    app = guarded[""]
    roles = {}
    for route in app.routes:
        if route.path in open_to_all:
            continue
        assert isinstance(route, ServiceRoute), route.path
        (guard,) = route.guards
        path = route.path.removesuffix(":path}") + "}" * route.path.endswith(":path}")
        roles |= {(method, path): guard.role for method in route.methods}
    writing = {("PUT", "/v1/items"), ("DELETE", "/v1/items")}
    described = app.openapi()["paths"]
    every = {(method.upper(), path) for path, methods in described.items() for method in methods}
    keyed = {route for route in every if route[1] not in open_to_all}
    assert len(keyed) >= 15
    assert roles == {route: "write" if route in writing else "read" for route in keyed}
    for method, path in every:
        ways = described[path][method.lower()].get("security", [])
        assert ways == ([{"bearer": []}, {"header": []}] if path not in open_to_all else [])


@pytest.mark.parametrize("key", [None, "wr0ng-k3y-that-nobody-has", READ])
def test_a_body_is_not_validated_without_a_sufficient_key(guarded, key):
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"X-API-Key": key})
    client = TestClient(guarded[""])
    for content in (b"{", b'{"unknown": 1}', b" " * (Limits().body + 1)):
        response = client.put("/v1/items", content=content, headers=headers)
        is_problem(response, 401 if key != READ else 403)


def test_a_comment_starts_after_whitespace():
    hashed = "9#kd83-k3y-with-a-hash"
    keys = Keys.parse(f"#read {READ}\n  # {READ}\nwrite {hashed} # a comment\n", "keys")
    assert len(keys) == 1
    assert keys.role(hashed.encode()) == "write"
    for other in ("9", READ, f"{hashed} # a comment"):
        assert keys.role(other.encode()) is None
    with pytest.raises(AntipodalError, match="line 2"):
        Keys.parse(f"read {READ}\nwrite #{hashed}", "keys")


def test_short_keys_are_refused_without_quoting_them():
    short = "secret-of-15-ch"
    with pytest.raises(AntipodalError) as error:
        Keys.parse(f"# keys\nread {READ}\nwrite {short}", "keys.txt")
    assert "keys.txt, line 3" in str(error.value)
    assert "16" in str(error.value)
    assert short not in str(error.value)
    assert len(Keys.parse(f"write {short}s", "keys.txt")) == 1


def test_invalid_key_files_are_refused_without_quoting_them(tmp_path, monkeypatch):
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
    with pytest.raises(AntipodalError, match="missing"):
        Keys.find(tmp_path / "missing")
    monkeypatch.delenv("ANTIPODAL_KEYS", raising=False)
    assert Keys.find(None) is None
    monkeypatch.setenv("ANTIPODAL_KEYS", f"read {READ},write {WRITE}")
    assert len(Keys.find(None)) == 2


def test_without_keys_only_loopback_addresses_are_accepted():
    for host in ("127.0.0.1", "127.9.8.7", "::1", "localhost"):
        assert is_loopback(host)
        check_host(host, False)
    for host in ("0.0.0.0", "::", "", "192.168.1.5", "example.org", "localhost.example.org"):
        assert not is_loopback(host)
        check_host(host, True)
        with pytest.raises(AntipodalError, match="--allow-anyone"):
            check_host(host, False)


def test_without_keys_other_host_names_are_refused(store):
    """Against DNS rebinding."""
    client = TestClient(create_app(engine_of(store), hosts={"127.0.0.1", "[::1]"}))
    for host in ("127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000"):
        assert client.get("/v1/model", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""):
        is_problem(client.get("/v1/model", headers={"Host": host}), 421)

"""Errors, logs, metrics, the OpenAPI description and the static files."""
# ruff: noqa: F811 (imported fixtures)

import json
import logging

import pytest
import schemathesis
from hypothesis import HealthCheck, given
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from antipodal.errors import StoreError
from antipodal.service import create_app
from antipodal.service.metrics import JsonFormatter
from effort import examples
from served import (  # noqa: F401
    HANG,
    HASHER,
    IDS,
    LIMITS,
    N_ITEMS,
    TestClient,
    client,
    engine_of,
    is_problem,
    kept_store,
    reader,
    store,
    unchanged,
)

ROUTES = [
    ("POST", "/v1/encode"),
    ("POST", "/v1/search"),
    ("PUT", "/v1/items"),
    ("DELETE", "/v1/items"),
    ("POST", "/v1/items/get"),
    ("POST", "/v1/count"),
    ("POST", "/v1/find"),
    ("POST", "/v1/check"),
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


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [(*route, GenerationMode.POSITIVE) for route in ROUTES]
    + [(*route, GenerationMode.NEGATIVE) for route in ROUTES[:11]],  # the others have no input
)
def test_responses_conform_to_the_openapi_description(store, method, path, mode):
    app = create_app(engine_of(store, limits=LIMITS))
    operation = schemathesis.openapi.from_asgi("/openapi.json", app)[path][method]
    checks = [*CHECKS, negative_data_rejection] if mode is GenerationMode.NEGATIVE else CHECKS

    @examples(4, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case):
        case.call_and_validate(checks=checks, timeout=HANG)

    run()


def test_the_openapi_description_has_examples_and_security(reader):
    described = reader.get("/openapi.json").json()
    requests = [name for name in described["components"]["schemas"] if name.endswith("Request")]
    assert len(requests) == 7
    for name in requests:
        assert described["components"]["schemas"][name]["examples"]
    assert set(described["components"]["securitySchemes"]) == {"bearer", "header"}
    assert described["paths"]["/v1/items"]["put"]["security"]
    assert "security" not in described["paths"]["/healthz"]["get"]


def test_metrics_count_requests_and_items(client):
    client.post("/v1/search", json={"id": int(IDS[0])})
    client.get("/nowhere/else")
    text = client.get("/metrics").text
    assert 'antipodal_requests_total{method="POST",route="/v1/search",status="200"} 1.0' in text
    assert f"antipodal_items {N_ITEMS}" in text
    assert 'route="/v1/search"' in text
    assert "nowhere" not in text


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
        "/static/..%2f..%2fauth.py",
        "/static/%2e%2e/%2e%2e/auth.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/a%00b",
        "/static/",
        "/static",
        "/../../etc/passwd",
    ],
)
def test_manipulated_paths_are_refused(unchanged, path):
    is_problem(unchanged.get(path, follow_redirects=False), 404, 422)


def test_an_internal_error_reveals_only_its_request_id(store, caplog, monkeypatch):
    engine = engine_of(store)
    monkeypatch.setattr(engine, "card", lambda: 1 / 0)
    response = TestClient(create_app(engine)).get("/v1/model")
    request_id = response.headers["x-request-id"]
    assert request_id in is_problem(response, 500)
    assert "division" not in response.text
    line = json.loads(JsonFormatter().format(caplog.records[0]))
    assert line["request_id"] == request_id
    assert "ZeroDivisionError" in line["trace"]


def test_an_unavailable_store_is_a_503_with_retry_after(store, monkeypatch):
    client = TestClient(create_app(engine_of(store)))

    def busy(*_):
        raise StoreError("codes.db is being written by another process")

    monkeypatch.setattr(store, "snapshot", busy)
    monkeypatch.setattr(store, "_read", busy)
    assert "codes.db" not in is_problem(client.get("/readyz"), 503)
    response = client.get("/metrics")
    assert "codes.db" in is_problem(response, 503)
    assert response.headers["retry-after"] == "1"


def test_every_request_is_logged_as_one_line_of_json(reader, caplog):
    caplog.set_level(logging.INFO)
    response = reader.post(
        "/v1/search?secret=1", json={"code": "000000", "where": {"word": "hidden"}}
    )
    (record,) = [one for one in caplog.records if one.name == "antipodal.service"]
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert line.pop("request_id") == response.headers["x-request-id"]
    assert line.pop("ms") > 0
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


def test_the_page_is_served_with_a_strict_policy(store, tmp_path):
    page = tmp_path / "page"
    page.mkdir()
    (tmp_path / "secret").write_text("secret")
    client = TestClient(create_app(engine_of(store), page=page))
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

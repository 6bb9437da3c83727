"""Request bodies: strict JSON, media types, raw float32 and Arrow streams."""
# ruff: noqa: F811 (imported fixtures)

import io
import json
import struct
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pydantic import ValidationError

from antipodal import open_store
from antipodal.service import Keys, Limits, app, bodies, create_app, schemas
from effort import examples
from served import (  # noqa: F401
    CODES,
    HASHER,
    LIMITS,
    N_BITS,
    N_FEATURES,
    ROWS,
    VECTOR,
    TestClient,
    client,
    engine_of,
    is_problem,
    kept_store,
    reader,
    store,
    unchanged,
)

BYTES = {"Content-Type": "application/octet-stream"}


ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}


ROUTES = [
    ("POST", "/v1/encode"),
    ("POST", "/v1/search"),
    ("PUT", "/v1/items"),
    ("DELETE", "/v1/items"),
    ("POST", "/v1/items/get"),
    ("POST", "/v1/count"),
    ("POST", "/v1/find"),
]
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
    {"vector": VECTOR, "radius": 2, "rerank": 4},
    {"vector": VECTOR, "radius": 0, "rerank": 4},
    {"vector": VECTOR, "rerank": 0},
    {"vector": VECTOR, "rerank": 101},
    {"vector": VECTOR, "rerank": 4},  # without kept vectors
    {"vector": VECTOR, "scoring": "cosine"},
    {"vector": VECTOR, "scoring": "asymmetric", "radius": 2},
    {"vector": VECTOR, "scoring": "asymmetric", "histogram": True},
    {"vector": VECTOR, "scoring": "asymmetric", "prefix": 8},
    {"vector": VECTOR, "rescore": "project"},
    {"code": "000000", "rerank": 4},
    {"text": "words"},  # without an embedder
    {"id": "seven"},  # of a store of integer ids
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
    {"code": "00000f"},  # has a bit beyond the 20
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


def test_invalid_json_is_refused(unchanged):
    for body in BAD_JSON:
        for method, path in ROUTES:
            headers = {"Content-Type": "application/json"}
            is_problem(unchanged.request(method, path, content=body, headers=headers), 400, 422)


def test_invalid_searches_are_refused(unchanged):
    for body in BAD_SEARCHES:
        assert len(is_problem(unchanged.post("/v1/search", json=body), 422)) < 3_000, body


def test_errors_of_an_invalid_filter_start_with_its_name(unchanged):
    for where in ({"a": {"in": 3}}, {"": 1}, {"or": []}, {"a": [1]}, {"a": {"lt": None}}):
        response = unchanged.post("/v1/search", json={"code": "000000", "where": where})
        assert is_problem(response, 422).startswith("where ")


def test_a_body_without_the_json_media_type_is_refused(unchanged):
    """Browsers send plain text to other origins without a preflight request."""
    body = b'{"ids": [1]}'
    for kind in ({}, {"Content-Type": "text/plain"}, BYTES):
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
    route=st.sampled_from(ROUTES),
)
def test_arbitrary_bytes_never_cause_a_server_error(client, body, route):
    headers = {"Content-Type": "application/json"}
    response = client.request(*route, content=body, headers=headers)
    if response.status_code != 200:
        is_problem(response, 400, 404, 422)


MANY = 9_000


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (schemas.EncodeRequest, {"vectors": [[]] * MANY}),
        (schemas.EncodeRequest, {"vectors": [["x"] * MANY]}),
        (schemas.EncodeRequest, {"images": [0] * MANY}),
        (schemas.EncodeRequest, dict.fromkeys(map(str, range(MANY)))),
        (schemas.SearchRequest, {"codes": [0] * MANY}),
        (schemas.SearchRequest, {"texts": [""] * MANY}),
        (schemas.SearchRequest, {"vectors": [[]] * MANY}),
        (schemas.CheckRequest, {"vectors": [[]] * MANY}),
        (schemas.IdsRequest, {"ids": [None] * MANY}),
        (schemas.UpsertRequest, {"items": [{}] * MANY}),
        (schemas.UpsertRequest, {"items": [dict.fromkeys(map(str, range(MANY)))]}),
    ],
)
def test_a_body_of_many_errors_stops_at_the_first(schema, body):
    with pytest.raises(ValidationError) as raised:
        schema.model_validate(body)
    assert raised.value.error_count() <= 5


def arrow_stream(compression=None, **columns):
    table = pa.table(columns)
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=7)
    return sink.getvalue()


def lists(rows, kind="float"):
    flat = pa.array(rows.ravel(), kind)
    return pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])


def test_binary_vectors_become_binary_codes(client):
    answer = client.post("/v1/encode", content=ROWS[:20].astype("<f4").tobytes(), headers=BYTES)
    assert answer.headers["content-type"] == BYTES["Content-Type"]
    np.testing.assert_array_equal(np.frombuffer(answer.content, np.uint8), CODES[:20].ravel())
    assert client.post("/v1/encode", content=b"", headers=BYTES).content == b""
    for column in (
        lists(ROWS[:20]),
        lists(ROWS[:20], "double"),
        lists(ROWS[:20]).cast(pa.list_(pa.float32())),
    ):
        body = arrow_stream(vector=column)
        answer = client.post("/v1/encode", content=body, headers=ARROW)
        codes = pa.ipc.open_stream(answer.content).read_all().column("code")
        assert codes.type == pa.binary(3)
        assert codes.to_pylist() == [code.tobytes() for code in CODES[:20]]
    empty = arrow_stream(vector=lists(ROWS[:0]))
    assert client.post("/v1/encode", content=empty, headers=ARROW).status_code == 200


NAN = ROWS[:3].copy()
NAN[1, 1] = np.nan


@pytest.mark.parametrize(
    ("headers", "body", "words"),
    [
        (BYTES, b"123", "6"),
        (BYTES, ROWS[:51].tobytes(), "50 vectors"),
        (BYTES, NAN.tobytes(), "row 1"),
        (ARROW, b"", "Arrow"),
        (ARROW, b"123" * 50, "Arrow"),
        (ARROW, arrow_stream(vector=lists(ROWS[:9]))[:-60], "Arrow"),
        (ARROW, arrow_stream(vector=lists(ROWS[:9, :5])), "6"),
        (ARROW, arrow_stream(a=[1.0], b=[2.0]), "a, b"),
        (ARROW, arrow_stream(a=[1.0]), "double"),
        (ARROW, arrow_stream(a=[["x"] * 6]), "string"),
        (ARROW, arrow_stream(a=[[1.0] * 6, None]), "row 1"),
        (ARROW, arrow_stream(a=lists(ROWS[:51])), "50 vectors"),
    ],
)
def test_invalid_binary_vectors_are_refused(client, headers, body, words):
    response = client.post("/v1/encode", content=body, headers=headers)
    assert response.status_code == 422, response.text
    assert words in response.json()["detail"]


def test_an_arrow_stream_that_does_not_start_with_a_schema_is_refused(client):
    """Parsed as a schema, another message may crash the process (`fuzz.py arrow`)."""
    body = arrow_stream(vector=lists(ROWS[:9]))
    schema = pa.ipc.MessageReader.open_stream(body).read_next_message()
    batches = body[schema.serialize().size :]
    response = client.post("/v1/encode", content=batches, headers=ARROW)
    assert response.status_code == 422
    assert "start with a schema" in response.json()["detail"]


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_arrow_is_refused_before_it_is_unpacked(client, compression):
    zeros = lists(np.zeros((2_000_000, N_FEATURES), np.float32))
    table = pa.table({"vector": zeros})
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    bomb = sink.getvalue()
    del zeros, table
    if len(bomb) > LIMITS.binary_body:
        bomb = arrow_stream(compression, vector=lists(np.zeros((7, N_FEATURES), np.float32)))
    pa.default_memory_pool().release_unused()
    before = pa.total_allocated_bytes()
    response = client.post("/v1/encode", content=bomb, headers=ARROW)
    assert response.status_code == 422
    assert "compressed" in response.json()["detail"]
    assert pa.total_allocated_bytes() == before


def test_arrow_compressed_as_in_version_0_17_is_refused_before_it_is_unpacked(client):
    unpacked = bytes(50_000_000)
    packed = struct.pack("<q", len(unpacked)) + pa.compress(unpacked, codec="zstd", asbytes=True)
    n_rows = -(-len(packed) // (4 * N_FEATURES))
    buffer = pa.py_buffer(packed.ljust(4 * N_FEATURES * n_rows, b"\0"))
    flat = pa.Array.from_buffers(pa.float32(), n_rows * N_FEATURES, [None, buffer])
    batch = pa.record_batch({"vector": pa.FixedSizeListArray.from_arrays(flat, N_FEATURES)})
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch, custom_metadata={"ARROW:experimental_compression": "zstd"})
    before = pa.total_allocated_bytes()
    response = client.post("/v1/encode", content=sink.getvalue(), headers=ARROW)
    assert response.status_code == 422
    assert "must not be compressed" in response.json()["detail"]
    assert pa.total_allocated_bytes() == before


def test_arrow_types_that_expand_are_refused(client):
    for values in (
        pa.nulls(10**9),
        pa.array([ROWS[0].tolist()] * 9, pa.list_view(pa.float32())),
        pa.array([1.0] * 9).dictionary_encode(),
    ):
        table = pa.table({"vector": values})
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        response = client.post("/v1/encode", content=sink.getvalue(), headers=ARROW)
        assert response.status_code == 422


def test_arrow_is_parsed_off_the_event_loop(client, monkeypatch):
    threads = []

    def read(*arguments):
        threads.append(threading.current_thread().name)
        return bodies.read_rows(*arguments)

    monkeypatch.setattr(app, "read_rows", read)
    body = arrow_stream(vector=lists(ROWS[:5]))
    assert client.post("/v1/encode", content=body, headers=ARROW).status_code == 200
    assert [name.split("_")[0] for name in threads] == ["read"]


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON", "APPLICATION/JSON; charset=utf-8", "text/x"]
)
def test_only_binary_media_types_may_exceed_the_json_limit(tmp_path, kind):
    limits = Limits(body=1_000, binary_body=100_000)
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=N_BITS) as store:
        client = TestClient(create_app(engine_of(store, limits=limits)))
        body = b'{"vectors": [' + b",".join([b"[]"] * 2_000) + b"]}"
        response = client.post("/v1/encode", content=body, headers={"Content-Type": kind})
        assert response.status_code == 413
        rows = ROWS[:100].astype("<f4").tobytes()
        assert len(rows) > limits.body
        for binary in (BYTES, {"Content-Type": "Application/Octet-Stream; x=1"}):
            assert client.post("/v1/encode", content=rows, headers=binary).status_code == 200


def test_binary_bodies_have_a_limit_and_need_a_key(client, tmp_path):
    body = bytes(LIMITS.binary_body + 4)
    assert client.post("/v1/encode", content=body, headers=BYTES).status_code == 413
    assert client.post("/v1/search", content=b"0000", headers=BYTES).status_code == 422
    keys = Keys.parse("read " + "k" * 20, "a test")
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=N_BITS) as store:
        guarded = TestClient(create_app(engine_of(store, limits=LIMITS), keys=keys))
        assert guarded.post("/v1/encode", content=bytes(24), headers=BYTES).status_code == 401

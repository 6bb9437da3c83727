"""Connections that send half a request, or are too many, do not keep others out."""

import asyncio
import logging
import socket
import time
from contextlib import suppress

import pytest

from antipodal.service import connections
from listening import listening

ANSWER = b"HTTP/1.1 200"
LARGE = bytes(20 << 20)  # more than the buffers of the system hold
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def application(scope, receive, send):
    body = LARGE if scope["path"] == "/large" else b"ok"
    if scope["path"] == "/slow":
        await asyncio.sleep(0.05)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def port(monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(connections, "UNREAD_SECONDS", 0.5)
    monkeypatch.setattr(connections, "MOST_AFTER", 100_000)
    monkeypatch.setattr(connections, "MOST_OF_AN_ADDRESS", 5)
    with listening(application) as port:
        yield port


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def is_closed(connection):
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


def test_half_a_request_is_given_up_and_a_byte_at_a_time_does_not_help(port):
    with connect(port) as silent, connect(port) as half, connect(port) as slow:
        half.sendall(WHOLE[:20])
        began = time.monotonic()
        while time.monotonic() - began < 3:
            try:
                slow.sendall(b"G" if time.monotonic() - began < 0.1 else b"E")
            except OSError:
                break
            time.sleep(0.05)
        assert time.monotonic() - began < 2
        assert is_closed(silent)
        assert is_closed(half)


def test_requests_on_one_connection_are_answered_longer_than_headers_may_take(port):
    with connect(port) as kept:
        for _ in range(4):
            kept.sendall(WHOLE)
            assert kept.recv(1000).startswith(ANSWER)
            time.sleep(0.2)


def test_too_many_connections_of_an_address_are_closed_and_others_answered(port):
    held = [connect(port) for _ in range(5)]
    time.sleep(0.1)
    with connect(port) as more:
        assert is_closed(more)
    held[0].sendall(WHOLE)
    assert held[0].recv(1000).startswith(ANSWER)
    for connection in held:
        connection.close()
    time.sleep(0.2)
    with connect(port) as again:
        again.sendall(WHOLE)
        assert again.recv(1000).startswith(ANSWER)


def take_all(connection):
    """Return how many bytes come until the other side closes."""
    size = 0
    try:
        while data := connection.recv(1 << 20):
            size += len(data)
    except ConnectionResetError:
        pass
    return size


def test_an_answer_that_is_not_taken_is_thrown_away(port):
    with connect(port) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        time.sleep(1.5)
        assert take_all(connection) < len(LARGE)


def test_an_answer_that_is_taken_slowly_is_sent_to_its_end(port):
    with connect(port) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        size = 0
        for _ in range(10):
            size += len(connection.recv(1 << 20, socket.MSG_WAITALL))
            time.sleep(0.2)  # in all, longer than it may do nothing
        assert size + take_all(connection) > len(LARGE)


def test_of_answers_that_wait_in_all_the_largest_is_thrown_away(port, monkeypatch):
    monkeypatch.setattr(connections, "UNREAD_SECONDS", 60)
    monkeypatch.setattr(connections, "MOST_UNREAD", 25 << 20)
    held = [connect(port) for _ in range(4)]
    for connection in held:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        time.sleep(0.1)
    sizes = [take_all(connection) for connection in held]
    for connection in held:
        connection.close()
    assert min(sizes) < len(LARGE) < max(sizes)


def test_what_is_sent_after_an_answer_without_end_is_not_read_for_ever(port):
    with connect(port) as connection:
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n"
        connection.sendall(head)
        sent = 0
        with suppress(OSError):
            while sent < 50 << 20:
                sent += connection.send(bytes(1 << 16))
        assert sent < 50 << 20


def test_requests_one_behind_the_other_are_all_told_that_their_caller_has_gone(port, caplog):
    """Of several on their way, uvicorn tells only the last, and sends to a closed connection."""
    caplog.set_level(logging.ERROR)
    with connect(port) as connection:
        connection.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n" * 30)
        time.sleep(0.1)
    time.sleep(1.2)
    assert caplog.records == []

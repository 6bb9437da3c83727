"""Connections that send half a request, or are too many, do not keep others out."""

import socket
import threading
import time

import pytest
import uvicorn

from antipodal.service import connections

ANSWER = b"HTTP/1.1 200"
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def application(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def port(monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(connections, "MOST_OF_AN_ADDRESS", 5)
    kind = connections.LimitedConnection
    config = uvicorn.Config(application, port=0, http=kind, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(10)


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

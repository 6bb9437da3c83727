"""An HTTP server with given responses, for tests of HTTP clients."""

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Request(NamedTuple):
    """A request, with its headers as a mapping."""

    method: str
    path: str
    headers: object
    body: bytes


@contextmanager
def http_server(respond):
    """Start a server on a loopback port, and yield its address.

    `respond` maps a `Request` to a status, a JSON value or bytes, and headers, or to None to
    close the connection.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            response = respond(Request(self.command, self.path, self.headers, body))
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

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

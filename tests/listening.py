"""A server of an application, on a port of loopback, in a thread of the test."""

import threading
import time
from contextlib import contextmanager

import uvicorn

from antipodal.service import connections


@contextmanager
def listening(application, lifespan="off"):
    """Give the port."""
    config = uvicorn.Config(
        application,
        port=0,
        http=connections.LimitedConnection,
        lifespan=lifespan,
        log_config=None,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)

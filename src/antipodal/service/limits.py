"""Limits of the service: request sizes, concurrency and time.

Connection limits, request rates and slow clients are the task of a reverse proxy: see
`deploy/nginx.conf`.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from typing import Generic, ParamSpec, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from antipodal.service.errors import RETRY, UnavailableError, problem

P = ParamSpec("P")
T = TypeVar("T")

_PROBES = ("/healthz", "/readyz")
_PROBE_SECONDS = 5.0  # after which a store counts as unavailable


@dataclass(frozen=True)
class Limits:
    """Limits of one request and of one worker process; each is an option of `antipodal serve`.

    Parameters
    ----------
    body : int
        Bytes of a JSON body, and of every body that does not declare a binary media type.
    binary_body : int
        Bytes of a binary body: raw float32, an Arrow stream or an image file.
    batch : int
        Vectors, codes, items or ids in one request.
    k : int
        Neighbours per query, and items of one sample.
    results : int
        Items returned by a radius search, nearest first. All of them are counted.
    found : int
        Results of one request, over all its queries.
    histogram : int
        Items over which a histogram of distances is computed.
    pixels : int
        Pixels of an image, by its header.
    seconds : float
        Time limit for reading a body, and again for answering the request.
    threads : int
        Searches and encodings at a time in one worker.
    requests : int
        Requests in progress in one worker. More are answered with 503 and Retry-After.
    """

    body: int = 1 << 20
    binary_body: int = 8 << 20
    batch: int = 1_000
    k: int = 1_000
    results: int = 1_000
    found: int = 100_000
    histogram: int = 1_000_000
    pixels: int = 16_000_000
    seconds: float = 30.0
    threads: int = 2
    requests: int = 128

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise ValueError(f"limit {field.name} must be positive and finite: got {value}")

    def check_batch(self, n: int, kind: str) -> None:
        """Raise ValueError if a request has more than `batch` vectors, items, …."""
        if n > self.batch:
            raise ValueError(
                f"a request may have at most {self.batch} {kind}: got {n}. Split the request"
            )

    def check_histogram(self, n: int) -> None:
        """Raise ValueError if a histogram would count too many items."""
        if n > self.histogram:
            raise ValueError(
                f"a histogram counts at most {self.histogram:,} items: got {n:,}. Use a filter, or "
                "omit histogram"
            )


class ConcurrencyLimit:
    """ASGI middleware that answers 503 if too many requests are in progress.

    Health probes are exempt, so that a busy service is not restarted.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._max = app, limits.requests
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"].endswith(_PROBES):
            await self._app(scope, receive, send)
        elif self._running >= self._max:
            busy = problem(503, f"{self._max} requests are in progress: retry later", RETRY)
            await busy(scope, receive, send)
        else:
            self._running += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._running -= 1


class Pool:
    """A thread pool that admits at most `size` calls, waiting ones included."""

    def __init__(self, name: str, threads: int, size: int, seconds: float) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._size, self._seconds = max(size, threads), seconds
        self._admitted = 0

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a call; raise UnavailableError if the pool is full or time runs out.

        After a timeout, a call that has not started is cancelled. A running call occupies its
        thread and its place until it ends, and its result is discarded.
        """
        if self._admitted >= self._size:
            raise UnavailableError(f"{self._size} requests of this kind are waiting: retry later")
        self._admitted += 1
        future = self._executor.submit(partial(function, *args, **kwargs))
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._release))
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            state = "it was not started" if future.cancelled() else "it may still be carried out"
            raise UnavailableError(
                f"the request was not finished within {self._seconds:g} s: {state}"
            ) from None

    def close(self) -> None:
        """Finish running calls and cancel waiting ones."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _release(self) -> None:
        self._admitted -= 1


class Pools:
    """Separate thread pools for work that must not delay other work."""

    def __init__(self, limits: Limits) -> None:
        few, seconds = max(1, limits.requests // 8), limits.seconds
        self.reads = Pool("read", limits.threads, limits.requests, seconds)
        self.images = Pool("image", limits.threads, few, seconds)
        self.maps = Pool("map", 1, few, seconds)  # a projection takes seconds
        self.writes = Pool("write", 1, limits.requests, seconds)  # may wait for another process
        self.metrics = Pool("metrics", 1, few, seconds)
        self.probes = Pool("probe", 1, few, min(seconds, _PROBE_SECONDS))

    def close(self) -> None:
        """Finish running calls."""
        for pool in vars(self).values():
            pool.close()


class Shared(Generic[T]):
    """A call whose result is shared by all callers that arrive while it runs."""

    def __init__(self, pool: Pool, function: Callable[[], T]) -> None:
        self._pool, self._function = pool, function
        self._running: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """Return the result of a new call, or of the one in progress."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._pool.run(self._function))
        return await asyncio.shield(self._running)

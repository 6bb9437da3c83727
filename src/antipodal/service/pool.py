"""Threads for the work of requests, few and with an end to waiting."""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Generic, ParamSpec, TypeVar

from antipodal.service.calls import Call, caller
from antipodal.service.problems import UnavailableError

P = ParamSpec("P")
T = TypeVar("T")


class Pool:
    """Run calls in up to `threads` threads, while up to `waiting` more wait their turn.

    Of those places one key takes at most half, so that it does not keep the others out.
    """

    def __init__(self, name: str, threads: int, waiting: int, seconds: float) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most, self._seconds = threads + waiting, seconds
        self._most_of_one = max(threads, self._most // 2)
        self._busy: Counter[bytes | None] = Counter()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what the function returns; raise UnavailableError if it takes too long.

        Once the time is up, or the request is cancelled because its caller has gone, a call that
        waits is taken back. One that runs is told so: it stops where it can be stopped, and keeps
        its thread until then. What it returns is lost.
        """
        who = caller.get()
        if self._busy.total() >= self._most:
            raise UnavailableError("too many requests are waiting: try again in a moment")
        if who is not None and self._busy[who] >= self._most_of_one:
            raise UnavailableError("too many requests of this key are waiting: try again")
        call, context = Call(), copy_context()
        future = self._executor.submit(
            lambda: context.run(call.run, partial(function, *args, **kwargs))
        )
        self._busy[who] += 1
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            done = "nothing was done" if future.cancel() else "it may still be carried out"
            raise UnavailableError(
                f"the request was not finished within {self._seconds:g} s: {done}"
            ) from None
        finally:
            if future.done():
                self._one_less(who)
            else:
                loop = asyncio.get_running_loop()
                future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._one_less, who))
                call.give_up()

    def close(self) -> None:
        """Finish what runs and take back what waits."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _one_less(self, who: bytes | None) -> None:
        self._busy[who] -= 1
        if not self._busy[who]:
            del self._busy[who]


class Shared(Generic[T]):
    """A call whose answer all have who ask while it runs."""

    def __init__(self, pool: Pool, function: Callable[[], T]) -> None:
        self._pool, self._function = pool, function
        self._running: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """Return what the function returns, called now or for one who asked a little before."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._pool.run(self._function))
        return await asyncio.shield(self._running)

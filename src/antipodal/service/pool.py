"""Threads for the work of requests, few and with an end to waiting."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from antipodal.service.problems import UnavailableError

P = ParamSpec("P")
T = TypeVar("T")


class Pool:
    """Run calls in up to `threads` threads, while up to `waiting` more wait their turn."""

    def __init__(self, name: str, threads: int, waiting: int, seconds: float) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most, self._seconds = threads + waiting, seconds
        self._busy = 0

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what the call returns; raise UnavailableError if it takes too long.

        A call that waits is taken back. One that runs cannot be stopped: it goes on, keeps its
        thread, and what it returns is lost.
        """
        if self._busy >= self._most:
            raise UnavailableError("too many requests are waiting: try again in a moment")
        future = self._executor.submit(call, *args, **kwargs)
        self._busy += 1
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
                self._one_less()
            else:
                loop = asyncio.get_running_loop()
                future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._one_less))

    def close(self) -> None:
        """Finish what runs and take back what waits."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _one_less(self) -> None:
        self._busy -= 1

"""Room in memory for the bodies of requests that are read or answered now."""

import asyncio
from collections import deque
from contextlib import suppress


class Room:
    """So many bytes, lent in the order in which they are asked for."""

    def __init__(self, size: int) -> None:
        self._size = self._free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, wanted: int) -> int:
        """Wait until there is room; return how much was taken, which is to be given back."""
        taken = min(wanted, self._size)
        if not self._waiting and taken <= self._free:
            self._free -= taken
            return taken
        turn = asyncio.get_running_loop().create_future()
        entry = (taken, turn)
        self._waiting.append(entry)
        try:
            await turn
        except BaseException:
            if turn.cancelled():
                with suppress(ValueError):
                    self._waiting.remove(entry)
                self._serve()
            else:
                self.give_back(taken)
            raise
        return taken

    def give_back(self, taken: int) -> None:
        """Let others have it."""
        self._free += taken
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            taken, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._free -= taken
                turn.set_result(None)

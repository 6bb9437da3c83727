"""Single searches that wait at the same time are answered in one go.

To encode a vector takes as long as to encode 32, and to search for many codes little longer than
for one. So what waits for a thread is not a search but a group of them, alike in all but their
queries; whoever comes before a thread is free joins it. Nobody waits for others to come, and every
answer is the one that the search would have had alone.
"""

import asyncio
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from antipodal.service.engine import Engine
from antipodal.service.pool import Pool
from antipodal.service.schemas import SearchRequest

_MOST = 32  # searches of a group
_BY = ("vector", "code")

Answer = dict[str, Any] | None


@dataclass
class _Group:
    """Searches that are alike, and the task in which they are answered while somebody waits."""

    requests: list[SearchRequest]
    task: "asyncio.Task[list[Answer | Exception]]"
    n_waiting: int = 0


class Joining:
    """Searches of one engine, in the threads of a pool."""

    def __init__(self, engine: Engine, pool: Pool) -> None:
        self._engine, self._pool = engine, pool
        self._open: dict[Hashable, _Group] = {}  # whose work has not begun
        self._lock = threading.Lock()

    async def search(self, request: SearchRequest) -> Answer:
        """Return what `Engine.search` returns."""
        like = self._like(request)
        if like is None:
            return await self._pool.run(self._engine.search, request)
        with self._lock:
            group = self._open.get(like)
            if group is None or len(group.requests) == _MOST:
                requests: list[SearchRequest] = []
                task = asyncio.create_task(self._pool.run(self._answer, like, requests))
                group = self._open[like] = _Group(requests, task)
            place = len(group.requests)
            group.requests.append(request)
        group.n_waiting += 1
        try:
            answer = (await asyncio.shield(group.task))[place]
        finally:
            group.n_waiting -= 1
            if not group.n_waiting:
                self._close(like, group.requests)  # if it was refused, or all have gone
                group.task.cancel()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _like(self, request: SearchRequest) -> Hashable:
        """Return what searches that can be joined have in common; None of one that cannot."""
        limits = self._engine.limits
        most = min(_MOST, limits.batch)
        if request.radius is not None or request.histogram or request.rescore is not None:
            return None
        if limits.batch < _MOST or most * (request.k or 10) > limits.found:
            return None
        for name in _BY:
            if getattr(request, name) is not None:
                common = request.model_dump(exclude={name}, exclude_defaults=True)
                return name, to_json(common)
        return None

    def _answer(self, like: Hashable, requests: list[SearchRequest]) -> list[Answer | Exception]:
        """Answer a group, to which nobody is added from now on."""
        self._close(like, requests)
        if len(requests) > 1:
            try:
                answers: list[Answer | Exception] = self._together(requests)
                return answers
            except (TypeError, ValueError):  # of one of them: the others have their answers
                pass
        return [self._alone(request) for request in requests]

    def _close(self, like: Hashable, requests: list[SearchRequest]) -> None:
        """Let nobody join from now on."""
        with self._lock:
            group = self._open.get(like)
            if group is not None and group.requests is requests:
                del self._open[like]

    def _together(self, requests: list[SearchRequest]) -> list[Any]:
        first = requests[0]
        (name,) = (name for name in _BY if getattr(first, name) is not None)
        queries = [getattr(request, name) for request in requests]
        many = first.model_copy(update={name: None, f"{name}s": queries})
        answer = self._engine.search(many)
        assert answer is not None
        searches: list[Any] = answer["searches"]
        return searches

    def _alone(self, request: SearchRequest) -> Answer | Exception:
        try:
            return self._engine.search(request)
        except Exception as error:
            return error

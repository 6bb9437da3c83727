"""Micro-batching: one search of many queries answers concurrent single searches.

Encoding 32 vectors takes about as long as encoding one. Searches that differ only in their query
therefore share a place in the queue: searches that arrive before a thread is free join the batch.
No search is delayed to fill a batch, and results equal those of separate searches.
"""

import asyncio
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from antipodal.service.engine import Engine
from antipodal.service.limits import Pool
from antipodal.service.schemas import SearchRequest

_MAX_BATCH = 32
_QUERIES = ("vector", "code")  # one text that the embedder refuses would fail the others

Answer = dict[str, Any] | None


@dataclass
class _Batch:
    """Searches that are answered together, and the task that answers them."""

    requests: list[SearchRequest]
    task: "asyncio.Task[list[Answer | Exception]]"


class MicroBatcher:
    """Searches of one engine in the threads of a pool."""

    def __init__(self, engine: Engine, pool: Pool) -> None:
        self._engine, self._pool = engine, pool
        self._open: dict[Hashable, _Batch] = {}  # batches that have not started
        self._lock = threading.Lock()

    async def search(self, request: SearchRequest) -> Answer:
        """Return the result of `Engine.search`."""
        key = self._key(request)
        if key is None:
            return await self._pool.run(self._engine.search, request)
        with self._lock:
            batch = self._open.get(key)
            if batch is None or len(batch.requests) == _MAX_BATCH:
                requests: list[SearchRequest] = []
                task = asyncio.create_task(self._run(key, requests))
                batch = self._open[key] = _Batch(requests, task)
            position = len(batch.requests)
            batch.requests.append(request)
        answer = (await asyncio.shield(batch.task))[position]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _key(self, request: SearchRequest) -> Hashable:
        """Return the properties that searches of a batch share; None if a search is not batched."""
        limits = self._engine.limits
        if request.radius is not None or request.histogram:
            return None
        n_candidates = (request.k or 10) * (request.rerank or 1)
        if limits.batch < _MAX_BATCH or _MAX_BATCH * n_candidates > limits.found:
            return None
        for name in _QUERIES:
            if getattr(request, name) is not None:
                common = request.model_dump(exclude={name}, exclude_defaults=True)
                return name, to_json(common)
        return None

    async def _run(self, key: Hashable, requests: list[SearchRequest]) -> list[Answer | Exception]:
        try:
            return await self._pool.run(self._answer, key, requests)
        finally:
            self._close(key, requests)  # also if the pool refused it

    def _answer(self, key: Hashable, requests: list[SearchRequest]) -> list[Answer | Exception]:
        self._close(key, requests)
        if len(requests) > 1:
            try:
                answers: list[Answer | Exception] = self._answer_together(requests)
                return answers
            except (TypeError, ValueError):  # one request is invalid: answer the others
                pass
        return [self._answer_alone(request) for request in requests]

    def _close(self, key: Hashable, requests: list[SearchRequest]) -> None:
        """Admit no more requests to a batch."""
        with self._lock:
            batch = self._open.get(key)
            if batch is not None and batch.requests is requests:
                del self._open[key]

    def _answer_together(self, requests: list[SearchRequest]) -> list[Any]:
        first = requests[0]
        (name,) = (name for name in _QUERIES if getattr(first, name) is not None)
        queries = [getattr(request, name) for request in requests]
        many = first.model_copy(update={name: None, f"{name}s": queries})
        answer = self._engine.search(many)
        assert answer is not None
        searches: list[Any] = answer["searches"]
        return searches

    def _answer_alone(self, request: SearchRequest) -> Answer | Exception:
        try:
            return self._engine.search(request)
        except Exception as error:
            return error

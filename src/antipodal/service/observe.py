"""The outermost layer: a line of log, the metrics and a request id for everything that comes."""

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antipodal.service.problems import problem

_log = logging.getLogger("antipodal.service")
_SHARED = "PROMETHEUS_MULTIPROC_DIR"  # where workers put their numbers together
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_GONE = 499  # as others log a caller who did not wait for an answer
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"))


class Metrics:
    """What Prometheus asks for."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "antipodal_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self.seconds = Histogram(
            "antipodal_request_seconds",
            "Time from a request's headers to the end of its response.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.running = Gauge(
            "antipodal_requests_in_progress",
            "Requests that were accepted and are not answered yet.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )

    def text(self, n_items: Mapping[str, int]) -> bytes:
        """Return the numbers of all workers in the text format, and the items of each mount."""
        registry = CollectorRegistry() if _SHARED in os.environ else self._registry
        if registry is not self._registry:
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        about_store = "# HELP antipodal_items Items in the store.\n# TYPE antipodal_items gauge\n"
        for name, n in n_items.items():
            label = f'{{mount="{name}"}}' if name else ""
            about_store += f"antipodal_items{label} {n}\n"
        return generate_latest(registry) + about_store.encode()


class Observe:
    """Log and count each request; what fails inside is a 500 that says nothing of the inside."""

    def __init__(self, app: ASGIApp, metrics: Metrics, headers: dict[str, str]) -> None:
        self._app, self._metrics = app, metrics
        self._headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, request_id, status = time.perf_counter(), os.urandom(8).hex(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                of_request = (b"x-request-id", request_id.encode())
                message["headers"] = [*message["headers"], of_request, *self._headers]
            await send(message)

        with self._metrics.running.track_inprogress():
            try:
                await self._app(scope, receive, send_with_headers)
            except Exception:
                _log.exception("internal error", extra={"fields": {"request_id": request_id}})
                if not status:
                    failed = problem(500, f"internal error, request {request_id}")
                    await failed(scope, receive, send_with_headers)
            seconds = time.perf_counter() - began
        status = status or _GONE
        self._count(scope, status, seconds)
        fields = {
            "client": (scope.get("client") or ("",))[0],
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "ms": round(1e3 * seconds, 2),
            "request_id": request_id,
        }
        _log.info("request", extra={"fields": fields})

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        # Labels come from our own routes: what a caller invents must not make new ones.
        route: Any = getattr(scope.get("route"), "path", None) or "other"
        if "mount" in scope:
            route = f"/{scope['mount']}{route}" if route != "other" else route
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.requests.labels(method, route, status).inc()
        self._metrics.seconds.labels(method, route).observe(seconds)

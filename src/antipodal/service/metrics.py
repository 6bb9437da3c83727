"""Prometheus metrics, request logs as JSON lines, and response headers."""

import json
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antipodal.service.errors import problem

_log = logging.getLogger("antipodal.service")
_SHARED = "PROMETHEUS_MULTIPROC_DIR"  # folder in which workers add up their metrics
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_CLIENT_CLOSED = 499  # as nginx logs a request that was never answered
_CLOSED = "handler is closed"  # in the error of uvloop
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"))


class JsonFormatter(logging.Formatter):
    """Format a log record and its `fields` as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "pid": record.process,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


class ClosedConnections(logging.Filter):
    """Drop the error of uvicorn for a response to a closed connection, which `Observe` logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record."""
        return not record.getMessage().startswith("ASGI callable returned without completing")


LOG_CONFIG: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": "antipodal.service.metrics.JsonFormatter"}},
    "filters": {"closed": {"()": "antipodal.service.metrics.ClosedConnections"}},
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "json", "filters": ["closed"]}
    },
    "loggers": {
        name: {"handlers": ["stderr"], "level": "INFO", "propagate": False}
        for name in ("antipodal.service", "uvicorn")
    },
}


class Metrics:
    """The metrics of the service."""

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
            "Time from the headers of a request to the end of its response.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.running = Gauge(
            "antipodal_requests_in_progress",
            "Requests in progress.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )

    def text(self, n_items: Mapping[str, int]) -> bytes:
        """Return the metrics of all workers in text format, with the items of each mount."""
        registry = CollectorRegistry() if _SHARED in os.environ else self._registry
        if registry is not self._registry:
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        items = "# HELP antipodal_items Items in the store.\n# TYPE antipodal_items gauge\n"
        for name, n in n_items.items():
            label = f'{{mount="{name}"}}' if name else ""
            items += f"antipodal_items{label} {n}\n"
        return generate_latest(registry) + items.encode()


class Observe:
    """ASGI middleware that logs and counts requests, and adds headers to responses.

    An unexpected exception is logged and answered with a 500 that names the request id only.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, headers: dict[str, str]) -> None:
        self._app, self._metrics = app, metrics
        self._headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, request_id, status = time.perf_counter(), os.urandom(8).hex(), 0
        is_closed = False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, is_closed
            if message["type"] == "http.response.start":
                status = message["status"]
                id_header = (b"x-request-id", request_id.encode())
                message["headers"] = [*message["headers"], id_header, *self._headers]
            try:
                await send(message)
            except RuntimeError as error:
                # If a client that has pipelined requests disconnects, uvicorn ends only the last
                # one, and uvloop refuses the responses to the others.
                if _CLOSED not in str(error):
                    raise
                is_closed = True

        with self._metrics.running.track_inprogress():
            try:
                await self._app(scope, receive, send_with_headers)
            except Exception:
                _log.exception("internal error", extra={"fields": {"request_id": request_id}})
                if not status:
                    failed = problem(500, f"internal error, request {request_id}")
                    await failed(scope, receive, send_with_headers)
            seconds = time.perf_counter() - started
        status = _CLIENT_CLOSED if is_closed else status or _CLIENT_CLOSED
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
        # Labels are routes and known methods, never input: their number must stay bounded.
        route: Any = getattr(scope.get("route"), "path", None) or "other"
        if "mount" in scope:
            route = f"/{scope['mount']}{route}" if route != "other" else route
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.requests.labels(method, route, status).inc()
        self._metrics.seconds.labels(method, route).observe(seconds)

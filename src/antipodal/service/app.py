"""The HTTP API: each route takes a checked request to the engine and its answer back."""

import logging
import mimetypes
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic_core import from_json, to_json
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

import antipodal
from antipodal.errors import StoreError
from antipodal.service import schemas
from antipodal.service.engine import Engine
from antipodal.service.gate import KEYED, Gate
from antipodal.service.keys import Keys
from antipodal.service.observe import Metrics, Observe
from antipodal.service.pool import Pool
from antipodal.service.problems import UnavailableError, add_handlers

_log = logging.getLogger("antipodal.service")
_PAGE = Path(__file__).parent / "page"
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
for _suffix, _type in ((".js", "text/javascript"), (".css", "text/css"), (".svg", "image/svg+xml")):
    mimetypes.add_type(_type, _suffix)  # whatever the tables of this machine say

_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key of the service."},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same."},
}


def create_app(
    engine: Engine,
    *,
    keys: Keys | None = None,
    hosts: Collection[str] | None = None,
    page: Path = _PAGE,
) -> FastAPI:
    """Return the ASGI application of one worker.

    Parameters
    ----------
    engine : Engine
        The model and its store, which is closed when the application stops.
    keys : Keys, optional
        Without them everybody may read and write.
    hosts : collection of str, optional
        Names that the Host header may have; any if None.
    page : Path
        Folder of the page's files; it may be empty.
    """
    limits = engine.limits
    reads = Pool("read", limits.threads, limits.waiting, limits.seconds)
    # Writers wait for each other, and for other processes: not in the threads that search.
    writes = Pool("write", 1, limits.waiting, limits.seconds)
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        reads.close()
        writes.close()
        engine.store.close()

    app = FastAPI(
        title="antipodal",
        version=antipodal.__version__,
        description="Binary codes of vectors and images, and exact search among them by Hamming "
        "distance. Errors are application/problem+json.",
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=[
            Middleware(Observe, metrics=metrics, headers=_HEADERS),
            Middleware(Gate, keys=keys, limits=limits, hosts=hosts),
        ],
    )
    add_handlers(app)
    _add_api(app, engine, reads, writes)
    _add_signs_of_life(app, engine, reads, metrics)
    _add_page(app, page)
    app.openapi = partial(_described, app)  # type: ignore[method-assign]
    return app


def _add_api(app: FastAPI, engine: Engine, reads: Pool, writes: Pool) -> None:
    app.router.route_class = _StrictRoute
    always = _problems(401, 503)
    with_body = always | _problems(400, 408, 413, 422)

    @app.post("/v1/encode", response_model=schemas.Encoded, responses=with_body)
    async def encode(request: schemas.EncodeRequest) -> Response:
        """Return the codes of vectors or images."""
        return _json(await reads.run(engine.encode, request))

    @app.post(
        "/v1/search", response_model=schemas.SearchResponse, responses=with_body | _problems(404)
    )
    async def search(request: schemas.SearchRequest) -> Response:
        """Find the items nearest to a query, or all within a radius."""
        answer = await reads.run(engine.search, request)
        if answer is None:
            raise HTTPException(404, f"there is no item {request.id} to search by")
        return _json(answer)

    @app.put("/v1/items", response_model=schemas.Upserted, responses=with_body | _problems(403))
    async def upsert(request: schemas.UpsertRequest) -> Response:
        """Keep items: all of them, durably, or none."""
        return _json(await writes.run(engine.upsert, request))

    @app.delete("/v1/items", response_model=schemas.Deleted, responses=with_body | _problems(403))
    async def delete(request: schemas.DeleteRequest) -> Response:
        """Remove items."""
        return _json(await writes.run(engine.delete, request))

    @app.get("/v1/items", response_model=schemas.ItemList, responses=always | _problems(422))
    async def sample(
        limit: Annotated[int, Query(ge=1)] = 24,
        seed: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    ) -> Response:
        """Return a sample of the items."""
        return _json({"items": await reads.run(engine.sample, limit, seed)})

    @app.get("/v1/items/{id}", response_model=schemas.Item, responses=always | _problems(404, 422))
    async def item(id: schemas.Id) -> Response:
        """Return one item."""
        found = await reads.run(engine.item, id)
        if found is None:
            raise HTTPException(404, f"there is no item {id}")
        return _json(found)

    @app.get("/v1/model", response_model=schemas.ModelCard, responses=always)
    async def model() -> Response:
        """Describe the model and the codes in the store."""
        return _json(await reads.run(engine.card))


def _add_signs_of_life(app: FastAPI, engine: Engine, reads: Pool, metrics: Metrics) -> None:
    @app.get("/healthz", response_model=schemas.Status)
    async def healthz() -> Response:
        """Say that the process is alive."""
        return _json({"status": "alive"})

    @app.get("/readyz", response_model=schemas.Status, responses=_problems(503))
    async def readyz() -> Response:
        """Say whether the store answers."""
        try:
            await reads.run(engine.store.count)
        except StoreError as error:  # asked without a key: why, and where, is for the log
            _log.warning("the store does not answer: %s", error)
            raise UnavailableError("the store does not answer") from None
        return _json({"status": "ready"})

    @app.get(
        "/metrics",
        response_class=Response,
        responses=_problems(401, 503) | {200: {"content": {"text/plain": {}}}},
    )
    async def numbers() -> Response:
        """Return the metrics of all workers for Prometheus."""
        text = metrics.text(await reads.run(engine.store.count))
        return Response(text, media_type="text/plain; version=0.0.4")


def _add_page(app: FastAPI, page: Path) -> None:
    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        if not (page / "index.html").is_file():
            raise HTTPException(404, "there is no page here: the API is described by /openapi.json")
        return FileResponse(page / "index.html", headers={"Cache-Control": "no-cache"})

    app.mount("/static", StaticFiles(directory=page, check_dir=False))


class _StrictRequest(Request):
    """A request whose JSON is JSON: no NaN, no Infinity, nothing after the end."""

    async def json(self) -> Any:
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise HTTPException(400, f"the body is not JSON: {error}") from None


class _StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Any]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            response: Response = await handle(_StrictRequest(request.scope, request.receive))
            return response

        return strictly


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description, with the keys that the gate asks for."""
    if app.openapi_schema is None:
        described = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
        )
        described["components"]["securitySchemes"] = _KEYS
        for path, operations in described["paths"].items():
            if path.startswith(KEYED):
                for operation in operations.values():
                    operation["security"] = [{name: []} for name in _KEYS]
        app.openapi_schema = described
    return app.openapi_schema


def _json(value: Any) -> Response:
    # What has no JSON form, such as a random generator in a model's parameters, becomes text.
    return Response(
        to_json(value, fallback=str, inf_nan_mode="null"), media_type="application/json"
    )


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe error responses."""
    content = {"application/problem+json": {"schema": schemas.Problem.model_json_schema()}}
    return {status: {"description": "A problem", "content": content} for status in statuses}

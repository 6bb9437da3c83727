"""The HTTP API: each route takes a checked request to the engine and its answer back."""

import logging
import mimetypes
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, params
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

import antipodal
from antipodal.errors import StoreError
from antipodal.service import schemas
from antipodal.service.bodies import (
    codes_response,
    media_type,
    media_types,
    read_rows,
    takes_bytes,
)
from antipodal.service.engine import Engine
from antipodal.service.gate import Gate
from antipodal.service.guard import Guard, GuardedRoute
from antipodal.service.keys import Keys
from antipodal.service.limits import Limits
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
    pools = _Pools(limits)
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        pools.close()
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
            Middleware(Gate, limits=limits, hosts=hosts),
        ],
    )
    add_handlers(app)
    app.router.route_class = GuardedRoute
    reading, writing = [Depends(Guard("read", keys))], [Depends(Guard("write", keys))]
    _add_api(app, engine, pools, reading, writing)
    _add_signs_of_life(app, engine, pools.checks, metrics, reading)
    _add_page(app, page)
    return app


class _Pools:
    """Threads apart for what must not wait for each other."""

    def __init__(self, limits: Limits) -> None:
        def pool(name: str, threads: int) -> Pool:
            return Pool(name, threads, limits.waiting, limits.seconds)

        self.reads = pool("read", limits.threads)
        self.images = pool("image", limits.threads)  # decoding takes longer than searching
        self.writes = pool("write", 1)  # writers wait for each other, and for other processes
        self.checks = pool("check", 1)  # a busy service is alive

    def close(self) -> None:
        for pool in (self.reads, self.images, self.writes, self.checks):
            pool.close()


def _add_api(
    app: FastAPI,
    engine: Engine,
    pools: _Pools,
    reading: Sequence[params.Depends],
    writing: Sequence[params.Depends],
) -> None:
    always = _problems(401, 503)
    with_body = always | _problems(400, 408, 413, 422)

    async def encode_bytes(request: Request) -> Response:
        kind, body = media_type(request), await request.body()
        rows = read_rows(kind, body, engine.hasher.n_features_in_)
        return codes_response(await pools.reads.run(engine.encode_rows, rows), kind)

    binary = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in media_types()}

    @app.post(
        "/v1/encode",
        response_model=schemas.Encoded,
        responses=with_body | {200: {"content": binary}},
        dependencies=reading,
        openapi_extra={"requestBody": {"content": binary}},
    )
    @takes_bytes(encode_bytes)
    async def encode(request: schemas.EncodeRequest) -> Response:
        """Return the codes of vectors or images; of vectors in bytes, in bytes."""
        pool = pools.reads if request.images is None else pools.images
        return _json(await pool.run(engine.encode, request))

    @app.post(
        "/v1/search",
        response_model=schemas.SearchResponse | schemas.SearchesResponse,
        responses=with_body | _problems(404),
        dependencies=reading,
    )
    async def search(request: schemas.SearchRequest) -> Response:
        """Find the items nearest to a query, or all within a radius; the same for many queries."""
        pool = pools.reads if request.image is None else pools.images
        answer = await pool.run(engine.search, request)
        if answer is None:
            raise HTTPException(404, f"there is no item {request.id} to search by")
        return _json(answer)

    @app.put(
        "/v1/items",
        response_model=schemas.Upserted,
        responses=with_body | _problems(403, 409),
        dependencies=writing,
    )
    async def upsert(request: schemas.UpsertRequest) -> Response:
        """Keep items: all of them, durably, or none."""
        return _json(await pools.writes.run(engine.upsert, request))

    @app.delete(
        "/v1/items",
        response_model=schemas.Deleted,
        responses=with_body | _problems(403),
        dependencies=writing,
    )
    async def delete(request: schemas.IdsRequest) -> Response:
        """Remove items."""
        return _json(await pools.writes.run(engine.delete, request))

    @app.get(
        "/v1/items",
        response_model=schemas.ItemList,
        responses=always | _problems(422),
        dependencies=reading,
    )
    async def sample(
        limit: Annotated[int, Query(ge=1)] = 24,
        seed: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    ) -> Response:
        """Return a sample of the items."""
        return _json({"items": await pools.reads.run(engine.sample, limit, seed)})

    @app.post(
        "/v1/items/get",
        response_model=schemas.ItemList,
        responses=with_body,
        dependencies=reading,
    )
    async def items(request: schemas.IdsRequest) -> Response:
        """Return items in the order of their ids here; those that are not there are left out."""
        return _json({"items": await pools.reads.run(engine.items, request)})

    @app.post("/v1/count", response_model=schemas.Count, responses=with_body, dependencies=reading)
    async def count(request: schemas.CountRequest) -> Response:
        """Count the items, or those that pass a filter."""
        return _json(await pools.reads.run(engine.count, request))

    @app.get("/v1/store", response_model=schemas.AboutStore, responses=always, dependencies=reading)
    async def store() -> Response:
        """Say what a client must know to use the store as one of its own."""
        return _json(await pools.reads.run(engine.about))

    @app.get(
        "/v1/items/{id}",
        response_model=schemas.Item,
        responses=always | _problems(404, 422),
        dependencies=reading,
    )
    async def item(id: schemas.Id) -> Response:
        """Return one item."""
        found = await pools.reads.run(engine.item, id)
        if found is None:
            raise HTTPException(404, f"there is no item {id}")
        return _json(found)

    @app.get("/v1/model", response_model=schemas.ModelCard, responses=always, dependencies=reading)
    async def model() -> Response:
        """Describe the model and the codes in the store."""
        return _json(await pools.reads.run(engine.card))


def _add_signs_of_life(
    app: FastAPI, engine: Engine, checks: Pool, metrics: Metrics, reading: Sequence[params.Depends]
) -> None:
    @app.get("/healthz", response_model=schemas.Status)
    async def healthz() -> Response:
        """Say that the process is alive."""
        return _json({"status": "alive"})

    @app.get("/readyz", response_model=schemas.Status, responses=_problems(503))
    async def readyz() -> Response:
        """Say whether the store answers."""
        try:
            await checks.run(engine.store.count)
        except StoreError as error:  # asked without a key: why, and where, is for the log
            _log.warning("the store does not answer: %s", error)
            raise UnavailableError("the store does not answer") from None
        return _json({"status": "ready"})

    @app.get(
        "/metrics",
        response_class=Response,
        responses=_problems(401, 503) | {200: {"content": {"text/plain": {}}}},
        dependencies=reading,
    )
    async def numbers() -> Response:
        """Return the metrics of all workers for Prometheus."""
        text = metrics.text(await checks.run(engine.store.count))
        return Response(text, media_type="text/plain; version=0.0.4")


def _add_page(app: FastAPI, page: Path) -> None:
    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        if not (page / "index.html").is_file():
            raise HTTPException(404, "there is no page here: the API is described by /openapi.json")
        return FileResponse(page / "index.html", headers={"Cache-Control": "no-cache"})

    app.mount("/static", StaticFiles(directory=page, check_dir=False))


def _json(value: Any) -> Response:
    # What has no JSON form, such as a random generator in a model's parameters, becomes text.
    return Response(
        to_json(value, fallback=str, inf_nan_mode="null"), media_type="application/json"
    )


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe error responses."""
    content = {"application/problem+json": {"schema": schemas.Problem.model_json_schema()}}
    return {status: {"description": "A problem", "content": content} for status in statuses}

"""The HTTP API: each route takes a checked request to the engine and its answer back."""

import logging
import mimetypes
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, params
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

import antipodal
from antipodal.errors import StoreError
from antipodal.service import schemas
from antipodal.service.bodies import codes_response, media_type, media_types, read_rows, takes_bytes
from antipodal.service.engine import Engine
from antipodal.service.gate import Gate
from antipodal.service.guard import Guard, GuardedRoute
from antipodal.service.joining import Joining
from antipodal.service.keys import Keys
from antipodal.service.limits import Limits
from antipodal.service.looking import add_looking
from antipodal.service.observe import Metrics, Observe
from antipodal.service.pool import Pool, Shared
from antipodal.service.problems import UnavailableError, add_handlers
from antipodal.service.replies import json_answer, problems

_log = logging.getLogger("antipodal.service")
_PAGE = Path(__file__).parent / "page"
_CHECK_SECONDS = 5.0  # after which a store does not answer
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
    pools, metrics = Pools(engine.limits), Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        pools.close()
        engine.close()

    app = empty_app(lifespan, outer_layers(metrics, engine.limits, hosts))
    add_model(app, engine, pools, keys, page)
    add_metrics(app, metrics, pools, keys, lambda: {"": engine.store.count()})

    @app.get(
        "/v1/mounts",
        response_model=schemas.MountList,
        responses=problems(401, 413),
        dependencies=[Depends(Guard("read", keys))],
    )
    async def mounts() -> Response:
        """Name the mounts of a service with several models; this one has a single model."""
        return json_answer({"mounts": []})

    return app


def empty_app(lifespan: Any, layers: Sequence[Middleware]) -> FastAPI:
    """Return an application without routes, whose routes will ask their guards."""
    app = FastAPI(
        title="antipodal",
        version=antipodal.__version__,
        description="Binary codes of vectors and images, and exact search among them by Hamming "
        "distance. Errors are application/problem+json.",
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=layers,
        # What is asked is nobody's business, and to look for who listens takes time.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    add_handlers(app)
    app.router.route_class = GuardedRoute
    return app


def outer_layers(
    metrics: Metrics, limits: Limits, hosts: Collection[str] | None
) -> list[Middleware]:
    """Return what a request passes before any route."""
    return [
        Middleware(Observe, metrics=metrics, headers=_HEADERS),
        Middleware(Gate, limits=limits, hosts=hosts),
    ]


def add_model(
    app: FastAPI, engine: Engine, pools: "Pools", keys: Keys | None, page: Path = _PAGE
) -> None:
    """Add all routes of one model and its store, and the page that uses them."""
    reading, writing = [Depends(Guard("read", keys))], [Depends(Guard("write", keys))]
    _add_reading(app, engine, pools, reading)
    add_looking(app, engine, pools.reads, pools.maps, reading)
    if not engine.is_read_only:
        _add_writing(app, engine, pools, writing)
    add_signs_of_life(app, pools, engine.check)
    add_page(app, page)


class Pools:
    """Threads apart for what must not wait for each other."""

    def __init__(self, limits: Limits) -> None:
        waiting, seconds = limits.waiting, limits.seconds
        self.reads = Pool("read", limits.threads, waiting, seconds)
        # Decoding takes longer than searching.
        self.images = Pool("image", limits.threads, max(1, waiting // 8), seconds)
        self.maps = Pool("map", 1, max(1, waiting // 8), seconds)  # each takes seconds
        self.writes = Pool("write", 1, waiting, seconds)  # they wait for other processes, too
        self.numbers = Pool("number", 1, max(1, waiting // 8), seconds)  # those of /metrics
        self.checks = Pool("check", 1, waiting, min(seconds, _CHECK_SECONDS))

    def close(self) -> None:
        """Finish what runs."""
        for pool in (self.reads, self.images, self.maps, self.writes, self.numbers, self.checks):
            pool.close()


_ALWAYS = problems(401, 413, 503)
_WITH_BODY = _ALWAYS | problems(400, 408, 422, 429)


def _add_reading(
    app: FastAPI, engine: Engine, pools: Pools, reading: Sequence[params.Depends]
) -> None:
    joining = Joining(engine, pools.reads)

    async def encode_bytes(request: Request) -> Response:
        kind, body = media_type(request.headers), await request.body()

        def encode_body() -> Response:  # in a thread: parsing must not block the event loop
            rows = read_rows(kind, body, engine.hasher.n_features_in_, engine.limits)
            return codes_response(engine.encode_rows(rows), kind)

        return await pools.reads.run(encode_body)

    binary = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in media_types()}

    @app.post(
        "/v1/encode",
        response_model=schemas.Encoded,
        responses=_WITH_BODY | {200: {"content": binary}},
        dependencies=reading,
        openapi_extra={"requestBody": {"content": binary}},
    )
    @takes_bytes(encode_bytes)
    async def encode(request: schemas.EncodeRequest) -> Response:
        """Return the codes of vectors or images; of vectors in bytes, in bytes."""
        pool = pools.reads if request.images is None else pools.images
        return json_answer(await pool.run(engine.encode, request))

    @app.post(
        "/v1/search",
        response_model=schemas.SearchResponse | schemas.SearchesResponse,
        responses=_WITH_BODY | problems(404),
        dependencies=reading,
    )
    async def search(request: schemas.SearchRequest) -> Response:
        """Find the items nearest to a query, or all within a radius; the same for many queries."""
        if request.image is None:
            answer = await joining.search(request)
        else:
            answer = await pools.images.run(engine.search, request)
        if answer is None:
            raise HTTPException(404, f"there is no item {request.id} to search by")
        return json_answer(answer)

    @app.get(
        "/v1/items",
        response_model=schemas.ItemList,
        responses=_ALWAYS | problems(422),
        dependencies=reading,
    )
    async def sample(
        limit: Annotated[int, Query(ge=1)] = 24,
        seed: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    ) -> Response:
        """Return a sample of the items."""
        return json_answer({"items": await pools.reads.run(engine.sample, limit, seed)})

    @app.post(
        "/v1/items/get",
        response_model=schemas.ItemList,
        responses=_WITH_BODY,
        dependencies=reading,
    )
    async def items(request: schemas.IdsRequest) -> Response:
        """Return items in the order of their ids here; those that are not there are left out."""
        return json_answer({"items": await pools.reads.run(engine.items, request)})

    @app.post("/v1/count", response_model=schemas.Count, responses=_WITH_BODY, dependencies=reading)
    async def count(request: schemas.CountRequest) -> Response:
        """Count the items, or those that pass a filter."""
        return json_answer(await pools.reads.run(engine.count, request))

    @app.get(
        "/v1/store", response_model=schemas.AboutStore, responses=_ALWAYS, dependencies=reading
    )
    async def store() -> Response:
        """Say what a client must know to use the store as one of its own."""
        return json_answer(await pools.reads.run(engine.about))

    @app.get(
        "/v1/items/{id}",
        response_model=schemas.Item,
        responses=_ALWAYS | problems(404, 422),
        dependencies=reading,
    )
    async def item(id: schemas.Id) -> Response:
        """Return one item."""
        found = await pools.reads.run(engine.item, id)
        if found is None:
            raise HTTPException(404, f"there is no item {id}")
        return json_answer(found)

    @app.get("/v1/model", response_model=schemas.ModelCard, responses=_ALWAYS, dependencies=reading)
    async def model() -> Response:
        """Describe the model and the codes in the store."""
        return json_answer(await pools.reads.run(engine.card))


def _add_writing(
    app: FastAPI, engine: Engine, pools: Pools, writing: Sequence[params.Depends]
) -> None:
    @app.put(
        "/v1/items",
        response_model=schemas.Upserted,
        responses=_WITH_BODY | problems(403, 409),
        dependencies=writing,
    )
    async def upsert(request: schemas.UpsertRequest) -> Response:
        """Keep items: all of them, durably, or none."""
        of_images = None
        if any(item.image is not None for item in request.items):
            of_images = await pools.images.run(engine.codes_of_images, request)
        return json_answer(await pools.writes.run(engine.upsert, request, of_images))

    @app.delete(
        "/v1/items",
        response_model=schemas.Deleted,
        responses=_WITH_BODY | problems(403),
        dependencies=writing,
    )
    async def delete(request: schemas.IdsRequest) -> Response:
        """Remove items."""
        return json_answer(await pools.writes.run(engine.delete, request))


def add_signs_of_life(app: FastAPI, pools: Pools, check: Callable[[], None]) -> None:
    """Add routes for those who start and stop the service; `check` raises StoreError."""
    shared = Shared(pools.checks, check)

    @app.get("/healthz", response_model=schemas.Status, responses=problems(413))
    async def healthz() -> Response:
        """Say that the process is alive."""
        return json_answer({"status": "alive"})

    @app.get("/readyz", response_model=schemas.Status, responses=problems(413, 503))
    async def readyz() -> Response:
        """Say whether the store answers."""
        try:
            await shared()
        except StoreError as error:  # asked without a key: why, and where, is for the log
            _log.warning("the store does not answer: %s", error)
            raise UnavailableError("the store does not answer") from None
        return json_answer({"status": "ready"})


def add_metrics(
    app: FastAPI,
    metrics: Metrics,
    pools: Pools,
    keys: Keys | None,
    n_items: Callable[[], dict[str, int]],
) -> None:
    """Add the route for Prometheus; `n_items` counts the items of each mount."""

    @app.get(
        "/metrics",
        response_class=Response,
        responses=problems(401, 413, 503) | {200: {"content": {"text/plain": {}}}},
        dependencies=[Depends(Guard("read", keys))],
    )
    async def numbers() -> Response:
        """Return the metrics of all workers for Prometheus."""
        text = metrics.text(await pools.numbers.run(n_items))
        return Response(text, media_type="text/plain; version=0.0.4")


def add_page(app: FastAPI, page: Path = _PAGE, first: str = "index.html") -> None:
    """Add the page, what it needs, and the description of the API as one can read it."""

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return _file(page / first, "there is no page here: the API is described by /docs")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return _file(page / "docs.html", "there is no page here: see /openapi.json")

    app.mount("/static", _Fresh(directory=page, check_dir=False))


class _Fresh(StaticFiles):
    """Files that a browser asks for again: those of two versions do not work together."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["Cache-Control"] = "no-cache"
        return response


def _file(path: Path, missing: str) -> Response:
    if not path.is_file():
        raise HTTPException(404, missing)
    return FileResponse(path, headers={"Cache-Control": "no-cache"})

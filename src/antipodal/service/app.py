"""The HTTP API: routes of one model and its store."""

import logging
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import numpy as np
from fastapi import Depends, FastAPI, Query, Request, params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from numpy.typing import NDArray
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

import antipodal
from antipodal.errors import StoreError
from antipodal.service import schemas
from antipodal.service.auth import AllowedHosts, Guard, Keys
from antipodal.service.bodies import (
    JsonRequest,
    codes_response,
    json_response,
    media_type,
    read_body,
    read_rows,
    vector_types,
)
from antipodal.service.browse import (
    DEFAULT_MAP_ITEMS,
    MAX_MAP_ITEMS,
    Maps,
    find_items,
    map_places,
    map_points,
    sample_fields,
)
from antipodal.service.encoding import IMAGE_TYPES
from antipodal.service.engine import Engine
from antipodal.service.errors import UnavailableError, add_handlers, problems
from antipodal.service.limits import ConcurrencyLimit, Limits, Pool, Pools, Shared
from antipodal.service.metrics import Metrics, Observe
from antipodal.service.micro_batching import MicroBatcher

_log = logging.getLogger("antipodal.service")
_PAGE = Path(__file__).parent / "ui"
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
for _suffix, _type in ((".js", "text/javascript"), (".css", "text/css"), (".svg", "image/svg+xml")):
    mimetypes.add_type(_type, _suffix)  # the tables of the system may differ

BinaryHandler = Callable[[Request, str, bytes], Awaitable[Response]]
Engines = Callable[[], Mapping[str, Engine]]  # the current engines by the names of their mounts
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
P = ParamSpec("P")

_ALWAYS = problems(401, 503)
_WITH_BODY = _ALWAYS | problems(400, 408, 413, 422)
_OPTIONS = {
    "name": "options",
    "in": "query",
    "description": "With a binary body: SearchRequest without its query, as a JSON object.",
    "schema": {"type": "string", "contentMediaType": "application/json"},
}


class ServiceRoute(APIRoute):
    """A route that checks the key first, and then reads the body within its limits."""

    @property
    def guards(self) -> list[Guard]:
        """The guards among the dependencies."""
        dependencies = [dependency.dependency for dependency in self.dependencies]
        return [guard for guard in dependencies if isinstance(guard, Guard)]

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Return the function that answers a request."""
        handle, guards = super().get_route_handler(), self.guards
        takes_body = self.body_field is not None
        binary: Mapping[str, BinaryHandler] = getattr(self.endpoint, "binary_handlers", {})

        async def handle_checked(request: Request) -> Response:
            for guard in guards:
                await guard.check(request)
            if takes_body:
                limits: Limits = request.app.state.limits
                kind = media_type(request.headers)
                handle_binary = binary.get(kind)
                limit = limits.body if handle_binary is None else limits.binary_body
                body = await read_body(request, limit, limits.seconds)
                if handle_binary is not None:
                    return await handle_binary(request, kind, body)
                request = JsonRequest(request.scope, body)
            response: Response = await handle(request)
            return response

        return handle_checked


def accepts_binary(handlers: Mapping[str, BinaryHandler]) -> Callable[[Endpoint], Endpoint]:
    """Pass bodies of binary media types to separate handlers."""

    def mark(endpoint: Endpoint) -> Endpoint:
        endpoint.binary_handlers = handlers  # type: ignore[attr-defined]
        return endpoint

    return mark


def create_app(
    engine: Engine,
    *,
    keys: Keys | None = None,
    hosts: Collection[str] | None = None,
    page: Path = _PAGE,
) -> FastAPI:
    """Return the ASGI application of one model and its store.

    Parameters
    ----------
    engine : Engine
        The model and its store. The store is closed when the application stops.
    keys : Keys, optional
        API keys. Without keys, everyone may read and write.
    hosts : collection of str, optional
        Accepted Host headers. By default, all are accepted.
    page : Path
        Folder of the files of the web page.

    Examples
    --------
    ::

        from antipodal.service import Engine

        app = antipodal.create_app(Engine.open("docs.db"))  # for uvicorn or another ASGI server
    """
    pools, metrics = Pools(engine.limits), Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        pools.close()
        engine.close()

    app = base_app(engine.limits, lifespan, outer_layers(metrics, engine.limits, hosts))
    add_model(app, engine, pools, keys, page)
    add_metrics(app, metrics, pools, keys, lambda: {"": engine})
    add_mount_list(app, keys, lambda: {})
    return app


async def answer(pool: Pool, function: Callable[P, Any], *args: P.args, **kw: P.kwargs) -> Response:
    """Call a function in a pool, and serialise its result there, off the event loop."""
    return await pool.run(lambda: json_response(function(*args, **kw)))


def base_app(limits: Limits, lifespan: Any = None, layers: Sequence[Middleware] = ()) -> FastAPI:
    """Return an application without routes."""
    app = FastAPI(
        title="antipodal",
        version=antipodal.__version__,
        description="Encode vectors and images as binary codes, and search a collection. "
        "Errors are application/problem+json.",
        docs_url=None,  # FastAPI's page loads scripts from another host
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=layers,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # telemetry is off
    )
    app.state.limits = limits
    add_handlers(app)
    app.router.route_class = ServiceRoute
    return app


def outer_layers(
    metrics: Metrics, limits: Limits, hosts: Collection[str] | None
) -> list[Middleware]:
    """Return the middleware of the outermost application."""
    return [
        Middleware(Observe, metrics=metrics, headers=_HEADERS),
        Middleware(AllowedHosts, hosts=hosts),
        Middleware(ConcurrencyLimit, limits=limits),
    ]


def add_model(
    app: FastAPI, engine: Engine, pools: Pools, keys: Keys | None, page: Path = _PAGE
) -> None:
    """Add the routes of a model and its store, and the web page."""
    reading, writing = [Depends(Guard("read", keys))], [Depends(Guard("write", keys))]
    _add_searching(app, engine, pools, reading)
    _add_reading(app, engine, pools, reading)
    _add_browsing(app, engine, pools, reading)
    if not engine.is_read_only:
        _add_writing(app, engine, pools, writing)
    add_probes(app, pools, lambda: {"": engine})
    add_page(app, page)


def _add_searching(
    app: FastAPI, engine: Engine, pools: Pools, reading: Sequence[params.Depends]
) -> None:
    batcher = MicroBatcher(engine, pools.reads)

    def with_rows(function: Callable[[Request, str, NDArray[np.float32]], Response]) -> Any:
        """Return handlers of binary vectors that call a function of them."""

        async def handle(request: Request, kind: str, body: bytes) -> Response:
            def handle_body() -> Response:  # in a thread: parsing must not block the event loop
                rows = read_rows(kind, body, engine.hasher.n_features_in_, engine.limits)
                return function(request, kind, rows)

            return await pools.reads.run(handle_body)

        return dict.fromkeys(vector_types(), handle)

    async def encode_image(request: Request, kind: str, body: bytes) -> Response:
        return await answer(pools.images, engine.encode_image, body)

    binary_file = {"schema": {"type": "string", "format": "binary"}}
    vectors = with_rows(lambda _, kind, rows: codes_response(engine.encode_rows(rows), kind))
    vector_body = {"requestBody": {"content": dict.fromkeys(vectors, binary_file)}}

    @app.post(
        "/v1/encode",
        response_model=schemas.Encoded,
        responses=_WITH_BODY | {200: {"content": dict.fromkeys(vectors, binary_file)}},
        dependencies=reading,
        openapi_extra={
            "requestBody": {"content": dict.fromkeys((*vectors, *IMAGE_TYPES), binary_file)}
        },
    )
    @accepts_binary(vectors | dict.fromkeys(IMAGE_TYPES, encode_image))
    async def encode(request: schemas.EncodeRequest) -> Response:
        """Return the codes of vectors or of an image. The codes of binary vectors are binary."""
        pool = pools.reads if request.images is None else pools.images
        return await answer(pool, engine.encode, request)

    @app.post(
        "/v1/search",
        response_model=schemas.SearchResponse | schemas.SearchesResponse,
        responses=_WITH_BODY | problems(404, 502),
        dependencies=reading,
        openapi_extra=vector_body | {"parameters": [_OPTIONS]},
    )
    @accepts_binary(
        with_rows(lambda sent, _, rows: json_response(engine.search_rows(rows, _options(sent))))
    )
    async def search(request: schemas.SearchRequest) -> Response:
        """Return the nearest items of a query, or all items within a radius.

        Vectors in a binary body are several queries, with the options in the query string.
        """
        if not request.is_single:
            return await answer(pools.reads, engine.search, request)
        if request.image is not None:
            return await answer(pools.images, engine.search, request)
        results = await batcher.search(request)
        if results is None:
            raise HTTPException(404, f"the query does not exist: no item {request.id}")
        return json_response(results)

    @app.post(
        "/v1/check",
        response_model=schemas.DriftReport,
        responses=_WITH_BODY,
        dependencies=reading,
        openapi_extra=vector_body,
    )
    @accepts_binary(with_rows(lambda _, kind, rows: json_response(engine.check_drift(rows))))
    async def check(request: schemas.CheckRequest) -> Response:
        """Compare new vectors with those at fit time, and report drift."""
        return await answer(pools.reads, engine.check_drift, request)


def _options(request: Request) -> schemas.SearchOptions:
    """Return the search options in the query string of a request with a binary body."""
    try:
        options = from_json(request.query_params.get("options", "{}"), allow_inf_nan=False)
        return schemas.SearchOptions.model_validate(options)
    except ValidationError as error:
        places = ({**one, "loc": ("query", "options", *one["loc"])} for one in error.errors())
        raise RequestValidationError(list(places)) from None
    except ValueError as error:
        raise ValueError(f"options must be a JSON object: {error}") from None


def _add_reading(
    app: FastAPI, engine: Engine, pools: Pools, reading: Sequence[params.Depends]
) -> None:
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
        """Return a random sample of the items."""
        return json_response({"items": await pools.reads.run(engine.sample, limit, seed)})

    @app.post(
        "/v1/items/get",
        response_model=schemas.ItemList,
        responses=_WITH_BODY,
        dependencies=reading,
    )
    async def items(request: schemas.IdsRequest) -> Response:
        """Return items in the order of the given ids. Unknown ids are omitted."""
        return json_response({"items": await pools.reads.run(engine.items, request)})

    @app.post("/v1/count", response_model=schemas.Count, responses=_WITH_BODY, dependencies=reading)
    async def count(request: schemas.CountRequest) -> Response:
        """Count the items, or those that match a filter."""
        return await answer(pools.reads, engine.count, request)

    @app.get(
        "/v1/store", response_model=schemas.AboutStore, responses=_ALWAYS, dependencies=reading
    )
    async def store() -> Response:
        """Describe the store and the limits of the service, for clients."""
        return await answer(pools.reads, engine.about)

    @app.get(
        "/v1/items/{id:path}",
        response_model=schemas.Item,
        responses=_ALWAYS | problems(404, 422),
        dependencies=reading,
    )
    async def item(id: str) -> Response:
        """Return one item."""
        found = await pools.reads.run(engine.item, id)
        if found is None:
            raise HTTPException(404, f"no item {id}")
        return json_response(found)

    @app.get("/v1/model", response_model=schemas.ModelCard, responses=_ALWAYS, dependencies=reading)
    async def model() -> Response:
        """Describe the model and the stored codes."""
        return await answer(pools.reads, engine.card)


def _add_browsing(
    app: FastAPI, engine: Engine, pools: Pools, reading: Sequence[params.Depends]
) -> None:
    maps = Maps(engine)

    @app.get(
        "/v1/fields", response_model=schemas.SeenFields, responses=_ALWAYS, dependencies=reading
    )
    async def fields() -> Response:
        """Describe the metadata fields of a sample of the items."""
        return await answer(pools.reads, sample_fields, engine)

    @app.post(
        "/v1/find", response_model=schemas.FoundItems, responses=_WITH_BODY, dependencies=reading
    )
    async def find(request: schemas.FindRequest) -> Response:
        """Find items whose metadata contains all words of a text, ignoring case."""
        return await answer(pools.reads, find_items, engine, request)

    @app.get(
        "/v1/map",
        response_model=schemas.ItemMap,
        responses=_ALWAYS | problems(422),
        dependencies=reading,
    )
    async def item_map(
        field: Annotated[str, Query(max_length=500)] = "label",
        limit: Annotated[int, Query(ge=1, le=MAX_MAP_ITEMS)] = DEFAULT_MAP_ITEMS,
    ) -> Response:
        """Place a sample of the items in the plane, with the value of `field` for each."""
        return await answer(pools.maps, map_points, engine, maps, field, limit)

    @app.post(
        "/v1/map/places",
        response_model=schemas.Places,
        responses=_WITH_BODY,
        dependencies=reading,
    )
    async def places(request: schemas.IdsRequest) -> Response:
        """Return the positions of items on the map, also of those outside its sample."""
        return await answer(pools.maps, map_places, engine, maps, request)


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
        """Store items durably: all of them or none."""
        of_images = None
        if any(item.image is not None for item in request.items):
            of_images = await pools.images.run(engine.image_rows, request)
        return await answer(pools.writes, engine.upsert, request, of_images)

    @app.delete(
        "/v1/items",
        response_model=schemas.Deleted,
        responses=_WITH_BODY | problems(403),
        dependencies=writing,
    )
    async def delete(request: schemas.IdsRequest) -> Response:
        """Delete items."""
        return await answer(pools.writes, engine.delete, request)


def add_probes(app: FastAPI, pools: Pools, engines: Engines) -> None:
    """Add the routes for health probes."""

    def check() -> None:
        for engine in engines().values():
            engine.check()

    shared = Shared(pools.probes, check)

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", response_model=schemas.Status)
    async def healthz() -> Response:
        """Return 200 while the process is alive."""
        return json_response({"status": "alive"})

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", response_model=schemas.Status, responses=problems(503))
    async def readyz() -> Response:
        """Return 200 if the store responds, otherwise 503."""
        try:
            await shared()
        except StoreError as error:  # the route needs no key: the reason goes to the log only
            _log.warning("the store does not respond: %s", error)
            raise UnavailableError("the store does not respond") from None
        return json_response({"status": "ready"})


def add_metrics(
    app: FastAPI,
    metrics: Metrics,
    pools: Pools,
    keys: Keys | None,
    engines: Engines,
) -> None:
    """Add the route for Prometheus."""

    def n_items() -> dict[str, int]:
        return {name: engine.store.count() for name, engine in engines().items()}

    @app.get(
        "/metrics",
        response_class=Response,
        responses=_ALWAYS | {200: {"content": {"text/plain": {}}}},
        dependencies=[Depends(Guard("read", keys))],
    )
    async def prometheus() -> Response:
        """Return the metrics of all workers in the format of Prometheus."""
        text = metrics.text(await pools.metrics.run(n_items))
        return Response(text, media_type="text/plain; version=0.0.4")


def add_mount_list(app: FastAPI, keys: Keys | None, engines: Engines) -> None:
    """Add the route that lists the mounts: none if the service has a single model."""

    @app.get(
        "/v1/mounts",
        response_model=schemas.MountList,
        responses=problems(401),
        dependencies=[Depends(Guard("read", keys))],
    )
    async def mounts() -> Response:
        """List the mounts of the service."""
        found = [
            {"name": name, "n_bits": one.store.n_bits, "method": type(one.hasher).__name__}
            for name, one in engines().items()
        ]
        return json_response({"mounts": found})


def add_page(app: FastAPI, page: Path = _PAGE, first: str = "index.html") -> None:
    """Add the web page, its files, and the page that shows the API."""

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return _file(page / first)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return _file(page / "docs.html")

    app.mount("/static", _RevalidatedFiles(directory=page, check_dir=False))


class _RevalidatedFiles(StaticFiles):
    """Static files that a browser revalidates, so that it never mixes two versions."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["Cache-Control"] = "no-cache"
        return response


def _file(path: Path) -> Response:
    if not path.is_file():
        raise HTTPException(404, "this page does not exist: see /openapi.json for the API")
    return FileResponse(path, headers={"Cache-Control": "no-cache"})

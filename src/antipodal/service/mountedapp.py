"""The application of a service with several models: each under its name, and what is of all."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response

from antipodal.errors import AntipodalError
from antipodal.service import schemas
from antipodal.service.app import (
    Pools,
    add_metrics,
    add_model,
    add_page,
    add_signs_of_life,
    empty_app,
    outer_layers,
)
from antipodal.service.engine import Engine
from antipodal.service.guard import ASK_FOR_KEY, sent_key
from antipodal.service.guesses import Guesses
from antipodal.service.keys import Keys
from antipodal.service.limits import Limits
from antipodal.service.mounts import Mount, read_mounts
from antipodal.service.observe import Metrics
from antipodal.service.replies import json_answer, problems
from antipodal.service.switchboard import Dispatch, Served, Switchboard, readable, stamp


def create_mounted_app(
    mounts: Mapping[str, Mount] | Path,
    open_engine: Callable[[Mount], Engine],
    *,
    limits: Limits,
    keys: Keys | None = None,
    hosts: Collection[str] | None = None,
) -> FastAPI:
    """Return the ASGI application of one worker.

    Parameters
    ----------
    mounts : mapping or Path
        The mounts by their names; or the file that has them, which is followed.
    open_engine : callable
        Opens the model and the store of a mount, ready to answer.
    keys : Keys, optional
        Of the mounts that have none of their own, and of what is of all.
    """
    pools, metrics = Pools(limits), Metrics()
    seen, chosen = None, mounts
    if isinstance(chosen, Path):
        seen, chosen = stamp(chosen), read_mounts(chosen)
    is_guarded = keys is not None or any(mount.keys for mount in chosen.values())

    def open_mount(name: str, mount: Mount) -> Served:
        own = keys_of(name, mount, keys, is_guarded)
        engine = open_engine(mount)
        app = empty_app(None, [])
        add_model(app, engine, pools, own)
        _add_mounts(app, switchboard)
        return Served(mount, engine, own, app)

    switchboard = Switchboard(open_mount)
    switchboard.open_all(chosen)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        following = None
        if isinstance(mounts, Path):
            following = asyncio.create_task(switchboard.follow(mounts, seen))
        yield
        if following is not None:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
        pools.close()
        switchboard.close()

    def check() -> None:
        for served in list(switchboard.served.values()):
            served.engine.check()

    def n_items() -> dict[str, int]:
        return {
            name: served.engine.store.count() for name, served in list(switchboard.served.items())
        }

    layers = outer_layers(metrics, limits, hosts)
    app = empty_app(lifespan, [*layers, Middleware(Dispatch, switchboard=switchboard)])
    _add_mounts(app, switchboard)
    # With keys of the mounts alone nobody may see what is of all of them.
    add_metrics(app, metrics, pools, keys if keys or not is_guarded else Keys({}), n_items)
    add_signs_of_life(app, pools, check)
    add_page(app, first="mounts.html")
    return app


def keys_of(name: str, mount: Mount, common: Keys | None, is_guarded: bool) -> Keys | None:
    """Return the keys of a mount: its own, or else the common ones."""
    own = common if mount.keys is None else Keys.find(mount.keys)
    if own is None and is_guarded:
        raise AntipodalError(
            f"mount {name} has no keys, and others have: give it some, or --keys for all that have "
            "none of their own"
        )
    return own


def _add_mounts(app: FastAPI, switchboard: Switchboard) -> None:
    guesses = Guesses()

    @app.get("/v1/mounts", response_model=schemas.MountList, responses=problems(401, 413))
    async def mounts(request: Request) -> Response:
        """Name the mounts that the caller's key may read."""
        key = await sent_key(request)
        found: list[dict[str, Any]] = [
            {
                "name": name,
                "n_bits": served.engine.store.n_bits,
                "method": type(served.engine.hasher).__name__,
            }
            for name, served in readable(switchboard.served, key)
        ]
        if not found and switchboard.served:
            await asyncio.sleep(guesses.wait(request.client) if key else 0)
            raise HTTPException(401, "a key of one of the mounts is needed", ASK_FOR_KEY)
        return json_answer({"mounts": found})

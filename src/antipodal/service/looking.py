"""Routes for who looks at a store: its fields, its items by their words, and a map of them."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Query, params
from pydantic import BaseModel, Field
from starlette.responses import Response

from antipodal.service.engine import Engine
from antipodal.service.fields import seen_fields
from antipodal.service.maps import MOST_ITEMS, Maps
from antipodal.service.pool import Pool
from antipodal.service.replies import json_answer, problems
from antipodal.service.schemas import FindRequest, Item
from antipodal.stores.text_search import find_words

MOST_LOOKED_AT = 200_000  # items, for words
_SAMPLE = 1_000
_LONGEST_NAME = 200  # characters of what a point of the map is called

Scalar = str | int | float | bool | None
Kind = Annotated[
    str, Field(description="number, string, boolean, null, container, picture, or mixed.")
]


class FieldValue(BaseModel):
    """A value, and how many items of the sample have it."""

    value: str | int | float | bool
    items: int


class SeenField(BaseModel):
    """A field of metadata, as a sample of the items has it."""

    name: Annotated[str, Field(description="As a filter names it: outer.inner.")]
    kind: Kind
    items: Annotated[int, Field(description="Items of the sample that have it.")]
    distinct: Annotated[int, Field(description="Different short values.")]
    values: Annotated[list[FieldValue], Field(description="The most frequent short values.")]
    least: float | None
    most: float | None
    length: Annotated[float | None, Field(description="Mean characters of its strings.")]


class SeenFields(BaseModel):
    """The fields of a sample of the items."""

    sample: Annotated[int, Field(description="Items that were looked at.")]
    fields: list[SeenField]


class FoundItems(BaseModel):
    """Items with all the words, by id."""

    items: list[Item]
    looked_at: Annotated[int, Field(description="Items that were read, one after the other.")]
    total: Annotated[int, Field(description="Items in the store.")]


class Point(BaseModel):
    """An item on the map."""

    id: int
    x: float
    y: float
    name: str | None
    value: Annotated[Scalar, Field(description="Of the field that was asked for.")]


class ItemMap(BaseModel):
    """A sample of the items in the square from -1 to 1: near codes are near."""

    points: list[Point]
    distinct: Annotated[int, Field(description="Different codes in the sample.")]
    total: Annotated[int, Field(description="Items in the store.")]


def add_looking(
    app: FastAPI, engine: Engine, reads: Pool, maps: Pool, reading: Sequence[params.Depends]
) -> None:
    """Add the routes; a map takes seconds to make, and so has threads of its own."""
    always = problems(401, 413, 503)
    kept_maps = Maps(engine)

    @app.get("/v1/fields", response_model=SeenFields, responses=always, dependencies=reading)
    async def fields() -> Response:
        """Describe the fields of a sample of the items."""
        return json_answer(await reads.run(_fields, engine))

    @app.post(
        "/v1/find",
        response_model=FoundItems,
        responses=always | problems(400, 408, 413, 422),
        dependencies=reading,
    )
    async def find(request: FindRequest) -> Response:
        """Find items whose metadata have all words of a text, in any case."""
        return json_answer(await reads.run(_found, engine, request))

    @app.get(
        "/v1/map", response_model=ItemMap, responses=always | problems(422), dependencies=reading
    )
    async def item_map(
        field: Annotated[str, Query(max_length=500)] = "label",
        limit: Annotated[int, Query(ge=1, le=MOST_ITEMS)] = 1_000,
    ) -> Response:
        """Lay a sample of the items out in the plane; `field` is what they are coloured by."""
        return json_answer(await maps.run(_points, engine, kept_maps, field, limit))


def _fields(engine: Engine) -> dict[str, Any]:
    metadata = engine.draw(_SAMPLE, 0).metadata
    return {"sample": len(metadata), "fields": seen_fields(metadata)}


def _found(engine: Engine, request: FindRequest) -> dict[str, Any]:
    with engine.store.snapshot() as now:
        found = find_words(now, request.text, request.limit, MOST_LOOKED_AT)
        items, total = now.get(found.ids), now.count()
    return {"items": engine.described(items), "looked_at": found.looked_at, "total": total}


def _points(engine: Engine, maps: Maps, field: str, limit: int) -> dict[str, Any]:
    laid = maps.of_sample(limit)
    items = engine.store.get(laid.ids)
    place_of = dict(zip(laid.ids.tolist(), laid.places.tolist(), strict=True))
    points = [
        {
            "id": number,
            "x": place_of[number][0],
            "y": place_of[number][1],
            "name": _name(metadata),
            "value": _value(metadata, field),
        }
        for number, metadata in zip(items.ids.tolist(), items.metadata, strict=True)
    ]
    return {"points": points, "distinct": laid.distinct, "total": engine.store.count()}


def _name(metadata: dict[str, Any]) -> str | None:
    for field in ("title", "name", "text", "caption", "label"):
        value = metadata.get(field)
        if isinstance(value, str) or (isinstance(value, int | float) and value is not True):
            return str(value)[:_LONGEST_NAME]
    return None


def _value(metadata: dict[str, Any], field: str) -> Scalar:
    """Return a single value of a field, which may be one of an object's."""
    value: Any = metadata
    for name in field.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, str):
        return value[:_LONGEST_NAME]
    return value if isinstance(value, int | float) else None

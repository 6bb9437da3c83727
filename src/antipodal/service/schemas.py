"""What requests and responses hold; the OpenAPI description is made from these."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Id = Annotated[int, Field(ge=-(2**63), lt=2**63, examples=[7])]
Vector = Annotated[list[float], Field(min_length=1)]
Image = Annotated[str, Field(min_length=1, description="A PNG, JPEG, … file in base64.")]
Code = Annotated[str, Field(min_length=2, description="A code in hexadecimal digits.")]
Metadata = dict[str, Any]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _example(**values: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [values]})


def _one_of(request: BaseModel, *names: str) -> None:
    given = [name for name in names if getattr(request, name) is not None]
    if len(given) != 1:
        raise ValueError(
            f"exactly one of {', '.join(names)} is needed: got {' and '.join(given) or 'none'}"
        )


class EncodeRequest(_Request):
    """Vectors, or images where the service takes them."""

    model_config = _example(vectors=[[0.1, -2.5, 3.0]])
    vectors: list[Vector] | None = None
    images: list[Image] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _one_of(self, "vectors", "images")
        return self


_MANY = (
    "Many queries, answered in their order: at most as many as --max-batch says, 1,000 by itself."
)


class SearchRequest(_Request):
    """One query, by exactly one of vector, image, code or id; or many, by vectors or codes."""

    model_config = _example(vector=[0.1, -2.5, 3.0], k=5, where={"label": 3})
    vector: Vector | None = None
    image: Image | None = None
    code: Code | None = None
    id: Id | None = None
    vectors: Annotated[list[Vector], Field(min_length=1, description=_MANY)] | None = None
    codes: Annotated[list[Code], Field(min_length=1, description=_MANY)] | None = None
    k: Annotated[int, Field(ge=1, description="Nearest items; 10 if neither is given.")] | None = (
        None
    )
    radius: (
        Annotated[int, Field(ge=0, description="All items this near, in place of k.")] | None
    ) = None
    where: Annotated[Metadata, Field(description="A filter on metadata.")] | None = None
    rescore: Literal["project"] | None = None
    prefix: (
        Annotated[int, Field(ge=1, description="Compare by the first bits of codes alone.")] | None
    ) = None
    offset: Annotated[int, Field(ge=0, description="Results to leave out at the front.")] = 0
    limit: Annotated[int, Field(ge=1, description="Results to return at most.")] | None = None
    histogram: Annotated[bool, Field(description="Count the items at every distance.")] = False
    items: Annotated[
        bool,
        Field(description="False: only ids and distances, without codes and metadata, and faster."),
    ] = True

    @property
    def is_single(self) -> bool:
        """Whether the answer is to one query, and not to a list of them."""
        return self.vectors is None and self.codes is None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _one_of(self, "vector", "image", "code", "id", "vectors", "codes")
        if self.histogram and not self.is_single:
            raise ValueError("a histogram is of one query: it cannot go with vectors or codes")
        if self.k is not None and self.radius is not None:
            raise ValueError("k and radius exclude each other: got both")
        if self.rescore is not None:
            if self.radius is not None:
                raise ValueError("rescore orders the k nearest: it cannot go with radius")
            if self.prefix is not None:
                raise ValueError("rescore orders by whole codes: it cannot go with prefix")
            if self.vector is None and self.image is None and self.vectors is None:
                raise ValueError("rescore needs vectors or an image: a code has lost the values")
        return self


class NewItem(_Request):
    """An item to keep, by exactly one of vector, image or code."""

    id: Id
    vector: Vector | None = None
    image: Image | None = None
    code: Code | None = None
    metadata: Metadata | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _one_of(self, "vector", "image", "code")
        return self


class UpsertRequest(_Request):
    """Items, which take the place of those with the same ids; all of them or none."""

    model_config = _example(items=[{"id": 7, "vector": [0.1, -2.5, 3.0], "metadata": {"label": 3}}])
    items: list[NewItem]
    replace: Annotated[
        bool, Field(description="False: if there is an item with one of the ids, keep none. 409.")
    ] = True
    keep_metadata: Annotated[
        bool, Field(description="Items that are replaced keep their metadata. No item has any.")
    ] = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.keep_metadata and any(item.metadata is not None for item in self.items):
            raise ValueError("keep_metadata is for items without metadata: got some")
        return self


class IdsRequest(_Request):
    """Ids of items; those that are not there are passed over."""

    model_config = _example(ids=[7, 9])
    ids: list[Id]


class CountRequest(_Request):
    """Which items to count; without a filter, all."""

    model_config = _example(where={"label": 3})
    where: Annotated[Metadata, Field(description="A filter on metadata.")] | None = None


class FindRequest(_Request):
    """Words that the metadata of an item must have, all of them, in any case."""

    model_config = _example(text="binary codes", limit=5)
    text: Annotated[str, Field(min_length=1, max_length=200)]
    limit: Annotated[int, Field(ge=1, le=100)] = 24


class Encoded(BaseModel):
    """Codes in the order of what was encoded."""

    n_bits: int
    codes: list[str]


class Item(BaseModel):
    """An item as it is kept."""

    id: int
    code: str
    metadata: Metadata


class Hit(BaseModel):
    """What a search found, without the item; `score` if the search was rescored."""

    id: int
    distance: int
    score: float | None = None


class Found(Item):
    """An item that a search found; `score` if the search was rescored."""

    distance: int
    score: float | None = None


class SearchResponse(BaseModel):
    """Items by (distance, id), or by (score, id) if rescored."""

    code: Annotated[str, Field(description="The code of the query.")]
    results: list[Found] | list[Hit]
    total: Annotated[
        int, Field(description="Results without offset and limit, or all items within the radius.")
    ]
    histogram: Annotated[
        list[int] | None, Field(description="Items at distance 0, 1, …, n_bits.")
    ] = None


class SearchesResponse(BaseModel):
    """The answers to many queries, in their order."""

    searches: list[SearchResponse]


class Upserted(BaseModel):
    """How many items were stored, and how many of these took the place of others."""

    upserted: int
    replaced: int


class Deleted(BaseModel):
    """How many items there were to remove."""

    deleted: int


class Count(BaseModel):
    """How many items there are."""

    count: int


class RequestLimits(BaseModel):
    """What one request may ask for, as the options of `antipodal serve` have it."""

    body: int
    batch: int
    k: int
    results: int
    found: int


class AboutStore(BaseModel):
    """What a client must know to use the store as one of its own."""

    n_bits: int
    model: Annotated[str, Field(description="SHA-256 of the model's file.")]
    next_id: Annotated[int, Field(description="The id after the largest.")]
    limits: RequestLimits


class ItemList(BaseModel):
    """Some items."""

    items: list[Item]


class Health(BaseModel):
    """How well a sample of the stored codes uses its bits; the first two are in percent."""

    bit_balance: float
    bit_correlation: float
    distinct_codes: int
    sample: Annotated[int, Field(description="Codes in the sample.")]


class ModelCard(BaseModel):
    """What makes the codes, and what it was measured to be worth."""

    method: str
    n_bits: int
    n_features: int
    parameters: dict[str, Any]
    identity: Annotated[str, Field(description="SHA-256 of the model's file.")]
    items: int
    images: Annotated[bool, Field(description="Whether images are taken.")]
    scores: dict[str, Any] | None
    bit_health: Health | None


class MountedModel(BaseModel):
    """A model that is served under /NAME/."""

    name: str
    n_bits: int
    method: str


class MountList(BaseModel):
    """The mounts that the caller's key may read; none if the service has a single model."""

    mounts: list[MountedModel]


class Status(BaseModel):
    """A word on how the service is."""

    status: str


class Problem(BaseModel):
    """An error. [RFC 9457]"""

    type: str
    title: str
    status: int
    detail: str

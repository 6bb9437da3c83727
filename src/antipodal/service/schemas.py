"""Schemas of requests and responses, from which the OpenAPI description is generated."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Id = Annotated[
    Annotated[int, Field(ge=-(2**63), lt=2**63)]
    | Annotated[str, Field(min_length=1, max_length=512)],
    Field(examples=[7]),
]
Text = Annotated[str, Field(min_length=1, max_length=10_000)]
Vector = Annotated[list[float], Field(min_length=1, fail_fast=True)]
Image = Annotated[
    str, Field(min_length=1, description="A PNG, JPEG, WEBP, GIF or BMP file in base64.")
]
Code = Annotated[str, Field(min_length=2, description="A code in hexadecimal.")]
Metadata = dict[str, Any]
_MAX_NAMES = 100  # fields of an object; lists stop at their first error (fail_fast) likewise


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, values: Any) -> Any:
        """Refuse an object of many unknown fields at once: each would be an error of its own."""
        if isinstance(values, dict) and len(values) > _MAX_NAMES:
            raise ValueError(f"too many fields: got {len(values)}")
        return values


def _example(**values: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [values]})


def _one_of(request: BaseModel, *names: str) -> None:
    given = [name for name in names if getattr(request, name) is not None]
    if len(given) != 1:
        raise ValueError(
            f"exactly one of {', '.join(names)} is required: got {' and '.join(given) or 'none'}"
        )


class EncodeRequest(_Request):
    """Vectors, or one image if the service accepts images."""

    model_config = _example(vectors=[[0.1, -2.5, 3.0]])
    vectors: Annotated[list[Vector], Field(fail_fast=True)] | None = None
    images: (
        Annotated[
            list[Image],
            Field(min_length=1, max_length=1, fail_fast=True, description="One image per request."),
        ]
        | None
    ) = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _one_of(self, "vectors", "images")
        return self


_MANY = Field(
    min_length=1,
    fail_fast=True,
    description="Several queries, answered in their order. At most --max-batch, 1,000 by default.",
)


class SearchOptions(_Request):
    """Options of a search. Codes are compared by the scoring of the model, or by `scoring`.

    With vectors in a binary body, these options are a JSON object in the query parameter `options`.
    """

    model_config = _example(k=5, where={"label": 3})
    k: Annotated[int, Field(ge=1, description="Number of neighbours. Default: 10.")] | None = None
    radius: (
        Annotated[
            int, Field(ge=0, description="Hamming distance: return all items within, instead of k.")
        ]
        | None
    ) = None
    where: Annotated[Metadata, Field(description="Metadata filter.")] | None = None
    rerank: (
        Annotated[
            int,
            Field(
                ge=1,
                le=100,
                description="Oversampling factor: rerank this many candidates per result by the "
                "kept vectors.",
            ),
        ]
        | None
    ) = None
    scoring: (
        Annotated[
            Literal["hamming", "asymmetric"],
            Field(description="Default: that of the model."),
        ]
        | None
    ) = None
    prefix: (
        Annotated[int, Field(ge=1, description="Compare only the first bits of the codes.")] | None
    ) = None
    offset: Annotated[int, Field(ge=0, description="Results to skip.")] = 0
    limit: Annotated[int, Field(ge=1, description="Maximum number of results.")] | None = None
    histogram: Annotated[bool, Field(description="Count the items at each distance.")] = False
    items: Annotated[
        bool,
        Field(description="Return codes and metadata. Without them, a search is faster."),
    ] = True

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        if self.k is not None and self.radius is not None:
            raise ValueError("k and radius cannot be combined")
        if self.rerank is not None and not (self.radius is None and self.prefix is None):
            raise ValueError("rerank cannot be combined with radius or prefix")
        if self.rerank is not None and self.histogram:
            raise ValueError("rerank cannot be combined with histogram")
        return self


class SearchRequest(SearchOptions):
    """One query (exactly one of vector, text, image, code, id), or several (vectors, texts, codes).

    A search by id excludes the item itself.
    """

    model_config = _example(vector=[0.1, -2.5, 3.0], k=5, where={"label": 3})
    vector: Vector | None = None
    text: Annotated[Text, Field(description="Needs a service started with --embed.")] | None = None
    image: Image | None = None
    code: Code | None = None
    id: Id | None = None
    vectors: Annotated[list[Vector], _MANY] | None = None
    texts: Annotated[list[Text], _MANY] | None = None
    codes: Annotated[list[Code], _MANY] | None = None

    @property
    def is_single(self) -> bool:
        """Whether the request has a single query."""
        return self.vectors is None and self.codes is None and self.texts is None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _one_of(self, "vector", "text", "image", "code", "id", "vectors", "texts", "codes")
        if self.histogram and not self.is_single:
            raise ValueError(
                "histogram needs a single query: it cannot be combined with vectors, texts or codes"
            )
        if self.rerank is not None and (self.code is not None or self.codes is not None):
            raise ValueError("rerank needs vectors: a code has none")
        return self


class NewItem(_Request):
    """An item to store, given by exactly one of vector, image or code."""

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
    """Items to store, all or none. They replace items with the same ids."""

    model_config = _example(items=[{"id": 7, "vector": [0.1, -2.5, 3.0], "metadata": {"label": 3}}])
    items: Annotated[list[NewItem], Field(fail_fast=True)]
    replace: Annotated[
        bool,
        Field(description="If false, and one of the ids exists, store nothing and return 409."),
    ] = True
    keep_metadata: Annotated[
        bool, Field(description="Keep the metadata of replaced items. No item may have any.")
    ] = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.keep_metadata and any(item.metadata is not None for item in self.items):
            raise ValueError("keep_metadata needs items without metadata")
        if sum(item.image is not None for item in self.items) > 1:
            raise ValueError("a request may have at most one image: send one request per image")
        return self


class CheckRequest(_Request):
    """New vectors, at least 100, to compare with those at fit time."""

    model_config = _example(vectors=[[0.1, -2.5, 3.0], [0.2, 0.0, 1.0]])
    vectors: Annotated[list[Vector], Field(fail_fast=True)]


class IdsRequest(_Request):
    """Ids of items. Unknown ids are ignored."""

    model_config = _example(ids=[7, 9])
    ids: Annotated[list[Id], Field(fail_fast=True)]


class CountRequest(_Request):
    """Items to count: those that match a filter, or all."""

    model_config = _example(where={"label": 3})
    where: Annotated[Metadata, Field(description="Metadata filter.")] | None = None


class FindRequest(_Request):
    """Words, or prefixes of words, all of which the metadata of an item must contain."""

    model_config = _example(text="binary codes", limit=5)
    text: Annotated[str, Field(min_length=1, max_length=200)]
    limit: Annotated[int, Field(ge=1, le=100)] = 24


class Encoded(BaseModel):
    """Codes, in the order of the vectors."""

    n_bits: int
    codes: list[str]


class Item(BaseModel):
    """A stored item."""

    id: int | str
    code: str
    metadata: Metadata


class Hit(BaseModel):
    """A search result without code and metadata. Hamming searches have no `score`."""

    id: int | str
    distance: int
    score: float | None = None


class Found(Item):
    """A search result. Hamming searches have no `score`."""

    distance: int
    score: float | None = None


class SearchResponse(BaseModel):
    """Results ordered by (score, id), or by (distance, id) for Hamming scoring."""

    code: Annotated[str | None, Field(description="Code of the query, for Hamming scoring.")] = None
    results: list[Found] | list[Hit]
    total: Annotated[
        int, Field(description="Number of results before offset and limit are applied.")
    ]
    histogram: Annotated[
        list[int] | None, Field(description="Number of items at distance 0, 1, …, n_bits.")
    ] = None


class SearchesResponse(BaseModel):
    """Results of several queries, in their order."""

    searches: list[SearchResponse]


class Upserted(BaseModel):
    """Number of stored items, and of replaced items."""

    upserted: int
    replaced: int


class Deleted(BaseModel):
    """Number of items deleted."""

    deleted: int


class Count(BaseModel):
    """Number of items."""

    count: int


class RequestLimits(BaseModel):
    """Limits of one request, from the options of `antipodal serve`."""

    body: int
    binary_body: int
    batch: int
    k: int
    results: int
    found: int


class AboutStore(BaseModel):
    """Properties of the store and limits of the service."""

    n_bits: int
    n_features: int
    model: Annotated[str, Field(description="SHA-256 of the model file.")]
    scoring: Annotated[str, Field(description="Scoring: hamming or asymmetric.")]
    id_type: Annotated[str, Field(description="int64 or string.")]
    keep_vectors: Annotated[str | None, Field(description="Type of the vectors for reranking.")]
    texts: Annotated[bool, Field(description="Whether texts are accepted as queries.")]
    next_id: Annotated[int, Field(description="Largest integer id plus one.")]
    limits: RequestLimits


class Quality(BaseModel):
    """Quality of the codes of some rows: recall@10 among them, and the reconstruction error."""

    rows: int
    recall: float
    error: float | None


class DriftReport(BaseModel):
    """Comparison of the codes of new vectors with those at fit time."""

    has_drifted: bool
    message: Annotated[str, Field(description="Measured values and the recommended action.")]
    before: Quality
    now: Quality
    can_refit: Annotated[bool, Field(description="Whether the collection keeps its vectors.")]


class ItemList(BaseModel):
    """A list of items."""

    items: list[Item]


class Health(BaseModel):
    """Bit statistics of a sample of the stored codes, in percent."""

    bit_balance: float
    bit_correlation: float
    distinct_codes: int
    sample: Annotated[int, Field(description="Number of codes in the sample.")]


class ModelCard(BaseModel):
    """Description of the model: method, parameters, scores and bit statistics."""

    method: str
    n_bits: int
    n_features: int
    parameters: dict[str, Any]
    identity: Annotated[str, Field(description="SHA-256 of the model file.")]
    scoring: Annotated[str, Field(description="Scoring: hamming or asymmetric.")]
    id_type: Annotated[str, Field(description="int64 or string.")]
    keep_vectors: Annotated[str | None, Field(description="Type of the vectors for reranking.")]
    texts: Annotated[bool, Field(description="Whether texts are accepted as queries.")]
    items: int
    images: Annotated[bool, Field(description="Whether images are accepted.")]
    scores: dict[str, Any] | None
    bit_health: Health | None


class MountedModel(BaseModel):
    """A model served under /NAME/."""

    name: str
    n_bits: int
    method: str


class MountList(BaseModel):
    """Mounts that the key may read. Empty if the service has a single model."""

    mounts: list[MountedModel]


class FieldValue(BaseModel):
    """A value and the number of sampled items that have it."""

    value: str | int | float | bool
    items: int


class SeenField(BaseModel):
    """A metadata field, described from a sample of the items."""

    name: Annotated[str, Field(description="Name as in a filter: outer.inner.")]
    kind: Annotated[
        str, Field(description="number, string, boolean, null, container, picture or mixed.")
    ]
    items: Annotated[int, Field(description="Number of sampled items that have the field.")]
    distinct: Annotated[int, Field(description="Number of distinct short values.")]
    values: Annotated[list[FieldValue], Field(description="The most frequent short values.")]
    least: float | None
    most: float | None
    length: Annotated[float | None, Field(description="Mean length of its strings.")]


class SeenFields(BaseModel):
    """Metadata fields of a sample of the items."""

    sample: Annotated[int, Field(description="Number of sampled items.")]
    fields: list[SeenField]


class FoundItems(BaseModel):
    """Items that contain all words, most relevant first."""

    items: list[Item]
    looked_at: Annotated[int, Field(description="Number of items searched.")]
    total: Annotated[int, Field(description="Number of items in the store.")]


class Place(BaseModel):
    """The position of an item on the map."""

    id: int | str
    x: float
    y: float


class Point(Place):
    """An item on the map, with its name and the value of a field."""

    name: str | None
    value: Annotated[
        str | int | float | bool | None, Field(description="Value of the requested field.")
    ]


class ItemMap(BaseModel):
    """A sample of the items in the square from -1 to 1. Similar codes are close."""

    points: list[Point]
    distinct: Annotated[int, Field(description="Number of distinct codes in the sample.")]
    total: Annotated[int, Field(description="Number of items in the store.")]


class Places(BaseModel):
    """Positions of items on the map, in the order of their ids. Unknown ids are omitted."""

    places: list[Place]


class Status(BaseModel):
    """Status of the service."""

    status: str


class Problem(BaseModel):
    """An error response. [RFC 9457]"""

    type: str
    title: str
    status: int
    detail: str

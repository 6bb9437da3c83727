"""`antipodal search`: nearest items of a collection, a store of codes or an index file."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from antipodal.cli.app import (
    TABLE,
    TABLES,
    AsJson,
    Key,
    Neighbours,
    StoreUrl,
    Threads,
    app,
    check_no_url,
    is_service,
    open_collection,
    open_existing_store,
    parse_ids,
    print_json,
)
from antipodal.errors import AntipodalError, missing_extra

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from antipodal.client import Client
    from antipodal.collection import Collection
    from antipodal.hashers.base import BaseHasher
    from antipodal.index import HammingIndex, SearchResult
    from antipodal.io.vectors import VectorFile
    from antipodal.stores import Items, Store

_BATCH_SIZE = 1024  # queries
_OVERSAMPLE = 4


class Scoring(StrEnum):
    """Ways to compare a query with codes."""

    hamming = "hamming"
    asymmetric = "asymmetric"


@app.command(epilog="Example: antipodal search docs.db queries.npy -k 5")
def search(
    context: typer.Context,
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="[COLLECTION]",
            help="Collection: a file, a store URL, or the http(s) URL of a service. Omitted with "
            "--store or --index.",
        ),
    ] = None,
    queries: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUERIES]",
            help=f"Query vectors, or packed codes: {TABLES}. Omitted with --text, --image or --id.",
        ),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="Search for this text. Repeatable. See --embed.")
    ] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option(help="Search for this image file. Repeatable. See --images."),
    ] = None,
    item: Annotated[
        list[str] | None,
        typer.Option("--id", help="Search for items similar to this one. Repeatable."),
    ] = None,
    embed: Annotated[
        str | None,
        typer.Option(
            help="Embedder of --text: module:function, or the URL of an OpenAI-compatible "
            "endpoint, http://host/v1#MODEL. A service may have its own."
        ),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            help="Features of --image: gist, pixels:8x8, pixels:HxW:TOP or module:function."
        ),
    ] = None,
    k: Neighbours = 10,
    rerank: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rerank with this oversampling factor by the cosine of kept vectors."
        ),
    ] = None,
    where: Annotated[
        str | None, typer.Option(help='Metadata filter as JSON, such as {"year": {"gte": 2000}}.')
    ] = None,
    with_metadata: Annotated[
        bool, typer.Option("--metadata", help="Print the metadata of the items.")
    ] = False,
    radius: Annotated[
        int | None,
        typer.Option(min=0, help="Return all items within this Hamming distance instead of k."),
    ] = None,
    scoring: Annotated[
        Scoring | None, typer.Option(help="Override the scoring of the model.")
    ] = None,
    key: Key = None,
    store: StoreUrl = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--index",
            callback=check_no_url,
            help="Index file to search, written by `antipodal index --out`.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Model of the codes, for an index file or a store without its model."),
    ] = None,
    vectors: Annotated[
        str | None,
        typer.Option(
            help=f"Rerank by these vectors, in the row of the item id: {TABLE}.",
        ),
    ] = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Print the nearest items of each query, one line per query.

    The model determines the scoring: estimated cosines for asymmetric models, Hamming distances
    for others.
    """
    n_sources = bool(text) + bool(image) + bool(item)
    if n_sources > 1:
        raise typer.BadParameter("pass only one of --text, --image and --id")
    target, rest = _places(context, place, queries, store, file, n_expected=1 - n_sources)
    if file is not None and (where is not None or with_metadata or item):
        raise typer.BadParameter(
            "--where, --metadata and --id are for collections: an index file has no metadata"
        )
    if radius is not None and (rerank or vectors or scoring or n_sources):
        raise typer.BadParameter(
            "--radius cannot be combined with --rerank, --vectors, --scoring, --text, --image or "
            "--id"
        )
    if embed is not None and not text:
        raise typer.BadParameter("--embed needs --text")
    if bool(image) != (images is not None):
        raise typer.BadParameter("--image and --images need each other")
    options: dict[str, Any] = {} if where is None else {"where": _parse_where(where)}
    with ExitStack() as stack:
        opened = _open(target, file, model, key, vectors, stack)
        if radius is None:
            options |= {"k": k, "rerank": rerank, "scoring": scoring and scoring.value}
            options["metadata"] = with_metadata
        if text:
            blocks = _text_queries(opened, text, embed)
        elif image:
            blocks = _image_queries(opened, image, str(images))
        elif item:
            if isinstance(opened, _Codes):
                raise typer.BadParameter("--id needs a store that contains its model")
            ids = parse_ids(item, opened.id_type)
            blocks = iter([_Block(0, {"ids": ids}, [{"id": one} for one in ids])])
        else:
            blocks = _file_queries(opened, rest[0])
        for block in blocks:
            try:
                if radius is None:
                    found = opened.search(**block.query, **options)
                else:
                    found = opened.radius(**block.query, r=radius, **options)
            except KeyError as error:  # an unknown id
                raise AntipodalError(str(error.args[0])) from None
            for row, hits in enumerate(found.by_query()):
                fields = block.labels[row] if block.labels else {}
                record = {"query": block.first + row, **fields, **_record(hits)}
                if with_metadata:
                    record["metadata"] = (
                        _metadata_of(opened, hits)
                        if found.metadata is None
                        else found.metadata[row]
                    )
                _print_record(record, as_json)


class _Block(NamedTuple):
    """Some queries: the number of the first, their argument of `search`, and their labels."""

    first: int
    query: dict[str, Any]
    labels: list[dict[str, Any]]


def _places(
    context: typer.Context,
    place: str | None,
    queries: str | None,
    store: str | None,
    file: Path | None,
    *,
    n_expected: int,
) -> tuple[str | None, list[str]]:
    """Return the collection, None for an index file, and the query file if one is expected.

    A collection takes precedence over a store URL from the environment, and so does an index file.
    """
    given = [text for text in (place, queries) if text is not None]
    source = context.get_parameter_source("store")
    is_default = source is not None and source.name == "ENVIRONMENT"
    if store is not None and not is_default and file is not None:
        raise typer.BadParameter("pass either --store URL or --index FILE")
    if file is not None:
        target = None
    elif store is not None and not (is_default and len(given) > n_expected):
        target = store
    elif given:
        target, *given = given
    else:
        raise typer.BadParameter("pass a collection, such as docs.db")
    if len(given) != n_expected:
        wanted = "a file of queries, --text or --id" if n_expected else "no file of queries"
        raise typer.BadParameter(f"expected {wanted}: got {' '.join(given) or 'none'}")
    for name in given:
        check_no_url(name)
    return target, given


def _parse_where(where: str) -> Any:
    try:
        return json.loads(where)
    except ValueError as error:
        raise typer.BadParameter(f"--where must be JSON: {error}") from error


def _open(
    target: str | None,
    file: Path | None,
    model: Path | None,
    key: str | None,
    vectors: str | None,
    stack: ExitStack,
) -> "Collection | Client | _Codes":
    """Open an index file, a service, a collection, or a store of codes with its model."""
    if is_service(target):
        if model is not None or vectors is not None:
            raise typer.BadParameter("--model and --vectors are not for services")
        service = open_collection(str(target), key)
        stack.callback(service.close)
        return service
    from antipodal.io.vectors import open_vectors

    reranking = None if vectors is None else open_vectors(vectors)
    if target is not None:
        store = stack.enter_context(open_existing_store(target))
        if model is None and not store.attachments():
            return _Codes(store, store.place, None, reranking)
        docs = _collection(store, model)
        return docs if reranking is None else _Codes(store, store.place, docs.model, reranking)
    from antipodal.index import HammingIndex

    index = HammingIndex.load(str(file))
    if model is None:
        return _Codes(index, str(file), None, reranking)
    from antipodal.hashers.registry import load_with_identity

    hasher, identity = load_with_identity(model)
    _check_model(model, hasher, identity, index, str(file))
    return _Codes(index, str(file), hasher, reranking)


def _collection(store: "Store", model: Path | None) -> "Collection":
    """Return the collection in a store, or in a store of codes of a model file."""
    from antipodal.collection import Collection
    from antipodal.collection.settings import Settings
    from antipodal.hashers.registry import load_with_identity

    if model is None:
        return Collection.of_store(store)
    hasher, identity = load_with_identity(model)
    _check_model(model, hasher, identity, store, store.place)
    settings = Settings.read(store)
    settings.check_complete(store.place)
    return Collection(store, hasher, settings, identity=identity)


def _check_model(
    model: Path, hasher: "BaseHasher", identity: str, items: "Store | HammingIndex", place: str
) -> None:
    """Raise AntipodalError if the codes belong to another model."""
    if items.model not in (None, identity):
        raise AntipodalError(
            f"{place} contains codes of another model than {model}. Distances between codes of "
            "different models are meaningless"
        )
    if hasher.n_bits != items.n_bits:
        raise AntipodalError(
            f"{model} has codes of {hasher.n_bits} bits, but {place} has codes of "
            f"{items.n_bits} bits"
        )


class _Codes:
    """Codes that are not in a collection: an index file, or a store without its model.

    Its methods are those of `Collection`. Without a model, queries are codes. With `vectors`,
    results are reranked by vectors in the rows of the item ids.
    """

    def __init__(
        self,
        items: "Store | HammingIndex",
        place: str,
        model: "BaseHasher | None",
        vectors: "VectorFile | None",
    ) -> None:
        self._items, self.place, self._model, self._vectors = items, place, model, vectors
        self.n_bits = items.n_bits
        self.n_features = None if model is None else int(model.n_features_in_)
        self.id_type = getattr(items, "id_type", "int64")

    def search(
        self,
        queries: "NDArray[Any] | None" = None,
        k: int = 10,
        *,
        codes: "NDArray[Any] | None" = None,
        where: Mapping[str, Any] | None = None,
        rerank: int | None = None,
        scoring: str | None = None,
        metadata: bool = False,
    ) -> "SearchResult":
        """Return the k nearest items of each query, without metadata."""
        from antipodal.index import SearchResult

        options: dict[str, Any] = {} if where is None else {"where": where}
        options |= self._reranking(queries, rerank)
        if queries is None or self._model is None:
            return self._items.search(codes, k, **options)
        from antipodal.collection.query import chosen_scoring

        if chosen_scoring(self._model, scoring) == "hamming":
            return self._items.search(self._model.encode(queries), k, **options)
        found = self._items.search(vectors=self._model.query(queries), k=k, **options)
        if self._vectors is not None or found.scores is None:
            return found
        scores = found.scores + self._model.score_offset(queries)[:, None]
        return SearchResult(found.ids, found.distances, scores)

    def _reranking(self, queries: "NDArray[Any] | None", rerank: int | None) -> dict[str, Any]:
        if self._vectors is None:
            if rerank is not None:
                raise ValueError(f"{self.place} keeps no vectors: rerank with --vectors FILE")
            return {}
        if queries is None or self.id_type == "string":
            raise ValueError("--vectors needs query vectors, and items with integer ids")
        import numpy as np

        from antipodal.index.rerank import Vectors

        return {
            "rescore": Vectors(queries, np.asarray(self._vectors)),
            "oversample": rerank or _OVERSAMPLE,
        }

    def radius(
        self,
        queries: "NDArray[Any] | None" = None,
        r: int = 2,
        *,
        codes: "NDArray[Any] | None" = None,
        where: Mapping[str, Any] | None = None,
    ) -> "SearchResult":
        """Return all items at Hamming distance ≤ r of each query."""
        options: dict[str, Any] = {} if where is None else {"where": where}
        if queries is not None and self._model is not None:
            from antipodal.collection.query import chosen_scoring

            chosen_scoring(self._model, "hamming")
            codes = self._model.encode(queries)
        assert codes is not None
        return self._items.radius(codes, r, **options)

    def get(self, ids: "NDArray[Any]") -> "Items":
        """Return items of a store."""
        return self._items.get(ids)  # type: ignore[union-attr]  # not of an index file


def _text_queries(
    opened: "Collection | Client | _Codes", texts: list[str], embed: str | None
) -> "Iterator[_Block]":
    from antipodal.client import Client
    from antipodal.embedding import load_embedder

    labels = [{"text": text} for text in texts]
    if embed is None and isinstance(opened, Client):
        yield _Block(0, {"texts": texts}, labels)
        return
    if embed is None:
        raise typer.BadParameter("--text needs --embed module:function or --embed URL")
    if opened.n_features is None:
        raise typer.BadParameter("--text needs --model")
    embedder = load_embedder(embed)
    try:
        yield _Block(0, {"queries": embedder(texts, opened.n_features)}, labels)
    finally:
        embedder.close()


def _image_queries(
    opened: "Collection | Client | _Codes", files: list[Path], kind: str
) -> "Iterator[_Block]":
    """Yield the features of image files, as `antipodal serve --images` computes them."""
    import numpy as np

    try:
        from antipodal.service.encoding import load_image_features
        from antipodal.service.limits import Limits
    except ImportError as error:
        raise AntipodalError(missing_extra("--image", str(error.name), "serve")) from error

    if opened.n_features is None:
        raise typer.BadParameter("--image needs --model")
    features = load_image_features(kind, opened.n_features, Limits().pixels)
    rows = []
    for file in files:
        try:
            rows.append(features(file.read_bytes()))
        except OSError as error:
            raise AntipodalError(f"cannot read {file}: {error.strerror}") from error
        except ValueError as error:
            raise AntipodalError(f"{file}: {error}") from error
    yield _Block(0, {"queries": np.concatenate(rows)}, [{"image": str(file)} for file in files])


def _file_queries(opened: "Collection | Client | _Codes", name: str) -> "Iterator[_Block]":
    """Yield the queries of a file: vectors, or packed codes if only codes have their width."""
    import numpy as np

    from antipodal.codes import code_width
    from antipodal.io.vectors import open_vectors
    from antipodal.validation import check_finite

    width = code_width(opened.n_bits)
    rows = open_vectors(name, text_dtype=np.uint8 if opened.n_features is None else np.float64)
    are_codes = opened.n_features is None
    if rows.n_features == width != opened.n_features:
        rows = open_vectors(name, text_dtype=np.uint8)
        are_codes = True
    if are_codes and (rows.dtype != np.uint8 or rows.n_features != width):
        raise AntipodalError(
            f"{name} must contain packed codes, uint8, {width} bytes per row for {opened.n_bits} "
            f"bits: got {rows.dtype} of shape {rows.shape}. Are these codes of another model, or "
            "vectors that need --model?"
        )
    if not are_codes and rows.n_features != opened.n_features:
        raise ValueError(
            f"{name} has {rows.n_features} features per row, {opened.place} expects "
            f"{opened.n_features}. Are these vectors of another embedding model?"
        )
    done = 0
    for block in rows.blocks(_BATCH_SIZE):
        if not are_codes:
            check_finite(block, name, done + np.arange(len(block)))
        yield _Block(done, {"codes" if are_codes else "queries": block}, [])
        done += len(block)


def _record(hits: "SearchResult") -> dict[str, Any]:
    """Return ids and scores of one query, or distances of a Hamming search."""
    if hits.scores is None:
        return {"ids": hits.ids.tolist(), "distances": hits.distances.tolist()}
    return {"ids": hits.ids.tolist(), "scores": [round(s, 6) for s in hits.scores.tolist()]}


def _metadata_of(
    opened: "Collection | Client | _Codes", hits: "SearchResult"
) -> list[dict[str, Any]]:
    items = opened.get(hits.ids)
    found = dict(zip(items.ids.tolist(), items.metadata, strict=True))
    return [found.get(number, {}) for number in hits.ids.tolist()]


def _print_record(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(record)
        return
    if "scores" in record:
        values = [f"{score:.3f}" for score in record["scores"]]
    else:
        values = list(map(str, record["distances"]))
    name = next(record[key] for key in ("text", "image", "id", "query") if key in record)
    if record["ids"] and "metadata" in record:
        typer.echo(name)
        for i, value, fields in zip(record["ids"], values, record["metadata"], strict=True):
            shown = "; ".join(f"{key}: {_written(field)}" for key, field in fields.items())
            typer.echo(f"  {value}  {i}{shown and '  '}{shown}")
        return
    hits = ", ".join(f"{i} ({value})" for i, value in zip(record["ids"], values, strict=True))
    typer.echo(f"{name}: {hits or 'no items'}")


def _written(value: Any) -> str:
    if isinstance(value, str) and value.startswith("data:"):  # a picture
        return f"{value.partition(',')[0]},… ({len(value):,} characters)"
    if isinstance(value, str) and value.isprintable():
        return value
    return json.dumps(value, ensure_ascii=False)

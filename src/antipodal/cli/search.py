"""`antipodal search`: nearest items in a store or index file."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antipodal.cli.app import (
    TABLE,
    TABLES,
    AsJson,
    StoreUrl,
    app,
    check_features,
    check_no_url,
    chosen_store,
    open_existing_store,
    print_json,
)
from antipodal.errors import AntipodalError

if TYPE_CHECKING:
    from antipodal.hashers.base import BaseHasher
    from antipodal.index import HammingIndex, SearchResult
    from antipodal.io.vectors import VectorFile
    from antipodal.stores import Store


_BATCH_SIZE = 1024  # queries


@app.command(
    epilog="Example: antipodal search queries.npy --model model.antipodal --store "
    "sqlite:///items.db -k 5"
)
def search(
    context: typer.Context,
    queries: Annotated[
        str,
        typer.Argument(
            callback=check_no_url, help=f"Features with --model, otherwise packed codes: {TABLES}."
        ),
    ],
    store: StoreUrl = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--index",
            callback=check_no_url,
            help="Index file to search, written by `antipodal index --out`.",
        ),
    ] = None,
    model: Annotated[Path | None, typer.Option(help="Model that encodes the queries.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of neighbours per query.")] = 10,
    radius: Annotated[
        int | None,
        typer.Option(min=0, help="Return all items within this Hamming distance instead of k."),
    ] = None,
    where: Annotated[
        str | None, typer.Option(help='Metadata filter as JSON, such as {"year": {"gte": 2000}}.')
    ] = None,
    rescore: Annotated[
        str | None,
        typer.Option(
            help="Rerank with 4× oversampling: `project` uses float queries and codes, "
            f"{TABLE} the cosine of vectors, in the row of the item id. Needs --model."
        ),
    ] = None,
    asymmetric: Annotated[
        bool,
        typer.Option(
            "--asymmetric",
            help="Asymmetric search: float queries against binary codes. Needs --model.",
        ),
    ] = False,
    with_metadata: Annotated[
        bool, typer.Option("--metadata", help="Print the metadata of the items.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the nearest items of each query, or all within a radius, one line per query."""
    store = chosen_store(context, store, file, "--index")
    if file is not None and (where is not None or with_metadata):
        raise typer.BadParameter(
            "--where and --metadata are for stores: an index file has no metadata"
        )
    if rescore is not None and (model is None or radius is not None):
        raise typer.BadParameter("--rescore needs --model, and excludes --radius")
    if asymmetric and (model is None or radius is not None or rescore is not None):
        raise typer.BadParameter("--asymmetric needs --model, and excludes --radius and --rescore")
    condition = None
    if where is not None:
        try:
            condition = json.loads(where)
        except ValueError as error:
            raise typer.BadParameter(f"--where must be JSON: {error}") from error
    import numpy as np

    from antipodal.index.rerank import Vectors
    from antipodal.io.vectors import open_vectors

    rows = open_vectors(queries, text_dtype=np.uint8 if model is None else np.float64)
    hasher: BaseHasher | None = None
    if model is not None:
        # Importing PyTorch takes seconds, and is not needed to search with codes.
        from antipodal.hashers.registry import load

        hasher = load(model)
        check_features(rows, queries, hasher, model)
    vectors = None if rescore in (None, "project") else np.asarray(open_vectors(str(rescore)))
    with ExitStack() as stack:
        target, place = _open(store, file, model, stack)
        if hasher is None:
            _check_codes(rows, queries, target.n_bits, place)
        elif hasher.n_bits != target.n_bits:
            raise AntipodalError(
                f"{model} makes codes of {hasher.n_bits} bits, {place} contains codes of "
                f"{target.n_bits} bits"
            )
        options: dict[str, Any] = {} if condition is None else {"where": condition}
        done = 0
        for block in rows.blocks(_BATCH_SIZE):
            packed = block if hasher is None or asymmetric else hasher.encode(block)
            if radius is not None:
                found = target.radius(packed, radius, **options)
            elif hasher is not None and asymmetric:
                found = target.search(vectors=hasher.query(block), k=k, **options)
            else:
                if hasher is not None and rescore is not None:
                    options["rescore"] = (
                        hasher.query(block) if vectors is None else Vectors(block, vectors)
                    )
                found = target.search(packed, k, **options)
            for row, hits in enumerate(found.by_query(), start=done):
                _print_hits(row, hits, target if with_metadata else None, as_json)
            done += len(block)


def _open(
    store: str | None, file: Path | None, model: Path | None, stack: ExitStack
) -> "tuple[Store | HammingIndex, str]":
    """Open the store or index file, and return it with its name."""
    if store is None:
        from antipodal.index import HammingIndex

        index = HammingIndex.load(str(file))
        _check_model(index.model, str(file), model)
        return index, str(file)
    opened = stack.enter_context(open_existing_store(store))
    _check_model(opened.model, opened.place, model)
    return opened, opened.place


def _check_model(identity: str | None, place: str, model: Path | None) -> None:
    """Raise AntipodalError if the codes are known to be of another model."""
    from antipodal.io.model_file import model_identity

    if model is not None and identity not in (None, model_identity(model)):
        raise AntipodalError(
            f"{place} contains codes of another model than {model}. Distances between codes of "
            "different models are meaningless"
        )


def _check_codes(rows: "VectorFile", queries: str, n_bits: int, place: str) -> None:
    """Raise AntipodalError if the queries are not codes of this length."""
    from antipodal.codes import code_width

    if rows.dtype != "uint8":
        raise AntipodalError(
            f"{queries} contains {rows.dtype}, expected codes of type uint8. "
            "Pass --model to encode features"
        )
    width = code_width(n_bits)
    if rows.n_features != width:
        raise AntipodalError(
            f"{place} contains codes of {n_bits} bits, {width} bytes per row: {queries} has shape "
            f"{rows.shape}. Are these codes of another model, or features that need --model?"
        )


def _print_hits(row: int, hits: "SearchResult", store: Any, as_json: bool) -> None:
    record = {"query": row, "ids": hits.ids.tolist(), "distances": hits.distances.tolist()}
    if hits.scores is not None:
        record["scores"] = [round(score, 6) for score in hits.scores.tolist()]
    if store is not None:
        record["metadata"] = store.get(hits.ids).metadata
    if as_json:
        print_json(record)
        return
    hits_text = ", ".join(
        f"{i} ({d})" for i, d in zip(record["ids"], record["distances"], strict=True)
    )
    typer.echo(f"{row}: {hits_text or 'no items'}")
    for i, value in zip(record["ids"], record.get("metadata", []), strict=False):
        typer.echo(f"    {i}: {json.dumps(value, ensure_ascii=False)}")

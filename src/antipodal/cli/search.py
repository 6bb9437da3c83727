"""`antipodal search`."""

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
    check_no_url,
    chosen_store,
    open_known_store,
    print_json,
)
from antipodal.errors import AntipodalError

if TYPE_CHECKING:
    from antipodal.hashers.base import BaseHasher
    from antipodal.index import HammingIndex, SearchResult
    from antipodal.io.vectors import VectorFile
    from antipodal.stores import Store


_QUERIES_AT_ONCE = 1024


@app.command(
    epilog="Example: antipodal search queries.npy --model model.antipodal --store "
    "sqlite:///items.db -k 5"
)
def search(
    context: typer.Context,
    queries: Annotated[
        str,
        typer.Argument(callback=check_no_url, help=f"Features with --model, else codes: {TABLES}."),
    ],
    store: StoreUrl = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--index", callback=check_no_url, help="Or an index file, by `antipodal index --out`."
        ),
    ] = None,
    model: Annotated[Path | None, typer.Option(help="That makes codes of the features.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Nearest items of each query.")] = 10,
    radius: Annotated[
        int | None, typer.Option(min=0, help="All items within this distance, in place of k.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(help='Filter of a store, JSON: {"year": {"gte": 2000}}.')
    ] = None,
    rescore: Annotated[
        str | None,
        typer.Option(
            help="Order 4k candidates by the query's real values (project, with --model), or by "
            f"the cosine of the features with those of the items, in the row of their id: {TABLE}."
        ),
    ] = None,
    asymmetric: Annotated[
        bool,
        typer.Option(
            "--asymmetric",
            help="Compare the query's real values with all codes, in place of its bits: --model.",
        ),
    ] = False,
    with_metadata: Annotated[
        bool, typer.Option("--metadata", help="Print the items' metadata too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find the nearest items of each query, or all within a radius; one line per query."""
    store = chosen_store(context, store, file, "--index")
    if file is not None and (where is not None or with_metadata):
        raise typer.BadParameter("--where and --metadata are for stores: a file has no metadata")
    if rescore is not None and (model is None or radius is not None):
        raise typer.BadParameter("--rescore needs --model, and is for the k nearest")
    if asymmetric and (model is None or radius is not None or rescore is not None):
        raise typer.BadParameter("--asymmetric needs --model, and is for the k nearest, in order")
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
        from antipodal.hashers.registry import (
            load,
        )  # PyTorch comes along: seconds that codes need not wait

        hasher = load(model)
    vectors = None if rescore in (None, "project") else np.asarray(open_vectors(str(rescore)))
    with ExitStack() as stack:
        target, place = _open(store, file, model, stack)
        if hasher is None:
            _check_codes(rows, queries, target.n_bits, place)
        elif hasher.n_bits != target.n_bits:
            raise AntipodalError(
                f"{model} makes codes of {hasher.n_bits} bits, {place} keeps codes of "
                f"{target.n_bits}"
            )
        options: dict[str, Any] = {} if condition is None else {"where": condition}
        done = 0
        for block in rows.blocks(_QUERIES_AT_ONCE):
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
    """Return what is to be searched, and its name."""
    if store is None:
        from antipodal.index import HammingIndex

        index = HammingIndex.load(str(file))
        _check_model(index.model, str(file), model)
        return index, str(file)
    opened = stack.enter_context(open_known_store(store))
    _check_model(opened.model, opened.place, model)
    return opened, opened.place


def _check_model(kept: str | None, place: str, model: Path | None) -> None:
    """Refuse to compare codes of this model with those of another, where that is known."""
    from antipodal.io.model_file import model_identity

    if model is not None and kept not in (None, model_identity(model)):
        raise AntipodalError(
            f"{place} keeps codes of another model than {model}: distances between codes of "
            "different models mean nothing"
        )


def _check_codes(rows: "VectorFile", queries: str, n_bits: int, place: str) -> None:
    """Refuse queries that are not codes, or not of the length that is searched."""
    from antipodal.codes import code_width

    if rows.dtype != "uint8":
        raise AntipodalError(
            f"{queries} holds {rows.dtype}, not codes, which are uint8. If these are features, "
            "give --model to encode them"
        )
    width = code_width(n_bits)
    if rows.n_features != width:
        raise AntipodalError(
            f"{place} keeps codes of {n_bits} bits, {width} bytes per row: {queries} has shape "
            f"{rows.shape}. Are they codes of another model, or features that need --model?"
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
    near = ", ".join(f"{i} ({d})" for i, d in zip(record["ids"], record["distances"], strict=True))
    typer.echo(f"{row}: {near or 'nothing'}")
    for i, value in zip(record["ids"], record.get("metadata", []), strict=False):
        typer.echo(f"    {i}: {json.dumps(value, ensure_ascii=False)}")

"""`antipodal index` and `search`."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antipodal.cli.app import ARRAY, AsJson, app, print_json
from antipodal.cli.progress import bar
from antipodal.errors import AntipodalError
from antipodal.storage.files import check_writable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from antipodal.hashers import BaseHasher
    from antipodal.stores import Store

_BATCH = 50_000  # items in one transaction
_QUERIES_AT_ONCE = 1024
_STATS_QUERIES, _STATS_K = 1000, 10
_URL = "sqlite:///FILE, postgresql://…, milvus:///FILE or milvus+http://…"


class IndexEngine(StrEnum):
    """How an index file is searched."""

    flat = "flat"
    ivf = "ivf"
    hnsw = "hnsw"


@app.command()
def index(
    codes: Annotated[str, typer.Argument(help=f"Packed codes: {ARRAY}.")],
    store: Annotated[str | None, typer.Option(help=f"Where items go: {_URL}.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Or an index file, without metadata.")
    ] = None,
    ids: Annotated[
        str | None, typer.Option(help=f"An id a code, 0, 1, … if none: {ARRAY}.")
    ] = None,
    metadata: Annotated[
        Path | None, typer.Option(help="A JSON object a code, one a line; for stores.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="That made the codes: the store will refuse others'.")
    ] = None,
    bits: Annotated[
        int | None, typer.Option(min=1, help="Of a code; otherwise the model's, or whole bytes.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Pass over the items that are in the store already.")
    ] = False,
    engine: Annotated[
        IndexEngine, typer.Option(help="Of an index file: ivf and hnsw may miss items.")
    ] = IndexEngine.flat,
    stats: Annotated[
        bool, typer.Option("--stats", help="Measure the recall of searches in the index file.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put codes into a store, batch by batch, or into an index file."""
    if (store is None) == (out is None):
        raise typer.BadParameter("give --store URL or --out FILE")
    if store is None and (metadata is not None or resume):
        raise typer.BadParameter("--metadata and --resume are for stores")
    if store is not None and (stats or engine is not IndexEngine.flat):
        raise typer.BadParameter("--engine and --stats are for index files: stores are exact")
    if out is not None:
        check_writable(out)
    import numpy as np

    from antipodal.storage.arrays import read_array

    rows = read_array(codes)
    if rows.ndim != 2:
        raise ValueError(f"{codes} must hold a code a row: got shape {rows.shape}")
    numbers = np.arange(len(rows)) if ids is None else read_array(ids)
    if numbers.shape != (len(rows),):
        raise ValueError(
            f"{ids} must hold an id for each of {len(rows)} codes: got {numbers.shape}"
        )
    identity, n_bits = _described(model, bits, rows)
    began = time.perf_counter()
    if out is None:
        items = _fill_store(str(store), rows, numbers, metadata, n_bits, identity, resume)
        record: dict[str, Any] = {"store": store, "items": items}
    else:
        record = _write_index(out, rows, numbers, n_bits, engine, stats)
    seconds = time.perf_counter() - began
    record |= {"bits": n_bits, "added": len(rows), "seconds": round(seconds, 3)}
    if as_json:
        print_json(record)
        return
    typer.echo(f"{store or out}: {record['items']:,} items of {n_bits} bits, in {seconds:.1f} s")
    if "recall" in record:
        typer.echo(
            f"recall of the {_STATS_K} nearest, for {record['queries']} of the codes: "
            f"{record['recall']:.2f} %"
        )


@app.command()
def search(
    queries: Annotated[str, typer.Argument(help=f"Features with --model, else codes: {ARRAY}.")],
    store: Annotated[str | None, typer.Option(help=f"To search: {_URL}.")] = None,
    file: Annotated[
        Path | None, typer.Option("--index", help="Or an index file, by `antipodal index --out`.")
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
            f"the cosine of the features with those of the items, in the row of their id: {ARRAY}."
        ),
    ] = None,
    with_metadata: Annotated[
        bool, typer.Option("--metadata", help="Print the items' metadata too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find the nearest items of each query, or all within a radius; one line a query."""
    if (store is None) == (file is None):
        raise typer.BadParameter("give --store URL or --index FILE")
    if file is not None and (where is not None or with_metadata):
        raise typer.BadParameter("--where and --metadata are for stores: a file has no metadata")
    if rescore is not None and (model is None or radius is not None):
        raise typer.BadParameter("--rescore needs --model, and is for the k nearest")
    condition = None
    if where is not None:
        try:
            condition = json.loads(where)
        except ValueError as error:
            raise typer.BadParameter(f"--where must be JSON: {error}") from error
    from antipodal.index import HammingIndex
    from antipodal.index.rescore import Vectors
    from antipodal.storage.arrays import read_array
    from antipodal.storage.modelfile import model_identity
    from antipodal.stores import open_store

    rows = read_array(queries)
    hasher: BaseHasher | None = None
    if model is not None:
        from antipodal.hashers import load  # PyTorch comes along: seconds that codes need not wait

        hasher = load(model)
    vectors = None if rescore in (None, "project") else read_array(str(rescore))
    with ExitStack() as stack:
        target: Store | HammingIndex
        if store is None:
            target = HammingIndex.load(str(file))
        else:
            target = stack.enter_context(open_store(store))
            if model is not None and target.model not in (None, model_identity(model)):
                raise AntipodalError(
                    f"{store} keeps codes of another model than {model}: distances between "
                    "codes of different models mean nothing"
                )
        if hasher is not None and hasher.n_bits != target.n_bits:
            raise AntipodalError(
                f"{model} makes codes of {hasher.n_bits} bits, {store or file} keeps codes of "
                f"{target.n_bits}"
            )
        options: dict[str, Any] = {} if condition is None else {"where": condition}
        for start in range(0, len(rows), _QUERIES_AT_ONCE):
            block = rows[start : start + _QUERIES_AT_ONCE]
            packed = block if hasher is None else hasher.encode(block)
            if radius is not None:
                ball = target.radius(packed, radius, **options)
                cuts = list(zip(ball.offsets[:-1].tolist(), ball.offsets[1:].tolist(), strict=True))
                found = [(ball.ids[a:b], ball.distances[a:b], None) for a, b in cuts]
            else:
                if rescore is not None and hasher is not None:
                    options["rescore"] = (
                        hasher.project(block) if vectors is None else Vectors(block, vectors)
                    )
                near = target.search(packed, k, **options)
                scores = [None] * len(near.ids) if near.scores is None else near.scores
                found = list(zip(near.ids, near.distances, scores, strict=True))
            for row, hits in enumerate(found, start=start):
                _print_hits(row, hits, target if with_metadata else None, as_json)


def _described(
    model: Path | None, bits: int | None, rows: "NDArray[Any]"
) -> tuple[str | None, int]:
    """Return the identity of the model, if any, and the length of the codes."""
    if model is None:
        return None, bits or 8 * rows.shape[1]
    from antipodal.hashers import load
    from antipodal.storage.modelfile import model_identity

    n_bits = load(model).n_bits
    if bits not in (None, n_bits):
        raise typer.BadParameter(f"{model} makes codes of {n_bits} bits, not {bits}")
    return model_identity(model), n_bits


def _fill_store(
    url: str,
    rows: "NDArray[Any]",
    ids: "NDArray[np.int64]",
    metadata: Path | None,
    n_bits: int,
    identity: str | None,
    resume: bool,
) -> int:
    from antipodal.stores import open_store

    with ExitStack() as stack:
        store = stack.enter_context(open_store(url, n_bits=n_bits, model=identity))
        objects = None
        if metadata is not None:
            objects = _json_lines(stack.enter_context(metadata.open(encoding="utf-8")), metadata)
        done = _already_there(store, ids, rows) if resume else 0
        if objects is not None:
            next(islice(objects, done, done), None)
        show = stack.enter_context(bar("items"))
        show(done, len(rows))

        def progress(n: int) -> None:
            show(done + n, len(rows))
            if not sys.stderr.isatty():
                typer.echo(f"{done + n:,} of {len(rows):,} items", err=True)

        store.load(ids[done:], rows[done:], objects, batch_size=_BATCH, progress=progress)
        if objects is not None and next(objects, None) is not None:
            raise AntipodalError(f"{metadata} has more lines than there are codes, {len(rows)}")
        return store.count()


def _already_there(store: "Store", ids: "NDArray[np.int64]", rows: "NDArray[Any]") -> int:
    """Return how many items, in whole batches from the first on, the store has as they are here.

    A batch is kept whole or not at all, so its last item speaks for it.
    """
    for start in range(0, len(rows), _BATCH):
        last = min(start + _BATCH, len(rows)) - 1
        found = store.get(ids[last : last + 1]).codes
        if len(found) != 1 or (found[0] != rows[last]).any():
            return start
    return len(rows)


def _json_lines(lines: Iterator[str], path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise AntipodalError(f"{path}, line {number} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise AntipodalError(f"{path}, line {number} must be a JSON object: got {line[:60]!r}")
        yield value


def _write_index(
    out: Path,
    rows: "NDArray[Any]",
    ids: "NDArray[np.int64]",
    n_bits: int,
    engine: IndexEngine,
    stats: bool,
) -> dict[str, Any]:
    import numpy as np

    from antipodal.index import HammingIndex

    index = HammingIndex(n_bits, engine=engine)
    index.add(rows, ids)
    index.save(out)
    record: dict[str, Any] = {"index": str(out), "items": len(index), "engine": engine.value}
    if stats:
        chosen = np.random.default_rng(0).permutation(len(rows))[:_STATS_QUERIES]
        queries = np.ascontiguousarray(rows[np.sort(chosen)])
        recall = 100 * index.recall(queries, _STATS_K)
        record |= {"queries": len(queries), "k": _STATS_K, "recall": round(recall, 4)}
    return record


def _print_hits(row: int, hits: tuple[Any, Any, Any], store: Any, as_json: bool) -> None:
    ids, distances, scores = hits
    record = {"query": row, "ids": ids.tolist(), "distances": distances.tolist()}
    if scores is not None:
        record["scores"] = [round(score, 6) for score in scores.tolist()]
    if store is not None:
        record["metadata"] = store.get(ids).metadata
    if as_json:
        print_json(record)
        return
    near = ", ".join(f"{i} ({d})" for i, d in zip(record["ids"], record["distances"], strict=True))
    typer.echo(f"{row}: {near or 'nothing'}")
    for i, value in zip(record["ids"], record.get("metadata", []), strict=False):
        typer.echo(f"    {i}: {json.dumps(value, ensure_ascii=False)}")

"""`antipodal info`: describe any file that antipodal writes."""

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from antipodal.cli import outputs
from antipodal.cli.app import AsJson, app, check_no_url, print_json
from antipodal.cli.outputs import signature_kind
from antipodal.errors import AntipodalError, missing_extra

Facts = dict[str, Any]


def describe(path: Path) -> Facts:
    """Return the description of a file or folder; raise AntipodalError if it is damaged or unknown.

    `kind` is its kind, `antipodal` the version that wrote it, and `model` the identity of its
    model. Values that the file does not record are None.
    """
    if path.is_dir():
        return {"file": str(path), **_folder(path)}
    try:
        with path.open("rb") as file:
            start = file.read(100)
    except OSError as error:
        raise AntipodalError(f"cannot read {path}: {error.strerror or error}") from error
    if not start:
        raise AntipodalError(f"{path} is empty")
    return {"file": str(path), **_reader(path, start)(path), "bytes": path.stat().st_size}


def _reader(path: Path, start: bytes) -> Callable[[Path], Facts]:
    try:
        return _READERS[signature_kind(path, start)]
    except KeyError:
        raise AntipodalError(f"{path} is not an antipodal file, or its header is damaged") from None


def _model_file(path: Path) -> Facts:
    from antipodal.io.model_file import open_model_file

    kind, identity, header, arrays = open_model_file(path)
    if kind == "hasher":
        parameters, fitted = _object(header, "parameters"), _object(header, "fitted")
        return {
            "kind": "model",
            "antipodal": header.get("antipodal"),
            "method": header.get("class"),
            "bits": parameters.pop("n_bits", None),
            "features": fitted.get("n_features_in_"),
            "model": identity,
            "parameters": parameters,
        }
    if kind == "checkpoint":
        history = _object(header, "history")
        losses = history.get("loss") or []
        return {
            "kind": kind,
            "antipodal": header.get("antipodal"),
            "epochs": len(losses),
            "loss": losses[-1] if losses else None,
            "best_epoch": history.get("best_epoch"),
            "run": header.get("run"),
        }
    # a vocabulary of visual words, or image features
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    return {"kind": kind, "antipodal": None, **shapes, "parameters": header}


def _object(header: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = header.get(name)
    return dict(value) if isinstance(value, dict) else {}


def _index(path: Path) -> Facts:
    from antipodal.index.index_file import read_index_file

    about, items, _, tables = read_index_file(path)
    return {
        "kind": "index",
        "antipodal": None,
        "bits": about.n_bits,
        "items": len(items),
        "engine": about.engine,
        "table_bands": 0 if tables is None else tables.n_bands,
        "model": about.model,
    }


def _store(path: Path) -> Facts:
    from antipodal.stores.sqlite import SqliteStore
    from antipodal.stores.url import Address

    name = os.fspath(path)
    with SqliteStore(Address("sqlite", name, {}, name), n_bits=None, model=None) as store:
        if not store.attachments():
            return {
                "kind": "store",
                "antipodal": store.antipodal,
                "bits": store.n_bits,
                "items": store.count(),  # reads and verifies all items
                "model": store.model,
            }
        from antipodal.cli.build import describe_collection
        from antipodal.collection import Collection

        facts = describe_collection(Collection.of_store(store))
        del facts["collection"]
        return {"kind": "collection", "antipodal": store.antipodal, **facts}


def _array(path: Path) -> Facts:
    from antipodal.io.numpy_files import read_array

    array = read_array(str(path))
    shape = {"shape": list(array.shape), "dtype": str(array.dtype)}
    if array.dtype != "uint8" or array.ndim != 2:
        return {"kind": "array", "antipodal": None, **shape}
    n_rows, width = array.shape
    return {"kind": "codes", "antipodal": None, "rows": n_rows, "bits": 8 * width, "model": None}


def _split(path: Path) -> Facts:
    from antipodal.datasets import Split

    split = Split.load(path)
    sizes = {name: len(getattr(split, name)) for name in ("train", "query", "database")}
    return {"kind": "split", "antipodal": None, **sizes}


def _parquet(path: Path) -> Facts:
    """Describe a file written by `store export`, or one file of a folder of codes."""
    from antipodal.io.formats import find_format
    from antipodal.stores.transfer import read_export_facts

    try:
        from antipodal.io.tables import ParquetTable
    except ImportError as error:
        raise AntipodalError(missing_extra(f"reading {path}", "pyarrow", "arrow")) from error
    table = ParquetTable(find_format(str(path)))
    exported = read_export_facts(table.schema().metadata)
    if exported is not None:
        return {"kind": "export", **exported, "items": table.count(["id"])}
    from antipodal.bulk.manifest import read_contents

    place = path.absolute()
    for folder in place.parents:
        found = read_contents(folder)
        if found is None:
            continue
        name = place.relative_to(folder).as_posix()
        rows = next((r.rows for r in found.records if r.name == name), None)
        if rows is not None:
            return {"kind": "codes", **_of_run(found.about), "rows": rows, "folder": str(folder)}
    raise AntipodalError(f"{path} is a parquet file, but was not written by antipodal")


def _folder(path: Path) -> Facts:
    try:
        from antipodal.bulk.manifest import read_contents
    except ImportError as error:
        message = missing_extra("reading a folder of codes", str(error.name), "arrow")
        raise AntipodalError(message) from error
    found = read_contents(path)
    if found is None:
        raise AntipodalError(
            f"{path} is a folder without a manifest of codes. `antipodal store list {path}` lists "
            "the stores in it"
        )
    changed = [r.name for r in found.records if not _has_size(path / r.name, r.bytes)]
    return {
        "kind": "folder of codes",
        **_of_run(found.about),
        "rows": sum(record.rows for record in found.records),
        "files": len(found.records),
        "finished": found.is_finished,
        "missing_or_changed": changed,
    }


def _has_size(file: Path, n_bytes: int) -> bool:
    return file.is_file() and file.stat().st_size == n_bytes


def _of_run(about: Mapping[str, Any]) -> Facts:
    return {name: about.get(name) for name in ("antipodal", "method", "bits", "model", "vectors")}


def _onnx(path: Path) -> Facts:
    try:
        import onnx
    except ImportError as error:
        raise AntipodalError(
            missing_extra("reading an ONNX model", str(error.name), "onnx")
        ) from error
    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf errors have no common class
        raise AntipodalError(f"{path} is truncated or damaged: {error}") from error
    about = {entry.key: entry.value for entry in model.metadata_props}
    if model.producer_name != "antipodal":
        raise AntipodalError(f"{path} is an ONNX model, but was not written by antipodal")
    return {
        "kind": "ONNX model",
        "antipodal": about.get("antipodal"),
        "method": about.get("class"),
        "bits": int(about["bits"]) if about.get("bits", "").isdecimal() else None,
        "features": int(about["features"]) if about.get("features", "").isdecimal() else None,
        "model": about.get("model"),
        "data_licence": about.get("data_licence"),
    }


def _records(path: Path) -> Facts:
    if path.name in ("_manifest.json", "_progress.jsonl"):
        return _folder(path.parent)
    from antipodal.bench.comparison import COMMANDS, read_run

    run = read_run(path)
    facts: Facts = {
        "kind": f"records of `{COMMANDS[run.kind]}`",
        "antipodal": _distinct(run.records, "antipodal"),
        "records": len(run.records),
    }
    for name in ("dataset", "method", "bits", "seed", "search", "metric"):
        if any(name in record for record in run.records):
            facts[name] = _distinct(run.records, name)
    return facts


def _distinct(records: list[dict[str, Any]], name: str) -> Any:
    """Return the common value of all records, or the list of values if they differ."""
    values = list(dict.fromkeys(record[name] for record in records if name in record))
    return values if len(values) > 1 else values[0] if values else None


def _report(path: Path) -> Facts:
    written = re.search(r"Written by antipodal ([\w.+]+)\.</p></body></html>\s*$", path.read_text())
    title = re.search(r"<title>(.*?)</title>", path.read_text())
    if written is None or title is None:
        raise AntipodalError(f"{path} is HTML, but not a complete antipodal report")
    return {"kind": "report", "antipodal": written[1], "title": title[1]}


_READERS: dict[str, Callable[[Path], Facts]] = {
    outputs.MODEL: _model_file,
    outputs.INDEX: _index,
    outputs.STORE: _store,
    outputs.ARRAY: _array,
    outputs.ARCHIVE: _split,
    outputs.PARQUET: _parquet,
    outputs.ONNX: _onnx,
    outputs.RECORDS: _records,
    outputs.HTML: _report,
}


_LABELS = {
    "antipodal": "written by antipodal",
    "model": "model identity",
    "run": "run identity",
    "id_type": "type of ids",
    "keep_vectors": "kept vectors",
    "data_licence": "data licence",
    "table_bands": "bands of radius tables",
    "missing_or_changed": "missing or changed files",
}
_UNKNOWN = "unknown"


@app.command(epilog="Example: antipodal info model.antipodal")
def info(
    file: Annotated[
        Path,
        typer.Argument(callback=check_no_url, help="File or folder written by antipodal."),
    ],
    as_json: AsJson = False,
) -> None:
    """Describe a file written by antipodal: its kind, version, contents and model.

    Supported kinds: models, index files, SQLite stores and backups, codes and folders of codes,
    exports, checkpoints, records, ONNX models, splits and reports. Checksums are verified.
    """
    facts = describe(file)
    if as_json:
        print_json(facts)
        return
    name, kind = facts.pop("file"), facts.pop("kind")
    typer.echo(f"{name}: {kind}")
    parameters = facts.pop("parameters", {})
    if "keep_vectors" in facts:  # recorded, so None is not unknown
        facts["keep_vectors"] = facts["keep_vectors"] or "none"
    lines = {_LABELS.get(key, key.replace("_", " ")): _shown(value) for key, value in facts.items()}
    lines |= {f"parameter {key}": json.dumps(value) for key, value in parameters.items()}
    width = max(map(len, lines))
    for key, text in lines.items():
        typer.echo(f"  {key:{width}}  {text}")


def _shown(value: Any) -> str:
    if value is None:
        return _UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value)

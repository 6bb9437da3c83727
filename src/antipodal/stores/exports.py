"""A store as one parquet file: id, code and metadata, in the order of the ids.

The same items make the same file, byte by byte, whatever engine they come from.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from antipodal import __version__
from antipodal.codes import code_width
from antipodal.errors import StoreError, missing_extra
from antipodal.storage.files import replacing
from antipodal.stores.batching import resized
from antipodal.stores.digest import ItemsDigest, canonical
from antipodal.stores.metadata import parse_metadata
from antipodal.stores.snapshot import ItemBatch
from antipodal.stores.store import Store

_ROWS = 2**16  # of a row group
_ABOUT = b"antipodal"  # the key of what the file says of itself
_OWN = ("id", "code", "metadata")
_EXACT = 2**53  # integers up to this are doubles as well


class Export(NamedTuple):
    """What was exported: how many items, and their digest, which every copy of them has."""

    items: int
    sha256: str


def export_items(
    store: Store,
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] = (),
    progress: Callable[[int], None] = lambda done: None,
) -> Export:
    """Write all items of a store, as they are now, to a parquet file: whole or not at all.

    Its columns are `id` (int64), `code` (fixed-size binary), one for each field of the metadata
    that is asked for, and `metadata`, the whole of them as JSON, fields by name. A block of items
    is in memory, whatever their number.

    Parameters
    ----------
    columns : sequence of str
        Fields of the metadata that become columns: of integers, doubles, truth values or strings
        where all items that have one agree on it, otherwise of JSON. Where an item has no such
        field there is null.
    progress : callable
        Called with the number of items written.

    Raises
    ------
    StoreError
        The path is a file of the store itself, or the store was written to during the export.
    """
    store.check_not_own_file(path)
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise StoreError(missing_extra("an export", str(error.name), "arrow")) from error
    if len({*columns, *_OWN}) < len(columns) + len(_OWN):
        raise ValueError(f"columns must be different, and other than {', '.join(_OWN)}: {columns}")
    digest, n_written = ItemsDigest(store.n_bits), 0
    about = {"antipodal": __version__, "bits": store.n_bits, "model": store.model}
    with replacing(path) as file, store.item_batches() as batches:
        kinds = _kinds(batches, columns, store.place)
        types = {"id": pa.int64(), "code": pa.binary(code_width(store.n_bits))}
        types |= {name: pa.type_for_alias(kind) for name, kind in kinds.items()}
        fields = [pa.field(name, kind, name not in _OWN) for name, kind in types.items()]
        fields.append(pa.field("metadata", pa.string(), nullable=False))
        schema = pa.schema(fields, {_ABOUT: json.dumps(about).encode()})
        with pq.ParquetWriter(file, schema, use_dictionary=False) as writer:
            for batch in resized(digest.through(batches()), _ROWS):
                try:
                    writer.write_batch(_arrow_batch(pa, schema, batch, columns))
                except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                    raise StoreError(
                        f"{store.place} was written while it was exported: try again"
                    ) from error
                n_written += len(batch.ids)
                progress(n_written)
    return Export(digest.items, digest.sha256)


def _kinds(
    batches: Callable[[], Iterator[ItemBatch]], columns: Sequence[str], place: str
) -> dict[str, str]:
    """Look through all items for the type of each field that becomes a column."""
    if not columns:
        return {}
    seen: dict[str, set[Any]] = {name: set() for name in columns}
    for batch in batches():
        for text in batch.texts:
            fields = parse_metadata(text)
            for name in columns:
                value = fields.get(name)
                if value is not None:
                    is_large = type(value) is int and abs(value) > _EXACT
                    seen[name].add("large" if is_large else type(value))
    for name, found in seen.items():
        if not found:
            raise ValueError(f"no item of {place} has the field {name!r}")
    kinds: dict[str, set[Any]] = {
        "int64": {int, "large"},
        "float64": {int, float},
        "bool": {bool},
        "string": {str},
    }
    return {
        name: next((kind for kind, allowed in kinds.items() if found <= allowed), "string")
        for name, found in seen.items()
    }


def _arrow_batch(pa: Any, schema: Any, batch: ItemBatch, columns: Sequence[str]) -> Any:
    codes = np.ascontiguousarray(batch.codes)
    arrays = [
        pa.array(batch.ids),
        pa.Array.from_buffers(schema.field("code").type, len(codes), [None, pa.py_buffer(codes)]),
    ]
    objects = [parse_metadata(text) for text in batch.texts]
    for name in columns:
        kind = schema.field(name).type
        values = [fields.get(name) for fields in objects]
        if kind == pa.string():
            values = [v if v is None or type(v) is str else canonical(v) for v in values]
        arrays.append(pa.array(values, kind))
    arrays.append(pa.array(map(canonical, objects), pa.string(), size=len(objects)))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def read_export_facts(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any] | None:
    """Return what an exported file says of itself, by the metadata of its schema, if it is one."""
    try:
        facts = json.loads((metadata or {})[_ABOUT])
    except (KeyError, ValueError):
        return None
    return dict(facts) if isinstance(facts, dict) else None

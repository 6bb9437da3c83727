"""Backup, copy and export of stores."""

import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal import __version__
from antipodal.codes import code_width
from antipodal.errors import StoreError, missing_extra
from antipodal.io.atomic import replacing, replacing_by_name
from antipodal.stores.base import Store
from antipodal.stores.engines import open_address
from antipodal.stores.items import (
    IdType,
    MetadataText,
    as_keys,
    metadata_text,
    parse_metadata,
    same_metadata,
    take_key,
)
from antipodal.stores.snapshot import ItemBatch
from antipodal.stores.sqlite import SqliteStore
from antipodal.stores.sqlite_file import SqliteFile
from antipodal.stores.url import Address, parse_url


def resized(batches: Iterator[ItemBatch], size: int) -> Iterator[ItemBatch]:
    """Yield the items in batches of this size; the last may be smaller."""
    waiting: list[ItemBatch] = []
    n_waiting = 0
    for batch in batches:
        waiting.append(batch)
        n_waiting += len(batch.ids)
        while n_waiting >= size:
            joined = _join(waiting)
            yield _part(joined, slice(size))
            waiting = [_part(joined, slice(size, None))]
            n_waiting -= size
    if n_waiting:
        yield _join(waiting)


def _join(parts: list[ItemBatch]) -> ItemBatch:
    return ItemBatch(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.codes for part in parts]),
        [text for part in parts for text in part.texts],
        {number: vector for part in parts for number, vector in part.vectors.items()},
    )


def _part(batch: ItemBatch, part: slice) -> ItemBatch:
    some = ItemBatch(batch.ids[part], batch.codes[part], batch.texts[part], batch.vectors)
    return some._replace(vectors=dict(zip(*some.kept(), strict=True)))


_encode_canonical = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), sort_keys=True
).encode


def canonical(value: Any) -> str:
    """Return a value of metadata as JSON with sorted fields.

    Examples
    --------
    >>> canonical({"b": 1, "a": 0.5})
    '{"a":0.5,"b":1}'
    """
    return _encode_canonical(value)


class ItemsDigest:
    """The sum, modulo 2²⁵⁶, of the SHA-256 of each item: its id, code, metadata and kept vector.

    It does not depend on the order of items. It detects accidental differences, but not items
    constructed to have the same sum.

    Parameters
    ----------
    n_bits : int
        Code length, which is part of the digest.
    id_type : "int64" or "string"
        Type of the ids. The integers behind string ids are not part of the digest.
    """

    def __init__(self, n_bits: int, id_type: IdType) -> None:
        self.items = 0
        self._id_type = id_type
        self._sum = 0
        self._start = hashlib.sha256(n_bits.to_bytes(8, "little"))
        self._width = code_width(n_bits)

    def add(self, batch: ItemBatch) -> None:
        """Add items to the digest."""
        codes = batch.codes.tobytes()
        for i, (number, text) in enumerate(zip(batch.ids.tolist(), batch.texts, strict=True)):
            digest = self._start.copy()
            metadata = parse_metadata(text)
            if self._id_type == "string":
                key = take_key(metadata).encode()
                digest.update(len(key).to_bytes(8, "little") + key)
            else:
                digest.update(number.to_bytes(8, "little", signed=True))
            digest.update(codes[self._width * i : self._width * (i + 1)])
            digest.update(canonical(metadata).encode())
            digest.update(batch.vectors.get(number, b""))
            self._sum += int.from_bytes(digest.digest(), "little")
        self.items += len(batch.ids)
        self._sum %= 2**256

    def through(self, batches: Iterator[ItemBatch]) -> Iterator[ItemBatch]:
        """Yield batches after adding them to the digest."""
        for batch in batches:
            self.add(batch)
            yield batch

    @property
    def sha256(self) -> str:
        """The digest of all items so far, in hexadecimal digits."""
        return f"{self._sum:064x}"


class Backup(NamedTuple):
    """Contents of a backup: the number of items, and the SHA-256 of the file."""

    items: int
    sha256: str


def back_up(store: Store, path: str | os.PathLike[str]) -> Backup:
    """Write the items of a store to a file, then read it again and verify every item.

    An existing file is replaced once the new one is verified.

    Raises
    ------
    StoreError
        The path is a file of the store itself: writes made during the backup would be lost.
    """
    store.check_not_own_file(path)
    with replacing_by_name(path) as temporary:
        if isinstance(store, SqliteStore):
            store.copy_file(temporary)
        else:
            _copy_items(store, temporary)
        return check_backup(temporary)


def check_backup(path: str | os.PathLike[str]) -> Backup:
    """Verify all pages and the checksums of all items of a backup, or raise StoreError."""
    with SqliteFile(_address(path)).as_backup() as backup:
        n_items = sum(len(batch.ids) for batch in backup.batches)
    with open(path, "rb") as file:
        return Backup(n_items, hashlib.file_digest(file, "sha256").hexdigest())


def restore(path: str | os.PathLike[str], url: str, *, sha256: str | None = None) -> Backup:
    """Replace all items of a store by those of a backup; create the store if necessary.

    The model and the settings of a collection are also restored. The backup is verified before
    the store is changed. In SQLite and PostgreSQL the items are replaced in one transaction. In
    Milvus, which has no transactions, items are first replaced, then surplus items are deleted.

    Raises
    ------
    StoreError
        The backup is damaged or has another SHA-256. Or it does not fit the store: its codes have
        another length or model, or it contains kept vectors and the store is in Milvus. The store
        is then unchanged.
    """
    backup = check_backup(path)
    address = parse_url(url)
    if sha256 not in (None, backup.sha256):
        raise StoreError(
            f"{path} has SHA-256 {backup.sha256}, expected {sha256}: it is another file"
        )
    with SqliteFile(_address(path)).as_backup() as saved:
        header, batches = saved.header, _checked_vectors(saved.batches, address)
        with open_address(address, header.n_bits, header.model, header.id_type) as store:
            store.check_not_own_file(path)
            store._replace_all(batches)
            _attach(store, saved.attachments)
    return backup


def _copy_items(store: Store, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        address = _address(Path(folder) / "items.db")
        copy = SqliteStore(address, n_bits=store.n_bits, model=store.model, id_type=store.id_type)
        with copy:
            with store.item_batches(vectors=True) as batches:
                for batch in batches():
                    _add(copy, batch)
            _attach(copy, store.attachments())
            copy.copy_file(path)


def _attach(store: Store, attachments: dict[str, bytes]) -> None:
    if attachments:
        store.write_attachments(attachments)


def _checked_vectors(batches: Iterator[ItemBatch], address: Address) -> Iterator[ItemBatch]:
    """Return the batches; raise StoreError if the first has vectors that a store cannot keep."""
    first = next(batches, None)
    if first is None:
        return iter(())
    if first.vectors and address.scheme not in ("sqlite", "postgresql"):
        raise StoreError(
            f"{address.shown} cannot keep the vectors of this collection: use SQLite or PostgreSQL"
        )
    return itertools.chain([first], batches)


def _add(store: Store, batch: ItemBatch, *, resume: bool = False) -> None:
    """Add the items of another store; with `resume`, skip those whose ids are in use."""
    ids, texts = _named(batch, store.id_type)
    known = set(store._in_use(ids).tolist()) if resume else set()
    is_new = np.array([i not in known for i in ids.tolist()], np.bool_)
    is_kept = np.array([number in batch.vectors for number in batch.ids.tolist()], np.bool_)
    for rows in (np.flatnonzero(is_new & is_kept), np.flatnonzero(is_new & ~is_kept)):
        if len(rows):
            metadata = [MetadataText(texts[row]) for row in rows]
            found = [batch.vectors.get(number) for number in batch.ids[rows].tolist()]
            kept = [vector for vector in found if vector is not None] or None
            store.add(batch.codes[rows], ids[rows], metadata, vectors=kept)


def _named(batch: ItemBatch, id_type: IdType) -> tuple[NDArray[Any], list[str]]:
    """Return the ids of a batch as the store shows them, and its metadata without string ids."""
    if id_type == "int64":
        return batch.ids, batch.texts
    objects = [parse_metadata(text) for text in batch.texts]
    return as_keys(map(take_key, objects)), [metadata_text(fields) for fields in objects]


def _address(path: str | os.PathLike[str]) -> Address:
    return Address("sqlite", os.fspath(path), {}, os.fspath(path))


_BATCH = 50_000  # items in one transaction


class Copy(NamedTuple):
    """Result of a copy: the number of items, their digest, and the number copied earlier."""

    items: int
    sha256: str
    there_before: int


def copy_store(
    source: Store,
    url: str,
    *,
    replace: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Copy:
    """Copy a snapshot of a store to another store, which is created if necessary.

    The copy is then read again and compared by number of items, ids, codes, metadata and kept
    vectors. Then it gets the model and the settings of a collection.

    Parameters
    ----------
    source : Store
    url : str
        URL of the other store. It may contain only some of the same items.
    replace : bool
        Replace all items of the other store, atomically in SQLite and PostgreSQL.
    progress : callable
        Called with the number of items copied.

    Raises
    ------
    StoreError
        The other store has other items, or codes of another length or model, or cannot keep
        vectors. Or it differs after the copy, because another process wrote to it.
    """
    address = parse_url(url)
    if address.scheme == "sqlite":  # before opening: a hard link would get its own log
        source.check_not_own_file(address.target)
    copied, n_written = ItemsDigest(source.n_bits, source.id_type), 0
    with ExitStack() as stack:
        batches = stack.enter_context(source.item_batches(vectors=True))
        moved = resized(copied.through(_checked_vectors(batches(), address)), _BATCH)
        target = stack.enter_context(
            open_address(address, source.n_bits, source.model, source.id_type)
        )
        if target.place == source.place:
            raise StoreError(f"{source.place} cannot be copied to itself")
        before = 0 if replace else _check_part(target, source)
        if replace:
            target._replace_all(moved)
        else:
            for batch in moved:
                _add(target, batch, resume=before > 0)
                n_written += len(batch.ids)
                progress(n_written)
        found = digest_of(target)
        if (found.items, found.sha256) != (copied.items, copied.sha256):
            raise StoreError(
                f"{target.place} differs after the copy: it has {found.items:,} items, expected "
                f"{copied.items:,}. Did another process write to it?"
            )
        _attach(target, source.attachments())
    return Copy(copied.items, copied.sha256, before)


def digest_of(store: Store) -> ItemsDigest:
    """Return the digest of all items of a store."""
    digest = ItemsDigest(store.n_bits, store.id_type)
    with store.item_batches(vectors=True) as batches:
        for batch in batches():
            digest.add(batch)
    return digest


def _check_part(target: Store, source: Store) -> int:
    """Return the number of items in the target; raise StoreError for items not in the source."""
    if target._largest_id() is None:
        return 0
    n_items = 0
    with target.item_batches() as batches:
        for batch in batches():
            ids, texts = _named(batch, target.id_type)
            known = source.get(ids)
            same = len(known.ids) == len(ids) and np.array_equal(known.codes, batch.codes)
            if not same or not all(map(same_metadata, texts, known.metadata)):
                raise StoreError(
                    f"{target.place} has items that differ from those of {source.place}: nothing "
                    "was copied. Replace them, or copy to another store"
                )
            n_items += len(batch.ids)
    return n_items


_ROWS = 2**16  # rows per row group
_FACTS = b"antipodal"  # key of the file's own metadata
_OWN = ("id", "code", "metadata")
_EXACT = 2**53  # integers up to this are exact doubles


class Export(NamedTuple):
    """Result of an export: the number of items, and their digest, equal for all copies."""

    items: int
    sha256: str


def export_items(
    store: Store,
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] = (),
    progress: Callable[[int], None] = lambda done: None,
) -> Export:
    """Write a snapshot of a store to a parquet file, atomically.

    The columns are `id` (int64 or string), `code` (fixed-size binary), the selected metadata
    fields, and `metadata` with all fields as JSON, sorted by name. Only one block of items is in
    memory.

    Parameters
    ----------
    store : Store
    path : path
    columns : sequence of str
        Metadata fields that become columns: of type integer, double, boolean or string if all
        items agree, otherwise of JSON text. Items without the field have null.
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
        raise ValueError(f"columns must be unique and none of {', '.join(_OWN)}: got {columns}")
    digest, n_written = ItemsDigest(store.n_bits, store.id_type), 0
    facts = {"antipodal": __version__, "bits": store.n_bits, "model": store.model}
    with replacing(path) as file, store.item_batches() as batches:
        kinds = _kinds(batches, columns, store.place)
        types = {
            "id": pa.type_for_alias(store.id_type),
            "code": pa.binary(code_width(store.n_bits)),
        }
        types |= {name: pa.type_for_alias(kind) for name, kind in kinds.items()}
        fields = [pa.field(name, kind, name not in _OWN) for name, kind in types.items()]
        fields.append(pa.field("metadata", pa.string(), nullable=False))
        schema = pa.schema(fields, {_FACTS: json.dumps(facts).encode()})
        with pq.ParquetWriter(file, schema, use_dictionary=False) as writer:
            for batch in resized(digest.through(batches()), _ROWS):
                try:
                    writer.write_batch(_arrow_batch(pa, schema, batch, columns, store.id_type))
                except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                    raise StoreError(
                        f"{store.place} was written during the export: try again"
                    ) from error
                n_written += len(batch.ids)
                progress(n_written)
    return Export(digest.items, digest.sha256)


def _kinds(
    batches: Callable[[], Iterator[ItemBatch]], columns: Sequence[str], place: str
) -> dict[str, str]:
    """Return the Arrow type of each selected field, from the values of all items."""
    if not columns:
        return {}
    found: dict[str, set[Any]] = {name: set() for name in columns}
    for batch in batches():
        for text in batch.texts:
            fields = parse_metadata(text)
            for name in columns:
                value = fields.get(name)
                if value is not None:
                    is_large = type(value) is int and abs(value) > _EXACT
                    found[name].add("large" if is_large else type(value))
    for name, types in found.items():
        if not types:
            raise ValueError(f"no item of {place} has the field {name!r}")
    kinds: dict[str, set[Any]] = {
        "int64": {int, "large"},
        "float64": {int, float},
        "bool": {bool},
        "string": {str},
    }
    return {
        name: next((kind for kind, allowed in kinds.items() if types <= allowed), "string")
        for name, types in found.items()
    }


def _arrow_batch(
    pa: Any, schema: Any, batch: ItemBatch, columns: Sequence[str], id_type: IdType
) -> Any:
    codes = np.ascontiguousarray(batch.codes)
    ids, texts = _named(batch, id_type)
    arrays = [
        pa.array(ids, schema.field("id").type),
        pa.Array.from_buffers(schema.field("code").type, len(codes), [None, pa.py_buffer(codes)]),
    ]
    objects = [parse_metadata(text) for text in texts]
    for name in columns:
        kind = schema.field(name).type
        values = [fields.get(name) for fields in objects]
        if kind == pa.string():
            values = [v if v is None or type(v) is str else canonical(v) for v in values]
        arrays.append(pa.array(values, kind))
    arrays.append(pa.array(map(canonical, objects), pa.string(), size=len(objects)))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def read_export_facts(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any] | None:
    """Return the properties of an exported file from its schema metadata, None for other files."""
    try:
        facts = json.loads((metadata or {})[_FACTS])
    except (KeyError, ValueError):
        return None
    return dict(facts) if isinstance(facts, dict) else None

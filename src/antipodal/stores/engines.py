"""Opening and listing stores: SQLite files, PostgreSQL tables and Milvus collections."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import LiteralString, NamedTuple

from antipodal.errors import AntipodalError, StoreError, missing_extra
from antipodal.stores.base import Store, StoreHeader
from antipodal.stores.items import IdType, check_id_type
from antipodal.stores.url import Address, parse_url
from antipodal.validation import check_whole

_SQLITE, _OURS = b"SQLite format 3\0", b"antp"  # first bytes, and the bytes at offset 68
_TABLES: LiteralString = """
SELECT nspname, items.relname
FROM pg_namespace JOIN pg_class items ON items.relnamespace = pg_namespace.oid
JOIN pg_class about
  ON about.relnamespace = pg_namespace.oid AND about.relname = items.relname || '_about'
WHERE EXISTS (SELECT FROM pg_attribute WHERE attrelid = about.oid AND attname = 'n_bits')
  AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = items.oid AND attname = 'code')
ORDER BY 1, 2
"""
_NAMED = ("schema", "table", "collection")


def open_store(
    url: str,
    *,
    n_bits: int | None = None,
    model: str | None = None,
    id_type: IdType | None = None,
    read_only: bool = False,
) -> Store:
    """Open a store of codes; create it if it does not exist and `n_bits` is given.

    Parameters
    ----------
    url : str
        ``sqlite:///codes.db`` for a path relative to the working directory,
        ``sqlite:////data/codes.db`` for an absolute path;
        ``postgresql://user@host/database?table=codes``;
        ``milvus:///codes.db`` (Milvus Lite) or ``milvus+http://host:19530?collection=codes``.
    n_bits : int, optional
        Code length in bits. Opening an existing store with another length raises StoreError.
    model : str, optional
        Identity of the model of the codes, such as the SHA-256 of its file. It is stored
        when the store is created; opening the store for another model raises StoreError.
    id_type : "int64" or "string", optional
        Type of the ids of a new store, "int64" by default. Opening an existing store with ids of
        the other type raises StoreError.
    read_only : bool
        Do not create a store and raise StoreError on writes. In SQLite and PostgreSQL the engine
        enforces it as well.

    Returns
    -------
    Store
        Its methods include `add`, `upsert`, `load`, `delete`, `get`, `search`, `radius`, `count`
        and `close`.

    Raises
    ------
    StoreError
        The store cannot be reached, is damaged, or has codes of another length or model.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open_store(f"sqlite:///{folder}/codes.db", n_bits=8) as store:
    ...         codes = np.array([[0], [3]], np.uint8)
    ...         _ = store.upsert([7, 9], codes, [{"label": 1}, {"label": 2}])
    ...         store.search(np.array([[1]], np.uint8), 1, where={"label": 2}).ids
    array([[9]])
    """
    if n_bits is not None:
        check_whole(n_bits, "n_bits", 1)
        n_bits = int(n_bits)
    if id_type is not None:
        check_id_type(id_type)
    return open_address(replace(parse_url(url), read_only=read_only), n_bits, model, id_type)


def open_address(
    address: Address,
    n_bits: int | None = None,
    model: str | None = None,
    id_type: IdType | None = None,
) -> Store:
    """Open the store at a parsed URL."""
    if address.read_only:
        store = _open(address, None, model, id_type)
        store.read_only = True
        if n_bits not in (None, store.n_bits):
            store.close()
            raise StoreError(f"{store.place} has codes of {store.n_bits} bits, expected {n_bits}")
        return store
    return _open(address, n_bits, model, id_type)


def _open(address: Address, n_bits: int | None, model: str | None, id_type: IdType | None) -> Store:
    # Engines are imported lazily: two of them are optional dependencies.
    if address.scheme == "sqlite":
        from antipodal.stores.sqlite import SqliteStore

        return SqliteStore(address, n_bits=n_bits, model=model, id_type=id_type)
    if address.scheme == "postgresql":
        check_installed("psycopg", "postgres")
        from antipodal.stores.postgres import PostgresStore

        return PostgresStore(address, n_bits=n_bits, model=model, id_type=id_type)
    check_installed("pymilvus", "milvus")
    from antipodal.stores.milvus import MilvusStore

    return MilvusStore(address, n_bits=n_bits, model=model, id_type=id_type)


def check_keeps_vectors(address: Address) -> None:
    """Raise StoreError if the engine at an address cannot keep vectors."""
    if address.scheme.startswith("milvus"):
        raise StoreError(f"{address.shown} cannot keep vectors: use SQLite or PostgreSQL")


def check_installed(module: str, extra: str) -> None:
    """Raise StoreError with installation instructions if a module cannot be imported."""
    try:
        __import__(module)
    except ImportError as error:
        raise StoreError(f"{missing_extra('this store', module, extra)} ({error})") from error


class Listed(NamedTuple):
    """A listed store; `problem` is the reason why it cannot be read, if any."""

    store: str
    bits: int | None
    items: int | None
    model: str | None
    problem: str | None = None


def list_stores(place: str) -> list[Listed]:
    """List the stores at a URL, or in a folder or file, by name.

    The options `table`, `schema` and `collection` of a URL select among them. Other files in a
    folder are ignored, and so are its subfolders.
    """
    if "://" in place:
        address = parse_url(place)
    elif os.path.exists(place):
        address = Address("sqlite", place, {}, place)
    else:
        raise AntipodalError(
            f"{place} does not exist: expected a folder, a file or the URL of a store"
        )
    if address.scheme == "sqlite":
        found = _files(address)
    elif address.scheme == "postgresql":
        found = _tables(address)
    else:
        found = _collections(address)
    return [_listed(each) for each in found]


def _files(address: Address) -> Iterator[Address]:
    folder = Path(address.target)
    if not folder.is_dir():
        yield address
        return
    for path in sorted(folder.iterdir()):
        if path.is_file() and _has_store_signature(path):
            yield replace(address, target=str(path), shown=str(path))


def _has_store_signature(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(72)
    except OSError:
        return False
    return start.startswith(_SQLITE) and start[68:72] == _OURS


def _tables(address: Address) -> Iterator[Address]:
    check_installed("psycopg", "postgres")
    import psycopg

    try:
        with psycopg.connect(address.target, application_name="antipodal") as connection:
            rows = connection.execute(_TABLES).fetchall()
    except (psycopg.Error, ValueError) as error:
        # Not "from error": the original message may contain a password.
        message = address.without_secrets(str(error).strip().partition("\n")[0])
        raise StoreError(f"cannot connect to {address.shown}: {message}") from None
    for schema, table in rows:
        names = {"schema": schema, "table": table}
        if all(names[key] == value for key, value in address.options.items()):
            yield replace(address, options=names)


def _collections(address: Address) -> Iterator[Address]:
    check_installed("pymilvus", "milvus")
    from pymilvus.exceptions import MilvusException

    from antipodal.stores.milvus import connect

    if address.scheme == "milvus" and not os.path.exists(address.target):
        raise AntipodalError(f"{address.target} does not exist")
    try:
        client = connect(address)
        try:
            names = sorted(client.list_collections())
            descriptions = {name: client.describe_collection(name)["description"] for name in names}
        finally:
            client.close()
    except MilvusException as error:
        message = address.without_secrets(str(error.message))
        raise StoreError(f"{address.shown}: {message}") from None
    for name, description in descriptions.items():
        if name == address.options.get("collection", name) and _is_header(description):
            yield replace(address, options=address.options | {"collection": name})


def _is_header(description: str) -> bool:
    try:
        StoreHeader.from_json(json.loads(description))
    except (ValueError, RecursionError):
        return False
    return True


def _listed(address: Address) -> Listed:
    try:
        with open_address(address) as store:
            return Listed(_url(address), store.n_bits, store.item_count(), store.model)
    except StoreError as error:
        return Listed(_url(address), None, None, None, str(error))


def _url(address: Address) -> str:
    """Return the URL of one store, without secrets."""
    is_file = address.scheme in ("sqlite", "milvus")
    shown = f"{address.scheme}:///{address.target}" if is_file else address.shown
    names = [f"{k}={v}" for k, v in address.options.items() if k in _NAMED]
    return shown + ("?" if names else "") + "&".join(names)

"""List of the stores in a folder, file, PostgreSQL database or Milvus instance."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import LiteralString, NamedTuple

from antipodal.errors import AntipodalError, StoreError
from antipodal.stores.base import StoreHeader
from antipodal.stores.engines import check_installed, open_address
from antipodal.stores.url import Address, parse_url

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

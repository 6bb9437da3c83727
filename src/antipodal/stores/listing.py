"""Which stores there are: in a folder, a file, a database of PostgreSQL or a Milvus."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import LiteralString, NamedTuple

from antipodal.errors import AntipodalError, StoreError
from antipodal.stores.base import About
from antipodal.stores.engines import need_module, open_address
from antipodal.stores.url import Address, parse_url

_SQLITE, _OURS = b"SQLite format 3\0", b"antp"  # how the file begins, and what is at byte 68
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
    """A store that was found; if it cannot be read, `problem` says why."""

    store: str
    bits: int | None
    items: int | None
    model: str | None
    problem: str | None = None


def list_stores(place: str) -> list[Listed]:
    """List the stores at a URL, or in a folder or file, by name.

    The options `table`, `schema` and `collection` of a URL choose among them. Files that are no
    stores are passed over in a folder, and folders within are not looked into.
    """
    if "://" in place:
        address = parse_url(place)
    elif os.path.exists(place):
        address = Address("sqlite", place, {}, place)
    else:
        raise AntipodalError(f"there is nothing at {place}: neither a folder nor a file")
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
        if path.is_file() and _begins_as_store(path):
            yield replace(address, target=str(path), shown=str(path))


def _begins_as_store(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(72)
    except OSError:
        return False
    return start.startswith(_SQLITE) and start[68:72] == _OURS


def _tables(address: Address) -> Iterator[Address]:
    need_module("psycopg", "postgres")
    import psycopg

    try:
        with psycopg.connect(address.target, application_name="antipodal") as connection:
            rows = connection.execute(_TABLES).fetchall()
    except (psycopg.Error, ValueError) as error:
        # Not "from error": what the driver says may quote a password.
        message = address.without_secrets(str(error).strip().partition("\n")[0])
        raise StoreError(f"cannot connect to {address.shown}: {message}") from None
    for schema, table in rows:
        names = {"schema": schema, "table": table}
        if all(names[key] == value for key, value in address.options.items()):
            yield replace(address, options=names)


def _collections(address: Address) -> Iterator[Address]:
    need_module("pymilvus", "milvus")
    from pymilvus.exceptions import MilvusException

    from antipodal.stores.milvus import connect

    if address.scheme == "milvus" and not os.path.exists(address.target):
        raise AntipodalError(f"there is no file {address.target}")
    try:
        client = connect(address)
        try:
            names = sorted(client.list_collections())
            said = {name: client.describe_collection(name)["description"] for name in names}
        finally:
            client.close()
    except MilvusException as error:
        message = address.without_secrets(str(error.message))
        raise StoreError(f"{address.shown}: {message}") from None
    for name, description in said.items():
        if name == address.options.get("collection", name) and _is_about(description):
            yield replace(address, options=address.options | {"collection": name})


def _is_about(description: str) -> bool:
    try:
        About.of_header(json.loads(description))
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
    """Return the URL of one store, but for its secrets."""
    is_file = address.scheme in ("sqlite", "milvus")
    shown = f"{address.scheme}:///{address.target}" if is_file else address.shown
    names = [f"{k}={v}" for k, v in address.options.items() if k in _NAMED]
    return shown + ("?" if names else "") + "&".join(names)

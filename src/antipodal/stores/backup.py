"""Backups: a store of any engine as one SQLite file, and back into any engine.

A backup is itself a store of SQLite: it can be opened and searched. It has the items of one moment
(of Milvus: of the time it took), while others read and write.
"""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from antipodal.errors import StoreError
from antipodal.storage.files import replacing_by_name
from antipodal.stores.address import Address
from antipodal.stores.metadata import MetadataText
from antipodal.stores.opening import open_store
from antipodal.stores.sqlite import SqliteStore
from antipodal.stores.sqlitefile import SqliteFile
from antipodal.stores.store import Store


class Backup(NamedTuple):
    """What is in a backup: how many items, and the SHA-256 of the file."""

    items: int
    sha256: str


def back_up(store: Store, path: str | os.PathLike[str]) -> Backup:
    """Write the items of a store into one file, read it again, and check every item in it.

    An existing file is replaced after the new one has been checked. The store's own files are
    refused with StoreError: writes since the start of the backup would be lost.
    """
    store.check_not_own_file(path)
    with replacing_by_name(path) as temporary:
        if isinstance(store, SqliteStore):
            store.copy_file(temporary)
        else:
            _copy_items(store, temporary)
        return check_backup(temporary)


def check_backup(path: str | os.PathLike[str]) -> Backup:
    """Check every page and every item of a backup by its checksum, or raise StoreError."""
    with SqliteFile(_address(path)).as_backup() as (_, batches):
        n_items = sum(len(batch.ids) for batch in batches)
    with open(path, "rb") as file:
        return Backup(n_items, hashlib.file_digest(file, "sha256").hexdigest())


def restore(path: str | os.PathLike[str], url: str, *, sha256: str | None = None) -> Backup:
    """Put the items of a backup in the place of all that a store has, or make the store.

    The backup is checked before the store is touched. In SQLite and PostgreSQL it is one
    transaction: others see all items as they were, then all as they are in the backup. In
    Milvus, which has none, items are replaced first, and those that are too many deleted then.

    Raises
    ------
    StoreError
        The backup is damaged, is not the one of this SHA-256, or has codes of another length or
        model than the store. Nothing has changed.
    """
    backup = check_backup(path)
    if sha256 not in (None, backup.sha256):
        raise StoreError(f"{path} is another file than the one to restore: its SHA-256 differs")
    with (
        SqliteFile(_address(path)).as_backup() as (about, batches),
        open_store(url, n_bits=about.n_bits, model=about.model) as store,
    ):
        store.check_not_own_file(path)
        store._replace_all(batches)
    return backup


def _copy_items(store: Store, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        address = _address(Path(folder) / "items.db")
        with SqliteStore(address, n_bits=store.n_bits, model=store.model) as copy:
            with store.snapshot() as now:
                for ids, codes, texts in now.batches():
                    copy.upsert(ids, codes, map(MetadataText, texts))
            copy.copy_file(path)


def _address(path: str | os.PathLike[str]) -> Address:
    return Address("sqlite", os.fspath(path), {}, os.fspath(path))

"""Copies of stores: from any engine into any other, checked item by item.

A copy is streamed in batches, each durable when it is written. One that was interrupted goes on:
the same call passes over what is there already.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from antipodal.errors import StoreError
from antipodal.stores.address import parse_url
from antipodal.stores.batching import resized
from antipodal.stores.digest import ItemsDigest
from antipodal.stores.metadata import MetadataText, same_metadata
from antipodal.stores.opening import open_store
from antipodal.stores.store import Store

_BATCH = 50_000  # items in one transaction


class Copy(NamedTuple):
    """What both stores hold: how many items, their digest, and how many were there before."""

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
    """Copy all items of a store, as they are now, into another one, which is made if need be.

    Then the other is read again: it must have as many items, with the same ids, codes and metadata.

    Parameters
    ----------
    url : str
        Of the store to copy to. It may hold a part of the same items, and nothing else.
    replace : bool
        Put the items in the place of all that it holds: in SQLite and PostgreSQL at once.
    progress : callable
        Called with the number of items copied.

    Raises
    ------
    StoreError
        The other store holds other items, codes of another length or model, or is not a true copy
        in the end, because someone else wrote to it.
    """
    address = parse_url(url)
    if address.scheme == "sqlite":  # before opening: a hard link would get a log of its own
        source.check_not_own_file(address.target)
    with open_store(url, n_bits=source.n_bits, model=source.model) as target:
        if target.place == source.place:
            raise StoreError(f"{source.place} cannot be copied to itself")
        before = 0 if replace else _check_part(target, source)
        copied, n_written = ItemsDigest(source.n_bits), 0
        with source.item_batches() as batches:
            moved = resized(copied.through(batches()), _BATCH)
            if replace:
                target._replace_all(moved)
            else:
                for ids, codes, texts in moved:
                    objects = [MetadataText(text) for text in texts]
                    target.load(ids, codes, objects, replace=False, resume=before > 0)
                    n_written += len(ids)
                    progress(n_written)
        found = digest_of(target)
        if (found.items, found.sha256) != (copied.items, copied.sha256):
            raise StoreError(
                f"{target.place} is no true copy: it holds {found.items:,} items, and "
                f"{copied.items:,} were copied. Did someone else write to it?"
            )
    return Copy(copied.items, copied.sha256, before)


def digest_of(store: Store) -> ItemsDigest:
    """Read all items of a store, and count and sum them up."""
    digest = ItemsDigest(store.n_bits)
    with store.item_batches() as batches:
        for batch in batches():
            digest.add(batch)
    return digest


def _check_part(target: Store, source: Store) -> int:
    """Refuse a store that holds other items than those to copy; return how many it holds."""
    if target._largest_id() is None:
        return 0
    n_items = 0
    with target.item_batches() as batches:
        for batch in batches():
            known = source.get(batch.ids)
            same = len(known.ids) == len(batch.ids) and np.array_equal(known.codes, batch.codes)
            if not same or not all(map(same_metadata, batch.texts, known.metadata)):
                raise StoreError(
                    f"{target.place} holds other items than {source.place}: nothing was copied. "
                    "Replace them, or copy to another store"
                )
            n_items += len(batch.ids)
    return n_items

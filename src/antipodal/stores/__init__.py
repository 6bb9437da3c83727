"""Durable stores of codes with one interface for SQLite, PostgreSQL and Milvus."""

from antipodal.stores.base import Store
from antipodal.stores.engines import open_store
from antipodal.stores.snapshot import Items, Snapshot

__all__ = ["Items", "Snapshot", "Store", "open_store"]

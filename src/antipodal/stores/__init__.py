"""Durable stores of codes with one interface for SQLite, PostgreSQL and Milvus."""

from antipodal.stores.base import Store as Store
from antipodal.stores.engines import open_store as open_store
from antipodal.stores.snapshot import Items as Items
from antipodal.stores.snapshot import Snapshot as Snapshot

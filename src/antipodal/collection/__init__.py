"""Collections: stores of codes, ids and metadata that contain their model.

`collection` is the interface, `create` reads rows, fits a model and fills a store, `query` prepares
queries, `settings` is the record in the store, and `drift` compares new vectors with those at fit
time.
"""

from antipodal.collection.collection import Collection

__all__ = ["Collection"]

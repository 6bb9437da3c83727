"""Collections: stores of codes, ids and metadata that contain their model.

`collection` is the interface. `create` reads rows, fits a model and fills a store. `query` is the
form of queries that a store searches for, and `settings` the record in the store. `drift` compares
new vectors with those at fit time.
"""

from antipodal.collection.collection import Collection

__all__ = ["Collection"]

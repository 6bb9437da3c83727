"""Codes for a batch of Arrow: the one function that every engine calls."""

import os
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from antipodal.codes import code_width
from antipodal.errors import AntipodalError
from antipodal.hashers import BaseHasher, load
from antipodal.reading.arrowcolumns import batch_vectors, describe_column
from antipodal.reading.columns import TableColumn, check_column, choose_columns
from antipodal.threads import one_torch_thread

CODE = "code"  # the column that is added


class BatchEncoder:
    r"""Adds the column `code`, fixed-size binary, to a batch of Arrow: for engines of batches.

    The model is read once, where the object is made: in Ray that is the actor, in Spark the
    function that gets the batches. It computes on one thread, since engines run many at once; the
    codes are those of `hasher.encode`, whatever batches the rows come in.

    Parameters
    ----------
    model : path or BaseHasher
        Written by `save`, or a fitted hasher.
    column : str or sequence of str, optional
        The column of vectors, or several of numbers that make one. By default the only one there
        is, as `antipodal.open_vectors` finds it.
    columns : collection of str, optional
        Which columns to keep beside the codes, in the order of the batch. By default all.

    Examples
    --------
    >>> from antipodal import SignHash
    >>> hasher = SignHash(4, center=False, rotate=False).fit([[1.0, -2.0, 3.0, -4.0]])
    >>> encoder = BatchEncoder(hasher, columns=["id"])
    >>> batch = pa.table({"id": [7, 8], "vector": [[1.0, 1.0, 1.0, -1.0], [-1.0, 1.0, 1.0, 1.0]]})
    >>> encoder(batch).to_pylist()
    [{'id': 7, 'code': b'\xe0'}, {'id': 8, 'code': b'p'}]
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | BaseHasher,
        *,
        column: str | Sequence[str] | None = None,
        columns: Collection[str] | None = None,
    ) -> None:
        self.hasher = model if isinstance(model, BaseHasher) else load(model)
        self.column = column
        self.columns = columns

    def __call__(self, batch: Any) -> Any:
        """Return the batch with its codes; a record batch for one, a table for a table."""
        if not isinstance(batch, pa.Table):
            return self._encoded(batch)
        # Not by self(part): Ray replaces __call__ by one that waits for itself.
        parts = [self._encoded(part) for part in batch.to_batches()]
        return pa.Table.from_batches(parts, self.schema(batch.schema))

    def _encoded(self, batch: Any) -> Any:
        width = code_width(self.hasher.n_bits)
        codes = np.empty((0, width), np.uint8)
        if len(batch):
            rows = batch_vectors(batch, self.vector_columns(batch.schema), 0, None)
            with one_torch_thread():
                codes = self.hasher.encode(rows)
        column = pa.Array.from_buffers(pa.binary(width), len(codes), [None, pa.py_buffer(codes)])
        schema = self.schema(batch.schema)
        arrays = [batch.column(name) for name in schema.names[:-1]]
        return pa.RecordBatch.from_arrays([*arrays, column], schema=schema)

    def schema(self, schema: pa.Schema, name: str = "the batch") -> pa.Schema:
        """Return the schema of what comes out for that of what goes in; `name` is for messages."""
        for column in self.columns or ():
            check_column(name, _described(schema), column)
        kept = [f for f in schema if self.columns is None or f.name in self.columns]
        if any(field.name == CODE for field in kept):
            raise AntipodalError(
                f"{name} has a column {CODE!r} already, which is where the codes go: name the "
                "columns to keep, without it"
            )
        added = pa.field(CODE, pa.binary(code_width(self.hasher.n_bits)), nullable=False)
        return pa.schema([*kept, added], schema.metadata)

    def vector_columns(self, schema: pa.Schema, name: str = "the batch") -> tuple[str, ...]:
        """Return the names of the columns that hold the vectors."""
        return choose_columns(name, _described(schema), self.column, ())

    def columns_read(self, schema: pa.Schema, name: str = "the batch") -> list[str]:
        """Return the names of the columns that are kept or hold the vectors, in their order."""
        *kept, _ = self.schema(schema, name).names
        wanted = {*kept, *self.vector_columns(schema, name)}
        return [name for name in schema.names if name in wanted]


def _described(schema: pa.Schema) -> dict[str, TableColumn]:
    return {field.name: describe_column(field.type) for field in schema}

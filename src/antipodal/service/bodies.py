"""Vectors and codes in bodies of bytes: smaller than JSON, and nothing to parse.

application/octet-stream               float32, little-endian, row after row; codes as they are
application/vnd.apache.arrow.stream    an Arrow IPC stream, a column of lists of numbers; codes
                                       in a column `code` of fixed-size binary
"""

import io
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from antipodal.codes import Codes
from antipodal.reading.arrowcolumns import stack_vectors

BYTES, ARROW = "application/octet-stream", "application/vnd.apache.arrow.stream"

Handler = Callable[[Request], Awaitable[Response]]
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def media_types() -> list[str]:
    """Return the kinds of bodies that are understood here: Arrow's where pyarrow is installed."""
    return [BYTES, ARROW] if find_spec("pyarrow") else [BYTES]


def takes_bytes(handler: Handler) -> Callable[[Endpoint], Endpoint]:
    """Let a route pass requests with such a body to a handler of its own."""

    def mark(endpoint: Endpoint) -> Endpoint:
        endpoint.bytes_handler = handler  # type: ignore[attr-defined]
        return endpoint

    return mark


def media_type(request: Request) -> str:
    """Return the kind of the body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def read_rows(kind: str, body: bytes, n_features: int) -> NDArray[np.float32]:
    """Return the vectors in a body, each of the width that the model was fitted on."""
    if kind == ARROW:
        return _read_arrow(body, n_features)
    if len(body) % (4 * n_features):
        raise ValueError(
            f"the body must hold vectors of {n_features} values, as those the model was fitted on, "
            f"in float32, {4 * n_features} bytes each: got {len(body)} bytes"
        )
    return np.frombuffer(body, "<f4").reshape(-1, n_features).astype(np.float32, copy=False)


def codes_response(codes: Codes, kind: str) -> Response:
    """Return codes in a body of the kind."""
    if kind != ARROW:
        return Response(codes.tobytes(), media_type=BYTES)
    arrow = import_module("pyarrow")
    column = arrow.FixedSizeBinaryArray.from_buffers(
        arrow.binary(codes.shape[1]), len(codes), [None, arrow.py_buffer(codes.tobytes())]
    )
    table = arrow.table({"code": column})
    sink = io.BytesIO()
    with arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return Response(sink.getvalue(), media_type=ARROW)


def _read_arrow(body: bytes, n_features: int) -> NDArray[np.float32]:
    arrow = import_module("pyarrow")
    try:
        with arrow.ipc.open_stream(body) as reader:
            table = reader.read_all()
            table.validate(full=True)  # lengths and offsets come from outside
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"the body is not a stream of Arrow: {str(error)[:200]}") from None
    if table.num_columns != 1:
        raise ValueError(
            f"the stream must have one column, of lists of numbers: got {table.num_columns}, "
            f"{', '.join(table.column_names)[:200]}"
        )
    if not len(table):
        return np.empty((0, n_features), np.float32)
    column = table.column(0).combine_chunks()
    try:
        rows = stack_vectors(column, table.column_names[0], 0, n_features)
    except (arrow.ArrowException, NotImplementedError) as error:
        raise ValueError(f"the column must be of lists of numbers: {str(error)[:200]}") from None
    if rows.dtype.kind not in "fiu":
        raise ValueError(f"the column must be of lists of numbers: got {column.type}")
    with np.errstate(over="ignore"):  # too large for float32: the hasher names the row
        return rows.astype(np.float32)

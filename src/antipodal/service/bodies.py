"""Request and response bodies: media types, JSON, raw float32 and Arrow streams.

application/json                       any request, up to `Limits.body` bytes
application/octet-stream               vectors as little-endian float32, row by row; codes packed
application/vnd.apache.arrow.stream    an Arrow IPC stream with one column of lists of numbers;
                                       codes in a column `code` of fixed-size binary
image/png, image/jpeg, …               an image file

A binary body takes as much memory as it has bytes: compressed Arrow buffers are refused.
"""

import asyncio
import io
import struct
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json, to_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from antipodal.codes import Codes
from antipodal.service.limits import Limits

BYTES, ARROW = "application/octet-stream", "application/vnd.apache.arrow.stream"
# Fields of Message (header, custom metadata) and RecordBatch in Arrow's flatbuffers.
_HEADER, _CUSTOM, _COMPRESSION = 2, 4, 3


def vector_types() -> list[str]:
    """Return the supported media types of vectors; Arrow needs pyarrow."""
    return [BYTES, ARROW] if find_spec("pyarrow") else [BYTES]


def media_type(headers: Headers) -> str:
    """Return the media type of a body in lower case, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """Return the body of a request. Raise 413 if it is too large, 408 if it takes too long."""
    too_large = HTTPException(413, f"a body of this type may have at most {limit:,} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise too_large
                chunks.append(chunk)
    except TimeoutError:
        raise HTTPException(
            408, f"the body was not sent within {seconds:g} s", {"Connection": "close"}
        ) from None
    except ClientDisconnect:
        raise HTTPException(400, "the connection was closed within the body") from None
    return b"".join(chunks)


class JsonRequest(Request):
    """A request whose body was read. Its JSON is strict: no NaN, no Infinity."""

    def __init__(self, scope: Scope, body: bytes) -> None:
        super().__init__(scope)
        self._body = body

    async def json(self) -> Any:
        """Return the parsed body."""
        try:
            return from_json(self._body, allow_inf_nan=False)
        except ValueError as error:
            raise HTTPException(400, f"the body is not JSON: {error}") from None


def json_response(value: Any) -> Response:
    """Return a JSON response. Values without a JSON form, such as generators, become text."""
    return Response(
        to_json(value, fallback=str, inf_nan_mode="null"), media_type="application/json"
    )


def read_rows(kind: str, body: bytes, n_features: int, limits: Limits) -> NDArray[np.float32]:
    """Return the vectors in a binary body as rows of `n_features` values."""
    if kind == ARROW:
        return _read_arrow(body, n_features, limits)
    if len(body) % (4 * n_features):
        raise ValueError(
            f"the body must hold float32 vectors of {n_features} values, {4 * n_features} bytes "
            f"each: got {len(body)} bytes"
        )
    return np.frombuffer(body, "<f4").reshape(-1, n_features).astype(np.float32, copy=False)


def codes_response(codes: Codes, kind: str) -> Response:
    """Return codes in a body of the given media type."""
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


def _read_arrow(body: bytes, n_features: int, limits: Limits) -> NDArray[np.float32]:
    from antipodal.io.tables import stack_vectors  # needs pyarrow

    arrow = import_module("pyarrow")
    try:
        column = _read_column(body, limits)
        if not len(column):
            return np.empty((0, n_features), np.float32)
        rows = stack_vectors(column, "vector", 0, n_features)
    except (arrow.ArrowException, OSError, StopIteration, struct.error) as error:
        raise ValueError(f"the body is not a valid Arrow stream: {str(error)[:200]}") from None
    with np.errstate(over="ignore"):  # infinities are reported by the hasher, with their row
        return rows.astype(np.float32)


def _read_column(body: bytes, limits: Limits) -> Any:
    """Read the only column of a stream; uncompressed buffers stay within the body, not copied."""
    arrow = import_module("pyarrow")
    messages = arrow.ipc.MessageReader.open_stream(body)
    first = messages.read_next_message()
    if first.type != "schema":  # `read_schema` does not check it and reads outside the message
        raise ValueError(f"the Arrow stream must start with a schema: got {first.type}")
    schema = arrow.ipc.read_schema(first)
    if len(schema) != 1:
        raise ValueError(
            f"the Arrow stream must have one column of lists of numbers: got {len(schema)} "
            f"columns, {', '.join(schema.names)[:200]}"
        )
    if not _is_vector(schema.types[0]):
        raise ValueError(
            f"the column must be of lists of numbers: got {str(schema.types[0])[:200]}"
        )
    chunks, n_rows = [], 0
    for message in messages:
        if message.type != "record batch":
            raise ValueError(f"the Arrow stream must have record batches only: got {message.type}")
        if _is_compressed(message.metadata.to_pybytes()):
            raise ValueError(
                "the Arrow stream must not be compressed: send plain buffers, no custom metadata"
            )
        batch = arrow.ipc.read_record_batch(message, schema)
        n_rows += len(batch)
        limits.check_batch(n_rows, "vectors")
        batch.validate(full=True)
        chunks.append(batch.column(0))
    return arrow.chunked_array(chunks, schema.types[0]).combine_chunks()


def _is_vector(kind: Any) -> bool:
    """Return whether a type holds lists of numbers without indirections that could expand."""
    types = import_module("pyarrow.types")
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return False
    return bool(types.is_integer(kind.value_type) or types.is_floating(kind.value_type))


def _is_compressed(metadata: bytes) -> bool:
    """Return whether the buffers of a record batch may be compressed, by its flatbuffer metadata.

    Arrow 0.17 named the compression in the custom metadata, which are refused for that reason.
    """
    (message,) = struct.unpack_from("<I", metadata)
    if _field(metadata, message, _CUSTOM):
        return True
    header = message + _field(metadata, message, _HEADER)
    header += struct.unpack_from("<I", metadata, header)[0]
    return _field(metadata, header, _COMPRESSION) != 0


def _field(flatbuffer: bytes, table: int, index: int) -> int:
    """Return the offset of a field within a table; 0 if it is absent."""
    start = table - struct.unpack_from("<i", flatbuffer, table)[0]
    place = 4 + 2 * index
    if place >= struct.unpack_from("<H", flatbuffer, start)[0]:
        return 0
    offset: int = struct.unpack_from("<H", flatbuffer, start + place)[0]
    return offset

"""Error responses: application/problem+json. [RFC 9457]"""

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from antipodal.errors import EmbeddingError, IdsTakenError, StoreError
from antipodal.service.schemas import Problem

_MAX_DETAIL = 2_000  # characters
# Quoted input may contain control characters and unpaired surrogates.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
RETRY = {"Retry-After": "1"}


class UnavailableError(Exception):
    """The service cannot answer now. The client may retry."""


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error response."""
    text = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", detail)
    if len(text) > _MAX_DETAIL:
        text = text[:_MAX_DETAIL] + " …"
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": text,
    }
    return Response(json.dumps(body), status, headers, "application/problem+json")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe error responses for OpenAPI."""
    content = {"application/problem+json": {"schema": Problem.model_json_schema()}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in statuses
    }


def add_handlers(app: FastAPI) -> None:
    """Turn the library's exceptions into problems. Any other exception is a bug, and a 500."""
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(StoreError, _of_unavailable)
    app.add_exception_handler(EmbeddingError, _of_embedder)
    app.add_exception_handler(UnavailableError, _of_unavailable)
    app.add_exception_handler(IdsTakenError, _of_taken_ids)
    app.add_exception_handler(ValueError, _of_value)
    app.add_exception_handler(TypeError, _of_value)


async def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, str(error.detail), error.headers)


async def _of_validation(request: Request, error: Exception) -> Response:
    """Name the invalid fields without their values, which may be long or secret."""
    assert isinstance(error, RequestValidationError)
    return problem(422, "; ".join(map(_describe, error.errors()[:5])))


def _describe(error: Mapping[str, Any]) -> str:
    if error["loc"] == ("body",) and error["type"] == "model_attributes_type":
        return "the body must be a JSON object with Content-Type: application/json"
    field = ".".join(str(part) for part in error["loc"][1:]) or error["loc"][0]
    return f"{field}: {error['msg'].removeprefix('Value error, ')}"


async def _of_unavailable(request: Request, error: Exception) -> Response:
    return problem(503, str(error), RETRY)


async def _of_embedder(request: Request, error: Exception) -> Response:
    return problem(502, str(error))


async def _of_taken_ids(request: Request, error: Exception) -> Response:
    return problem(409, str(error))


async def _of_value(request: Request, error: Exception) -> Response:
    return problem(422, str(error))

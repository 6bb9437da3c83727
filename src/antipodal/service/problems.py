"""Errors as the caller sees them: application/problem+json. [RFC 9457]"""

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from antipodal.errors import IdsTakenError, StoreError

_LONGEST = 2_000  # characters of a detail
# What a message quotes may hold half a surrogate pair or controls: neither is for a terminal.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class UnavailableError(Exception):
    """The service cannot answer now, but may in a moment."""


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response for an error."""
    text = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", detail)
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + " …"
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": text,
    }
    return Response(json.dumps(body), status, headers, "application/problem+json")


def add_handlers(app: FastAPI) -> None:
    """Turn the library's errors into problems; what is not listed here is a bug, and a 500."""
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(StoreError, _of_store)
    app.add_exception_handler(UnavailableError, _of_store)
    app.add_exception_handler(IdsTakenError, _of_taken)
    app.add_exception_handler(ValueError, _of_value)
    app.add_exception_handler(TypeError, _of_value)


async def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, str(error.detail), error.headers)


async def _of_validation(request: Request, error: Exception) -> Response:
    """Name the places that are wrong; their values stay out: they may be long, or secret."""
    assert isinstance(error, RequestValidationError)
    return problem(422, "; ".join(map(_sentence, error.errors()[:5])))


def _sentence(error: Mapping[str, Any]) -> str:
    if error["loc"] == ("body",) and error["type"] == "model_attributes_type":
        return "the body must be a JSON object, sent as Content-Type: application/json"
    place = ".".join(str(part) for part in error["loc"][1:]) or error["loc"][0]
    return f"{place}: {error['msg'].removeprefix('Value error, ')}"


async def _of_store(request: Request, error: Exception) -> Response:
    return problem(503, str(error), {"Retry-After": "1"})


async def _of_taken(request: Request, error: Exception) -> Response:
    return problem(409, str(error))


async def _of_value(request: Request, error: Exception) -> Response:
    return problem(422, str(error))

"""Answers as they are sent, and as OpenAPI describes those that are problems."""

from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from antipodal.service.schemas import Problem


def json_answer(value: Any) -> Response:
    """Return a value as JSON.

    What has no JSON form, such as a random generator in a model's parameters, becomes text.
    """
    return Response(
        to_json(value, fallback=str, inf_nan_mode="null"), media_type="application/json"
    )


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe error responses."""
    content = {"application/problem+json": {"schema": Problem.model_json_schema()}}
    return {status: {"description": "A problem", "content": content} for status in statuses}

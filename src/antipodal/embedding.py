"""Embedders of texts and images: a Python function, or an HTTP endpoint."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
import requests
from numpy.typing import NDArray

from antipodal.errors import EmbeddingError
from antipodal.hashers.registry import import_object
from antipodal.http_transport import HttpTransport

KEY_VARIABLE = "ANTIPODAL_EMBED_KEY"
Embeddings: TypeAlias = NDArray[np.float32]

_BATCH_TEXTS = 32  # the default limit of text-embeddings-inference
_DETAIL_CHARACTERS = 200  # of an error message of the endpoint


def load_embedder(
    spec: str, *, key: str | None = None, timeout: float = 60.0, retries: int = 5
) -> "Embedder":
    """Return the embedder with this name or address.

    Parameters
    ----------
    spec : str
        ``module:function``, imported from the working directory or the installed packages. The
        function maps a list of strings, or of the bytes of image files, to an array with one row
        for each. Or the URL of an OpenAI-compatible endpoint, such as those of Ollama, vLLM and
        text-embeddings-inference, with the name of the model after #:
        ``http://127.0.0.1:11434/v1#all-minilm``. The path may end in ``/v1/embeddings`` or
        ``/v1``, or be empty. ``?model=all-minilm`` is the same as ``#all-minilm``.
    key : str, optional
        API key of the endpoint. By default the environment variable ANTIPODAL_EMBED_KEY.
    timeout : float
        Seconds to wait for a connection, and for each part of a response.
    retries : int
        Number of retries if the endpoint cannot be reached, or responds with 429 or 503.

    Raises
    ------
    ValueError
        The specification is invalid, or the function cannot be imported.

    Examples
    --------
    ::

        embedder = load_embedder("http://127.0.0.1:11434/v1#all-minilm")
        vectors = embedder(["copy a directory"], n_features=384)
    """
    if "://" in spec:
        key = key or os.environ.get(KEY_VARIABLE) or None
        return EndpointEmbedder(spec, key, timeout, retries)
    module, _, name = spec.partition(":")
    if not module or not name:
        raise ValueError(
            "an embedder must be module:function, or the URL of an OpenAI-compatible endpoint "
            f"that begins with http:// or https://: got {spec!r}"
        )
    function = import_object(spec)
    if not callable(function):
        raise ValueError(f"{spec} must be a function: got {type(function).__name__}")
    return FunctionEmbedder(spec, function)


class Embedder(ABC):
    """Base class of functions from texts or images to float32 vectors, which are thread-safe.

    Attributes
    ----------
    name : str
        The function or the address, without a key.
    """

    name: str

    def __call__(self, texts: Sequence[str], n_features: int | None = None) -> Embeddings:
        """Return the vectors of texts, float32 (n, n_features).

        Parameters
        ----------
        texts : sequence of str
        n_features : int, optional
            The expected number of features: that of the hasher.

        Raises
        ------
        EmbeddingError
            The embedder failed, or its result is not one finite vector of that size per text.
        """
        return self._embed(_check_inputs(texts, str, "texts"), n_features)

    def images(self, images: Sequence[bytes], n_features: int | None = None) -> Embeddings:
        """Return the vectors of images, given as the bytes of their files."""
        return self._embed(_check_inputs(images, bytes, "images"), n_features)

    def close(self) -> None:  # noqa: B027  (only endpoints have connections)
        """Close the connections, if any."""

    @abstractmethod
    def _values(self, inputs: list[Any]) -> Iterator[Any]:
        """Yield the unchecked vectors of at least one input, in one or more parts."""

    def _embed(self, inputs: list[Any], n_features: int | None) -> Embeddings:
        parts = [self._check(part) for part in self._values(inputs)] if inputs else []
        width = parts[0].shape[1] if parts and n_features is None else n_features or 0
        for part in parts:
            if part.shape[1] != width:
                raise EmbeddingError(
                    f"{self.name} must return vectors of {width} features: got {part.shape[1]}. "
                    "Is it the embedding model of the collection?"
                )
        rows = np.concatenate([np.empty((0, width), np.float32), *parts])
        if len(rows) != len(inputs):
            raise EmbeddingError(
                f"{self.name} must return one vector per input: got {len(rows)} vectors for "
                f"{len(inputs)} inputs"
            )
        return rows

    def _check(self, values: Any) -> Embeddings:
        """Return values as a float32 matrix of finite numbers."""
        try:
            with np.errstate(over="ignore"):  # infinite values are refused below
                rows = np.asarray(values).astype(np.float32)
        except (ValueError, TypeError, RuntimeError) as error:
            raise EmbeddingError(
                f"{self.name} must return vectors of numbers, all of one size: {error}"
            ) from error
        if rows.ndim != 2:
            raise EmbeddingError(
                f"{self.name} must return a matrix with one row per input: got shape {rows.shape}"
            )
        if not np.isfinite(rows).all():
            raise EmbeddingError(
                f"{self.name} must return finite numbers: got NaN or infinity in row "
                f"{int(np.isfinite(rows).all(axis=1).argmin())}"
            )
        return rows


class FunctionEmbedder(Embedder):
    """A Python function that receives all inputs in one call, as a list."""

    def __init__(self, name: str, function: Callable[[list[Any]], Any]) -> None:
        self.name, self._function = name, function

    def _values(self, inputs: list[Any]) -> Iterator[Any]:
        try:
            values = self._function(inputs)
        except Exception as error:  # third-party code may raise anything
            raise EmbeddingError(f"{self.name} failed: {type(error).__name__}: {error}") from error
        yield values


class EndpointEmbedder(Embedder):
    """An OpenAI-compatible endpoint for embeddings of texts."""

    def __init__(self, url: str, key: str | None, timeout: float, retries: int) -> None:
        address, self._model = _split_url(url)
        self._transport = HttpTransport(
            address, key, timeout, retries, EmbeddingError, needs_retry_after=False
        )
        self._key = key
        self.name = f"{address}/embeddings"

    def images(self, images: Sequence[bytes], n_features: int | None = None) -> Embeddings:
        """Raise EmbeddingError: the protocol is for texts."""
        raise EmbeddingError(
            f"{self.name} embeds texts only: pass module:function as the embedder of images"
        )

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _values(self, inputs: list[Any]) -> Iterator[Any]:
        for start in range(0, len(inputs), _BATCH_TEXTS):
            yield self._request(inputs[start : start + _BATCH_TEXTS])

    def _request(self, texts: list[str]) -> list[Any]:
        """Return the embeddings of a batch, in the order of the texts."""
        request = {"input": texts} | ({"model": self._model} if self._model else {})
        response = self._transport.request("POST", "embeddings", json.dumps(request).encode())
        try:
            answer = response.json()
        except (ValueError, RecursionError):
            answer = None
        if response.status_code != HTTPStatus.OK:
            raise EmbeddingError(self._failure(response, answer))
        try:
            items = {item["index"]: item["embedding"] for item in answer["data"]}
            n_items = len(answer["data"])
        except (TypeError, KeyError):
            raise EmbeddingError(
                f"{self.name} returned no embeddings. Is it the address of an OpenAI-compatible "
                "endpoint?"
            ) from None
        if n_items != len(texts) or items.keys() != set(range(n_items)):
            raise EmbeddingError(
                f"{self.name} must return one embedding per text, numbered from 0: got {n_items} "
                f"embeddings, {len(items)} of them with distinct numbers, for {len(texts)} texts"
            )
        return [items[place] for place in range(n_items)]

    def _failure(self, response: requests.Response, answer: Any) -> str:
        """Return the message for a response with an error status."""
        message = f"{self.name} returned status {response.status_code}"
        detail = answer.get("error", answer.get("detail")) if isinstance(answer, dict) else None
        if isinstance(detail, dict):
            detail = detail.get("message")
        if isinstance(detail, str) and not (self._key and self._key in detail):
            shown = "".join(c for c in " ".join(detail.split()) if c.isprintable())
            message += f": {shown[:_DETAIL_CHARACTERS]}"
        if response.is_redirect:
            message += ": redirects are not followed. Is the address right?"
        elif response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            message += f". Is the key in {KEY_VARIABLE} right?"
        elif response.status_code == HTTPStatus.NOT_FOUND:
            message += ". Are the address and the name of the model, URL#MODEL, right?"
        return message


def _split_url(url: str) -> tuple[str, str | None]:
    """Return the address of the API, up to /v1, and the name of the model."""
    try:
        parts = urlsplit(url)
    except ValueError:
        message = "the embedding URL is invalid: expected http://host:port/v1#MODEL"
        raise ValueError(message) from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    models = {unquote(parts.fragment), options.pop("model", "")} - {""}
    if options or len(models) > 1:  # do not show them: one of them may be a key
        raise ValueError(
            "the embedding URL may name one model, as http://host:port/v1#MODEL or "
            "http://host:port/v1?model=MODEL, and have no other options. A key is read from the "
            f"environment variable {KEY_VARIABLE}"
        )
    path = parts.path.rstrip("/")
    if not path.endswith(("/embeddings", "/v1")):
        path += "/v1"
    path = path.removesuffix("/embeddings")
    return parts._replace(path=path, query="", fragment="").geturl(), next(iter(models), None)


def _check_inputs(inputs: Sequence[Any], kind: type, name: str) -> list[Any]:
    """Return the inputs as a list, or raise TypeError if one is of another type."""
    if isinstance(inputs, (str, bytes)):
        raise TypeError(f"{name} must be a list of {kind.__name__}: got a single {kind.__name__}")
    listed = list(inputs)
    wrong = {type(value).__name__ for value in listed if not isinstance(value, kind)}
    if wrong:
        raise TypeError(f"{name} must be a list of {kind.__name__}: it contains {min(wrong)}")
    return listed

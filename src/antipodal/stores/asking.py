"""Ask a service over HTTP: its answers, its problems as our errors, and when to ask again.

What may be repeated is sent again after a pause: if nothing listens, if the connection breaks, and
if the service says 503 or 429 with Retry-After. A call whose answer would differ the second time
(how many items there were to delete) is sent again only if it surely was not received.
"""

import random
import re
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from antipodal.errors import IdsTakenError, StoreError

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds
_CONNECTIONS = 32  # that are kept for threads which ask at the same time
_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_WRONG = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
_JSON = {"Content-Type": "application/json"}


class Asker:
    """A service at a URL; its key is sent in a header, and never shown."""

    def __init__(self, url: str, key: str | None, timeout: float, retries: int) -> None:
        self.url = _checked(url)
        self._timeout, self._retries = timeout, retries
        self._session: requests.Session | None = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
        if key is not None and not re.fullmatch(r"[\x21-\x7e]+", key):
            raise ValueError("a key must be printable ASCII, without spaces")
        self._session.auth = _Key(key)

    def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def check_open(self) -> None:
        """Raise StoreError after `close`."""
        if self._session is None:
            raise StoreError(f"{self.url} is closed")

    def ask(self, method: str, path: str, body: bytes | None = None, *, again: bool = True) -> Any:
        """Return the answer; without `again`, never send twice what may have been received."""
        for turn in range(self._retries + 1):
            try:
                response = self._send(method, path, body)
            except requests.ConnectionError as error:
                if turn == self._retries or not (again or _was_not_sent(error)):
                    raise StoreError(f"cannot reach {self.url}: {_reason(error)}") from None
                asked_for = 0.0
            except requests.Timeout:
                raise StoreError(f"{self.url} did not answer within {self._timeout:g} s") from None
            except requests.RequestException as error:
                raise StoreError(f"cannot ask {self.url}: {type(error).__name__}") from None
            else:
                wait = response.headers.get("Retry-After", "")
                is_busy = response.status_code in _BUSY and wait.isdecimal() and again
                if not is_busy or turn == self._retries:
                    return self._answer(response)
                asked_for = float(wait)
            pause = max(asked_for, _FIRST_PAUSE * 2**turn)
            time.sleep(min(pause, _LONGEST_PAUSE) * random.uniform(1.0, 1.5))
        raise AssertionError("unreachable")

    def _send(self, method: str, path: str, body: bytes | None) -> requests.Response:
        self.check_open()
        assert self._session is not None
        return self._session.request(
            method,
            f"{self.url}/{path}",
            data=body,
            headers=None if body is None else _JSON,
            timeout=self._timeout,
            allow_redirects=False,  # a key goes where it was meant to go
        )

    def _answer(self, response: requests.Response) -> Any:
        """Return what a response says, or raise what is wrong."""
        try:
            answer = response.json()
        except ValueError:
            answer = None
        status = response.status_code
        if status == HTTPStatus.OK and isinstance(answer, dict):
            return answer
        detail = answer.get("detail") if isinstance(answer, Mapping) else None
        if not isinstance(detail, str):
            raise StoreError(
                f"{self.url} answered {status}, as a service of antipodal does not. Is the "
                "address right?"
            )
        if status == HTTPStatus.CONFLICT:
            raise IdsTakenError(detail)
        if status in _WRONG:
            raise ValueError(detail)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            detail = "it is read-only"
        raise StoreError(f"{self.url}: {detail}")


class _Key:
    """Puts the key into a request; without one, keeps requests from looking for a password."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._key is not None:
            request.headers["Authorization"] = f"Bearer {self._key}"
        return request

    def __repr__(self) -> str:
        return "a key" if self._key else "no key"


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise ValueError("a service is at http://host:port or https://host/path: got another URL")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "the URL of a service has no user, password, ? or #: give the key as key=…"
        )
    return url.rstrip("/")


def _was_not_sent(error: requests.ConnectionError) -> bool:
    """Say whether there was no connection at all."""
    if isinstance(error, requests.ConnectTimeout):
        return True
    inner = error.args[0] if error.args else None
    return type(getattr(inner, "reason", None)).__name__ == "NewConnectionError"


def _reason(error: requests.ConnectionError) -> str:
    """Say in a few words why; what requests says has the whole of its objects in it."""
    inner = error.args[0] if error.args else error
    text = str(getattr(inner, "reason", inner))
    return text.rpartition(": ")[2].strip("()'\" ") or type(error).__name__

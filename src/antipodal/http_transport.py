"""HTTP requests with timeouts and retries; keys are sent in a header and never displayed."""

import random
import re
import time
from http import HTTPStatus
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from antipodal.errors import AntipodalError
from antipodal.validation import check_whole

_MIN_PAUSE, _MAX_PAUSE = 0.1, 10.0  # seconds
_CONNECTIONS = 32  # in the pool, for concurrent threads
_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
JSON = "application/json"


class HttpTransport:
    """HTTP requests to one server.

    Parameters
    ----------
    url : str
        Address of the server, without user, password, query and fragment.
    key : str or None
        API key, sent in the header `Authorization`.
    timeout : float
        Seconds to wait for a connection, and for each part of a response.
    retries : int
        Number of retries of failed requests.
    error : subclass of AntipodalError
        Exception to raise if the server cannot be reached, or does not respond in time.
    needs_retry_after : bool
        Retry requests answered with 429 or 503 only if they have the header `Retry-After`.
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        timeout: float,
        retries: int,
        error: type[AntipodalError],
        *,
        needs_retry_after: bool,
    ) -> None:
        check_whole(retries, "retries", 0)
        if not timeout > 0:
            raise ValueError(f"timeout must be more than 0 seconds: got {timeout}")
        self.url = _check_url(url)
        self._timeout, self._retries, self._error = timeout, int(retries), error
        self._needs_retry_after = needs_retry_after
        self._session: requests.Session | None = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
        if key is not None and not re.fullmatch(r"[\x21-\x7e]+", key):
            raise ValueError("key must be printable ASCII without spaces")
        self._session.auth = _KeyAuth(key)

    def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def check_open(self) -> None:
        """Raise an error after `close`."""
        if self._session is None:
            raise self._error(f"{self.url} is closed")

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        media_type: str = JSON,
        retry: bool = True,
    ) -> requests.Response:
        """Return the response, of any status.

        A request is retried with increasing delays if the server cannot be reached, closes the
        connection or is busy. Without `retry`, it is not repeated if it may have arrived.

        """
        for attempt in range(self._retries + 1):
            try:
                response = self._send(method, path, body, media_type)
            except requests.ConnectionError as error:
                if attempt == self._retries or not (retry or _was_not_sent(error)):
                    raise self._error(f"cannot reach {self.url}: {_reason(error)}") from None
                retry_after = 0.0
            except requests.Timeout:
                raise self._error(
                    f"{self.url} did not respond within {self._timeout:g} s"
                ) from None
            except requests.RequestException as error:
                raise self._error(f"request to {self.url} failed: {type(error).__name__}") from None
            else:
                header = response.headers.get("Retry-After", "")
                may_retry = retry and (header.isdecimal() or not self._needs_retry_after)
                is_busy = response.status_code in _BUSY and may_retry
                if not is_busy or attempt == self._retries:
                    return response
                retry_after = float(header) if header.isdecimal() else 0.0
            pause = max(retry_after, _MIN_PAUSE * 2**attempt)
            time.sleep(min(pause, _MAX_PAUSE) * random.uniform(1.0, 1.5))
        raise AssertionError("unreachable")

    def _send(
        self, method: str, path: str, body: bytes | None, media_type: str
    ) -> requests.Response:
        self.check_open()
        assert self._session is not None
        return self._session.request(
            method,
            f"{self.url}/{path}",
            data=body,
            headers=None if body is None else {"Content-Type": media_type},
            timeout=self._timeout,
            allow_redirects=False,  # never send the key to another address
        )


class _KeyAuth:
    """Add the key to a request; without a key, prevent requests from reading .netrc."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._key is not None:
            request.headers["Authorization"] = f"Bearer {self._key}"
        return request

    def __repr__(self) -> str:
        return "a key" if self._key else "no key"


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError("url must be http://host:port or https://host/path: got another URL")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("url must not contain a user, password, ? or #: pass the key as key=…")
    return url.rstrip("/")


def _was_not_sent(error: requests.ConnectionError) -> bool:
    """Return whether no connection was established."""
    if isinstance(error, requests.ConnectTimeout):
        return True
    inner = error.args[0] if error.args else None
    return type(getattr(inner, "reason", None)).__name__ == "NewConnectionError"


def _reason(error: requests.ConnectionError) -> str:
    """Return a short reason; messages of requests contain the repr of whole objects."""
    inner = error.args[0] if error.args else error
    text = str(getattr(inner, "reason", inner))
    return text.rpartition(": ")[2].strip("()'\" ") or type(error).__name__

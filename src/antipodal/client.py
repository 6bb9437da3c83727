"""`Client`: a running service with the methods of a store."""

import json
import random
import re
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import requests
from requests.adapters import HTTPAdapter

from antipodal.codes import Codes, code_width, from_hex, to_hex
from antipodal.errors import IdsTakenError, StoreError
from antipodal.index import SearchResult
from antipodal.stores.base import Store
from antipodal.stores.filters import And, Compare, Exists, Not, OneOf, Or, Where
from antipodal.stores.loading import batches
from antipodal.stores.metadata import clean, metadata_text
from antipodal.stores.snapshot import ItemBatch, Snapshot
from antipodal.validation import Ids, check_whole

_MIN_PAUSE, _MAX_PAUSE = 0.1, 10.0  # seconds
_CONNECTIONS = 32  # in the pool, for concurrent threads
_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_INVALID = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
_JSON = {"Content-Type": "application/json"}


class HttpTransport:
    """HTTP requests to a service, with retries; the key is sent in a header and never displayed."""

    def __init__(self, url: str, key: str | None, timeout: float, retries: int) -> None:
        self.url = _check_url(url)
        self._timeout, self._retries = timeout, retries
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
        """Raise StoreError after `close`."""
        if self._session is None:
            raise StoreError(f"{self.url} is closed")

    def request(
        self, method: str, path: str, body: bytes | None = None, *, retry: bool = True
    ) -> Any:
        """Return the response; without `retry`, never repeat a request that may have arrived."""
        for attempt in range(self._retries + 1):
            try:
                response = self._send(method, path, body)
            except requests.ConnectionError as error:
                if attempt == self._retries or not (retry or _was_not_sent(error)):
                    raise StoreError(f"cannot reach {self.url}: {_reason(error)}") from None
                retry_after = 0.0
            except requests.Timeout:
                raise StoreError(f"{self.url} did not respond within {self._timeout:g} s") from None
            except requests.RequestException as error:
                raise StoreError(f"request to {self.url} failed: {type(error).__name__}") from None
            else:
                header = response.headers.get("Retry-After", "")
                is_busy = response.status_code in _BUSY and header.isdecimal() and retry
                if not is_busy or attempt == self._retries:
                    return self._parse(response)
                retry_after = float(header)
            pause = max(retry_after, _MIN_PAUSE * 2**attempt)
            time.sleep(min(pause, _MAX_PAUSE) * random.uniform(1.0, 1.5))
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
            allow_redirects=False,  # never send the key to another address
        )

    def _parse(self, response: requests.Response) -> Any:
        """Return the JSON object of a response, or raise its error."""
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
                f"{self.url} returned status {status}, but is not an antipodal service. Is the "
                "address right?"
            )
        if status == HTTPStatus.CONFLICT:
            raise IdsTakenError(detail)
        if status in _INVALID:
            raise ValueError(detail)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            detail = "it is read-only"
        raise StoreError(f"{self.url}: {detail}")


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


_ENVELOPE = 200  # bytes of a request in addition to its items
_ID_TEXT = len(f"{-(2**63)}, ")  # bytes of the longest id in JSON
_ATTEMPTS = 5


class Client(Store, Snapshot):
    """A running service, used like a local store.

    Parameters
    ----------
    url : str
        Address of the service, ``http://127.0.0.1:8000``, or of one of its mounts,
        ``https://search.example.org/articles``.
    key : str, optional
        API key for reading or writing. It is sent unencrypted over http: use https outside this
        machine.
    timeout : float
        Seconds to wait for a connection and for a response.
    retries : int
        Number of retries of failed requests.

    Notes
    -----
    `get`, `search`, `radius`, `count` and `upsert` are retried with growing pauses if the service
    cannot be reached, closes the connection or is busy. `add` and `delete`, which are not
    idempotent, are retried only if the service cannot be reached.

    A call that exceeds the request limits of the service is split. Each part of an `upsert` is
    atomic and durable, even if a later part fails. A client has no snapshots.

    Raises
    ------
    StoreError
        The service cannot be reached, rejects the key, or remains busy.

    Examples
    --------
    ::

        with antipodal.Client("http://127.0.0.1:8000", key) as store:
            store.upsert([7], hasher.encode(rows), [{"label": 3}])
            store.search(hasher.encode(queries), k=5, where={"label": 3}).ids
    """

    def __init__(
        self, url: str, key: str | None = None, *, timeout: float = 60.0, retries: int = 5
    ) -> None:
        check_whole(retries, "retries", 0)
        if not timeout > 0:
            raise ValueError(f"timeout must be more than 0 seconds: got {timeout}")
        self._transport = HttpTransport(url, key, timeout, int(retries))
        self.place = self._transport.url
        try:
            about = self._describe()
            self.n_bits, self.model = int(about["n_bits"]), about["model"] or None
            self._limits: dict[str, int] = about["limits"]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections; closing twice is allowed."""
        self._transport.close()

    def next_id(self) -> int:
        """Return the id after the largest, 0 for an empty store."""
        return int(self._describe()["next_id"])

    # ----------------------------------------------------------------------------- writing

    def _put(self, ids: Ids, codes: Codes, metadata: list[str] | None, *, replace: bool) -> int:
        options = json.dumps({"replace": replace, "keep_metadata": metadata is None})
        parts = list(self._parts(ids, codes, metadata))
        if not replace and len(parts) > 1:
            self._check_unused(self._known(ids))
        replaced = n_stored = 0
        for n_items, items in parts:
            body = options[:-1].encode() + b', "items": [' + items + b"]}"
            try:
                answer = self._transport.request("PUT", "v1/items", body, retry=replace)
            except IdsTakenError as error:
                if n_stored:  # IdsTakenError would mean that nothing was stored
                    raise StoreError(
                        f"{error}. {n_stored} items before them are stored: another process added "
                        "these ids at the same time"
                    ) from None
                raise
            replaced, n_stored = replaced + int(answer["replaced"]), n_stored + n_items
        return replaced

    def _parts(
        self, ids: Ids, codes: Codes, metadata: list[str] | None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield items as JSON in parts within the limits of a request, with their number."""
        max_bytes, max_items = self._limits["body"] - _ENVELOPE, self._limits["batch"]
        some: list[bytes] = []
        size = 0
        for i, (number, code) in enumerate(
            zip(ids.tolist(), to_hex(codes, self.n_bits), strict=True)
        ):
            text = f'{{"id": {number}, "code": "{code}"'
            if metadata is not None:
                text += f', "metadata": {metadata[i]}'
            item = f"{text}}}".encode()
            if some and (len(some) == max_items or size + len(item) + 1 > max_bytes):
                yield len(some), b",".join(some)
                some, size = [], 0
            some.append(item)
            size += len(item) + 1
        if some:
            yield len(some), b",".join(some)

    def _delete(self, ids: Ids) -> int:
        deleted = 0
        for part in self._batches(ids):
            body = _json({"ids": part.tolist()})
            deleted += int(
                self._transport.request("DELETE", "v1/items", body, retry=False)["deleted"]
            )
        return deleted

    def _replace_all(self, batches: Iterator[ItemBatch]) -> None:
        before = set(self._all_ids().tolist())
        for batch in batches:
            self._put(batch.ids, batch.codes, batch.texts, replace=True)
            before.difference_update(batch.ids.tolist())
        self._delete(np.array(sorted(before), np.int64))

    # ----------------------------------------------------------------------------- reading

    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items in batches."""
        for part in self._batches(self._all_ids()):
            items = self.get(part)
            yield ItemBatch(items.ids, items.codes, [metadata_text(one) for one in items.metadata])

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        found: dict[int, tuple[bytes, dict[str, Any]]] = {}
        for part in self._batches(ids):
            items = self._post("v1/items/get", {"ids": part.tolist()})["items"]
            codes = from_hex([item["code"] for item in items], self.n_bits)
            for item, code in zip(items, codes, strict=True):
                found[item["id"]] = code.tobytes(), clean(item["metadata"])
        return found

    def _known(self, ids: Ids) -> Ids:
        return np.array(list(self._get(ids)), np.int64)

    def _largest_id(self) -> int | None:
        return self.next_id() - 1  # -1 for an empty store, below any id that it would assign

    def _search(self, codes: Codes, k: int, where: Where | None) -> SearchResult:
        results: list[SearchResult] = []
        size = min(self._max_codes(), max(1, self._limits["found"] // k))
        for part in batches(len(codes), size):
            results += map(_result, self._searches(codes[part], where, {"k": k}))
        if len({len(result.ids) for result in results}) > 1:
            raise StoreError(f"{self.place}: items were written during the search. Search again")
        return SearchResult.stack(results)

    def _radius(self, codes: Codes, r: int, where: Where | None) -> SearchResult:
        results: list[SearchResult] = []
        size = min(self._max_codes(), max(1, self._limits["found"] // self._limits["results"]))
        for part in batches(len(codes), size):
            for i, answer in enumerate(self._searches(codes[part], where, {"radius": r})):
                if answer["total"] > len(answer["results"]):
                    answer = self._all_pages(codes[part][i : i + 1], where, r, answer)
                results.append(_result(answer))
        return SearchResult.concatenate(results)

    def _all_pages(
        self, code: Codes, where: Where | None, r: int, first: dict[str, Any]
    ) -> dict[str, Any]:
        """Return all results of a radius search that exceed the limit of one response."""
        for _ in range(_ATTEMPTS):
            results, total = list(first["results"]), first["total"]
            while len(results) < total:
                page = {"radius": r, "offset": len(results)}
                (answer,) = self._searches(code, where, page)
                if answer["total"] != total or not answer["results"]:
                    break  # items were written: start over
                results += answer["results"]
            else:
                return {"results": results}
            (first,) = self._searches(code, where, {"radius": r})
        raise StoreError(f"{self.place}: items were written during the search. Search again")

    def _searches(
        self, codes: Codes, where: Where | None, options: dict[str, int]
    ) -> list[dict[str, Any]]:
        request = {"codes": to_hex(codes, self.n_bits), "items": False, **options}
        if where is not None:
            request["where"] = _filter(where)
        found: list[dict[str, Any]] = self._post("v1/search", request)["searches"]
        return found

    def _count(self, where: Where | None) -> int:
        request = {} if where is None else {"where": _filter(where)}
        return int(self._post("v1/count", request)["count"])

    def _check_open(self) -> None:
        self._transport.check_open()

    def _all_ids(self) -> Ids:
        any_code = np.zeros((1, code_width(self.n_bits)), np.uint8)
        return np.sort(self._radius(any_code, self.n_bits, None).ids)

    def _describe(self) -> Any:
        return self._transport.request("GET", "v1/store")

    def _post(self, path: str, request: dict[str, Any]) -> Any:
        return self._transport.request("POST", path, _json(request))

    def _batches(self, ids: Ids) -> Iterator[Ids]:
        return (ids[part] for part in batches(len(ids), self._max_values(_ID_TEXT)))

    def _max_codes(self) -> int:
        return self._max_values(2 * code_width(self.n_bits) + len('"", '))

    def _max_values(self, size: int) -> int:
        """Return the number of values of `size` bytes of JSON that fit into one request."""
        n_bytes = max(0, self._limits["body"] - _ENVELOPE)
        return min(self._limits["batch"], max(1, n_bytes // size))


def _json(request: dict[str, Any]) -> bytes:
    return json.dumps(request).encode()


def _result(answer: dict[str, Any]) -> SearchResult:
    """Return the result of one query from its JSON object."""
    results = answer["results"]
    return SearchResult(
        np.array([hit["id"] for hit in results], np.int64),
        np.array([hit["distance"] for hit in results], np.int32),
    )


def _filter(where: Where) -> dict[str, Any]:
    """Return a filter in the form that `parse_where` reads."""
    match where:
        case And(parts):
            return {"and": [_filter(part) for part in parts]} if parts else {}
        case Or(parts):
            return {"or": [_filter(part) for part in parts]}
        case Not(part):
            return {"not": _filter(part)}
        case OneOf(path, values):
            return {".".join(path): {"in": list(values)}}
        case Compare(path, relation, value):
            return {".".join(path): {relation: value}}
        case Exists(path):
            return {".".join(path): {"exists": True}}

"""HTTP client: the methods of a store, against a running service."""

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
from antipodal.index import Ball, Neighbours
from antipodal.stores.base import Store
from antipodal.stores.filters import And, Compare, Exists, Not, OneOf, Or, Where
from antipodal.stores.loading import batches
from antipodal.stores.metadata import clean, metadata_text
from antipodal.stores.results import ItemHits, nearest, within
from antipodal.stores.snapshot import ItemBatch, Snapshot
from antipodal.validation import Ids, check_whole

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


_ENVELOPE = 200  # bytes of a request beside its items
_ID_TEXT = len(f"{-(2**63)}, ")  # bytes of the longest id in JSON
_TRIES = 5


class Client(Store, Snapshot):
    """A service of antipodal, used as a store: code that runs with a file runs with it unchanged.

    Parameters
    ----------
    url : str
        Where the service is, ``http://127.0.0.1:8000``; one of its mounts,
        ``https://search.example.org/articles``.
    key : str, optional
        One of its keys, for reading or for writing. It is sent as it is: use https beyond this
        machine.
    timeout : float
        Seconds to wait for a connection, and for an answer.
    retries : int
        How often a call is sent again that may be: see below.

    Notes
    -----
    `get`, `search`, `radius`, `count` and `upsert` are repeated, with growing pauses, if the
    service cannot be reached, hangs up, or says that it is busy. `add` and `delete`, whose answers
    would differ the second time, are repeated only if the service cannot be reached.

    A call with more than the service takes in one request is sent in parts: a part of an `upsert`
    is durable, whole, even if a later one fails. It has no snapshots.

    Raises
    ------
    StoreError
        The service cannot be reached, refuses the key, or stays busy.

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
            raise ValueError(f"timeout must be more than 0 s: got {timeout}")
        self._asker = Asker(url, key, timeout, int(retries))
        self.place = self._asker.url
        try:
            about = self._about()
            self.n_bits, self.model = int(about["n_bits"]), about["model"] or None
            self._limits: dict[str, int] = about["limits"]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections; closing twice is fine."""
        self._asker.close()

    def next_id(self) -> int:
        """Return the id after the largest, 0 if there are no items."""
        return int(self._about()["next_id"])

    # ----------------------------------------------------------------------------- writing

    def _put(self, ids: Ids, codes: Codes, metadata: list[str] | None, *, replace: bool) -> int:
        options = json.dumps({"replace": replace, "keep_metadata": metadata is None})
        parts = list(self._parts(ids, codes, metadata))
        if not replace and len(parts) > 1:
            self._refuse(self._known(ids))
        replaced = n_stored = 0
        for n_items, items in parts:
            body = options[:-1].encode() + b', "items": [' + items + b"]}"
            try:
                answer = self._asker.ask("PUT", "v1/items", body, again=replace)
            except IdsTakenError as error:
                if n_stored:  # not for a caller who would take it that nothing was
                    raise StoreError(
                        f"{error}. {n_stored} items before them are stored: another writer was "
                        "faster"
                    ) from None
                raise
            replaced, n_stored = replaced + int(answer["replaced"]), n_stored + n_items
        return replaced

    def _parts(
        self, ids: Ids, codes: Codes, metadata: list[str] | None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield items as JSON, as many as a request may have, by their number and by their size."""
        most, most_items = self._limits["body"] - _ENVELOPE, self._limits["batch"]
        some: list[bytes] = []
        size = 0
        for place, (number, code) in enumerate(
            zip(ids.tolist(), to_hex(codes, self.n_bits), strict=True)
        ):
            text = f'{{"id": {number}, "code": "{code}"'
            if metadata is not None:
                text += f', "metadata": {metadata[place]}'
            item = f"{text}}}".encode()
            if some and (len(some) == most_items or size + len(item) + 1 > most):
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
            deleted += int(self._asker.ask("DELETE", "v1/items", body, again=False)["deleted"])
        return deleted

    def _replace_all(self, batches: Iterator[ItemBatch]) -> None:
        before = set(self._all_ids().tolist())
        for batch in batches:
            self._put(batch.ids, batch.codes, batch.texts, replace=True)
            before.difference_update(batch.ids.tolist())
        self._delete(np.array(sorted(before), np.int64))

    # ----------------------------------------------------------------------------- reading

    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items, some at a time."""
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
        return self.next_id() - 1  # -1 of an empty store: smaller than any id that it would give

    def _search(self, codes: Codes, k: int, where: Where | None) -> Neighbours:
        hits: ItemHits = []
        most = min(self._most_codes(), max(1, self._limits["found"] // k))
        for part in batches(len(codes), most):
            hits += map(_hits, self._searches(codes[part], where, {"k": k}))
        if len({len(ids) for ids, _ in hits}) > 1:
            raise StoreError(f"{self.place}: items were written during the search: search again")
        return nearest(hits)

    def _radius(self, codes: Codes, r: int, where: Where | None) -> Ball:
        hits: ItemHits = []
        most = min(self._most_codes(), max(1, self._limits["found"] // self._limits["results"]))
        for part in batches(len(codes), most):
            for place, answer in enumerate(self._searches(codes[part], where, {"radius": r})):
                if answer["total"] > len(answer["results"]):
                    answer = self._whole_ball(codes[part][place : place + 1], where, r, answer)
                hits.append(_hits(answer))
        return within(hits)

    def _whole_ball(
        self, code: Codes, where: Where | None, r: int, first: dict[str, Any]
    ) -> dict[str, Any]:
        """Ask for the rest of a ball that has more items than one answer may."""
        for _ in range(_TRIES):
            results, total = list(first["results"]), first["total"]
            while len(results) < total:
                page = {"radius": r, "offset": len(results)}
                (answer,) = self._searches(code, where, page)
                if answer["total"] != total or not answer["results"]:
                    break  # somebody wrote: begin anew
                results += answer["results"]
            else:
                return {"results": results}
            (first,) = self._searches(code, where, {"radius": r})
        raise StoreError(f"{self.place}: items are being written during the search: search again")

    def _searches(
        self, codes: Codes, where: Where | None, how: dict[str, int]
    ) -> list[dict[str, Any]]:
        request = {"codes": to_hex(codes, self.n_bits), "items": False, **how}
        if where is not None:
            request["where"] = _filter(where)
        found: list[dict[str, Any]] = self._post("v1/search", request)["searches"]
        return found

    def _count(self, where: Where | None) -> int:
        request = {} if where is None else {"where": _filter(where)}
        return int(self._post("v1/count", request)["count"])

    def _check_open(self) -> None:
        self._asker.check_open()

    def _all_ids(self) -> Ids:
        nowhere = np.zeros((1, code_width(self.n_bits)), np.uint8)
        return np.sort(self._radius(nowhere, self.n_bits, None).ids)

    def _about(self) -> Any:
        return self._asker.ask("GET", "v1/store")

    def _post(self, path: str, request: dict[str, Any]) -> Any:
        return self._asker.ask("POST", path, _json(request))

    def _batches(self, ids: Ids) -> Iterator[Ids]:
        return (ids[part] for part in batches(len(ids), self._most(_ID_TEXT)))

    def _most_codes(self) -> int:
        return self._most(2 * code_width(self.n_bits) + len('"", '))

    def _most(self, size: int) -> int:
        """Return how many values of `size` bytes of JSON fit into one request."""
        room = max(0, self._limits["body"] - _ENVELOPE)
        return min(self._limits["batch"], max(1, room // size))


def _json(request: dict[str, Any]) -> bytes:
    return json.dumps(request).encode()


def _hits(answer: dict[str, Any]) -> tuple[Ids, Any]:
    results = answer["results"]
    return (
        np.array([hit["id"] for hit in results], np.int64),
        np.array([hit["distance"] for hit in results], np.int32),
    )


def _filter(where: Where) -> dict[str, Any]:
    """Write a filter as `parse_where` reads it."""
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

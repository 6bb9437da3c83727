"""`Client`: a collection behind a service, with the methods of `Collection`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import numpy as np
import requests
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import check_codes, from_hex, to_hex
from antipodal.collection.drift import SAMPLE, CodeQuality, Drift
from antipodal.errors import IdsTakenError, StoreError
from antipodal.http_transport import JSON, HttpTransport
from antipodal.index import SearchResult
from antipodal.stores.items import Metadata, as_keys, check_unique_ids, clean, metadata_texts
from antipodal.stores.snapshot import Items
from antipodal.validation import check_vectors, check_whole

_INVALID = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
_ENVELOPE = 1_000  # bytes of a request in addition to its items or queries
_ATTEMPTS = 5
_MAX_OPTIONS = 4_000  # characters of search options in a URL; servers accept 8,000 or more
_FLOATS = "application/octet-stream"  # float32 vectors, row by row


class Client:
    """A collection behind a service, which encodes vectors and uses the scoring of the model.

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
    Reads and `upsert` are retried with increasing delays if the service cannot be reached, closes
    the connection or is busy. `add` and `delete` are not idempotent, and are retried only if the
    service cannot be reached.

    A call that exceeds the request limits of the service is split. Each part of an `upsert` is
    atomic and durable, even if a later part fails.

    Raises
    ------
    StoreError
        The service cannot be reached, rejects the key, or remains busy.

    Examples
    --------
    ::

        with antipodal.Client("http://127.0.0.1:8000", key) as docs:
            docs.upsert(vectors, ids=["a", "b"], metadata=[{"year": 2020}, {"year": 2021}])
            docs.search(queries, k=5, where={"year": {"gte": 2021}}).ids
    """

    def __init__(
        self, url: str, key: str | None = None, *, timeout: float = 60.0, retries: int = 5
    ) -> None:
        self._transport = HttpTransport(
            url, key, timeout, retries, StoreError, needs_retry_after=True
        )
        self.place = self._transport.url
        try:
            about = self._describe()
            self.n_bits, self.n_features = int(about["n_bits"]), int(about["n_features"])
            self.identity, self.scoring = about["model"], about["scoring"]
            self.id_type, self.keep_vectors = about["id_type"], about["keep_vectors"]
            self._limits: dict[str, int] = about["limits"]
        except KeyError as error:
            self.close()
            raise StoreError(
                f"{self.place} is a service of another version: its description lacks {error}"
            ) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections; closing twice is allowed."""
        self._transport.close()

    # ----------------------------------------------------------------------------- writing

    def upsert(self, vectors: ArrayLike, ids: ArrayLike, metadata: Metadata | None = None) -> int:
        """Encode and store vectors, and return the number of replaced items with the same ids."""
        rows = check_vectors(vectors, "vectors", self.n_features)
        return self._put(rows, self._ids_for(rows, ids), metadata, replace=True)

    def add(
        self, vectors: ArrayLike, ids: ArrayLike | None = None, metadata: Metadata | None = None
    ) -> NDArray[Any]:
        """Encode and store new vectors, and return their ids.

        Raises
        ------
        IdsTakenError
            A ValueError: some ids are in use, and nothing was stored.
        """
        rows = check_vectors(vectors, "vectors", self.n_features)
        if ids is not None or self.id_type == "string":
            given = self._ids_for(rows, ids)
            if len(self.get(given).ids):
                raise IdsTakenError(f"{self.place} already has some of these ids")
            self._put(rows, given, metadata, replace=False)
            return given
        kept = None if metadata is None else list(metadata)
        for attempt in range(_ATTEMPTS):
            first = int(self._describe()["next_id"])
            numbers = first + np.arange(len(rows))
            try:
                self._put(rows, numbers, kept, replace=False)
            except IdsTakenError:  # another writer took these ids
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            return numbers
        raise AssertionError("unreachable")

    def _ids_for(self, rows: NDArray[Any], ids: ArrayLike | None) -> NDArray[Any]:
        if ids is None:
            raise ValueError("ids are required: this collection has string ids, and got none")
        given = check_unique_ids(ids, self.id_type)
        if len(given) != len(rows):
            raise ValueError(
                f"ids must have one id for each of {len(rows)} vectors: got {len(given)}"
            )
        return given

    def _put(
        self, rows: NDArray[Any], ids: NDArray[Any], metadata: Metadata | None, *, replace: bool
    ) -> int:
        texts = metadata_texts(metadata, len(rows))
        replaced = n_stored = 0
        items = (
            f'{{"id": {json.dumps(i)}, "vector": {_numbers(row)}, "metadata": {text}}}'.encode()
            for i, row, text in zip(ids.tolist(), rows, texts, strict=True)
        )
        for n_items, part in self._parts(items):
            body = b'{"replace": ' + (b"true" if replace else b"false") + b', "items": [' + part
            try:
                answer = self._request("PUT", "v1/items", body + b"]}", retry=replace)
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
        self, values: Iterator[bytes], most: int | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield JSON values, joined into parts within the request limits, with their number."""
        max_bytes = self._limits["body"] - _ENVELOPE
        max_items = min(self._limits["batch"], most or self._limits["batch"])
        some: list[bytes] = []
        size = 0
        for value in values:
            if some and (len(some) == max_items or size + len(value) + 1 > max_bytes):
                yield len(some), b",".join(some)
                some, size = [], 0
            some.append(value)
            size += len(value) + 1
        if some:
            yield len(some), b",".join(some)

    def delete(self, ids: ArrayLike) -> int:
        """Delete the items with these ids, and return the number of deleted items."""
        deleted = 0
        for part in self._id_parts(check_unique_ids(ids, self.id_type)):
            body = b'{"ids": [' + part + b"]}"
            deleted += int(self._request("DELETE", "v1/items", body, retry=False)["deleted"])
        return deleted

    # ----------------------------------------------------------------------------- reading

    def get(self, ids: ArrayLike) -> Items:
        """Return the items with these ids, in the order given, without unknown ids."""
        items: list[dict[str, Any]] = []
        for part in self._id_parts(check_unique_ids(ids, self.id_type)):
            items += self._request("POST", "v1/items/get", b'{"ids": [' + part + b"]}")["items"]
        return Items(
            self._id_array(item["id"] for item in items),
            from_hex([item["code"] for item in items], self.n_bits),
            [clean(item["metadata"]) for item in items],
        )

    def count(self, where: Mapping[str, Any] | None = None) -> int:
        """Return the number of items, or of those that match a filter."""
        return int(self._post("v1/count", {} if where is None else {"where": where})["count"])

    def __len__(self) -> int:
        return self.count()

    def search(
        self,
        queries: ArrayLike | None = None,
        k: int = 10,
        *,
        codes: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        texts: Sequence[str] | None = None,
        where: Mapping[str, Any] | None = None,
        rerank: int | None = None,
        metadata: bool = False,
        scoring: str | None = None,
    ) -> SearchResult:
        """Return the k nearest items of each query: see `Collection.search`."""
        check_whole(k, "k", 1)
        options: dict[str, Any] = {"k": int(k), "items": metadata}
        given = {"where": where, "rerank": rerank, "scoring": scoring}
        options |= {name: value for name, value in given.items() if value is not None}
        if sum(value is not None for value in (queries, codes, ids, texts)) != 1:
            raise ValueError("search needs exactly one of queries, codes, ids and texts")
        if ids is not None:
            given_ids = check_unique_ids(ids, self.id_type).tolist()
            known = set(self.get(ids).ids.tolist())
            if missing := [number for number in given_ids if number not in known]:
                raise KeyError(f"{self.place} has no item {missing[0]!r}")
            found = [self._post("v1/search", {"id": number, **options}) for number in given_ids]
        else:
            found = list(self._searches(queries, codes, texts, options, k * (rerank or 1)))
        results = [self._result(answer) for answer in found]
        if len({len(result.ids) for result in results}) > 1:
            raise StoreError(f"{self.place}: items were written during the search. Search again")
        return self._stacked(results, found if metadata else None)

    def radius(
        self,
        queries: ArrayLike | None = None,
        r: int = 2,
        *,
        codes: ArrayLike | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> SearchResult:
        """Return all items within Hamming distance r of each query: see `Collection.radius`."""
        check_whole(r, "r", 0)
        if (queries is None) == (codes is None):
            raise ValueError("radius needs either queries or codes")
        options: dict[str, Any] = {"radius": int(r), "items": False, "scoring": "hamming"}
        if where is not None:
            options["where"] = where
        results = []
        for answer in self._searches(queries, codes, None, options, self._limits["results"]):
            if answer["total"] > len(answer["results"]):
                answer = self._all_pages(options | {"code": answer["code"]}, answer)
            results.append(self._result(answer))
        return SearchResult.concatenate(results)

    def _searches(
        self,
        queries: ArrayLike | None,
        codes: ArrayLike | None,
        texts: Sequence[str] | None,
        options: dict[str, Any],
        n_results: int,
    ) -> Iterator[dict[str, Any]]:
        """Yield the response to each query, in requests as large as the limits allow."""
        size = max(1, self._limits["found"] // n_results)
        encoded = quote(json.dumps(options))
        if queries is not None and len(encoded) <= _MAX_OPTIONS:
            rows = check_vectors(queries, "queries", self.n_features)
            for part in self._float_parts(rows, size):
                path = f"v1/search?options={encoded}"
                yield from self._request("POST", path, part, media_type=_FLOATS)["searches"]
            return
        if texts is not None:
            name, values = "texts", (json.dumps(text).encode() for text in texts)
        elif codes is not None:
            hexes = to_hex(check_codes(codes, self.n_bits), self.n_bits)
            name, values = "codes", (json.dumps(code).encode() for code in hexes)
        else:
            rows = check_vectors(queries, "queries", self.n_features)
            name, values = "vectors", (_numbers(row).encode() for row in rows)
        start = json.dumps(options)[:-1].encode()
        for _, part in self._parts(values, size):
            body = start + f', "{name}": ['.encode() + part + b"]}"
            yield from self._request("POST", "v1/search", body)["searches"]

    def _float_parts(self, rows: NDArray[Any], most: int) -> Iterator[bytes]:
        """Yield vectors as float32, in parts within the request limits."""
        in_body = self._limits["binary_body"] // (4 * self.n_features)
        size = max(1, min(self._limits["batch"], most, in_body))
        for start in range(0, len(rows), size):
            with np.errstate(over="ignore"):  # the service refuses infinite values
                yield rows[start : start + size].astype("<f4").tobytes()

    def check(self, new_vectors: ArrayLike) -> Drift:
        """Compare new vectors with those at fit time: see `Collection.check`.

        If there are more than the service accepts in one request, evenly spaced ones are sent.
        """
        rows = check_vectors(new_vectors, "new_vectors", self.n_features)
        size = min(len(rows), SAMPLE, self._limits["batch"])
        size = min(size, self._limits["binary_body"] // (4 * self.n_features))
        some = rows[np.linspace(0, max(len(rows) - 1, 0), size).astype(np.intp)]
        body = some.astype("<f4").tobytes()
        answer = self._request("POST", "v1/check", body, media_type=_FLOATS)
        before, now = CodeQuality(**answer["before"]), CodeQuality(**answer["now"])
        return Drift(before, now, answer["can_refit"])

    def _all_pages(self, request: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
        """Return all results of a radius search that exceed the limit of one response."""
        for _ in range(_ATTEMPTS):
            results, total = list(first["results"]), first["total"]
            while len(results) < total:
                answer = self._post("v1/search", request | {"offset": len(results)})
                if answer["total"] != total or not answer["results"]:
                    break  # items were written: start over
                results += answer["results"]
            else:
                return {"results": results}
            first = self._post("v1/search", request)
        raise StoreError(f"{self.place}: items were written during the search. Search again")

    def _result(self, answer: dict[str, Any]) -> SearchResult:
        """Return the result of one query from its JSON object."""
        hits = answer["results"]
        scores = [hit.get("score") for hit in hits]
        return SearchResult(
            self._id_array(hit["id"] for hit in hits),
            np.array([hit["distance"] for hit in hits], np.int32),
            None if None in scores else np.array(scores, np.float64),
        )

    def _stacked(
        self, results: list[SearchResult], answers: list[dict[str, Any]] | None
    ) -> SearchResult:
        if not results:
            return SearchResult(self._id_array(()).reshape(0, 0), np.empty((0, 0), np.int32))
        scores = [result.scores for result in results if result.scores is not None]
        metadata = None
        if answers is not None:
            metadata = [[clean(hit["metadata"]) for hit in one["results"]] for one in answers]
        return SearchResult(
            np.stack([result.ids for result in results]),
            np.stack([result.distances for result in results]),
            np.stack(scores) if len(scores) == len(results) else None,
            metadata=metadata,
        )

    # ----------------------------------------------------------------------------- requests

    def _id_array(self, ids: Any) -> NDArray[Any]:
        return as_keys(ids) if self.id_type == "string" else np.array(list(ids), np.int64)

    def _id_parts(self, ids: NDArray[Any]) -> Iterator[bytes]:
        return (part for _, part in self._parts(json.dumps(i).encode() for i in ids.tolist()))

    def _describe(self) -> Any:
        return self._request("GET", "v1/store")

    def _post(self, path: str, request: dict[str, Any]) -> Any:
        return self._request("POST", path, json.dumps(request).encode())

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        media_type: str = JSON,
        retry: bool = True,
    ) -> Any:
        """Return the JSON object of a response, or raise its error."""
        response = self._transport.request(method, path, body, media_type=media_type, retry=retry)
        return _parse(self.place, response)

    def __repr__(self) -> str:
        return f"Client({self.place!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _parse(url: str, response: requests.Response) -> Any:
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
            f"{url} returned status {status}, but is not an antipodal service. Is the "
            "address right?"
        )
    if status == HTTPStatus.CONFLICT:
        raise IdsTakenError(detail)
    if status in _INVALID:
        raise ValueError(detail)
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        detail = "it is read-only"
    raise StoreError(f"{url}: {detail}")


def _numbers(row: NDArray[Any]) -> str:
    """Return the values of a vector as JSON."""
    return json.dumps(row.tolist())

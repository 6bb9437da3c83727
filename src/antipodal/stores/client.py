"""The store behind a service, asked over HTTP: the methods and records of a store.

What is more than the service takes in one request is sent in parts. Each part is of one moment, and
written whole or not at all; between two parts others may write.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from antipodal.checks import Ids, check_whole
from antipodal.codes import Codes, code_width, from_hex, to_hex
from antipodal.errors import IdsTakenError, StoreError
from antipodal.index import Ball, Neighbours
from antipodal.stores.asking import Asker
from antipodal.stores.hits import ItemHits, nearest, within
from antipodal.stores.loading import batches
from antipodal.stores.metadata import clean, metadata_text
from antipodal.stores.snapshot import ItemBatch, Snapshot
from antipodal.stores.store import Store
from antipodal.stores.where import And, Compare, Exists, Not, OneOf, Or, Where

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

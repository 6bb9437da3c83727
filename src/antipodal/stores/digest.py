"""What items are, as one number: the same for the same items, in any order and any engine."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from antipodal.codes import code_width
from antipodal.stores.metadata import parse_metadata
from antipodal.stores.snapshot import ItemBatch

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def canonical(value: Any) -> str:
    """Return a value of metadata as JSON, the same whatever order an engine keeps fields in.

    Examples
    --------
    >>> canonical({"b": 1, "a": 0.5})
    '{"a":0.5,"b":1}'
    """
    return _encode(value)


class ItemsDigest:
    """The sum, modulo 2²⁵⁶, of a SHA-256 of each item: its id, code and metadata.

    A sum does not depend on the order. It tells copies from what went wrong; against someone who
    chooses items for their sum it is no guard.

    Parameters
    ----------
    n_bits : int
        Of a code; a part of what is summed.
    """

    def __init__(self, n_bits: int) -> None:
        self.items = 0
        self._sum = 0
        self._start = hashlib.sha256(n_bits.to_bytes(8, "little"))
        self._width = code_width(n_bits)

    def add(self, batch: ItemBatch) -> None:
        """Count these items in."""
        ids = batch.ids.astype("<i8").tobytes()
        codes = batch.codes.tobytes()
        for i, text in enumerate(batch.texts):
            digest = self._start.copy()
            digest.update(ids[8 * i : 8 * i + 8])
            digest.update(codes[self._width * i : self._width * (i + 1)])
            digest.update(canonical(parse_metadata(text)).encode())
            self._sum += int.from_bytes(digest.digest(), "little")
        self.items += len(batch.ids)
        self._sum %= 2**256

    def through(self, batches: Iterator[ItemBatch]) -> Iterator[ItemBatch]:
        """Yield batches, counted in."""
        for batch in batches:
            self.add(batch)
            yield batch

    @property
    def sha256(self) -> str:
        """The sum of all items so far, in hexadecimal digits."""
        return f"{self._sum:064x}"

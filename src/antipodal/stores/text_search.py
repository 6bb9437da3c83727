"""Full-text search in item metadata."""

from typing import Any, NamedTuple

import numpy as np

from antipodal.stores.metadata import parse_metadata
from antipodal.stores.snapshot import Snapshot
from antipodal.validation import Ids


class Mentions(NamedTuple):
    """Ids of items that have all words, increasing, and how many items were looked at."""

    ids: Ids
    looked_at: int


def find_words(store: Snapshot, words: str, limit: int, most: int) -> Mentions:
    """Look for items in whose metadata every word occurs, as a part of a value, in any case.

    No engine has an index of words: the items are read one after the other, at most `most` of
    them, until `limit` are found. Names of fields and pictures (`data:` URLs) are passed over.
    """
    sought = words.casefold().split()
    found: list[int] = []
    looked_at = 0
    for batch in store.batches() if sought else ():
        for number, text in zip(batch.ids.tolist(), batch.texts, strict=True):
            if looked_at >= most or len(found) >= limit:
                break
            looked_at += 1
            if _may_mention(text, sought) and _mentions(parse_metadata(text), sought):
                found.append(number)
        if looked_at >= most or len(found) >= limit:
            break
    return Mentions(np.sort(np.array(found, np.int64)), looked_at)


def _may_mention(text: str, sought: list[str]) -> bool:
    """Say quickly of most texts that they do not hold the words, which JSON may have escaped."""
    folded = text.casefold()
    return all(word in folded or '"' in word or "\\" in word for word in sought)


def _mentions(metadata: dict[str, Any], sought: list[str]) -> bool:
    values = [value.casefold() for value in _texts(metadata)]
    return all(any(word in value for value in values) for word in sought)


def _texts(value: Any) -> list[str]:
    """Return what can be read in a value: its strings and numbers, at whatever depth."""
    if isinstance(value, str):
        return [] if value.startswith("data:") else [value]
    if isinstance(value, dict):
        return [text for part in value.values() for text in _texts(part)]
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    return [] if value is None or isinstance(value, bool) else [str(value)]

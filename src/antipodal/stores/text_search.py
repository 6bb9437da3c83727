"""Full-text search in item metadata."""

from typing import Any, NamedTuple

import numpy as np

from antipodal.stores.metadata import parse_metadata
from antipodal.stores.snapshot import Snapshot
from antipodal.validation import Ids


class TextMatches(NamedTuple):
    """Ids of matching items, increasing, and the number of items scanned."""

    ids: Ids
    n_scanned: int


def find_words(store: Snapshot, words: str, limit: int, max_scanned: int) -> TextMatches:
    """Return items whose metadata contain every word, as part of a value, ignoring case.

    No engine has a full-text index: at most `max_scanned` items are scanned, until `limit` are
    found. Field names and images (`data:` URLs) are not searched.
    """
    folded = words.casefold().split()
    found: list[int] = []
    n_scanned = 0
    for batch in store.batches() if folded else ():
        for number, text in zip(batch.ids.tolist(), batch.texts, strict=True):
            if n_scanned >= max_scanned or len(found) >= limit:
                break
            n_scanned += 1
            if _may_match(text, folded) and _matches(parse_metadata(text), folded):
                found.append(number)
        if n_scanned >= max_scanned or len(found) >= limit:
            break
    return TextMatches(np.sort(np.array(found, np.int64)), n_scanned)


def _may_match(text: str, words: list[str]) -> bool:
    """Return False for most texts without the words; words that JSON escapes are not checked."""
    folded = text.casefold()
    return all(word in folded or '"' in word or "\\" in word for word in words)


def _matches(metadata: dict[str, Any], words: list[str]) -> bool:
    values = [value.casefold() for value in _texts(metadata)]
    return all(any(word in value for value in values) for word in words)


def _texts(value: Any) -> list[str]:
    """Return all strings and numbers in a value, at any depth, as texts."""
    if isinstance(value, str):
        return [] if value.startswith("data:") else [value]
    if isinstance(value, dict):
        return [text for part in value.values() for text in _texts(part)]
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    return [] if value is None or isinstance(value, bool) else [str(value)]

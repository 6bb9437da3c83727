"""Full-text search in item metadata."""

import heapq
import math
import re
from typing import Any, NamedTuple

import numpy as np

from antipodal.stores.metadata import parse_metadata
from antipodal.stores.snapshot import Snapshot
from antipodal.validation import Ids


class TextMatches(NamedTuple):
    """Ids of matching items, most relevant first, and the number of items scanned."""

    ids: Ids
    n_scanned: int


def find_words(store: Snapshot, words: str, limit: int, max_scanned: int) -> TextMatches:
    """Return the most relevant items whose metadata contain every word, ignoring case.

    Whole words count more than parts of words, and short values, such as titles, more than long
    ones. Equally relevant items are ordered by id.

    No engine has a full-text index: at most `max_scanned` items are scanned. Field names and
    images (`data:` URLs) are not searched.
    """
    folded = words.casefold().split()
    found: list[tuple[float, int]] = []  # the relevance and the negative id
    n_scanned = 0
    for batch in store.batches() if folded else ():
        for number, text in zip(batch.ids.tolist(), batch.texts, strict=True):
            if n_scanned >= max_scanned:
                break
            n_scanned += 1
            if _may_match(text, folded) and (value := relevance(parse_metadata(text), folded)):
                keep = heapq.heappush if len(found) < limit else heapq.heappushpop
                keep(found, (value, -number))
        if n_scanned >= max_scanned:
            break
    return TextMatches(np.array([-i for _, i in sorted(found, reverse=True)], np.int64), n_scanned)


def _may_match(text: str, words: list[str]) -> bool:
    """Return False for most texts without the words; words that JSON escapes are not checked."""
    folded = text.casefold()
    return all(word in folded or '"' in word or "\\" in word for word in words)


def relevance(metadata: dict[str, Any], words: list[str]) -> float:
    """Return the relevance of an item for folded words, 0 if it does not contain all of them."""
    values = [value.casefold() for value in _texts(metadata)]
    best = [max((_weight(word, value) for value in values), default=0.0) for word in words]
    return sum(best) if all(best) else 0.0


def _weight(word: str, value: str) -> float:
    if word not in value:
        return 0.0
    quoted = re.escape(word)
    if re.search(rf"(?<!\w){quoted}(?!\w)", value):
        match = 1.0
    else:
        match = 0.5 if re.search(rf"(?<!\w){quoted}", value) else 0.25
    return match / (1 + math.log1p(len(value) / 100))


def _texts(value: Any) -> list[str]:
    """Return all strings and numbers in a value, at any depth, as texts."""
    if isinstance(value, str):
        return [] if value.startswith("data:") else [value]
    if isinstance(value, dict):
        return [text for part in value.values() for text in _texts(part)]
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    return [] if value is None or isinstance(value, bool) else [str(value)]

"""Score binary codes: how well Hamming distance ranks what is relevant, and how healthy bits are.

The conventions (ties, denominators, empty balls) are explained in docs/evaluation.md. Values are
percentages, except counts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import Codes, check_codes, unpack
from antipodal.ranking import Counts, Floats, TiedRanking

Words = NDArray[np.uint64]
ApAtK = Literal["relevant", "found"]
Balls = Literal["macro", "nonempty", "micro"]

BLOCK_BYTES = 2**21  # about a core's cache: 59,000 items for two queries at a time


class AtK(NamedTuple):
    """Scores of the first k items: mean average precision and mean precision."""

    map: float
    map_worst: float
    map_best: float
    mp: float
    mp_worst: float
    mp_best: float


class Ball(NamedTuple):
    """Scores of the items within a radius, and the share of queries that have none there."""

    precision: float
    recall: float
    f1: float
    empty: float


@dataclass(frozen=True)
class BitHealth:
    """What the codes of a database look like, whatever is relevant; see `bit_health`."""

    bit_balance: float
    bit_correlation: float
    distinct_codes: int
    quantisation_error: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` measured: percentages and counts. `to_dict` gives them flat."""

    queries: int
    queries_without_relevant: int
    database: int
    chance: float
    map: float
    map_worst: float
    map_best: float
    at: dict[int, AtK]
    radius: dict[int, Ball]
    health: BitHealth

    def to_dict(self) -> dict[str, float | int]:
        """Return every value under a name of its own: map, map_at_10_worst, precision_r2, ..."""
        flat = {f.name: getattr(self, f.name) for f in fields(self)[:-3]}
        for k, at in self.at.items():
            for name, value in at._asdict().items():
                score, *order = name.split("_")
                flat["_".join([score, "at", str(k), *order])] = value
        for r, ball in self.radius.items():
            flat |= {f"{name}_r{r}": value for name, value in ball._asdict().items()}
        health = {f.name: getattr(self.health, f.name) for f in fields(self.health)}
        return flat | {name: value for name, value in health.items() if value is not None}


def evaluate(
    query_codes: ArrayLike,
    database_codes: ArrayLike,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    *,
    n_bits: int,
    radii: Sequence[int] = (0, 2),
    top: Sequence[int] = (),
    ap_at_k: ApAtK = "relevant",
    balls: Balls = "macro",
    projections: ArrayLike | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Evaluation:
    """Rank the database by Hamming distance to each query, and score the rankings.

    Parameters
    ----------
    query_codes, database_codes : uint8 arrays (n, ⌈n_bits / 8⌉)
        Packed codes, as from `pack` or a hasher's `encode`.
    query_labels, database_labels : arrays (n,) or (n, n_concepts)
        Integers or strings: an item is relevant if its label is the query's. Or a table of 0 and
        1, a column a concept: an item is relevant if it shares at least one with the query.
    n_bits : int
        Bits of a code.
    radii : sequence of int
        Score the items at Hamming distance ≤ r, for each r.
    top : sequence of int
        Score the first k items, for each k.
    ap_at_k : {"relevant", "found"}
        What divides average precision at k: min(k, number relevant), or the number of relevant
        items found among the first k, as some repositories do.
    balls : {"macro", "nonempty", "micro"}
        Average precision and recall at a radius over all queries (an empty ball has precision 0),
        over the queries whose ball is not empty, or pool the items of all balls.
    projections : array (n_database, n_bits), optional
        The real values whose signs are the database codes, for the quantisation error.
    block_bytes : int
        Roughly how much memory to work in. It changes the speed and nothing else.

    Returns
    -------
    Evaluation
        Queries without any relevant item are counted and left out of every mean.

    Examples
    --------
    >>> from antipodal.codes import pack
    >>> database = pack([[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0], [1, 1, 1, 1]])
    >>> result = evaluate(pack([[0, 0, 0, 0]]), database, ["a"], ["a", "a", "b", "a"], n_bits=4)
    >>> round(result.map, 2), round(result.map_worst, 2), round(result.map_best, 2)
    (86.11, 80.56, 91.67)
    """
    query = check_codes(query_codes, n_bits, "query_codes")
    database = check_codes(database_codes, n_bits, "database_codes")
    _check_options(query, database, radii, top, ap_at_k, balls, block_bytes)
    labels = _check_labels(query_labels, database_labels, len(query), len(database))
    health = bit_health(database, n_bits, projections, block_bytes=block_bytes)

    scores: list[Floats] = []
    for items, relevant in _histograms(query, database, *labels, n_bits, block_bytes):
        scored = relevant.any(axis=1)
        if scored.any():
            scores.append(_score(items[scored], relevant[scored], radii, top, ap_at_k))
    if not scores:
        raise ValueError(
            "no query has a relevant item in the database. "
            "Do query_labels and database_labels use the same names?"
        )
    table = np.concatenate(scores, axis=1)
    n_relevant, ap, in_balls = table[0], table[1 : 4 + 6 * len(top)], table[4 + 6 * len(top) :]
    means = (100 * ap.mean(axis=1)).tolist()
    return Evaluation(
        queries=len(query),
        queries_without_relevant=len(query) - len(n_relevant),
        database=len(database),
        chance=100 * float(n_relevant.mean()) / len(database),
        map=means[0],
        map_worst=means[1],
        map_best=means[2],
        at={k: AtK(*means[3 + 6 * i : 9 + 6 * i]) for i, k in enumerate(top)},
        radius={
            r: _ball(in_balls[2 * i], in_balls[2 * i + 1], n_relevant, balls)
            for i, r in enumerate(radii)
        },
        health=health,
    )

"""Retrieval metrics of binary codes ranked by Hamming distance, and statistics of their bits.

docs/research/evaluation.md explains the conventions: ties, denominators, queries without results.
Values are percentages, except counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import index
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import Codes, check_codes, unpack
from antipodal.evaluation.ranking import (
    Counts,
    Divisor,
    TiedRanking,
    Unsigned,
    blocks,
    count_by_distance,
    hamming_distances,
    to_words,
)
from antipodal.validation import known_labels

__all__ = [
    "AtK",
    "BitHealth",
    "Evaluation",
    "RadiusScores",
    "bit_health",
    "evaluate",
    "hamming_distances",
]

Balls = Literal["macro", "nonempty", "micro"]

BLOCK_BYTES = 2**24  # larger blocks are not faster


class AtK(NamedTuple):
    """Scores of the first k items: mean average precision and mean precision."""

    map: float
    map_worst: float
    map_best: float
    mp: float
    mp_worst: float
    mp_best: float


class RadiusScores(NamedTuple):
    """Scores of the items within a radius, and the share of queries without any."""

    precision: float
    recall: float
    f1: float
    empty: float


@dataclass(frozen=True)
class BitHealth:
    """Statistics of the codes of a database, independent of labels; see `bit_health`."""

    bit_balance: float
    bit_correlation: float
    distinct_codes: int
    quantisation_error: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """Result of `evaluate`: percentages and counts.

    Attributes
    ----------
    queries, queries_without_relevant, database : int
        Number of queries, of queries without a relevant item, and of items.
    chance : float
        Mean share of relevant items: the expected precision of a random ranking.
    map, map_worst, map_best : float
        Mean average precision: its expectation over tie orders, and the worst and best order.
    at : dict of AtK
        Scores of the first k items, by k.
    radius : dict of RadiusScores
        Scores of the items within a Hamming radius, by radius.
    health : BitHealth
        Statistics of the bits of the database.
    """

    queries: int
    queries_without_relevant: int
    database: int
    chance: float
    map: float
    map_worst: float
    map_best: float
    at: dict[int, AtK]
    radius: dict[int, RadiusScores]
    health: BitHealth

    def to_dict(self) -> dict[str, float | int]:
        """Return all values in a flat dict with keys such as map, map_at_10_worst, precision_r2."""
        flat = {f.name: getattr(self, f.name) for f in fields(self)[:-3]}
        for k, at in self.at.items():
            for name, value in at._asdict().items():
                score, *order = name.split("_")
                flat["_".join([score, "at", str(k), *order])] = value
        for r, scores in self.radius.items():
            flat |= {f"{name}_r{r}": value for name, value in scores._asdict().items()}
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
    ap_at_k: Divisor = "relevant",
    balls: Balls = "macro",
    projections: ArrayLike | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Evaluation:
    """Score the rankings of a database by Hamming distance to each query.

    Parameters
    ----------
    query_codes, database_codes : uint8 arrays (n, ⌈n_bits / 8⌉)
        Packed codes, such as `pack` or the `encode` of a hasher returns.
    query_labels, database_labels : arrays (n,) or (n, n_concepts)
        Integers or strings: an item is relevant if its label equals that of the query. Or 0/1
        with one column per concept: an item is relevant if it shares a concept with the query.
    n_bits : int
        Code length.
    radii : sequence of int
        Hamming radii r: score the items at distance ≤ r.
    top : sequence of int
        Numbers k of first items to score.
    ap_at_k : {"relevant", "found"}
        Divisor of average precision at k: min(k, number of relevant items), or the number of
        relevant items among the first k, as some repositories use.
    balls : {"macro", "nonempty", "micro"}
        Averaging of precision and recall within a radius. "macro": over all queries, where a query
        without results has precision 0. "nonempty": over the queries with results. "micro": over
        pooled results.
    projections : array (n_database, n_bits), optional
        Values whose signs are the database codes, for the quantisation error.
    block_bytes : int
        Approximate working memory. It affects the speed only.

    Returns
    -------
    Evaluation
        Queries without any relevant item are counted and excluded from every mean.

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
    radii, top = [index(r) for r in radii], [index(k) for k in top]
    _check_options(len(query), len(database), radii, top, ap_at_k, balls)
    labels = check_labels(query_labels, database_labels, len(query), len(database))
    health = bit_health(database, n_bits, projections, block_bytes=block_bytes)

    items, relevant = count_by_distance(query, database, *labels, n_bits, block_bytes)
    scored = relevant.any(axis=1)
    if not scored.any():
        raise ValueError(
            "no query has a relevant item in the database. "
            "Do query_labels and database_labels use the same names?"
        )
    items, relevant = items[scored], relevant[scored]
    map_, *at = _mean_scores(items, relevant, top, ap_at_k, block_bytes)
    return Evaluation(
        queries=len(query),
        queries_without_relevant=len(query) - len(items),
        database=len(database),
        chance=100 * float(relevant.sum() / items.sum()),
        map=map_[0],
        map_worst=map_[1],
        map_best=map_[2],
        at={k: AtK(*scores) for k, scores in zip(top, at, strict=True)},
        radius={r: _within(items, relevant, r, balls) for r in radii},
        health=health,
    )


def bit_correlations(
    codes: Codes, n_bits: int, block_bytes: int = BLOCK_BYTES
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of ones of each bit, and the absolute correlations of all pairs of bits.

    The correlations of a constant bit are 0, also with itself.
    """
    n = len(codes)
    both_set = np.zeros((n_bits, n_bits))
    for rows in blocks(
        n, min(2**24, block_bytes // (32 * n_bits))
    ):  # float32 counts exactly up to 2^24
        bits = unpack(codes[rows], n_bits).astype(np.float32)
        both_set += bits.T @ bits
    share = both_set.diagonal() / n
    covariance = both_set / n - np.outer(share, share)
    deviation = np.sqrt(share * (1 - share))
    deviation[deviation == 0] = np.inf
    return share, np.abs(covariance) / np.outer(deviation, deviation)


def bit_health(
    codes: ArrayLike,
    n_bits: int,
    projections: ArrayLike | None = None,
    *,
    block_bytes: int = BLOCK_BYTES,
) -> BitHealth:
    """Return statistics of the bits of a database.

    Returns
    -------
    BitHealth
        bit_balance
            Share of the rarer value of a bit, averaged over bits: 50 is ideal, 0 is constant.
        bit_correlation
            Absolute correlation of two bits, averaged over pairs of bits. A constant bit counts
            as uncorrelated, but lowers `bit_balance`.
        distinct_codes
            Number of different codes.
        quantisation_error
            With `projections` Z (n, n_bits): ‖z/s - sign(z)‖ / √n_bits averaged over the rows z
            of Z, where s is the mean of |Z|. It is 0 if the projections are ±s.

    Examples
    --------
    >>> from antipodal.codes import pack
    >>> bit_health(pack([[0, 0], [0, 1], [1, 0], [1, 1]]), 2)
    BitHealth(bit_balance=50.0, bit_correlation=0.0, distinct_codes=4, quantisation_error=None)
    """
    codes = check_codes(codes, n_bits)
    n = len(codes)
    if not n:
        raise ValueError("codes must have at least one row: got an empty array")
    share, correlation = bit_correlations(codes, n_bits, block_bytes)
    n_pairs = n_bits * (n_bits - 1) / 2
    words = to_words(codes)
    in_order = np.sort(words) if len(words) == 1 else words[:, np.lexsort(words)]
    error = None
    if projections is not None:
        error = _quantisation_error(projections, (n, n_bits), block_bytes)
    return BitHealth(
        bit_balance=100 * float(np.minimum(share, 1 - share).mean()),
        bit_correlation=100 * float(np.triu(correlation, 1).sum() / max(n_pairs, 1)),
        distinct_codes=1 + int((in_order[:, 1:] != in_order[:, :-1]).any(axis=0).sum()),
        quantisation_error=error,
    )


def _mean_scores(
    items: Counts, relevant: Counts, top: Sequence[int], ap_at_k: Divisor, block_bytes: int
) -> list[list[float]]:
    """Return means over queries in percent: the three mAPs, then the values of AtK for each k."""
    parts = []
    for rows in blocks(len(items), block_bytes // (128 * items.shape[1])):
        ranking = TiedRanking(items[rows], relevant[rows])
        at_k = [[*ranking.average_precision(k, ap_at_k), *ranking.precision(k)] for k in top]
        parts.append([[*ranking.average_precision()], *at_k])
    return [  # concatenated first, so that the block size does not affect rounding
        [100 * float(np.concatenate(score).mean()) for score in zip(*scores, strict=True)]
        for scores in zip(*parts, strict=True)
    ]


def _within(items: Counts, relevant: Counts, radius: int, balls: Balls) -> RadiusScores:
    """Return mean precision and recall of the items within a radius, and their F1."""
    near = slice(radius + 1)
    counts = np.stack([items[:, near].sum(1), relevant[:, near].sum(1), relevant.sum(1)])
    empty = counts[0] == 0
    if balls == "micro":
        counts = counts.sum(axis=1, keepdims=True)
    elif balls == "nonempty":
        counts = counts[:, ~empty]
    inside, hits, n_relevant = counts
    n_queries = max(1, len(inside))
    precision = float((hits / np.maximum(inside, 1)).sum() / n_queries)
    recall = float((hits / n_relevant).sum() / n_queries)
    f1 = 2 * precision * recall / (precision + recall) if precision else 0.0
    return RadiusScores(100 * precision, 100 * recall, 100 * f1, 100 * float(empty.mean()))


def _quantisation_error(projections: ArrayLike, shape: tuple[int, int], block_bytes: int) -> float:
    """Return 100 · mean over rows z of ‖z/s - sign(z)‖/√n_bits, where s is the mean of |Z|."""
    Z = np.asarray(projections)
    if Z.shape != shape:
        raise ValueError(
            f"projections must have one row per database code and one column per bit, {shape}: "
            f"got shape {Z.shape}"
        )
    parts = [Z[rows] for rows in blocks(len(Z), block_bytes // (32 * Z.shape[1]))]
    s = sum(float(np.abs(z, dtype=np.float64).sum()) for z in parts) / Z.size
    if not np.isfinite(s):
        raise ValueError("projections must be finite: some values are NaN or infinite")
    total = 0.0
    for z in parts:
        gap = np.divide(z, s or 1.0, dtype=np.float64) - np.where(z > 0, 1, -1)  # 0 counts as -1
        total += float(np.sqrt(np.mean(gap**2, axis=1)).sum())
    return 100 * total / len(Z)


def _check_options(
    n_queries: int,
    n_items: int,
    radii: Sequence[int],
    top: Sequence[int],
    ap_at_k: str,
    balls: str,
) -> None:
    if n_queries == 0 or n_items == 0:
        raise ValueError(
            f"there must be at least one query and one item: got {n_queries} query codes and "
            f"{n_items} database codes"
        )
    if min(radii, default=0) < 0:
        raise ValueError(f"radii must not be negative: got {radii}")
    if min(top, default=1) < 1:
        raise ValueError(f"top must contain positive numbers of items: got {top}")
    for name, value, allowed in ("ap_at_k", ap_at_k, Divisor), ("balls", balls, Balls):
        if value not in get_args(allowed):
            raise ValueError(f"{name} must be one of {get_args(allowed)}: got {value!r}")


def check_labels(
    query: ArrayLike, database: ArrayLike, n_queries: int, n_items: int
) -> tuple[Unsigned, Unsigned]:
    """Check labels; return class ids (n,), or concepts packed into words (n_words, n)."""
    q = _check_label_array(query, n_queries, "query")
    d = _check_label_array(database, n_items, "database")
    if q.ndim != d.ndim or q.shape[1:] != d.shape[1:]:
        raise ValueError(
            "query_labels and database_labels must both have shape (n,), or both (n, n_concepts) "
            f"with the same concepts: got shapes {q.shape} and {d.shape}"
        )
    if q.ndim == 2:
        return to_words(np.packbits(q, axis=1)), to_words(np.packbits(d, axis=1))
    if (q.dtype.kind == "U") != (d.dtype.kind == "U"):
        raise ValueError(
            "query_labels and database_labels must both be integers or both be strings: "
            f"got {q.dtype} and {d.dtype}"
        )
    if np.result_type(q, d).kind == "f":  # uint64 and int64 would be rounded to float64
        q, d = q.astype(object), d.astype(object)
    labels = np.concatenate([q, d])
    names, places = np.unique(labels, return_inverse=True)
    ids: Unsigned = places.astype(np.min_scalar_type(len(names)))  # small ids compare faster
    return ids[:n_queries], ids[n_queries:]


def _check_label_array(labels: ArrayLike, n: int, side: str) -> NDArray[Any]:
    array = known_labels(labels, f"{side}_labels")
    if array.ndim not in (1, 2) or len(array) != n or array.shape[1:] == (0,):
        raise ValueError(
            f"{side}_labels must have one row per code, shape ({n},) or ({n}, n_concepts): "
            f"got shape {array.shape}"
        )
    if array.ndim == 2:
        hot: NDArray[np.bool_] = array == 1
        if not np.all(hot | (array == 0)):
            raise ValueError(
                f"{side}_labels with one column per concept must be 0 or 1: got other values. "
                "If each row has one label, pass shape (n,)"
            )
        return hot
    if array.dtype.kind not in "biuU":
        raise ValueError(
            f"{side}_labels of shape (n,) must be integers or strings: got {array.dtype}. "
            "If they are whole numbers, pass labels.astype(int)"
        )
    return array

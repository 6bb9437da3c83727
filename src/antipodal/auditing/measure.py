"""Measure what codes keep of the neighbours that vectors have: every code, every way to search."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from antipodal.auditing.engines import Contender, GivenCodes, HasherCodes, faiss_peers
from antipodal.auditing.findings import Audit
from antipodal.auditing.int8 import Int8Vectors
from antipodal.auditing.judgements import Judgements
from antipodal.auditing.setting import Setting
from antipodal.auditing.survey import survey, without
from antipodal.auditing.trial import Trial
from antipodal.auditing.truth import METRICS, Metric, true_neighbours
from antipodal.checks import Ids, check_whole
from antipodal.codes import check_codes
from antipodal.hashers import BaseHasher
from antipodal.hashers.methods import make_hasher
from antipodal.hashers.parts.rows import draw_rows, row_blocks

Progress = Callable[[str, int, int], None]


def audit(
    X: ArrayLike,
    bits: Sequence[int] = (64, 128, 256),
    *,
    queries: ArrayLike | None = None,
    n_queries: int = 1000,
    k: int = 10,
    metric: Metric = "cosine",
    methods: Sequence[str] | None = None,
    models: Sequence[BaseHasher] = (),
    peers: bool = True,
    relevance: ArrayLike | None = None,
    sample: int | None = None,
    random_state: Any = 0,
    progress: Progress = lambda what, done, total: None,
) -> Audit:
    """Measure what codes of vectors keep of their true neighbours; no labels are needed.

    Neighbours are found exactly, among all rows. Each code is searched by Hamming distance and with
    queries that stay real, and its candidates are put in order by their vectors as well.

    Parameters
    ----------
    X : (m, n)
        Vectors: an array, a memory map, or what `antipodal.open_vectors` gives.
    bits : sequence of int
        Lengths of the codes.
    queries : (q, n), optional
        By default so many rows of X are drawn; the row itself then does not count as its neighbour.
    n_queries : int
        How many to draw, at most.
    k : int
        Neighbours of a query.
    metric : {"cosine", "dot", "euclidean"}
        What makes rows neighbours.
    methods : sequence of str, optional
        Hashers with their settings, as `antipodal bench` names them. By default those that need no
        labels and make codes of that length.
    models : sequence of hashers
        Fitted ones, such as `antipodal.load` gives, audited as they are.
    peers : bool
        Whether to audit RaBitQ, TurboQuant and product quantisation of Faiss as well.
    relevance : (p, 2) or (p, 3), optional
        Judgements: row of a query, row of X, and a grade.
    sample : int, optional
        Look at so many rows alone, drawn by the seed: a first answer in seconds.
    random_state : int
        Seed of all that is drawn.
    progress : callable
        Called with what is being done, how much of it is, and of how much.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, _ = load_digits(return_X_y=True)
    >>> found = audit(X, bits=(32,), methods=["ITQ"], peers=False, n_queries=100)
    >>> [setting.search for setting in found.settings]
    ['hamming', 'asymmetric']
    """
    rng = check_random_state(random_state)
    seed = int(rng.randint(2**31 - 1))
    rows = _check_vectors(X, "X")
    check_whole(n_queries, "n_queries", 1)
    _check_metric(metric)
    if relevance is not None and queries is None:
        raise ValueError("relevance needs queries: it names their rows")
    if relevance is not None and sample is not None:
        raise ValueError("relevance names rows of all of X: leave sample out")
    # now: a wrong name should not show after minutes
    contenders = list(_contenders(rows.shape[1], tuple(bits), methods, models, peers, metric, seed))
    numbers: Ids = np.arange(len(rows))
    if sample is not None:
        check_whole(sample, "sample", 2)
        numbers = np.sort(draw_rows(len(rows), sample, rng))
        rows = np.asarray(rows[numbers])
    seen = survey(rows)
    drawable = np.ones(len(rows), bool)
    drawable[seen.zero] = False
    if len(seen.not_finite):
        if relevance is not None:
            raise ValueError(f"X must be finite where rows are judged: {seen.remarks()[0]}")
        rows, numbers = without(rows, seen.not_finite), np.delete(numbers, seen.not_finite)
        drawable = np.delete(drawable, seen.not_finite)
    own: Ids | None = None
    if queries is None:
        own = np.sort(rng.permutation(np.flatnonzero(drawable))[:n_queries])
        Q = np.asarray(rows[own])
    else:
        Q = _check_queries(queries, rows)
    _check_k(k, len(rows) - (own is not None))
    judgements = None if relevance is None else Judgements.of(relevance, len(Q), len(rows))
    truth = true_neighbours(rows, Q, k, metric, own=own, progress=partial(progress, "neighbours"))
    trial = Trial(rows, Q, own, truth, k, metric, judgements, Int8Vectors(rows, metric), rng)
    settings: list[Setting] = []
    for i, make in enumerate(contenders):
        progress("codes", i, len(contenders))
        settings += trial.of(make())
    progress("codes", len(contenders), len(contenders))
    ndcg, judged_recall = (None, None) if judgements is None else judgements.scores(truth)
    return Audit(
        seen, metric, k, len(Q), rows.dtype.itemsize, settings,
        None if own is None else numbers[own], ndcg, judged_recall, truth, numbers,
    )  # fmt: skip


def audit_codes(
    query_codes: ArrayLike,
    database_codes: ArrayLike,
    queries: ArrayLike,
    X: ArrayLike,
    *,
    n_bits: int,
    k: int = 10,
    metric: Metric = "cosine",
) -> Setting:
    """Measure what codes that exist already keep of the true neighbours of their vectors.

    Parameters
    ----------
    query_codes, database_codes : uint8 (q, ⌈n_bits / 8⌉) and (m, ⌈n_bits / 8⌉)
        Packed codes.
    queries, X : (q, n) and (m, n)
        Vectors of the same rows.
    """
    _check_metric(metric)
    rows = _check_vectors(X, "X")
    Q = _check_queries(queries, rows)
    _check_k(k, len(rows))
    codes = [check_codes(c, n_bits) for c in (query_codes, database_codes)]
    for mine, theirs, name in ((codes[0], Q, "query"), (codes[1], rows, "row")):
        if len(mine) != len(theirs):
            raise ValueError(
                f"there must be a code per {name}: got {len(mine):,} codes and {len(theirs):,} "
                "vectors"
            )
    if not all(np.isfinite(rows[block]).all() for block in row_blocks(rows)):
        raise ValueError("X must be finite: some rows are NaN or infinite")
    truth = true_neighbours(rows, Q, k, metric)
    rng = check_random_state(0)
    trial = Trial(rows, Q, None, truth, k, metric, None, Int8Vectors(rows, metric), rng)
    [setting] = trial.of(GivenCodes(codes[1], codes[0], n_bits))
    return setting


def _check_metric(metric: str) -> None:
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {METRICS}: got {metric!r}")


def _check_k(k: int, n_rows: int) -> None:
    check_whole(k, "k", 1)
    if k > n_rows:
        raise ValueError(f"k must be at most the {n_rows:,} rows that a query can find: got {k}")


def _check_queries(queries: ArrayLike, X: NDArray[Any]) -> NDArray[Any]:
    Q = _check_vectors(queries, "queries")
    if Q.shape[1] != X.shape[1]:
        raise ValueError(f"queries must have the {X.shape[1]} features of X: got {Q.shape[1]}")
    if not np.isfinite(Q).all():
        raise ValueError("queries must be finite: some are NaN or infinite")
    return Q


def _check_vectors(X: ArrayLike, name: str) -> NDArray[Any]:
    rows = np.asarray(X)
    if rows.ndim != 2 or rows.dtype.kind not in "fiu" or rows.size == 0:
        raise ValueError(
            f"{name} must be a table of numbers, a row per vector: got {rows.dtype} of shape "
            f"{rows.shape}"
        )
    return rows


def default_methods(n_bits: int, n_features: int) -> list[str]:
    """Return the hashers that need no labels and make codes of that length."""
    if n_bits > n_features:
        return ["LSH", "LinfHash.quick", "LinfHash.asymmetric"]
    signs = ["SignHash:rotate=false", "SignHash", "ITQ"]
    return [*signs, "LinfHash.asymmetric"] if n_bits == n_features else signs


def _contenders(
    n_features: int,
    bits: tuple[int, ...],
    methods: Sequence[str] | None,
    models: Sequence[BaseHasher],
    peers: bool,
    metric: Metric,
    seed: int,
) -> Iterator[Callable[[], Contender]]:
    """Yield what makes each code; nothing is fitted yet, but wrong names are found out."""
    for n_bits in bits:
        for method in default_methods(n_bits, n_features) if methods is None else methods:
            hasher = make_hasher(method, n_bits, seed)
            if hasher.uses_labels:
                raise ValueError(
                    f"{method} learns from labels, and an audit has none: fit it first, and give "
                    "it as a model"
                )
            yield partial(HasherCodes, method, hasher)
    for model in models:
        name = f"{type(model).__name__} (yours)"
        yield partial(HasherCodes, name, model, fitted=True)
    if peers:
        yield from faiss_peers(n_features, bits, metric, seed)

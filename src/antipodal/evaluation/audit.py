"""Audit: recall of every code and way of searching, on the user's vectors."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from antipodal.codes import check_codes
from antipodal.evaluation.audited_codes import (
    Contender,
    GivenCodes,
    HasherCodes,
    Int8Vectors,
    Trial,
    faiss_peers,
)
from antipodal.evaluation.recall import (
    METRICS,
    SHARES,
    Judgements,
    Metric,
    Setting,
    true_neighbours,
)
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.registry import make_hasher
from antipodal.hashers.rows import draw_rows, row_blocks
from antipodal.io.numpy_files import mapped_rows
from antipodal.validation import Ids, check_whole

_NAMED = 5  # rows that are named, of each kind


@dataclass(frozen=True)
class Survey:
    """Rows of a set of vectors that deserve a second look."""

    rows: int
    features: int
    not_finite: NDArray[np.int64]
    zero: NDArray[np.int64]
    equal: int  # rows that an earlier one has already

    def remarks(self) -> list[str]:
        """Say what is unusual, a sentence for each kind."""
        said = []
        if len(self.not_finite):
            said.append(f"Rows that are not finite, left out: {_named(self.not_finite)}.")
        if len(self.zero):
            said.append(f"Rows of zeros, which have no direction: {_named(self.zero)}.")
        if self.equal:
            said.append(
                f"Rows equal to an earlier one, which no code tells apart: {self.equal:,} of "
                f"{self.rows:,}."
            )
        return said


def _named(rows: NDArray[np.int64]) -> str:
    return f"{len(rows):,} ({', '.join(map(str, rows[:_NAMED]))}{', …' * (len(rows) > _NAMED)})"


def survey(X: NDArray[Any]) -> Survey:
    """Read all rows once; of each, 8 bytes of a digest are kept to find equal ones."""
    not_finite, zero = [], []
    digests = np.empty(len(X), np.uint64)
    for block in row_blocks(X):
        rows = np.ascontiguousarray(X[block])
        numbers = np.arange(block.start, block.start + len(rows))
        not_finite.append(numbers[~np.isfinite(rows).all(axis=1)])
        zero.append(numbers[~rows.any(axis=1)])
        digests[numbers] = _digests(rows)
    return Survey(
        len(X), X.shape[1], np.concatenate(not_finite), np.concatenate(zero),
        len(X) - len(np.unique(digests)),
    )  # fmt: skip


def _digests(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a sum of the rows' bytes, by pairs and with random weights: equal for equal rows."""
    raw = rows.view(np.uint8)
    pairs = np.zeros((len(raw), -(-raw.shape[1] // 2)), np.uint16)
    pairs.view(np.uint8)[:, : raw.shape[1]] = raw
    weights = np.random.default_rng(0).integers(1, 2**63, pairs.shape[1], np.uint64) * 2 + 1
    sums: NDArray[np.uint64] = pairs.astype(np.uint64) @ weights
    return sums


def without(X: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Return X without some rows, which are copied to a temporary file and mapped."""
    kept = np.ones(len(X), bool)
    kept[rows] = False
    blocks = (X[block][kept[block]] for block in row_blocks(X))
    return mapped_rows(blocks, (int(kept.sum()), X.shape[1]), X.dtype, "the rows that are finite")


_SHOWN = (4, 16)  # candidates per result that the table has a column for


@dataclass(frozen=True)
class Audit:
    """What `audit` measured.

    Attributes
    ----------
    survey : Survey
        Rows that are zero, equal or not finite.
    settings : list of Setting
        A code and a way to search it, and what they keep.
    query_rows : (q,), optional
        Which rows the queries are, where they were drawn.
    ndcg, judged_recall : float, optional
        Of the vectors themselves, against judgements.
    truth : (q, k)
        The true neighbours of every query, nearest first; `rows` has the row of X that each of
        these numbers, and of those that settings have found, stands for.
    """

    survey: Survey
    metric: Metric
    k: int
    n_queries: int
    itemsize: int
    settings: list[Setting]
    query_rows: Ids | None = None
    ndcg: float | None = None
    judged_recall: float | None = None
    truth: Ids | None = field(default=None, repr=False)
    rows: Ids | None = field(default=None, repr=False)

    def records(self) -> list[dict[str, Any]]:
        """Return a record per setting, as JSON has them."""
        about: dict[str, Any] = {
            "rows": self.survey.rows - len(self.survey.not_finite),
            "features": self.survey.features,
            "metric": self.metric,
            "k": self.k,
            "queries": self.n_queries,
        }
        if self.ndcg is not None:
            about["ndcg_of_vectors"] = round(self.ndcg, 6)
            about["judged_recall_of_vectors"] = round(self.judged_recall or 0.0, 6)
        n, size = self.survey.features, self.itemsize
        return [about | setting.to_dict(n, size) for setting in self.settings]

    def table(self) -> list[list[str]]:
        """Return headings, and a row per setting as text."""
        judged = ["nDCG", "nDCG, ×4, floats"] if self.ndcg is not None else []
        rescored = [f"×{r}, floats" for r in _SHOWN] + ["×4, int8"]
        rows = [
            ["code", "bytes", "times smaller", "search", "recall", *rescored,
             *(f"candidates for {share:g}" for share in SHARES), *judged,
             "fit, s", "encoded per s", "queries per s"]
        ]  # fmt: skip
        for setting in self.settings:
            cost = setting.cost
            shown = [setting.with_floats.get(r) for r in _SHOWN] + [setting.with_int8.get(4)]
            needed = [setting.candidates_for(share) for share in SHARES]
            rows.append(
                [setting.method, str(cost.bytes),
                 f"{self.survey.features * self.itemsize / cost.bytes:.0f}", setting.search,
                 f"{setting.recall:.3f} ± {setting.recall_error:.3f}",
                 *map(_share, shown),
                 *("–" if r is None else f"×{r}" for r in needed),
                 *(_share(setting.ndcg.get(r)) for r in (1, 4) if judged),
                 f"{cost.fit_seconds:.1f}", f"{cost.encoded_per_second:,.0f}",
                 f"{cost.queries_per_second:,.0f}"]
            )  # fmt: skip
        return rows

    def cheapest(self, keep: float, *, rescored: bool) -> tuple[Setting, int] | None:
        """Return the setting of fewest bytes that keeps this share, and its candidates per result.

        Without `rescored` results come as the codes have them, one candidate for each.
        """
        found = [
            (setting.cost.bytes, r, -setting.recall, i)
            for i, setting in enumerate(self.settings)
            for r, recall in setting.with_floats.items()
            if recall >= keep and (rescored or r == 1)
        ]
        if not found:
            return None
        _, r, _, i = min(found)
        return self.settings[i], r

    def advice(self, keep: float) -> str:
        """Say in a sentence or two which setting keeps the share that is asked for."""
        wanted = f"{100 * keep:g} % of the {self.k} true neighbours"
        plain = self.cheapest(keep, rescored=False)
        rescored = self.cheapest(keep, rescored=True)
        if rescored is None:
            best = max(self.settings, key=lambda setting: max(setting.with_floats.values()))
            r, recall = max(best.with_floats.items(), key=lambda item: item[1])
            return (
                f"No setting keeps {wanted}. {_described(best)} comes nearest, with "
                f"{100 * recall:.1f} % of {r} candidates per result."
            )
        setting, r = rescored
        said = [f"To keep {wanted} in the fewest bytes, take {_described(setting)}"]
        said[0] += (
            f", and put {r} candidates per result in order by their vectors." if r > 1 else "."
        )
        if r > 1 and plain is not None:
            said.append(f"Without the vectors, take {_described(plain[0])}.")
        elif r > 1:
            said.append("Without the vectors no setting keeps as much.")
        return " ".join(said)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _described(setting: Setting) -> str:
    way = "by Hamming distance" if setting.search == "hamming" else "with real queries"
    size = f"{setting.cost.bytes} byte{'s' * (setting.cost.bytes != 1)}"
    return f"{setting.method} at {size} per vector, searched {way}"


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

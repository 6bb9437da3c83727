"""Audit: recall of codes of the user's vectors, by code, code size and search."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from antipodal.codes import check_codes
from antipodal.evaluation.audited_codes import (
    AuditedCode,
    GivenCodes,
    HasherCodes,
    Int8Vectors,
    Trial,
    faiss_quantizers,
)
from antipodal.evaluation.recall import (
    METRICS,
    TARGETS,
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

_LISTED = 5  # row numbers listed in a remark


@dataclass(frozen=True)
class Survey:
    """Shape of a set of vectors, and its unusual rows: not finite, zero or duplicate."""

    rows: int
    features: int
    not_finite: NDArray[np.int64]
    zero: NDArray[np.int64]
    equal: int  # rows equal to an earlier row

    def remarks(self) -> list[str]:
        """Return one sentence for each kind of unusual row."""
        remarks = []
        if len(self.not_finite):
            remarks.append(f"Rows with NaN or infinity, left out: {_listed(self.not_finite)}.")
        if len(self.zero):
            remarks.append(f"Rows of zeros, not drawn as queries: {_listed(self.zero)}.")
        if self.equal:
            remarks.append(f"Duplicate rows: {self.equal:,} of {self.rows:,}.")
        return remarks


def _listed(rows: NDArray[np.int64]) -> str:
    more = ", …" if len(rows) > _LISTED else ""
    return f"{len(rows):,} ({', '.join(map(str, rows[:_LISTED]))}{more})"


def survey(X: NDArray[Any]) -> Survey:
    """Read all rows once and return their unusual rows; duplicates are found by 8-byte digests."""
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
    """Return a digest of each row: the sum of its 16-bit words with random weights."""
    raw = rows.view(np.uint8)
    pairs = np.zeros((len(raw), -(-raw.shape[1] // 2)), np.uint16)
    pairs.view(np.uint8)[:, : raw.shape[1]] = raw
    weights = np.random.default_rng(0).integers(1, 2**63, pairs.shape[1], np.uint64) * 2 + 1
    sums: NDArray[np.uint64] = pairs.astype(np.uint64) @ weights
    return sums


def drop_rows(X: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Return X without some rows, as a memory map of a temporary file."""
    kept = np.ones(len(X), bool)
    kept[rows] = False
    blocks = (X[block][kept[block]] for block in row_blocks(X))
    return mapped_rows(blocks, (int(kept.sum()), X.shape[1]), X.dtype, "the finite rows")


_SHOWN = (4, 16)  # oversampling factors with a column in the table


@dataclass(frozen=True)
class Audit:
    """Result of `audit`.

    Attributes
    ----------
    survey : Survey
        Shape of X, and its rows that are zero, duplicate or not finite.
    settings : list of Setting
        Recall and cost of each code with each search.
    query_rows : (q,), optional
        Rows of X that are the queries, if queries were drawn.
    ndcg, judged_recall : float, optional
        Scores of the uncompressed vectors against relevance judgements.
    truth : (q, k)
        True neighbours of every query, nearest first, as positions in `rows`. So are the results
        of settings.
    rows : (m,)
        Rows of X that were audited: the sample without rows that are not finite.
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
        """Return one JSON-serialisable record per setting."""
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
        """Return a row of headings, then one row per setting, as text."""
        judged = ["nDCG", "nDCG, rerank ×4"] if self.ndcg is not None else []
        rows = [
            ["code", "bytes", "compression", "search", f"recall@{self.k}",
             *(f"rerank ×{r}" for r in _SHOWN), "int8 ×4",
             *(f"rerank for {target:g}" for target in TARGETS), *judged,
             "fit, s", "encoded/s", "queries/s"]
        ]  # fmt: skip
        for setting in self.settings:
            cost = setting.cost
            reranked = [setting.with_floats.get(r) for r in _SHOWN] + [setting.with_int8.get(4)]
            needed = [setting.candidates_for(target) for target in TARGETS]
            rows.append(
                [setting.method, str(cost.bytes),
                 f"{self.survey.features * self.itemsize / cost.bytes:.0f}×", setting.search,
                 f"{setting.recall:.3f} ± {setting.recall_error:.3f}",
                 *map(_score, reranked),
                 *("–" if r is None else f"×{r}" for r in needed),
                 *(_score(setting.ndcg.get(r)) for r in (1, 4) if judged),
                 f"{cost.fit_seconds:.1f}", f"{cost.encoded_per_second:,.0f}",
                 f"{cost.queries_per_second:,.0f}"]
            )  # fmt: skip
        return rows

    def cheapest(self, keep: float, *, rescored: bool) -> tuple[Setting, int] | None:
        """Return the setting of fewest bytes that reaches this recall, and its oversampling factor.

        Without `rescored`, only settings that reach it without reranking count.
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
        """Return a recommendation: the smallest code that reaches this recall."""
        target = f"recall@{self.k} ≥ {100 * keep:g} %"
        plain = self.cheapest(keep, rescored=False)
        reranked = self.cheapest(keep, rescored=True)
        if reranked is None:
            best = max(self.settings, key=lambda setting: max(setting.with_floats.values()))
            r, recall = max(best.with_floats.items(), key=lambda item: item[1])
            return (
                f"No setting reaches {target}. The best reaches {100 * recall:.1f} %: "
                f"{_described(best, r)}."
            )
        setting, r = reranked
        advice = f"Smallest code with {target}: {_described(setting, r)}."
        if r == 1:
            return advice
        if plain is None:
            return f"{advice} No setting reaches it without reranking."
        return f"{advice} Without reranking: {_described(plain[0], 1)}."


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _described(setting: Setting, oversampling: int) -> str:
    size = f"{setting.cost.bytes} byte{'s' * (setting.cost.bytes != 1)} per vector"
    search = f"{'Hamming' if setting.search == 'hamming' else 'asymmetric'} search"
    reranked = f", reranked with {oversampling}× oversampling" if oversampling > 1 else ""
    return f"{setting.method}, {size}, {search}{reranked}"


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
    """Measure the recall of codes on a set of vectors. No labels are needed.

    True neighbours are found exactly, among all rows. Each code is searched by Hamming distance
    and asymmetrically, with float queries, both with and without reranking.

    Parameters
    ----------
    X : (m, n)
        Vectors: an array, a memory map, or the result of `antipodal.open_vectors`.
    bits : sequence of int
        Code lengths.
    queries : (q, n), optional
        Query vectors. By default rows of X are drawn, which do not count as their own neighbours.
    n_queries : int
        Maximum number of rows to draw as queries.
    k : int
        Number of true neighbours of a query.
    metric : {"cosine", "dot", "euclidean"}
        Similarity that defines the true neighbours.
    methods : sequence of str, optional
        Hashers with their settings, named as in `antipodal bench`. By default those that need no
        labels and support the code length.
    models : sequence of hashers
        Fitted hashers, such as `antipodal.load` returns, audited without refitting.
    peers : bool
        Whether to include other libraries: RaBitQ, TurboQuant and product quantisation of Faiss.
    relevance : (p, 2) or (p, 3), optional
        Relevance judgements: row of a query, row of X, and optionally a grade.
    sample : int, optional
        Audit a random sample of this many rows, for a first answer in seconds.
    random_state : int
        Seed of all random draws.
    progress : callable
        Called with the name of the current step, the amount done and the total.

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
        raise ValueError("relevance refers to rows of queries: pass queries too")
    if relevance is not None and sample is not None:
        raise ValueError("relevance refers to rows of all of X: do not pass sample")
    # Checked first, since finding the true neighbours may take minutes.
    codes = list(_audited_codes(rows.shape[1], tuple(bits), methods, models, peers, metric, seed))
    numbers: Ids = np.arange(len(rows))
    if sample is not None:
        check_whole(sample, "sample", 2)
        numbers = np.sort(draw_rows(len(rows), sample, rng))
        rows = np.asarray(rows[numbers])
    surveyed = survey(rows)
    drawable = np.ones(len(rows), bool)
    drawable[surveyed.zero] = False
    if len(surveyed.not_finite):
        if relevance is not None:
            raise ValueError(f"X must be finite if relevance is given: {surveyed.remarks()[0]}")
        rows = drop_rows(rows, surveyed.not_finite)
        numbers = np.delete(numbers, surveyed.not_finite)
        drawable = np.delete(drawable, surveyed.not_finite)
    drawn: Ids | None = None
    if queries is None:
        drawn = np.sort(rng.permutation(np.flatnonzero(drawable))[:n_queries])
        Q = np.asarray(rows[drawn])
    else:
        Q = _check_queries(queries, rows)
    _check_k(k, len(rows) - (drawn is not None))
    judgements = None if relevance is None else Judgements.of(relevance, len(Q), len(rows))
    truth = true_neighbours(
        rows, Q, k, metric, query_rows=drawn, progress=partial(progress, "neighbours")
    )
    trial = Trial(rows, Q, drawn, truth, k, metric, judgements, Int8Vectors(rows, metric), rng)
    settings: list[Setting] = []
    for i, make in enumerate(codes):
        progress("codes", i, len(codes))
        settings += trial.run(make())
    progress("codes", len(codes), len(codes))
    ndcg, judged_recall = (None, None) if judgements is None else judgements.scores(truth)
    return Audit(
        surveyed, metric, k, len(Q), rows.dtype.itemsize, settings,
        None if drawn is None else numbers[drawn], ndcg, judged_recall, truth, numbers,
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
    """Measure the recall of existing codes against the true neighbours of their vectors.

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
                f"there must be one code per {name}: got {len(mine):,} codes and "
                f"{len(theirs):,} vectors"
            )
    if not all(np.isfinite(rows[block]).all() for block in row_blocks(rows)):
        raise ValueError("X must be finite: some values are NaN or infinite")
    truth = true_neighbours(rows, Q, k, metric)
    rng = check_random_state(0)
    trial = Trial(rows, Q, None, truth, k, metric, None, Int8Vectors(rows, metric), rng)
    [setting] = trial.run(GivenCodes(codes[1], codes[0], n_bits))
    return setting


def _check_metric(metric: str) -> None:
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {METRICS}: got {metric!r}")


def _check_k(k: int, n_rows: int) -> None:
    check_whole(k, "k", 1)
    if k > n_rows:
        raise ValueError(f"k must be at most {n_rows:,}, the number of rows to search: got {k}")


def _check_queries(queries: ArrayLike, X: NDArray[Any]) -> NDArray[Any]:
    Q = _check_vectors(queries, "queries")
    if Q.shape[1] != X.shape[1]:
        raise ValueError(f"queries must have {X.shape[1]} features as X has: got {Q.shape[1]}")
    if not np.isfinite(Q).all():
        raise ValueError("queries must be finite: some values are NaN or infinite")
    return Q


def _check_vectors(X: ArrayLike, name: str) -> NDArray[Any]:
    rows = np.asarray(X)
    if rows.ndim != 2 or rows.dtype.kind not in "fiu" or rows.size == 0:
        raise ValueError(
            f"{name} must be a numeric array (n_rows, n_features): got {rows.dtype} of shape "
            f"{rows.shape}"
        )
    return rows


def default_methods(n_bits: int, n_features: int) -> list[str]:
    """Return the names of the hashers to audit at a code length."""
    if n_bits > n_features:
        return ["LSH", "LinfHash.quick", "LinfHash.asymmetric"]
    signs = ["SignHash:rotate=false", "SignHash", "ITQ"]
    return [*signs, "LinfHash.asymmetric"] if n_bits == n_features else signs


def _audited_codes(
    n_features: int,
    bits: tuple[int, ...],
    methods: Sequence[str] | None,
    models: Sequence[BaseHasher],
    peers: bool,
    metric: Metric,
    seed: int,
) -> Iterator[Callable[[], AuditedCode]]:
    """Yield a constructor for each code. Wrong names raise here; nothing is fitted yet."""
    for n_bits in bits:
        for method in default_methods(n_bits, n_features) if methods is None else methods:
            hasher = make_hasher(method, n_bits, seed)
            if hasher.uses_labels:
                raise ValueError(
                    f"{method} needs labels, which an audit does not have: fit it first and pass "
                    "it as a model"
                )
            yield partial(HasherCodes, method, hasher)
    for model in models:
        name = f"{type(model).__name__} (yours)"
        yield partial(HasherCodes, name, model, fitted=True)
    if peers:
        yield from faiss_quantizers(n_features, bits, metric, seed)

"""Audit: recall of codes on the user's vectors, by method, code length and search."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import check_codes
from antipodal.evaluation.advice import DEFAULT_METHOD, Advice, Source, advise
from antipodal.evaluation.audited_codes import AuditedCode, GivenCodes, HasherCodes, Trial
from antipodal.evaluation.other_libraries import Data, baseline_names, make_baselines
from antipodal.evaluation.recall import (
    METRICS,
    TARGETS,
    Judgements,
    Metric,
    Setting,
    true_neighbours,
)
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.preprocessing import draw_rows, row_blocks
from antipodal.hashers.registry import make_hasher
from antipodal.io.numpy_files import mapped_rows
from antipodal.io.vectors import VectorFile
from antipodal.validation import Ids, check_random_state, check_whole

_LISTED = 5  # row numbers listed in a remark
_TRAINING_ROWS = 50_000  # drawn from all rows if a sample is audited
_CHECKED_ROWS = 256  # each method is first fitted to this many rows, to detect errors early


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
            remarks.append(f"Rows with NaN or infinity, skipped: {_listed(self.not_finite)}.")
        if len(self.zero):
            remarks.append(f"Rows of zeros, not drawn as queries: {_listed(self.zero)}.")
        if self.equal:
            remarks.append(f"Duplicate rows: {self.equal:,} of {self.rows:,}.")
        return remarks


def _listed(rows: NDArray[np.int64]) -> str:
    more = ", …" if len(rows) > _LISTED else ""
    return f"{len(rows):,} ({', '.join(map(str, rows[:_LISTED]))}{more})"


def survey(X: NDArray[Any]) -> Survey:
    """Read all rows once and return the unusual ones; duplicates are found by 8-byte digests."""
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


_SHOWN = (4, 16)  # oversampling factors with a column in the full table


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
        True neighbours of every query, nearest first, as positions in `rows`. The results of
        settings are positions in `rows`, too.
    rows : (m,)
        Rows of X that were audited: the sample without rows that are not finite.
    all_rows : int
        Number of rows of X. If it exceeds that of `rows`, a sample was audited.
    skipped : list of str
        One sentence for each baseline that was not measured.
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
    all_rows: int = 0
    skipped: list[str] = field(default_factory=list)

    @property
    def sampled(self) -> bool:
        """Whether a sample of the rows was audited."""
        return self.survey.rows < self.all_rows

    def remarks(self) -> list[str]:
        """Return sentences about unusual rows, skipped baselines and the sample."""
        remarks = self.survey.remarks() + self.skipped
        if self.sampled:
            remarks.append(
                f"Recall was measured on a sample of {self.survey.rows:,} of {self.all_rows:,} "
                "rows. It decreases with the number of rows, so recall among all rows is an "
                "estimate. A larger sample is more precise."
            )
        return remarks

    def records(self) -> list[dict[str, Any]]:
        """Return one JSON-serialisable record per setting."""
        about: dict[str, Any] = {
            "rows": self.survey.rows - len(self.survey.not_finite),
            "features": self.survey.features,
            "metric": self.metric,
            "k": self.k,
            "queries": self.n_queries,
        }
        if self.sampled:
            about["all_rows"] = self.all_rows
        if self.ndcg is not None:
            about["ndcg_of_vectors"] = round(self.ndcg, 6)
            about["judged_recall_of_vectors"] = round(self.judged_recall or 0.0, 6)
        n, size = self.survey.features, self.itemsize
        return [about | setting.to_dict(n, size) for setting in self.settings]

    def table(self) -> list[list[str]]:
        """Return a row of headings, then one row per setting, as text."""
        judged = ["nDCG", "nDCG, rerank ×4"] if self.ndcg is not None else []
        sampled = ["all rows", "all rows, ×4"] if self.sampled else []
        rows = [
            ["code", "bytes", "compression", "search", f"recall@{self.k}",
             *(f"rerank ×{r}" for r in _SHOWN), "int8 ×4", *sampled,
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
                 *(_score(setting.extrapolated.get(r)) for r in (1, 4) if sampled),
                 *("–" if r is None else f"×{r}" for r in needed),
                 *(_score(setting.ndcg.get(r)) for r in (1, 4) if judged),
                 f"{cost.fit_seconds:.1f}", f"{cost.encoded_per_second:,.0f}",
                 f"{cost.queries_per_second:,.0f}"]
            )  # fmt: skip
        return rows

    def short_table(self) -> list[list[str]]:
        """Return the main columns of `table`, which fit 80 characters."""
        headings, *rows = self.table()
        last = "all rows" if self.sampled else "nDCG" if self.ndcg is not None else "queries/s"
        names = ["code", "bytes", "search", f"recall@{self.k}", "rerank ×4", last]
        columns = [headings.index(name) for name in names]
        shown = [[row[column].partition(" ± ")[0] for column in columns] for row in rows]
        return [["×4" if name == "rerank ×4" else name for name in names], *shown]

    def advice(
        self,
        recall: float = 0.95,
        *,
        max_rerank: int = 4,
        bytes: int | None = None,
        source: Source | None = None,
    ) -> Advice | None:
        """Return the smallest setting of antipodal that reaches a recall, as commands to run.

        If none reaches it, return the setting of the highest recall. Other libraries and fitted
        models are not considered; if nothing else was audited, return None.

        Parameters
        ----------
        recall : float
            Target of recall@k.
        max_rerank : int
            Largest oversampling factor. Reranking needs kept vectors, whose bytes count.
        bytes : int, optional
            Largest number of bytes per vector: those of the code and of the kept vector.
        source : Source, optional
            Names in the commands.
        """
        return advise(
            self.settings, recall, max_rerank=max_rerank, max_bytes=bytes,
            n_features=self.survey.features, itemsize=self.itemsize, metric=self.metric, k=self.k,
            source=source or Source(),
        )  # fmt: skip


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


class AuditInterrupted(KeyboardInterrupt):
    """An interrupt during an audit; `audit` has the settings measured before it."""

    def __init__(self, audit: Audit) -> None:
        super().__init__()
        self.audit = audit


Progress = Callable[[str, int, int], None]


def audit(
    X: ArrayLike,
    bits: Sequence[int] | None = None,
    *,
    queries: ArrayLike | None = None,
    n_queries: int = 1000,
    k: int = 10,
    metric: Metric = "cosine",
    methods: Sequence[str] | None = None,
    models: Sequence[BaseHasher] = (),
    baselines: str | Sequence[str] = "quick",
    relevance: ArrayLike | None = None,
    sample: int | None = None,
    random_state: Any = 0,
    progress: Progress = lambda what, done, total: None,
    on_code: Callable[[list[Setting]], None] = lambda settings: None,
) -> Audit:
    """Measure the recall of codes on a set of vectors. No labels are needed.

    True neighbours are found exactly, among all rows. Each code is searched by Hamming distance
    and asymmetrically, with float queries, both with and without reranking.

    Parameters
    ----------
    X : (m, n)
        Vectors: an array, a memory map, or the result of `antipodal.open_vectors`.
    bits : sequence of int, optional
        Code lengths. By default about half a bit, one bit and two bits per dimension.
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
    baselines : str or sequence of str
        Quantisers of other libraries to compare with: "quick" (RaBitQ, TurboQuant and product
        quantisation of Faiss), "all", "none", or names of `other_libraries.BASELINES`. Those that
        are not installed are skipped and listed in the result.
    relevance : (p, 2) or (p, 3), optional
        Relevance judgements: row of a query, row of X, and optionally a grade.
    sample : int, optional
        Audit a random sample of this many rows, for a first result in seconds. Only these rows are
        read. Recall decreases with the number of rows, so it is extrapolated to all rows.
    random_state : int
        Seed of all random draws.
    progress : callable
        Called with the name of the current step or code, the amount done and the total.
    on_code : callable
        Called with the settings of each code when they have been measured.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, _ = load_digits(return_X_y=True)
    >>> found = audit(X, bits=(32,), methods=["ITQ"], baselines="none", n_queries=100)
    >>> [setting.search for setting in found.settings]
    ['hamming', 'asymmetric']
    """
    rng = check_random_state(random_state)
    seed = int(rng.randint(2**31 - 1))
    check_whole(n_queries, "n_queries", 1)
    check_whole(k, "k", 1)
    _check_metric(metric)
    names = baseline_names(baselines)
    if relevance is not None and queries is None:
        raise ValueError("relevance refers to rows of queries: also pass queries")
    if relevance is not None and sample is not None:
        raise ValueError("relevance refers to all rows of X: do not pass sample")
    rows, numbers, training, all_rows = _read(X, sample, rng)
    surveyed = survey(rows)
    drawable = np.ones(len(rows), bool)
    drawable[surveyed.zero] = False
    if len(surveyed.not_finite):
        if relevance is not None:
            raise ValueError(f"X must be finite if relevance is given: {surveyed.remarks()[0]}")
        if len(surveyed.not_finite) == len(rows):
            raise ValueError("X must have finite rows: every row has NaN or infinity")
        rows = drop_rows(rows, surveyed.not_finite)
        numbers = np.delete(numbers, surveyed.not_finite)
        drawable = np.delete(drawable, surveyed.not_finite)
    drawn: Ids | None = None
    if queries is None:
        if not drawable.any():
            raise ValueError("X must have rows to draw as queries: every finite row is zero")
        drawn = np.sort(rng.permutation(np.flatnonzero(drawable))[:n_queries])
        Q = np.asarray(rows[drawn])
    else:
        Q = _check_queries(queries, rows)
    _check_k(k, len(rows) - (drawn is not None))
    judgements = None if relevance is None else Judgements.of(relevance, len(Q), len(rows))
    # Check everything first: an error after an hour would lose the results.
    lengths = default_lengths(rows.shape[1]) if bits is None else tuple(bits)
    codes = _our_codes(rows, lengths, methods, models, seed)
    data = Data(len(rows), rows.shape[1], lengths, metric, seed)
    others, skipped = make_baselines(names, data)
    codes += others
    truth = true_neighbours(
        rows, Q, k, metric, query_rows=drawn, progress=partial(progress, "neighbours")
    )
    trial = Trial(truth, drawn, judgements, rng, rows if training is None else training,
                  len(rows) if training is None else all_rows)  # fmt: skip
    ndcg, judged_recall = (None, None) if judgements is None else judgements.scores(truth.ids)
    result = Audit(
        surveyed, metric, k, len(Q), rows.dtype.itemsize, [],
        None if drawn is None else numbers[drawn], ndcg, judged_recall, truth.ids, numbers,
        all_rows, skipped,
    )  # fmt: skip
    try:
        for i, make in enumerate(codes):
            code = make()
            progress(f"{code.name}, {code.bytes} bytes", i, len(codes))
            settings = list(trial.run(code))
            result.settings.extend(settings)
            on_code(settings)
        progress("codes", len(codes), len(codes))
    except KeyboardInterrupt:
        raise AuditInterrupted(result) from None
    return result


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
    trial = Trial(truth, None, None, check_random_state(0), rows, len(rows))
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
        raise ValueError(f"queries must have the {X.shape[1]} features of X: got {Q.shape[1]}")
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


def _read(
    X: ArrayLike, sample: int | None, rng: np.random.RandomState
) -> tuple[NDArray[Any], Ids, NDArray[Any] | None, int]:
    """Return rows to audit, their numbers, rows to fit codes to (of a sample), and the row count.

    Codes are fitted to rows outside the sample: recall is higher on training rows, which are a
    small part of a large collection.
    """
    vectors = X if isinstance(X, VectorFile) else _check_vectors(X, "X")
    if sample is not None:
        check_whole(sample, "sample", 2)
    if sample is None or sample >= len(vectors):
        rows = _check_vectors(vectors, "X")
        return rows, np.arange(len(rows)), None, len(rows)
    drawn = [draw_rows(len(vectors), n, rng) for n in (sample, _TRAINING_ROWS)]
    read = np.union1d(*drawn)  # only these rows are read
    taken = vectors.take(read) if isinstance(vectors, VectorFile) else np.asarray(vectors[read])
    rows, training = (taken[np.searchsorted(read, numbers)] for numbers in drawn)
    training = training[np.isfinite(training).all(axis=1)]
    return _check_vectors(rows, "X"), drawn[0], training, len(vectors)


def default_lengths(n_features: int) -> tuple[int, ...]:
    """Return code lengths of about half a bit, one bit and two bits per dimension."""
    return tuple(sorted({max(8, int(n_features * share) // 8 * 8) for share in (0.5, 1, 2)}))


def default_methods(n_bits: int, n_features: int) -> list[str]:
    """Return the names of the hashers to audit at a code length."""
    if n_bits > n_features:
        return ["LSH", "LinfHash.quick", DEFAULT_METHOD]
    return ["SignHash:rotate=false", "SignHash", "ITQ", DEFAULT_METHOD]


def _our_codes(
    rows: NDArray[Any],
    bits: tuple[int, ...],
    methods: Sequence[str] | None,
    models: Sequence[BaseHasher],
    seed: int,
) -> list[Callable[[], AuditedCode]]:
    """Return a constructor for each code; raise the errors of settings that cannot be fitted."""
    codes: list[Callable[[], AuditedCode]] = []
    for n_bits in bits:
        check_whole(n_bits, "bits", 1)
        for method in default_methods(n_bits, rows.shape[1]) if methods is None else methods:
            hasher = make_hasher(method, n_bits, seed)
            if hasher.uses_labels:
                raise ValueError(
                    f"{method} needs labels, which an audit does not have: fit it first and pass "
                    "it as a model"
                )
            if methods is not None:
                _check_fits(hasher, rows)
            codes.append(partial(HasherCodes, method, hasher))
    for model in models:
        if model.n_features_in_ != rows.shape[1]:
            raise ValueError(
                f"a model must have been fitted to the {rows.shape[1]} features of X: "
                f"{type(model).__name__} was fitted to {model.n_features_in_}"
            )
        codes.append(partial(HasherCodes, f"{type(model).__name__} (yours)", model, fitted=True))
    return codes


def _check_fits(hasher: BaseHasher, rows: NDArray[Any]) -> None:
    """Raise the error of a method that does not support these vectors or this code length."""
    from sklearn.base import clone

    try:
        clone(hasher).fit(rows[:_CHECKED_ROWS])
    except ValueError:
        clone(hasher).fit(rows)  # the method may only need more rows

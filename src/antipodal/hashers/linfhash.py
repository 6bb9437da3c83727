"""LinfHash: signs of anti-sparse codes, from which rows can be reconstructed."""

import copy
import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import unpack
from antipodal.hashers.base import BaseHasher, FloatArray, Scoring
from antipodal.hashers.bit_descent import (
    FIRST_ROWS,
    BitDescent,
    Correction,
    Level,
    Search,
    fit_levels,
)
from antipodal.hashers.bit_flips import LENGTH_WEIGHT
from antipodal.hashers.near_rows import N_NEAR, NearRows, NearScores
from antipodal.hashers.neighbourhoods import Neighbourhoods
from antipodal.hashers.operations import (
    Affine,
    Array,
    Graph,
    Operation,
    UnitRows,
    Workspace,
    as_signs,
    check_width,
    chunks,
    from_columns,
    product,
    to_columns,
    unit_rows,
)
from antipodal.hashers.pipeline import Pipeline
from antipodal.hashers.preprocessing import as_floats, draw_rows, row_blocks
from antipodal.hashers.registry import built_in
from antipodal.paper.admm import RELAXATION, relaxed_weight, unfolded_weights
from antipodal.paper.dictionary import ksvd
from antipodal.threads import one_thread
from antipodal.validation import check_nested, check_random_state, check_type, check_whole

_MIN_FEATURES = 64  # with fewer, the levels with `descent` are as long as with this number
_FIRST = 0.5, 0.75  # bits per feature of the first of several levels: least and most
_LATER = 1.25  # least bits per feature of a later level
_NO_SCORES = NearScores(0, 0, 0)  # of a level that does not search for likely queries
_MAX_CORRECTION, _MAX_EFFORT = 16, 100
_MAX_ITERATIONS = 100_000  # in a model file: a thousand times the number that a code needs


@built_in
class LinfHash(BaseHasher):
    """Signs of the solution of Eq. 1, without a network and without labels. [Jegou2012]

        x = argmin ‖Dx - y‖²  subject to  ‖x‖∞ ≤ λ,        y = (row - μ) / ‖row - μ‖
        b = [x > 0],   row ≈ μ + s·D·(2b - 1)              the result of `reconstruct`

    Most entries of x are ±λ, so that taking signs loses little. Rows are scaled to length 1,
    so that one λ suits all of them: x scales with y and λ.

    With fewer bits than features D is learned by K-SVD. Otherwise it is a random tight frame,
    DDᵀ = (n_bits / features)·I, and the reconstruction improves with the number of bits, and is
    better than from random projections. (With n_bits = features the frame is a rotation, and
    x = clip(Dᵀy) has the signs of Dᵀy for any λ.)

    These codes are compared by Hamming distance. With `descent`, codes are optimised for asymmetric
    search instead; `LinfHash.asymmetric` has the recommended settings. `bit_descent` starts from
    the signs of x and flips bits, and D is fitted to the codes of the sample. Codes then
    reconstruct directions, v = μ + D·(2b - 1) ≈ row / ‖row‖, and the scores of `query` estimate
    cosines. With `neighbours`, the last flips minimise errors of scores for likely queries.
    Ranked by Hamming distance, such codes have lower recall.

    Parameters
    ----------
    n_bits : int
        Code length N; it may exceed the number of features.
    descent : bool
        Whether to optimise bits and D for asymmetric search.
    nested : tuple of int
        Shorter code lengths, ascending, with `descent`: the first bits of a code are a code of
        that length, and `prefix(length)` returns its hasher. Other lengths in `levels_` are also
        prefixes, but of lower recall.
    neighbours : bool
        With `descent`, whether to minimise the errors of scores for queries near a row
        (`NearFlips`). Training rows near it stand for these queries: the model contains those that
        D is learned from, with four bits per feature.
    effort : float
        With `descent`, number of flips per bit of the tabu search; 0 for a descent to the nearest
        local minimum, which ignores `neighbours`.
    length_weight : float
        γ, with `descent`: the weight of (‖v‖² - 1)² relative to ‖y - v‖².
    n_refits : int
        With `descent`, number of alternations between fitting D to the codes of the sample and
        computing these codes from D. With 0, D is a random frame.
    bound : float
        λ√N. At 1, λ·D·(2b - 1) is about as long as y. With smaller bounds more entries reach the
        bound and bits are more stable. 0.1 to 0.3 ranks best by Hamming distance. 0.6 to 0.8
        reconstructs best up to four bits per feature, and 0.4 at eight bits per feature.
    sparsity : int
        Atoms per row in K-SVD.
    n_samples : int
        Largest number of rows that D is learned from; more rows are sampled. The mean uses all.
    n_iter : int
        Iterations of ADMM, the same number for every row: signs converge long before values.
    penalty : float
        β of the iteration.
    random_state : int, RandomState or None
        Seed of the sample, of the frame and of K-SVD.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, _ = load_digits(return_X_y=True)
    >>> hasher = LinfHash(n_bits=256, bound=0.6, random_state=0).fit(X)
    >>> rebuilt = hasher.reconstruct(hasher.encode(X))
    >>> bool(np.square(X - rebuilt).sum() < 0.07 * np.square(X - X.mean(axis=0)).sum())
    True
    """

    presets = ("asymmetric", "quick")

    encoding_parameters = (
        "n_bits", "descent", "nested", "neighbours", "effort", "length_weight", "bound", "penalty",
        "n_iter",
    )  # fmt: skip

    mean_: NDArray[np.float32]
    dictionary_: NDArray[np.float32]
    levels_: list[int]  # with descent, all code lengths
    inner_dictionaries_: NDArray[np.float32]  # with descent, dictionaries of the shorter lengths
    near_rows_: NDArray[np.uint8]  # with neighbours, the arrays of `NearRows`
    near_steps_: NDArray[np.float32]
    near_ends_: NDArray[np.int64]
    near_scores_: NDArray[np.float64]  # and the fields of `NearScores` for each level, or zeros
    near_means_: NDArray[np.float32]  # in models of version 0.13, the arrays of `Neighbourhoods`
    near_factors_: NDArray[np.float16]
    n_corrections_: list[int]  # in models of version 0.8 to 0.12, the number of bits in each level
    corrections_: NDArray[np.float64]  # and the fields of `Correction` for each level
    scale_: float

    def __init__(
        self,
        n_bits: int = 64,
        *,
        descent: bool = False,
        nested: tuple[int, ...] = (),
        neighbours: bool = False,
        effort: float = 0.0,
        length_weight: float = LENGTH_WEIGHT,
        n_refits: int = 4,
        bound: float = 0.2,
        sparsity: int = 8,
        n_samples: int = 5000,
        n_iter: int = 50,
        penalty: float = 0.6,
        random_state: Any = None,
    ) -> None:
        self.n_bits = n_bits
        self.descent = descent
        self.nested = nested
        self.neighbours = neighbours
        self.effort = effort
        self.length_weight = length_weight
        self.n_refits = n_refits
        self.bound = bound
        self.sparsity = sparsity
        self.n_samples = n_samples
        self.n_iter = n_iter
        self.penalty = penalty
        self.random_state = random_state

    @property
    def scoring(self) -> Scoring:
        """Asymmetric with `descent`, whose codes are poor by Hamming distance."""
        return "asymmetric" if self.descent else "hamming"

    @classmethod
    def asymmetric(
        cls,
        n_bits: int = 64,
        *,
        nested: tuple[int, ...] = (),
        effort: float = 0.75,
        random_state: Any = None,
    ) -> Self:
        """Return a hasher with the recommended settings for asymmetric search.

        With descent, codes after one iteration of ADMM are as good as after fifty.
        """
        return cls(
            n_bits,
            descent=True,
            nested=nested,
            neighbours=True,
            effort=effort,
            bound=0.7,
            n_samples=50_000,
            n_iter=1,
            random_state=random_state,
        )

    @classmethod
    def quick(cls, n_bits: int = 64, *, random_state: Any = None) -> Self:
        """Return a hasher for Hamming distance with three iterations of ADMM.

        Fifty iterations have the same recall and take ten times as long. Reconstruction needs them.
        """
        return cls(n_bits, n_iter=3, random_state=random_state)

    @one_thread()
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn the mean, the dictionary and the scale of reconstructions; y is ignored."""
        rows = self.check_fit(X)
        self._check_parameters()
        rng = check_random_state(self.random_state)
        if self.descent:
            self._fit_descent(rows, rng)
            return self
        mean = rows.mean(axis=0, dtype=np.float64)
        drawn = as_floats(rows[draw_rows(len(rows), self.n_samples, rng)])
        sample = drawn - mean
        self.mean_ = mean.astype(np.float32)
        self.dictionary_ = self._dictionary(sample, rng).astype(np.float32)
        # s minimises Σ ‖row - μ - s·D(2b - 1)‖² over the sample.
        corners = self._corners(self.transform(drawn))
        self.scale_ = float(np.vdot(corners, sample) / max(np.vdot(corners, corners), 1e-30))
        return self

    def _fit_descent(self, rows: NDArray[Any], rng: np.random.RandomState) -> None:
        total = np.zeros(rows.shape[1])
        for block in row_blocks(rows):
            total += _directions(rows[block]).sum(axis=0, dtype=np.float64)
        self.mean_, self.scale_ = (total / len(rows)).astype(np.float32), 1.0
        Y = _directions(rows[draw_rows(len(rows), self.n_samples, rng)])
        if len(Y) > FIRST_ROWS:  # early refits use the first rows
            Y = Y[np.random.default_rng(0).permutation(len(Y))]
        self.levels_ = self._lengths(rows.shape[1])
        near = NearRows.fit(Y, self.mean_, rng) if self.neighbours else None
        frames = [
            _frame(rows.shape[1], width, rng).astype(np.float32)
            for width in np.diff([0, *self.levels_]).tolist()
        ]
        requested = *self.nested, self.n_bits  # only they are searched
        near_rows = [near if length in requested else None for length in self.levels_]
        (*inner, self.dictionary_), near_scores = fit_levels(
            Y, self.mean_, frames, self.n_refits, self._solver, self._search, near_rows
        )
        self.inner_dictionaries_ = _concatenate(inner, rows.shape[1])
        if self.neighbours:
            rows = near.pack() if near else np.empty((0, -(-len(self.mean_) // 2)), np.uint8)
            self.near_rows_, self.near_ends_ = rows, near.ends if near else np.empty(0, np.int64)
            self.near_steps_ = near.steps if near else np.zeros_like(self.mean_)
            self.near_scores_ = np.array([scores or _NO_SCORES for scores in near_scores])

    @property
    def _search(self) -> Search:
        return Search(self.length_weight, self.effort)

    @property
    def _has_corrections(self) -> bool:
        """Whether this is a model of version 0.8 to 0.12 with corrections."""
        return "corrections_" in vars(self)

    @property
    def _has_neighbourhoods(self) -> bool:
        """Whether this is a model of version 0.13 with neighbourhoods."""
        return "near_means_" in vars(self)

    def _correction(self, level: int) -> tuple[int, Correction]:
        """Return the number of correction bits of a level, and the correction that they store."""
        n = self.n_corrections_[level] if self._has_corrections else 0
        return n, Correction(*self.corrections_[level].tolist()) if n else Correction()

    def _scores(self, level: int = -1) -> NearScores | None:
        """Return the `NearScores` of a level that searches for likely queries."""
        scores = NearScores(*self.near_scores_[level].tolist()) if self.neighbours else _NO_SCORES
        return scores if scores.slope else None

    def _lengths(self, n_features: int) -> list[int]:
        """Return the lengths of the levels: the requested ones, and others in between.

        The first level encodes the directions of large variance. In the remainder, all directions
        have a similar variance: there, a level has fewer errors per bit if it has more bits than
        features.
        """
        n = max(n_features, _MIN_FEATURES)
        lengths: list[int] = []
        for length in (*self.nested, self.n_bits):
            if lengths:
                n_parts = max(int((length - lengths[-1]) / (_LATER * n)), 1)
            else:
                least, most = _FIRST
                n_parts = max(int((length / n - least) / _LATER), 0)
                first = min(int(most * n), length - math.ceil(_LATER * n) * n_parts)
                lengths.append(int(first if n_parts else length))
            lengths += np.linspace(lengths[-1], length, n_parts + 1)[1:].astype(int).tolist()
        return lengths

    def prefix(self, n_bits: int) -> Self:
        """Return a fitted hasher for the first n_bits bits, for a length in `levels_`.

        Its bits are exactly the first bits of this hasher. Its file size and encoding time are
        those of its length.
        """
        self._check_fitted()
        check_whole(n_bits, "n_bits", 1)
        shorter = self.levels_[:-1] if self.descent else []
        if n_bits not in shorter:
            lengths = ", ".join(map(str, shorter)) or "(none)"
            raise ValueError(
                f"a prefix must have one of the lengths {lengths}: got {n_bits}. Add it to "
                "nested, with descent=True, and fit again"
            )
        n_levels = shorter.index(n_bits) + 1
        short = copy.copy(self)
        *inner, short.dictionary_ = self._inner()[:n_levels]
        short.n_bits, short.levels_ = int(n_bits), shorter[:n_levels]
        short.nested = tuple(n for n in self.nested if n < n_bits)
        short.inner_dictionaries_ = _concatenate(inner, len(self.mean_))
        if self.neighbours:
            short.near_scores_ = self.near_scores_[:n_levels]
        if self._has_corrections:
            short.n_corrections_ = self.n_corrections_[:n_levels]
            short.corrections_ = self.corrections_[:n_levels]
        short._mark_fitted()
        return short

    def _inner(self) -> list[NDArray[np.float32]]:
        """Return the dictionaries of the shorter lengths."""
        ends = np.cumsum(self.levels_[:-1])
        return np.split(self.inner_dictionaries_, ends, axis=1)[:-1]

    def query(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return float queries for asymmetric search, q = s·Dᵀy, (m, n_bits).

        ⟨q, 2b - 1⟩ = ⟨y, s·D·(2b - 1)⟩ is the inner product of y with the reconstruction of a
        row. y = row / ‖row‖ with `descent`, and y = row - μ without. With `neighbours`, q is
        divided by α of the `NearScores`.
        """
        D = self.scale_ * self.dictionary_
        steps: list[Operation] = [Affine(D, mean=self.mean_)]
        if self.descent:
            n, correction = self._correction(-1)
            values = np.zeros(self.n_bits, np.float32)
            values[self.n_bits - n :] = correction.query_values(n)
            slope = np.float32(correction.slope / (self._scores() or NearScores()).slope)
            steps = [UnitRows(), Affine(slope * D, values)]
        return Pipeline(steps).values(self._check_rows(X), self.n_bits)

    def score_offset(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the offset that, added to ⟨q, 2b - 1⟩, estimates the cosine with `descent`.

        It is (⟨y, μ⟩ - β) / α, with α and β of the `NearScores`.
        """
        rows = as_floats(self._check_rows(X))
        if not self.descent:
            return np.zeros(len(rows))
        n, correction = self._correction(-1)
        lengths = np.linalg.norm(rows, axis=1)
        offsets = rows @ self.mean_.astype(np.float64) / np.where(lengths > 0, lengths, 1)
        estimates = correction.slope * offsets + correction.constant(n)
        near = self._scores() or NearScores()
        return np.asarray((estimates - near.offset) / near.slope, np.float64)

    def reconstruct(self, codes: ArrayLike) -> NDArray[np.float32]:
        """Return μ + s·D·(2b - 1), the rows (m, features) reconstructed from packed codes.

        With `descent` they are estimates of the rows scaled to length 1.
        """
        self._check_fitted()
        bits = unpack(codes, self.n_bits)
        rows = self.mean_ + np.float32(self.scale_) * self._corners(bits)
        return unit_rows(rows) if self.neighbours or self._correction(-1)[0] else rows

    def _corners(self, bits: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return D·(2b - 1) for each row of bits."""
        rows = np.empty((len(bits), len(self.mean_)), np.float32)
        return product(as_signs(bits), self.dictionary_.T, rows)

    def _dictionary(self, sample: FloatArray, rng: np.random.RandomState) -> FloatArray:
        n_features, N = sample.shape[1], self.n_bits
        if n_features <= N:
            return _frame(n_features, N, rng)
        Y = unit_rows(sample.astype(np.float32))
        seed = rng.randint(2**31 - 1)
        return ksvd(Y, N, sparsity=min(self.sparsity, N), n_iter=10, random_state=seed).dictionary

    def pipeline(self) -> list[Operation]:
        """Return the steps whose signs are the bits; with `descent` their values are ±1."""
        if not self.descent:
            return [UnitRows(self.mean_), self._solver(self.dictionary_)]
        near = self._near()
        starts = [0, *self.levels_[:-1]]
        levels = []
        for i, D in enumerate([*self._inner(), self.dictionary_]):
            n, correction = self._correction(i)
            # In models of version 0.8, levels without a correction use the penalty and descent.
            search = self._search if n or self.length_weight else Search()
            scores = self._scores(i)
            levels.append(
                Level(
                    D, starts[i], self.mean_, self._solver, search, n_correction=n,
                    correction=correction, near=near if scores else None, scores=scores,
                )
            )  # fmt: skip
        return [UnitRows(), BitDescent(levels)]

    def _near(self) -> NearRows | Neighbourhoods | None:
        """Return the training rows that stand for queries, if there are any."""
        if not self.neighbours:
            return None
        if self._has_neighbourhoods:
            near = Neighbourhoods(self.near_means_, self.near_factors_)
            return near if len(self.near_means_) else None
        if not len(self.near_rows_):
            return None
        return NearRows.unpack(self.mean_, self.near_steps_, self.near_rows_, self.near_ends_)

    def _solver(self, D: Array) -> "LinfIterations":
        bound = self.bound / math.sqrt(D.shape[1])
        return LinfIterations(D, bound, self.penalty, self.n_iter)

    @classmethod
    def read_parameters(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a saved model under their names in this version."""
        parameters = {**saved, "nested": tuple(saved.get("nested", ()))}  # JSON has no tuples
        if parameters.pop("correction_bits", 0) and "effort" not in saved:  # version 0.8
            parameters |= {"effort": 0.25, "length_weight": 0.0}
        return parameters

    def check_restored(self) -> None:
        """Raise an error for invalid parameters in a file, such as an n_iter that takes forever."""
        self._check_parameters()
        if self.n_iter > _MAX_ITERATIONS:
            raise ValueError(f"n_iter must be at most {_MAX_ITERATIONS:,}: got {self.n_iter}")
        if self.neighbours:
            self._check_neighbours()
        if self._has_corrections:
            self._check_corrections()
        super().check_restored()

    def _check_neighbours(self) -> None:
        expected = len(self.levels_), len(NearScores._fields)
        if self.near_scores_.shape != expected:
            raise ValueError(f"near_scores_ must be {expected}: got {self.near_scores_.shape}")
        are_valid = (self.near_scores_[:, 0] > 0) | ~self.near_scores_.any(axis=1)
        if not np.isfinite(self.near_scores_).all() or not are_valid.all():
            raise ValueError("near_scores_ must be finite, with positive slopes or all 0")
        n = self.n_features_in_
        if self._has_neighbourhoods:
            shapes = self.near_means_.shape, self.near_factors_.shape
            K = len(self.near_means_)
            if len(shapes[1]) != 3 or shapes != ((K, n), (K, shapes[1][1], n)):
                raise ValueError(f"near_means_ and near_factors_ must fit: got {shapes}")
            return
        ends, shape = self.near_ends_, self.near_rows_.shape
        is_valid = np.isfinite(self.near_steps_).all() and (self.near_steps_ >= 0).all()
        if self.near_steps_.shape != (n,) or not is_valid:
            raise ValueError(f"near_steps_ must be {n} finite values of at least 0")
        if len(shape) != 2 or shape[1] != -(-n // 2) or self.near_rows_.dtype != np.uint8:
            raise ValueError(f"near_rows_ must be bytes for {n} features: got the shape {shape}")
        if ends.ndim != 1 or ends.dtype.kind != "i":
            raise ValueError(f"near_ends_ must be integers: got {ends.dtype} {ends.shape}")
        n_rows = int(ends[-1]) if len(ends) else 0
        if n_rows != shape[0] or (np.diff(ends, prepend=0) < N_NEAR).any():
            raise ValueError(
                f"near_ends_ must divide the {shape[0]} near_rows_ into lists of at least {N_NEAR}"
            )

    def _check_corrections(self) -> None:
        expected = len(self.levels_), len(Correction._fields)
        if self.corrections_.shape != expected or not np.isfinite(self.corrections_).all():
            raise ValueError(f"corrections_ must have the shape {expected} and finite values")
        is_valid = all(0 <= n <= _MAX_CORRECTION for n in self.n_corrections_)
        if not is_valid or len(self.n_corrections_) != len(self.levels_):
            raise ValueError(
                f"n_corrections_ must be up to {_MAX_CORRECTION} for each of "
                f"{len(self.levels_)} levels: got {self.n_corrections_}"
            )

    def _check_parameters(self) -> None:
        for name in ("sparsity", "n_samples", "n_iter"):
            check_whole(getattr(self, name), name, 1)
        check_whole(self.n_refits, "n_refits", 0)
        check_type(self.descent, "descent", bool)
        check_type(self.neighbours, "neighbours", bool)
        check_nested(self.nested, self.n_bits)
        if self.neighbours and not self.descent:
            raise ValueError("neighbours=True needs descent=True")
        if self.nested and not self.descent:
            raise ValueError(f"nested lengths need descent=True: got {self.nested}")
        for name in ("effort", "length_weight"):
            if not 0 <= getattr(self, name) <= _MAX_EFFORT:
                limits = f"from 0 to {_MAX_EFFORT}"
                raise ValueError(f"{name} must be {limits}: got {getattr(self, name)}")
        for name in ("bound", "penalty"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite: got {getattr(self, name)}")


def _frame(n_features: int, n_bits: int, rng: np.random.RandomState) -> FloatArray:
    """Return a random tight frame (n_features, n_bits), or orthonormal columns for few bits."""
    tall = (max(n_bits, n_features), min(n_bits, n_features))
    Q: FloatArray = np.linalg.qr(rng.standard_normal(tall))[0]
    return math.sqrt(n_bits / n_features) * Q.T if n_bits >= n_features else Q


def _directions(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Return the rows scaled to length 1."""
    return unit_rows(rows.astype(np.float32))


class LinfIterations(Operation):
    """Map rows y to x after n_iter iterations for Eq. 1, in the form of `relaxed_step`.

        u = z = Wy,   u ← αWy + R(2z - u) + (1 - α/2) u,   z ← clip(u, ±λ)

    Unlike `solve_linf`, every row gets the same number of iterations: its bits must not depend on
    the other rows.
    """

    def __init__(self, D: Array, bound: float, penalty: float, n_iter: int) -> None:
        W, S = unfolded_weights(D.astype(np.float64), penalty)
        self.W = np.ascontiguousarray(W.T, dtype=np.float32)
        self.R = np.ascontiguousarray(relaxed_weight(S).T, dtype=np.float32)
        self.bound, self.n_iter = np.float32(bound), n_iter

    def width(self, n: int) -> int:
        """Return the number of bits."""
        check_width(n, len(self.W))
        return int(self.W.shape[1])

    def run(self, X: Array, memory: Workspace) -> Array:
        """Run all iterations on one chunk of rows at a time, which stays in the cache."""
        out = memory.array(self, len(X), self.W.shape[1])
        for part in chunks(len(X)):
            from_columns(self._iterate(to_columns(X[part])), out[part])
        return out

    def _iterate(self, Y: Array) -> Array:
        u = np.matmul(self.W.T, Y)
        drive = u * np.float32(RELAXATION)
        z, work = np.empty_like(u), np.empty_like(u)
        for _ in range(self.n_iter):
            self._clip(u, z)
            z *= 2
            z -= u
            np.matmul(self.R.T, z, out=work)
            u *= np.float32(1 - RELAXATION / 2)
            u += drive
            u += work
        return self._clip(u, z)

    def _clip(self, u: Array, out: Array) -> Array:
        np.maximum(u, -self.bound, out=out)
        return np.minimum(out, self.bound, out=out)

    def export(self, graph: Graph, x: str) -> str:
        """Add all iterations."""
        u = graph.node("MatMul", x, self.W)
        drive = graph.node("Mul", u, np.float32(RELAXATION))

        def clip(u: str) -> str:
            return graph.node("Min", graph.node("Max", u, -self.bound), self.bound)

        for _ in range(self.n_iter):
            reflected = graph.node("Sub", graph.node("Mul", clip(u), np.float32(2)), u)
            kept = graph.node("Mul", u, np.float32(1 - RELAXATION / 2))
            kept = graph.node("Add", kept, drive)
            u = graph.node("Add", graph.node("MatMul", reflected, self.R), kept)
        return clip(u)


def _concatenate(dictionaries: list[NDArray[np.float32]], n_rows: int) -> NDArray[np.float32]:
    return np.concatenate([np.empty((n_rows, 0), np.float32), *dictionaries], axis=1)

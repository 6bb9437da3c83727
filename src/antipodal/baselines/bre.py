"""Binary reconstructive embeddings (BRE): Hamming distances that approximate given distances."""

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.hashers.base import BaseHasher, FloatArray
from antipodal.hashers.operations import (
    Affine,
    Each,
    Operation,
    Standardise,
    UnitRows,
    unit_rows,
)
from antipodal.hashers.preprocessing import draw_rows, feature_moments, feature_scale
from antipodal.hashers.registry import built_in
from antipodal.threads import one_thread
from antipodal.validation import check_labels, check_random_state, check_whole

_MIN_GAIN = 1e-3  # relative decrease of the error below which sweeps stop
_EQUAL = 1e-9  # relative difference below which two thresholds count as equal


class Partners(NamedTuple):
    """Pairs of row i with each of the rows in `rows[i]`, and their target distances."""

    rows: NDArray[np.int64]  # (m, k)
    target: NDArray[np.float64]  # (m, k)


@built_in
class BRE(BaseHasher):
    """Signs of kernel expansions whose Hamming distances approximate given distances. [Kulis2009]

        h_p(x) = [Σ_q W_pq κ(s_pq, x) > 0]       bit p has its own random landmarks s_p1, s_p2, …
        min_W Σ_ij (d_ij - |{p: h_p(x_i) ≠ h_p(x_j)}| / b)²        over sampled pairs (i, j)

    With labels, d_ij is 0 if two rows share one and 1 otherwise. Without labels it is ¼‖x - x'‖²,
    for rows that are centred, scaled and of length 1. κ is a Gaussian kernel minus its mean over
    the training rows: κ(s, x) = exp(-γ‖s - x‖²) - κ̄(s).

    Coordinate descent changes one weight at a time. As a weight runs over the real line, each row
    changes its bit once, at its threshold: sorting the thresholds finds the best weight exactly.

    Parameters
    ----------
    n_bits : int
        Code length b.
    n_anchors : int
        Landmarks per bit, sampled from the training rows.
    n_partners : int
        Pairs per row: half with similar rows (without labels: the nearest), half with dissimilar
        rows (without labels: random ones).
    n_samples : int
        Largest number of rows to train on; more rows are sampled, evenly from classes.
        Mean and scale use all rows.
    n_sweeps : int
        Largest number of passes over all weights.
    gamma : float
        γ of the kernel, for rows of length 1.
    standardize : bool
        Whether to scale features to standard deviation 1 before rows are scaled to length 1.
    random_state : int, RandomState or None
        Seed of the samples, landmarks, pairs and initial weights.

    Attributes
    ----------
    errors_ : array
        Mean squared error before the first sweep and after each sweep; it never increases.
    """

    mean_: NDArray[np.float32]
    feature_scale_: NDArray[np.float32]
    landmarks_: NDArray[np.float32]
    weights_: NDArray[np.float32]
    offsets_: NDArray[np.float32]
    errors_: NDArray[np.float64]

    uses_labels = True  # if given
    encoding_parameters = ("n_bits", "gamma")

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_anchors: int = 100,
        n_partners: int = 50,
        n_samples: int = 3000,
        n_sweeps: int = 5,
        gamma: float = 1.0,
        standardize: bool = True,
        random_state: Any = None,
    ) -> None:
        self.n_bits = n_bits
        self.n_anchors = n_anchors
        self.n_partners = n_partners
        self.n_samples = n_samples
        self.n_sweeps = n_sweeps
        self.gamma = gamma
        self.standardize = standardize
        self.random_state = random_state

    @one_thread()
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn from labels y, (m,) or multi-hot (m, c), or from distances without labels."""
        rows = self.check_fit(X)
        self._check_parameters()
        labels = None if y is None else check_labels(y, len(rows))
        rng = check_random_state(self.random_state)
        chosen = draw_rows(len(rows), self.n_samples, rng, labels)
        self._learn_scale(rows)
        scaled = (rows[chosen].astype(np.float32) - self.mean_) / self.feature_scale_
        sample = unit_rows(scaled)
        Z = sample.astype(np.float64)
        if labels is None:
            partners = distance_partners(Z, self.n_partners, rng)
        else:
            partners = label_partners(labels[chosen], self.n_partners, rng)
        n_anchors = min(self.n_anchors, len(Z))
        anchors = np.stack([rng.permutation(len(Z))[:n_anchors] for _ in range(self.n_bits)])
        K = np.exp(2 * self.gamma * (Z @ Z.T - 1))  # ‖s - x‖² = 2 - 2s·x
        centre = K.mean(axis=0)
        W, errors = descend(K - centre, anchors, partners, self.n_sweeps, rng)
        self.errors_ = np.array(errors)
        used = np.unique(anchors)
        weights = np.zeros((len(Z), self.n_bits))
        weights[anchors.T, np.arange(self.n_bits)] = W.T
        self.landmarks_ = sample[used]
        self.weights_ = weights[used].astype(np.float32)
        self.offsets_ = -(centre[used] @ weights[used]).astype(np.float32)
        return self

    def _learn_scale(self, rows: NDArray[Any]) -> None:
        mean, deviation = feature_moments(rows)
        scale = feature_scale(mean, deviation) if self.standardize else np.ones_like(mean)
        self.mean_, self.feature_scale_ = mean.astype(np.float32), scale.astype(np.float32)

    def pipeline(self) -> list[Operation]:
        """Return the steps whose signs are the bits; -γ‖s - x‖² = 2γ·sᵀx - 2γ."""
        n_landmarks = len(self.landmarks_)
        return [
            Standardise(self.mean_, self.feature_scale_),
            UnitRows(),
            Affine(2 * self.gamma * self.landmarks_.T, np.full(n_landmarks, -2 * self.gamma, "f4")),
            Each("Exp"),
            Affine(self.weights_, self.offsets_),
        ]

    def _check_parameters(self) -> None:
        for name, least in (
            ("n_anchors", 1), ("n_partners", 2), ("n_samples", 2), ("n_sweeps", 0),
        ):  # fmt: skip
            check_whole(getattr(self, name), name, least)
        if not 0 < self.gamma < float("inf"):
            raise ValueError(f"gamma must be positive and finite: got {self.gamma}")


def label_partners(labels: NDArray[Any], k: int, rng: np.random.RandomState) -> Partners:
    """Draw ⌊k/2⌋ similar rows of each row, at distance 0, and dissimilar rows, at distance 1.

    A row without similar, or without dissimilar, rows is its own partner, which has no effect on
    the optimum.
    """
    if labels.ndim == 1:
        similar = labels[:, None] == labels
    else:
        similar = labels.astype(np.float32) @ labels.T.astype(np.float32) > 0
    np.fill_diagonal(similar, False)
    dissimilar = ~similar
    np.fill_diagonal(dissimilar, False)
    near, far = _draw(similar, k // 2, rng), _draw(dissimilar, k - k // 2, rng)
    target = np.repeat([0.0, 1.0], [near.shape[1], far.shape[1]])
    return Partners(np.hstack([near, far]), np.tile(target, (len(labels), 1)))


def distance_partners(Z: FloatArray, k: int, rng: np.random.RandomState) -> Partners:
    """Draw the ⌊k/2⌋ nearest rows of each row and random others, at distance ¼‖z - z'‖².

    Opposite rows have distance 1, and orthogonal rows ½, like the bits of unrelated rows.
    """
    m = len(Z)
    products = Z @ Z.T
    np.fill_diagonal(products, -np.inf)
    n_near = min(k // 2, m - 1)
    near = np.argpartition(-products, n_near - 1, axis=1)[:, :n_near]
    step = rng.randint(1, m, (m, k - k // 2))
    rows = np.hstack([near, (np.arange(m)[:, None] + step) % m])  # any but the row itself
    return Partners(rows, (1 - np.take_along_axis(products, rows, axis=1)) / 2)


def _draw(allowed: NDArray[np.bool_], k: int, rng: np.random.RandomState) -> NDArray[np.int64]:
    """Draw k allowed columns of each row with replacement, or the row itself if there are none."""
    allowed_first = np.argsort(~allowed, axis=1, kind="stable")
    count = allowed.sum(axis=1, keepdims=True)
    drawn = (rng.random_sample((len(allowed), k)) * count).astype(np.int64)
    itself = np.arange(len(allowed))[:, None]
    return np.where(count > 0, np.take_along_axis(allowed_first, drawn, axis=1), itself)


def descend(
    K: FloatArray,
    anchors: NDArray[np.int64],
    partners: Partners,
    n_sweeps: int,
    rng: np.random.RandomState,
) -> tuple[FloatArray, list[float]]:
    """Return weights W (b, q) found by coordinate descent from random ones, and the errors.

    K (m, m) are the centred kernels of all rows, anchors (b, q) the landmarks of each bit.
    """
    b, J = len(anchors), partners.rows
    W = rng.standard_normal(anchors.shape)
    bits = np.stack([K[:, a] @ w > 0 for a, w in zip(anchors, W, strict=True)])
    unequal = np.zeros(J.shape)  # Hamming distance of each pair
    for h in bits:
        unequal += h[:, None] != h[J]

    def error() -> float:
        return float(np.square(partners.target - unequal / b).mean())

    errors = [error()]
    for _ in range(n_sweeps):
        for p in rng.permutation(b):
            unequal -= bits[p][:, None] != bits[p][J]
            # With e the error of the other bits, (e - δ/b)² = e² + δ(1/b² - 2e/b), δ = 0 or 1.
            cost = 1 / b**2 - 2 / b * (partners.target - unequal / b)
            bits[p] = improve_bit(W[p], np.asfortranarray(K[:, anchors[p]]), cost, J, rng)
            unequal += bits[p][:, None] != bits[p][J]
        errors.append(error())
        if errors[-1] > (1 - _MIN_GAIN) * errors[-2]:
            break
    return W, errors


def improve_bit(
    w: FloatArray,
    K: FloatArray,
    cost: FloatArray,
    J: NDArray[np.int64],
    rng: np.random.RandomState,
) -> NDArray[np.bool_]:
    """Update the weights w of one bit in turn, in place, and return the bit of each row.

    `cost[i, j]` is the cost of unequal bits of row i and row J[i, j].
    """
    total = cost.sum(axis=1) - np.bincount(J.ravel(), cost.ravel(), len(K))
    value = K @ w
    for q in rng.permutation(len(w)):
        rest = value - w[q] * K[:, q]
        w[q] = best_weight(w[q], rest, K[:, q], cost, J, total)
        value = rest + w[q] * K[:, q]
    bits: NDArray[np.bool_] = K @ w > 0
    return bits


def best_weight(
    current: float,
    rest: FloatArray,
    k: FloatArray,
    cost: FloatArray,
    J: NDArray[np.int64],
    total: FloatArray,
) -> float:
    """Return the weight w for which the bits [rest + w·k > 0] cost least, or the current one.

    Row i changes its bit at the threshold w = -restᵢ/kᵢ. As w increases from below all thresholds,
    a pair is toggled between equal and unequal while w is between its two thresholds. Its cost is
    added (+ if its bits were equal, else -) at the lower threshold and removed at the upper.
    `total` is, for each row i, the cost of its pairs (i, ·) minus that of pairs (·, i).
    """
    moves = k != 0
    threshold = np.full(len(k), np.inf)
    np.divide(-rest, k, out=threshold, where=moves)
    order = np.argsort(threshold)
    rank = np.empty(len(k), np.int32)
    rank[order] = np.arange(1, len(k) + 1, dtype=np.int32)
    starts_low = np.where(moves, k > 0, rest <= 0)  # bit 0 while w is below all thresholds
    # One lookup per pair returns the rank of the partner; its sign says whether it starts low.
    partner = np.take(np.where(starts_low, -rank, rank), J, mode="clip")
    negative = (np.abs(partner) < rank[:, None]) ^ (partner < 0) ^ starts_low[:, None]
    negated = negative * cost
    step = total - 2 * (negated.sum(axis=1) - np.bincount(J.ravel(), negated.ravel(), len(k)))

    order = order[: np.count_nonzero(moves)]
    if not len(order):
        return current
    t = threshold[order]
    change = np.concatenate([[0.0], np.cumsum(step[order])])  # of the cost, after each threshold
    current_change = change[np.searchsorted(t, current)]
    change[1:-1][np.diff(t) <= _EQUAL * np.abs(t[1:])] = np.inf  # no weight between the two
    best = int(change.argmin())
    if change[best] >= current_change - 1e-12:
        return current
    below, above = t[max(best - 1, 0)], t[min(best, len(t) - 1)]
    if best == 0:
        return float(above - abs(above) - 1)
    if best == len(t):
        return float(below + abs(below) + 1)
    return float((below + above) / 2)

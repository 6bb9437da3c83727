"""KSH against dense matrices, SciPy's generalised eigenproblem and autograd."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import eigh
from sklearn.datasets import load_digits
from sklearn.metrics.pairwise import rbf_kernel

from antipodal import evaluate
from antipodal.baselines.ksh import (
    KSH,
    LabelResidue,
    ascend,
    leading_direction,
    learn_bits,
    smoothed_fit,
)
from effort import examples

X, Y = load_digits(return_X_y=True)
SEEDS = st.integers(0, 2**32 - 1)


def label_matrix(labels):
    """Return S, computed entry by entry."""
    same = [
        [bool(a == b) if labels.ndim == 1 else bool((a & b).any()) for b in labels] for a in labels
    ]
    return np.where(same, 1.0, -1.0)


def problem(seed, multilabel=False, n=40, m=6):
    rng = np.random.default_rng(seed)
    labels = rng.random((n, 4)) < 0.3 if multilabel else rng.integers(3, size=n)
    K = rng.standard_normal((n, m))
    return labels, K - K.mean(axis=0), rng


@given(seed=SEEDS, multilabel=st.booleans())
@examples(30)
def test_the_residue_is_the_label_matrix_minus_the_bits(seed, multilabel):
    labels, Q, rng = problem(seed, multilabel)
    residue = LabelResidue(labels, 5)
    R = 5 * label_matrix(labels)
    for _ in range(3):
        b = np.sign(rng.standard_normal(len(labels))).astype(np.float32)
        assert residue.fit(b) == pytest.approx(b @ R @ b, rel=1e-5, abs=1e-2)
        residue.subtract(b)
        R -= np.outer(b, b)
    v = rng.standard_normal(len(labels)).astype(np.float32)
    np.testing.assert_allclose(residue.times(v), R @ v, atol=1e-3)
    np.testing.assert_allclose(residue.form(Q), Q.T @ R @ Q, atol=1e-3)


@given(seed=SEEDS)
@examples(30)
def test_the_gradient_is_that_of_autograd(seed):
    torch = pytest.importorskip("torch")
    labels, Q, rng = problem(seed)
    c = rng.standard_normal(Q.shape[1])
    value, sensitivity = smoothed_fit(c, Q, LabelResidue(labels, 8))
    leaf = torch.tensor(c, requires_grad=True)
    phi = 2 / (1 + torch.exp(-torch.tensor(Q) @ leaf)) - 1
    expected = phi @ (8 * torch.tensor(label_matrix(labels))) @ phi
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-4, abs=1e-2)
    np.testing.assert_allclose(Q.T @ sensitivity, leaf.grad, rtol=1e-4, atol=1e-2)


@given(seed=SEEDS, multilabel=st.booleans())
@examples(20)
def test_without_iterations_the_first_bit_is_scipys_generalised_eigenvector(seed, multilabel):
    labels, K, _ = problem(seed, multilabel)
    ridge = 0.1
    A = learn_bits(K, LabelResidue(labels, 1), ridge, n_iter=0)
    gram = K.T @ K
    gram += ridge * np.trace(gram) / len(gram) * np.eye(len(gram))
    values, vectors = eigh(K.T @ label_matrix(labels) @ K, gram)
    a = A[:, 0]
    # Compare quotients: eigenvectors are ambiguous where two eigenvalues are nearly equal.
    quotient = (a @ K.T @ label_matrix(labels) @ K @ a) / (a @ gram @ a)
    assert quotient == pytest.approx(values[-1], rel=1e-3, abs=1e-3)
    assert np.linalg.norm(K @ a) == pytest.approx(np.sqrt(len(K)), rel=1e-4)
    if values[-1] - values[-2] > 0.1 * abs(values[-1]):
        cosine = (a @ vectors[:, -1]) / np.linalg.norm(a) / np.linalg.norm(vectors[:, -1])
        assert abs(cosine) == pytest.approx(1.0, abs=1e-2)


def test_the_leading_direction_maximises_the_form():
    form = np.diag([1.0, -5.0, 3.0])
    np.testing.assert_allclose(np.abs(leading_direction(form)), [0, 0, 1], atol=1e-12)


@given(seed=SEEDS)
@examples(20)
def test_the_ascent_never_ends_below_its_start(seed):
    labels, Q, rng = problem(seed)
    Q = Q.astype(np.float32)
    residue = LabelResidue(labels, 8)
    start = rng.standard_normal(Q.shape[1]).astype(np.float32)
    end = ascend(Q, residue, start, 40)
    before, after = (smoothed_fit(c, Q, residue)[0] for c in (start, end))
    assert after >= before - 1e-4 * abs(before)


def test_the_codes_fit_the_labels_better_with_each_bit():
    rows, labels = X[:500], Y[:500]
    hasher = KSH(16, n_anchors=100, random_state=0).fit(rows, labels)
    H = 2.0 * hasher.transform(rows) - 1
    S = label_matrix(labels)
    # Bits are learned from rS, so that the first k bits are measured by their sum.
    errors = [np.linalg.norm(H[:, :k] @ H[:, :k].T - 16 * S) for k in range(17)]
    assert (np.diff(errors) < 0).all()
    # The spectral relaxation alone fits worse.
    relaxed = KSH(16, n_anchors=100, n_iter=0, random_state=0).fit(rows, labels)
    H = 2.0 * relaxed.transform(rows) - 1
    assert errors[-1] < 0.98 * np.linalg.norm(H @ H.T - 16 * S)


def test_projections_are_centred_kernels_times_the_projection():
    hasher = KSH(12, n_anchors=40, random_state=0).fit(X[:300], Y[:300])
    kernels = rbf_kernel(X, hasher.anchors_, gamma=1 / hasher.bandwidth_**2)
    expected = (kernels - hasher.kernel_mean_) @ hasher.projection_
    np.testing.assert_allclose(hasher.project(X), expected, atol=1e-3)  # values up to 100
    assert {tuple(a) for a in hasher.anchors_} <= {tuple(x) for x in X[:300]}
    squared = ((X[:300, None] - hasher.anchors_) ** 2).sum(axis=2)
    assert hasher.bandwidth_ == pytest.approx(np.sqrt(squared.mean()), rel=1e-5)


def test_features_far_from_zero_give_the_same_bits():
    near = KSH(16, n_anchors=50, random_state=0).fit(X[:300], Y[:300])
    far = KSH(16, n_anchors=50, random_state=0).fit(X[:300] + 4096, Y[:300])
    assert (near.transform(X) == far.transform(X + 4096)).mean() > 0.999


def test_unseen_rows_of_a_class_are_neighbours():
    hasher = KSH(32, n_anchors=100, random_state=0).fit(X[:900], Y[:900])
    codes = hasher.encode(X[900:])
    assert evaluate(codes, codes, Y[900:], Y[900:], n_bits=32).map > 85


def test_multi_hot_classes_are_the_same_problem_as_classes():
    by_class = KSH(8, n_anchors=50, random_state=0).fit(X[:300], Y[:300])
    by_concept = KSH(8, n_anchors=50, random_state=0).fit(X[:300], np.eye(10, dtype=int)[Y[:300]])
    assert (by_class.transform(X) == by_concept.transform(X)).mean() > 0.99


def test_rows_beyond_the_limit_are_drawn_evenly_from_the_classes(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "antipodal.baselines.ksh.LabelResidue",
        lambda labels, n_bits: seen.append(labels) or LabelResidue(labels, n_bits),
    )
    skewed = np.concatenate([np.flatnonzero(Y == 0)[:100], np.flatnonzero(Y == 1)[:8]])
    hasher = KSH(4, n_labelled=40, random_state=0).fit(X[skewed], Y[skewed])
    np.testing.assert_array_equal(np.bincount(seen[0]), [32, 8])
    assert len(hasher.anchors_) == 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ridge": 0.0}, r"\bridge\b.*\b0\.0"),
        ({"bandwidth": -1.0}, r"\bbandwidth\b.*-1\.0"),
        ({"n_anchors": 0}, r"\bn_anchors\b.*\b1\b.*\b0\b"),
        ({"n_labelled": 1}, r"\bn_labelled\b.*\b2\b.*\b1\b"),
        ({"n_iter": -1}, r"\bn_iter\b.*\b0\b.*-1\b"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        KSH(4, **options).fit(X, Y)


def test_labels_are_required():
    with pytest.raises(ValueError, match=r"\by\b.*\bNone\b"):
        KSH(4).fit(X)


def test_equal_rows_are_encoded_and_too_large_features_rejected():
    assert KSH(4).fit(np.ones((6, 3)), [0, 0, 0, 1, 1, 1]).encode(np.ones((2, 3))).shape == (2, 1)
    with pytest.raises(ValueError, match="float32"):
        KSH(4).fit(X[:50] * 1e20, Y[:50])

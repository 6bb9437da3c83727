"""`NNHash` and `SparseHash`: the deep baselines of the paper, with other encoders."""

import inspect

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import Lasso

from antipodal import DeepLinf, Training, evaluate, load
from antipodal.baselines.nnhash import NNHash
from antipodal.baselines.sparsehash import SparseHash
from antipodal.hashers.registry import built_in_hashers
from antipodal.paper.encoders import SparseBitEncoder
from networks import network

BASELINES = [NNHash, SparseHash]
NETWORKS = [DeepLinf, *BASELINES]
X, Y = load_digits(return_X_y=True)


def split(seed):
    """Return 50 training rows and 20 queries per class, and all rows but the queries."""
    rng = np.random.default_rng(seed)
    rows = np.array([rng.permutation(np.flatnonzero(label == Y))[:70] for label in range(10)])
    query = rows[:, :20].ravel()
    return rows[:, 20:].ravel(), query, np.setdiff1d(np.arange(len(Y)), query)


def score(hasher, query, database):
    codes = hasher.encode(X)
    return evaluate(codes[query], codes[database], Y[query], Y[database], n_bits=32).map


def by_hand(hasher, f, *, feed):
    """z⁰ = f(Wy), zᵏ = f(Wy·feed + S_k zᵏ⁻¹ + b_k), in double precision, one row at a time."""
    W, S, b = (getattr(hasher.encoder_, name).double().numpy() for name in "WSb")
    codes = []
    for x in X[:40]:
        y = (x - hasher.mean_) / hasher.scale_
        z = f(W @ y)
        for S_k, b_k in zip(S, b, strict=True):
            z = f(feed * (W @ y) + S_k @ z + b_k)
        codes.append(z)
    return np.array(codes)


@pytest.mark.parametrize("kind", BASELINES)
@pytest.mark.parametrize("preset", ["paper", "reproduced"])
def test_presets_have_the_training_of_deeplinf(kind, preset):
    ours, theirs = (getattr(k, preset)(48, random_state=0) for k in (DeepLinf, kind))
    assert theirs.training == ours.training
    assert (theirs.feature_map, theirs.scaling) == (ours.feature_map, ours.scaling)
    assert theirs.n_stages == ours.n_stages == 2
    assert not ours.uses_unlabelled
    if kind is SparseHash:
        assert not theirs.nonnegative


@pytest.mark.parametrize("K", [0, 2, 3])
def test_projecting_with_nnhash_is_a_chain_of_tanh_layers(K):
    hasher = NNHash(
        24,
        feature_map="none",
        scaling="each",
        n_stages=K,
        training=Training(n_epochs=5),
        random_state=0,
    ).fit(X, Y)
    np.testing.assert_allclose(hasher.project(X[:40]), by_hand(hasher, np.tanh, feed=0), atol=2e-5)


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("K", [0, 2, 3])
def test_projecting_with_sparsehash_is_lista_and_tanh(K, nonnegative):
    hasher = SparseHash(
        24,
        feature_map="none",
        scaling="each",
        n_stages=K,
        nonnegative=nonnegative,
        training=Training(n_epochs=5),
        random_state=0,
    )
    theta = hasher.fit(X, Y).encoder_.threshold.double().numpy()
    assert np.ptp(theta) > 0  # every bit learned its own threshold

    def shrink(u):
        shrunk = np.where(np.abs(u) > theta, u - np.sign(u) * theta, 0.0)
        return np.maximum(shrunk, 0.0) if nonnegative else shrunk

    expected = np.tanh(np.maximum(by_hand(hasher, shrink, feed=1), 0.0) / theta)
    assert 0.1 < (expected == 0).mean() < 0.9
    np.testing.assert_allclose(hasher.project(X[:40]), expected, atol=5e-5)


@pytest.mark.parametrize("nonnegative", [False, True])
def test_fast_encoding_is_the_trained_network(nonnegative):
    hasher = SparseHash(
        24,
        feature_map="none",
        nonnegative=nonnegative,
        training=Training(n_epochs=5),
        random_state=0,
    )
    hasher.set_params(scaling="each").fit(X, Y)
    rows = torch.from_numpy(((X - hasher.mean_) / hasher.scale_).astype(np.float32))
    np.testing.assert_allclose(hasher.project(X), hasher.encoder_(rows), atol=5e-5)


def test_sparse_stages_approach_the_lasso():
    """With the weights of ISTA, many stages solve sparse coding."""
    rng = np.random.default_rng(0)
    D, y, alpha = rng.standard_normal((12, 8)), rng.standard_normal(12), 1.5
    step = 1 / np.linalg.norm(D, 2) ** 2
    for nonnegative in (False, True):
        encoder = SparseBitEncoder(12, 8, 3000, nonnegative=nonnegative).double()
        with torch.no_grad():
            encoder.W.copy_(torch.from_numpy(step * D.T))
            encoder.S.copy_(torch.from_numpy(np.eye(8) - step * D.T @ D))
            encoder.shelu.log_threshold.fill_(np.log(step * alpha))
        lasso = Lasso(alpha / 12, fit_intercept=False, positive=nonnegative, tol=1e-12)
        positive = lasso.fit(D, y).coef_.clip(min=0)
        assert 0 < np.count_nonzero(positive) < 8
        found = encoder(torch.from_numpy(y)[None])[0].detach()
        np.testing.assert_allclose(found, np.tanh(positive / (step * alpha)), atol=1e-6)


def test_all_networks_have_weights_of_the_same_shape_and_depth():
    settings = {"feature_map": "none", "n_epochs": 1, "random_state": 0}
    fitted = [network(kind, 20, **settings).fit(X[:200], Y[:200]).encoder_ for kind in NETWORKS]
    for encoder in fitted:
        shapes = [tuple(weight.shape) for weight in (encoder.W, encoder.S, encoder.b)]
        assert shapes == [(20, 64), (2, 20, 20), (2, 20)]  # W and two stages: three layers
    counts = [sum(p.numel() for p in encoder.parameters()) for encoder in fitted]
    weights = 20 * 64 + 2 * 20 * 20 + 2 * 20
    assert counts == [weights + 20, weights, weights + 20]  # tanh has no thresholds


def test_all_networks_have_the_same_budget():
    budget = ("n_stages", "scaling", "feature_map", "n_hidden", "loss", "training")
    settings = [kind().get_params() for kind in NETWORKS]
    assert len({tuple(s[name] for name in budget) for s in settings}) == 1
    for kind in NETWORKS:
        first, *others = inspect.signature(kind).parameters.values()
        assert first.name == "n_bits"
        assert all(p.kind is p.KEYWORD_ONLY for p in others)


@pytest.mark.parametrize("kind", NETWORKS)
def test_all_networks_minimise_eq_12(kind):
    rows, labels, m, w = X[:90], Y[:90], 4.0, 0.3
    hasher = network(
        kind,
        12,
        n_epochs=1,
        batch_size=90,
        learning_rate=1e-12,
        dropout=0.0,
        margin=m,
        similar_weight=w,
        random_state=0,
    ).fit(rows, labels)
    x = hasher.project(rows).astype(np.float64)
    pull, push = [], []
    for i in range(90):
        for j in range(i):
            distance = np.linalg.norm(x[i] - x[j])
            if labels[i] == labels[j]:
                pull.append(distance**2 / 2)
            else:
                push.append(max(0, m - distance) ** 2 / 2)
    assert hasher.loss_curve_[0] == pytest.approx(w * np.mean(pull) + np.mean(push), rel=1e-4)


@pytest.mark.parametrize("kind", BASELINES)
def test_baselines_learn_from_labels(kind):
    train, query, database = split(seed=0)
    settings = {"n_bits": 32, "n_anchors": 200, "random_state": 0}
    start = network(kind, n_epochs=1, learning_rate=1e-12, **settings).fit(X[train], Y[train])
    hasher = network(kind, n_epochs=80, **settings).fit(X[train], Y[train])
    assert hasher.loss_curve_[-1] < 0.7 * hasher.loss_curve_[0]
    assert score(hasher, query, database) > max(75, score(start, query, database) + 20)


@pytest.mark.parametrize("kind", BASELINES)
def test_baselines_learn_from_pairs(kind):
    train, query, database = split(seed=1)
    pairs = np.random.default_rng(0).integers(0, len(train), (6000, 2))
    similar = Y[train][pairs[:, 0]] == Y[train][pairs[:, 1]]
    hasher = network(kind, 32, n_epochs=12, n_anchors=200, random_state=0).fit_pairs(
        X[train], pairs, similar
    )
    assert score(hasher, query, database) > 70


def test_zeros_of_the_sparse_code_are_bit_0():
    hasher = SparseHash(32, training=Training(n_epochs=3, n_anchors=200), random_state=0).fit(
        X[:600], Y[:600]
    )
    values, bits = hasher.project(X), hasher.transform(X)
    assert 0.05 < (values == 0).mean() < 0.95
    np.testing.assert_array_equal(bits, values != 0)  # the bits are the support


def test_a_very_large_threshold_gives_zero_codes():
    hasher = SparseHash(8, threshold=1e6, training=Training(n_epochs=1), random_state=0).fit(
        X[:200], Y[:200]
    )
    assert not hasher.project(X).any()
    assert not hasher.encode(X).any()


@pytest.mark.parametrize("kind", BASELINES)
def test_a_saved_baseline_gives_the_same_values(kind, tmp_path, monkeypatch):
    monkeypatch.setitem(built_in_hashers(), kind.__name__, kind)
    hasher = network(kind, 20, n_stages=3, n_epochs=2, random_state=0).fit(X[:200], Y[:200])
    hasher.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert type(loaded) is kind
    assert loaded.get_params() == hasher.get_params()
    np.testing.assert_array_equal(loaded.project(X), hasher.project(X))


@pytest.mark.parametrize("kind", BASELINES)
def test_resumed_training_ends_with_the_same_bits(kind, tmp_path):
    def stop(epoch):
        if epoch.number == 12:
            raise KeyboardInterrupt

    settings = {"n_bits": 16, "n_epochs": 15, "random_state": 0}
    with pytest.raises(KeyboardInterrupt):
        network(kind, **settings).fit(
            X[:200], Y[:200], checkpoint=tmp_path / "state", progress=stop
        )
    seen = []
    resumed = network(kind, **settings).fit(
        X[:200], Y[:200], checkpoint=tmp_path / "state", progress=seen.append
    )
    assert [epoch.number for epoch in seen] == [11, 12, 13, 14, 15]
    whole = network(kind, **settings).fit(X[:200], Y[:200])
    np.testing.assert_array_equal(resumed.encode(X), whole.encode(X))


@pytest.mark.parametrize("threshold", [0.0, -1.0, float("nan"), float("inf")])
def test_an_invalid_threshold_is_refused(threshold):
    with pytest.raises(ValueError, match=rf"\bthreshold\b.*{threshold}"):
        SparseHash(8, threshold=threshold).fit(X[:50], Y[:50])

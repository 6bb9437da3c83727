"""`DeepLinf`: training from labels, concepts and pairs, encoding, and invalid settings."""

import tracemalloc

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, make_multilabel_classification

from antipodal import (
    ITQ,
    DeepLinf,
    LinfEncoder,
    NNHash,
    SparseHash,
    Training,
    evaluate,
    ksvd,
    unpack,
)
from antipodal.paper.admm import admm_iterations
from networks import network

X, Y = load_digits(return_X_y=True)


def split(y, n_train, n_query, seed):
    """Return training rows and queries per class, and all rows but the queries."""
    rng = np.random.default_rng(seed)
    train, query = [], []
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        query.extend(rows[:n_query])
        train.extend(rows[n_query : n_query + n_train])
    return np.array(train), np.array(query), np.setdiff1d(np.arange(len(y)), query)


def score(hasher, query, database):
    codes = hasher.encode(X)
    return evaluate(codes[query], codes[database], Y[query], Y[database], n_bits=48).map


@pytest.fixture(scope="module")
def fitted():
    train, query, database = split(Y, 50, 20, seed=0)
    return DeepLinf(48, random_state=0).fit(X[train], Y[train]), query, database


def test_on_digits_codes_beat_itq_by_twenty_points(fitted):
    hasher, query, database = fitted
    ours = score(hasher, query, database)
    itq = score(ITQ(48, random_state=0).fit(X[database]), query, database)
    assert itq > 60  # the baseline works
    assert ours >= itq + 20


def test_the_preset_has_the_settings_of_the_paper():
    hasher = DeepLinf.paper(48, random_state=0)
    stated = {
        "optimizer": "sgd", "learning_rate": 0.01, "schedule": "constant", "batch_size": 128,
        "margin": 5.0, "pairs": "sampled", "weight_decay": 0.0, "dropout": 0.0,
        "similar_weight": 1.0,
    }  # fmt: skip
    assert stated.items() <= hasher.training.get_params().items()
    encoder = {"n_bits": 48, "init": "ksvd", "n_stages": 2, "penalty": 0.6}
    assert encoder.items() <= hasher.get_params().items()


def test_ksvd_initialisation_is_eq_11_with_the_mean_multipliers():
    rows = torch.from_numpy(X[:200]).float()
    rows = (rows - rows.mean(dim=0)) / rows.std(dim=0).clamp(min=1e-3)
    hasher = DeepLinf(16, init="ksvd", bound=0.5)
    encoder = hasher.initial_encoder(rows, seed=3)
    D = ksvd(rows, 16, sparsity=Training().sparsity, random_state=3).dictionary
    p = admm_iterations(rows, D, 0.5, penalty=0.6, n_iter=2).multipliers.mean(dim=1)
    expected = LinfEncoder.from_dictionary(D, 0.5, 0.6, 2, p)
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(encoder.state_dict()[name], value)


def test_the_settings_of_the_paper_learn():
    train, query, database = split(Y, 50, 20, seed=1)
    hasher = DeepLinf.paper(48, n_epochs=2, random_state=0)
    hasher.set_params(training__n_pairs=30_000)
    start = DeepLinf(
        48,
        init="ksvd",
        training=Training(n_epochs=1, optimizer="sgd", learning_rate=1e-12),
        random_state=0,
    )
    before = score(start.fit(X[train], Y[train]), query, database)
    after = score(hasher.fit(X[train], Y[train]), query, database)
    assert hasher.loss_curve_[-1] < hasher.loss_curve_[0]
    assert after > before + 5


def test_explicit_pairs_are_learned_like_labels():
    train, query, database = split(Y, 50, 20, seed=2)
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, len(train), (8_000, 2))
    similar = Y[train][pairs[:, 0]] == Y[train][pairs[:, 1]]
    hasher = DeepLinf(48, training=Training(n_epochs=15, n_anchors=200), random_state=0)
    hasher.fit_pairs(X[train], pairs, similar)
    assert score(hasher, query, database) > 80


def test_concepts_are_learned_from_multi_hot_labels():
    rows, concepts = make_multilabel_classification(
        900, 40, n_classes=8, n_labels=2, random_state=0
    )
    has_any = concepts.any(axis=1)
    rows, concepts = rows[has_any], concepts[has_any]
    train, query = slice(0, 400), slice(400, None)
    hasher = DeepLinf(32, training=Training(n_epochs=60), random_state=0).fit(
        rows[train], concepts[train]
    )
    itq = ITQ(32, random_state=0).fit(rows[train])

    def score(hasher):
        codes = hasher.encode(rows[query])
        return evaluate(codes, codes, concepts[query], concepts[query], n_bits=32).map

    assert score(hasher) > score(itq) + 3


def test_codes_are_nearly_antipodal(fitted):
    hasher = fitted[0]
    at_bound = np.abs(hasher.project(X)) >= 0.99 * hasher.encoder_.blu.threshold.numpy()
    assert at_bound.mean() > 0.6
    assert len(np.unique(unpack(hasher.encode(X), 48), axis=0)) > 10


@pytest.mark.parametrize("K", [0, 2, 3])
def test_projecting_is_the_encoder_on_standardised_rows(K):
    hasher = DeepLinf(
        24,
        feature_map="none",
        scaling="each",
        n_stages=K,
        training=Training(n_epochs=5),
        random_state=0,
    )
    hasher.fit(X, Y)
    rows = torch.from_numpy(((X - hasher.mean_) / hasher.scale_).astype(np.float32))
    np.testing.assert_allclose(hasher.project(X), hasher.encoder_(rows), atol=2e-5)


@pytest.mark.parametrize(
    "hasher",
    [
        DeepLinf(24), DeepLinf(24, n_stages=3), NNHash(24),
        SparseHash(24), SparseHash(24, nonnegative=False),
    ],
    ids=["DeepLinf", "deeper", "NNHash", "SparseHash", "SparseHash both sides"],
)  # fmt: skip
def test_bits_are_those_of_the_encoder(hasher):
    hasher.set_params(feature_map="none", scaling="each", random_state=0)
    hasher.set_params(training__n_epochs=3).fit(X, Y)
    rows = torch.from_numpy(((X - hasher.mean_) / hasher.scale_).astype(np.float32))
    with torch.no_grad():
        np.testing.assert_array_equal(hasher.transform(X), hasher.encoder_(rows) > 0)


def _encoder_inputs(hasher, rows):
    """Apply the feature map of a network to scaled rows."""
    if "anchors_" in vars(hasher):
        K = torch.exp(-hasher.gamma_ * torch.cdist(rows, torch.from_numpy(hasher.anchors_)) ** 2)
        return K @ torch.from_numpy(hasher.lift_) - torch.from_numpy(hasher.lift_offset_)
    return hasher.hidden_(rows) if "hidden_.W" in hasher.weights_ else rows


@pytest.mark.parametrize("feature_map", ["none", "hidden", "kernel"])
def test_features_far_from_zero_keep_their_precision(feature_map):
    near = np.random.default_rng(0).standard_normal((400, 40))
    labels = (near[:, :2] > 0) @ [1, 2]
    far = (near + 1000).astype(np.float32)
    hasher = DeepLinf(
        16, feature_map=feature_map, scaling="each", training=Training(n_epochs=3), random_state=0
    ).fit(far, labels)
    rows = torch.from_numpy((far.astype(np.float64) - hasher.mean_) / hasher.scale_).float()
    assert rows.mean().abs() < 1e-4
    assert (rows.std() - 1).abs() < 0.05
    np.testing.assert_allclose(
        hasher.project(far),
        hasher.encoder_(_encoder_inputs(hasher, rows)),
        atol=1e-4,
    )
    if (
        feature_map != "kernel"
    ):  # eigenvectors of the kernel may change their signs with the rounding
        moved = DeepLinf(
            16,
            feature_map=feature_map,
            scaling="each",
            training=Training(n_epochs=3),
            random_state=0,
        )
        moved.fit(near, labels)
        assert (moved.transform(near) == hasher.transform(far)).mean() > 0.98


def test_encoding_a_long_memory_map_takes_little_memory(tmp_path):
    hasher = DeepLinf(32, training=Training(n_anchors=300, n_epochs=1), random_state=0).fit(
        X[:400], Y[:400]
    )
    rows = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (300_000, 64))
    rows[:] = X[0]
    hasher.encode(rows[:5000])
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    tracemalloc.start()  # counts the arrays of NumPy, but not the pages of mapped files
    try:
        for _ in hasher.encode_blocks(mapped):
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20e6  # the rows take 77 MB


def test_constant_and_huge_features_are_harmless():
    rows = np.hstack([X[:300], np.full((300, 1), 7.0), 1e6 + X[:300, :1], 1e12 * X[:300, 20:21]])
    codes = (
        DeepLinf(16, training=Training(n_epochs=30), random_state=0).fit(rows, Y[:300]).encode(rows)
    )
    assert len(np.unique(codes, axis=0)) > 5


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"bound": 0.0}, r"\bbound\b.*\b0\.0"),
        ({"bound": -1.0}, r"\bbound\b.*-1\.0"),
        ({"margin": 0.0}, r"\bmargin\b.*\b0\.0"),
        ({"n_epochs": 0}, r"\bn_epochs\b.*\b1\b.*\b0\b"),
        ({"batch_size": 1}, r"\bbatch_size\b.*\b2\b.*\b1\b"),
        ({"learning_rate": float("nan")}, r"\blearning_rate\b.*\bnan\b"),
        ({"noise": -1.0}, r"\bnoise\b.*-1\.0"),
        ({"noise": float("nan")}, r"\bnoise\b.*\bnan\b"),
        ({"dropout": 1.0}, r"\bdropout\b.*\[0, 1\).*\b1\.0"),
        ({"weight_decay": -1.0}, r"\bweight_decay\b.*-1\.0"),
        ({"optimizer": "adam"}, r"\boptimizer\b.*adamw.*'adam'"),
        ({"schedule": "step"}, r"\bschedule\b.*'step'"),
        ({"pairs": "all"}, r"\bpairs\b.*'all'"),
        ({"init": "zeros"}, r"\binit\b.*'random'.*'ksvd'.*'zeros'"),
        ({"n_stages": -1}, r"\bn_stages\b.*\b0\b.*-1\b"),
        ({"validation_fraction": 0.9}, r"\bvalidation_fraction\b.*\b0\.9\b"),
        ({"penalty": 0.0}, r"\bpenalty\b.*\b0\.0"),
        ({"similar_weight": 0.0}, r"\bsimilar_weight\b.*\b0\.0"),
        ({"pseudo_label_power": -1.0}, r"\bpseudo_label_power\b.*-1\.0"),
        ({"n_hidden": 0}, r"\bn_hidden\b.*\b1\b.*\b0\b"),
        ({"scaling": "unit"}, r"\bscaling\b.*auto.*each.*'unit'"),
    ],
)
def test_invalid_settings_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        network(DeepLinf, 8, **parameters).fit(X[:50], Y[:50])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_epochs": "abc"}, r"\bn_epochs\b.*'abc'"),
        ({"n_epochs": 10.0}, r"\bn_epochs\b.*\b10\.0"),
        ({"n_stages": 1.5}, r"\bn_stages\b.*\b1\.5"),
        ({"n_stages": True}, r"\bn_stages\b.*\bTrue\b"),
        ({"batch_size": "all"}, r"\bbatch_size\b.*'all'"),
        ({"sparsity": 1.5}, r"\bsparsity\b.*\b1\.5"),
        ({"centres": "maybe"}, r"\bcentres\b.*'maybe'"),
        ({"bound": "wide"}, r"\bbound\b.*'wide'"),
        ({"learning_rate": None}, r"\blearning_rate\b.*\bNone\b"),
        ({"dropout": True}, r"\bdropout\b.*\bTrue\b"),
        ({"n_hidden": 1.5}, r"\bn_hidden\b.*\b1\.5"),
        ({"margin": "wide"}, r"\bmargin\b.*'wide'"),
        ({"device": 1}, r"\bdevice\b.*\b1\b"),
    ],
)
def test_settings_of_the_wrong_type_are_refused(parameters, message):
    with pytest.raises(TypeError, match=message):
        network(DeepLinf, 8, **parameters).fit(X[:50], Y[:50])


def test_settings_may_be_numpy_scalars():
    settings = {"n_epochs": np.int64(1), "n_stages": np.int32(1), "dropout": np.float32(0.0)}
    network(DeepLinf, 8, centres=np.False_, margin=np.int64(3), **settings).fit(X[:50], Y[:50])


@pytest.mark.parametrize("device", ["foo", "cpu:x", "meta", "cuda:99", "cuda"])
def test_unavailable_devices_are_refused(device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ValueError, match=rf"\bdevice\b.*'auto'.*'cpu'.*'{device}'"):
        DeepLinf(8, training=Training(device=device)).fit(X[:50], Y[:50])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, r"\by\b.*\bNone\b"),
        (np.zeros(50), "class"),
        (Y[:49], r"\b50\b.*\b49\b"),
        (np.arange(50), "pairs"),
    ],
)
def test_unusable_labels_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        DeepLinf(8).fit(X[:50], labels)


def test_pairs_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"\b0\b.*\b49\b.*\b0\b.*\b50\b"):
        DeepLinf(8).fit_pairs(X[:50], [[0, 50], [1, 2]], [1, 0])

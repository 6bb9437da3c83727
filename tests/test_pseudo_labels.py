"""Pseudo-labels of unlabelled rows, and networks trained with them."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, make_multilabel_classification
from sklearn.neighbors import NearestNeighbors

from antipodal import ClassifierLSH, DeepLinf, SparseHash, Training, evaluate, load
from antipodal.hashers import pseudo_labels as teacher
from antipodal.hashers.preprocessing import learn_inputs, scaled
from antipodal.hashers.pseudo_labels import _mean_of_nearest, enough_labels, pseudo_labels
from networks import network

X, Y = load_digits(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(X))  # they come writer by writer
X, Y = X[ORDER], Y[ORDER]
LABELLED, UNLABELLED, QUERY = slice(0, 100), slice(100, 1400), slice(1400, None)
SEEN = scaled(X, learn_inputs(X, "common"))


def random():
    return np.random.RandomState(0)


@pytest.fixture(scope="module")
def believed():
    return pseudo_labels(SEEN[LABELLED], Y[LABELLED], SEEN[UNLABELLED], random())


def test_labels_are_certain_and_beliefs_are_probabilities_that_are_mostly_right(believed):
    np.testing.assert_array_equal(believed[:100], np.eye(10)[Y[LABELLED]])
    others = believed[100:]
    assert others.min() >= 0
    np.testing.assert_allclose(others.sum(axis=1), 1, atol=1e-5)
    right = others.argmax(axis=1) == Y[UNLABELLED]
    assert right.mean() > 0.85
    assert abs(others.max(axis=1).mean() - right.mean()) < 0.15


def test_neighbours_make_beliefs_better(believed, monkeypatch):
    monkeypatch.setattr(teacher, "_SHARE", 0.0)
    alone = pseudo_labels(SEEN[LABELLED], Y[LABELLED], SEEN[UNLABELLED], random())[100:]
    likelihood = [np.log(p[np.arange(1300), Y[UNLABELLED]]).mean() for p in (alone, believed[100:])]
    assert likelihood[1] > likelihood[0]


def test_the_nearest_are_those_that_scikit_learn_finds_without_the_row_itself():
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((300, 5)).astype(np.float32)  # digits have ties
    values = rng.random((300, 3)).astype(np.float32)
    nearest = NearestNeighbors(n_neighbors=10).fit(rows)
    found = nearest.kneighbors(return_distance=False)[:200]  # of the rows, each without itself
    np.testing.assert_allclose(
        _mean_of_nearest(rows[:200], rows, values), values[found].mean(axis=1), atol=1e-5
    )


def test_a_row_among_many_equal_ones_does_not_count_one_too_many():
    rows, values = np.zeros((40, 2), np.float32), np.ones((40, 1), np.float32)
    np.testing.assert_allclose(_mean_of_nearest(rows, rows, values), 1)


def test_concepts_are_believed_one_by_one():
    rows, concepts = make_multilabel_classification(
        500, 12, n_classes=5, n_labels=2, allow_unlabeled=False, random_state=0
    )
    seen = scaled(rows, learn_inputs(rows, "each"))
    p = pseudo_labels(seen[:200], concepts[:200].astype(bool), seen[200:], random())
    assert p.shape == (500, 5)
    np.testing.assert_array_equal(p[:200], concepts[:200])
    assert ((p[200:] > 0.5) == concepts[200:]).mean() > 0.75
    assert p[200:].sum(axis=1).std() > 0.1  # they do not sum to one


def test_few_rows_per_class_are_enough_and_too_few_are_said_to_be():
    assert enough_labels(np.repeat(np.arange(20), 5))
    with pytest.warns(UserWarning, match=r"\b12\b.*\b6 classes\b"):
        assert not enough_labels(np.repeat(np.arange(6), 2))


def test_a_class_that_is_missing_in_a_fold_is_no_trouble():
    labels = np.where(np.arange(60) == 7, 2, np.arange(60) % 2)
    p = pseudo_labels(SEEN[:60], labels, SEEN[60:100], random())
    assert np.isfinite(p).all()
    assert p.shape == (100, 3)


@pytest.fixture(scope="module")
def scores():
    """MAP of queries in the rest, without and with the rows without labels."""

    def score(kind, **options):
        hasher = network(kind, 32, n_epochs=40, batch_size=256, random_state=0)
        codes = hasher.fit(X[LABELLED], Y[LABELLED], **options).encode(X)
        return evaluate(codes[QUERY], codes[UNLABELLED], Y[QUERY], Y[UNLABELLED], n_bits=32).map

    return score


@pytest.mark.parametrize("kind", [DeepLinf, SparseHash])
def test_rows_without_labels_make_codes_better(kind, scores):
    alone = scores(kind)
    assert scores(kind, unlabelled=X[UNLABELLED]) > alone + 1


def test_where_labels_are_too_few_the_network_learns_from_them_alone():
    few = np.concatenate([np.flatnonzero(c == Y)[:2] for c in range(10)])
    options = {"n_epochs": 3, "random_state": 0}
    with pytest.warns(UserWarning, match=r"\b20\b.*\b10 classes\b"):
        hasher = network(DeepLinf, 8, **options).fit(X[few], Y[few], unlabelled=X)
    alone = network(DeepLinf, 8, **options).fit(X[few], Y[few])
    np.testing.assert_array_equal(hasher.encode(X), alone.encode(X))


def test_a_sample_of_a_memory_map_is_learned_from(tmp_path):
    np.save(tmp_path / "u.npy", X[UNLABELLED].astype(np.uint8))
    mapped = np.load(tmp_path / "u.npy", mmap_mode="r")
    options = {"n_epochs": 2, "n_unlabelled": 300, "random_state": 0}
    some = network(DeepLinf, 8, **options).fit(X[LABELLED], Y[LABELLED], unlabelled=mapped)
    again = network(DeepLinf, 8, **options).fit(X[LABELLED], Y[LABELLED], unlabelled=X[UNLABELLED])
    np.testing.assert_array_equal(some.encode(X), again.encode(X))
    alone = network(DeepLinf, 8, **options).fit(X[LABELLED], Y[LABELLED])
    assert (some.encode(X) != alone.encode(X)).any()


@pytest.mark.parametrize("feature_map", ["auto", "none", "hidden", "kernel"])
def test_models_that_learned_from_rows_without_labels_are_saved_and_resumed(feature_map, tmp_path):
    options = {
        "n_epochs": 4,
        "feature_map": feature_map,
        "n_anchors": 50,
        "n_hidden": 20,
        "random_state": 0,
    }

    def fit(checkpoint=None):
        hasher = network(DeepLinf, 16, **options)
        rows = {"unlabelled": X[UNLABELLED], "checkpoint": checkpoint}
        return hasher.fit(X[LABELLED], Y[LABELLED], **rows)

    hasher = fit()
    hasher.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").encode(X), hasher.encode(X))
    fit(tmp_path / "state")
    np.testing.assert_array_equal(fit(tmp_path / "state").encode(X), hasher.encode(X))


def test_models_of_version_0_2_are_read(tmp_path):
    hasher = DeepLinf(
        8, feature_map="none", scaling="each", training=Training(n_epochs=1), random_state=0
    ).fit(X, Y)
    old = {"n_bits": 8, "n_stages": 2, "tied": False, "bound": 1.0, "n_epochs": 1, "margin": None,
           "standardize": True, "kernel": "linear", "random_state": 0}  # fmt: skip
    read = DeepLinf(**DeepLinf.read_parameters(old))
    state = hasher.fitted_state()
    del state["root_"]
    read.restore_state(state)
    np.testing.assert_array_equal(read.encode(X), hasher.encode(X))
    assert (read.feature_map, read.scaling) == ("none", "each")
    assert read.training == Training(n_epochs=1)


def test_an_own_loss_is_given_targets_that_are_drawn():
    seen = []

    def loss(codes, targets):
        seen.append(targets)
        return codes.square().mean()

    hasher = DeepLinf(8, loss=loss, training=Training(n_epochs=1, batch_size=500), random_state=0)
    hasher.fit(X[LABELLED], Y[LABELLED], unlabelled=X[UNLABELLED])
    for targets in seen:
        assert set(targets.unique().tolist()) == {-1, 0, 1}
        assert (targets.diagonal() == 0).all()
        torch.testing.assert_close(targets, targets.T)
        assert (targets > 0).float().mean().item() == pytest.approx(0.1, abs=0.05)


@pytest.mark.parametrize(
    ("unlabelled", "message"),
    [
        (X[:5, :3], r"\bunlabelled\b.*\b64\b.*\b3\b"),
        (X[0], r"\bunlabelled\b.*\(64,\)"),
        (X[:0], r"\bunlabelled\b.*\(0, 64\)"),
        ([["a"] * 64], r"\bunlabelled\b.*<U1"),
        (np.where(np.arange(9)[:, None] == 4, np.nan, X[:9]), r"\bunlabelled\b.*\bNaN\b.*row 4\b"),
    ],
)
def test_rows_without_labels_that_cannot_be_used_are_refused(unlabelled, message):
    with pytest.raises(ValueError, match=message):
        DeepLinf(8, training=Training(n_epochs=1)).fit(X[:50], Y[:50], unlabelled=unlabelled)


def test_settings_that_leave_no_use_for_them_say_so():
    for hasher in (DeepLinf.paper(8), DeepLinf(8, training=Training(n_unlabelled=0))):
        assert not hasher.uses_unlabelled
        with pytest.raises(ValueError, match=r"\bunlabelled\b"):
            hasher.fit(X[:50], Y[:50], unlabelled=X)
    assert DeepLinf(8).uses_unlabelled
    assert not ClassifierLSH(8).uses_unlabelled


def test_nothing_is_warned_of_where_labels_are_enough():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DeepLinf(8, training=Training(n_epochs=1), random_state=0).fit(
            X[:60], Y[:60], unlabelled=X[60:90]
        )

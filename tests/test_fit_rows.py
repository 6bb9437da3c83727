"""Rows used by `fit`: subsampling, memory-mapped files, refitting."""

import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits

from antipodal import ITQ, DeepLinf, NetworkHasher, Training, load, open_vectors
from antipodal.hashers.preprocessing import (
    draw_rows,
    feature_moments,
    learn_inputs,
    sample_labelled,
    sample_rows,
    scaled,
)
from antipodal.hashers.registry import built_in_hashers, make_hasher
from networks import network

X, Y = load_digits(return_X_y=True)
FEW = {  # settings of a small and fast fit
    "n_samples": 400, "n_labelled": 400, "n_epochs": 1, "n_anchors": 40, "n_sweeps": 1,
    "n_projections": 10, "n_pairs": 500, "random_state": 0,
}  # fmt: skip


def small(kind):
    hasher = kind(8)
    if issubclass(kind, NetworkHasher):
        hasher.training = Training()
    names = {name.removeprefix("training__"): name for name in hasher.get_params()}
    return hasher.set_params(**{names[k]: v for k, v in FEW.items() if k in names})


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    """Return 200,000 memory-mapped rows of 64 bytes: 13 MB, and 102 MB as float64."""
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, np.random.default_rng(0).integers(0, 16, (200_000, 64), dtype=np.uint8))
    return np.load(path, mmap_mode="r")


@pytest.mark.parametrize("kind", built_in_hashers().values())
def test_fit_reads_a_sample_of_a_memory_map(kind, mapped):
    labels = np.arange(len(mapped)) % 10
    small(kind).fit(mapped[:500], labels[:500])  # imports modules, whose memory must not count
    tracemalloc.start()
    try:
        hasher = small(kind).fit(mapped, labels)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40e6
    assert hasher.encode(mapped[:5]).shape == (5, 1)


def test_rows_are_drawn_uniformly_and_in_order():
    drawn = [draw_rows(10, 4, np.random.default_rng(seed)) for seed in range(2000)]
    assert all((np.diff(rows) > 0).all() for rows in drawn)
    np.testing.assert_allclose(np.bincount(np.concatenate(drawn)) / 2000, 0.4, atol=0.05)


def test_rows_are_drawn_evenly_by_class():
    labels = np.repeat([0, 1, 2], [9000, 990, 10])
    rows = np.arange(len(labels), dtype=np.float32)[:, None]
    sample, drawn = sample_labelled(rows, labels, 300, np.random.default_rng(0))
    assert np.bincount(drawn).tolist() == [145, 145, 10]
    np.testing.assert_array_equal(labels[sample[:, 0].astype(int)], drawn)


def test_a_small_training_set_is_not_subsampled():
    rng = np.random.RandomState(0)
    rows, labels = sample_labelled(X, Y, len(X), rng)
    assert rows is X
    assert labels is Y
    assert sample_rows(X, 5000, rng) is X
    assert rng.randint(1000) == np.random.RandomState(0).randint(1000)  # nothing was drawn


def test_a_fit_on_many_rows_is_the_fit_on_the_sample():
    chosen = draw_rows(len(X), 500, np.random.RandomState(3))
    sampled = ITQ(8, n_samples=500, n_iter=0, rotate=False, random_state=3).fit(X)
    by_hand = ITQ(8, n_iter=0, rotate=False).fit(X[chosen])
    np.testing.assert_array_equal(sampled.projection_, by_hand.projection_)


def test_a_network_learns_all_classes_from_a_sample():
    hasher = DeepLinf(
        16, training=Training(n_samples=300, n_anchors=100, n_epochs=20), random_state=0
    ).fit(X, Y)
    assert len(hasher.anchors_) == 100
    codes = [tuple(np.median(hasher.transform(X[c == Y]), axis=0)) for c in range(10)]
    assert len(set(codes)) == 10


def test_with_many_rows_only_those_in_pairs_are_used():
    rng = np.random.default_rng(0)
    pairs, similar = rng.choice(np.arange(0, 1000, 7), (400, 2)), rng.integers(0, 2, 400)
    options = {"feature_map": "none", "n_epochs": 1, "random_state": 0}
    named, renumbered = np.unique(pairs, return_inverse=True)
    some = network(DeepLinf, 8, n_samples=200, **options).fit_pairs(X, pairs, similar)
    alone = network(DeepLinf, 8, **options).fit_pairs(X[named], renumbered.reshape(-1, 2), similar)
    np.testing.assert_array_equal(some.project(X), alone.project(X))


def test_unlabelled_rows_are_sampled_from_parquet(tmp_path, monkeypatch):
    rows = X.astype(np.float32)
    for number, part in enumerate(np.array_split(rows, 3)):
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), part.shape[1])
        pq.write_table(pa.table({"vector": vectors}), tmp_path / f"{number}.parquet")

    def fitted(unlabelled):
        hasher = DeepLinf(8, training=Training(n_unlabelled=200, n_epochs=1), random_state=0)
        return hasher.fit(rows[:300], Y[:300], unlabelled=unlabelled).project(rows[:50])

    monkeypatch.setattr("antipodal.io.vectors.mapped_rows", None)
    np.testing.assert_array_equal(fitted(open_vectors(tmp_path)), fitted(rows))


def test_too_few_samples_are_refused():
    for kind in ("ITQ", "AGH", "DeepLinf", "PSH", "OneHotHash"):
        with pytest.raises(ValueError, match=r"\bn_samples\b.*\b2\b.*\b1\b"):
            make_hasher(kind, 8, 0, ["n_samples=1"]).fit(X, Y)


def test_float32_rows_far_from_zero_are_standardised_exactly():
    rows = np.random.default_rng(0).normal(1000, 1, (400_000, 2)).astype(np.float32)
    mean, deviation = feature_moments(rows)
    np.testing.assert_allclose(mean, rows.astype(np.float64).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(deviation, rows.astype(np.float64).std(axis=0), rtol=1e-9)
    Y = scaled(rows, learn_inputs(rows, "each")).astype(np.float64)
    np.testing.assert_allclose(Y.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(Y.std(axis=0), 1, atol=1e-4)


def test_a_refit_discards_the_earlier_fit(tmp_path):
    hasher = DeepLinf(8, training=Training(n_anchors=20, n_epochs=1), random_state=0).fit(X, Y)
    assert len(hasher.anchors_) == 20
    hasher.set_params(feature_map="none").fit(X, Y)
    fresh = DeepLinf(8, feature_map="none", training=Training(n_epochs=1), random_state=0).fit(X, Y)
    assert hasher.fitted_state().keys() == fresh.fitted_state().keys()
    hasher.save(tmp_path / "model")
    assert not hasattr(load(tmp_path / "model"), "anchors_")


def test_a_refused_fit_leaves_the_hasher_unchanged():
    hasher = ITQ(8, random_state=0).fit(X)
    codes = hasher.encode(X)
    with pytest.raises(ValueError, match=r"\bNaN\b.*\brow 2\b"):
        hasher.fit(np.where(np.arange(9)[:, None] == 2, np.inf, X[:9, :8]))
    np.testing.assert_array_equal(hasher.encode(X), codes)
    assert hasher.n_features_in_ == 64
    with pytest.raises(ValueError, match=r"\bNaN\b.*\brow 0\b"):
        hasher.set_params(n_bits=4).fit(X * np.nan)
    with pytest.raises(ValueError, match=r"\bn_bits\b.*\b8\b.*\b4\b"):
        hasher.encode(X)

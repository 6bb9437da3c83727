"""Encoding: cached pipelines, parameter changes after fit, and rejected input."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

from antipodal import (
    AGH,
    BRE,
    KSH,
    LSH,
    AntipodalError,
    ClassifierLSH,
    DeepLinf,
    LinfHash,
    NNHash,
    SparseHash,
    Training,
    load,
)
from antipodal.io.model_file import read_model_file, write_model_file
from networks import network

X, Y = load_digits(return_X_y=True)
X, Y = X[:200].astype(np.float32), Y[:200]
FAST = {"n_epochs": 1, "n_anchors": 50, "random_state": 0}


class Counted(LSH):
    """LSH that counts the calls of `pipeline`."""

    n_built = 0

    def pipeline(self):
        Counted.n_built += 1
        return super().pipeline()


@pytest.fixture
def counted():
    Counted.n_built = 0
    return Counted(16, random_state=0).fit(X)


def test_a_pipeline_is_built_once(counted):
    codes = counted.encode(X[:1])
    for n in (1, 2, 50, 200):
        np.testing.assert_array_equal(counted.encode(X[:n])[:1], codes)
    counted.transform(X[:3]), counted.project(X[:3]), list(counted.encode_blocks(X[:3]))
    assert Counted.n_built == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.fit(X[50:]),
        lambda h: h.set_params(random_state=1).fit(X),
        lambda h: setattr(h, "mean_", h.mean_ + 1),
        lambda h: setattr(h, "hyperplanes_", -h.hyperplanes_),
    ],
    ids=["fit", "set_params and fit", "mean_", "hyperplanes_"],
)
def test_a_cached_pipeline_is_dropped_when_the_hasher_changes(counted, change):
    counted.encode(X[:1])
    change(counted)
    values = (X - counted.mean_) @ counted.hyperplanes_
    np.testing.assert_allclose(counted.project(X), values, atol=1e-4)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda h: pickle.loads(pickle.dumps(h))]
)
def test_copies_have_their_own_cache_and_give_the_same_bits(counted, copied):
    counted.encode(X[:1])
    other = copied(counted)
    np.testing.assert_array_equal(other.encode(X[:5]), counted.encode(X[:5]))
    assert Counted.n_built == 2
    other.hyperplanes_ = -other.hyperplanes_
    np.testing.assert_array_equal(other.project(X[:5]), -counted.project(X[:5]))
    assert not hasattr(clone(counted), "mean_")


@pytest.mark.parametrize(
    "hasher",
    [
        network(DeepLinf, 24, **FAST),
        NNHash(24, feature_map="none", training=Training(n_epochs=1), random_state=0),
        KSH(24, n_anchors=50, n_iter=1, random_state=0),
        LinfHash(24, random_state=0),
        ClassifierLSH(24, random_state=0),
    ],
    ids=lambda hasher: type(hasher).__name__,
)
def test_threads_can_encode_at_the_same_time(hasher):
    codes = hasher.fit(X, Y).encode(X)

    def encode(i):
        rows = slice(i % 190, i % 190 + 1 + i % 7)
        return np.array_equal(hasher.encode(X[rows]), codes[rows])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(encode, range(150)))


def test_an_abandoned_generator_of_blocks_does_not_affect_the_next(counted):
    for _ in range(3):
        next(counted.encode_blocks(X[:5]))
    codes = next(counted.encode_blocks(X[:5]))
    np.testing.assert_array_equal(codes, counted.encode(X)[:5])


def test_feature_names_are_compared():
    hasher = LSH(8, random_state=0).fit(X)
    hasher.feature_names_in_ = np.array([f"f{i}" for i in range(64)], object)
    with pytest.warns(UserWarning, match="feature names"):
        hasher.encode(X)


CHANGES = [
    (LSH(16), "n_bits", 8),
    (network(DeepLinf, 16, **FAST), "n_bits", 8),
    (network(DeepLinf, 16, **FAST), "n_bits", 32),
    (network(DeepLinf, 16, **FAST), "n_stages", 1),
    (network(SparseHash, 16, **FAST), "nonnegative", False),
    (AGH(16, n_anchors=50), "n_nearest", 5),
    (BRE(16, n_anchors=10, n_sweeps=0), "gamma", 2.0),
    (LinfHash(16), "n_iter", 3),
]


@pytest.mark.parametrize(("hasher", "name", "value"), CHANGES)
def test_a_parameter_that_encoding_reads_cannot_change_after_fit(hasher, name, value, tmp_path):
    hasher = clone(hasher).fit(X, Y)
    hasher.encode(X[:1])
    before = getattr(hasher, name)
    hasher.set_params(**{name: value})
    message = rf"\b{name}\b.*\b{before!r}\b.*\b{value!r}\b"
    for call in (
        hasher.encode,
        hasher.transform,
        hasher.project,
        lambda _: hasher.save(tmp_path / "m"),
    ):
        with pytest.raises(ValueError, match=message):
            call(X[:1])
    assert hasher.fit(X, Y).transform(X[:1]).shape == (1, hasher.n_bits)
    hasher.save(tmp_path / "m")
    loaded = load(tmp_path / "m").set_params(**{name: before})
    with pytest.raises(ValueError, match=rf"\b{name}\b.*\b{value!r}\b.*\b{before!r}\b"):
        loaded.encode(X)


def test_a_restored_parameter_and_parameters_of_fit_may_change():
    hasher = network(DeepLinf, 16, **FAST).fit(X, Y)
    codes = hasher.encode(X)
    hasher.set_params(n_bits=8).set_params(n_bits=16, training__n_epochs=3)
    np.testing.assert_array_equal(hasher.encode(X), codes)


@pytest.mark.parametrize(
    "hasher",
    [
        LSH(16),
        network(DeepLinf, 16, **FAST),
        LinfHash(16),
        AGH(16, n_anchors=50),
        ClassifierLSH(16),
    ],
    ids=lambda hasher: type(hasher).__name__,
)
@pytest.mark.parametrize(
    ("name", "value"), [("n_bits", 8), ("n_bits", 10**12), ("n_features_in_", 63)]
)
def test_a_file_whose_parameters_contradict_its_arrays_is_rejected(hasher, name, value, tmp_path):
    clone(hasher).fit(X, Y).save(tmp_path / "m")
    header, arrays = read_model_file(tmp_path / "m", "hasher")
    part = header["fitted" if name.endswith("_") else "parameters"]
    assert part[name] in (16, 64)
    write_model_file(tmp_path / "m", "hasher", header, arrays)
    load(tmp_path / "m")
    part[name] = value
    write_model_file(tmp_path / "m", "hasher", header, arrays)
    with pytest.raises(AntipodalError, match=rf"/m\b.*\b{type(hasher).__name__}\b"):
        load(tmp_path / "m")


def test_the_row_of_a_number_too_large_for_float32_is_named():
    hasher = LSH(8, random_state=0).fit(X)
    rows = X.astype(np.float64)
    rows[5, 3] = 1e300
    with pytest.raises(ValueError, match=r"\bfloat32\b.*\brow 5\b"):
        hasher.encode(rows)


def test_a_row_whose_projection_overflows_is_named():
    hasher = LSH(8, random_state=0).fit(X)
    rows = X.copy()
    rows[6] = 3e38
    with pytest.raises(ValueError, match=r"\bprojection\b.*\brow 6\b"):
        hasher.encode(rows)


def test_class_probabilities_name_the_bad_row():
    hasher = ClassifierLSH(8, random_state=0).fit(X, Y)
    for bad in (np.nan, np.inf):
        rows = np.concatenate([X] * 25)  # more than a block
        rows[4500, 7] = bad
        with pytest.raises(ValueError, match=r"\bNaN\b.*\brow 4500\b"):
            hasher.class_probabilities(rows)

"""Contract of all hashers."""

import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

from antipodal import (
    AGH,
    BRE,
    CSQ,
    ITQ,
    KSH,
    LSH,
    PSH,
    SDH,
    AntipodalError,
    ClassifierLSH,
    DeepLinf,
    LDAHash,
    LinfHash,
    NNHash,
    OneHotHash,
    OrthoHash,
    SignHash,
    SparseHash,
    SpectralHash,
    Training,
    load,
    pack,
)
from antipodal.hashers.registry import built_in_hashers
from networks import network
from processes import run_program

SEED = {"random_state": 0}
FAST = {"n_epochs": 3, **SEED}
ONCE = {"n_epochs": 1, **SEED}
CHECKED = [  # scikit-learn also fits on a single feature, and on ten rows
    network(DeepLinf, 8, **ONCE),
    network(
        DeepLinf,
        8,
        feature_map="none",
        init="ksvd",
        sparsity=2,
        pairs="sampled",
        n_pairs=200,
        **ONCE,
    ),
    network(NNHash, 8, **ONCE),
    network(SparseHash, 8, **ONCE),
    network(OrthoHash, 8, **ONCE),
    network(CSQ, 8, **ONCE),
    KSH(2, **SEED),
    SDH(2, **SEED),
    SDH(2, fast=True, **SEED),
    AGH(2, **SEED),
    AGH(2, layers=1, **SEED),
    PSH(8, n_projections=20, n_pairs=200, **SEED),
    LDAHash(1, **SEED),
    BRE(8, n_anchors=10, n_partners=10, n_sweeps=1, **SEED),
    OneHotHash(8, **SEED),
    ClassifierLSH(8, **SEED),
    LinfHash(8, **SEED),
    LinfHash(8, descent=True, **SEED),
    SignHash(1, **SEED),
    ITQ(1, **SEED),
    SpectralHash(8, **SEED),
    LSH(8, **SEED),
]
HASHERS = [
    network(DeepLinf, 20, **FAST),
    network(DeepLinf, 20, init="ksvd", n_stages=3, **FAST),
    network(DeepLinf, 20, feature_map="none", **FAST),
    network(NNHash, 20, **FAST),
    network(SparseHash, 20, **FAST),
    network(SparseHash, 20, nonnegative=False, **FAST),
    network(OrthoHash, 20, **FAST),
    network(CSQ, 20, **FAST),
    KSH(20, **SEED),
    SDH(20, **SEED),
    SDH(20, fast=True, **SEED),
    AGH(20, **SEED),
    AGH(20, layers=1, n_nearest=5, **SEED),
    PSH(20, n_projections=100, n_pairs=2_000, **SEED),
    LDAHash(20, **SEED),
    BRE(20, n_anchors=10, n_partners=10, n_sweeps=1, **SEED),
    OneHotHash(20, **SEED),
    ClassifierLSH(20, **SEED),
    LinfHash(20, **SEED),
    LinfHash(20, descent=True, nested=(8,), **SEED),
    SignHash(20, **SEED),
    ITQ(20, **SEED),
    SpectralHash(20, **SEED),
    LSH(20, **SEED),
]
KINDS = list(built_in_hashers().values())
X, Y = load_digits(return_X_y=True)
X, Y = X[:400], Y[:400]


def name(hasher):
    return re.sub(r"\s+", " ", repr(hasher))


with warnings.catch_warnings():
    # The interface is implemented without the base class, whose import is slow.
    warnings.filterwarnings("ignore", message=".* does not inherit from `sklearn.base")
    scikit_learn_checks = parametrize_with_checks(CHECKED)


@scikit_learn_checks
def test_scikit_learn_estimator_checks(estimator, check):
    check(estimator)


@pytest.fixture(params=HASHERS, ids=name, scope="module")
def hasher(request):
    return request.param.fit(X, Y)


def test_bits_are_signs_of_projections_and_codes_are_packed_bits(hasher):
    projected, bits, codes = hasher.project(X), hasher.transform(X), hasher.encode(X)
    assert projected.shape == (400, 20)
    assert bits.dtype == codes.dtype == np.uint8
    np.testing.assert_array_equal(bits, projected > 0)
    np.testing.assert_array_equal(codes, pack(bits))
    np.testing.assert_array_equal(np.concatenate(list(hasher.encode_blocks(X))), codes)


def test_an_empty_input_has_no_codes(hasher):
    none = X[:0]
    assert hasher.project(none).shape == hasher.transform(none).shape == (0, 20)
    assert hasher.encode(none).shape == (0, 3)
    assert not list(hasher.encode_blocks(none))
    with pytest.raises(ValueError, match=r"\b2\b.*\b64\b"):
        hasher.encode(none[:, :2])


@pytest.mark.usefixtures("two_threads")
def test_the_same_seed_gives_the_same_bits(hasher):
    again = type(hasher)(**hasher.get_params(deep=False)).fit(X, Y)
    np.testing.assert_array_equal(again.encode(X), hasher.encode(X))


@pytest.mark.usefixtures("two_threads")
def test_the_bits_of_a_row_do_not_depend_on_other_rows(hasher, fresh_rng):
    codes = hasher.encode(X)
    order = fresh_rng.permutation(len(X))
    np.testing.assert_array_equal(hasher.encode(X[order]), codes[order])
    alone = np.concatenate([hasher.encode(X[i : i + 1]) for i in range(20)])
    np.testing.assert_array_equal(alone, codes[:20])
    many = np.concatenate([X] * 12)  # more than a block
    np.testing.assert_array_equal(hasher.encode(many), np.concatenate([codes] * 12))


def test_float32_and_float64_rows_give_the_same_bits(hasher):
    codes = hasher.encode(X)
    for dtype in (np.float32, np.float16, np.uint8, np.int64):
        np.testing.assert_array_equal(hasher.encode(X.astype(dtype)), codes)


def test_a_loaded_hasher_equals_the_saved_one(hasher, tmp_path):
    hasher.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.get_params() == hasher.get_params()
    np.testing.assert_array_equal(loaded.project(X), hasher.project(X))
    loaded.save(tmp_path / "again")
    np.testing.assert_array_equal(load(tmp_path / "again").encode(X), hasher.encode(X))


def test_projections_do_not_depend_on_the_threads_of_blas_at_loading(hasher, tmp_path):
    hasher.save(tmp_path / "model")
    projected = []
    for n_threads in (1, 2):
        with threadpool_limits(n_threads, "blas"):
            projected.append(load(tmp_path / "model").project(X))
    np.testing.assert_array_equal(*projected)


LOAD_AND_ENCODE = """
import sys, numpy as np, antipodal
X = np.load(sys.argv[1])
for model in sys.argv[2:]:
    np.save(model + ".npy", antipodal.load(model).encode(X))
"""


def test_saved_hashers_give_the_same_bits_in_a_fresh_process(tmp_path):
    fitted = {
        str(tmp_path / f"{i}"): clone(each).fit(X[:200], Y[:200]) for i, each in enumerate(HASHERS)
    }
    np.save(tmp_path / "rows.npy", X)
    for model, hasher in fitted.items():
        hasher.save(model)
    done = run_program(LOAD_AND_ENCODE, tmp_path / "rows.npy", *fitted)
    assert done.returncode == 0, done.stderr
    for model, hasher in fitted.items():
        np.testing.assert_array_equal(np.load(model + ".npy"), hasher.encode(X), name(hasher))


def test_encoding_streams_from_a_read_only_memory_map(hasher, tmp_path):
    np.save(tmp_path / "rows.npy", X.astype(np.float32))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    np.testing.assert_array_equal(hasher.encode(mapped), hasher.encode(X))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.where(np.arange(400)[:, None] == 7, np.nan, X), r"\bNaN\b.*\brow 7\b"),
        (np.where(np.arange(400)[:, None] == 9, np.inf, X), r"\brow 9\b"),
        (X[:, :-1], r"\b63\b.*\b64\b"),
        (X[0], "2D"),
        (np.full((3, 64), "a"), "<U1|could not convert"),
    ],
    ids=["nan", "inf", "width", "one dimension", "text"],
)
def test_rows_that_cannot_be_encoded_are_named(hasher, rows, message):
    with pytest.raises(ValueError, match=message):
        hasher.encode(rows)


def test_the_row_of_an_invalid_value_is_named(hasher):
    for row, bad in ((0, np.nan), (31, np.inf), (32, -np.inf), (399, np.nan)):
        rows = X.copy()
        rows[row, 0] = bad  # a feature that is 0 in all digits: no method learns anything from it
        with pytest.raises(ValueError, match=rf"\brow {row}\b.*\bfinite\b"):
            hasher.encode(rows)


@pytest.mark.parametrize("unfitted", HASHERS, ids=name)
def test_an_unfitted_hasher_raises_not_fitted(unfitted, tmp_path):
    fresh = type(unfitted)(**unfitted.get_params(deep=False))
    with pytest.raises(NotFittedError):
        fresh.encode(X)
    with pytest.raises(NotFittedError):
        fresh.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n_bits", "error"),
    [(0, ValueError), (-3, ValueError), (2.5, TypeError), ("8", TypeError), (True, TypeError)],
)
def test_an_invalid_number_of_bits_is_rejected(kind, n_bits, error):
    with pytest.raises(error, match="n_bits"):
        kind(n_bits).fit(X, Y)


@pytest.mark.parametrize("kind", KINDS)
def test_training_rows_must_be_finite(kind):
    for bad in (np.nan, np.inf):
        rows = X.copy()
        rows[3, 5] = bad
        with pytest.raises(ValueError, match=r"\bX\b.*\bNaN\b.*\brow 3\b"):
            kind(8).fit(rows, Y)


def test_a_directory_that_cannot_be_written_is_named(hasher, tmp_path):
    with pytest.raises(AntipodalError, match="missing"):
        hasher.save(tmp_path / "missing" / "model")


def test_every_hasher_is_tested():
    assert {type(h) for h in CHECKED} == {type(h) for h in HASHERS} == set(KINDS)


def test_more_bits_than_features_are_allowed_where_possible():
    for able in (LSH, SpectralHash, LinfHash, PSH, KSH, SDH, AGH, OneHotHash, ClassifierLSH):
        assert able(100).fit(X, Y).encode(X).shape == (400, 13)
    assert network(DeepLinf, 100, **FAST).fit(X, Y).encode(X).shape == (400, 13)
    for kind in (ITQ, LDAHash, SignHash):
        message = rf"\b{kind.__name__}\b.*\bn_bits\b.*\b65\b.*\b64\b"
        with pytest.raises(ValueError, match=message):
            kind(65).fit(X, Y)


def test_only_hashers_that_use_labels_are_changed_by_them(hasher):
    other = clone(hasher).fit(X, Y[::-1])
    same = np.array_equal(other.encode(X), hasher.encode(X))
    assert same != hasher.uses_labels


def test_data_frames_have_the_columns_of_the_hasher_and_the_index_of_the_rows():
    pandas = pytest.importorskip("pandas")
    hasher = SignHash(3, **SEED).fit(X)
    frame = clone(hasher).set_output(transform="pandas").fit_transform(pandas.DataFrame(X[:5]))
    assert list(frame.columns) == list(hasher.get_feature_names_out()) == [
        "signhash0", "signhash1", "signhash2",
    ]  # fmt: skip
    with config_context(transform_output="pandas"):
        global_frame = hasher.transform(X[:5])
    np.testing.assert_array_equal(global_frame, hasher.transform(X[:5]))
    assert isinstance(hasher.transform(X[:5]), np.ndarray)


def test_parameters_of_parameters_are_set_and_unknown_ones_are_refused():
    hasher = DeepLinf(8).set_params(n_bits=4, training=Training(), training__n_epochs=3)
    assert (hasher.n_bits, hasher.training.n_epochs) == (4, 3)
    assert hasher.get_params()["training__n_epochs"] == 3
    assert repr(hasher) == "DeepLinf(n_bits=4, training=Training(n_epochs=3))"
    with pytest.raises(ValueError, match="n_bitts"):
        hasher.set_params(n_bitts=4)


def test_encoding_imports_neither_scikit_learn_nor_scipy(tmp_path):
    ITQ(8, **SEED).fit(X).save(tmp_path / "model")
    np.save(tmp_path / "rows.npy", X[:2])
    program = (
        "import sys, numpy as np, antipodal; "
        "antipodal.load('model').encode(np.load('rows.npy')); "
        "print({'sklearn', 'scipy', 'torch', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "set()"

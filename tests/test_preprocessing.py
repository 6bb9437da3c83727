"""Feature scaling and its selection by leave-one-out error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.preprocessing import StandardScaler

from antipodal import ClassifierLSH, DeepLinf, Training, load
from antipodal.hashers.operations import Root, Standardise
from antipodal.hashers.pipeline import Pipeline
from antipodal.hashers.preprocessing import (
    choose_scaling,
    gaussian_kernel,
    learn_inputs,
    leave_one_out_residuals,
    linear_steps,
    rooted,
    scaled,
)
from antipodal.hashers.pseudo_labels import label_table

X, Y = load_digits(return_X_y=True)
SCALINGS = ("each", "common", "root-each", "root-common", "none")


def fit_with_offset(K, T, ridge):
    """Solve (K + λI)a + b = t, 1ᵀa = 0 as one system."""
    n = len(K)
    system = np.block(
        [[K + ridge * np.eye(n), np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]]
    )
    solution = np.linalg.solve(system, np.vstack([T, np.zeros((1, T.shape[1]))]))
    return solution[:n], solution[n]


@given(seed=st.integers(0, 2**32 - 1), ridge=st.floats(0.01, 3.0))
def test_leave_one_out_residuals_are_those_of_fits_without_each_row(seed, ridge):
    rng = np.random.default_rng(seed)
    rows, T = rng.standard_normal((12, 3)), rng.choice([-1.0, 1.0], (12, 2))
    K = gaussian_kernel(rows, 0.4)
    ours = leave_one_out_residuals(K, T, ridge)
    for i in range(12):
        kept = np.arange(12) != i
        a, b = fit_with_offset(K[np.ix_(kept, kept)], T[kept], ridge)
        np.testing.assert_allclose(ours[i], T[i] - (K[i, kept] @ a + b), atol=1e-8)


def test_each_is_scikit_learns_scaler_and_common_keeps_the_proportions():
    rows = X[:, 2:6]
    np.testing.assert_allclose(
        scaled(rows, learn_inputs(rows, "each")), StandardScaler().fit_transform(rows), atol=1e-5
    )
    common = scaled(rows, learn_inputs(rows, "common")).astype(np.float64)
    np.testing.assert_allclose(np.square(common).mean(), 1, atol=1e-5)
    np.testing.assert_allclose(np.ptp(rows.std(axis=0) / common.std(axis=0)), 0, atol=1e-5)


def test_roots_preserve_signs():
    np.testing.assert_array_equal(rooted(np.array([[-9.0, 0.0, 4.0]])), [[-3, 0, 2]])
    rows = np.array([[-9.0, 0.0, 4.0]], np.float32)
    np.testing.assert_array_equal(Pipeline([Root()]).values(rows, 3), [[-3, 0, 2]])
    np.testing.assert_array_equal(rows, [[-9, 0, 4]])  # the input is not changed


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("shift", [0, 500])
def test_scaled_rows_and_products_with_them_are_the_same_when_encoding(scaling, shift):
    rows = (X[:200] + shift).astype(np.float32)
    inputs = learn_inputs(rows, scaling)
    expected = scaled(rows, inputs)
    scale = Standardise(inputs.mean, inputs.scale, root=inputs.root)
    np.testing.assert_allclose(Pipeline([scale]).values(rows, 64), expected, atol=5e-4)
    W = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    c = np.arange(5, dtype=np.float32)
    ours = Pipeline(linear_steps(inputs, W, c)).values(rows, 5)
    by_hand = expected.astype(np.float64) @ W.T.astype(np.float64) + c
    np.testing.assert_allclose(ours, by_hand, rtol=1e-4, atol=5e-3)


def test_the_choice_follows_the_data():
    rng = np.random.RandomState(0)
    digits = choose_scaling(X[:250], label_table(Y[:250]), rng)
    assert digits.endswith("common")  # pixels at the border hardly vary
    labels = np.arange(300) % 3
    informative = 1e-3 * (labels[:, None] == np.arange(3)) + 1e-4 * rng.standard_normal((300, 3))
    rows = np.hstack([informative, 10 * rng.standard_normal((300, 3))])
    assert choose_scaling(rows, label_table(labels), rng).endswith("each")
    log_rates = np.eye(3)[labels] + rng.standard_normal((300, 3))
    energies = np.exp(3 * log_rates)
    assert choose_scaling(energies, label_table(labels), rng).startswith("root")


def test_the_choice_is_made_for_concepts_too_and_on_rows_that_never_vary():
    concepts = np.stack([Y < 4, Y > 2], axis=1)
    assert choose_scaling(X[:300], concepts[:300], np.random.RandomState(0)) in SCALINGS
    assert choose_scaling(np.ones((20, 4)), np.eye(2, dtype=bool)[np.arange(20) % 2],
                          np.random.RandomState(0)) in SCALINGS  # fmt: skip


@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_model_keeps_its_scaling(scaling, tmp_path):
    for hasher in (
        DeepLinf(
            8,
            scaling=scaling,
            feature_map="hidden",
            n_hidden=12,
            training=Training(n_epochs=1),
            random_state=0,
        ),
        ClassifierLSH(8, scaling=scaling, random_state=0),
    ):
        codes = hasher.fit(X[:200], Y[:200]).encode(X)
        assert hasher.root_ == scaling.startswith("root")
        hasher.save(tmp_path / "m")
        np.testing.assert_array_equal(load(tmp_path / "m").encode(X), codes)

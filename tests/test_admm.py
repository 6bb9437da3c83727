"""ADMM iteration against the printed equations, and the bound of Theorem 1."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from antipodal import LinfHash, solve_linf, unpack
from antipodal.paper.admm import (
    RELAXATION,
    admm_iterations,
    admm_step,
    relaxed_step,
    relaxed_weight,
    unfolded_weights,
)
from effort import examples

seeds = st.integers(0, 2**32 - 1)


def test_the_solver_iterates_the_printed_equations():
    """Eq. 4-8 in NumPy, written from the paper, converge to the same point by the same path."""
    rng = np.random.default_rng(7)
    D, y, bound, beta = rng.standard_normal((12, 8)), rng.standard_normal(12), 0.3, 0.6
    x, z, p = np.zeros(8), np.zeros(8), np.zeros(8)
    path = admm_iterations(y[None], D, bound, penalty=beta, n_iter=50)
    for t in range(50):
        x = np.linalg.solve(D.T @ D + beta * np.eye(8), D.T @ y + beta * z + p)  # Eq. 7
        z = np.clip(x - p / beta, -bound, bound)  # Eq. 8
        p = p + beta * (z - x)  # Eq. 6
        np.testing.assert_allclose(path.multipliers[t, 0], p, atol=1e-12)
    np.testing.assert_allclose(path.codes[0], z, atol=1e-12)
    solved = solve_linf(y[None], D, bound, penalty=beta).codes[0]
    for _ in range(5000):
        x = np.linalg.solve(D.T @ D + beta * np.eye(8), D.T @ y + beta * z + p)
        z = np.clip(x - p / beta, -bound, bound)
        p = p + beta * (z - x)
    np.testing.assert_allclose(solved, z, atol=1e-7)


def test_a_solution_is_a_fixed_point_of_the_unfolded_step():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    D, Y = torch.tensor(rng.standard_normal((12, 8))), torch.tensor(rng.standard_normal((5, 12)))
    z = solve_linf(Y, D, 0.3, tol=1e-12).codes
    W, S = unfolded_weights(D, 0.6)
    p = (z @ D.T - Y) @ D  # at a solution the multiplier is the gradient
    again, _ = admm_step(Y @ W.T, z, S, (p @ S - p) / 0.6, lambda u: u.clamp(-0.3, 0.3))
    torch.testing.assert_close(again, z, atol=1e-10, rtol=0)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_relaxed_step_is_its_formula(library):
    module = pytest.importorskip(library)
    kind = module.array if library == "numpy" else module.tensor
    rng = np.random.default_rng(9)
    D, y, u = (
        rng.standard_normal((12, 8)),
        rng.standard_normal((5, 12)),
        rng.standard_normal((5, 8)),
    )
    W, S = (np.asarray(w) for w in unfolded_weights(kind(D), 0.6))
    z = np.clip(u, -0.3, 0.3)
    x = y @ W.T + (2 * z - u) @ S.T
    expected = u + RELAXATION * (x - z)
    drive, R = kind(RELAXATION * y @ W.T), relaxed_weight(kind(S))
    z_new, u_new = relaxed_step(drive, kind(z), R, kind(u), lambda u: u.clip(-0.3, 0.3))
    np.testing.assert_allclose(u_new, expected, atol=1e-12)
    np.testing.assert_allclose(z_new, np.clip(expected, -0.3, 0.3), atol=1e-12)


# Theorem 1.1: quantising each entry to one of L levels, the centres of equal cells of [-λ, λ],
# moves an entry by at most λ/L and x by at most λ√N/L. For L = 2 a bit selects the cell.


def quantise(x, reach, n_levels):
    """Return the centres of n_levels equal cells of [-reach, reach]."""
    cell = np.clip(np.floor((x / reach + 1) / 2 * n_levels), 0, n_levels - 1)
    return reach * ((2 * cell + 1) / n_levels - 1)


@pytest.mark.parametrize("n_bits", [32, 128])  # a learned dictionary, a frame
def test_bits_of_a_code_satisfy_the_bound_of_theorem_1_and_wrong_bits_violate_it(n_bits):
    X = load_digits(return_X_y=True)[0][:400]
    hasher = LinfHash(n_bits, bound=0.3, random_state=0).fit(X)
    x, bits = hasher.project(X).astype(np.float64), unpack(hasher.encode(X), n_bits)
    reach = 0.3 / np.sqrt(n_bits)  # λ

    def moved(bits):
        return np.linalg.norm(reach / 2 * (2.0 * bits - 1) - x, axis=1)

    most = reach * np.sqrt(n_bits) / 2
    assert (moved(bits) <= most * (1 + 1e-6)).all()
    assert moved(bits).mean() > 0.8 * most  # nearly all entries are ±λ: it could not be smaller
    wrong = bits ^ (np.random.default_rng(0).random(bits.shape) < 0.2)
    assert (moved(wrong) > most).mean() > 0.9


@examples(30)
@given(seed=seeds, n_levels=st.integers(1, 64), share=st.floats(0.01, 0.3))
def test_solutions_satisfy_the_bound_of_theorem_1_for_any_number_of_levels(seed, n_levels, share):
    """Least squares solutions, quantised in the same way, violate the bound."""
    rng = np.random.default_rng(seed)
    D, Y = rng.standard_normal((24, 16)), rng.standard_normal((3, 24))
    least_squares = np.linalg.lstsq(D, Y.T)[0].T
    bound = share * np.abs(least_squares).max(axis=1).min()
    codes = solve_linf(Y, D, bound).codes
    most = bound * np.sqrt(16) / n_levels

    def moved(x, quantised):
        return np.linalg.norm(quantised - x, axis=1)

    assert (moved(codes, quantise(codes, bound, n_levels)) <= most * (1 + 1e-12)).all()
    if n_levels >= 4:  # an entry outside by 2.3 λ outweighs √N·λ/L
        assert (moved(least_squares, quantise(least_squares, bound, n_levels)) > most).all()
    # A corner of the box reaches the bound, so that no smaller bound holds.
    corner = np.full((1, 16), bound)
    np.testing.assert_allclose(moved(corner, quantise(corner, bound, n_levels)), most)


def test_on_random_frames_the_linf_solution_survives_quantisation_better_than_least_squares():
    """Each solution is quantised over its own range with the same number of levels."""
    rng = np.random.default_rng(9)
    D = np.linalg.qr(rng.standard_normal((128, 64)))[0].T  # (64, 128), DDᵀ = I: a tight frame
    Y = rng.standard_normal((100, 64))
    Y /= np.linalg.norm(Y, axis=1, keepdims=True)
    least_squares = Y @ D  # the least-norm representation
    bound = 1.5 * np.sqrt(1 / 128)  # every y still has a representation, nearly all entries at ±λ
    spread = solve_linf(Y, D, bound, tol=1e-6).codes
    reach = np.abs(least_squares).max(axis=1, keepdims=True)
    for n_levels in (2, 4, 16):
        lost_ls = np.linalg.norm(Y - quantise(least_squares, reach, n_levels) @ D.T, axis=1)
        lost_linf = np.linalg.norm(Y - quantise(spread, bound, n_levels) @ D.T, axis=1)
        assert lost_linf.mean() < 0.9 * lost_ls.mean()

"""The solver against SciPy, closed forms and the optimality conditions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear
from sklearn.exceptions import ConvergenceWarning

from antipodal import solve_linf
from antipodal.admm import admm_iterations, admm_step, unfolded_weights

seeds = st.integers(0, 2**32 - 1)


def kkt_violation(D, y, x, bound):
    """Loops, straight from the definition: the slope along which an entry could still move."""
    unit = D / np.where(np.linalg.norm(D, axis=0) > 0, np.linalg.norm(D, axis=0), 1)
    slope = unit.T @ (D @ x - y)
    worst = 0.0
    for xi, gi in zip(x, slope, strict=True):
        if xi < bound:
            worst = max(worst, -gi)
        if xi > -bound:
            worst = max(worst, gi)
    return worst / (np.linalg.norm(y) or 1.0)


def objective(D, y, x):
    return np.sum((D @ x - y) ** 2)


@settings(max_examples=150, deadline=None)
@given(
    seed=seeds, n=st.integers(1, 24), N=st.integers(1, 24), log_bound=st.floats(-3, 3),
    rank=st.integers(1, 24), log_scale=st.floats(-3, 3), spread=st.floats(0, 6),
)  # fmt: skip
def test_solutions_are_as_good_as_scipys_and_satisfy_the_optimality_conditions(
    seed, n, N, log_bound, rank, log_scale, spread
):
    rng = np.random.default_rng(seed)
    rank = min(rank, n, N)
    D = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, N))
    D *= 10**log_scale * 10.0 ** rng.uniform(-spread / 2, spread / 2, N)
    Y = rng.standard_normal((3, n))
    bound = 10**log_bound / 10**log_scale
    solution = solve_linf(Y, D, bound, max_iter=20_000)
    assert solution.converged
    assert np.abs(solution.codes).max() <= bound
    for y, x in zip(Y, solution.codes, strict=True):
        theirs = lsq_linear(D, y, (-bound, bound), method="bvls", tol=1e-14, max_iter=1000).x
        assert objective(D, y, x) <= objective(D, y, theirs) + 1e-8 * (y @ y)
        assert kkt_violation(D, y, x, bound) <= 2e-9


@settings(max_examples=60, deadline=None)
@given(seed=seeds, bound=st.floats(0.02, 5.0))
def test_entries_match_scipys_where_the_dictionary_is_well_conditioned(seed, bound):
    rng = np.random.default_rng(seed)
    D, Y = rng.standard_normal((30, 8)), rng.standard_normal((4, 30))
    solution = solve_linf(torch.tensor(Y), torch.tensor(D), bound, tol=1e-9)
    assert solution.codes.abs().max() <= bound
    for y, x in zip(Y, solution.codes.numpy(), strict=True):
        theirs = lsq_linear(D, y, (-bound, bound), method="bvls", tol=1e-14).x
        np.testing.assert_allclose(x, theirs, atol=1e-6)


def test_an_idle_box_gives_least_squares():
    rng = np.random.default_rng(0)
    D, Y = rng.standard_normal((40, 10)), rng.standard_normal((5, 40))
    codes = solve_linf(Y, D, bound=1e9).codes
    np.testing.assert_allclose(codes, np.linalg.lstsq(D, Y.T)[0].T, atol=1e-8)


def test_a_vanishing_box_gives_the_signs_of_the_correlations():
    rng = np.random.default_rng(1)
    D, Y = rng.standard_normal((40, 10)), rng.standard_normal((5, 40))
    for bound in (1e-6, 1e-12):
        np.testing.assert_array_equal(solve_linf(Y, D, bound).codes, bound * np.sign(Y @ D))


def test_nearly_dependent_atoms_are_solved_to_the_tolerance():
    rng = np.random.default_rng(2)
    base = rng.standard_normal((30, 4))
    D = base @ rng.standard_normal((4, 12)) + 1e-4 * rng.standard_normal((30, 12))
    Y = rng.standard_normal((20, 30)) + 3 * rng.standard_normal((20, 12)) @ D.T
    solution = solve_linf(Y, D, bound=1.0)
    assert solution.converged
    for y, x in zip(Y, solution.codes, strict=True):
        theirs = lsq_linear(D, y, (-1, 1), method="bvls", tol=1e-14, max_iter=500).x
        assert objective(D, y, x) <= objective(D, y, theirs) + 1e-8 * (y @ y)


def test_unused_and_zero_columns_and_zero_rows_are_harmless():
    D = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    solution = solve_linf(np.array([[0.0, 0.0], [5.0, 5.0]]), D, bound=1.0)
    assert solution.converged
    np.testing.assert_allclose(solution.codes[0], 0)
    np.testing.assert_allclose(solution.codes[1, [0, 2]], 1)


def test_float32_reaches_its_own_tolerance():
    rng = np.random.default_rng(3)
    D = rng.standard_normal((64, 32)).astype(np.float32)
    Y = rng.standard_normal((500, 64)).astype(np.float32)
    solution = solve_linf(Y, D, bound=0.2)
    assert solution.codes.dtype == np.float32
    assert solution.converged
    assert np.abs(solution.codes).max() <= np.float32(0.2)
    double = solve_linf(Y.astype(np.float64), D.astype(np.float64), 0.2).codes
    np.testing.assert_allclose(solution.codes, double, atol=1e-4)


def test_a_warm_start_saves_iterations_and_a_solution_is_its_own_start():
    rng = np.random.default_rng(4)
    D, Y = rng.standard_normal((64, 48)), rng.standard_normal((50, 64))
    cold = solve_linf(Y, D, 0.2)
    again = solve_linf(Y, D, 0.2, start=cold.codes)
    nearby = solve_linf(Y + 1e-6 * rng.standard_normal(Y.shape), D, 0.2, start=cold.codes)
    assert again.n_iter < nearby.n_iter < cold.n_iter
    np.testing.assert_allclose(again.codes, cold.codes, atol=1e-8)


def test_rows_are_solved_the_same_alone_and_in_any_company():
    rng = np.random.default_rng(5)
    D, Y = rng.standard_normal((20, 15)), rng.standard_normal((20_000, 20))
    together = solve_linf(Y, D, 0.5).codes
    alone = np.concatenate([solve_linf(y[None], D, 0.5).codes for y in Y[::2000]])
    np.testing.assert_allclose(together[::2000], alone, atol=1e-7)


def test_too_few_iterations_are_reported_not_hidden():
    rng = np.random.default_rng(6)
    D, Y = rng.standard_normal((20, 40)), 10 * rng.standard_normal((30, 20))
    with pytest.warns(ConvergenceWarning, match="after 1 iterations with residual"):
        solution = solve_linf(Y, D, 0.3, max_iter=1, tol=1e-30)
    assert not solution.converged
    assert solution.residual > 1e-30
    assert np.abs(solution.codes).max() <= 0.3


def test_the_solver_iterates_the_printed_equations():
    """Eq. 4-8 in NumPy, written from the paper, converge to the same point by the same path."""
    rng = np.random.default_rng(7)
    D, y, bound, beta = rng.standard_normal((12, 8)), rng.standard_normal(12), 0.3, 0.6
    x, z, p = np.zeros(8), np.zeros(8), np.zeros(8)
    path = admm_iterations(torch.tensor(y)[None], torch.tensor(D), bound, penalty=beta, n_iter=50)
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
    rng = np.random.default_rng(8)
    D, Y = torch.tensor(rng.standard_normal((12, 8))), torch.tensor(rng.standard_normal((5, 12)))
    z = solve_linf(Y, D, 0.3, tol=1e-12).codes
    W, S = unfolded_weights(D, 0.6)
    p = (z @ D.T - Y) @ D  # at a solution the multiplier is the gradient
    again, _ = admm_step(Y @ W.T, z, S, (p @ S - p) / 0.6, lambda u: u.clamp(-0.3, 0.3))
    torch.testing.assert_close(again, z, atol=1e-10, rtol=0)


@settings(max_examples=60, deadline=None)
@given(seed=seeds, n_levels=st.integers(1, 64), bound=st.floats(0.01, 10))
def test_quantising_a_solution_moves_it_by_at_most_the_bound_of_theorem_1(seed, n_levels, bound):
    """Uniform cells of width 2λ/L: each entry moves by ≤ λ/L, the vector by ≤ λ√N/L."""
    rng = np.random.default_rng(seed)
    D, Y = rng.standard_normal((24, 16)), rng.standard_normal((3, 24))
    codes = solve_linf(Y, D, bound).codes
    moved = np.linalg.norm(quantise(codes, bound, n_levels) - codes, axis=1)
    assert (moved <= bound * np.sqrt(16) / n_levels * (1 + 1e-12)).all()


def quantise(x, reach, n_levels):
    """Centres of n_levels equal cells of [-reach, reach]."""
    cell = np.clip(np.floor((x / reach + 1) / 2 * n_levels), 0, n_levels - 1)
    return reach * ((2 * cell + 1) / n_levels - 1)


@pytest.mark.parametrize("n_levels", [2, 4, 16])
def test_on_random_frames_the_linf_solution_survives_quantisation_better_than_least_squares(
    n_levels,
):
    """Each solution quantised over its own range, as many levels; the error is that of Dx."""
    rng = np.random.default_rng(9)
    D = np.linalg.qr(rng.standard_normal((128, 64)))[0].T  # (64, 128), DDᵀ = I: a tight frame
    Y = rng.standard_normal((200, 64))
    Y /= np.linalg.norm(Y, axis=1, keepdims=True)
    least_squares = Y @ D  # the least-norm representation
    bound = 1.5 * np.sqrt(1 / 128)  # every y still has a representation, nearly all entries at ±λ
    spread = solve_linf(Y, D, bound, max_iter=20_000).codes
    reach = np.abs(least_squares).max(axis=1, keepdims=True)
    lost_ls = np.linalg.norm(Y - quantise(least_squares, reach, n_levels) @ D.T, axis=1)
    lost_linf = np.linalg.norm(Y - quantise(spread, bound, n_levels) @ D.T, axis=1)
    assert lost_linf.mean() < lost_ls.mean()


BAD = {
    "NaN": ({"Y": np.array([[np.nan, 1.0]])}, ValueError, "Y contains NaN"),
    "infinity": ({"D": np.array([[np.inf], [1.0]])}, ValueError, "D contains NaN or inf"),
    "one dimension": ({"Y": np.ones(2)}, ValueError, r"y\[None\]"),
    "integers": ({"Y": np.ones((1, 2), int)}, TypeError, "float32 or float64: got torch.int64"),
    "transposed": ({"D": np.ones((1, 2))}, ValueError, "Is D transposed"),
    "no atoms": ({"D": np.ones((2, 0))}, ValueError, "at least one row and one column"),
    "two dtypes": ({"D": np.ones((2, 1), np.float32)}, TypeError, "one dtype"),
    "zero bound": ({"bound": 0.0}, ValueError, "bound must be positive and finite: got 0"),
    "negative bound": ({"bound": -1.0}, ValueError, "bound must be positive"),
    "NaN bound": ({"bound": float("nan")}, ValueError, "bound must be positive"),
    "zero penalty": ({"penalty": 0.0}, ValueError, "penalty must be positive"),
    "no iterations": ({"max_iter": 0}, ValueError, "max_iter must be at least 1"),
    "wrong start": ({"start": np.ones((3, 3))}, ValueError, "start must hold 1 × 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case):
    change, error, message = BAD[case]
    arguments = {"Y": np.ones((1, 2)), "D": np.ones((2, 1)), "bound": 1.0} | change
    with pytest.raises(error, match=message):
        solve_linf(**arguments)


def test_read_only_arrays_are_solved_and_left_alone():
    D, Y = np.eye(2), np.array([[3.0, 0.5]])
    D.flags.writeable = Y.flags.writeable = False
    np.testing.assert_array_equal(solve_linf(Y, D, 1.0).codes, [[1.0, 0.5]])
    np.testing.assert_array_equal(Y, [[3.0, 0.5]])


def test_no_rows_give_no_codes():
    solution = solve_linf(np.empty((0, 3)), np.ones((3, 2)), 1.0)
    assert solution.codes.shape == (0, 2)
    assert solution.converged

"""The solver against SciPy, closed forms and the optimality conditions."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import lsq_linear
from sklearn.exceptions import ConvergenceWarning

from antipodal import solve_linf
from effort import examples

seeds = st.integers(0, 2**32 - 1)


def kkt_violation(D, y, x, bound):
    """Return the largest violation of the optimality conditions, with loops from the definition."""
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


@examples(80)
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


@examples(60)
@given(seed=seeds, bound=st.floats(0.02, 5.0))
def test_entries_match_scipys_where_the_dictionary_is_well_conditioned(seed, bound):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    D, Y = rng.standard_normal((30, 8)), rng.standard_normal((4, 30))
    solution = solve_linf(torch.tensor(Y), torch.tensor(D), bound, tol=1e-9)
    assert solution.codes.abs().max() <= bound
    for y, x in zip(Y, solution.codes.numpy(), strict=True):
        theirs = lsq_linear(D, y, (-bound, bound), method="bvls", tol=1e-14).x
        np.testing.assert_allclose(x, theirs, atol=1e-6)


def test_an_inactive_bound_gives_least_squares():
    rng = np.random.default_rng(0)
    D, Y = rng.standard_normal((40, 10)), rng.standard_normal((5, 40))
    codes = solve_linf(Y, D, bound=1e9).codes
    np.testing.assert_allclose(codes, np.linalg.lstsq(D, Y.T)[0].T, atol=1e-8)


def test_a_tiny_bound_gives_the_signs_of_the_correlations():
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


def test_zero_columns_and_zero_rows_are_allowed():
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


DTYPES = [np.float32, np.float64]


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(np.float32, s) for s in (1e-38, 1e-25, 1e-12, 1e12, 1e20, 1e38)]
    + [(np.float64, s) for s in (1e-307, 1e-200, 1e-30, 1e30, 1e180, 1e307)],
)
def test_problems_of_any_scale_are_solved(dtype, scale):
    Y = dtype(scale) * np.array([[3.0, -0.25]], dtype)
    solution = solve_linf(Y, np.eye(2, dtype=dtype), float(dtype(scale)))
    assert solution.converged
    np.testing.assert_allclose(solution.codes[0] / dtype(scale), [1.0, -0.25], rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@examples(20)
@given(seed=seeds, data=st.data())
def test_rows_and_atoms_of_any_scale_have_scipys_solution_of_the_problem_at_scale_one(
    dtype, seed, data
):
    """Powers of two are exact: y·2ʳ, d·2ᶜ and λ·2ˡ are solved by x·2ʳ⁻ᶜ in a box λ·2ˡ⁺ᶜ⁻ʳ."""
    limit = np.finfo(dtype).maxexp - 8
    exponent = st.integers(-limit, limit)
    r = np.array(data.draw(st.lists(exponent, min_size=4, max_size=4)))[:, None]
    c = np.array(data.draw(st.lists(exponent, min_size=3, max_size=3) | st.just([0] * 3)))
    power = data.draw(exponent)
    rng = np.random.default_rng(seed)
    D, Y = rng.standard_normal((12, 3)).astype(dtype), rng.standard_normal((4, 12)).astype(dtype)
    Y[0] = 0
    bound = float(np.ldexp(0.3, power))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        solution = solve_linf(np.ldexp(Y, r), np.ldexp(D, c), bound)
    if not solution.converged:  # only if the codes underflow in their dtype
        assert (r - c).min() < np.finfo(dtype).minexp + 8
        assert f"{np.dtype(dtype)}" in str(warned[0].message)
        return
    assert not warned
    assert np.abs(solution.codes).max() <= dtype(bound)
    # Above 1e9 no bound is reached; below 1e-9 all entries are at a bound.
    with np.errstate(over="ignore"):
        box = np.ldexp(0.3, power + c - r).clip(1e-9, 1e9)
    at_scale_one = np.ldexp(solution.codes.astype(np.float64), c - r)
    share = solution.codes.astype(np.float64) / bound
    assert (solution.codes[0] == 0).all()
    for i in range(1, 4):
        x = lsq_linear(D.astype(np.float64), Y[i], (-box[i], box[i]), method="bvls", tol=1e-14).x
        narrow = box[i] == 1e-9
        atol = 1e-3 if dtype == np.float32 else 1e-6
        np.testing.assert_allclose(at_scale_one[i, ~narrow], x[~narrow], atol=atol)
        np.testing.assert_allclose(share[i, narrow], x[narrow] / 1e-9, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_very_different_scales_are_solved_in_one_batch(dtype):
    scales = dtype(10.0) ** np.arange(-30, 31, 5, dtype=dtype)
    rng = np.random.default_rng(10)
    D, y = rng.standard_normal((12, 4)).astype(dtype), rng.standard_normal(12).astype(dtype)
    together = solve_linf(scales[:, None] * y, D, 1e-3)
    assert together.converged
    for scale, x in zip(scales, together.codes, strict=True):
        bound = min(1e-3 / float(scale), 1e9)
        theirs = lsq_linear(D.astype(np.float64), y, (-bound, bound), method="bvls").x
        np.testing.assert_allclose(x / scale, theirs, rtol=1e-3, atol=1e-4 * bound)


def test_codes_too_small_for_their_dtype_are_reported():
    Y, D = np.array([[3e-30, -1e-30]], np.float32), np.diag([1e30, 1e30]).astype(np.float32)
    with pytest.warns(ConvergenceWarning, match=r"\bfloat32"):
        solution = solve_linf(Y, D, 1.0)
    assert not solution.converged
    assert solution.residual > 0.1
    double = solve_linf(Y.astype(np.float64), D.astype(np.float64), 1.0)
    assert double.converged
    np.testing.assert_allclose(double.codes, [[3e-60, -1e-60]], rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("penalty", [1e-300, 1e-12, 1e12, 1e300])
def test_any_penalty_leads_to_the_solution(dtype, penalty):
    rng = np.random.default_rng(11)
    D, Y = rng.standard_normal((12, 4)).astype(dtype), rng.standard_normal((3, 12)).astype(dtype)
    expected = solve_linf(Y, D, 0.2).codes
    solution = solve_linf(Y, D, 0.2, penalty=penalty)
    assert solution.converged
    np.testing.assert_allclose(solution.codes, expected, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_solution_of_any_scale_is_its_own_start(scale):
    rng = np.random.default_rng(12)
    D = rng.standard_normal((12, 6)).astype(np.float32)
    Y = np.float32(scale) * rng.standard_normal((5, 12)).astype(np.float32)
    cold = solve_linf(Y, D, 0.1 * scale)
    again = solve_linf(Y, D, 0.1 * scale, start=cold.codes)
    assert again.n_iter == 0
    np.testing.assert_allclose(again.codes / scale, cold.codes / scale, atol=1e-5)


def test_a_warm_start_saves_iterations_and_a_solution_is_its_own_start():
    rng = np.random.default_rng(4)
    D, Y = rng.standard_normal((64, 48)), rng.standard_normal((50, 64))
    cold = solve_linf(Y, D, 0.2)
    again = solve_linf(Y, D, 0.2, start=cold.codes)
    nearby = solve_linf(Y + 1e-6 * rng.standard_normal(Y.shape), D, 0.2, start=cold.codes)
    assert again.n_iter < nearby.n_iter < cold.n_iter
    np.testing.assert_allclose(again.codes, cold.codes, atol=1e-8)


def test_solutions_do_not_depend_on_the_other_rows():
    rng = np.random.default_rng(5)
    D, Y = rng.standard_normal((20, 15)), rng.standard_normal((20_000, 20))
    together = solve_linf(Y, D, 0.5).codes
    alone = np.concatenate([solve_linf(y[None], D, 0.5).codes for y in Y[::2000]])
    np.testing.assert_allclose(together[::2000], alone, atol=1e-7)


def test_too_few_iterations_are_reported():
    rng = np.random.default_rng(6)
    D, Y = rng.standard_normal((20, 40)), 10 * rng.standard_normal((30, 20))
    with pytest.warns(ConvergenceWarning, match=r"\b1 iteration"):
        solution = solve_linf(Y, D, 0.3, max_iter=1, tol=1e-30)
    assert not solution.converged
    assert solution.residual > 1e-30
    assert np.abs(solution.codes).max() <= 0.3


BAD = {
    "NaN": ({"Y": np.array([[np.nan, 1.0]])}, ValueError, r"\bY\b.*\bNaN\b"),
    "infinity": ({"D": np.array([[np.inf], [1.0]])}, ValueError, r"\bD\b.*\binf"),
    "one dimension": ({"Y": np.ones(2)}, ValueError, r"y\[None\]"),
    "integers": ({"Y": np.ones((1, 2), int)}, TypeError, r"float32.*float64.*int64"),
    "transposed": ({"D": np.ones((1, 2))}, ValueError, r"\bY\b.*\b2\b.*\bD\b.*\(1, 2\)"),
    "no atoms": ({"D": np.ones((2, 0))}, ValueError, r"\bD\b.*\(2, 0\)"),
    "two dtypes": ({"D": np.ones((2, 1), np.float32)}, TypeError, "float64.*float32|dtype"),
    "zero bound": ({"bound": 0.0}, ValueError, r"\bbound\b.*\b0\.0"),
    "negative bound": ({"bound": -1.0}, ValueError, r"\bbound\b.*-1\.0"),
    "NaN bound": ({"bound": float("nan")}, ValueError, r"\bbound\b.*\bnan\b"),
    "zero penalty": ({"penalty": 0.0}, ValueError, r"\bpenalty\b.*\b0\.0"),
    "bound below float32": (
        {"Y": np.ones((1, 2), np.float32), "D": np.ones((2, 1), np.float32), "bound": 1e-60},
        ValueError,
        r"\bbound\b.*1e-60.*float32",
    ),
    "NaN in start": ({"start": np.array([[np.nan]])}, ValueError, r"\bstart\b.*\bNaN\b"),
    "no iterations": ({"max_iter": 0}, ValueError, r"\bmax_iter\b.*\b1\b.*\b0\b"),
    "wrong start": ({"start": np.ones((3, 3))}, ValueError, r"\bstart\b.*\b1 × 1\b.*\(3, 3\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_input_is_named(case):
    change, error, message = BAD[case]
    arguments = {"Y": np.ones((1, 2)), "D": np.ones((2, 1)), "bound": 1.0} | change
    with pytest.raises(error, match=message):
        solve_linf(**arguments)


def test_read_only_arrays_are_solved_and_not_changed():
    D, Y = np.eye(2), np.array([[3.0, 0.5]])
    D.flags.writeable = Y.flags.writeable = False
    np.testing.assert_array_equal(solve_linf(Y, D, 1.0).codes, [[1.0, 0.5]])
    np.testing.assert_array_equal(Y, [[3.0, 0.5]])


def test_tensors_with_gradients_are_solved_without_them():
    torch = pytest.importorskip("torch")
    D = torch.eye(2, requires_grad=True)
    codes = solve_linf(torch.tensor([[3.0, -0.25]]), D, 1.0).codes
    torch.testing.assert_close(codes, torch.tensor([[1.0, -0.25]]))
    assert not codes.requires_grad


def test_no_rows_give_no_codes():
    solution = solve_linf(np.empty((0, 3)), np.ones((3, 2)), 1.0)
    assert solution.codes.shape == (0, 2)
    assert solution.converged

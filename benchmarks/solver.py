"""Speed of `solve_linf` compared with OSQP and SciPy on the same problems.

10,000 right-hand sides share one dictionary, 384 × 64 with unit columns. All solvers have the same
number of BLAS threads. OSQP factors its matrix once and only updates the linear term;
`scipy.optimize.lsq_linear` (bvls) solves each problem from scratch. Slow solvers run on a part of
the problems, and their time is extrapolated.

python benchmarks/solver.py --json benchmarks/results/solver.json
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import osqp
import scipy.sparse
from scipy.optimize import lsq_linear
from threadpoolctl import threadpool_limits

from antipodal import solve_linf
from antipodal.threads import usable_cores

N_PROBLEMS, N_FEATURES, N_ATOMS, BOUND, TOLERANCE = 10_000, 384, 64, 0.5, 1e-6


def ours(Y: np.ndarray, D: np.ndarray) -> np.ndarray:
    return solve_linf(Y, D, BOUND, tol=TOLERANCE).codes


class Osqp:
    """Minimise ½xᵀDᵀDx - (Dᵀy)ᵀx over the box; the set-up is not timed."""

    def __init__(self, D: np.ndarray) -> None:
        self.solver = osqp.OSQP()
        self.solver.setup(
            P=scipy.sparse.csc_matrix(np.triu(D.T @ D)),
            q=np.zeros(N_ATOMS),
            A=scipy.sparse.csc_matrix(np.eye(N_ATOMS)),
            l=np.full(N_ATOMS, -BOUND),
            u=np.full(N_ATOMS, BOUND),
            eps_abs=TOLERANCE,
            eps_rel=TOLERANCE,
            polishing=False,
            verbose=False,
        )

    def __call__(self, Y: np.ndarray, D: np.ndarray) -> np.ndarray:
        """Solve the problems sequentially."""
        linear = -(Y @ D)
        codes = np.empty((len(Y), N_ATOMS))
        for i, q in enumerate(linear):
            self.solver.update(q=q)
            codes[i] = self.solver.solve().x
        return codes


def scipys(Y: np.ndarray, D: np.ndarray) -> np.ndarray:
    return np.array([lsq_linear(D, y, (-BOUND, BOUND), method="bvls").x for y in Y])


def error(Y: np.ndarray, D: np.ndarray, codes: np.ndarray, best: np.ndarray) -> dict[str, float]:
    """Return the distance from the best known solution and the violation of the box."""

    def objective(x: np.ndarray) -> np.ndarray:
        return np.sum((Y - x @ D.T) ** 2, axis=1)

    excess = (objective(codes) - objective(best)) / np.sum(Y**2, axis=1)
    return {
        "objective_excess": float(excess.max()),
        "entry_error": float(np.abs(codes - best).max()),
        "outside_box": float(np.maximum(np.abs(codes) - BOUND, 0).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=PendingDeprecationWarning)

    rng = np.random.default_rng(0)
    D = rng.standard_normal((N_FEATURES, N_ATOMS))
    D /= np.linalg.norm(D, axis=0)
    Y = rng.standard_normal((N_PROBLEMS, N_FEATURES))
    best = solve_linf(Y, D, BOUND, tol=1e-12).codes
    solvers: dict[str, tuple[Callable[..., np.ndarray], int]] = {
        "solve_linf": (ours, N_PROBLEMS),
        "OSQP": (Osqp(D), 2_000),
        "lsq_linear bvls": (scipys, 100),
    }
    seconds: dict[str, list[float]] = {name: [] for name in solvers}
    errors = {}
    with threadpool_limits(options.threads):
        ours(Y, D)  # warm up
        for _ in range(options.repeats):  # in turn, under the same load
            for name, (solve, count) in solvers.items():
                began = time.perf_counter()
                codes = solve(Y[:count], D)
                seconds[name].append((time.perf_counter() - began) * N_PROBLEMS / count)
                errors[name] = error(Y[:count], D, codes, best[:count])
    record = {
        "problems": N_PROBLEMS,
        "dictionary": [N_FEATURES, N_ATOMS],
        "bound": BOUND,
        "entries_on_the_box": round(float((np.abs(best) == BOUND).mean()), 3),
        "tolerance": TOLERANCE,
        "threads": options.threads,
        "solvers": {
            name: {
                "seconds": round(statistics.median(times), 4),
                "times_ours": round(
                    statistics.median(
                        t / o for t, o in zip(times, seconds["solve_linf"], strict=True)
                    ),
                    1,
                ),
                **errors[name],
            }
            for name, times in seconds.items()
        },
    }
    print(json.dumps(record, indent=2))
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Quality and speed of `ksvd` compared with scikit-learn's MiniBatchDictionaryLearning.

Recovery follows Aharon et al. (2006): 1,500 signals, each the sum of 3 of 50 unknown atoms in 20
dimensions, with white noise at 20 dB. An atom counts as recovered if a learned atom has |cosine|
> 0.99 with it.

Speed: 2,000 × 384 samples of rank 30 with noise, 64 atoms, 8 per sample, 10 sweeps. scikit-learn
uses an l1 penalty instead of a number of atoms, so several penalties are tried, with 10 passes over
the samples. Both dictionaries are evaluated with scikit-learn's orthogonal matching pursuit, whose
speed is also compared with ours.

All variants run on one thread, in turn, in the same process. Compare ratios, not seconds.

    python benchmarks/ksvd.py --json benchmarks/results/ksvd.json
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import sklearn
from sklearn.decomposition import MiniBatchDictionaryLearning
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import orthogonal_mp_gram
from threadpoolctl import threadpool_limits

from antipodal.paper.dictionary import ksvd, pursue

N_SAMPLES, N_FEATURES, RANK, N_ATOMS, SPARSITY, N_SWEEPS = 2_000, 384, 30, 64, 8, 10


def timed(function):
    start = time.perf_counter()
    result = function()
    return result, round(time.perf_counter() - start, 3)


def recovery(seed):
    rng = np.random.default_rng(seed)
    D = rng.standard_normal((20, 50))
    D /= np.linalg.norm(D, axis=0)
    X = np.zeros((1500, 50))
    for x in X:
        x[rng.choice(50, 3, replace=False)] = rng.standard_normal(3)
    clean, noise = X @ D.T, rng.standard_normal((1500, 20))
    noise *= np.linalg.norm(clean) / np.linalg.norm(noise) / 10
    learned, seconds = timed(
        lambda: ksvd(clean + noise, 50, sparsity=3, n_iter=80, random_state=seed)
    )
    found = np.abs(D.T @ learned.dictionary).max(axis=1) > 0.99
    return {
        "seed": seed,
        "recovered_percent": round(100 * float(found.mean()), 1),
        "error": round(learned.errors[-1], 4),
        "sweeps": len(learned.errors),
        "seconds": seconds,
    }


def make_samples(seed=0):
    rng = np.random.default_rng(seed)
    Y = rng.standard_normal((N_SAMPLES, RANK)) @ rng.standard_normal((RANK, N_FEATURES))
    Y += 0.3 * np.sqrt(RANK) * rng.standard_normal(Y.shape)
    return Y / np.linalg.norm(Y, axis=1, keepdims=True)


def pursuit_error(Y, D):
    X = orthogonal_mp_gram(D.T @ D, D.T @ Y.T, n_nonzero_coefs=SPARSITY)
    return round(float(np.linalg.norm(Y - X.T @ D.T) / np.linalg.norm(Y)), 4)


def compare_fits(Y):
    learned, seconds = timed(
        lambda: ksvd(Y, N_ATOMS, sparsity=SPARSITY, n_iter=N_SWEEPS, random_state=0)
    )
    rows = {"ksvd": {"error": pursuit_error(Y, learned.dictionary), "seconds": seconds}}
    rows["ksvd"]["own_error"] = round(learned.errors[-1], 4)
    for alpha in (1.0, 0.3, 0.1, 0.03):
        other = MiniBatchDictionaryLearning(
            N_ATOMS,
            alpha=alpha,
            fit_algorithm="cd",
            max_iter=N_SWEEPS,
            tol=0,  # both disable early stopping, since `ksvd` runs all sweeps
            max_no_improvement=None,
            random_state=0,
        )
        _, seconds = timed(lambda other=other: other.fit(Y))
        D = other.components_.T / np.linalg.norm(other.components_, axis=1)
        name = f"MiniBatchDictionaryLearning, alpha={alpha}"
        rows[name] = {"error": pursuit_error(Y, D), "seconds": seconds}
    return rows


def compare_pursuits(Y, repeats=5):
    D = np.random.default_rng(1).standard_normal((N_FEATURES, N_ATOMS))
    D /= np.linalg.norm(D, axis=0)
    gram, Dty = D.T @ D, Y @ D

    def ours():  # in blocks, as during a sweep
        return [pursue(gram, Dty[i : i + 256], SPARSITY) for i in range(0, N_SAMPLES, 256)]

    def theirs():
        return orthogonal_mp_gram(gram, Dty.T, n_nonzero_coefs=SPARSITY)

    turns = [(timed(ours)[1], timed(theirs)[1]) for _ in range(repeats)]
    mine, other = (min(seconds) for seconds in zip(*turns, strict=True))
    return {"ksvd": mine, "orthogonal_mp_gram": other, "times_ksvd": round(other / mine, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="output file of the record")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # from scikit-learn's inner lasso
    record = {"threads": 1, "numpy": np.__version__, "scikit-learn": sklearn.__version__}
    with threadpool_limits(1):
        record["recovery"] = [recovery(seed) for seed in range(10)]
        mean = np.mean([row["recovered_percent"] for row in record["recovery"]])
        record["recovered_percent_mean"] = round(float(mean), 1)
        Y = make_samples()
        record["fit"] = compare_fits(Y)
        record["pursuit_seconds"] = compare_pursuits(Y)
    print(json.dumps(record, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

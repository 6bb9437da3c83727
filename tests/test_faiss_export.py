"""`to_faiss`: files that a program with Faiss and without antipodal searches."""

import json
import subprocess
import sys

import numpy as np
import pytest

from antipodal import LSH, AntipodalError, HammingIndex, LinfHash
from antipodal.hashers.base import BaseHasher

PROGRAM = """
import json, sys
import faiss, numpy as np
path, queries, is_binary = sys.argv[1], np.load(sys.argv[2]), sys.argv[3] == "binary"
index = (faiss.read_index_binary if is_binary else faiss.read_index)(path)
distances, ids = index.search(queries, 10)
added = "no"
try:
    if isinstance(index, faiss.IndexIDMap2):
        index.add_with_ids(queries, np.arange(len(queries)) + 10**6)
    else:
        index.add(queries)
    added = "yes"
except RuntimeError:
    pass
assert "antipodal" not in sys.modules
print(json.dumps([ids.tolist(), distances.tolist(), added, index.ntotal]))
"""


def search_with_faiss(folder, queries, kind="float"):
    """Return ids, distances, whether items could be added, and the number of items."""
    np.save(folder / "queries.npy", queries)
    arguments = [folder / "items.faiss", folder / "queries.npy", kind]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    ids, distances, added, n_items = json.loads(done.stdout)
    return np.array(ids), np.array(distances), added, n_items


def agreement(some, others):
    return np.mean([np.isin(a, b).mean() for a, b in zip(some, others, strict=True)])


@pytest.fixture(scope="module", params=[60, 128, 1200])
def fitted(request):
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((20, 48))
    X = centres[rng.integers(0, 20, 2000)] + 0.7 * rng.standard_normal((2000, 48))
    X = (X * rng.uniform(0.1, 10, (2000, 1))).astype(np.float32)
    hasher = LinfHash.asymmetric(request.param, random_state=0).fit(X[:500])
    return hasher, X, hasher.encode(X)


def test_faiss_returns_the_results_of_asymmetric_search(fitted, tmp_path):
    hasher, X, codes = fitted
    ids = 7 * np.arange(len(X)) + 3
    hasher.to_faiss(codes, tmp_path / "items.faiss", ids)
    index = HammingIndex(hasher.n_bits)
    index.add(codes, ids)
    expected = index.search(vectors=hasher.query(X[:100]), k=10)
    found, scores, added, n_items = search_with_faiss(tmp_path, X[:100])
    assert agreement(expected.ids, found) > 0.95
    np.testing.assert_allclose(scores, expected.scores, atol=0.03 * np.abs(expected.scores).max())
    assert (added, n_items) == ("no", len(X))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_vectors_in_the_file_rerank_by_cosine_similarity(fitted, tmp_path, dtype):
    hasher, X, codes = fitted
    blocks = np.array_split(codes, 3)
    hasher.to_faiss(iter(blocks), tmp_path / "items.faiss", refine=X.astype(dtype))
    found, scores, added, n_items = search_with_faiss(tmp_path, X[:50])
    assert (found[:, 0] == np.arange(50)).all()
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    cosines = np.einsum("qd,qkd->qk", unit[:50], unit[found])
    np.testing.assert_allclose(scores, cosines, atol=2e-3 if dtype == np.float16 else 1e-5)
    assert (np.diff(scores, axis=1) <= 0).all()
    assert (added, n_items) == ("no", len(X))


def test_sums_of_long_codes_do_not_overflow(tmp_path):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 8)).astype(np.float32)
    hasher = LinfHash.asymmetric(1200, random_state=0).fit(X)
    hasher.dictionary_ = np.tile(hasher.dictionary_[:, :1], 1200)  # all tables have equal spans
    codes = rng.integers(0, 256, (300, 150), dtype=np.uint8)
    codes[7] = 255
    hasher.to_faiss(codes, tmp_path / "items.faiss")
    direction = hasher.dictionary_[:, :1].T  # the query with the largest possible score
    assert (search_with_faiss(tmp_path, direction)[0][:, 0] == 7).all()


def test_the_codes_of_a_hamming_model_are_searched_with_codes(tmp_path):
    X = np.random.default_rng(2).standard_normal((500, 16))
    hasher = LSH(n_bits=30, random_state=0).fit(X)
    codes, ids = hasher.encode(X), np.arange(500)[::-1] - 10
    hasher.to_faiss(codes, tmp_path / "items.faiss", ids)
    found, distances, _, n_items = search_with_faiss(tmp_path, codes[:20], "binary")
    index = HammingIndex(30)
    index.add(codes, ids)
    expected = index.search(codes[:20], k=10)
    np.testing.assert_array_equal(distances, expected.distances)
    below = distances < distances[:, -1:]  # Faiss breaks ties at the last distance by row
    assert all(
        set(a[inside]) == set(b[inside])
        for a, b, inside in zip(found, expected.ids, below, strict=True)
    )
    assert n_items == 500
    with pytest.raises(ValueError, match=r"\brefine\b"):
        hasher.to_faiss(codes, tmp_path / "items.faiss", refine=X)


def test_invalid_arguments_leave_the_file_unchanged(fitted, tmp_path):
    hasher, X, codes = fitted
    path = tmp_path / "items.faiss"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match=r"\bids\b.*\b2000\b.*\b3\b"):
        hasher.to_faiss(codes, path, [1, 2, 3])
    with pytest.raises(ValueError, match=r"\bunique\b"):
        hasher.to_faiss(codes[:2], path, [1, 1])
    with pytest.raises(TypeError, match=r"\bids\b"):
        hasher.to_faiss(codes[:2], path, ["a", "b"])
    with pytest.raises(ValueError, match=r"\bcodes\b"):
        hasher.to_faiss(codes[:, 1:], path)
    with pytest.raises(ValueError, match=r"\brefine\b.*\b2000\b.*\b5\b"):
        hasher.to_faiss(codes, path, refine=X[:5])
    with pytest.raises(ValueError, match=r"\brefine\b.*\(2000, 9\)"):
        hasher.to_faiss(codes, path, refine=X[:, :9])
    with pytest.raises(AntipodalError, match="missing"):
        hasher.to_faiss(codes, tmp_path / "missing" / "items.faiss")
    assert path.read_bytes() == b"old"


class Squares(BaseHasher):
    """Hasher whose float queries are not linear."""

    scoring = "asymmetric"

    def __init__(self, n_bits=4, *, random_state=None):
        self.n_bits, self.random_state = n_bits, random_state

    def fit(self, X, y=None):
        self.check_fit(X)
        return self

    def projector(self, max_rows):
        return lambda X: X[:, : self.n_bits] ** 2 - 1


def test_queries_that_faiss_cannot_compute_are_refused(tmp_path):
    X = np.random.default_rng(3).standard_normal((50, 6))
    hasher = Squares().fit(X)
    with pytest.raises(AntipodalError, match="linear"):
        hasher.to_faiss(hasher.encode(X), tmp_path / "items.faiss")

"""Data sets and other codes of the benchmarks without labels."""

import gzip
import sys
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

pytest.importorskip("torch")
sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from embedding_sets import TEXTS, dictionary_texts, sentences

with patch.dict("os.environ"):  # the script sets the number of threads
    from unlabelled import ash_searches, spherical_codes

ENTRIES = r"""
00-database-info
   This file was converted from another one.

Coagulate \Co*ag"u*late\, a. [L. coagulatus, p. p. of coagulare
   to coagulate, fr. coagulum.]
   Coagulated and thick. [Obs.] --Shak.
   [1913 Webster]

Lapful \Lap"ful\, n.
   As much as the {lap} can contain.

Awk \Awk\, a.
   Odd.
"""


def test_dictionary_texts_have_a_word_and_its_definition(tmp_path):
    file = tmp_path / "gcide.dict.dz"
    file.write_bytes(gzip.compress(ENTRIES.encode()))
    assert dictionary_texts(file) == [
        "Coagulate: Coagulated and thick. --Shak.",
        "Lapful: As much as the lap can contain.",
    ]


def test_sentences_are_distinct_and_neither_tables_nor_code(tmp_path):
    text = ENTRIES + "It is odd.  It is odd.\n\n  | 1 | 2 | 3 a |\n\n= = = a b c + - *\n"
    with pytest.raises(SystemExit, match="devil"):
        sentences(tmp_path)
    for pattern in TEXTS:
        path = tmp_path / pattern.replace("**", "a").replace("*", "b")
        path.parent.mkdir(parents=True, exist_ok=True)
        content = text.encode()
        path.write_bytes(content if path.suffix == ".pod" else gzip.compress(content))
    found = sentences(tmp_path)
    assert "As much as the lap can contain." in found
    assert found.count("It is odd.") == 1
    assert not [sentence for sentence in found if "|" in sentence or "=" in sentence]


def test_spherical_codes_are_as_close_as_the_best_of_all_levels():
    Y = np.random.default_rng(0).standard_normal((50, 5)).astype(np.float32)
    levels = np.array(list(product((-3, -1, 1, 3), repeat=5)), np.float32)
    best = (Y @ (levels / np.linalg.norm(levels, axis=1, keepdims=True)).T).max(axis=1)
    codes = spherical_codes(Y, 2)
    found = (Y * codes).sum(axis=1) / np.linalg.norm(codes, axis=1)
    np.testing.assert_allclose(found, best, rtol=0.01)


def test_ash_with_many_bits_finds_the_exact_neighbours():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((700, 16)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    queries, train, database = np.split(X, [20, 400])
    nearest = np.argsort(-(queries @ database.T), axis=1)[:, :10]
    for n_centroids in (1, 4):
        [(_, n_bytes, ids, *_)] = ash_searches(32, 8, n_centroids, 0, queries, train, database)
        assert n_bytes == 16 + 4 + (n_centroids > 1)
        shares = [len(set(a) & set(b)) / 10 for a, b in zip(ids, nearest, strict=True)]
        assert np.mean(shares) > 0.95

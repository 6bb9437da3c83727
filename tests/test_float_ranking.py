"""Metrics of rankings by inner product, compared with scikit-learn and the slow reference."""

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

import reference_metrics as reference
from antipodal import evaluate, pack
from antipodal.evaluation.float_ranking import evaluate_floats
from effort import examples


def problem(rng, n_queries=20, n_items=150, d=5, n_labels=3):
    query, database = rng.standard_normal((n_queries, d)), rng.standard_normal((n_items, d))
    return query, database, rng.integers(0, n_labels, n_queries), rng.integers(0, n_labels, n_items)


@examples(30)
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=0)
def test_without_ties_map_is_the_average_precision_of_scikit_learn(seed):
    query, database, ql, dl = problem(np.random.default_rng(seed))
    products = query.astype(np.float32) @ database.T.astype(np.float32)
    # Rounding to float32 makes two products equal for a few seeds, such as 77957.
    assume(all(len(np.unique(row)) == len(row) for row in products))
    expected = [
        average_precision_score(dl == label, row) for label, row in zip(ql, products, strict=True)
    ]
    result = evaluate_floats(query, database, ql, dl)
    assert result.map == pytest.approx(100 * np.mean(expected), abs=1e-9)
    assert result.map_worst == pytest.approx(result.map_best, abs=1e-9)


def test_with_ties_map_is_the_mean_over_their_orders():
    rng = np.random.default_rng(0)
    query = rng.integers(0, 2, (4, 3))
    database = rng.integers(0, 2, (7, 3))
    labels = rng.integers(0, 2, 4), rng.integers(0, 2, 7)
    result = evaluate_floats(query, database, *labels)
    distances = (3 - query @ database.T).tolist()
    relevant = (labels[0][:, None] == labels[1]).tolist()
    scores = [
        reference.expected_worst_best(reference.average_precision, d, r)
        for d, r in zip(distances, relevant, strict=True)
        if any(r)
    ]
    ours = result.map, result.map_worst, result.map_best
    np.testing.assert_allclose(ours, 100 * np.mean(scores, axis=0), atol=1e-9)


def test_plus_and_minus_one_codes_score_as_their_packed_bits_do():
    rng = np.random.default_rng(1)
    query, database, ql, dl = problem(rng, d=16)
    ours = evaluate_floats(np.sign(query), np.sign(database), ql, dl)
    theirs = evaluate(pack(query > 0), pack(database > 0), ql, dl, n_bits=16)
    for name in ("queries", "database", "chance", "map", "map_worst", "map_best"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=1e-9)


def test_neither_the_order_of_the_database_nor_the_size_of_blocks_matters():
    rng = np.random.default_rng(2)
    query, database, ql, dl = problem(rng)
    query, database = np.round(query), np.round(database)  # plenty of ties
    whole = evaluate_floats(query, database, ql, dl)
    order = rng.permutation(len(database))
    assert evaluate_floats(query, database[order], ql, dl[order]).map == pytest.approx(whole.map)
    assert evaluate_floats(query, database, ql, dl, block_bytes=1) == whole


def test_shared_concepts_are_relevant_and_queries_without_any_are_excluded():
    query = np.array([[1.0, 0.0], [0.0, 1.0]])
    database = np.array([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
    items = [[0, 1, 0], [1, 1, 0], [1, 0, 0]]
    result = evaluate_floats(query, database, [[1, 0, 0], [0, 0, 1]], items)
    assert (result.queries, result.queries_without_relevant) == (2, 1)
    assert result.map == pytest.approx(100 * (1 / 2 + 2 / 3) / 2)
    assert result.chance == pytest.approx(100 * 2 / 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0]], [[1.0, 2.0]], [0], [0]), r"\bquery\b.*\bdatabase\b.*\b1\b.*\b2\b"),
        (([1.0], [[1.0]], [0], [0]), r"\bquery\b.*\(1,\)"),
        (([[np.nan]], [[1.0]], [0], [0]), r"\bquery\b.*\bNaN\b"),
        (([[1.0]], [[1.0]], [0, 1], [0]), r"\bquery_labels\b.*\(1,\).*\(2,\)"),
        (
            ([[1.0]], [[1.0]], [0], [[0]]),
            r"\bquery_labels\b.*\bdatabase_labels\b.*\(1,\).*\(1, 1\)",
        ),
        (([[1.0]], [[1.0]], [[2]], [[1]]), r"\bquery_labels\b.*\b0 or 1\b"),
        (([[1.0]], [[1.0]], [np.nan], [0]), r"\bquery_labels\b.*\b1 of 1\b"),
        (([[1.0]], [[1.0]], ["a"], [None]), r"\bdatabase_labels\b.*\b1 of 1\b"),
        (([[1.0]], [[1.0]], [0], [1]), r"\brelevant\b.*\bquery_labels\b.*\bdatabase_labels\b"),
    ],
)
def test_invalid_arguments_are_named_in_the_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        evaluate_floats(*arguments)

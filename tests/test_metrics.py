import doctest
import json
import re
from functools import partial
from itertools import product
from math import fsum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

import reference_metrics as reference
from antipodal.codes import pack, unpack
from antipodal.evaluation.float_ranking import evaluate_floats
from antipodal.evaluation.metrics import bit_health, evaluate, hamming_distances
from antipodal.evaluation.ranking import TiedRanking, _count_in_rows
from effort import fresh_examples

ORDERS = ("", "_worst", "_best")


@st.composite
def small_problems(draw, max_items=6):
    """Few bits, items and labels: many ties, empty results and queries without relevant items."""
    n_bits = draw(st.integers(1, 3))
    n_queries, n_items = draw(st.integers(1, 3)), draw(st.integers(1, max_items))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    query, database = (rng.integers(0, 2, (n, n_bits)) for n in (n_queries, n_items))
    labels = rng.integers(0, 3, n_queries), rng.integers(0, 3, n_items)
    labels[1][0] = labels[0][0]  # at least one relevant pair
    return query, database, *labels


def scored(query, database, query_labels, database_labels):
    """Distances and relevance as lists, for the queries that have a relevant item."""
    distances = (query[:, None] != database).sum(axis=2)
    if query_labels.ndim == 1:
        relevant = query_labels[:, None] == database_labels
    else:
        relevant = (query_labels[:, None] & database_labels).any(axis=2)
    keep = relevant.any(axis=1)
    return distances[keep].tolist(), relevant[keep].tolist()


def random_problem(rng, n_queries=40, n_items=300, n_bits=12, n_labels=3):
    """Codes that resemble the prototype of their label."""
    prototypes = rng.integers(0, 2, (n_labels, n_bits))
    labels = rng.integers(0, n_labels, n_queries), rng.integers(0, n_labels, n_items)
    codes = (pack(prototypes[y] ^ (rng.random((len(y), n_bits)) < 0.2)) for y in labels)
    return *codes, *labels


# Ties ------------------------------------------------------------------------------------------


@fresh_examples(300)
@given(
    problem=small_problems(), k=st.integers(1, 8), ap_at_k=st.sampled_from(["relevant", "found"])
)
def test_scores_are_the_mean_the_least_and_the_greatest_over_all_tie_orders(problem, k, ap_at_k):
    query, database, *labels = problem
    result = evaluate(
        pack(query), pack(database), *labels, n_bits=query.shape[1], top=[k], ap_at_k=ap_at_k
    ).to_dict()
    scores = {
        "map": reference.average_precision,
        f"map_at_{k}": lambda ranked: reference.average_precision(ranked, k, ap_at_k),
        f"mp_at_{k}": lambda ranked: reference.precision(ranked, k),
    }
    for name, score in scores.items():
        rows = [
            reference.expected_worst_best(score, d, r)
            for d, r in zip(*scored(*problem), strict=True)
        ]
        ours = [result[name + order] for order in ORDERS]
        np.testing.assert_allclose(ours, 100 * np.mean(rows, axis=0), atol=1e-10, err_msg=name)


def test_seven_tied_items_are_scored_over_all_5040_orders():
    distances, relevant = [0] * 7, [1, 1, 1, 0, 0, 0, 0]
    ranking = TiedRanking(np.array([[7]]), np.array([[3]]))
    for k, divisor in product([1, 3, 4, 7, 9], ["relevant", "found"]):
        score = partial(reference.average_precision, k=k, divisor=divisor)
        slow = reference.expected_worst_best(score, distances, relevant)
        fast = np.ravel(ranking.average_precision(k, divisor))
        np.testing.assert_allclose(fast, slow, atol=1e-13)


def test_large_groups_match_the_formula_summed_term_by_term():
    items, relevant = [3, 0, 20_000, 1, 30_000, 8_996], [1, 0, 2_500, 1, 2_000, 7]
    ranking = TiedRanking(np.array([items]), np.array([relevant]))
    before = np.cumsum([0, *items]), np.cumsum([0, *relevant])
    groups = zip(items, relevant, *before, strict=False)
    slow = fsum(reference.group_sum(*group) for group in groups) / sum(relevant)
    assert ranking.average_precision().expected[0] == pytest.approx(slow, rel=1e-12)


@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 400))
def test_found_divisor_matches_the_hypergeometric_sum_term_by_term(seed, k):
    rng = np.random.default_rng(seed)
    items = rng.integers(0, 120, 5)
    items[-1] += 1
    relevant = rng.binomial(items, 0.3)
    relevant[-1] = max(relevant[-1], 1)
    k = min(k, items.sum())
    ours = TiedRanking(items[None], relevant[None]).average_precision(k, "found")
    slow = reference.expected_average_precision_of_found(items.tolist(), relevant.tolist(), int(k))
    assert ours.expected[0] == pytest.approx(slow, rel=1e-9, abs=1e-12)
    assert ours.worst[0] - 1e-12 <= ours.expected[0] <= ours.best[0] + 1e-12


def test_found_divisor_works_in_blocks_of_queries():
    rng = np.random.default_rng(0)
    items = np.stack([rng.multinomial(20_000, [0.2, 0.5, 0.3]) for _ in range(60)])
    relevant = rng.binomial(items, 0.4)
    together = np.array(TiedRanking(items, relevant).average_precision(9_000, "found"))
    for row in (0, 33, 59):
        alone = TiedRanking(items[row : row + 1], relevant[row : row + 1])
        np.testing.assert_allclose(
            np.ravel(alone.average_precision(9_000, "found")), together[:, row], rtol=1e-12
        )


@given(seed=st.integers(0, 2**32 - 1))
def test_without_ties_all_orders_give_the_average_precision_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    staircase = rng.permutation(np.tri(41, 40, -1, dtype=np.uint8))  # distances 0 … 40 from zeros
    relevant = rng.integers(0, 2, 41)
    relevant[rng.integers(41)] = 1
    result = evaluate(pack(np.zeros((1, 40), int)), pack(staircase), [1], relevant, n_bits=40)
    sklearn = 100 * average_precision_score(relevant, -staircase.sum(axis=1, dtype=int))
    np.testing.assert_allclose([result.map, result.map_worst, result.map_best], sklearn, atol=1e-10)


@given(seed=st.integers(0, 2**32 - 1), ap_at_k=st.sampled_from(["relevant", "found"]))
@fresh_examples(25)
def test_scores_are_ordered_worst_expected_best(seed, ap_at_k):
    problem = random_problem(np.random.default_rng(seed), n_bits=5)
    top = [1, 10, 150, 1000]
    result = evaluate(*problem, n_bits=5, top=top, ap_at_k=ap_at_k).to_dict()
    for name in ["map", *(f"{score}_at_{k}" for score in ("map", "mp") for k in top)]:
        expected, worst, best = (result[name + order] for order in ORDERS)
        assert 0 <= worst <= expected + 1e-10 <= best + 2e-10 <= 100 + 3e-10


def test_the_found_divisor_prefers_fewer_relevant_results():
    query, far = [[0, 0, 0]], [[0, 0, 0], [0, 0, 1], [0, 1, 1]]
    one, two = [1, 0, 0, 1], [1, 0, 1, 1]  # the fourth item is beyond the first three
    database = pack([*far, [1, 1, 1]])
    for ap_at_k, better in ("found", one), ("relevant", two):
        maps = [
            evaluate(pack(query), database, [1], y, n_bits=3, top=[3], ap_at_k=ap_at_k).at[3].map
            for y in (one, two)
        ]
        assert [one, two][np.argmax(maps)] == better


# Within a radius -------------------------------------------------------------------------------


@fresh_examples(100)
@given(problem=small_problems(9), balls=st.sampled_from(["macro", "nonempty", "micro"]))
def test_scores_within_a_radius_match_loops_over_queries_and_items(problem, balls):
    query, database, *labels = problem
    radii = [0, 1, 2, 7]
    result = evaluate(
        pack(query), pack(database), *labels, n_bits=query.shape[1], radii=radii, balls=balls
    )
    for r in radii:
        slow = reference.within_radius(*scored(*problem), r, balls)
        np.testing.assert_allclose(result.radius[r], 100 * np.array(slow), atol=1e-10)


def test_a_query_without_results_has_precision_zero_and_is_counted():
    database = pack([[0, 0, 0, 0], [1, 1, 1, 1]])
    result = evaluate(pack([[0, 0, 0, 0], [0, 0, 1, 1]]), database, [0, 0], [0, 0], n_bits=4)
    assert result.radius[0] == (50, 25, pytest.approx(100 / 3), 50)


# Invariance ------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32 - 1))
@fresh_examples(25)
def test_permuting_the_database_changes_no_score(seed):
    rng = np.random.default_rng(seed)
    query, database, query_labels, labels = random_problem(rng)
    order = rng.permutation(len(database))
    options = {"n_bits": 12, "top": (1, 10, 70), "radii": (0, 1, 2)}
    here = evaluate(query, database, query_labels, labels, **options)
    there = evaluate(query, database[order], query_labels, labels[order], **options)
    assert here == there


@pytest.mark.parametrize("block_bytes", [1, 500, 3_000, 20_000, 10**6])
@pytest.mark.parametrize("n_bits", [5, 12, 70])
def test_the_block_size_changes_no_score(n_bits, block_bytes):
    rng = np.random.default_rng(n_bits)
    problem = random_problem(rng, n_queries=17, n_bits=n_bits)
    projections = rng.standard_normal((300, n_bits))
    options = {"n_bits": n_bits, "top": (7, 200), "projections": projections}
    here = evaluate(*problem, **options).to_dict()
    there = evaluate(*problem, **options, block_bytes=block_bytes).to_dict()
    assert there == pytest.approx(here, rel=1e-12)


@pytest.mark.parametrize("multi", [False, True])
def test_a_query_scores_the_same_alone_and_among_others(multi):
    query, database, query_labels, labels = random_problem(np.random.default_rng(9), n_bits=5)
    if multi:
        hot = np.array([[1, 1, 0], [0, 1, 0], [0, 1, 1]])
        query_labels, labels = hot[query_labels], hot[labels]
    options = {"n_bits": 5, "top": (3, 100), "balls": "macro"}
    together = evaluate(query, database, query_labels, labels, **options).to_dict()
    alone = [
        evaluate(query[i : i + 1], database, query_labels[i : i + 1], labels, **options).to_dict()
        for i in range(len(query))
    ]
    for name in together:
        if name != "queries" and not name.startswith("f1"):
            assert together[name] == pytest.approx(np.mean([one[name] for one in alone]))


@pytest.mark.parametrize("n_rows", [1, 2, 6, 7])
@pytest.mark.parametrize("n_items", [0, 10, 24, 25, 3_000])
def test_counting_two_rows_together_equals_counting_each(n_rows, n_items):
    values = np.random.default_rng(0).integers(0, 5, (n_rows, n_items)).astype(np.uint8)
    slow = [np.bincount(row, minlength=5) for row in values]
    np.testing.assert_array_equal(_count_in_rows(values, 5), slow)


def test_scores_do_not_depend_on_the_names_of_labels():
    query, database, query_labels, labels = random_problem(np.random.default_rng(1))
    results = [
        evaluate(query, database, name[query_labels], name[labels], n_bits=12)
        for name in (
            np.arange(3),
            np.array([-7, 2**40, 0]),
            np.array(["cat", "dog", "a much longer name"]),
            np.array(["cat", "dog", "bird"], dtype=object),
            np.eye(3, dtype=int),
            np.eye(3, dtype=bool),
            np.eye(3),
        )
    ]
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("n_concepts", [1, 2, 21, 64, 81])
def test_items_that_share_a_concept_are_relevant(n_concepts):
    rng = np.random.default_rng(n_concepts)
    query, database = rng.integers(0, 2, (30, 6)), rng.integers(0, 2, (50, 6))
    labels = [rng.integers(0, n_concepts, n) for n in (30, 50)]
    labels = [
        np.eye(n_concepts, dtype=int)[a] | np.eye(n_concepts, dtype=int)[a - 1] for a in labels
    ]
    result = evaluate(pack(query), pack(database), *labels, n_bits=6, radii=[1])
    distances, relevant = scored(query, database, *labels)
    assert result.queries_without_relevant == 30 - len(relevant)
    assert result.chance == pytest.approx(100 * np.mean(relevant))
    np.testing.assert_allclose(
        result.radius[1], 100 * np.array(reference.within_radius(distances, relevant, 1, "macro"))
    )


def test_queries_without_relevant_items_are_counted_and_change_nothing_else():
    query, database, query_labels, labels = random_problem(np.random.default_rng(2))
    more = np.concatenate([query, query[:5]]), np.concatenate([query_labels, np.full(5, 99)])
    here = evaluate(query, database, query_labels, labels, n_bits=12, top=[10]).to_dict()
    there = evaluate(more[0], database, more[1], labels, n_bits=12, top=[10]).to_dict()
    assert there == here | {"queries": 45, "queries_without_relevant": 5}


def test_k_above_the_database_size_means_all_items():
    problem = random_problem(np.random.default_rng(3))
    result = evaluate(*problem, n_bits=12, top=[300, 5000])
    assert result.at[300] == result.at[5000]
    assert result.at[300].map == pytest.approx(result.map)
    assert result.at[300].mp == pytest.approx(result.chance)


def test_codes_without_information_score_about_chance():
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 4, 400)
    constant = pack(np.zeros((400, 8), int))
    result = evaluate(constant[:50], constant, labels[:50], labels, n_bits=8, top=[20])
    assert result.at[20].mp == pytest.approx(result.chance)
    assert result.map_worst < result.map < result.map_best == 100


# Distances -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_bits", [1, 7, 8, 63, 64, 65, 130, 248, 256, 300])
def test_distances_and_scores_are_right_for_any_number_of_bits(n_bits):
    rng = np.random.default_rng(n_bits)
    query, database, *labels = random_problem(rng, 9, 40, n_bits)
    bits = unpack(query, n_bits), unpack(database, n_bits)
    slow = (bits[0][:, None] != bits[1]).sum(axis=2)
    fast = hamming_distances(query, database)
    np.testing.assert_array_equal(fast, slow)
    assert fast.dtype == (np.uint8 if n_bits <= 255 else np.uint16)
    radius = n_bits // 2
    result = evaluate(query, database, *labels, n_bits=n_bits, radii=[radius])
    expected = reference.within_radius(*scored(*bits, *labels), radius, "macro")
    np.testing.assert_allclose(result.radius[radius], 100 * np.array(expected))


def test_all_bits_may_differ():
    for n_bits in (8, 248, 256, 512):
        zeros, ones = (np.full((1, n_bits // 8), byte, np.uint8) for byte in (0, 255))
        assert hamming_distances(zeros, ones) == n_bits
        assert evaluate(zeros, ones, [0], [0], n_bits=n_bits).radius[2].empty == 100


def test_distances_agree_with_faiss():
    faiss = pytest.importorskip("faiss")
    rng = np.random.default_rng(5)
    query, database = (rng.integers(0, 256, (n, 12), dtype=np.uint8) for n in (20, 100))
    index = faiss.IndexBinaryFlat(96)
    index.add(database)
    distances, ids = index.search(query, 100)
    ours = np.take_along_axis(hamming_distances(query, database), ids, axis=1)
    np.testing.assert_array_equal(ours, distances)


# Bit health ------------------------------------------------------------------------------------


def test_bit_health_matches_numpy_on_unpacked_bits():
    rng = np.random.default_rng(6)
    bits = (rng.random((500, 70)) < rng.uniform(0.1, 0.9, 70)).astype(np.uint8)
    bits[:, 1] = bits[:, 0] ^ 1
    bits[250:] = bits[:250]
    health = bit_health(pack(bits), 70)
    correlation = np.abs(np.corrcoef(bits.T))[np.triu_indices(70, 1)]
    assert health.bit_balance == pytest.approx(
        100 * np.minimum(bits.mean(axis=0), 1 - bits.mean(axis=0)).mean()
    )
    assert health.bit_correlation == pytest.approx(100 * correlation.mean())
    assert health.distinct_codes == len(np.unique(bits, axis=0)) < 251
    assert health.quantisation_error is None


def test_constant_bits_are_unbalanced_and_uncorrelated():
    health = bit_health(pack([[0, 1, 0], [0, 1, 1]]), 3)
    assert (health.bit_balance, health.bit_correlation) == (pytest.approx(100 / 6), 0)
    assert bit_health(pack([[1]]), 1).bit_correlation == 0


def test_quantisation_error_is_the_distance_to_the_signs():
    rng = np.random.default_rng(7)
    Z = rng.standard_normal((200, 9))
    Z[3, 3] = 0  # bit 0, hence sign -1
    scaled = Z / np.abs(Z).mean()
    slow = [np.linalg.norm(z - np.where(z > 0, 1, -1)) / 3 for z in scaled]
    error = bit_health(pack(Z > 0), 9, Z).quantisation_error
    assert error == pytest.approx(100 * np.mean(slow))
    assert bit_health(pack(Z > 0), 9, 5 * Z.astype(np.float32)).quantisation_error == (
        pytest.approx(error, rel=1e-5)
    )
    assert bit_health(pack(Z > 0), 9, np.where(Z > 0, 3, -3)).quantisation_error == 0
    assert bit_health(pack(Z > 9), 9, 0 * Z).quantisation_error == 100


# The record ------------------------------------------------------------------------------------


def test_the_flat_record_has_these_keys_and_survives_json():
    problem = random_problem(np.random.default_rng(8))
    result = evaluate(*problem, n_bits=12, top=np.array([10]), radii=range(1, 2))
    flat = result.to_dict()
    assert list(flat) == [
        *("queries", "queries_without_relevant", "database", "chance"),
        *("map", "map_worst", "map_best"),
        *("map_at_10", "map_at_10_worst", "map_at_10_best"),
        *("mp_at_10", "mp_at_10_worst", "mp_at_10_best"),
        *("precision_r1", "recall_r1", "f1_r1", "empty_r1"),
        *("bit_balance", "bit_correlation", "distinct_codes"),
    ]
    assert json.loads(json.dumps(flat)) == flat
    with_error = evaluate(*problem, n_bits=12, projections=np.ones((300, 12)))
    assert "quantisation_error" in with_error.to_dict()


def test_the_worked_example_of_the_documentation_is_right():
    text = (Path(__file__).parents[1] / "docs" / "research" / "evaluation.md").read_text(
        encoding="utf-8"
    )
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    test = doctest.DocTestParser().get_doctest(example, {}, "evaluation.md", None, 0)
    assert doctest.DocTestRunner().run(test) == (0, 5)


# Errors ----------------------------------------------------------------------------------------

CODES = pack([[0, 1], [1, 0]])
NONE = np.zeros((0, 1), np.uint8)
HOT = [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query_labels": [0]}, r"\bquery_labels\b.*\(2,\)"),
        (
            {"database_labels": [[[0]], [[1]]]},
            r"\bdatabase_labels\b.*\(2, 1, 1\)",
        ),
        ({"database_labels": np.zeros((2, 0))}, r"\bdatabase_labels\b.*\(2, 0\)"),
        ({"query_labels": HOT}, r"\(2, 2\).*\(2,\)"),
        ({"query_labels": HOT, "database_labels": [[1], [1]]}, r"\(2, 2\).*\(2, 1\)"),
        ({"query_labels": [[1, 0.5], [0, 1]]}, r"\bquery_labels\b.*\b0\b.*\b1\b"),
        ({"query_labels": [[1, np.nan], [0, 1]]}, r"\bquery_labels\b.*\b1 of 2\b.*\bmissing\b"),
        ({"query_labels": [[3], [2]]}, r"\bquery_labels\b.*\b0\b.*\b1\b.*\(n,\)"),
        ({"query_labels": [["a"], ["b"]]}, r"\bquery_labels\b.*\b0\b.*\b1\b"),
        ({"query_labels": [0.0, 1.0]}, r"\bquery_labels\b.*\bfloat64\b.*astype\(int\)"),
        ({"query_labels": [np.nan, 1]}, r"\bquery_labels\b.*\b1 of 2\b.*\bmissing\b"),
        (
            {"database_labels": np.array(["a", None])},
            r"\bdatabase_labels\b.*\b1 of 2\b.*\bmissing\b",
        ),
        ({"query_labels": ["a", np.nan]}, r"\bquery_labels\b.*\b1 of 2\b.*\bmissing\b"),
        ({"query_labels": ["a", 1]}, r"\bquery_labels\b.*\b1 numbers\b.*\b1\b.*\b1 strings\b"),
        ({"query_labels": ["0", "1"]}, r"<U1.*\bint"),
        ({"query_labels": [5, 6]}, "relevant"),
        ({"query_codes": NONE, "query_labels": []}, r"\b0\b.*\b2\b"),
        ({"database_codes": NONE, "database_labels": []}, r"\b2\b.*\b0\b"),
        ({"radii": [0, -1]}, r"\bradii\b.*\[0, -1\]"),
        ({"top": [0]}, r"\btop\b.*\[0\]"),
        ({"ap_at_k": "all"}, r"\bap_at_k\b.*'relevant'.*'found'.*'all'"),
        ({"balls": "mean"}, r"\bballs\b.*'mean'"),
        ({"projections": np.ones((2, 3))}, r"\bprojections\b.*\(2, 2\).*\(2, 3\)"),
        ({"projections": [[1, np.nan], [0, 1]]}, r"\bprojections\b.*\bfinite\b"),
        ({"projections": [[1, np.inf], [0, 1]]}, r"\bprojections\b.*\bfinite\b"),
    ],
)
def test_invalid_arguments_are_named_in_the_error(arguments, message):
    right = {
        "query_codes": CODES,
        "database_codes": CODES,
        "query_labels": [0, 1],
        "database_labels": np.array([0, 1]),
        "n_bits": 2,
    }
    with pytest.raises(ValueError, match=message):
        evaluate(**right | arguments)


@pytest.mark.parametrize("score", [evaluate, evaluate_floats])
def test_signed_and_unsigned_labels_are_compared_exactly(score):
    # As float64 the first three are equal, and so are the last two.
    query = np.array([2**53, 2**53 + 1, 2**53 + 2, 2**63, 2**64 - 1], np.uint64)
    database = np.array([2**53 + 1, 2**53, -1, 2**63 - 1, 2**53 + 2], np.int64)
    rows = np.eye(5, dtype=np.float32)
    codes, options = (pack(rows > 0), {"n_bits": 5}) if score is evaluate else (rows, {})
    named = sorted({*query.tolist(), *database.tolist()})  # Python compares integers of any size
    names = [[named.index(label) for label in labels.tolist()] for labels in (query, database)]
    assert score(codes, codes, query, database, **options) == score(codes, codes, *names, **options)


def test_bit_health_needs_a_code():
    with pytest.raises(ValueError, match="row"):
        bit_health(NONE, 2)


def test_codes_of_different_width_have_no_distance():
    with pytest.raises(ValueError, match=r"\bdatabase_codes\b.*\b8\b.*\(1, 2\)"):
        hamming_distances(CODES, np.zeros((1, 2), np.uint8))

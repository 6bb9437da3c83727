"""Sources of training pairs, and their losses compared with loops over the definition."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antipodal.paper.losses import (
    are_similar,
    distance_of,
    expected_pairwise_loss,
    pairwise_loss,
    similarity_probabilities,
)
from antipodal.paper.pair_sampling import (
    AllPairsBatch,
    ExpectedBatch,
    ExpectedPairs,
    InBatchPairs,
    ListedBatch,
    ListedPairs,
)
from antipodal.paper.pairs import sample_pairs
from antipodal.validation import check_labels, check_pairs

seeds = st.integers(0, 2**32 - 1)
CLASSES = torch.tensor([0, 0, 1, 1, 2, 0])
CONCEPTS = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 1], [0, 0, 0]]).bool()


def share(labels, i, j):
    same = labels[i] == labels[j] if labels.ndim == 1 else labels[i] & labels[j]
    return bool(same.any())


def loss_by_loops(z, pairs, similar, margin, weight):
    pulls = [
        0.5 * np.sum((z[i] - z[j]) ** 2) for (i, j), s in zip(pairs, similar, strict=True) if s
    ]
    pushes = [
        0.5 * max(0, margin - np.linalg.norm(z[i] - z[j])) ** 2
        for (i, j), s in zip(pairs, similar, strict=True)
        if not s
    ]
    return weight * np.mean(pulls) + np.mean(pushes)


@pytest.mark.parametrize("labels", [CLASSES, CONCEPTS])
def test_the_loss_of_a_batch_is_the_mean_over_all_its_pairs(labels):
    z = torch.randn(len(labels), 4, dtype=torch.float64)
    pairs = [(i, j) for i in range(len(z)) for j in range(i)]
    similar = [share(labels, i, j) for i, j in pairs]
    expected = loss_by_loops(z.numpy(), pairs, similar, 3.0, 0.3)
    ours = AllPairsBatch(torch.arange(len(z)), labels).loss(z, 3.0, 0.3)
    assert ours.item() == pytest.approx(expected, rel=1e-9)


def test_the_gradient_of_all_pairs_has_the_bits_of_automatic_gradients():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (256,), generator=generator)
    z = torch.randn(256, 64, generator=generator).clamp(-1, 1)
    z[:20] = z[20:40]  # equal codes, some of them of one class
    z.requires_grad_()
    similar = are_similar(labels, labels)
    others = ~torch.eye(256, dtype=torch.bool)
    norms = z.square().sum(dim=1)
    distance = distance_of(norms[:, None] + norms[None, :] - 2 * z @ z.T)
    expected = pairwise_loss(distance, similar & others, ~similar, 10.7, 0.2)
    ours = AllPairsBatch(torch.arange(256), labels).loss(z, 10.7, 0.2)
    assert torch.equal(ours, expected)
    assert torch.equal(*(torch.autograd.grad(loss, z)[0] for loss in (ours, expected)))


@pytest.mark.parametrize(
    ("n_classes", "size"), [(2, 256), (10, 256), (21, 256), (22, 264), (85, 1020), (86, 1024)]
)
def test_the_batch_size_grows_with_the_number_of_classes_up_to_a_limit(n_classes, size):
    assert InBatchPairs(torch.arange(2000) % n_classes).defaults().batch_size == size


def test_the_batch_size_is_fixed_for_concepts_and_explicit_pairs():
    assert InBatchPairs(torch.eye(300).bool()).defaults().batch_size == 256
    listed = ListedPairs(torch.zeros(50, 2, dtype=torch.long), torch.arange(50) < 25)
    assert listed.defaults().batch_size == 256


def test_the_probability_of_a_shared_label_is_that_of_random_labels():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), 3)
    drawn = np.stack([rng.choice(4, 100_000, p=row) for row in p])
    shared = (drawn[:, None] == drawn).mean(axis=2)
    found = similarity_probabilities(torch.from_numpy(p), exclusive=True)
    off = ~np.eye(3, dtype=bool)
    np.testing.assert_allclose(found[off], shared[off], atol=0.01)
    q = rng.random((3, 4))
    has = rng.random((100_000, 3, 4)) < q
    shared = (has[:, :, None] & has[:, None]).any(axis=3).mean(axis=0)
    found = similarity_probabilities(torch.from_numpy(q), exclusive=False)
    np.testing.assert_allclose(found[off], shared[off], atol=0.01)


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_probabilities_of_one_have_the_loss_and_gradient_of_labels(weight):
    labels = torch.arange(20) % 4
    z = torch.randn(20, 6, dtype=torch.float64, requires_grad=True)
    plain = AllPairsBatch(torch.arange(20), labels).loss(z, 3.0, weight)
    (slope,) = torch.autograd.grad(plain, z)
    p = torch.nn.functional.one_hot(labels).double()
    batch = ExpectedBatch(torch.arange(20), p, True, torch.Generator())
    ours = batch.loss(z, 3.0, weight)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(torch.autograd.grad(ours, z)[0], slope)


def test_the_gradient_of_the_expected_loss_is_right():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(7, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    p = torch.rand(7, 3, dtype=torch.float64, generator=generator)

    def loss(z):
        return expected_pairwise_loss(z, similarity_probabilities(p, exclusive=False), 3.0, 0.4)

    assert torch.autograd.gradcheck(loss, (z,))


def test_the_expected_loss_is_the_mean_over_random_labels():
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(6, 4, dtype=torch.float64, generator=generator)
    s = torch.rand(6, 6, dtype=torch.float64, generator=generator)
    s = ((s + s.T) / 2).fill_diagonal_(0)
    distance = torch.cdist(z, z)
    pull = (s * distance.square()).sum() / (2 * s.sum())
    unlike = (1 - s).fill_diagonal_(0)
    push = (unlike * (3 - distance).clamp(min=0).square()).sum() / (2 * unlike.sum())
    ours = expected_pairwise_loss(z, s.clone(), 3.0, 0.4)
    assert ours.item() == pytest.approx((0.4 * pull + push).item(), rel=1e-9)


def test_uncertain_probabilities_and_few_classes_increase_the_weight_of_similar_pairs():
    def weight(p, **kind):
        return ExpectedPairs(p, **kind).defaults().similar_weight

    sure = torch.eye(10).repeat(100, 1)
    assert weight(sure, exclusive=True) == pytest.approx(0.27 * 0.1**0.5, rel=0.02)
    assert weight(0.5 * sure + 0.05, exclusive=True) > 2 * weight(sure, exclusive=True)
    assert weight(torch.eye(40).repeat(25, 1), exclusive=True) < weight(sure, exclusive=True)
    assert weight(torch.zeros(30, 4), exclusive=False) > 0


def test_an_epoch_of_expected_pairs_has_every_row_once():
    pairs = ExpectedPairs(torch.rand(100, 3), exclusive=False)
    rows = torch.cat([batch.rows for batch in pairs.batches(30, torch.Generator())])
    assert rows.sort().values.tolist() == list(range(100))


def test_the_loss_of_explicit_pairs_is_their_mean():
    z = torch.randn(8, 4, dtype=torch.float64)
    similar = torch.tensor([True, False, False, True])
    pairs = [(i, i + 4) for i in range(4)]
    expected = loss_by_loops(z.numpy(), pairs, similar.tolist(), 5.0, 1.0)
    ours = ListedBatch(torch.arange(8), similar).loss(z, 5.0, 1.0)
    assert ours.item() == pytest.approx(expected, rel=1e-9)


def test_gradient_steps_separate_dissimilar_codes_and_join_similar_ones():
    """With the sign printed in Eq. 12, dissimilar codes would move together."""
    z = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    optimizer = torch.optim.SGD([z], lr=0.05)
    batch = AllPairsBatch(torch.arange(3), torch.tensor([0, 0, 1]))
    for _ in range(400):
        optimizer.zero_grad()
        batch.loss(z, 3.0, 1.0).backward()
        optimizer.step()
    distance = torch.cdist(z, z)
    assert distance[0, 1] < 0.05
    assert distance[0, 2] > 2.8


def test_equal_codes_have_finite_gradients():
    z = torch.ones(4, 3, requires_grad=True)
    AllPairsBatch(torch.arange(4), torch.tensor([0, 0, 1, 1])).loss(z, 2.0, 1.0).backward()
    assert torch.isfinite(z.grad).all()


@settings(deadline=None)
@given(seed=seeds, n_pairs=st.integers(2, 60), multi=st.booleans())
def test_half_of_the_sampled_pairs_are_similar(seed, n_pairs, multi):
    labels = CONCEPTS if multi else CLASSES
    drawn = sample_pairs(labels.numpy(), n_pairs, np.random.default_rng(seed))
    assert len(drawn.rows) == n_pairs
    assert drawn.similar.sum() == n_pairs // 2
    for (i, j), s in zip(drawn.rows.tolist(), drawn.similar.tolist(), strict=True):
        assert i != j
        assert share(labels, i, j) == s


def test_sampling_of_pairs_that_do_not_exist_ends():
    all_alike = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]], bool)
    with pytest.raises(ValueError, match=r"\b0\b.*\bpairs\b"):
        sample_pairs(all_alike, 10, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"\b4\b.*\blabel"):
        sample_pairs(np.arange(4), 10, np.random.default_rng(0))


def test_every_similar_pair_can_be_sampled():
    pairs = sample_pairs(CLASSES.numpy(), 2000, np.random.default_rng(0))
    drawn = {tuple(p) for p in pairs.rows[pairs.similar].tolist()}
    assert drawn == {(i, j) for i in range(6) for j in range(6) if i != j and share(CLASSES, i, j)}


@given(seed=seeds, size=st.integers(2, 9))
def test_an_epoch_has_every_row_or_pair_once(seed, size):
    generator = torch.Generator().manual_seed(seed)
    rows = [b.rows for b in InBatchPairs(CLASSES).batches(size, generator)]
    assert sorted(torch.cat(rows).tolist()) == list(range(6))
    assert max(map(len, rows)) <= size
    pairs = torch.tensor([[0, 1], [2, 3], [4, 5], [1, 4], [0, 5]])
    similar = torch.tensor([True, True, False, False, True])
    dealt = []
    for batch in ListedPairs(pairs, similar).batches(size, generator):
        left, right = batch.rows.chunk(2)
        dealt += zip(left.tolist(), right.tolist(), batch.similar.tolist(), strict=True)
    expected = [(*p, s) for p, s in zip(pairs.tolist(), similar.tolist(), strict=True)]
    assert sorted(dealt) == sorted(expected)


def test_similarity_is_equality_or_a_shared_concept():
    for labels in (CLASSES, CONCEPTS):
        table = are_similar(labels, labels)
        n = len(labels)
        assert table.tolist() == [[share(labels, i, j) for j in range(n)] for i in range(n)]


def test_large_labels_are_distinguished_or_refused():
    large = np.array([2**64 - 1, 2**64 - 2, 2**64 - 1, 2**64 - 2], np.uint64)
    np.testing.assert_array_equal(check_labels(large, 4), [1, 0, 1, 0])
    for rounded in (large.astype(np.float64), np.float32([2**24, 1, 1, 0]), [2**63, -1, -1, 0]):
        with pytest.raises(ValueError, match=r"\bfloat.*\bintegers\b"):
            check_labels(rounded, 4)
    assert check_labels(np.float32([2**24 - 1, 1, 1, 0]), 4).tolist() == [2, 1, 1, 0]


def test_labels_may_be_words_and_become_numbers():
    np.testing.assert_array_equal(check_labels(["b", "a", "b"], 3), [1, 0, 1])


NAMES = np.array(["cat", "dog", "owl"] * 40, object)


def with_gaps(missing):
    """Return 120 labels of three classes, every third "dog" replaced by a missing label."""
    labels = NAMES.copy()
    labels[1::9] = missing
    return labels


@pytest.mark.parametrize(
    "y",
    [
        pytest.param(with_gaps(None), id="None"),
        pytest.param(with_gaps(float("nan")), id="NaN"),
        pytest.param(with_gaps(np.float32("nan")), id="float32 NaN"),
        pytest.param(with_gaps(np.datetime64("NaT")), id="NaT"),
        pytest.param(with_gaps(float("nan")).tolist(), id="list, which NumPy turns into strings"),
        pytest.param(with_gaps(float("nan"))[:, None], id="column"),
        pytest.param(np.where(np.arange(120) % 9 == 1, np.nan, np.arange(120) % 3), id="floats"),
        pytest.param(
            np.where(np.arange(120) % 9 == 1, np.datetime64("NaT"), np.datetime64("2026-01-01")),
            id="dates",
        ),
        pytest.param(
            np.ma.array(np.arange(120) % 3, mask=np.arange(120) % 9 == 1), id="masked array"
        ),
        pytest.param(
            np.where(np.arange(120)[:, None] % 9 == 1, np.nan, np.eye(3)[np.arange(120) % 3]),
            id="multi-hot",
        ),
    ],
)
def test_missing_labels_are_counted_and_refused(y):
    with pytest.raises(ValueError, match=r"\b14 of 120\b.*\brow 1\b.*`unlabelled`"):
        check_labels(y, 120)


@pytest.mark.parametrize(
    "dtype", ["object", "string", "category", "Int64", "Float64", "datetime64"]
)
def test_missing_labels_of_pandas_columns_are_refused(dtype):
    pandas = pytest.importorskip("pandas")
    numbers = dtype in ("Int64", "Float64")
    values = np.where(NAMES == "cat", 1, 2) if numbers else NAMES
    if dtype == "datetime64":
        values, dtype = ["2026-01-01", "2026-01-02", "2026-01-03"] * 40, "datetime64[ns]"
    column = pandas.Series(values).astype(dtype)
    assert len(np.unique(check_labels(column, 120))) == (2 if numbers else 3)
    with pytest.raises(ValueError, match=r"\b14 of 120\b.*\bmissing\b"):
        check_labels(column.mask(np.arange(120) % 9 == 1), 120)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([1, 1, 1, 1], "class"),
        ([1, 2, 3, 4], "pairs"),
        ([1, 2, 3], r"\b4\b.*\b3\b"),
        ([1.5, 2.5, 1.5, 2.5], "real numbers"),
        ([1.0, np.inf, 1.0, 2.0], r"\b1\b.*\binfinite\b"),
        (np.array([1, 2.5, 1, 2.5], object), "real numbers"),
        (["a", 1, "a", 1], r"\b2 numbers\b.*\b1\b.*\b2 strings\b.*'a'"),
        (np.array(["a", 1, "a", "b"], object), r"\b1 numbers\b.*\b1\b.*\b3 strings\b.*'a'"),
        ([[0, 2], [1, 0], [1, 0], [0, 1]], r"\b0\b.*\b1\b"),
        ([[1, 0], [1, 0], [1, 1], [1, 0]], r"\bconcept 0\b"),
        ([[1, 0], [0, 1], [0, 0], [0, 0]], "rows"),
        (np.zeros((4, 2, 2)), r"\(4, 2, 2\)"),
    ],
)
def test_unusable_labels_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        check_labels(y, 4)


@pytest.mark.parametrize(
    ("pairs", "similar", "error", "message"),
    [
        ([[0, 4], [1, 2]], [1, 0], ValueError, r"\b0\b.*\b3\b.*\b0\b.*\b4\b"),
        ([[0, -1], [1, 2]], [1, 0], ValueError, r"\b0\b.*\b3\b.*-1\b.*\b2\b"),
        ([[0, 1], [1, 2]], [1, 1], ValueError, r"\b2\b.*\bsimilar\b"),
        ([[0, 1], [1, 2]], [0, 0], ValueError, r"\b2\b.*\bdissimilar\b"),
        ([[0, 1], [1, 2]], [1], ValueError, r"\bsimilar\b"),
        ([[0, 1], [1, 2]], [1, 7], ValueError, r"\bsimilar\b"),
        ([[0.0, 1.0]], [1], TypeError, r"\bpairs\b.*\bfloat64\b"),
        ([0, 1], [1], ValueError, r"\(P, 2\)"),
        (np.empty((0, 2), int), [], ValueError, "P ≥ 1"),
    ],
)
def test_unusable_pairs_are_refused(pairs, similar, error, message):
    with pytest.raises(error, match=message):
        check_pairs(pairs, similar, 4)

"""`OrthoHash` and `CSQ`: networks trained towards a fixed code per class."""

import inspect
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits, make_multilabel_classification

from antipodal import CSQ, ITQ, AntipodalError, NNHash, OrthoHash, evaluate, load
from antipodal.paper.centres import (
    CentrePairs,
    central_loss,
    class_centres,
    cosine_loss,
    random_centres,
)
from antipodal.paper.pair_sampling import ExpectedPairs, InBatchPairs
from networks import network

KINDS = [OrthoHash, CSQ]
QUICK = {"scaling": "each", "random_state": 0}
X, Y = load_digits(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(X))  # the digits are sorted by writer
X, Y = X[ORDER], Y[ORDER]
LABELLED, UNLABELLED, QUERY = slice(0, 200), slice(200, 1400), slice(1400, None)


def distances(centres):
    found = (centres[:, None] != centres[None]).sum(axis=2)
    return found[~np.eye(len(centres), dtype=bool)]


def score(hasher, n_bits=32):
    codes, rest = hasher.encode(X), slice(0, 1400)
    return evaluate(codes[QUERY], codes[rest], Y[QUERY], Y[rest], n_bits=n_bits).map


@given(power=st.integers(0, 6), share=st.floats(0, 1), seed=st.integers(0, 2**32 - 1))
def test_hadamard_centres_differ_in_half_of_the_bits_or_are_opposite(power, share, seed):
    n_bits = 2**power
    n_classes = 1 + round(share * (2 * n_bits - 1))
    centres = class_centres(n_classes, n_bits, np.random.default_rng(seed))
    assert centres.shape == (n_classes, n_bits)
    assert set(np.unique(centres)) <= {-1, 1}
    found = distances(centres)
    opposite = 2 * max(0, n_classes - n_bits)  # both ways
    assert (found == n_bits).sum() == opposite
    assert (found == n_bits / 2).sum() == len(found) - opposite


@pytest.mark.parametrize(("n_classes", "n_bits"), [(10, 48), (200, 64), (20, 4), (3, 1)])
def test_centres_are_random_without_a_hadamard_matrix(n_classes, n_bits):
    draws = [class_centres(n_classes, n_bits, np.random.default_rng(i)) for i in range(50)]
    assert all(centres.shape == (n_classes, n_bits) for centres in draws)
    assert set(np.unique(draws)) == {-1, 1}
    assert np.mean([distances(centres).mean() for centres in draws]) / n_bits == pytest.approx(
        0.5, abs=0.06
    )


@pytest.mark.parametrize(("n_classes", "n_bits"), [(16, 4), (9, 4), (8, 3), (1000, 12)])
def test_short_centres_are_distinct(n_classes, n_bits):
    centres = class_centres(n_classes, n_bits, np.random.default_rng(0))
    assert len(np.unique(centres, axis=0)) == n_classes


def example(rng, *, exclusive, certain, n_rows=6, n_classes=5, n_bits=8):
    """Return codes, class probabilities and centres in double precision; one row has no concept."""
    z = np.tanh(rng.standard_normal((n_rows, n_bits)))
    p = rng.random((n_rows, n_classes))
    if exclusive:
        p /= p.sum(axis=1, keepdims=True)
    if certain:
        p = (p == p.max(axis=1, keepdims=True)) if exclusive else p > 0.5
    if not exclusive:
        p[-1] = 0
    return z, p.astype(np.float64), random_centres(n_classes, n_bits, rng).astype(np.float64)


def slow_cosine_loss(z, p, h, s, m):
    losses = []
    for row, probability in zip(z, p, strict=True):
        cosines = [row @ c / np.linalg.norm(row) / np.linalg.norm(c) for c in h]
        exponents = [np.exp(s * (cos - m * b)) for cos, b in zip(cosines, probability, strict=True)]
        losses.append(
            -sum(
                b / max(1, probability.sum()) * np.log(e / sum(exponents))
                for b, e in zip(probability, exponents, strict=True)
            )
        )
    return np.mean(losses)


def slow_central_loss(z, p, h, ties, weight, exclusive):
    losses = []
    for row, probability in zip(z, p, strict=True):
        total = 0.0
        for i, value in enumerate(row):
            q = (value + 1) / 2
            vote = sum(b * c for b, c in zip(probability, h[:, i], strict=True))
            if exclusive:  # the mean over classes
                apart = -sum(
                    b * np.log(q if c > 0 else 1 - q)
                    for b, c in zip(probability, h[:, i], strict=True)
                )
            else:
                bit = ties[i] > 0 if vote == 0 else vote > 0
                apart = -np.log(q if bit else 1 - q)
            total += apart + weight * np.log(np.cosh(abs(value) - 1))
        losses.append(min(1, probability.sum()) * total / len(row))
    return np.mean(losses)


@pytest.mark.parametrize("certain", [True, False])
@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_losses_match_a_slow_reference_and_gradients_are_right(exclusive, certain, seed):
    rng = np.random.default_rng(seed)
    z, p, h = example(rng, exclusive=exclusive, certain=certain)
    ties = random_centres(1, 8, rng)[0].astype(np.float64)
    codes, probabilities, centres = (torch.from_numpy(array) for array in (z, p, h))
    codes.requires_grad_()
    cosine = partial(
        cosine_loss, probabilities=probabilities, centres=centres, scale=5.0, margin=0.3
    )
    central = partial(
        central_loss, probabilities=probabilities, centres=centres, ties=torch.from_numpy(ties),
        quantization_weight=0.7, exclusive=exclusive,
    )  # fmt: skip
    assert cosine(codes).item() == pytest.approx(slow_cosine_loss(z, p, h, 5.0, 0.3))
    assert central(codes).item() == pytest.approx(
        slow_central_loss(z, p, h, ties, 0.7, exclusive), abs=1e-12
    )
    assert torch.autograd.gradcheck(cosine, codes)
    assert torch.autograd.gradcheck(central, codes)


def test_without_a_margin_probabilities_give_the_expected_loss():
    z, p, h = example(np.random.default_rng(0), exclusive=True, certain=False)
    codes, centres = torch.from_numpy(z), torch.from_numpy(h)
    losses = [
        partial(cosine_loss, centres=centres, scale=4.0, margin=0.0),
        partial(central_loss, centres=centres, ties=centres[0], quantization_weight=0.5,
                exclusive=True),
    ]  # fmt: skip
    for loss in losses:
        expected = 0.0
        for row, probability in zip(codes, p, strict=True):
            for c, chance in enumerate(probability):
                expected += chance * loss(row[None], torch.eye(5).double()[c][None]).item() / 6
        assert loss(codes, torch.from_numpy(p)).item() == pytest.approx(expected)


def test_codes_that_are_the_centres_have_the_least_loss():
    centres = torch.from_numpy(class_centres(8, 16, np.random.default_rng(0))).double()
    labels = torch.eye(8).double()
    central = partial(central_loss, centres=centres, ties=centres[0], quantization_weight=1.0,
                      exclusive=True)  # fmt: skip
    assert central(centres, labels).item() == 0
    assert central(0.9 * centres, labels).item() > 0
    cosine = partial(cosine_loss, centres=centres, scale=8.0, margin=0.0)
    assert cosine(centres, labels).item() == pytest.approx(np.log1p(7 * np.exp(-8)))  # cos = 0


@pytest.mark.parametrize("uses_probabilities", [True, False])
def test_batches_are_those_of_the_pairs(uses_probabilities):
    labels = torch.arange(100) % 5
    loss = partial(cosine_loss, centres=torch.ones(5, 4), scale=1.0, margin=0.0)
    if uses_probabilities:
        known = torch.nn.functional.one_hot(labels).float()
        pairs = ExpectedPairs(known, exclusive=True)
    else:
        known, pairs = labels, InBatchPairs(labels)
    centred = CentrePairs(pairs, known, loss)
    assert centred.defaults() == pairs.defaults()

    def deal(source):
        return list(source.batches(32, torch.Generator().manual_seed(1)))

    for ours, theirs in zip(deal(centred), deal(pairs), strict=True):
        torch.testing.assert_close(ours.rows, theirs.rows)
        torch.testing.assert_close(ours.probabilities.argmax(dim=1), labels[ours.rows])
        assert ours.probabilities.dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
def test_training_minimises_the_loss_of_the_centres(kind):
    rows, labels = X[:90], Y[:90]
    hasher = network(kind, 12, n_epochs=1, batch_size=90, learning_rate=1e-12, dropout=0.0, **QUICK)
    z = hasher.fit(rows, labels).project(rows).astype(np.float64)
    h, p = hasher.centres_.astype(np.float64), np.eye(10)[labels]
    expected = (
        slow_cosine_loss(z, p, h, np.sqrt(2) * np.log(10), 0.2)
        if kind is OrthoHash
        else slow_central_loss(z, p, h, h[0], 1e-4, exclusive=True)
    )
    assert hasher.loss_curve_[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_encoder_and_budget_are_those_of_nnhash(kind):
    ours, theirs = kind().get_params(), NNHash().get_params()
    assert theirs.items() <= ours.items()
    settings = {"feature_map": "none", "n_epochs": 1, **QUICK}
    fitted = [network(each, 20, **settings).fit(X[:100], Y[:100]) for each in (kind, NNHash)]
    assert type(fitted[0].encoder_) is type(fitted[1].encoder_)
    first, *others = inspect.signature(kind).parameters.values()
    assert first.name == "n_bits"
    assert all(p.kind is p.KEYWORD_ONLY for p in others)


@pytest.mark.parametrize("kind", KINDS)
def test_on_digits_codes_beat_itq_and_are_close_to_their_centre(kind):
    hasher = network(kind, 32, n_epochs=30, n_anchors=200, **QUICK).fit(X[LABELLED], Y[LABELLED])
    alone = score(hasher)
    assert alone > score(ITQ(32, random_state=0).fit(X[:1400])) + 20
    nearest = (2.0 * hasher.transform(X[QUERY]) - 1) @ hasher.centres_.T
    assert (nearest.argmax(axis=1) == Y[QUERY]).mean() > 0.85
    taught = network(kind, 32, n_epochs=30, **QUICK).fit(
        X[LABELLED], Y[LABELLED], unlabelled=X[UNLABELLED]
    )
    assert score(taught) > alone + 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_unlabelled", [0, 150])
def test_concepts_are_learned_with_rows_without_a_concept(kind, n_unlabelled):
    rows, concepts = make_multilabel_classification(
        700, 12, n_classes=5, n_labels=2, allow_unlabeled=True, random_state=0
    )
    assert (concepts.sum(axis=1) == 0).any()
    options = {"unlabelled": rows[350:500]} if n_unlabelled else {}
    hasher = network(kind, 16, n_epochs=20, n_anchors=100, **QUICK)
    codes = hasher.fit(rows[:350], concepts[:350], **options).encode(rows)
    assert hasher.centres_.shape == (5, 16)
    queries, rest = codes[500:], codes[:500]
    learned = evaluate(queries, rest, concepts[500:], concepts[:500], n_bits=16).map
    itq = ITQ(12, random_state=0).fit(rows[:500]).encode(rows)
    assert learned > evaluate(itq[500:], itq[:500], concepts[500:], concepts[:500], n_bits=12).map


@pytest.mark.parametrize("kind", KINDS)
def test_more_classes_than_twice_the_bits_are_learned(kind):
    for n_bits, least in ((8, 60), (4, 30)):
        hasher = network(kind, n_bits, n_epochs=80, n_anchors=100, **QUICK).fit(
            X[LABELLED], Y[LABELLED]
        )
        assert hasher.centres_.shape == (10, n_bits)
        assert score(hasher, n_bits) > least


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_may_occur_in_held_out_rows_only(kind):
    labels = np.where(np.arange(100) < 99, Y[:100] % 3, 3)  # the last class has one row
    for seed in range(6):
        hasher = network(
            kind,
            8,
            n_epochs=2,
            validation_fraction=0.4,
            scaling="each",
            n_anchors=20,
            random_state=seed,
        )
        hasher.fit(X[:100], labels, unlabelled=X[100:200])
        assert len(hasher.centres_) == 4
        assert np.isfinite(hasher.validation_curve_).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_has_its_centres_and_training_resumes(kind, tmp_path):
    def fit(checkpoint=None, **changed):
        hasher = network(kind, 16, n_epochs=4, n_hidden=20, **QUICK, **changed)
        options = {"unlabelled": X[UNLABELLED], "checkpoint": checkpoint}
        return hasher.fit(X[LABELLED], Y[LABELLED], **options)

    hasher = fit()
    hasher.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert loaded.get_params() == hasher.get_params()
    np.testing.assert_array_equal(loaded.encode(X), hasher.encode(X))
    np.testing.assert_array_equal(loaded.centres_, hasher.centres_)
    fit(tmp_path / "state")
    np.testing.assert_array_equal(fit(tmp_path / "state").encode(X), hasher.encode(X))
    own = {"cosine_margin": 0.1} if kind is OrthoHash else {"quantization_weight": 0.5}
    with pytest.raises(AntipodalError, match=r"\bstate\b.*\bcheckpoint\b"):
        fit(tmp_path / "state", **own)


@pytest.mark.parametrize("kind", KINDS)
def test_explicit_pairs_are_refused(kind):
    with pytest.raises(ValueError, match=rf"\b{kind.__name__}\b.*\bpairs\b.*\blabels\b"):
        kind(8).fit_pairs(X[:20], [[0, 1], [1, 2]], [1, 0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss", lambda codes, targets: codes.mean()),
        ("pairs", "sampled"),
        ("margin", 1.0),
        ("similar_weight", 1.0),
        ("centres", True),
    ],
)
def test_settings_of_pairs_are_refused(kind, name, value):
    with pytest.raises(ValueError, match=rf"\b{kind.__name__}\b.*\b{name}\b"):
        network(kind, 8, **{name: value}).fit(X[:50], Y[:50])


@pytest.mark.parametrize(
    ("hasher", "message"),
    [
        (OrthoHash(8, nested=(4,)), r"\bOrthoHash\b.*\(4,\)"),
        (OrthoHash(8, scale=0.0), r"\bscale\b.*\b0\.0\b"),
        (OrthoHash(8, scale=float("inf")), r"\bscale\b.*\binf\b"),
        (OrthoHash(8, cosine_margin=-0.1), r"\bcosine_margin\b.*\[0, 1\).*-0\.1\b"),
        (OrthoHash(8, cosine_margin=1.0), r"\bcosine_margin\b.*\[0, 1\).*\b1\.0\b"),
        (CSQ(8, quantization_weight=-1.0), r"\bquantization_weight\b.*-1\.0\b"),
        (CSQ(8, quantization_weight=float("nan")), r"\bquantization_weight\b.*\bnan\b"),
    ],
)
def test_invalid_settings_are_refused(hasher, message):
    with pytest.raises(ValueError, match=message):
        hasher.fit(X[:50], Y[:50])

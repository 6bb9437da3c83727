import numpy as np
import pytest
from sklearn.datasets import load_digits, make_multilabel_classification
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from antipodal import evaluate, unpack
from antipodal.baselines.onehothash import OneHotHash
from antipodal.evaluation.float_ranking import evaluate_floats
from antipodal.hashers.classifierlsh import ClassifierLSH
from antipodal.hashers.pipeline import Pipeline
from antipodal.hashers.pseudo_labels import _calibrate, fit_svm, svm_probabilities

X, Y = load_digits(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(X))  # rows are ordered by writer
X, Y = X[ORDER], Y[ORDER]
TRAIN, TEST = slice(0, 500), slice(500, 1100)
CONCEPT_X, CONCEPTS = make_multilabel_classification(
    400, 12, n_classes=5, n_labels=2, allow_unlabeled=False, random_state=0
)


@pytest.fixture(scope="module")
def lsh():
    return ClassifierLSH(64, random_state=0).fit(X[TRAIN], Y[TRAIN])


@pytest.fixture(scope="module")
def one_hot():
    return OneHotHash(64, random_state=0).fit(X[TRAIN], Y[TRAIN])


def test_log_odds_are_scikit_learns_decision_values_up_to_slope_and_offsets():
    scaler = StandardScaler().fit(X[TRAIN])
    svm = fit_svm(scaler.transform(X[TRAIN]), Y[TRAIN], 5.0, 0.02, np.random.RandomState(0))
    P = Pipeline(svm_probabilities(svm)).values(scaler.transform(X[TEST]), 10).astype(np.float64)
    machines = [
        SVC(C=5.0, gamma=0.02).fit(scaler.transform(X[TRAIN]), Y[TRAIN] == c) for c in range(10)
    ]
    F = np.stack([m.decision_function(scaler.transform(X[TEST])) for m in machines], axis=1)
    log_odds = np.log(P[:, 1:] / P[:, :1])
    design = np.stack([(F[:, 1:] - F[:, :1]).ravel(), np.ones(log_odds.size)], axis=1)
    columns = np.kron(np.ones((len(F), 1)), np.eye(9))
    design = np.hstack([design[:, :1], columns])
    solution = np.linalg.lstsq(design, log_odds.ravel(), rcond=None)[0]
    np.testing.assert_allclose(design @ solution, log_odds.ravel(), atol=2e-3)
    assert solution[0] > 0


def test_probabilities_sum_to_one_predict_well_and_are_calibrated(lsh):
    P = lsh.class_probabilities(X[TEST])
    np.testing.assert_allclose(P.sum(axis=1), 1, atol=1e-5)
    right = P.argmax(axis=1) == Y[TEST]
    theirs = make_pipeline(StandardScaler(), SVC(C=5.0)).fit(X[TRAIN], Y[TRAIN])
    assert right.mean() > theirs.score(X[TEST], Y[TEST]) - 0.02  # one-vs-one, without calibration
    assert P.max(axis=1).mean() == pytest.approx(right.mean(), abs=0.05)


@pytest.mark.parametrize("multilabel", [False, True])
def test_calibration_recovers_the_slope_and_the_offsets_that_labels_were_drawn_with(multilabel):
    rng = np.random.default_rng(0)
    F, offsets = rng.standard_normal((20000, 3)), np.array([0.5, -0.5, 0.0])
    S = 1.5 * F + offsets
    if multilabel:
        labels = rng.random(S.shape) < 1 / (1 + np.exp(-S))
    else:
        labels = np.eye(3, dtype=bool)[(S + rng.gumbel(size=S.shape)).argmax(axis=1)]
    t, o = _calibrate(F, labels, multilabel=multilabel)
    assert t == pytest.approx(1.5, abs=0.06)
    np.testing.assert_allclose(o - o.mean(), offsets - offsets.mean(), atol=0.06)


def test_one_hot_codes_are_equal_within_and_equally_far_between_predicted_classes(lsh, one_hot):
    predicted = lsh.class_probabilities(X[TEST]).argmax(axis=1)  # of the same SVMs and folds
    bits = one_hot.transform(X[TEST]).astype(int)
    distance = (bits[:, None] != bits).sum(axis=2)
    np.testing.assert_array_equal(distance == 0, predicted[:, None] == predicted)
    assert set(np.unique(distance)) == {0, 12}  # ⌊64 / 10⌋ bits per class


@pytest.mark.parametrize("n_bits", [4, 9, 10, 19])
def test_one_hot_codes_distinguish_all_classes_at_any_sufficient_length(n_bits):
    codes = OneHotHash(n_bits, random_state=0).fit(X[TRAIN], Y[TRAIN]).encode(X[TRAIN])
    assert len(np.unique(unpack(codes, n_bits), axis=0)) == 10


def test_too_few_bits_for_the_classes_are_rejected():
    with pytest.raises(ValueError, match=r"\b3 bit.*\b8 codes\b.*\b10 classes\b"):
        OneHotHash(3).fit(X[TRAIN], Y[TRAIN])


def test_codes_of_probabilities_rank_between_one_hot_codes_and_the_probabilities(lsh, one_hot):
    def score(hasher):
        return evaluate(hasher.encode(X[TEST]), hasher.encode(X), Y[TEST], Y, n_bits=64).map

    P = lsh.class_probabilities(X)
    ceiling = evaluate_floats(P[TEST], P, Y[TEST], Y).map
    assert score(one_hot) < score(lsh) < ceiling


def test_bits_are_signs_of_projected_centred_probabilities(lsh):
    P = lsh.class_probabilities(X[TEST])
    values = (P - lsh.mean_probabilities_) @ lsh.hyperplanes_
    np.testing.assert_allclose(lsh.project(X[TEST]), values, atol=1e-5)
    np.testing.assert_allclose(
        lsh.mean_probabilities_, lsh.class_probabilities(X[TRAIN]).mean(axis=0), atol=1e-6
    )


def test_several_concepts_per_row_are_predicted():
    hasher = OneHotHash(10, random_state=0).fit(CONCEPT_X[:300], CONCEPTS[:300])
    P, bits = hasher.class_probabilities(CONCEPT_X[300:]), hasher.transform(CONCEPT_X[300:])
    np.testing.assert_array_equal(bits[:, :5], bits[:, 5:])
    np.testing.assert_array_equal(bits[:, :5], (P > 0.5) | (P.max(axis=1, keepdims=True) == P))
    assert (bits.sum(axis=1) > 2).any()
    assert np.mean(bits[:, :5] == CONCEPTS[300:]) > 0.7


def test_concepts_can_be_coded_by_projections_and_by_fewer_bits_than_concepts():
    lsh = ClassifierLSH(16, random_state=0).fit(CONCEPT_X, CONCEPTS)
    assert lsh.transform(CONCEPT_X).shape == (400, 16)
    short = OneHotHash(3, random_state=0).fit(CONCEPT_X, CONCEPTS)
    best = short.class_probabilities(CONCEPT_X).argmax(axis=1)
    np.testing.assert_array_equal(short.transform(CONCEPT_X) @ [4, 2, 1], best)


def test_a_class_with_one_row_and_a_concept_that_all_rows_have_can_be_learned():
    y = Y[:100].copy()
    y[7] = 10
    assert ClassifierLSH(8, random_state=0).fit(X[:100], y).class_probabilities(X).shape[1] == 11
    concepts = CONCEPTS[:100].copy()
    concepts[:, 0], concepts[0] = 1, [0, 1, 0, 0, 0]
    hasher = ClassifierLSH(8, random_state=0).fit(CONCEPT_X[:100], concepts)
    assert hasher.class_probabilities(CONCEPT_X)[:, 0].mean() > 0.9


@pytest.mark.parametrize("kind", [OneHotHash, ClassifierLSH])
def test_labels_and_sensible_settings_are_required(kind, lsh):
    with pytest.raises(ValueError, match=r"\by\b.*\bNone\b"):
        kind(8).fit(X)
    for setting in ({"C": 0.0}, {"gamma": -1.0}):
        with pytest.raises(
            ValueError, match=rf"\b{next(iter(setting))}\b.*{next(iter(setting.values()))}"
        ):
            kind(8, **setting).fit(X, Y)
    with pytest.raises(ValueError, match="NaN"):
        lsh.class_probabilities(np.full((1, 64), np.inf))

"""Training loop: reproducibility, checkpoints and early stopping."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from antipodal import DeepLinf, Training, load
from antipodal.errors import ModelFileError
from antipodal.paper.encoders import LinfEncoder
from networks import network


class Stopped(Exception):  # noqa: N818
    """Raised by a progress callback to interrupt training."""


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:300], y[:300]


def stop_after(epoch):
    def progress(done):
        if done.number == epoch:
            raise Stopped

    return progress


def weights(hasher):
    return {name: value.numpy() for name, value in hasher.encoder_.state_dict().items()}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimizer": "sgd", "learning_rate": 0.01, "schedule": "constant"},
        {"pairs": "sampled", "n_pairs": 500},
        {"validation_fraction": 0.2},
        {"noise": 1.0},
    ],
)
@pytest.mark.usefixtures("two_threads")
def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(tmp_path, digits, settings):
    settings = {"n_bits": 12, "n_epochs": 14, "batch_size": 64, "random_state": 3} | settings
    whole = network(DeepLinf, **settings).fit(*digits)
    file = tmp_path / "run.checkpoint"
    with pytest.raises(Stopped):
        network(DeepLinf, **settings).fit(*digits, checkpoint=file, progress=stop_after(12))
    epochs = []
    resumed = network(DeepLinf, **settings).fit(*digits, checkpoint=file, progress=epochs.append)
    assert epochs[0].number == 11  # checkpoints are written every ten epochs
    np.testing.assert_array_equal(resumed.loss_curve_, whole.loss_curve_)
    for name, value in weights(whole).items():
        np.testing.assert_array_equal(weights(resumed)[name], value)


def test_the_default_batch_size_grows_with_the_number_of_classes():
    X, y = np.random.default_rng(0).normal(size=(360, 5)), np.arange(360) % 30

    def curve(**settings):
        return network(DeepLinf, 8, n_epochs=2, random_state=0, **settings).fit(X, y).loss_curve_

    np.testing.assert_array_equal(curve(), curve(batch_size=360))
    assert not np.array_equal(curve(), curve(batch_size=256))


def test_noise_is_relative_to_the_deviation_of_each_feature():
    rng = np.random.default_rng(0)
    deviations = np.array([0.1, 1.0, 20.0])
    X = rng.normal(3.0, deviations, size=(4000, 3))
    inputs = []

    class Watched(LinfEncoder):
        def forward(self, y):
            inputs.append(y.detach().numpy().copy())
            return super().forward(y)

    class Hasher(DeepLinf):
        def new_encoder(self, n_features, n_bits, n_stages, seed=0):
            return Watched(n_features, n_bits, n_stages)

    options = {"n_epochs": 1, "learning_rate": 1e-12, "dropout": 0.0, "batch_size": 4000}
    training = Training(noise=0.5, **options)
    hasher = Hasher(4, feature_map="none", scaling="none", training=training, random_state=0)
    hasher.fit(X, np.arange(4000) % 2)
    seen = np.concatenate(inputs)  # the rows in random order, once
    assert seen.shape == X.shape
    np.testing.assert_allclose(seen.mean(axis=0), X.mean(axis=0), atol=0.05 * deviations.max())
    np.testing.assert_allclose(seen.std(axis=0), np.sqrt(1.25) * deviations, rtol=0.05)


def test_a_checkpoint_of_another_run_is_refused(tmp_path, digits):
    X, y = digits
    file = tmp_path / "run.checkpoint"
    DeepLinf(8, training=Training(n_epochs=10), random_state=0).fit(X, y, checkpoint=file)
    for other in (
        lambda: DeepLinf(8, training=Training(n_epochs=10), random_state=1).fit(
            X, y, checkpoint=file
        ),
        lambda: DeepLinf(8, training=Training(n_epochs=11), random_state=0).fit(
            X, y, checkpoint=file
        ),
        lambda: DeepLinf(9, training=Training(n_epochs=10), random_state=0).fit(
            X, y, checkpoint=file
        ),
        lambda: DeepLinf(8, training=Training(n_epochs=10), random_state=0).fit(
            X + 1e-3, y, checkpoint=file
        ),
        lambda: DeepLinf(8, training=Training(n_epochs=10), random_state=0).fit(
            X, y[::-1], checkpoint=file
        ),
    ):
        with pytest.raises(ModelFileError, match=r"run\.checkpoint"):
            other()


def test_a_damaged_checkpoint_is_refused(tmp_path, digits):
    file = tmp_path / "run.checkpoint"
    DeepLinf(8, training=Training(n_epochs=10), random_state=0).fit(*digits, checkpoint=file)
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(ModelFileError, match="truncated"):
        DeepLinf(8, training=Training(n_epochs=10), random_state=0).fit(*digits, checkpoint=file)


def test_the_loss_falls_and_is_reported(digits):
    epochs = []
    hasher = DeepLinf(
        16, training=Training(n_epochs=30, dropout=0.0, learning_rate=5e-3), random_state=0
    )
    hasher.fit(*digits, progress=epochs.append)
    assert [e.number for e in epochs] == list(range(1, 31))
    assert all(e.n_epochs == 30 and e.validation_loss is None for e in epochs)
    np.testing.assert_array_equal([e.loss for e in epochs], hasher.loss_curve_)
    assert hasher.loss_curve_[-1] < 0.5 * hasher.loss_curve_[0]


def test_early_stopping_keeps_the_best_weights(digits):
    X, y = digits
    shuffled = np.random.default_rng(0).permutation(y)  # nothing to learn: it must overfit
    hasher = DeepLinf(
        16,
        training=Training(
            n_epochs=400,
            validation_fraction=0.3,
            patience=5,
            dropout=0.0,
            weight_decay=0.0,
            learning_rate=1e-2,
        ),
        random_state=0,
    ).fit(X, shuffled)
    curve = hasher.validation_curve_
    assert len(curve) < 400
    assert hasher.best_epoch_ == int(np.argmin(curve))
    assert len(curve) == hasher.best_epoch_ + 5 + 1


def test_divergence_is_reported(digits):
    with pytest.raises(FloatingPointError, match=r"\blearning_rate\b"):
        DeepLinf(
            8,
            training=Training(
                n_epochs=50, optimizer="sgd", learning_rate=1e30, schedule="constant"
            ),
            random_state=0,
        ).fit(*digits)


def test_training_and_loading_do_not_touch_the_global_random_state(digits, tmp_path):
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    DeepLinf(8, training=Training(n_epochs=3)).fit(*digits)
    DeepLinf(8, init="ksvd", training=Training(n_epochs=3)).fit(*digits).save(tmp_path / "m")
    load(tmp_path / "m")
    torch.testing.assert_close(torch.rand(1), expected)

"""Training options of the networks."""

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, Self

from antipodal.hashers.estimator import Estimator
from antipodal.validation import check_type, check_whole

if TYPE_CHECKING:
    import torch

# Settings of 0.6 and earlier: new names, and the values at which removed settings had no effect.
RENAMED = {"front": "feature_map", "belief_power": "pseudo_label_power"}
REMOVED = {"tied": False, "shrinkage": 0.0}

_LEAST = {
    "n_epochs": 1,
    "batch_size": 2,
    "n_pairs": 1,
    "patience": 0,
    "n_unlabelled": 0,
    "n_anchors": 1,
    "n_reduced": 0,
}
_ALLOWED = {
    "optimizer": ("adamw", "sgd"),
    "schedule": ("constant", "cosine"),
    "pairs": ("batch", "sampled"),
}


@dataclass(kw_only=True, repr=False)
class Training(Estimator):
    """Training options of `DeepLinf`, `NNHash`, `SparseHash`, `OrthoHash` and `CSQ`.

    The defaults of options marked "optional" depend on the training data. They were chosen by
    validation.

    Parameters
    ----------
    n_epochs : int, optional
        Passes over the rows (or pairs). By default 200; with unlabelled rows, the number of
        epochs that makes 1,000 steps.
    batch_size : int, optional
        Rows (or pairs) per step. By default 256, or 12 rows per class and at most 1,024 if that
        is more, because a small batch of many classes has few similar pairs. With unlabelled
        rows, 512.
    optimizer : {"adamw", "sgd"}
        SGD is used without momentum.
    learning_rate : float
        Step size; with schedule="cosine", the initial step size.
    schedule : {"cosine", "constant"}
        Decay the step size to zero along a cosine, or keep it constant.
    weight_decay : float, optional
        Weight decay of W and S; biases and bounds have none. By default 2, and 1 with unlabelled
        rows.
    dropout : float, optional
        Fraction of the input features set to zero at random in each step. By default 0.2, and
        0.3 with unlabelled rows.
    noise : float
        Standard deviation of the Gaussian noise added to the input in each step, relative to the
        standard deviation of each feature (or kernel component). With few labelled rows it
        prevents overfitting: see `DeepLinf.reproduced`.
    margin : float, optional
        m of Eq. 12: dissimilar pairs at this distance or further apart have no loss. In the
        triplet loss, the difference required between the two distances. By default 0.95·√(2N)·λ,
        where √(2N)·λ is the distance between two random codes. A `nested` prefix of L bits uses
        m·√(L/N).
    similar_weight : float, optional
        Weight of similar pairs relative to dissimilar pairs. A larger weight maps a class to
        fewer codes (more items within a small radius); a smaller one improves the ranking. By
        default 0.1; with unlabelled rows see `paper.pair_sampling.ExpectedPairs`.
    pseudo_label_power : float
        Exponent applied to the class probabilities of unlabelled rows. Above 1 they become more
        confident, which maps the rows to fewer codes.
    centres : bool, optional
        With unlabelled rows, also minimise the loss of `OrthoHash`, which assigns a fixed code to
        each class. By default only if a row has fewer than 12 similar rows in a batch, as with
        very many classes.
    pairs : {"batch", "sampled"}
        Train on all pairs within each batch, or on `n_pairs` pairs sampled before training, half
        of them similar.
    n_pairs : int
        Number of sampled pairs, for pairs="sampled".
    validation_fraction : float
        Fraction of the training rows held out for early stopping. 0 trains on all rows for
        `n_epochs` epochs.
    patience : int
        Number of epochs without a lower validation loss after which training stops.
    n_samples : int
        Maximum number of labelled rows. A larger training set is subsampled evenly by class.
    n_unlabelled : int
        Maximum number of unlabelled rows. A larger set is subsampled. 0 ignores unlabelled rows.
    n_anchors : int
        Maximum number of anchors, for feature_map="kernel".
    n_reduced : int
        Maximum number of points that replace the anchors after training: encoding time is
        proportional to it. 0 keeps the anchors. Custom networks without `layers` always keep them.
    sparsity : int
        Number of non-zeros per sample in K-SVD, for init="ksvd" of `DeepLinf`.
    device : str
        Device to train on: "auto" (a GPU if available), "cpu", "cuda:1", … Encoding runs on the
        CPU.

    Examples
    --------
    >>> from antipodal import DeepLinf
    >>> DeepLinf(32, training=Training(n_epochs=20))
    DeepLinf(n_bits=32, training=Training(n_epochs=20))
    >>> DeepLinf(32).set_params(training__dropout=0.5)
    DeepLinf(n_bits=32, training=Training(dropout=0.5))
    """

    n_epochs: int | None = None
    batch_size: int | None = None
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = 8e-3
    schedule: Literal["constant", "cosine"] = "cosine"
    weight_decay: float | None = None
    dropout: float | None = None
    noise: float = 0.0
    margin: float | None = None
    similar_weight: float | None = None
    pseudo_label_power: float = 1.0
    centres: bool | None = None
    pairs: Literal["batch", "sampled"] = "batch"
    n_pairs: int = 100_000
    validation_fraction: float = 0.0
    patience: int = 30
    n_samples: int = 100_000
    n_unlabelled: int = 20_000
    n_anchors: int = 2000
    n_reduced: int = 0
    sparsity: int = 8
    device: str = "auto"

    @classmethod
    def paper(cls, n_epochs: int = 10) -> Self:
        """Return the training of the paper: see `DeepLinf.paper`."""
        return cls(
            n_epochs=n_epochs,
            batch_size=128,
            optimizer="sgd",
            learning_rate=0.01,
            schedule="constant",
            weight_decay=0.0,
            dropout=0.0,
            margin=5.0,
            similar_weight=1.0,
            pairs="sampled",
            n_pairs=100_000,
        )

    @classmethod
    def regularized(cls, n_epochs: int = 1000) -> Self:
        """Return training from few labels without overfitting: see `DeepLinf.reproduced`."""
        return cls(
            n_epochs=n_epochs,
            batch_size=256,
            learning_rate=0.016,
            weight_decay=2.0,
            dropout=0.0,
            noise=1.0,
            similar_weight=0.2,
            n_unlabelled=0,
        )

    def validate(self) -> None:
        """Raise `TypeError` or `ValueError` if an option has the wrong type or value."""
        for option in fields(self):
            check_type(getattr(self, option.name), option.name, option.type)
        for name, least in _LEAST.items():
            if getattr(self, name) is not None:
                check_whole(getattr(self, name), name, least)
        for name, allowed in _ALLOWED.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}: got {getattr(self, name)!r}")
        for name in ("learning_rate", "pseudo_label_power", "sparsity"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite: got {getattr(self, name)}")
        for name in ("margin", "similar_weight"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, or None: got {value}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1): got {self.dropout}")
        for name in ("weight_decay", "noise"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and not negative: got {value}")
        if not 0 <= self.validation_fraction <= 0.5:
            raise ValueError(
                f"validation_fraction must be in [0, 0.5]: got {self.validation_fraction}"
            )
        self._check_device()

    def torch_device(self) -> "torch.device":
        """Return the device to train on."""
        import torch

        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.device(name)

    def _check_device(self) -> None:
        import torch

        try:
            torch.zeros(1, device=self.torch_device()).item()
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ValueError(
                "device must be 'auto', 'cpu' or another device that PyTorch can use here: "
                f"got {self.device!r} ({reason})"
            ) from error


OPTIONS = {option.name: option.type for option in fields(Training)}

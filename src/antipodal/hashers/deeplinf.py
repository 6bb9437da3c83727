"""The method of the paper: a siamese network of Deep l∞ Encoders."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from antipodal.hashers.network import Layers, NetworkHasher, Weights
from antipodal.hashers.operations import Chain, Clip, Shrink
from antipodal.hashers.registry import built_in
from antipodal.hashers.training import Training
from antipodal.paper.admm import admm_iterations
from antipodal.paper.dictionary import ksvd

if TYPE_CHECKING:
    from torch import Tensor

    from antipodal.paper.encoders import LinfEncoder


@dataclass(kw_only=True, eq=False, repr=False)
@built_in
class DeepLinf(NetworkHasher):
    """Deep Siamese l∞ Network: codes with entries close to ±λ before the sign. [Wang2016]

    The defaults are the recommended settings for ranking, `DeepLinf.lookup(n_bits)` those for
    lookups within a small radius, and `DeepLinf.paper(n_bits)` the settings of the paper.

    Parameters
    ----------
    n_bits : int
        Code length N; it may exceed the number of features.
    nested : tuple of int
        Shorter code lengths in ascending order, such as (16, 32). Training minimises the mean loss
        over the first 16, the first 32 and all bits, so prefixes are also codes;
        `prefix(16)` returns a hasher for them.
    n_stages : int
        K, the number of unfolded ADMM iterations after the first layer.
    feature_map : {"auto", "hidden", "kernel", "none"}
        Map applied to the scaled features before the encoder. "none" is the paper's network.
        "hidden" is a second encoder of the same kind with `n_hidden` units and no stages. "kernel"
        computes principal components of a Gaussian kernel on `n_anchors` training rows (see
        `Training`); the model then contains these rows, and encoding also multiplies by them.
        "auto" is "hidden" with unlabelled rows and "kernel" without.
    n_hidden : int
        Number of units of the hidden layer, for feature_map="hidden".
    scaling : {"auto", "each", "common", "root-each", "root-common", "none"}
        Centre the features and scale each of them to deviation 1 ("each"), or all by the same
        factor ("common"); "root" applies sign(x)·√|x| first. "auto" chooses the scaling with which
        a kernel classifier best predicts held-out training rows, and "each" for pairs.
    bound : float
        Initial λ of every bit; each bit learns its own.
    init : {"random", "ksvd"}
        Start from random weights, or from K-SVD and K iterations of ADMM (Eq. 11).
    penalty : float
        β of Eq. 7, for init="ksvd".
    loss : "contrastive", "triplet" or callable
        Eq. 12, `antipodal.paper.losses.triplet_loss`, or a function loss(codes, targets). Its
        arguments are the codes of a batch (m, N), and a table (m, m) with 1 for similar pairs, -1
        for dissimilar pairs and 0 elsewhere. A model file stores only the name of a function.
    training : Training, optional
        Number of epochs, optimiser, margin, sample sizes, device and other training options; by
        default `Training()`.
    random_state : int, RandomState or None
        Seed of all random numbers. On the CPU training uses one thread, so that a seed gives the
        same network on any number of cores.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from antipodal import Training
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = DeepLinf(n_bits=16, training=Training(n_epochs=20), random_state=0)
    >>> hasher.fit(X[:300], y[:300]).encode(X).shape
    (1797, 2)
    """

    presets = ("paper", "reproduced", "lookup")

    bound: float = 1.0
    init: Literal["random", "ksvd"] = "random"
    penalty: float = 0.6

    @classmethod
    def paper(cls, n_bits: int, *, n_epochs: int = 10, random_state: Any = None) -> Self:
        """Return the settings of the paper.

        Stated in the paper: initialisation by K-SVD and ADMM, K = 2, β = 0.6, margin 5, SGD
        without momentum at a constant rate of 0.01, batches of 128.

        Not stated in the paper, and chosen here:

        - features: standardised;
        - initial λ: 1;
        - K-SVD: sparsity 8, on the training rows;
        - pairs on CIFAR-10: 100,000, as on NUS-WIDE, half of them similar;
        - batch size: a number of pairs;
        - epochs: 10; weight decay and dropout: none.
        """
        return cls(
            n_bits,
            feature_map="none",
            scaling="each",
            init="ksvd",
            training=Training.paper(n_epochs),
            random_state=random_state,
        )

    @classmethod
    def reproduced(cls, n_bits: int, *, n_epochs: int = 1000, random_state: Any = None) -> Self:
        """Return the network of the paper with training that reaches its scores on CIFAR-10.

        The network is that of `paper`: W, S_k, b_k and λ on the features, from labels alone.
        Training uses all pairs of batches of 256 rows, with a weight of 0.2 for similar ones and
        a margin in proportion to the root of the code length. The optimiser is AdamW with a
        decaying learning rate and weight decay 2, and the input has noise of one standard
        deviation. `NNHash.reproduced` and `SparseHash.reproduced` are trained in the same way.
        """
        return cls(
            n_bits,
            feature_map="none",
            scaling="root-each",
            training=Training.regularized(n_epochs),
            random_state=random_state,
        )

    @classmethod
    def lookup(cls, n_bits: int, *, random_state: Any = None) -> Self:
        """Return settings for lookups within a small radius.

        A larger weight of similar pairs and sharper class probabilities of unlabelled rows bring
        more neighbours within Hamming radius 2, at a lower mAP.
        """
        training = Training(similar_weight=0.7, pseudo_label_power=3.0)
        return cls(n_bits, training=training, random_state=random_state)

    def new_encoder(
        self, n_features: int, n_bits: int, n_stages: int, seed: int = 0
    ) -> "LinfEncoder":
        """Return an encoder with random weights."""
        import torch

        from antipodal.paper.encoders import LinfEncoder

        generator = torch.Generator().manual_seed(seed)
        return LinfEncoder(n_features, n_bits, n_stages, bound=self.bound, generator=generator)

    def layers(self, weights: Weights) -> Layers:
        """Describe the bounded linear units."""
        bound = np.exp(weights["blu.log_threshold"])
        neuron = Clip(np.float32(-1), np.float32(1))
        if "shelu.log_threshold" not in weights:
            return Layers(neuron, bound)
        # A model trained with `shrinkage` in 0.4 to 0.6: shrink by θ, then clip to ±λ.
        ratio = np.exp(weights["shelu.log_threshold"] - weights["blu.log_threshold"])
        return Layers(Chain(Shrink(ratio), neuron), bound)

    def initial_encoder(self, Y: "Tensor", seed: int) -> "LinfEncoder":
        """Return the encoder with its initial weights, random or by Eq. 11."""
        if self.init == "random":
            return self.new_encoder(Y.shape[1], self.n_bits, self.n_stages, seed)
        # Sec. 5: D by K-SVD, then K iterations of ADMM on the training set. The multipliers are
        # one vector per sample but the bias is shared, so it uses their mean.
        sparsity = min(self._options.sparsity, self.n_bits)
        from antipodal.paper.encoders import LinfEncoder

        learned = ksvd(Y, self.n_bits, sparsity=sparsity, random_state=seed)
        trace = admm_iterations(
            Y, learned.dictionary, self.bound, penalty=self.penalty, n_iter=self.n_stages
        )
        return LinfEncoder.from_dictionary(
            learned.dictionary, self.bound, self.penalty, self.n_stages,
            trace.multipliers.mean(dim=1),
        )  # fmt: skip

    def reach(self) -> float:
        """Return λ, half the distance between the two values of a bit."""
        return self.bound

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.init not in ("random", "ksvd"):
            raise ValueError(f"init must be 'random' or 'ksvd': got {self.init!r}")
        for name in ("bound", "penalty"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be positive and finite: got {getattr(self, name)}")

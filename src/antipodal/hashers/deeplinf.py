"""The paper's method: a siamese network of Deep l∞ Encoders."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor

from antipodal.hashers.network import NetworkHasher
from antipodal.hashers.registry import built_in
from antipodal.paper.admm import admm_iterations
from antipodal.paper.dictionary import ksvd
from antipodal.paper.encoders import LinfEncoder, SparseLinfEncoder


@dataclass(kw_only=True, eq=False, repr=False)
@built_in
class DeepLinf(NetworkHasher):
    """Deep Siamese l∞ Network: codes that are nearly ±λ before they become bits. [Wang2016]

    The defaults are our best setting for ranking; `DeepLinf.lookup(n_bits)` is one for lookups
    within a small radius, and `DeepLinf.paper(n_bits)` the paper's own.

    Parameters
    ----------
    n_bits : int
        Length N of the code; it may exceed the number of features.
    nested : tuple of int
        Shorter lengths, ascending, such as (16, 32): training minimises the mean of the loss over
        the first 16, the first 32 and all bits, so that the first bits are codes of their own, and
        `prefix(16)` is a hasher for them.
    n_stages : int
        K, the unfolded ADMM iterations behind the first layer.
    tied : bool
        Whether the stages share S and b.
    front : {"auto", "hidden", "kernel", "none"}
        What stands before the encoder. "none" is the paper: the encoder sees the features.
        "hidden" is another encoder of the same kind, without stages and `n_hidden` wide, so that
        two are stacked. "kernel" are the principal components of a Gaussian kernel on `n_anchors`
        training rows; a model then contains these rows, and encoding takes the time of a product
        with them. "auto" is "hidden" where rows without labels take part, which makes it the best
        for its cost, and else "kernel".
    n_hidden : int
        Units of the hidden layer, for front="hidden".
    n_anchors : int
        Most anchors, for front="kernel".
    scaling : {"auto", "each", "common", "root-each", "root-common", "none"}
        Shift features to mean 0 and scale each to deviation 1, or all by one common number;
        "root" takes sign(x)·√|x| first. "auto" is the one in which a kernel machine predicts
        left-out training rows best, and "each" for pairs.
    bound : float
        λ to begin with, for every bit; each is then learned.
    shrinkage : float
        Above 0, units shrink their input by so much before they clip it, so that codes are sparse
        as well as bounded; each unit then learns its own.
    init : {"random", "ksvd"}
        Start from random weights, or from K-SVD and K iterations of ADMM by Eq. 11.
    penalty : float
        β of Eq. 7, for init="ksvd".
    sparsity : int
        Non-zeros a sample in K-SVD, for init="ksvd".
    loss : "contrastive", "triplet" or callable
        What to minimise: Eq. 12, `antipodal.paper.losses.triplet_loss`, or loss(codes, targets), a
        function of the codes of a batch (m, N) and of a table (m, m) with 1 for similar pairs, -1
        for dissimilar ones and 0 elsewhere: see `paper.losses`. A saved model keeps the name of
        a function alone.
    margin : float, optional
        m of Eq. 12, the distance from which dissimilar pairs are left alone; of triplets, by how
        much these have to be further away than similar ones. By default 0.95 times √(2N)·λ, the
        distance of two random codes. The first L bits of a code that is `nested` have √(L/N) of it.
    similar_weight : float, optional
        Weight of similar pairs against dissimilar ones. Larger gathers classes in fewer
        codes (more items within a small radius), smaller ranks better. By default 0.1, and where
        rows without labels take part what `paper.pair_sampling.BelievedPairs` finds right.
    belief_power : float
        Beliefs of rows without labels are raised to this power. Above 1 they are taken for surer
        than they are, which gathers rows in fewer codes.
    centres : bool, optional
        Whether each class also has a code of its own that its rows go to, by the loss of
        `OrthoHash`, beside the pairs; only where rows without labels take part. By default where
        a row has fewer than 12 similar ones in a batch: with very many classes, pairs alone say
        too little.
    pairs : {"batch", "sampled"}
        All pairs within each batch, or `n_pairs` pairs sampled before training, half of them
        similar.
    n_pairs : int
        How many, for pairs="sampled".
    n_epochs : int, optional
        Passes over the rows (or pairs). By default 200, and where rows without labels take part
        as many as make 1,000 steps.
    batch_size : int, optional
        Rows (or pairs) that make a step. By default 256, but 12 rows per class, at most 1,024,
        where that is more: else a batch would have hardly any similar pairs. Where rows without
        labels take part, 512.
    optimizer : {"adamw", "sgd"}
        SGD is without momentum.
    learning_rate : float
        Step size, the first one where the schedule is "cosine".
    schedule : {"cosine", "constant"}
        Whether the step size falls to zero along a cosine or stays.
    weight_decay : float, optional
        Of W and S; biases and bounds have none. By default 2, and 1 where rows without labels
        take part.
    dropout : float, optional
        Share of input features set to zero at random in each step. By default 0.2, and 0.3 where
        rows without labels take part.
    validation_fraction : float
        Share of the training rows that is held out to stop early. 0 trains on all, to the end.
    patience : int
        Epochs without a lower validation loss after which training stops.
    n_samples : int
        Rows to learn from, at most; where there are more, so many are drawn, evenly from classes.
    n_unlabelled : int
        Rows without labels to learn from, at most; where there are more, so many are drawn.
    device : str
        Where to train: "auto" takes a GPU if there is one, "cpu", "cuda:1", … Encoding is
        done on the CPU, where it takes little more than one product with W.
    random_state : int, RandomState or None
        Seed of everything that is drawn. On the CPU training takes one thread, so that a seed
        gives the same network on any number of cores.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = DeepLinf(n_bits=16, n_epochs=20, random_state=0).fit(X[:300], y[:300])
    >>> hasher.encode(X).shape
    (1797, 2)
    """

    presets = ("paper", "lookup")

    encoder_: LinfEncoder = field(init=False)

    encoding_parameters = (*NetworkHasher.encoding_parameters, "shrinkage")

    bound: float = 1.0
    shrinkage: float = 0.0
    init: Literal["random", "ksvd"] = "random"
    penalty: float = 0.6
    sparsity: int = 8

    @classmethod
    def paper(cls, n_bits: int, *, n_epochs: int = 10, random_state: Any = None) -> Self:
        """Return the setting of the paper, to the letter where it has one.

        K-SVD and ADMM initialisation with K = 2 and β = 0.6, untied stages, margin 5, SGD with a
        constant rate of 0.01 and no momentum, batches of 128 sampled pairs, no dropout and no
        weight decay. The paper does not say how features are scaled (here: standardised), λ to
        begin with, the sparsity of K-SVD, the number of pairs on CIFAR10 or of epochs; on
        NUS-WIDE it has 100,000 pairs. Ten passes over as many are our choice.
        """
        return cls(
            n_bits,
            n_stages=2,
            front="none",
            scaling="each",
            bound=1.0,
            init="ksvd",
            penalty=0.6,
            margin=5.0,
            similar_weight=1.0,
            pairs="sampled",
            n_pairs=100_000,
            n_epochs=n_epochs,
            batch_size=128,
            optimizer="sgd",
            learning_rate=0.01,
            schedule="constant",
            weight_decay=0.0,
            dropout=0.0,
            random_state=random_state,
        )

    @classmethod
    def lookup(cls, n_bits: int, *, random_state: Any = None) -> Self:
        """Return our setting for lookups within a small radius, in place of ranking.

        Similar pairs weigh more than by default, and beliefs of rows without labels are taken for
        surer than they are: more neighbours come within Hamming radius 2, and mAP is lower.
        """
        return cls(n_bits, similar_weight=0.7, belief_power=3.0, random_state=random_state)

    def new_encoder(
        self, n_features: int, n_bits: int, n_stages: int, seed: int = 0
    ) -> LinfEncoder:
        """Return an encoder with random weights."""
        make = partial(SparseLinfEncoder, shrinkage=self.shrinkage)
        return (make if self.shrinkage else LinfEncoder)(
            n_features, n_bits, n_stages, tied=self.tied, bound=self.bound,
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip

    def initial_encoder(self, Y: Tensor, seed: int) -> LinfEncoder:
        """Return the encoder that training starts from."""
        if self.init == "random":
            return self.new_encoder(Y.shape[1], self.n_bits, self.n_stages, seed)
        # Sec. 5: D by K-SVD, then K iterations of ADMM on the training set. The multipliers
        # differ from sample to sample and a bias does not, so it takes their mean.
        learned = ksvd(Y, self.n_bits, sparsity=min(self.sparsity, self.n_bits), random_state=seed)
        trace = admm_iterations(
            Y, learned.dictionary, self.bound, penalty=self.penalty, n_iter=self.n_stages
        )
        return LinfEncoder.from_dictionary(
            learned.dictionary, self.bound, self.penalty, self.n_stages,
            trace.multipliers.mean(dim=1), tied=self.tied,
        )  # fmt: skip

    def reach(self) -> float:
        """Return half the distance between the two values of a bit."""
        return self.bound

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.init not in ("random", "ksvd"):
            raise ValueError(f"init must be 'random' or 'ksvd': got {self.init!r}")
        if not 0 <= self.shrinkage < float("inf"):
            raise ValueError(f"shrinkage must not be negative: got {self.shrinkage}")
        if self.shrinkage and self.init == "ksvd":
            raise ValueError("init must be 'random' with shrinkage: the ADMM of Eq. 11 has none")
        for name in ("bound", "penalty", "sparsity"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be positive and finite: got {getattr(self, name)}")

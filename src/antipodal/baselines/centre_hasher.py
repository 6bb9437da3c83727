"""Base class of networks trained towards class centres."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Never

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from antipodal.baselines.nnhash import NNHash
from antipodal.paper.centres import CentrePairs, Centres, class_centres
from antipodal.paper.pair_sampling import BelievedPairs, InBatchPairs, PairSource


@dataclass(kw_only=True, eq=False, repr=False)
class CentreHasher(NNHash):
    """Base of `OrthoHash` and `CSQ`: the encoder of `NNHash`, and class centres for its codes."""

    centres_: Centres = field(init=False)  # (c, N), ±1

    @abstractmethod
    def centre_loss(self, centres: Tensor, *, exclusive: bool) -> partial[Tensor]:
        """Return the loss of (codes, beliefs), given the centres of all classes or concepts."""

    def check_labels(self, y: ArrayLike | None, n_rows: int) -> NDArray[Any]:
        """Return classes or concepts as all methods do, and give each its centre."""
        labels = super().check_labels(y, n_rows)
        n_classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
        self.centres_ = class_centres(n_classes, self.n_bits, np.random.default_rng(self._seed()))
        return labels

    def fit_pairs(self, *args: Any, **kwargs: Any) -> Never:
        """Refuse: pairs name no classes, and only a class has a centre."""
        raise ValueError(
            f"{type(self).__name__} does not learn from pairs: they name no classes, and it needs "
            "one centre a class. Use fit with labels, or DeepLinf, NNHash or SparseHash"
        )

    def _label_pairs(self, labels: NDArray[Any], n_pairs: int, seed: int) -> PairSource:
        known = torch.from_numpy(labels).to(self._device())
        return self._towards_centres(InBatchPairs, known, exclusive=labels.ndim == 1)

    def _believed_pairs(self, beliefs: Tensor, seed: int, *, exclusive: bool) -> PairSource:
        source = partial(BelievedPairs, exclusive=exclusive)
        return self._towards_centres(source, beliefs, exclusive=exclusive)

    def _towards_centres(
        self, source: Callable[[Tensor], PairSource], labels: Tensor, *, exclusive: bool
    ) -> CentrePairs:
        centres = torch.from_numpy(self.centres_).to(labels.device, torch.float32)
        if labels.ndim == 2:
            centres = centres[: labels.shape[1]]  # the last classes may be those of no row here
        return CentrePairs(source(labels), labels, self.centre_loss(centres, exclusive=exclusive))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        for name, usual in (
            ("loss", "contrastive"),
            ("pairs", "batch"),
            ("margin", None),
            ("similar_weight", None),
            ("centres", None),
        ):
            if getattr(self, name) != usual:
                raise ValueError(
                    f"{type(self).__name__} has a loss of its own, which knows no pairs: leave "
                    f"{name} at {usual!r}, got {getattr(self, name)!r}"
                )
        if self.nested:
            raise ValueError(
                f"{type(self).__name__} has codes of one length: the first bits of its centres may "
                f"be alike. Leave nested at (), got {self.nested}"
            )

"""Base class of networks trained towards class centres."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Never

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.baselines.nnhash import NNHash
from antipodal.hashers.training import Training

if TYPE_CHECKING:
    from torch import Tensor

    from antipodal.paper.centres import CentrePairs
    from antipodal.paper.pair_sampling import PairSource


@dataclass(kw_only=True, eq=False, repr=False)
class CentreHasher(NNHash):
    """Base of `OrthoHash` and `CSQ`: the encoder of `NNHash`, trained towards class centres."""

    centres_: NDArray[np.int8] = field(init=False)  # (c, N), ±1

    @abstractmethod
    def centre_loss(self, centres: "Tensor", *, exclusive: bool) -> "partial[Tensor]":
        """Return the loss of (codes, class probabilities) for the centres of all classes."""

    def check_labels(self, y: ArrayLike | None, n_rows: int) -> NDArray[Any]:
        """Return classes or concepts as other hashers do, and choose their centres."""
        from antipodal.paper.centres import class_centres

        labels = super().check_labels(y, n_rows)
        n_classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
        self.centres_ = class_centres(n_classes, self.n_bits, np.random.default_rng(self._seed()))
        return labels

    def fit_pairs(self, *args: Any, **kwargs: Any) -> Never:
        """Raise `ValueError`: pairs define no classes, and therefore no centres."""
        raise ValueError(
            f"{type(self).__name__} cannot learn from pairs: it needs the classes of the rows. "
            "Use fit with labels, or DeepLinf, NNHash or SparseHash"
        )

    def _label_pairs(self, labels: NDArray[Any], n_pairs: int, seed: int) -> "PairSource":
        from antipodal.paper.pair_sampling import InBatchPairs

        return self._towards_centres(InBatchPairs, labels, exclusive=labels.ndim == 1)

    def _expected_pairs(
        self, p: NDArray[np.float32], seed: int, *, exclusive: bool
    ) -> "PairSource":
        from antipodal.paper.pair_sampling import ExpectedPairs

        source = partial(ExpectedPairs, exclusive=exclusive)
        return self._towards_centres(source, p, exclusive=exclusive)

    def _towards_centres(
        self,
        source: "Callable[[Tensor], PairSource]",
        labels: NDArray[Any],
        *,
        exclusive: bool,
    ) -> "CentrePairs":
        from antipodal.paper.centres import CentrePairs

        given, centres = self._to_device(labels), self._to_device(self.centres_).float()
        if labels.ndim == 2:
            centres = centres[: labels.shape[1]]  # the last classes may have no training row
        return CentrePairs(source(given), given, self.centre_loss(centres, exclusive=exclusive))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        settings, defaults = {"loss": self.loss, **vars(self._options)}, vars(Training())
        for name in ("loss", "pairs", "margin", "similar_weight", "centres"):
            default = defaults.get(name, "contrastive")
            if settings[name] != default:
                raise ValueError(
                    f"{type(self).__name__} minimises the distance to class centres, not a loss "
                    f"of pairs: {name} must be {default!r}, got {settings[name]!r}"
                )
        if self.nested:
            raise ValueError(
                f"nested must be () for {type(self).__name__}: the first bits of two class "
                f"centres can be equal. Got {self.nested}"
            )

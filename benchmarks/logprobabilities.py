"""Experimental variant: the classifier's log-probabilities appended to the features.

    hidden    input of the hidden layer: (x, log p)
    kernel    input of the encoder: (φ(x), log p)

Encoding then requires the classifier. The log-probabilities of a labelled row come from classifiers
that were not fitted to it; all are standardised. Run it like any other setting:

PYTHONPATH=benchmarks python benchmarks/validation.py … --settings benchmarks/logprobabilities.txt
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from antipodal import DeepLinf
from antipodal.hashers.kernel_features import kernel_feature_rows
from antipodal.hashers.preprocessing import Inputs, scale_map
from antipodal.hashers.pseudo_labels import fit_svm, svm_probabilities

PENALTY, FOLDS, LEAST = 5.0, 5, 1e-6


@dataclass(eq=False, repr=False)
class LogProbabilities(DeepLinf):
    """`DeepLinf` on features and log-probabilities, for single-label data."""

    def fit(self, X, y=None, **options):
        """Store the labels for the classifier, then fit as `DeepLinf` does."""
        self._labels = np.unique(y, return_inverse=True)[1]
        return super().fit(X, y, **options)

    def _learn_feature_map(self, Y, n_train, seed, *, has_unlabelled):
        n, random = len(self._labels), np.random.RandomState(seed)
        self._svm = fit_svm(Y[:n], self._labels, PENALTY, None, random)
        log_p = logs(self._svm, torch.from_numpy(Y))
        for train, held_out in StratifiedKFold(FOLDS).split(Y[:n], self._labels):
            svm = fit_svm(Y[train], self._labels[train], PENALTY, None, random)
            log_p[held_out] = logs(svm, torch.from_numpy(Y[held_out]))
        self._mean, self._scale = log_p.mean(dim=0), log_p.std(dim=0)
        log_p = (log_p - self._mean) / self._scale
        if self.feature_map == "kernel":
            mapped = super()._learn_feature_map(Y, n_train, seed, has_unlabelled=has_unlabelled)
            return torch.cat([mapped, log_p], dim=1)
        both = np.concatenate([Y, log_p.numpy()], axis=1)
        return super()._learn_feature_map(both, n_train, seed, has_unlabelled=has_unlabelled)

    def projector(self, max_rows: int) -> Callable[[Tensor], Tensor]:
        """Return the function that computes the values before the sign."""
        scale = scale_map(Inputs(self.root_, self.mean_, self.scale_))

        def project(X: Tensor) -> Tensor:
            rows = scale(X)
            log_p = (logs(self._svm, rows) - self._mean) / self._scale
            if self.feature_map == "kernel":
                return self.encoder_(
                    torch.cat([kernel_feature_rows(self._network().kernel, rows), log_p], dim=1)
                )
            return self.encoder_(self.hidden_(torch.cat([rows, log_p], dim=1)))

        return project


def logs(svm, rows: Tensor) -> Tensor:
    """Return log p of scaled rows."""
    blocks = [svm_probabilities(svm, len(block))(block) for block in rows.split(4096)]
    return torch.cat(blocks).clamp_(min=LEAST).log()

"""Experimental variant: the classifier's log-probabilities appended to the features.

    hidden    input of the hidden layer: (x, log p)
    kernel    input of the encoder: (φ(x), log p)

Encoding then requires the classifier. The log-probabilities of a labelled row come from classifiers
that were not fitted to it; all are standardised. Run it like any other setting:

PYTHONPATH=benchmarks python benchmarks/validation.py … --settings benchmarks/logprobabilities.txt
"""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold

from antipodal import DeepLinf
from antipodal.hashers.kernel_features import KernelFeatures, kernel_feature_rows
from antipodal.hashers.operations import Standardise
from antipodal.hashers.pipeline import Pipeline
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
        log_p = logs(self._svm, Y)
        for train, held_out in StratifiedKFold(FOLDS).split(Y[:n], self._labels):
            svm = fit_svm(Y[train], self._labels[train], PENALTY, None, random)
            log_p[held_out] = logs(svm, Y[held_out])
        self._mean, self._scale = log_p.mean(axis=0), log_p.std(axis=0)
        log_p = (log_p - self._mean) / self._scale
        if self.feature_map == "kernel":
            mapped, _ = super()._learn_feature_map(Y, n_train, seed, has_unlabelled=has_unlabelled)
            return np.concatenate([mapped, log_p], axis=1), None
        both = np.concatenate([Y, log_p], axis=1)
        return super()._learn_feature_map(both, n_train, seed, has_unlabelled=has_unlabelled)

    def pipeline(self):
        """Return the steps to the values before the sign."""
        scale = Standardise(self.mean_, self.scale_, root=self.root_)
        encoder = self.encoder_
        hidden = None if self.feature_map == "kernel" else self.hidden_

        def project(rows):
            log_p = (logs(self._svm, rows) - self._mean) / self._scale
            mapped = rows if hidden else kernel_feature_rows(self._kernel(), rows)
            both = torch.from_numpy(np.concatenate([mapped, log_p], axis=1))
            return encoder(hidden(both) if hidden else both).numpy()

        return [scale, project]

    def _kernel(self):
        return KernelFeatures(self.anchors_, self.gamma_, self.lift_, self.lift_offset_)


def logs(svm, rows):
    """Return log p of scaled rows."""
    p = Pipeline(svm_probabilities(svm)).values(rows, len(svm.offsets))
    return np.log(np.maximum(p, LEAST))

"""Evaluation of binary codes: retrieval metrics, recall audits and HTML reports."""

from antipodal.evaluation.metrics import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]

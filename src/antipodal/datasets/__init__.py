"""Datasets in their official layouts, and their splits for evaluation."""

from antipodal.datasets.cifar10 import cifar10
from antipodal.datasets.dataset import Dataset, arrays, digits
from antipodal.datasets.download import download
from antipodal.datasets.idx import idx
from antipodal.datasets.nus_wide import nus_wide
from antipodal.datasets.protocols import Split

__all__ = ["Dataset", "Split", "arrays", "cifar10", "digits", "download", "idx", "nus_wide"]

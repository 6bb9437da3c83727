"""The datasets of a benchmark by name, with the features that they are benchmarked on."""

import os
from dataclasses import replace

import numpy as np

from antipodal import datasets
from antipodal.datasets import Dataset

FILES = ("multilabel", "arrays")  # read from one file; the others from a directory, or from none
NAMES = ("cifar10", "nuswide", "idx", "digits", *FILES)


def load_dataset(
    name: str,
    path: str | os.PathLike[str] | None = None,
    *,
    features: str | None = None,
    skip_concepts: int = 0,
    labels: str | None = None,
) -> Dataset:
    """Read a dataset; its own name then also says what was made of it.

    Parameters
    ----------
    name : "cifar10", "nuswide", "idx", "digits", "multilabel" or "arrays"
    path : path, optional
        The file of the last two, as `antipodal.open_vectors` takes it; of the first three the
        directory, by default where the loader looks.
    features : "gist" or "pixels", optional
        Of images: by default GIST for CIFAR-10, pixels otherwise.
    skip_concepts : int
        Leave out as many of the most frequent concepts.
    labels : str, optional
        Column of the labels in that file, or the file of them, as `datasets.arrays` takes it.

    Examples
    --------
    >>> load_dataset("digits", features="gist").name
    'digits-gist'
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}: got {name!r}")
    if features not in (None, "gist", "pixels"):
        raise ValueError(f"features must be 'gist' or 'pixels': got {features!r}")
    if labels is not None and name not in FILES:
        raise ValueError(f"labels are a column of a file, and {name} has its own")
    dataset = _read(name, path, labels)
    if features is not None and dataset.images is None:
        raise ValueError(f"features of images are asked for, and {dataset.name} has no images")
    if features == "gist" or (features is None and name == "cifar10"):
        dataset = replace(dataset.with_gist(), name=f"{dataset.name}-gist")
    elif dataset.features is None and dataset.images is not None:
        pixels = dataset.images.reshape(len(dataset), -1)
        dataset = replace(dataset, features=pixels, name=f"{dataset.name}-pixels")
    return _without_top_concepts(dataset, skip_concepts) if skip_concepts else dataset


def _read(name: str, path: str | os.PathLike[str] | None, labels: str | None) -> Dataset:
    if name == "digits":
        return datasets.digits()
    if name not in FILES:
        loaders = {
            "cifar10": datasets.cifar10, "nuswide": datasets.nus_wide, "idx": datasets.idx
        }  # fmt: skip
        return loaders[name](path)
    if path is None:
        raise ValueError(f"{name} is read from a file: pass its path")
    dataset = datasets.arrays(path, labels=labels)
    if name == "multilabel" and dataset.labels.ndim == 1:
        raise ValueError(f"{path} has one label per row: use `antipodal bench arrays {path}`")
    return dataset


def _without_top_concepts(dataset: Dataset, n_concepts: int) -> Dataset:
    labels = dataset.labels
    if labels.ndim == 1 or n_concepts >= labels.shape[1]:
        raise ValueError(
            f"the {n_concepts} most frequent concepts cannot be left out: {dataset.name} has no "
            "more concepts"
        )
    rare = np.sort(np.argsort(-labels.sum(axis=0), kind="stable")[n_concepts:])
    return replace(dataset, labels=labels[:, rare], name=f"{dataset.name}-without-top-{n_concepts}")

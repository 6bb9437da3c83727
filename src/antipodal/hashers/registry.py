"""All hashers by name, and reading any of them from its file."""

import os

import antipodal
from antipodal.errors import ModelFileError
from antipodal.hashers.agh import AGH
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.bre import BRE
from antipodal.hashers.classifierlsh import ClassifierLSH
from antipodal.hashers.deeplinf import DeepLinf
from antipodal.hashers.itq import ITQ
from antipodal.hashers.ksh import KSH
from antipodal.hashers.ldahash import LDAHash
from antipodal.hashers.linfhash import LinfHash
from antipodal.hashers.lsh import LSH
from antipodal.hashers.nnhash import NNHash
from antipodal.hashers.onehothash import OneHotHash
from antipodal.hashers.psh import PSH
from antipodal.hashers.signhash import SignHash
from antipodal.hashers.sparsehash import SparseHash
from antipodal.hashers.spectralhash import SpectralHash
from antipodal.storage.modelfile import read_model_file

HASHERS: dict[str, type[BaseHasher]] = {
    kind.__name__: kind
    for kind in (
        DeepLinf,
        NNHash,
        SparseHash,
        KSH,
        AGH,
        PSH,
        LDAHash,
        BRE,
        LinfHash,
        ITQ,
        SpectralHash,
        LSH,
        SignHash,
        OneHotHash,
        ClassifierLSH,
    )
}


def load(path: str | os.PathLike[str]) -> BaseHasher:
    """Read a hasher that `save` wrote; raise `AntipodalError` if the file is not as written."""
    header, arrays = read_model_file(path, "hasher")
    name = str(header.get("class"))
    if name not in HASHERS:
        raise ModelFileError(
            f"{path} holds a {name!r}, which this antipodal {antipodal.__version__} does not "
            f"know; it was written by {header.get('antipodal')}"
        )
    try:
        hasher = HASHERS[name](**header["parameters"])
        hasher.restore_state({**arrays, **header["fitted"]})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ModelFileError(f"{path} does not describe a {name}: {error}") from error
    return hasher

"""The hashers: one file a method, one base class, one contract."""

from antipodal.hashers.agh import AGH
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.bre import BRE
from antipodal.hashers.classifierlsh import ClassifierLSH
from antipodal.hashers.csq import CSQ
from antipodal.hashers.deeplinf import DeepLinf
from antipodal.hashers.itq import ITQ
from antipodal.hashers.ksh import KSH
from antipodal.hashers.ldahash import LDAHash
from antipodal.hashers.linfhash import LinfHash
from antipodal.hashers.lsh import LSH
from antipodal.hashers.network import NetworkHasher
from antipodal.hashers.nnhash import NNHash
from antipodal.hashers.onehothash import OneHotHash
from antipodal.hashers.orthohash import OrthoHash
from antipodal.hashers.psh import PSH
from antipodal.hashers.registry import HASHERS, load, register
from antipodal.hashers.sdh import SDH
from antipodal.hashers.signhash import SignHash
from antipodal.hashers.sparsehash import SparseHash
from antipodal.hashers.spectralhash import SpectralHash

__all__ = [
    "AGH",
    "BRE",
    "CSQ",
    "HASHERS",
    "ITQ",
    "KSH",
    "LSH",
    "PSH",
    "SDH",
    "BaseHasher",
    "ClassifierLSH",
    "DeepLinf",
    "LDAHash",
    "LinfHash",
    "NNHash",
    "NetworkHasher",
    "OneHotHash",
    "OrthoHash",
    "SignHash",
    "SparseHash",
    "SpectralHash",
    "load",
    "register",
]

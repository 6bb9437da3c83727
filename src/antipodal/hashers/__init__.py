"""The hashers: one file a method, one base class, one contract."""

from antipodal.hashers.agh import AGH
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.itq import ITQ
from antipodal.hashers.ksh import KSH
from antipodal.hashers.ldahash import LDAHash
from antipodal.hashers.linf import DeepLinf
from antipodal.hashers.lsh import LSH
from antipodal.hashers.network import NetworkHasher
from antipodal.hashers.psh import PSH
from antipodal.hashers.registry import HASHERS, load
from antipodal.hashers.spectral import SpectralHash

__all__ = [
    "AGH",
    "HASHERS",
    "ITQ",
    "KSH",
    "LSH",
    "PSH",
    "BaseHasher",
    "DeepLinf",
    "LDAHash",
    "NetworkHasher",
    "SpectralHash",
    "load",
]

"""The hashers: one file a method, one base class, one contract."""

from antipodal.hashers.base import BaseHasher
from antipodal.hashers.itq import ITQ
from antipodal.hashers.linf import DeepLinf
from antipodal.hashers.lsh import LSH
from antipodal.hashers.network import NetworkHasher
from antipodal.hashers.registry import HASHERS, load

__all__ = ["HASHERS", "ITQ", "LSH", "BaseHasher", "DeepLinf", "NetworkHasher", "load"]

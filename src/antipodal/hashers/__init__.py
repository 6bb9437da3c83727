"""The hashers: one file a method, one base class, one contract."""

from antipodal.hashers.base import BaseHasher, load
from antipodal.hashers.itq import ITQ
from antipodal.hashers.linf import DeepLinf
from antipodal.hashers.lsh import LSH
from antipodal.hashers.network import NetworkHasher

__all__ = ["ITQ", "LSH", "BaseHasher", "DeepLinf", "NetworkHasher", "load"]

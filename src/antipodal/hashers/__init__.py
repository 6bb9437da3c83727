"""The hashers: one file a method, one base class, one contract."""

from antipodal.hashers.base import BaseHasher, load
from antipodal.hashers.itq import ITQ
from antipodal.hashers.linf import DeepLinf
from antipodal.hashers.lsh import LSH

__all__ = ["ITQ", "LSH", "BaseHasher", "DeepLinf", "load"]

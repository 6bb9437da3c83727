"""Descriptors of images, to be hashed."""

from antipodal.features.gist import gist, mirror_permutation

__all__ = ["gist", "mirror_permutation"]

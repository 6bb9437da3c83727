"""Image descriptors: GIST and bags of visual words."""

from antipodal.features.gist import gist, mirror_permutation
from antipodal.features.images import image_files
from antipodal.features.words import Vocabulary, bag_of_words, learn_vocabulary

__all__ = [
    "Vocabulary",
    "bag_of_words",
    "gist",
    "image_files",
    "learn_vocabulary",
    "mirror_permutation",
]

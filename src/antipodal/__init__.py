"""Learn binary codes that survive quantisation, and search them.

The public names below are imported when they are first used, so that
``antipodal --help`` does not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.6.1"

if TYPE_CHECKING:
    from antipodal import bulk as bulk
    from antipodal import datasets as datasets
    from antipodal.auditing import audit as audit
    from antipodal.codes import pack as pack
    from antipodal.codes import unpack as unpack
    from antipodal.dictionary import ksvd as ksvd
    from antipodal.encoders import Encoder as Encoder
    from antipodal.encoders import LinfEncoder as LinfEncoder
    from antipodal.encoders import ListaEncoder as ListaEncoder
    from antipodal.encoders import PlainEncoder as PlainEncoder
    from antipodal.errors import AntipodalError as AntipodalError
    from antipodal.evaluation import Evaluation as Evaluation
    from antipodal.evaluation import evaluate as evaluate
    from antipodal.features import Vocabulary as Vocabulary
    from antipodal.features import bag_of_words as bag_of_words
    from antipodal.features import gist as gist
    from antipodal.features import learn_vocabulary as learn_vocabulary
    from antipodal.hashers import AGH as AGH
    from antipodal.hashers import BRE as BRE
    from antipodal.hashers import CSQ as CSQ
    from antipodal.hashers import ITQ as ITQ
    from antipodal.hashers import KSH as KSH
    from antipodal.hashers import LSH as LSH
    from antipodal.hashers import PSH as PSH
    from antipodal.hashers import SDH as SDH
    from antipodal.hashers import BaseHasher as BaseHasher
    from antipodal.hashers import ClassifierLSH as ClassifierLSH
    from antipodal.hashers import DeepLinf as DeepLinf
    from antipodal.hashers import LDAHash as LDAHash
    from antipodal.hashers import LinfHash as LinfHash
    from antipodal.hashers import NetworkHasher as NetworkHasher
    from antipodal.hashers import NNHash as NNHash
    from antipodal.hashers import OneHotHash as OneHotHash
    from antipodal.hashers import OrthoHash as OrthoHash
    from antipodal.hashers import SignHash as SignHash
    from antipodal.hashers import SparseHash as SparseHash
    from antipodal.hashers import SpectralHash as SpectralHash
    from antipodal.hashers import load as load
    from antipodal.hashers import register as register
    from antipodal.index import HammingIndex as HammingIndex
    from antipodal.index import Vectors as Vectors
    from antipodal.neurons import BLU as BLU
    from antipodal.neurons import HELU as HELU
    from antipodal.neurons import SHeLU as SHeLU
    from antipodal.reading import VectorFile as VectorFile
    from antipodal.reading import open_vectors as open_vectors
    from antipodal.service import create_app as create_app
    from antipodal.solver import LinfSolution as LinfSolution
    from antipodal.solver import solve_linf as solve_linf
    from antipodal.stores import open_store as open_store
    from antipodal.stores.client import Client as Client

_HOME = {
    "AGH": "hashers",
    "AntipodalError": "errors",
    "BLU": "neurons",
    "BRE": "hashers",
    "BaseHasher": "hashers",
    "CSQ": "hashers",
    "ClassifierLSH": "hashers",
    "Client": "stores.client",
    "DeepLinf": "hashers",
    "Encoder": "encoders",
    "Evaluation": "evaluation",
    "HELU": "neurons",
    "HammingIndex": "index",
    "ITQ": "hashers",
    "KSH": "hashers",
    "LDAHash": "hashers",
    "LSH": "hashers",
    "LinfEncoder": "encoders",
    "LinfHash": "hashers",
    "LinfSolution": "solver",
    "ListaEncoder": "encoders",
    "NNHash": "hashers",
    "NetworkHasher": "hashers",
    "OneHotHash": "hashers",
    "OrthoHash": "hashers",
    "PSH": "hashers",
    "PlainEncoder": "encoders",
    "SDH": "hashers",
    "SHeLU": "neurons",
    "SignHash": "hashers",
    "SparseHash": "hashers",
    "SpectralHash": "hashers",
    "VectorFile": "reading",
    "Vectors": "index",
    "Vocabulary": "features",
    "bag_of_words": "features",
    "audit": "auditing",
    "create_app": "service",
    "evaluate": "evaluation",
    "gist": "features",
    "ksvd": "dictionary",
    "learn_vocabulary": "features",
    "load": "hashers",
    "open_store": "stores",
    "open_vectors": "reading",
    "pack": "codes",
    "register": "hashers",
    "solve_linf": "solver",
    "unpack": "codes",
}

_ROOMS = ("bulk", "datasets")

__all__ = [*_HOME, *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"antipodal.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'antipodal' has no attribute {name!r}")
    value = getattr(import_module(f"antipodal.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

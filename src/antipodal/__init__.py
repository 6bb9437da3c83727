"""Compress embeddings to binary codes and search them.

The public names are listed in `__init__.pyi` and imported on first use, so that
``import antipodal`` and ``antipodal --help`` do not import PyTorch.
"""

import lazy_loader

__version__ = "0.15.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

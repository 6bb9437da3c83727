"""From an uploaded image to the features that the model was fitted on.

Nothing in an upload is trusted: its base64 is checked here, and everything else in a process of
its own, which counts the pixels by their headers before it decodes any.
"""

import binascii
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from antipodal.service.decoder import GIST_SIDE
from antipodal.service.decoders import Decoders
from antipodal.service.limits import Limits

Floats = NDArray[np.float32]

_PIXELS = re.compile(r"pixels:([1-9]\d{0,3})x([1-9]\d{0,3})(?::(\d+(?:\.\d+)?))?")


class ImageFeatures:
    """A kind of features, by its name on the command line.

    ``gist`` is `antipodal.gist` of the image at 32 × 32 pixels, as for CIFAR-10.
    ``pixels:HxW:TOP`` are H × W grey values from 0 (black) to TOP (white), row by row. Without
    TOP they go to 16, as in the digits of scikit-learn: ``pixels:8x8``.
    """

    def __init__(self, kind: str, limits: Limits) -> None:
        match = _PIXELS.fullmatch(kind)
        self._size: tuple[int, int] | None = None
        if kind == "gist":
            self.n_features = 384
        elif match is not None and float(match[3] or 16) > 0:
            self._size, self._top = (int(match[1]), int(match[2])), float(match[3] or 16)
            self.n_features = self._size[0] * self._size[1]
        else:
            raise ValueError(
                f"images are described by gist or pixels:HxW or pixels:HxW:TOP: got {kind!r}"
            )
        self._decoders: Decoders | None = Decoders.shared(limits)

    def __call__(self, images: Sequence[str]) -> Floats:
        """Return a row of features for each image, given in base64."""
        files = [_file(text, place) for place, text in enumerate(images)]
        decode = self._decoders
        if decode is None:
            raise RuntimeError("these features were closed")
        described = b"".join(decode(files, self._size))
        if self._size is not None:
            greys = np.frombuffer(described, np.float32).reshape(-1, self.n_features)
            return greys * np.float32(self._top / 255)
        from antipodal.features import gist

        colours = np.frombuffer(described, np.uint8)
        return gist(colours.reshape(-1, GIST_SIDE, GIST_SIDE, 3))

    def close(self) -> None:
        """End the processes that decode, unless another model uses them."""
        self._decoders = None


def _file(text: str, place: int) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise ValueError(f"image {place} is not base64: {error}") from None

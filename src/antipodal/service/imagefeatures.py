"""From an uploaded image to the features that the model was fitted on.

Nothing in an upload is trusted: its base64 is checked, only common formats are read, and the
pixels of all images together are counted, by their headers, before any of them is decoded.
"""

import binascii
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from antipodal.service.limits import Limits

Floats = NDArray[np.float32]

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_GIST_SIDE = 32
_PIXELS = re.compile(r"pixels:([1-9]\d{0,3})x([1-9]\d{0,3})(?::(\d+(?:\.\d+)?))?")


class ImageFeatures:
    """A kind of features, by its name on the command line.

    ``gist`` is `antipodal.gist` of the image at 32 × 32 pixels, as for CIFAR-10.
    ``pixels:HxW:TOP`` are H × W grey values from 0 (black) to TOP (white), row by row. Without
    TOP they go to 16, as in the digits of scikit-learn: ``pixels:8x8``.
    """

    def __init__(self, kind: str, limits: Limits) -> None:
        self.kind, self._limits = kind, limits
        self._describe: Callable[[Image.Image], NDArray[Any]]
        match = _PIXELS.fullmatch(kind)
        if kind == "gist":
            self.n_features = 384
            self._describe = _colours
        elif match is not None and float(match[3] or 16) > 0:
            height, width, top = int(match[1]), int(match[2]), float(match[3] or 16)
            self.n_features = height * width
            self._describe = lambda image: _greys(image, height, width, top)
        else:
            raise ValueError(
                f"images are described by gist or pixels:HxW or pixels:HxW:TOP: got {kind!r}"
            )

    def __call__(self, images: Sequence[str]) -> Floats:
        """Return a row of features for each image, given in base64."""
        files = [_file(text, place) for place, text in enumerate(images)]
        self._check_pixels(files)
        described = [
            self._describe(_decode(file, place, self._limits.pixels))
            for place, file in enumerate(files)
        ]
        if self.kind != "gist":
            return np.array(described, np.float32)
        from antipodal.features import gist

        return gist(np.array(described))

    def _check_pixels(self, files: Sequence[bytes]) -> None:
        most, most_together, total = self._limits.pixels, self._limits.request_pixels, 0
        for place, file in enumerate(files):
            # Opened for its header alone: some decoders hold memory for all pixels until closed.
            with _open(file, place, most) as image:
                total += image.width * image.height
            if total > most_together:
                raise ValueError(
                    f"the images of a request may have at most {most_together:,} pixels together: "
                    f"there are more in images 0 to {place} of {len(files)}. Send them in parts"
                )


def _colours(image: Image.Image) -> NDArray[Any]:
    return np.asarray(image.resize((_GIST_SIDE, _GIST_SIDE), Image.Resampling.LANCZOS))


def _greys(image: Image.Image, height: int, width: int, top: float) -> NDArray[Any]:
    """Average over boxes, in floats: as the digits were made, which count the ink in a box."""
    grey = image.convert("L").convert("F").resize((width, height), Image.Resampling.BOX)
    return np.asarray(grey).ravel() * (top / 255)


def _file(text: str, place: int) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise ValueError(f"image {place} is not base64: {error}") from None


def _open(file: bytes, place: int, max_pixels: int) -> Image.Image:
    """Read the header; no pixel is decoded."""
    too_many = ValueError(f"image {place} has too many pixels: at most {max_pixels:,} are taken")
    try:
        image: Image.Image = Image.open(io.BytesIO(file), formats=_FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise too_many from None  # Pillow has a limit of its own
    except Exception:  # a decoder may stumble over a hostile file in any way
        raise ValueError(f"image {place} is not a {', '.join(_FORMATS)} file") from None
    if image.width * image.height > max_pixels:
        raise too_many
    return image


def _decode(file: bytes, place: int, max_pixels: int) -> Image.Image:
    """Return an upright RGB image, laid on white where it is transparent."""
    image = _open(file, place, max_pixels)
    try:
        image.load()
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I;16"):  # `convert` would clip it, not scale it
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if "A" in image.getbands() or "transparency" in image.info:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return image.convert("RGB")
    except Exception as error:
        raise ValueError(f"image {place} cannot be decoded: {error}") from None

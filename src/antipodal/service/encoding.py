"""Encoding: vectors and images to codes."""

import binascii
import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from antipodal.codes import Codes, code_width
from antipodal.embedding import load_embedder
from antipodal.hashers.base import BaseHasher

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
IMAGE_TYPES = tuple(f"image/{name.lower()}" for name in FORMATS)
_GIST_SIDE = 32
_KIND = re.compile(r"pixels:([1-9]\d{0,3})x([1-9]\d{0,3})(?::(\d+(?:\.\d+)?))?")


class InputEncoder:
    """A fitted hasher and, optionally, the features of images: see `ImageFeatures`."""

    def __init__(self, hasher: BaseHasher, images: str | None, max_pixels: int) -> None:
        self.hasher = hasher
        self._images: ImageFeatures | EmbeddedImages | None = None
        if images is not None:
            self._images = load_image_features(images, hasher.n_features_in_, max_pixels)

    @property
    def accepts_images(self) -> bool:
        """Whether image features are configured."""
        return self._images is not None

    def rows(self, vectors: Sequence[Sequence[float]]) -> NDArray[np.float32]:
        """Return vectors as an array; raise ValueError if one has another number of values."""
        n_features = self.hasher.n_features_in_
        for position, vector in enumerate(vectors):
            if len(vector) != n_features:
                raise ValueError(
                    f"vectors must have {n_features} values, like the training data of the model: "
                    f"vector {position} has {len(vector)}"
                )
        with np.errstate(over="ignore"):  # infinities are reported by the hasher, with their row
            return np.array(vectors, np.float64).reshape(-1, n_features).astype(np.float32)

    def image_features(self, image: str | bytes) -> NDArray[np.float32]:
        """Return the features of an image, given as a file or in base64, as one row."""
        if self._images is None:
            raise ValueError(
                "this service accepts no images: it was started without --images. Send vectors"
            )
        return self._images(decode_base64(image) if isinstance(image, str) else image)

    def encode(self, rows: NDArray[Any]) -> Codes:
        """Return the packed codes of vectors."""
        if not len(rows):  # hashers require at least one row
            return np.empty((0, code_width(self.hasher.n_bits)), np.uint8)
        return self.hasher.encode(rows)


class ImageFeatures:
    """The features that a model was fitted on, computed from an image file.

    Parameters
    ----------
    kind : str
        ``gist`` is `antipodal.gist` of the image at 32 × 32 pixels. ``pixels:HxW:TOP`` is H × W
        grey values from 0 (black) to TOP (white), row by row. TOP is 16 by default, as in the
        digits of scikit-learn: ``pixels:8x8``.
    max_pixels : int
        Larger images are refused by their header, before they are decoded.
    """

    def __init__(self, kind: str, max_pixels: int) -> None:
        match = _KIND.fullmatch(kind)
        self._size: tuple[int, int] | None = None
        self._max_pixels = max_pixels
        if kind == "gist":
            self.n_features = 384
        elif match is not None and float(match[3] or 16) > 0:
            self._size, self._top = (int(match[1]), int(match[2])), float(match[3] or 16)
            self.n_features = self._size[0] * self._size[1]
        else:
            raise ValueError(
                "image features must be gist, pixels:HxW, pixels:HxW:TOP or module:function: got "
                f"{kind!r}"
            )

    def __call__(self, file: bytes) -> NDArray[np.float32]:
        """Return one row of features."""
        image = _decode(file, self._max_pixels)
        if self._size is None:
            from antipodal.features import gist

            small = image.resize((_GIST_SIDE, _GIST_SIDE), Image.Resampling.LANCZOS)
            return gist(np.asarray(small)[None])
        # Box averages in floating point: the digits count the ink in each box.
        grey = image.convert("L").convert("F")
        height, width = self._size
        levels = np.asarray(grey.resize((width, height), Image.Resampling.BOX), np.float32)
        return levels.reshape(1, -1) * np.float32(self._top / 255)


class EmbeddedImages:
    """The vectors of image files by a Python function, `module:function`.

    The function maps a list of the bytes of image files to an array with one row for each.
    """

    def __init__(self, spec: str, n_features: int, max_pixels: int) -> None:
        self.n_features, self._max_pixels = n_features, max_pixels
        self._embedder = load_embedder(spec)

    def __call__(self, file: bytes) -> NDArray[np.float32]:
        """Return the vector of one image, after checking that it is an image."""
        _decode(file, self._max_pixels)
        return self._embedder.images([file], self.n_features)


def load_image_features(
    kind: str, n_features: int, max_pixels: int
) -> ImageFeatures | EmbeddedImages:
    """Return the function from an image file to its features: see `ImageFeatures`.

    Raise ValueError if it computes another number of features than the model was fitted on.
    """
    if ":" in kind and not kind.startswith("pixels:"):
        return EmbeddedImages(kind, n_features, max_pixels)
    features = ImageFeatures(kind, max_pixels)
    if features.n_features != n_features:
        raise ValueError(
            f"{kind} computes {features.n_features} features, but the model was fitted on "
            f"{n_features}"
        )
    return features


def decode_base64(text: str) -> bytes:
    """Return the bytes of a base64 string."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise ValueError(f"the image is not base64: {error}") from None


def _decode(file: bytes, max_pixels: int) -> Image.Image:
    """Return an upright RGB image on a white background."""
    try:
        opened = Image.open(io.BytesIO(file), formats=FORMATS)  # reads the header only
    except Image.DecompressionBombError as error:  # Pillow's own limit
        raise ValueError(f"the image has too many pixels: {error}") from None
    except Exception:  # decoders raise many types for malformed files
        raise ValueError(f"the image is not a {', '.join(FORMATS)} file") from None
    with opened as image:
        if image.width * image.height > max_pixels:
            raise ValueError(
                f"the image has too many pixels: {image.width} × {image.height}, and at most "
                f"{max_pixels:,} are accepted"
            )
        try:
            image.load()
            return _as_rgb(ImageOps.exif_transpose(image))
        except Exception as error:
            raise ValueError(f"the image cannot be decoded: {error}") from None


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):  # `convert` to 8 bits would clip instead of scale
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")

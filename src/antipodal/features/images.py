"""Images in a folder, in files or in an array, read one at a time."""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.errors import AntipodalError, missing_extra

ByteImage = NDArray[np.uint8]  # (h, w)
ImageSource = ByteImage | list[Path]  # (m, h, w) or (m, h, w, 3), or m files
Images = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | NDArray[np.uint8]

_EXTENSIONS = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def image_files(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the image files in a folder and its subfolders, in a fixed order.

    Image files end in bmp, jpeg, jpg, png, tif, tiff or webp, in upper or lower case; hidden files
    are skipped. Files and folders are sorted by the code points of their names, so that the order
    is the same on every machine. Descriptors of a folder have the same order.
    """
    root = Path(folder)
    found = []
    try:
        for parent, _, names in os.walk(root, onerror=_reraise):
            found += [
                Path(parent, name)
                for name in names
                if name.lower().endswith(_EXTENSIONS) and not name.startswith(".")
            ]
    except OSError as error:
        # The folder is missing, or a subfolder is unreadable: its images would be missing.
        raise AntipodalError(f"cannot read {error.filename}: {error.strerror or error}") from error
    if not found:
        raise AntipodalError(
            f"{root} contains no images: no file in it or in its subfolders ends in "
            f"{', '.join(_EXTENSIONS)}"
        )
    return sorted(found, key=lambda file: file.relative_to(root).parts)


def open_images(images: Images) -> ImageSource:
    """Return an array unchanged, and a folder or a sequence of paths as a list of files."""
    if isinstance(images, (str, os.PathLike)):
        return image_files(images)
    if isinstance(images, np.ndarray):
        return _check_array(images)
    expected = "images must be a folder, a sequence of paths, or an array of uint8"
    if not isinstance(images, Sequence) or isinstance(images, (bytes, bytearray)):
        raise TypeError(f"{expected}: got {type(images).__name__}")
    if not images:
        raise ValueError(f"{expected}: got an empty {type(images).__name__}")
    for path in images:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(
                f"{expected}: got a {type(images).__name__} with a {type(path).__name__}. "
                "Convert images of one size to an array: np.stack(images)"
            )
    return [Path(path) for path in images]


def read_grey(source: ImageSource, index: int, size: int) -> ByteImage:
    """Return an image in grey, resized to size × size pixels.

    Grey is 0.299 R + 0.587 G + 0.114 B. Longer sides are averaged, shorter sides interpolated.
    """
    cv2 = opencv()
    if isinstance(source, list):
        grey = cv2.cvtColor(_decode(source[index]), cv2.COLOR_BGR2GRAY)
    elif source.ndim == 4:
        grey = cv2.cvtColor(np.ascontiguousarray(source[index]), cv2.COLOR_RGB2GRAY)
    else:
        grey = np.ascontiguousarray(source[index])
    height, width = grey.shape
    # OpenCV averages areas only if both sides shrink: shrink first, then enlarge.
    shrunk = cv2.resize(grey, (min(width, size), min(height, size)), interpolation=cv2.INTER_AREA)
    resized: ByteImage = cv2.resize(shrunk, (size, size), interpolation=cv2.INTER_LINEAR)
    return resized


def opencv() -> Any:
    """Return the module cv2, of the extra `images`."""
    try:
        return import_module("cv2")
    except ImportError as error:
        raise AntipodalError(
            missing_extra("SIFT", "OpenCV", "images")
            if isinstance(error, ModuleNotFoundError) and error.name == "cv2"
            else f"SIFT needs OpenCV, which is installed but cannot be imported: {error}"
        ) from error


def _decode(path: Path) -> ByteImage:
    """Read an image file as (h, w, 3) in BGR order, rotated according to its orientation tag."""
    cv2 = opencv()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise AntipodalError(f"cannot read {path}: {error.strerror or error}") from error
    if not data:
        raise AntipodalError(f"cannot read {path}: it is empty")
    if data.startswith(b"\xff\xd8") and not _has_jpeg_end(data):
        raise AntipodalError(f"cannot read {path}: the JPEG file is truncated")
    try:
        image: ByteImage | None = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:  # such as an image larger than OpenCV's limit
        raise AntipodalError(f"cannot read {path}: {error.err}") from error
    if image is None:
        raise AntipodalError(f"cannot read {path}: not an image, or truncated or damaged")
    return image


def _has_jpeg_end(data: bytes) -> bool:
    """Return whether an end marker follows the start of the scan.

    OpenCV 4 decodes truncated JPEG files, and leaves the missing part grey. The segments before
    the scan are skipped by their lengths, since an embedded thumbnail has its own end marker.
    Within the scan the two bytes of the marker cannot occur.
    """
    at = 2
    while at + 4 <= len(data) and data[at + 1] != 0xDA:
        is_padding = data[at + 1] == 0xFF
        at += 1 if is_padding else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return data.find(b"\xff\xd9", at) >= 0


def _check_array(images: NDArray[Any]) -> ByteImage:
    if images.dtype != np.uint8:
        raise TypeError(
            f"an array of images must be uint8, from 0 to 255: got {images.dtype}. Were they "
            "scaled or standardised? Pass file names as a list"
        )
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3):
        raise ValueError(
            "an array of images must be (m, h, w) grey or (m, h, w, 3) colour: got shape "
            f"{images.shape}. Are the channels first? Pass a single image as images[None]"
        )
    if images.size == 0:
        raise ValueError(f"images must have at least one pixel: got shape {images.shape}")
    return images


def _reraise(error: OSError) -> None:
    raise error

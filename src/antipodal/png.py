"""Small grey images as PNG: the thumbnails of the demonstration need no imaging library."""

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray


def png(image: NDArray[np.uint8]) -> bytes:
    r"""Write a grey image (height, width) as a PNG file.

    Examples
    --------
    >>> png(np.zeros((2, 3), np.uint8))[:8]
    b'\x89PNG\r\n\x1a\n'
    """

    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)

    height, width = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)  # eight bits, grey
    lines = b"".join(b"\0" + row.tobytes() for row in image)  # each behind its filter: none
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines, 9)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def data_url(image: NDArray[np.uint8]) -> str:
    """Return a grey image as the address of a picture that a page can show as it is."""
    return "data:image/png;base64," + base64.b64encode(png(image)).decode()

"""A program that decodes images, apart from the service: `decoders` starts it, and may kill it.

It is run as a file and imports nothing of antipodal, so that it starts at once and stays small.
It ends with its standard input, which closes however the service ends, and when a job takes longer
than it may. A message is the length of a JSON object in four bytes, the object, and bytes whose
number the object has in `sizes`, one after the other.

    →  {size, pixels, request_pixels, seconds, sizes} and the files
    ←  {pixels: of all images together}, read off their headers
    →  {go: whether they may be decoded}
    ←  {sizes} and what describes each image; in place of either answer, {error: what is wrong}
"""

import io
import json
import signal
import struct
import sys
from collections.abc import Sequence
from typing import IO, Any

from PIL import Image, ImageOps

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
GIST_SIDE = 32
_LENGTH = struct.Struct("<I")
_MEMORY = 2 << 30  # bytes of address space, most of it never used: a limit for broken decoders


def write(stream: IO[bytes], head: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
    """Send a message."""
    text = json.dumps(head | {"sizes": [len(part) for part in parts]}).encode()
    stream.write(b"".join((_LENGTH.pack(len(text)), text, *parts)))
    stream.flush()


def read(stream: IO[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Receive a message; raise EOFError if there is none, or half of one."""
    head = json.loads(_exactly(stream, _LENGTH.unpack(_exactly(stream, _LENGTH.size))[0]))
    return head, [_exactly(stream, size) for size in head["sizes"]]


def count_pixels(files: Sequence[bytes], most: int, most_together: int) -> int:
    """Return the pixels of all images, by their headers; refuse what is more than allowed."""
    total = 0
    for place, file in enumerate(files):
        # Opened for its header alone: some decoders hold memory for all pixels until closed.
        with _open(file, place, most) as image:
            total += image.width * image.height
        if total > most_together:
            raise ValueError(
                f"the images of a request may have at most {most_together:,} pixels together: "
                f"there are more in images 0 to {place} of {len(files)}. Send them in parts"
            )
    return total


def describe(file: bytes, place: int, size: Sequence[int] | None, most: int) -> bytes:
    """Return an image as bytes: RGB, 32 × 32, or for a size (height, width) grey float32 values."""
    image = _decode(file, place, most)
    if size is None:
        return image.resize((GIST_SIDE, GIST_SIDE), Image.Resampling.LANCZOS).tobytes()
    # Averaged over boxes, in floats: as the digits were made, which count the ink in a box.
    grey = image.convert("L").convert("F")
    return grey.resize((size[1], size[0]), Image.Resampling.BOX).tobytes()


def main() -> None:
    """Do one job after the other."""
    Image.MAX_IMAGE_PIXELS = None  # there is a limit of ours
    _limit_memory()
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            job, files = read(jobs)
        except EOFError:
            return
        _set_alarm(job["seconds"])
        try:
            write(answers, {"pixels": count_pixels(files, job["pixels"], job["request_pixels"])})
            if not read(jobs)[0]["go"]:
                continue
            size, most = job["size"], job["pixels"]
            parts = [describe(file, place, size, most) for place, file in enumerate(files)]
            write(answers, {}, parts)
        except ValueError as error:
            write(answers, {"error": str(error)})
        finally:
            _set_alarm(0)


def _open(file: bytes, place: int, max_pixels: int) -> Image.Image:
    """Read the header; no pixel is decoded."""
    try:
        image: Image.Image = Image.open(io.BytesIO(file), formats=FORMATS)
    except Exception:  # a decoder may stumble over a hostile file in any way
        raise ValueError(f"image {place} is not a {', '.join(FORMATS)} file") from None
    if image.width * image.height > max_pixels:
        raise ValueError(f"image {place} has too many pixels: at most {max_pixels:,} are taken")
    return image


def _decode(file: bytes, place: int, max_pixels: int) -> Image.Image:
    """Return an upright RGB image, laid on white where it is transparent."""
    image = _open(file, place, max_pixels)
    try:
        image.load()
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I;16"):  # `convert` to 8 bits would clip it, not scale it
            image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
        if "A" in image.getbands() or "transparency" in image.info:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return image.convert("RGB")
    except Exception as error:
        raise ValueError(f"image {place} cannot be decoded: {error}") from None


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _set_alarm(seconds: float) -> None:
    """End this process by a signal after some seconds, even if nobody is left to kill it."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


if __name__ == "__main__":
    main()

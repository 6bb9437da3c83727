"""What one request may ask for."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Limits:
    """Bounds on a request, all but `waiting` an option of `antipodal serve`.

    Parameters
    ----------
    body : int
        Bytes of a JSON body, and of every body that does not declare a binary media type. It is
        refused while it is read, whatever length it declared.
    binary_body : int
        Bytes of a binary body: raw float32 or an Arrow stream.
    batch : int
        Vectors, codes, images, items or ids in one request.
    k : int
        Neighbours of one search, and items of one sample.
    results : int
        Items that a radius search returns, the nearest first; all of them are counted.
    found : int
        Items that one request finds, all its queries together.
    histogram : int
        Items over which a histogram of distances is counted.
    pixels : int
        Of one image, as it was encoded.
    request_pixels : int
        Of all images in one request together.
    key_pixels : int
        Of all images that are decoded for one key at a time, in one worker; one request is
        always taken.
    seconds : float
        For reading the body, and then for answering.
    threads : int
        Searches and encodings at a time, in one worker.
    waiting : int
        Requests that wait for a thread, in one worker; more are sent away. An eighth as many with
        images, which take longer.
    """

    body: int = 1 << 20
    binary_body: int = 8 << 20
    batch: int = 1_000
    k: int = 1_000
    results: int = 1_000
    found: int = 100_000
    histogram: int = 1_000_000
    pixels: int = 16_000_000
    request_pixels: int = 64_000_000
    key_pixels: int = 64_000_000
    seconds: float = 30.0
    threads: int = 2
    waiting: int = 256

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise ValueError(f"the limit {field.name} must be more than 0: got {value}")

    def check_batch(self, n: int, what: str) -> None:
        """Refuse a request for more than one batch."""
        if n > self.batch:
            raise ValueError(
                f"a request may have at most {self.batch} {what}: got {n}. Send them in parts"
            )

    def check_counted(self, n: int) -> None:
        """Refuse a histogram over too many items."""
        if n > self.histogram:
            raise ValueError(
                f"a histogram is counted over at most {self.histogram:,} items: there are {n:,}. "
                "Narrow them by where, or leave histogram out"
            )

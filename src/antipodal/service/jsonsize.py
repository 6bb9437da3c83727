"""JSON that is small until it is parsed: two bytes of it can become a hundred in memory."""

import numpy as np

from antipodal.service.limits import Limits

_BYTES_OF_A_VALUE = 8
_LISTS_OF_AN_ITEM = 32  # and objects


def check_size(body: bytes, limits: Limits) -> None:
    """Refuse JSON with more values than a body has if it is of use, or more lists than a batch.

    Its brackets and commas are counted, and only if there are many, those in strings left out.
    """
    n_values, n_lists = limits.body // _BYTES_OF_A_VALUE, _LISTS_OF_AN_ITEM * limits.batch
    if _has_more(body, n_values, n_lists) and _has_more(_outside(body), n_values, n_lists):
        raise ValueError(
            f"JSON may have at most {n_values:,} values, and {n_lists:,} lists and objects: "
            "send it in parts"
        )


def _has_more(text: bytes, n_values: int, n_lists: int) -> bool:
    return text.count(b",") > n_values or text.count(b"[") + text.count(b"{") > n_lists


def _outside(body: bytes) -> bytes:
    """Return what is not in strings; without a loop in Python, for there may be very many."""
    letters = np.frombuffer(body.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    inside = np.logical_xor.accumulate(letters == ord('"'))
    return letters[~inside].tobytes()

"""Wrong keys, by the address they come from: after a few, the answers to them come slowly.

Only answers to wrong keys wait, so a right key is never held up, not even from the same address.
"""

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

_FREE = 10  # wrong keys of an address that are answered at once
_EVERY = 1.0  # seconds in which one more is forgiven
_LONGEST = 10.0  # seconds of waiting
_MOST_ADDRESSES = 10_000  # that are remembered


class Guesses:
    """When the answer to a wrong key is due: each address has `_FREE`, then one every second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: OrderedDict[str, float] = OrderedDict()  # when all would be forgiven

    def wait(self, client: tuple[str, int] | None) -> float:
        """Return for how many seconds the answer to a wrong key is withheld."""
        address, now = network(client[0] if client else ""), self._clock()
        due = max(now, self._due.pop(address, now)) + _EVERY
        self._due[address] = min(due, now + _LONGEST + _FREE * _EVERY)
        while len(self._due) > _MOST_ADDRESSES:
            self._due.popitem(last=False)
        return min(max(0.0, due - now - _FREE * _EVERY), _LONGEST)


def network(host: str) -> str:
    """Return what one guesser has: an IPv4 address, but of IPv6 a whole network of 64 bits."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False))

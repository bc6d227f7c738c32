"""Slows who tries wrong tokens or secrets: counts failures by address, in a bounded table. Pure but for the
clock.

Each owner has one of its own and asks it on one thread.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

FAILURES: Final = 10
WINDOW_S: Final = 60.0
MOST_ADDRESSES: Final = 1024
"""More are forgotten, those whose failures are oldest first."""


def is_loopback(address: str) -> bool:
    """Whether an address is of this machine; what is no address is not."""
    found = _parsed(address)
    return found is not None and found.is_loopback


class Throttle:
    """Who has failed `FAILURES` times within `WINDOW_S` waits until these seconds are over.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Address -> end of its window, failures in it; by the end of the window."""

    def __len__(self) -> int:
        return len(self._failures)

    def note_failure(self, address: str) -> None:
        """Count a failure."""
        key, now = _network(address), self._clock()
        until_s, count = self._failures.get(key, (0.0, 0))
        if now >= until_s:
            self._failures.pop(key, None)
            until_s, count = now + WINDOW_S, 0
        self._failures[key] = (until_s, count + 1)
        if len(self._failures) > MOST_ADDRESSES:
            self._failures.popitem(last=False)

    def wait_s(self, address: str) -> int:
        """Return for how many seconds an address is refused; 0 where it is not."""
        until_s, count = self._failures.get(_network(address), (0.0, 0))
        left_s = until_s - self._clock()
        return max(int(left_s) + 1, 1) if count >= FAILURES and left_s > 0 else 0


def _network(address: str) -> str:
    """Who has one IPv6 address has the 2**64 of its network, and who is on this machine all of 127/8."""
    found = _parsed(address)
    if found is None:
        return address[:100]
    if found.is_loopback:
        return "loopback"
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(ipaddress.ip_network((found, 64), strict=False))


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address, an IPv4 one written as IPv6 as what it is; None where it is none."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return None
    return (found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None) or found

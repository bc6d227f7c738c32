"""How many connections there may be, by how many files the process may open. Pure but for that limit."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

WANTED: Final = 8192
"""Open files of a server with as many connections as it takes."""
OWN: Final = 32
"""What a server holds open without any."""
LEAST: Final = 4


def raise_limit() -> None:
    """Allow this process as many open files as it may have, up to `WANTED`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def most_connections(most: int, *, part: float) -> int:
    """Return how many connections may be open.

    Args:
        most: where the limit of the process allows it.
        part: of the files that the process may open besides its own.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return most
    return min(most, max(int((limit - OWN) * part), LEAST))

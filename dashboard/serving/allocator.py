"""Has the C library give memory back: called once by `serve`, before anything large is allocated.

By itself glibc raises the size from which a block is a mapping of its own, up to 32 MiB, with every larger
block that is freed, and keeps what is freed below that in up to eight arenas a processor. A server that makes
and frees arrays all day then holds tens of megabytes that nobody uses.
"""

from __future__ import annotations

import ctypes
from typing import Final

ARENAS: Final = 2
MAPPED_FROM_BYTES: Final = 128 * 1024
TRIMMED_FROM_BYTES: Final = 1024 * 1024
_SETTINGS: Final = {-8: ARENAS, -3: MAPPED_FROM_BYTES, -1: TRIMMED_FROM_BYTES}
"""M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h."""


def give_memory_back() -> bool:
    """Set the three; whether all are set, which they are not where the C library is another one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    taken = [mallopt(name, value) for name, value in _SETTINGS.items()]
    return all(taken)

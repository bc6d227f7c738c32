"""Memory as the operating system sees it, of this process and of the machine: the only place that asks.

The helper, which looks at processes from outside, asks in `helper/census.py`. Reads small files; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """Memory as the operating system sees it, read about once a second."""

    rss_bytes: int
    """Resident memory of the training process."""
    system_used_bytes: int
    system_total_bytes: int


def read_memory() -> MemorySample | None:
    """Read this process's resident memory and the machine's; None where the system does not tell."""
    try:
        machine = psutil.virtual_memory()
        return MemorySample(
            rss_bytes=resident_bytes(),
            system_used_bytes=machine.total - machine.available,
            system_total_bytes=machine.total,
        )
    except (psutil.Error, OSError):
        return None


def resident_bytes() -> int:
    """Read this process's resident memory.

    Raises:
        psutil.Error: the system does not tell.
    """
    return int(psutil.Process().memory_info().rss)


def read_swap() -> float:
    """Read the bytes of the machine's swap space that are in use."""
    return float(psutil.swap_memory().used)

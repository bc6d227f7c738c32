"""Memory as the operating system sees it, of this process and of the machine: the only place that asks.

The helper, which looks at processes from outside, asks in `helper/census.py`. Reads small files; any thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

import psutil

_MACHINE: Final = "/proc/meminfo"
_OWN: Final = "/proc/self/statm"
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_FILE_BYTES: Final = 8192
_KIB: Final = 1024


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
        total, available = machine_bytes()
        return MemorySample(
            rss_bytes=resident_bytes(),
            system_used_bytes=total - available,
            system_total_bytes=total,
        )
    except (psutil.Error, OSError):
        return None


def resident_bytes() -> int:
    """Read this process's resident memory.

    Raises:
        psutil.Error: the system does not tell.
    """
    # psutil makes an object and reads four files for it: too dear for once a second, for ever.
    try:
        return int(_read(_OWN).split(maxsplit=2)[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return int(psutil.Process().memory_info().rss)


def machine_bytes() -> tuple[int, int]:
    """Return the bytes of the machine's memory, and of that what programs could get.

    Raises:
        psutil.Error: the system does not tell.
        OSError: the same.
    """
    try:
        total, _, available = _read(_MACHINE).split(b"\n", 3)[:3]
        if total.startswith(b"MemTotal:") and available.startswith(b"MemAvailable:"):
            return int(total.split()[1]) * _KIB, int(available.split()[1]) * _KIB
    except (OSError, ValueError, IndexError):
        pass
    machine = psutil.virtual_memory()
    return int(machine.total), int(machine.available)


def _read(path: str) -> bytes:
    # Opened each time: a descriptor would tell a forked child of its parent.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _FILE_BYTES)
    finally:
        os.close(descriptor)


def read_swap() -> float:
    """Read the bytes of the machine's swap space that are in use."""
    return float(psutil.swap_memory().used)

"""Memory as the operating system sees it, of this process and of the machine: the only place that asks.

The helper, which looks at processes from outside, asks in `helper/census.py`. Reads small files; any thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ..guard import let_pass
from .utilisation import Utilisation

_MACHINE: Final = "/proc/meminfo"
_OWN: Final = "/proc/self/statm"
_OWN_PAGES: Final = "/proc/self/smaps_rollup"
_PRIVATE: Final = (b"Private_Clean", b"Private_Dirty", b"Private_Hugetlb")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_FILE_BYTES: Final = 8192
_KIB: Final = 1024


class MemorySample(msgspec.Struct, frozen=True, kw_only=True):
    """Memory as the operating system sees it, read about once a second."""

    rss_bytes: int
    """Resident memory of the training process."""
    system_used_bytes: int
    system_total_bytes: int
    utilisation: Utilisation | None = None
    """Since the sample before; None where nobody has measured it."""


def read_memory() -> MemorySample | None:
    """Read this process's resident memory and the machine's; None where the system does not tell."""
    try:
        total, available = machine_bytes()
        return MemorySample(
            rss_bytes=resident_bytes(),
            system_used_bytes=total - available,
            system_total_bytes=total,
        )
    except OSError as error:
        let_pass(error)
        return None


def resident_bytes() -> int:
    """Read this process's resident memory.

    Raises:
        OSError: the system does not tell.
    """
    try:
        return int(_read(_OWN).split(maxsplit=2)[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError) as error:
        let_pass(error)
        return int(_asked(lambda psutil: psutil.Process().memory_info()).rss)


def private_bytes_of(pid: int) -> int | None:
    """Read another process's resident bytes that no file lies behind; None where nothing tells them."""
    try:
        _, resident, shared = _read(f"/proc/{pid}/statm").split()[:3]
    except (OSError, ValueError) as error:
        let_pass(error)
        return None
    return (int(resident) - int(shared)) * _PAGE_BYTES


def unique_bytes() -> int:
    """Read what would be free if this process alone ended (USS): pages that it shares with nobody.

    The kernel walks all pages for it, 10 ms for each GiB: not on the thread that trains, unless it is asked
    for there. Python's lock is free meanwhile.

    Raises:
        OSError: the system does not tell.
    """
    try:
        lines = dict(line.split(b":", 1) for line in _read(_OWN_PAGES).splitlines() if b":" in line)
        return sum(int(lines[name].split()[0]) * _KIB for name in _PRIVATE if name in lines)
    except (OSError, ValueError, IndexError) as error:
        let_pass(error)
        return int(_asked(lambda psutil: psutil.Process().memory_full_info()).uss)


def machine_bytes() -> tuple[int, int]:
    """Return the bytes of the machine's memory, and of that what programs could get.

    Raises:
        OSError: the system does not tell.
    """
    try:
        total, available = _of_machine(b"MemTotal", b"MemAvailable")
        return total, available
    except (OSError, ValueError, LookupError) as error:
        let_pass(error)
        machine = _asked(lambda psutil: psutil.virtual_memory())
        return int(machine.total), int(machine.available)


def read_swap() -> float:
    """Read the bytes of the machine's swap space that are in use.

    Raises:
        OSError: the system does not tell.
    """
    try:
        total, free = _of_machine(b"SwapTotal", b"SwapFree")
        return float(total - free)
    except (OSError, ValueError, LookupError) as error:
        let_pass(error)
        return float(_asked(lambda psutil: psutil.swap_memory()).used)


def _of_machine(*names: bytes) -> list[int]:
    lines = dict(line.split(b":", 1) for line in _read(_MACHINE).splitlines() if b":" in line)
    return [int(lines[name].split()[0]) * _KIB for name in names]


def _asked(read: Callable[[Any], Any]) -> Any:
    """Ask psutil, which is not loaded where files tell all, and takes four of them for one answer."""
    import psutil

    try:
        return read(psutil)
    except psutil.Error as error:
        raise OSError(f"psutil cannot read memory: {error}") from error


def _read(path: str) -> bytes:
    # Opened each time: a descriptor would tell a forked child of its parent.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _FILE_BYTES)
    finally:
        os.close(descriptor)

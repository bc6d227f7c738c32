"""Who appends to a ring, and whether that process still lives: told by its start, not by its id alone."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from typing import Final

from .ring_header import Owner

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_VIEW: Final = Path("/proc/self/ns/pid")
_SILENT_S: Final = 60.0
"""A ring that another machine, or another container, has not written for so long has no owner any more."""


def own_identity() -> Owner:
    """Return this process."""
    return Owner(os.getpid(), _started_ticks(os.getpid()) or 0, _boot())


def is_alive(owner: Owner, *, silent_s: float) -> bool:
    """Whether the process that appends to a ring is still there.

    Args:
        owner: as the ring names it.
        silent_s: seconds since the ring's file was last written; decides where the process cannot be seen.
    """
    if owner.boot != _boot() or not owner.started_ticks:
        return silent_s < _SILENT_S
    return _started_ticks(owner.pid) == owner.started_ticks


def _started_ticks(pid: int) -> int | None:
    """When a process began, in clock ticks since the boot; None where it is gone, or about to be."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    return None


def _boot() -> int:
    """Identify this boot and this view of its processes: in another one the same id is another process."""
    view = ""
    with contextlib.suppress(OSError):
        view = str(_VIEW.readlink()) + _BOOT_ID.read_text()
    return zlib.crc32(view.encode())

"""Whether a training's process still lives: told by its start, not by its id alone.

Asked of rings by the helper and the readers, and of what a run's start says of its process by whoever shows
the run's state.
"""

from __future__ import annotations

import os
import socket
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Final

from ...guard import suppressed
from ...wire import RunStart
from .ring_header import Owner

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_VIEW: Final = Path("/proc/self/ns/pid")
_CLOCK_TOLERANCE_S: Final = 2.0
"""A process that began this much after a start was noted is another one of the same id."""
_SILENT_S: Final = 60.0
"""A ring that another machine, or another container, has not written for so long has no owner any more."""


NOBODY: Final = Owner(0, 1, 0)
"""Of a ring that its process has left behind: wherever it is read, nobody appends to it."""


def own_identity() -> Owner:
    """Return this process."""
    return Owner(os.getpid(), _started_ticks(os.getpid()) or 0, _boot())


def is_alive(owner: Owner, *, silent_s: float) -> bool:
    """Whether the process that appends to a ring is still there.

    Args:
        owner: as the ring names it.
        silent_s: seconds since the ring's file was last written; decides where the process cannot be seen.
    """
    if owner == NOBODY:
        return False
    if owner.boot != _boot() or not owner.started_ticks:
        return silent_s < _SILENT_S
    return _started_ticks(owner.pid) == owner.started_ticks


def is_of_this_boot(owner: Owner) -> bool:
    """Whether the machine has been up since: all that a process wrote to mapped memory is in the file."""
    return owner == NOBODY or owner.boot == _boot()


def is_gone(start: RunStart, *, is_local: bool = False) -> bool | None:
    """Whether the process that a start describes is no more; None where this process cannot see that.

    Another machine, another container, and a boot before this one cannot be looked into. An older probe has
    written no more than a host, an id and a time: a process of that id which began later is another one.

    Args:
        start: as its process has written it.
        is_local: a start that names no host is of this one.
    """
    if start.boot:
        if start.boot != _boot() or not start.started_ticks:
            return None
        return _started_ticks(start.pid) != start.started_ticks
    host = socket.gethostname()
    if not start.pid or (start.host or (host if is_local else "")) != host:
        return None
    ticks = _started_ticks(start.pid)
    return ticks is None or _began_s(ticks) > start.time + _CLOCK_TOLERANCE_S


def _began_s(ticks: int) -> float:
    """UNIX seconds at which a process began, by the clock as it is set now."""
    import psutil

    return float(psutil.boot_time()) + ticks / os.sysconf("SC_CLK_TCK")


def _started_ticks(pid: int) -> int | None:
    """When a process began, in clock ticks since the boot; None where it is gone, or about to be."""
    with suppressed(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    return None


@lru_cache(maxsize=2)
def _boot_of(pid: int) -> int:
    """`_boot`, once for each process: a fork may be followed by another view."""
    del pid
    view = ""
    with suppressed(OSError):
        view = str(_VIEW.readlink()) + _BOOT_ID.read_text()
    return zlib.crc32(view.encode())


def _boot() -> int:
    """Identify this boot and this view of its processes: in another one the same id is another process."""
    return _boot_of(os.getpid())

"""How a process ended that is not our child: asked of the kernel through a pidfd, opened while it lived.

Linux 6.15 and newer keep the wait status for who holds a pidfd, also after its parent has taken it; older
kernels have it only until then, in `/proc/<pid>/stat`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import Final

_INFO_BYTES: Final = 64
"""C `struct pidfd_info` as of Linux 6.13: mask u64, cgroup u64, eleven u32, exit code i32."""
_GET_INFO: Final = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11
_EXIT: Final = 1 << 3
_EXIT_CODE_AT: Final = 60


class ProcessEnd:
    """Holds a pidfd of one process; `close` gives it back."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            self._descriptor = os.pidfd_open(pid)

    def status(self) -> int | None:
        """Return the wait status; None while it lives, and where nobody knows it."""
        status = self._asked()
        return read_exit_code(self._pid) if status is None else status

    def _asked(self) -> int | None:
        if self._descriptor is None:
            return None
        info = bytearray(_INFO_BYTES)
        struct.pack_into("<Q", info, 0, _EXIT)
        try:
            fcntl.ioctl(self._descriptor, _GET_INFO, info)
        except OSError:
            return None  # an older kernel, or it lives
        (mask,) = struct.unpack_from("<Q", info)
        return int(struct.unpack_from("<i", info, _EXIT_CODE_AT)[0]) if mask & _EXIT else None

    def close(self) -> None:
        """Close the pidfd. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def read_exit_code(pid: int) -> int | None:
    """Return the wait status of a process that nobody has waited for yet; None where it cannot be read."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text()
        fields = text.rpartition(")")[2].split()
        if fields[0] == "Z":
            return int(fields[49])
    return None

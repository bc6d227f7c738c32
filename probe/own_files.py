"""The files that the probe holds open beside a script that may close any descriptor, as daemons do.

A number that the script has closed may be a file of the script's by now. So every use asks whether it is
still ours, by device and inode, and ours lie where scripts seldom look: at 64 and above, never at 0, 1 or 2.
Any thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import Final

from .guard import is_from_signal, let_pass, suppressed

LOWEST: Final = 64
"""Above what a script counts on getting next, and below `select`'s limit of 1,024."""
_ONCE: Final = os.O_CREAT | os.O_EXCL | os.O_TRUNC
_reopened: list[str] = []
_MOST_NAMES: Final = 64


def lift(descriptor: int) -> int:
    """Return a descriptor of the same file at 64 or above, else the highest that is free; close this one."""
    if descriptor >= LOWEST:
        return descriptor
    # Where the limit is below 64, or all above are taken, the first that succeeds is the highest free one.
    for lowest in range(LOWEST, descriptor, -1):
        with suppressed(OSError):
            lifted = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
            os.close(descriptor)
            return lifted
    return descriptor


def closed_by_script() -> tuple[str, ...]:
    """Return the names of the files that somebody else had closed, and that were opened again, in order."""
    return tuple(_reopened)


class OwnFile:
    """A file that stays open; `descriptor` is to be asked for before every use, and not kept.

    Args:
        path: absolute.
        flags: of `os.open`; a new file gets the mode 0600.

    Raises:
        OSError: it cannot be opened.
    """

    __slots__ = ("_descriptor", "_flags", "_lock", "_status", "path")

    def __init__(self, path: Path, flags: int) -> None:
        self.path = path
        self._flags = flags | os.O_CLOEXEC
        self._lock = threading.RLock()
        self._descriptor = lift(os.open(path, self._flags, 0o600))
        self._status = os.fstat(self._descriptor)

    def descriptor(self) -> int:
        """Return the descriptor; where somebody has closed it, the file is opened again.

        Raises:
            OSError: it is closed, or somebody has closed it and the file is not there any more.
        """
        if self._is_ours(self._descriptor):
            return self._descriptor
        with self._lock:
            if self._descriptor < 0:
                raise OSError(errno.EBADF, f"{self.path.name} is closed")
            if not self._is_ours(self._descriptor):
                self._open_again()
            return self._descriptor

    @property
    def is_closed_by_script(self) -> bool:
        """Whether somebody has closed the descriptor, whatever has its number now."""
        return self._descriptor >= 0 and not self._is_ours(self._descriptor)

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode."""
        return self._status.st_dev, self._status.st_ino

    def is_removed(self) -> bool:
        """Whether the file has no name any more."""
        try:
            return os.fstat(self.descriptor()).st_nlink == 0
        except OSError as error:
            let_pass(error)
            return True

    def close(self) -> None:
        """Close it, unless somebody has. Idempotent."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if self._is_ours(descriptor):
                os.close(descriptor)

    def _is_ours(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._status)
        except OSError as error:
            if is_from_signal(error):
                raise
            return False

    def _open_again(self) -> None:
        found = lift(os.open(self.path, self._flags & ~_ONCE))
        if not self._is_ours(found):
            os.close(found)
            raise OSError(errno.ESTALE, f"{self.path.name} was closed by the script, and replaced")
        self._descriptor = found
        if len(_reopened) < _MOST_NAMES:
            _reopened.append(self.path.name)

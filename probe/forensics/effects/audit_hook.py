"""Refuses what a replay would do outside of the process: write files, talk to others, start programs.

Python tells its audit hooks before it does so. The hook is added at the first replay, as none can be taken
away again, and looks at nothing but a set outside of one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, Final

from ...errors import ReplayError

_refusing: Final[set[int]] = set()
"""Threads that replay."""
_added = False
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_SYSTEM: Final = frozenset(
    "os.remove os.rename os.mkdir os.rmdir os.truncate os.link os.symlink os.chmod os.chown os.utime "
    "os.putenv os.unsetenv os.system os.exec os.fork os.forkpty os.posix_spawn os.spawn os.kill os.killpg "
    "subprocess.Popen socket.connect socket.bind socket.sendto socket.sendmsg socket.getaddrinfo "
    "shutil.copyfile shutil.move shutil.rmtree shutil.copytree shutil.make_archive tempfile.mkstemp "
    "tempfile.mkdtemp sqlite3.connect pty.spawn".split()
)


@contextmanager
def outside_refused() -> Iterator[None]:
    """Raise `ReplayError` where this thread would do such a thing in the block."""
    global _added
    if not _added:
        _added = True
        sys.addaudithook(_hook)
    thread = threading.get_ident()
    if thread in _refusing:
        yield
        return
    _refusing.add(thread)
    try:
        yield
    finally:
        _refusing.discard(thread)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _refusing or threading.get_ident() not in _refusing:
        return
    if event in _SYSTEM:
        raise ReplayError(f"they do {event}, which cannot be put back")
    if event == "open" and _is_written(*args[:3]):
        raise ReplayError(f"they write a file ({PurePath(str(args[0])).name[:80]})")


def _is_written(path: Any, mode: Any, flags: Any) -> bool:
    if isinstance(path, int) or str(path) == os.devnull or "__pycache__" in str(path):
        # What is open already is written without a word here; Python keeps what it has compiled.
        return False
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITES)

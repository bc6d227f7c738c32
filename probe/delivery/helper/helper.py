"""Starts the helper process of a run on this host, and tells whether one is alive.

Called by the recorder's thread; the lock's test also by the dashboard. The helper never is a child of the
training process: `os.wait()` in a script must not meet it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from ...settings.places import make_private_folder, write_private_file
from ...wire.ordinary_files import ordinary_file

_logger = logging.getLogger(__name__)
_FLOCK: Final = struct.Struct("hhqqi0q")
"""C `struct flock` of 64-bit Linux: type, whence, start, length, pid."""
_MAX_WAIT_S: Final = 10.0
_LISTENING: Final = "listening"
_LISTENING_S: Final = 3.0
_REFUSAL: Final = "refusal"
_MOST_REFUSAL: Final = 500
_ENTRY: Final = Path(__file__).with_name("helper_entry.py")


def host_folder(run_folder: Path) -> Path:
    """Return the folder in which this host's helper writes: `SPOOL/<run>/host-<name>`."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())[:100] or "unknown"
    return run_folder / f"host-{name}"


def lock_path(folder: Path) -> Path:
    """Return the lock file in a host's folder; the one helper of a run on that host holds it."""
    return folder / "helper.lock"


def note_listening(run_folder: Path, *, is_listening: bool) -> None:
    """Tell this host's trainers whether a dashboard takes what they write; to be repeated every second."""
    path = host_folder(run_folder) / _LISTENING
    with contextlib.suppress(OSError):
        path.with_name(_REFUSAL).unlink(missing_ok=True)
        if is_listening:
            path.touch(mode=0o600)
        else:
            path.unlink(missing_ok=True)


def is_listened_to(run_folder: Path) -> bool:
    """Whether a dashboard has taken what this host's trainers write within the last seconds."""
    try:
        written_s = os.stat(_listening_path(run_folder)).st_mtime  # noqa: PTH116 - a Path per look is dear
    except OSError:
        return False
    return abs(time.time() - written_s) < _LISTENING_S


@lru_cache(maxsize=8)
def _listening_path(run_folder: Path) -> str:
    """What `note_listening` touches; the recorder's thread asks five times a second."""
    return str(host_folder(run_folder) / _LISTENING)


def note_refusal(run_folder: Path, reason: str) -> None:
    """Tell this host's trainers why a dashboard takes nothing, until `note_listening` is called."""
    with contextlib.suppress(OSError):
        write_private_file(host_folder(run_folder) / _REFUSAL, reason.encode())


def lock_owner(path: Path) -> int | None:
    """Return the process id that holds the lock of a host's folder; None when it is free.

    A record lock, because it can be tested without taking it: a lock that is taken for a moment could be
    inherited by a data loader's worker that is forked at that moment.
    """
    try:
        with ordinary_file(path, flags=os.O_RDWR) as descriptor:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    except OSError:
        return None
    return None if kind == fcntl.F_UNLCK else int(pid)


@contextlib.contextmanager
def hold_lock(run_folder: Path) -> Iterator[Callable[[], bool]]:
    """Wait until this process is the one helper of the run on this host; the kernel frees it at any death.

    Yields what tells whether others see the lock: not once somebody has removed its file.
    """
    folder = make_private_folder(host_folder(run_folder))
    with ordinary_file(lock_path(folder), flags=os.O_WRONLY | os.O_CREAT) as descriptor:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        own = os.fstat(descriptor)

        def is_held() -> bool:
            # Not by opening it: to close that again would free the lock.
            with contextlib.suppress(OSError):
                return os.path.samestat(own, lock_path(folder).stat())
            return False

        yield is_held


def start_helper(run_folder: Path, connect: str | None) -> str | None:
    """Start a helper for this host and run; return what went wrong, in one sentence, or None.

    It gets its own session, no inherited descriptors and no terminal: a grandchild that holds a script's
    pipe would make a reader of the pipe hang. A shell puts it in the background and ends at once, so
    that the helper's parent is init.
    """
    if not sys.executable:
        return "the helper cannot be started: this Python does not know its own executable"
    command = [sys.executable, "-P", str(_ENTRY), str(run_folder)]
    if connect is not None:
        command += ["--connect", connect]
    try:
        make_private_folder(host_folder(run_folder))
        shell = subprocess.Popen(
            ["/bin/sh", "-c", '"$@" &', "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            shell.wait(timeout=2.0)
    except (OSError, ValueError) as error:
        return f"the helper cannot be started: {error}"
    return None


class HelperKeeper:
    """Sees to it that this host has a helper for the run; one that keeps dying is started more rarely."""

    def __init__(self, run_folder: Path, connect: str | None) -> None:
        self._run_folder = run_folder
        self._connect = connect
        self._lock = lock_path(host_folder(run_folder))
        self._starts = 0
        self._next_start = 0.0
        self._has_told = False

    def ensure(self, *, is_last: bool = False) -> str | None:
        """Start a helper if none is alive and it is time to; return what went wrong, or None.

        Args:
            is_last: nobody will ask again: start one now, however often that has been tried.
        """
        if lock_owner(self._lock) is not None:
            self._starts = 0
            self._tell_of_refusal()
            return None
        now = time.monotonic()
        if now < self._next_start and not is_last:
            return None
        self._starts += 1
        self._next_start = now + min(_MAX_WAIT_S, 2.0**self._starts)
        return start_helper(self._run_folder, self._connect)

    def _tell_of_refusal(self) -> None:
        """Say it once if a dashboard that is there takes nothing."""
        path = self._lock.with_name(_REFUSAL)
        if self._has_told or not path.exists():
            return
        self._has_told = True
        with contextlib.suppress(OSError):
            with ordinary_file(path) as descriptor:
                reason = os.read(descriptor, _MOST_REFUSAL).decode(errors="replace")
            _logger.warning(
                "nanscope: this run is recorded in %s, but %s. Set NANSCOPE_SECRET to the `secret` in that "
                "dashboard's serve.json, or NANSCOPE_KEYS to the file that its `dashboard keygen` wrote",
                self._run_folder,
                reason,
            )

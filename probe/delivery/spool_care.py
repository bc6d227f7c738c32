"""How much room the runs of a spool take, which are still written, and how finished ones are deleted.

Files only. Used by the helper, which keeps the whole spool below its cap, and by the dashboard.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import JournalError
from ..guard import suppressed
from ..wire.ordinary_files import ordinary_file, read_ordinary, read_up_to
from .helper.helper import lock_owner, lock_path
from .journal.run_folders import list_runs, list_writers
from .journal.segment_files import bytes_on_disk
from .recorder.process_identity import is_alive
from .recorder.ring_header import HEADER_BYTES, read_counters, read_owner

CAP_MIB: Final = 20 * 1024
CAP_VARIABLE: Final = "NANSCOPE_SPOOL_CAP_MIB"
STARRED: Final = "starred"
"""A file of this name in a run's folder: the run is deleted only by its name."""
_FRESH_S: Final = 5.0
"""What was written this short a time ago may be a run whose helper and ring are about to come."""
_TRASH: Final = ".removed"
_LOG: Final = ".removed.log"
_LOG_BYTES: Final = 64 * 1024
_MIB: Final = 1024**2


class RunRoom(NamedTuple):
    """A run's folder, and what it takes."""

    path: Path
    size_bytes: int
    written_s: float
    """When anything in it was last written; UNIX seconds."""


def cap_bytes(environment: Mapping[str, str] = os.environ) -> int:
    """Return the cap of a whole spool; one that is not a whole number of MiB above 0 is the default."""
    text = environment.get(CAP_VARIABLE, "").strip()
    return (int(text) if text.isdecimal() and int(text) else CAP_MIB) * _MIB


def room_of(run_folder: Path) -> RunRoom:
    """Return the size and the age of a run's folder, its bundles included."""
    size, written_s = 0, 0.0
    for entry in _files(run_folder):
        with suppressed(OSError):
            found = entry.stat(follow_symlinks=False)
            size += bytes_on_disk(found)
            written_s = max(written_s, found.st_mtime)
    return RunRoom(run_folder, size, written_s)


def rooms(spool: Path) -> list[RunRoom]:
    """Return all runs of a spool, the one that was written longest ago first; none without a spool."""
    try:
        folders = list_runs(spool)
    except JournalError:
        return []
    return sorted(map(room_of, folders), key=lambda room: room.written_s)


def is_written(run_folder: Path) -> bool:
    """Whether a trainer or a helper, as far as this machine sees, still writes to a run."""
    writers = list_writers(run_folder)
    if any(lock_owner(lock_path(writer)) is not None for writer in writers):
        return True
    if any(_has_living_ring(writer) for writer in writers):
        return True
    return time.time() - room_of(run_folder).written_s < _FRESH_S


def is_starred(run_folder: Path) -> bool:
    """Whether the run is to be kept whatever the cap says."""
    return os.path.exists(run_folder / STARRED)  # noqa: PTH110 - a folder that cannot be read has none


def remove_run_folder(run_folder: Path) -> None:
    """Delete a run's folder: out of the spool in one step, so that nobody reads half of it.

    Raises:
        OSError: it cannot be moved out; all of it is still there.
    """
    trash = run_folder.parent / _TRASH
    trash.mkdir(mode=0o700, exist_ok=True)
    run_folder.rename(trash / secrets.token_hex(8))
    # What a process that was killed has left goes too.
    shutil.rmtree(trash, ignore_errors=True)


def keep_below_cap(spool: Path, most_bytes: int, *, own: Path | None = None) -> list[RunRoom]:
    """Delete the oldest finished runs until the spool is below its cap; return them.

    Starred runs and runs that are still written stay.

    Args:
        spool: root folder of all runs.
        most_bytes: the cap.
        own: the run's folder whose lock this process holds. It stays, and is not asked: to open and close a
            lock's file would free the lock.
    """
    found = rooms(spool)
    excess = sum(room.size_bytes for room in found) - most_bytes
    removed = []
    for room in found:
        if excess <= 0:
            break
        if room.path == own or is_starred(room.path) or is_written(room.path):
            continue
        with suppressed(OSError):
            remove_run_folder(room.path)
            removed.append(room)
            excess -= room.size_bytes
    if removed:
        _note(spool, removed, most_bytes)
    return removed


def last_removal(spool: Path) -> str | None:
    """Return the line of the newest removal that the cap has asked for; None where there was none."""
    with suppressed(OSError):
        lines = read_ordinary(spool / _LOG, 2 * _LOG_BYTES).decode("utf-8", "replace").splitlines()
        return lines[-1] if lines else None
    return None


def _note(spool: Path, removed: list[RunRoom], most_bytes: int) -> None:
    size_mib = sum(room.size_bytes for room in removed) / _MIB
    names = ", ".join(room.path.name for room in removed[:8]) + (", ..." if len(removed) > 8 else "")
    runs = "run was" if len(removed) == 1 else "runs were"
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    line = (
        f"{when}: the {len(removed)} oldest finished {runs} deleted from the spool ({size_mib:,.1f} MiB: "
        f"{names}): it had reached its cap of {most_bytes // _MIB:,} MiB ({CAP_VARIABLE})"
    )
    path = spool / _LOG
    with suppressed(OSError):
        if path.exists() and path.stat().st_size > _LOG_BYTES:
            path.unlink()
        with ordinary_file(path, flags=os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
            os.write(descriptor, f"{line}\n".encode())


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield all files below a folder; what goes meanwhile is left out."""
    waiting = [os.fspath(folder)]
    while waiting:
        with suppressed(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry


def _has_living_ring(writer: Path) -> bool:
    for path in writer.glob("ring*"):
        with suppressed(OSError), ordinary_file(path) as descriptor:
            header = read_up_to(descriptor, HEADER_BYTES)
            silent_s = time.time() - os.fstat(descriptor).st_mtime
            if read_counters(header) is None:
                # Of another version of the probe: its owner cannot be told.
                if silent_s < 60.0:
                    return True
            elif is_alive(read_owner(header), silent_s=silent_s):
                return True
    return False

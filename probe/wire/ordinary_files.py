"""The one way to open a file of a spool for reading: an ordinary file, of a bounded size, and never a link.

Anything may lie under a name that readers look for: a pipe would make them wait for ever, a device would
never end, a sparse file would fill the memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ..own_files import lift


class NotOrdinaryError(OSError):
    """What lies there is no file that a reader opens; `strerror` is a sentence with the subject "it"."""


@contextlib.contextmanager
def ordinary_file(path: Path, *, most_bytes: int | None = None, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file, and close it after use.

    Args:
        path: of the file; folders on the way to it may be links.
        most_bytes: the largest size that is opened; None for a file that is read in bounded pieces.
        flags: of `os.open`; a file that they create is 0600.

    Yields:
        Its descriptor.

    Raises:
        NotOrdinaryError: it is a link, no ordinary file, or too large.
        OSError: it cannot be opened.
    """
    try:
        # Without O_NONBLOCK, to open a pipe waits for whoever writes it.
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if (why := _why_not(error)) is not None:
            raise NotOrdinaryError(error.errno, why, str(path)) from None
        raise
    if flags & (os.O_WRONLY | os.O_RDWR):
        descriptor = lift(descriptor)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotOrdinaryError(errno.EINVAL, "it is not a regular file", str(path))
        if most_bytes is not None and found.st_size > most_bytes:
            raise NotOrdinaryError(
                errno.EFBIG,
                f"it has {found.st_size:,} bytes, and at most {most_bytes:,} are read",
                str(path),
            )
        yield descriptor
    finally:
        os.close(descriptor)


def read_ordinary(path: Path, most_bytes: int) -> bytes:
    """Return what a file holds.

    Raises:
        NotOrdinaryError: it is a link, no ordinary file, or larger than `most_bytes`.
        OSError: it cannot be read.
    """
    with ordinary_file(path, most_bytes=most_bytes) as descriptor:
        return read_up_to(descriptor, most_bytes)


def read_up_to(descriptor: int, most_bytes: int) -> bytes:
    """Return a file's first bytes, `most_bytes` at most, however little the kernel gives at a time."""
    size = min(os.fstat(descriptor).st_size, most_bytes)
    parts: list[bytes] = []
    at = 0
    while at < size and (part := os.pread(descriptor, size - at, at)):
        parts.append(part)
        at += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _why_not(error: OSError) -> str | None:
    """Say what kind of thing could not be opened; None where it may be an ordinary file."""
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return "it is a link"
    if error.errno in (errno.ENXIO, errno.EISDIR):
        return "it is not a regular file"
    return None

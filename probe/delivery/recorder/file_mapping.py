"""A file's bytes as memory, on file systems where writing to it cannot end the process.

A write to a mapping has no error to return: where the file system finds no room for a page, the process gets
SIGBUS. So a file is mapped only where each page that was written before is written to the same place again:
not on btrfs, ZFS or a network, and not where nothing says what lies below (overlays, FUSE).
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Final

import numpy as np
import numpy.typing as npt

from ...guard import let_pass

_IN_PLACE: Final = frozenset({0xEF53, 0x58465342, 0x01021994})
"""ext2 to ext4, XFS, tmpfs: numbers of `statfs`, as linux/magic.h has them."""
_MAP_FIXED: Final = 0x10
"""Of Linux."""
_STATFS_BYTES: Final = 256
"""More than `struct statfs` has anywhere; its first word is the file system's number."""

_failed: Final[list[object]] = []


def map_written_file(descriptor: int, size: int) -> npt.NDArray[np.uint8] | None:
    """Return the file's bytes, shared with everyone who reads it; None where it had better not be mapped.

    Args:
        descriptor: open for reading and writing; may be closed afterwards.
        size: of the file, each byte of which has been written.
    """
    if not sys.platform.startswith("linux") or file_system(descriptor) not in _IN_PLACE:
        return None
    # Python's mapping of a file keeps a descriptor, and closes whatever has that number at the end. This one
    # is of no file; the file is mapped over it, and goes with it, without Python code. Populated: no step
    # waits for a page of its own.
    flags = mmap.MAP_SHARED | _MAP_FIXED | getattr(mmap, "MAP_POPULATE", 0)
    memory = np.frombuffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)
    functions = ctypes.CDLL(None)
    functions.mmap.restype = ctypes.c_void_p
    functions.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    place = memory.ctypes.data
    if functions.mmap(place, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0) != place:
        # What lies there now may be another's: it is never unmapped.
        _failed.append(memory)
        return None
    return memory


def file_system(descriptor: int) -> int | None:
    """Return the number of the file system that a file lies on; None where nothing tells."""
    buffer = (ctypes.c_long * (_STATFS_BYTES // ctypes.sizeof(ctypes.c_long)))()
    try:
        failed = ctypes.CDLL(None).fstatfs(descriptor, buffer)
    except (OSError, AttributeError) as error:
        let_pass(error)
        return None
    return None if failed else int(buffer[0])

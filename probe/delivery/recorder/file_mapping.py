"""A file's bytes as memory, on file systems where writing to it cannot end the process.

A write to a mapping has no error to return: where the file system finds no room for a page, the process gets
SIGBUS. So a file is mapped only where each page that was written before is written to the same place again:
not on btrfs, ZFS or a network, and not where nothing says what lies below (overlays, FUSE).
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import weakref
from typing import Final

import numpy as np
import numpy.typing as npt

from ...guard import let_pass

_IN_PLACE: Final = frozenset({0xEF53, 0x58465342, 0x01021994})
"""ext2 to ext4, XFS, tmpfs: numbers of `statfs`, as linux/magic.h has them."""
_FAILED: Final = ctypes.c_void_p(-1).value
_STATFS_BYTES: Final = 256
"""More than `struct statfs` has anywhere; its first word is the file system's number."""


def map_written_file(descriptor: int, size: int) -> npt.NDArray[np.uint8] | None:
    """Return the file's bytes, shared with everyone who reads it; None where it had better not be mapped.

    Args:
        descriptor: open for reading and writing; may be closed afterwards.
        size: of the file, each byte of which has been written.
    """
    if not sys.platform.startswith("linux") or file_system(descriptor) not in _IN_PLACE:
        return None
    # Not by `mmap.mmap`: it keeps a descriptor of its own, and closes whatever has that number at the end.
    # Populated: no step waits for a page of its own.
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    functions = ctypes.CDLL(None)
    functions.mmap.restype = ctypes.c_void_p
    functions.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    functions.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    address = functions.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0)
    if address in (None, _FAILED):
        return None
    memory = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(memory, functions.munmap, address, size).atexit = False
    return np.frombuffer(memoryview(memory).cast("B"), dtype=np.uint8)


def file_system(descriptor: int) -> int | None:
    """Return the number of the file system that a file lies on; None where nothing tells."""
    buffer = (ctypes.c_long * (_STATFS_BYTES // ctypes.sizeof(ctypes.c_long)))()
    try:
        failed = ctypes.CDLL(None).fstatfs(descriptor, buffer)
    except (OSError, AttributeError) as error:
        let_pass(error)
        return None
    return None if failed else int(buffer[0])

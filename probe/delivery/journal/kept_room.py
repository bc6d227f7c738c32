"""Room that is kept behind the end of a file: what says that the disk is full can be written then.

The blocks are allocated, and the file is no longer for it: readers see nothing of them. Used by the journal's
writer, under the stream's lock.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

from ...guard import let_pass

KEPT_BYTES: Final = 64 * 1024
"""Behind a stream, as long as the disk has room for it."""
URGENT_BYTES: Final = 16 * 1024
"""Of these, what only urgent records may take: an event that tells of a loss has less than 2 KiB."""
_KEEP_SIZE: Final = 1
"""`FALLOC_FL_KEEP_SIZE` of linux/falloc.h."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class KeptRoom:
    """The room behind one stream's open segment."""

    def __init__(self) -> None:
        self._end = 0
        """Bytes of the file up to which there are blocks."""
        self._is_possible = True

    def begin(self) -> None:
        """Another file is written now, or this one was cut off: nothing is kept."""
        self._end = 0

    def require(self, descriptor: int, size: int, count: int, *, is_urgent: bool) -> None:
        """See to the room for `count` bytes behind the first `size`, and to what is kept after them.

        Raises:
            OSError: the disk is full, and what is left is for urgent records.
        """
        if not self._is_possible or self._end - size - count >= URGENT_BYTES:
            return
        number = _allocate(descriptor, size, count + KEPT_BYTES)
        if number == 0:
            self._end = size + count + KEPT_BYTES
        elif number not in _FULL:
            self._is_possible = False
        elif not is_urgent:
            raise OSError(number, os.strerror(number))

    def give_back(self, descriptor: int, size: int) -> None:
        """Free what is kept behind the first `size` bytes."""
        if self._end > size:
            self._end = 0
            os.ftruncate(descriptor, size)


def _allocate(descriptor: int, start: int, count: int) -> int:
    """Have blocks for these bytes, whatever the file's size; return the error's number, 0 without one."""
    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError) as error:
        let_pass(error)
        return errno.ENOSYS
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return ctypes.get_errno() if function(descriptor, _KEEP_SIZE, start, count) else 0

"""Whether something has come to a folder: for who asks several times a second, as long as a run lasts."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from ...guard import let_pass

_TICK_NS: Final = 50_000_000


class FolderChanges:
    """Tells whether files may have come to a folder, or gone, since the last look: by one `stat`.

    Args:
        folder: may not be there yet.
    """

    __slots__ = ("_path", "_seen_ns")

    def __init__(self, folder: Path) -> None:
        self._path, self._seen_ns = str(folder), -1

    def look(self) -> bool:
        """Whether the folder is there, and may have changed."""
        try:
            changed_ns = os.stat(self._path).st_mtime_ns  # noqa: PTH116 - a Path per look is dear
        except OSError as error:
            let_pass(error)
            return False
        if changed_ns == self._seen_ns:
            return False
        # The clock of a file system ticks in milliseconds: a folder that has just changed may change
        # again within the same tick. One that was set back is no reason to wait.
        is_settled = time.time_ns() - changed_ns > _TICK_NS
        self._seen_ns = changed_ns if is_settled else -1
        return True

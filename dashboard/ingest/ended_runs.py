"""Which runs of a spool have ended and are read to their end: they cost one `stat` until something comes."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from probe.delivery.journal.account import read_account
from probe.delivery.journal.folder_changes import FolderChanges
from probe.delivery.journal.rank_journals import last_written_s
from probe.delivery.journal.run_folders import list_writers

_SILENT_S: Final = 24 * 3600.0
"""After so long nobody goes on with a journal that has no account of who writes it."""


class EndedRuns:
    """The ended runs of one spool, as `SpoolIngest` has found them."""

    def __init__(self) -> None:
        self._changes: dict[str, FolderChanges] = {}
        self._ended: set[str] = set()

    def look(self, spool: Path) -> Collection[str]:
        """Return which of the runs of a spool have ended and are as they were when they were read."""
        try:
            names = set(os.listdir(spool))  # noqa: PTH208 - a Path for each of ten thousand is dear
        except OSError:
            names = set()
        for name in self._changes.keys() - names:
            del self._changes[name]
            self._ended.discard(name)
        # Another start of a run makes a folder of its own in that of the run.
        for name in [name for name in self._ended if self._changes[name].look()]:
            self._ended.remove(name)
        return frozenset(self._ended)

    def is_over(self, run_folder: Path) -> bool:
        """Whether nobody writes a run any more; asked before it is read, or its last records were missed."""
        self._changes.setdefault(run_folder.name, FolderChanges(run_folder)).look()
        return all(map(_is_over, list_writers(run_folder)))

    def add(self, run: str) -> None:
        """A run that is over was read, and nothing new was found."""
        self._ended.add(run)

    def forget(self) -> None:
        """All is to be read again."""
        self._changes.clear()
        self._ended.clear()


def _is_over(writer: Path) -> bool:
    account = read_account(writer)
    if account is None:
        return time.time() - last_written_s(writer) > _SILENT_S
    return account.is_over()

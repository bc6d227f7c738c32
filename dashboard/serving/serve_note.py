"""`serve.json`, by which trainings on this machine find the dashboard: one server's at a time.

The first server that runs has it. A second one, with another data folder, leaves it alone, says so, and takes
its place when the first has ended. Called by the server.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from probe.settings.places import ServeState, read_serve_state, serve_state_path, write_serve_state

from .running import find_server_of

_SLACK_S: Final = 5.0
"""Of the clock of the file system, and of the time at which a process began."""


class ServeNote:
    """The note of one server.

    Args:
        mine: What it says.
        environment: Where the state folder comes from.
    """

    def __init__(self, mine: ServeState, environment: Mapping[str, str] = os.environ) -> None:
        self._mine = mine
        self._environment = environment

    def other(self) -> ServeState | None:
        """Return the note of another server that runs; None where there is none."""
        found = read_serve_state(self._environment)
        return found if found is not None and found != self._mine and self._is_alive(found) else None

    def keep(self) -> None:
        """Write the note where there is none, or one that a server has left which has ended or was killed.

        Raises:
            OSError: it cannot be written.
        """
        if read_serve_state(self._environment) != self._mine and self.other() is None:
            write_serve_state(self._mine, self._environment)

    def remove(self) -> None:
        """Remove it, unless it is another server's."""
        if read_serve_state(self._environment) == self._mine:
            serve_state_path(self._environment).unlink(missing_ok=True)

    def words(self) -> str:
        """Say that another server has the note, and how to reach both; empty where this one has it."""
        other = self.other()
        if other is None:
            return ""
        keys = f" and NANSCOPE_KEYS={self._mine.keys}" if self._mine.keys else ""
        return (
            f"Trainings on this machine find another dashboard, {other.page} (process {other.pid}, data in "
            f"{other.data or 'an unknown folder'}; `dashboard url` prints its address). To ship to this one "
            f"instead, set NANSCOPE_CONNECT={self._mine.ingest}{keys}"
        )

    def _is_alive(self, found: ServeState) -> bool:
        """Whether its process has written it: a later one may have the number by now."""
        # In a container each start has the same number: one's own says nothing.
        if found.pid != os.getpid():
            with contextlib.suppress(psutil.Error, OSError):
                written = serve_state_path(self._environment).stat().st_mtime
                if psutil.Process(found.pid).create_time() <= written + _SLACK_S:
                    return True
        # Where the clock was set in the meantime, the server itself says so.
        return bool(found.data) and find_server_of(Path(found.data)) is not None

"""The thread of `serve` that reads the spool: what no helper ships here."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from probe.errors import ProbeError

from ..errors import DashboardError

if TYPE_CHECKING:
    from ..store.engines import ServedStore

_log = logging.getLogger(__name__)

SPOOL_INTERVAL_S: Final = 10.0
STOP_TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 0.5
"""Between two looks at whether the store has been replaced."""


class _StopReading(Exception):  # noqa: N818 - no error
    """The server stops while a spool is being read."""


class SpoolThread:
    """Takes up journals that no helper ships here, at once and every `SPOOL_INTERVAL_S`.

    Args:
        store: That takes their records.
        spool: Folder of the journals; it need not be there.
        only: Ids of the runs that are read; None reads all.
        is_shipped: Tells whether a helper ships a run here.
        on_news: Called where the store has something new.
        each_pass: Called after each pass, on this thread.
    """

    def __init__(
        self,
        store: ServedStore,
        spool: Path,
        *,
        only: Collection[str] | None,
        is_shipped: Callable[[str], bool],
        on_news: Callable[[], None],
        each_pass: Callable[[], None],
    ) -> None:
        self._store, self._spool, self._only, self._is_shipped = store, spool, only, is_shipped
        self._on_news, self._each_pass = on_news, each_pass
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nanscope-spool", daemon=True)
        self.problems: tuple[str, ...] = ()
        """What could not be read, in sentences."""
        self._logged: tuple[str, ...] = ()
        """Those of the problems that are in the log."""

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End before the next run of the spool, and wait for that."""
        self._stopping.set()
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        from ..ingest.spool import SpoolIngest

        ingest = SpoolIngest(self._store, self._spool, only=self._only, is_shipped=self._is_shipped)
        while not self._stopping.is_set():
            if self._spool.is_dir():
                try:
                    report = ingest.run(progress=self._check_running)
                    self._store.note_journals(report.seen)
                except _StopReading:
                    return
                except DashboardError as error:
                    self.problems = (f"Runs of the spool {self._spool} wait: {error}",)
                except (ProbeError, OSError) as error:
                    self.problems = (f"The spool {self._spool} cannot be read: {error}",)
                else:
                    for problem in report.problems[len(self._logged) :]:
                        _log.warning("%s", problem)
                    self._logged = self.problems = report.problems
                    if report.records:
                        self._on_news()
            else:
                self._store.note_journals(())
            self._each_pass()
            self._wait_for_next_pass()

    def _wait_for_next_pass(self) -> None:
        """Wait until it is time to read the spool again: at once where the store has to be filled anew."""
        seen = self._store.generation()
        end = time.monotonic() + SPOOL_INTERVAL_S
        while time.monotonic() < end and not self._stopping.wait(_LOOK_S):
            if self._store.generation() != seen:
                self._on_news()
                return

    def _check_running(self, run: str) -> None:
        """Called between the runs of a spool: a large one must not hold up the end."""
        if self._stopping.is_set():
            raise _StopReading(run)

"""The thread that writes bundles beside the training: a slow disk makes no step wait.

What it is given is whole: copies of the tensors, and what is known of the step. It lives as long as there is
something to write; the end of the run waits for it, for a stated time.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from ...guard import let_pass
from .bell import Bell

_logger = logging.getLogger(__name__)

END_WAIT_S: Final = 10.0
"""How long the end of a run waits for the bundles that are being written."""
SILENT_S: Final = 1.0
"""So much of that it waits without a word."""


class Task:
    """One bundle: what writes it, and who hears of it.

    Args:
        write: returns what there is to say of the bundle; it raises nothing.
        tell: called with that, on the thread beside, unless `wait` has returned it.
        unfinished: what there is to say where the run ends before that.
    """

    def __init__(self, write: Callable[[], str], tell: Callable[[str], None], unfinished: str) -> None:
        self._write, self._tell, self._unfinished = write, tell, unfinished
        self._line: str | None = None
        self._is_told_later = False
        self._lock, self._done = threading.RLock(), Bell()

    def do(self) -> None:
        """Write it. On the thread beside."""
        line = self._write()
        with self._lock:
            self._line = line
            is_told_later = self._is_told_later
        if is_told_later:
            self._tell(line)
        self._done.ring()

    def wait(self, most_s: float) -> str | None:
        """Return what there is to say of the bundle; None where that is told later."""
        self.is_done_within(most_s)
        with self._lock:
            self._is_told_later = self._line is None
            return self._line

    def is_done_within(self, most_s: float) -> bool:
        """Wait for it; whether it is done, and has been told."""
        is_done = self._done.wait(most_s)
        if is_done:
            self._done.ring()  # there may be other waiters
        return is_done

    def give_up(self) -> None:
        """The run ends: say so. Where it is done after all, and the recorder goes on, that is said too."""
        self._tell(self._unfinished)


class BesideWriter:
    """Does tasks one after the other, each outside of the training's threads. In a forked process, none."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        self._lock = threading.RLock()
        self._is_running = False
        self._pid = os.getpid()

    def add(self, task: Task) -> None:
        """Have it done soon; where no thread can be started, as in an interpreter that ends, at once."""
        with self._lock:
            self._tasks.append(task)
            if self._is_running:
                return
            self._is_running = True
        thread = threading.Thread(target=self._run, name="nanscope-bundle", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            let_pass(error)
        finally:
            if thread.ident is None:
                self._run()

    def wait(self, most_s: float = END_WAIT_S) -> list[Task]:
        """Wait until all is done; return what is not by then."""
        if os.getpid() != self._pid:
            return []
        end_s = time.monotonic() + most_s
        tasks = list(self._tasks)
        return [task for task in tasks if not task.is_done_within(max(0.0, end_s - time.monotonic()))]

    def end(self, most_s: float) -> None:
        """The run ends: wait for what is not done, and say so; then say which bundles are not complete."""
        left = self.wait(min(most_s, SILENT_S))
        if left and most_s > SILENT_S:
            _logger.warning("nanscope: waiting up to %.0f s for bundles that are being written", most_s)
            left = self.wait(most_s - SILENT_S)
        for task in left:
            task.give_up()
        if left:
            _logger.warning("nanscope: bundles that are not complete at the end of the run: %d", len(left))

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._tasks:
                    self._is_running = False
                    return
                task = self._tasks[0]
            task.do()
            self._tasks.popleft()

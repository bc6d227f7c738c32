"""Sends the requests of one outlet: tries again, waits longer each time, and keeps account.

Used on the outlet's own thread; the account may be read on any.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from .posting import Posted, post
from .settings import Target
from .status import OutletStatus

_log = logging.getLogger(__name__)

FIRST_WAIT_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 60.0


class Courier:
    """Delivers to one target.

    Args:
        name: Of the outlet; all that is ever logged of it.
        kind: Of the outlet, for its status.
        target: Where to.
        stopping: Set when the server stops: then nothing is tried again.
        first_wait_s: Wait before the second try; doubles with each one, up to `LONGEST_BACKOFF_S`.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        target: Target,
        *,
        stopping: threading.Event,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self._target, self._stopping, self._first_wait_s = target, stopping, first_wait_s
        self._lock = threading.Lock()
        self._status = OutletStatus(name=name, kind=kind)
        self._draw = random.Random()

    @property
    def status(self) -> OutletStatus:
        """A snapshot; any thread."""
        return self._status

    def note_dropped(self, count: int) -> None:
        """Count what the other side has thrown away."""
        self.note_waiting(self._status.waiting, count)

    def note_waiting(self, waiting: int, dropped: int) -> None:
        """Keep account of the queue: how many wait, and how many were thrown away just now."""
        with self._lock:
            self._status = replace(self._status, waiting=waiting, dropped=self._status.dropped + dropped)

    def deliver(
        self, body: bytes, *, path: str = "", headers: Callable[[bytes], Mapping[str, str]]
    ) -> Posted:
        """Send until it is taken, refused for good, or tried often enough; never raises.

        Args:
            body: Sent unchanged each time.
            path: Added to the address.
            headers: Makes the headers of each try: a signature holds the time.
        """
        target = self._target
        for attempt in range(target.attempts):
            posted = post(target.url + path, body, headers(body), timeout_s=target.timeout_s)
            self._note(posted)
            is_last = attempt + 1 == target.attempts or not posted.may_retry
            if posted.problem is None or is_last or self._stopping.wait(self._wait_s(attempt, posted)):
                break
        with self._lock:
            if posted.problem is None:
                self._status = replace(self._status, sent=self._status.sent + 1)
            else:
                self._status = replace(self._status, failed=self._status.failed + 1)
        return posted

    def _wait_s(self, attempt: int, posted: Posted) -> float:
        """What the other side asks for; else up to half more than 1, 2, 4, ... times the first wait."""
        if posted.retry_after_s is not None:
            return posted.retry_after_s
        wait_s = min(self._first_wait_s * 2.0**attempt, LONGEST_BACKOFF_S)
        return wait_s * self._draw.uniform(1.0, 1.5)

    def _note(self, posted: Posted) -> None:
        """Log the first failure of a row, and its end."""
        before = self._status.problem
        with self._lock:
            if posted.problem is None:
                self._status = replace(self._status, problem=None, last_success_time=time.time())
            else:
                self._status = replace(self._status, problem=posted.problem)
        if posted.problem is not None and before is None:
            _log.warning("outlet %s: %s", self._status.name, posted.problem)
        elif posted.problem is None and before is not None:
            _log.info("outlet %s is reached again", self._status.name)

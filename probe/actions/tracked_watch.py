"""Writes down which of the tensors that a script follows live, on the recorder's thread, for the page.

Costs nothing until `probe.track_tensor` is called. The newest document replaces the one before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

from ..wire import Document

_LIVES: Final = f"{__package__}.analysis.tensor_lives"
_PERIOD_S: Final = 2.0
_SHARE: Final = 0.02
"""A table is at most this share of the run's time old: some hundred documents a day."""


class TrackedWatch:
    """A `Watch` of the recorder's thread.

    Args:
        last_step: gives the number of the newest finished step, on any thread; None before the first.
        clock: seconds.
    """

    def __init__(
        self, *, last_step: Callable[[], int | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._last_step, self._clock = last_step, clock
        self._began_s = clock()
        self._next_s = 0.0
        self._written: object = None

    @property
    def period_s(self) -> float:
        """Seconds until the next look."""
        return _PERIOD_S

    def look(self) -> list[Document]:
        """Write what has changed, where it is time for it."""
        return self._changed() if self._clock() >= self._next_s else []

    def close(self) -> list[Document]:
        """Write how it ends."""
        return self._changed()

    def _changed(self) -> list[Document]:
        # Nobody has called `track_tensor` as long as its module is not loaded.
        if _LIVES not in sys.modules:
            return []
        from ..wire.documents import make_document
        from ..wire.tracked_tensors import KIND
        from .analysis.tensor_lives import tracked_body

        body = tracked_body()
        # Clocks differ by a millisecond from one reading to the next.
        said = [(row.name, row.bytes, round(row.since), row.freed is None) for row in body.tensors]
        state = (said, body.alive, body.alive_bytes, body.tracked)
        if state == self._written or not body.tracked:
            return []
        self._written = state
        now_s = self._clock()
        self._next_s = now_s + max(_PERIOD_S, _SHARE * (now_s - self._began_s))
        return [make_document(body, kind=KIND, key="", step=self._last_step(), time=time.time())]

"""Has a step that C would follow go the slow way, where there is news that is acted upon there.

A `Watch` of the recorder, on its thread.
"""

from __future__ import annotations

import time
from typing import Final

from ..delivery.recorder.recorder import Recorder
from ..threads.watchdog import LoopMark
from ..wire import Event
from .fast_path import FastPath
from .step_queue import StepQueue

_PERIOD_S: Final = 0.25
_SHARE: Final = 0.0025
"""Of the time, that steps which go the slow way only for news may take: with many tensors one costs 12 ms."""


class NewsWatch:
    """Looks for news of one session.

    Args:
        queue: may have found something that is acted upon at a step.
        fast: is asked for a look; knows what the last one has cost.
        mark: of the training loop, whose stack may be wanted.
        recorder: reads memory now and then.
    """

    def __init__(self, queue: StepQueue, fast: FastPath, mark: LoopMark, recorder: Recorder) -> None:
        self._queue, self._fast, self._mark, self._recorder = queue, fast, mark, recorder
        self._memory, self._not_before_s = recorder.memory, 0.0
        self.period_s = _PERIOD_S

    def look(self) -> list[Event]:
        """See whether the next step has to go the slow way."""
        memory, now_s = self._recorder.memory, time.monotonic()
        has_news = (memory is not self._memory or self._mark.wanted) and now_s >= self._not_before_s
        if has_news or self._queue.has_suspicion:
            self._memory = memory
            self._not_before_s = now_s + self._fast.interlude_ns / 1e9 / _SHARE
            self._fast.ask_for_a_look()
        return []

    def close(self) -> list[Event]:
        """Nothing is left open."""
        return []

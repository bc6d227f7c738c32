"""News while C follows the steps: who finds them, and what the training thread does about them."""

from __future__ import annotations

import math
import sys
import time
from typing import Final

from ..delivery.recorder.recorder import Recorder
from ..threads.stacks import raw_stack
from ..threads.watchdog import LoopMark
from ..wire import Event
from .fast_path import FastPath
from .measure_schedule import MeasureSchedule
from .step_judge import StepJudge
from .step_queue import StepQueue

_PERIOD_S: Final = 0.25
_STACK_FRAMES: Final = 256
_SHARE: Final = 0.005
"""Of the time, that a series of looks at the heap takes from steps that C follows."""


class Lookout:
    """What the training thread does at the end of a backward that C follows, where there is news.

    Args:
        judge: watches memory.
        schedule: says whether it is to be watched.
        mark: of the training loop, whose stack may be wanted.
        recorder: has the newest reading of memory.
    """

    def __init__(
        self, judge: StepJudge, schedule: MeasureSchedule, mark: LoopMark, recorder: Recorder
    ) -> None:
        self._judge, self._schedule, self._mark, self._recorder = judge, schedule, mark, recorder
        self.next_look_s = math.inf
        """When a series of looks at the heap is to go on; monotonic."""

    @property
    def is_look_due(self) -> bool:
        """Whether a series of looks at the heap is to go on; at once, where it was begun in the slow way."""
        if self.next_look_s == math.inf:
            return self._judge.is_looking_at_memory
        return time.monotonic() >= self.next_look_s

    def look_about(self, step: int) -> bool:
        """Mark where the loop is, watch memory; returns whether to do it at the next step too: never."""
        if self._mark.wanted:
            self._mark.take(raw_stack(sys._getframe(2), limit=_STACK_FRAMES))
        self.next_look_s = math.inf
        if self._schedule.period("memory") > 0:
            started_ns = time.thread_time_ns()
            if self._judge.follow_memory(step, self._recorder.memory):
                taken_s = (time.thread_time_ns() - started_ns) / 1e9
                self.next_look_s = time.monotonic() + taken_s / _SHARE
        return False


class NewsWatch:
    """Looks for news of one session; a `Watch` of the recorder, on its thread.

    Args:
        queue: may have found something that is acted upon at a step, in the slow way.
        fast: has the training thread look about, or the next step go the slow way.
        mark: of the training loop, whose stack may be wanted.
        recorder: reads memory now and then.
        lookout: says when a series of looks at the heap goes on.
    """

    def __init__(
        self, queue: StepQueue, fast: FastPath, mark: LoopMark, recorder: Recorder, lookout: Lookout
    ) -> None:
        self._queue, self._fast, self._mark, self._recorder = queue, fast, mark, recorder
        self._lookout = lookout
        self._memory = recorder.memory
        self.period_s = _PERIOD_S

    def look(self) -> list[Event]:
        """See whether the training thread has to look about, or the next step to go the slow way."""
        memory = self._recorder.memory
        if memory is not self._memory or self._mark.wanted or self._lookout.is_look_due:
            self._memory = memory
            self._fast.tell_news()
        if self._queue.has_suspicion:
            self._fast.ask_for_a_look()
        return []

    def close(self) -> list[Event]:
        """Nothing is left open."""
        return []

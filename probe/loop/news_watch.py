"""News while C follows the steps: who finds them, and what the training thread does about them."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Final

from ..delivery.host_memory import MemorySample
from ..delivery.recorder.recorder import Recorder
from ..detectors.loss_bound import LossBoundDetector
from ..threads.stacks import raw_stack
from ..threads.watchdog import LoopMark
from ..wire import Event
from .fast_path import FastPath
from .measure_schedule import MeasureSchedule
from .step_judge import StepJudge
from .step_queue import StepQueue

_PERIOD_S: Final = 0.25
_STACK_FRAMES: Final = 256
_MARK_S: Final = 5.0
"""The stack is renewed so often while the same lines lead to the steps: C sees to nearly all of them."""
_SHARE: Final = 0.02
"""Of the time, that a series of looks at the heap takes at most from steps that C follows ..."""
_FIRST_S: Final = 0.03
"""... once the first have taken so much: a training of a second is over before the share allows a comparison.
A budget of their own has their slices wait, too (`memory/time_slices.py`)."""


class Lookout:
    """What the training thread does at the end of a backward that C follows, where there is news.

    Args:
        judge: watches memory.
        schedule: says whether it is to be watched.
        mark: of the training loop, whose stack may be wanted.
    """

    def __init__(self, judge: StepJudge, schedule: MeasureSchedule, mark: LoopMark) -> None:
        self._judge, self._schedule, self._mark = judge, schedule, mark
        self.next_look_s = math.inf
        """When a series of looks at the heap is to go on; monotonic."""
        self._first_left_s = _FIRST_S
        self._renewed_s = -math.inf
        """When the mark was renewed, unless other lines have led to a step since."""

    @property
    def has_news(self) -> bool:
        """Whether the training thread has anything to do; from any thread."""
        is_old = time.monotonic() >= self._renewed_s + _MARK_S
        return (is_old and self._mark.wanted) or (self.watches_memory and self._is_memory_due)

    def note_other_lines(self) -> None:
        """Other lines lead to the step under way than to those before: the mark is to be renewed soon."""
        self._renewed_s = -math.inf

    @property
    def watches_memory(self) -> bool:
        """Whether memory is to be watched."""
        return self._schedule.period("memory") > 0

    @property
    def _is_memory_due(self) -> bool:
        if not self._judge.is_looking_at_memory:
            return self._judge.wants_memory
        # A series that was begun in the slow way goes on at once; what else there is comes with its looks.
        return self.next_look_s == math.inf or time.monotonic() >= self.next_look_s

    def look_about(self, step: int) -> int:
        """Mark where the loop is, watch memory.

        Returns:
            When to do it again though there is no news, ns of `time.monotonic_ns`; 0 for never.
        """
        if self._mark.wanted:
            self._mark.take(raw_stack(sys._getframe(2), limit=_STACK_FRAMES))
            self._renewed_s = time.monotonic()
        self.next_look_s = math.inf
        if self.watches_memory:
            started_ns = time.thread_time_ns()
            if self._judge.follow_memory(step):
                taken_s = (time.thread_time_ns() - started_ns) / 1e9
                self._first_left_s -= taken_s
                wait_s = 0.0 if self._first_left_s > 0 else taken_s / _SHARE
                self.next_look_s = time.monotonic() + wait_s
        return self.next_ns

    @property
    def next_ns(self) -> int:
        """When to look about though there is no news, ns of `time.monotonic_ns`; 0 for never."""
        if self.next_look_s != math.inf:
            return int(self.next_look_s * 1e9)
        wait_ns = self._judge.memory_wait_ns if self.watches_memory else math.inf
        return 0 if wait_ns == math.inf else time.monotonic_ns() + int(wait_ns)


class NewsWatch:
    """Looks for news of one session; a `Watch` of the recorder, on its thread.

    Args:
        queue: may have found something that is acted upon at a step, in the slow way.
        fast: has the training thread look about, or the next step go the slow way.
        judge: judges samples of memory.
        recorder: reads memory now and then.
        lookout: says whether the training thread has anything to do.
        loss_bound: may ask which function made a loss.
        last_step: number of the newest finished step.
    """

    def __init__(
        self,
        queue: StepQueue,
        fast: FastPath,
        judge: StepJudge,
        recorder: Recorder,
        lookout: Lookout,
        *,
        loss_bound: LossBoundDetector,
        last_step: Callable[[], int | None],
    ) -> None:
        self._queue, self._fast, self._judge, self._recorder = queue, fast, judge, recorder
        self._lookout, self._last_step, self._loss_bound = lookout, last_step, loss_bound
        self._memory: MemorySample | None = None
        self._noted_step: int | None = None
        self.period_s = _PERIOD_S

    def look(self) -> list[Event]:
        """See whether the training thread has to look about, or the next step to go the slow way."""
        self._note_memory()
        if self._lookout.has_news:
            self._fast.tell_news()
        if self._queue.has_suspicion or self._loss_bound.is_in_doubt:
            self._fast.ask_for_a_look()
        return []

    def _note_memory(self) -> None:
        """Have a new sample judged, where there was a step since the one before."""
        memory, step = self._recorder.memory, self._last_step()
        if memory is None or memory is self._memory or step is None or step == self._noted_step:
            return
        self._memory, self._noted_step = memory, step
        if self._lookout.watches_memory:
            self._judge.note_memory(step, memory)

    def close(self) -> list[Event]:
        """Nothing is left open."""
        return []

"""Watches over one session's training from inside: a hang becomes an event with the stack of who hangs.

Asked by the recorder's thread a few times a second, which needs Python's lock for it: where C code holds
that, or the process is stopped, `trainer_watch.py` in the helper sees it. Nothing here logs on that thread,
waits for a lock of the script's, or imports unless the script is in a collective: the training may be stuck
in the middle of any of these.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final

import msgspec

from ...compat.torch_frames import DATALOADER, has_given_nothing
from ...guard import Guard
from ...settings.config import ProbeConfig
from ...threads.collective_calls import BACKWARD, wait_of_thread
from ...threads.hang_events import duration_text, hang_event, renewed
from ...threads.life_sign import LifeSign, LifeSignWriter
from ...threads.stacks import RawFrame, format_frames, line_of, raw_stack
from ...threads.watchdog import LoopMark, Standstill, Watchdog, pulse
from ...threads.whereabouts import (
    Line,
    Place,
    at_line,
    describe,
    is_compiling,
    is_installed,
    place_of,
    waiting_place,
)
from ...wire import Event, RunStart
from ...wire.collective_waits import CollectiveWait
from .recorder import Recorder

_logger = logging.getLogger(__name__)
MAX_HANGS: Final = 20
"""Events of a session; what comes later counts to the last one."""
_SECOND_S: Final = 1.0
_LOOKS_PER_HANG: Final = 20
_SHORTEST_PERIOD_S: Final = 0.05
_LONGEST_PERIOD_S: Final = 0.25
_LONGEST_STILL_S: Final = 0.5
"""The same, where nothing has happened since the last look."""
_STACK_FRAMES: Final = 256
_CLOSER_FRACTION: Final = 0.1
_SHOWN_THREADS: Final = 5
_WENT_ON: Final = ", and went on"
_TO_THE_END: Final = ", to the end of the run"


class _Hang(msgspec.Struct):
    """All standstills at one place of the script: one event."""

    event: Event
    what: str
    """What the script was at."""
    others: list[str]
    wait: CollectiveWait | None = None
    """The collective that it waits in."""
    explained: str | None = None
    """Which rank waits in which, once that is known."""
    count: int = 1
    longest_s: float = 0.0
    step: int = 0

    def record(self, stand: Standstill, idle_s: float, *, after: str | None = None) -> Event:
        """The event in its present state.

        Args:
            stand: the standstill.
            idle_s: how long it has lasted.
            after: how it has ended; None: it has not.
        """
        self.longest_s = max(self.longest_s, idle_s)
        ended = after is not None
        usual = f" (a step takes {duration_text(stand.step_s)})"
        verb = "stood" if ended else "stands"
        still = f"Step {self.step} {verb} still for {duration_text(idle_s)}{usual}"
        end = after or ""
        first = f"{still}, {self.what}{end}" if self.explained is None else f"{still}{end}: {self.explained}"
        again = f"{self.count} times so far, for {duration_text(self.longest_s)} at most."
        waits = [] if self.wait is None else [self.wait.line()]
        lines = [first, *([again] if self.count > 1 else []), *waits, *self.others]
        return renewed(
            self.event,
            "\n".join(lines),
            idle_s=self.longest_s,
            ended=ended,
            count=self.count,
            last_step=max(self.step, self.event.step),
        )


class HangWatch:
    """The `Watch` of a recorder: hangs of one session.

    Args:
        start: the incarnation.
        model: name of the naming root.
        config: options.
        recorder: asks this watch; its folder takes the signs of life.
        mark: where the session's training loop is.
        last_step: number of the newest finished step, from any thread.
        is_own: whether the probe's own code runs on the training thread.
    """

    def __init__(
        self,
        start: RunStart,
        model: str,
        *,
        config: ProbeConfig,
        recorder: Recorder,
        mark: LoopMark,
        last_step: Callable[[], int | None],
        is_own: Callable[[], bool] = lambda: False,
    ) -> None:
        self._start, self._model, self._mark = start, model, mark
        self._last_step, self._is_own = last_step, is_own
        self._logger = config.logger or _logger
        self._first_step = config.first_step
        self._guard = Guard()
        self._watchdog = Watchdog(hang_s=config.hang_seconds)
        if recorder.has_helper and recorder.life_sign is None:
            recorder.life_sign = LifeSignWriter(recorder.folder, takes_signal=config.stack_signal)
        self._sign, self._folder = recorder.life_sign, recorder.folder
        self._usual_s = min(max(config.hang_seconds / _LOOKS_PER_HANG, _SHORTEST_PERIOD_S), _LONGEST_PERIOD_S)
        self.period_s = self._usual_s
        self._signs = 0
        self._was_training = False
        self._next_second_s = self._closer_at_s = 0.0
        self._hangs: dict[tuple[str, int] | None, _Hang] = {}
        self._running: tuple[_Hang, Standstill] | None = None
        self._tell_next_s = 0.0
        self._mark_raw: list[RawFrame] = []
        self._mark_lines: list[Line] = []
        self._seen: tuple[list[RawFrame], list[Line], bool] | None = None
        """What the last closer look found to be other work or none: the stack, the mark, and whether the
        script evaluated."""
        self._seen_place: Place = "step"

    def look(self) -> list[Event]:
        """See whether training goes on; once a second tell the helper that we could look."""
        return self._guard.run("hang", self._look) or []

    def close(self) -> list[Event]:
        """End what is running, and say that nothing trains here; the events that are still to be written."""
        self._was_training = False
        if pulse.owner is self._mark:
            self._write_sign()
        return self._end(_WENT_ON if self._has_gone_on() else _TO_THE_END)

    def _look(self) -> list[Event]:
        now_s = time.monotonic()
        is_alive = self._watchdog.note(
            now_s,
            beats=pulse.count,
            evaluations=pulse.evaluations,
            step=self._last_step(),
            cpu_s=time.process_time(),
            is_own=self._is_own(),
        )
        self.period_s = self._usual_s if is_alive else min(2 * self._usual_s, _LONGEST_STILL_S)
        ended = self._end() if is_alive else []
        is_new_second = now_s >= self._next_second_s
        is_training = self._is_training()
        if is_new_second:
            self._next_second_s = now_s + _SECOND_S
            self._mark.wanted = True
        if is_new_second or is_training != self._was_training:
            self._was_training = is_training
            self._write_sign()
        stand = self._watchdog.standstill
        if stand is None or pulse.owner is not self._mark:
            return ended
        if self._running is not None:
            return self._go_on(stand)
        if now_s >= self._closer_at_s or stand.idle_s < stand.limit_s + 2 * self.period_s:
            # A look at all stacks takes about a millisecond: the longer nothing happens, the rarer it is.
            self._closer_at_s = now_s + max(_SECOND_S, _CLOSER_FRACTION * stand.idle_s)
            return self._look_closer(stand)
        return []

    def _write_sign(self) -> None:
        if self._sign is None:
            return
        self._signs += 1
        stacks = self._sign.find_stacks()
        self._sign.write(
            LifeSign(
                count=self._signs,
                step=self._last_step(),
                is_training=self._was_training,
                limit_s=self._watchdog.limit_s,
                step_s=self._watchdog.step_s,
                thread=self._mark.thread,
                recorder=threading.get_native_id(),
                signal=self._sign.signal,
                stacks=stacks,
                mark=self._marked_lines(),
            )
        )

    def _has_gone_on(self) -> bool:
        """Whether a step that stood still was finished since the last look."""
        last_step = self._last_step()
        return self._running is not None and last_step is not None and last_step >= self._running[0].step

    def _is_training(self) -> bool:
        if not self._watchdog.is_armed or self._watchdog.is_evaluating or self._running is not None:
            return False
        return pulse.owner is self._mark

    def _marked_lines(self) -> list[Line]:
        raw = self._mark.stack
        if raw is not None and raw != self._mark_raw:
            self._mark_raw, self._mark_lines = raw, lines_of(raw)
        return self._mark_lines

    def _look_closer(self, stand: Standstill) -> list[Event]:
        """Judge by where the thread stands, and begin an event if that is a hang."""
        frames = sys._current_frames()
        frame = frames.get(self._mark.thread)
        if frame is None:
            return []
        raw = raw_stack(frame, limit=_STACK_FRAMES)
        seen = raw, self._marked_lines(), stand.is_evaluating
        if seen == self._seen and (self._seen_place == "away" or not stand.is_long_for_other_work):
            return []
        stacks = {
            thread: lines_of(raw_stack(other, limit=_STACK_FRAMES))
            for thread, other in frames.items()
            if thread != threading.get_ident()
        }
        if any(map(is_compiling, stacks.values())):
            return []
        stack = stacks[self._mark.thread]
        place = place_of(stack, self._marked_lines())
        # The first batch may come while the thread stands where it stood.
        is_other_work = place == "other_work" or stand.is_evaluating
        self._seen = seen if place == "away" or is_other_work else None
        self._seen_place = place
        if place == "away":
            return []
        is_other_work = is_other_work or _awaits_first_batch(frame)
        if is_other_work and not stand.is_long_for_other_work:
            return []
        others = [lines for thread, lines in stacks.items() if thread != self._mark.thread]
        wait = self._guard.run("hang", wait_of_thread, frame)
        if wait is not None and wait.op == BACKWARD and stand.is_working:
            wait = None  # it computes
        return self._begin(stand, stack, raw, others, wait)

    def _begin(
        self,
        stand: Standstill,
        stack: list[Line],
        raw: list[RawFrame],
        others: list[list[Line]],
        wait: CollectiveWait | None,
    ) -> list[Event]:
        last_step = self._last_step()
        step = self._first_step if last_step is None else last_step + 1
        line = waiting_place(stack)
        key = (line.file, line.line) if line is not None else None
        hang = self._hangs.get(key)
        if hang is None:
            # One step has one event, by its id; and there is an end to new ones.
            all_so_far = list(self._hangs.values())
            same_step = [old for old in all_so_far if old.event.step == step]
            hang = next(iter(same_step or all_so_far[MAX_HANGS - 1 :]), None)
        if hang is not None:
            hang.count, hang.step = hang.count + 1, step
        else:
            hang = self._hangs[key] = _Hang(
                self._new_event(stand, step, raw), describe(stack), _other_threads(others), step=step
            )
        hang.wait = wait
        self._explain(hang)
        self._running = hang, stand
        # The other ranks come to their own events in the same second.
        self._tell_next_s = 2 * stand.idle_s if wait is None else stand.idle_s + _SECOND_S
        if not _is_power_of_two(hang.count):
            return []
        event = hang.record(stand, stand.idle_s)
        self._announce(event)
        return [event]

    def _new_event(self, stand: Standstill, step: int, raw: list[RawFrame]) -> Event:
        return hang_event(
            self._start,
            self._model,
            "stuck",
            "",
            step=step,
            time=time.time() - stand.idle_s,
            idle_s=stand.idle_s,
            limit_s=stand.limit_s,
            step_s=stand.step_s,
            frames=format_frames(raw),
        )

    def _go_on(self, stand: Standstill) -> list[Event]:
        """It still hangs: say how long whenever that has doubled."""
        assert self._running is not None
        hang, _ = self._running
        self._running = hang, stand
        if stand.idle_s < self._tell_next_s:
            return []
        self._tell_next_s = 2 * stand.idle_s
        self._explain(hang)
        return [hang.record(stand, stand.idle_s)]

    def _explain(self, hang: _Hang) -> None:
        """Read what the other ranks wait in: with this rank's own collective that is the cause."""
        if hang.wait is None:
            return
        # Who is in a collective is in the midst of no import.
        from ...detectors.ranks.waits import ADVICE
        from ..journal.rank_events import explain_wait

        ranks = self._start.world_size
        explained = self._guard.run("hang", explain_wait, self._folder, hang.wait, world_size=ranks)
        if explained is not None and hang.explained is None:
            advice = [*ADVICE, *hang.event.advice]
            hang.event = msgspec.structs.replace(hang.event, advice=advice)
        hang.explained = explained or hang.explained

    def _end(self, after: str = _WENT_ON) -> list[Event]:
        """It goes on, or is over: the last state of what was running, where that is worth a record."""
        if self._running is None:
            return []
        (hang, stand), self._running = self._running, None
        record = hang.record(stand, stand.idle_s, after=after)
        return [record] if _is_power_of_two(hang.count) else []

    def _announce(self, event: Event) -> None:
        """Tell Python logging, on a thread that may wait: the script may be stuck with a handler's lock."""
        first_line = event.message.splitlines()[0]
        threading.Thread(
            target=self._logger.warning,
            args=("%s: %s", event.kind, first_line),
            name="nanscope-announcement",
            daemon=True,
        ).start()


def _is_power_of_two(count: int) -> bool:
    """Whether this many are told; a script that often takes its time writes ever fewer records."""
    return count & (count - 1) == 0


def lines_of(raw: Sequence[RawFrame]) -> list[Line]:
    """Turn raw frames into lines."""
    return [Line(code.co_filename, line_of(code, offset), code.co_name) for code, offset in raw]


def _awaits_first_batch(frame: FrameType | None) -> bool:
    """Whether the thread waits for the first batch of a round, for which workers have to start."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(DATALOADER):
            iterator = frame.f_locals.get("self")
            if has_given_nothing(iterator):
                return True
        frame = frame.f_back
    return False


def _other_threads(stacks: Sequence[Sequence[Line]]) -> list[str]:
    """Say where the script's other threads are."""
    own = [stack for stack in stacks if any(not is_installed(line.file) for line in stack)]
    return [f"Another thread is{at_line(stack)}." for stack in own[:_SHOWN_THREADS]]

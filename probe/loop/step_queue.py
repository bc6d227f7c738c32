"""Finished steps on their way through the detectors: one queue, in the order of the steps.

A step waits in it while its values are on their way from a device (`late`), then for a few others
(`waiting`): judged in a row, quiet steps cost a tenth. The training thread adds steps, and judges where an
unusual one comes; the recorder's thread judges what has waited for long enough, in short pieces.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final, Literal

import msgspec

from ..attach.layout import ModelLayout
from ..detectors.base import Observation, ObservationBatch, join_batches
from ..guard import Guard
from ..incidents.evidence import LateEvidence, StepEvidence
from ..incidents.incidents import IncidentReporter
from ..incidents.lasting import LastingFault
from ..incidents.verdict import NOTHING_FOUND, Verdict
from ..step.frames import MeasuredStep, build_batch
from ..threads.pieces import give_way
from ..threads.stacks import RawFrame
from ..wire import Event

JUDGE_S: Final = 0.2
"""A step is judged once it is this old, whether another one comes or not."""
_PERIOD_S: Final = 0.25
_BUSY_S: Final = 0.02
"""While the training thread judges, the recorder's thread comes again so soon."""
MOST_WAITING: Final = 32
"""Then the training thread judges them itself."""
_PIECE_S: Final = 0.002
"""CPU time that a piece may take, as long as nothing is found: so long the lock of `incidents` is held."""
_ROOM: Final = 0.7
"""A piece that takes less than this share of it may be twice as long."""
_LEAST: Final = 4
"""Steps of a piece, if there are so many: most of what a single one costs is not of the step."""
_FIRST: Final = 8


class QueuedStep(msgspec.Struct, eq=False):
    """A finished step and how far it is."""

    measured: MeasuredStep
    stack: Sequence[RawFrame]
    """Of the training loop when it was measured, or when the first of those that wait with it was."""
    state: Literal["late", "waiting", "judged"]
    ended_s: float
    """Monotonic seconds."""
    fault: LastingFault | None = None
    """What is bad of a step that only counts in open events; None: all its values are finite."""
    is_open: bool = True
    """Whether something may still be added to its frame."""
    is_complete: bool = False
    """Whether the rules and the detectors of samples have seen it."""

    @property
    def layout(self) -> ModelLayout:
        """Of the step's parameters."""
        return self.measured.layout


class QueuedRun(msgspec.Struct, eq=False):
    """Successive steps that C has followed, arranged for the detectors already."""

    layout: ModelLayout
    batch: ObservationBatch
    times: Sequence[float]
    """UNIX seconds of each."""
    stacks: Sequence[Sequence[RawFrame]]
    """Of the training loop when each was measured."""
    ended_s: float
    """Monotonic seconds; of the oldest."""
    fault: LastingFault | None = None
    """As in `QueuedStep`, of all of them."""
    state: Literal["waiting"] = "waiting"

    def part(self, start: int, stop: int | None = None) -> QueuedRun:
        """Return the steps `[start, stop)`."""
        chosen = slice(start, stop)
        return QueuedRun(
            self.layout,
            self.batch.part(start, len(self.times) if stop is None else stop),
            self.times[chosen],
            self.stacks[chosen],
            self.ended_s,
            self.fault,
        )


class StepQueue:
    """Steps that the detectors have not seen; a `Watch` of the recorder.

    Args:
        incidents: judges.
        guard: of the training thread.
        arrive: called with a late step, and the guard of the thread, under the lock of `incidents`: takes
            its values; if it is a quiet one it waits from then on, else it has been judged.
        note_alarms: called with the steps with a warning, under the lock: verdicts are not taken for long
            while C follows the steps.
    """

    def __init__(
        self,
        incidents: IncidentReporter,
        guard: Guard,
        *,
        arrive: Callable[[QueuedStep, Guard], None],
        note_alarms: Callable[[Collection[int]], None],
    ) -> None:
        self._incidents, self._guard, self._arrive = incidents, guard, arrive
        self._note_alarms = note_alarms
        self._thread_guard = guard.for_thread()
        """A guard's clock is that of one thread, and `look` comes on the recorder's."""
        self._steps: deque[QueuedStep | QueuedRun] = deque()
        self._verdicts: deque[Verdict] = deque()
        self._most = _FIRST
        """Steps of a piece."""
        self.period_s = _PERIOD_S

    # -- on the training thread

    def add(self, step: QueuedStep) -> None:
        """Have a step judged with others; what has piled up is judged now."""
        self._steps.append(step)
        if len(self._steps) >= MOST_WAITING:
            with self._incidents.judging(self._guard):
                self._judge_waiting(self._guard)

    def append(self, step: QueuedStep | QueuedRun) -> None:
        """Have a step, or a run of them, judged once it is old enough; under the lock, on either thread."""
        self._steps.append(step)

    def unjudged_from(self) -> int | None:
        """Return the number of the oldest step that the detectors have not seen; None: there is none."""
        if not self._steps:
            return None
        oldest = self._steps[0]
        return oldest.batch.steps[0] if isinstance(oldest, QueuedRun) else oldest.measured.step

    def note(self, verdict: Verdict) -> None:
        """Pass a verdict on to the training thread, as those of the queue are."""
        self._verdicts.append(verdict)

    @property
    def has_suspicion(self) -> bool:
        """Whether something was found that the training thread has to act upon."""
        return any(verdict.suspicion is not None for verdict in tuple(self._verdicts))

    def judge_all(self) -> None:
        """Have the detectors look at every step so far; waits for what is on its way."""
        with self._incidents.judging(self._guard):
            while self._steps:
                self._judge_piece(self._guard)

    def settle(self) -> None:
        """Take the values of the newest step, where they are still on their way; waits for them."""
        with self._incidents.judging(self._guard):
            newest = self._steps[-1] if self._steps else None
            if isinstance(newest, QueuedStep) and newest.state == "late":
                self._take_late(newest, self._guard)

    def judge_at_once(
        self,
        observation: Observation,
        time: float,
        evidence: StepEvidence | LateEvidence,
        guard: Guard,
    ) -> Verdict:
        """Judge a step that does not wait, after those that do."""
        with self._incidents.judging(guard):
            self._judge_waiting(guard)
            found = guard.run("detectors", self._incidents.judge, observation, time, evidence)
            verdict = found or NOTHING_FOUND
            self._keep(verdict)
        return verdict

    def _keep(self, verdict: Verdict) -> None:
        # While C follows the steps nobody takes them for long.
        if verdict is NOTHING_FOUND:
            return
        self._verdicts.append(verdict)
        if verdict.alarms:
            self._note_alarms(verdict.alarms)

    def take_verdicts(self) -> list[Verdict]:
        """Return what the detectors have found since the last call."""
        return [self._verdicts.popleft() for _ in range(len(self._verdicts))]

    def forget(self) -> None:
        """Drop what has not been judged."""
        self._steps.clear()

    # -- on the recorder's thread

    def look(self) -> list[Event]:
        """Judge what is old enough, and what has come after it: one wake for all of it.

        The events are written where they are found.
        """
        self.period_s = _PERIOD_S
        has_judged = False
        while self._steps:
            with self._incidents.judging(self._thread_guard, wait_s=0.0) as may_judge:
                if not may_judge:
                    # Perhaps for long: who judges writes a bundle, and waits for this thread.
                    self.period_s = _BUSY_S
                    break
                left_s = self._left_s()
                # What is on its way from a device is not waited for before its time.
                if left_s > 0 and not (has_judged and self._steps and self._steps[0].state == "waiting"):
                    self.period_s = min(left_s, _PERIOD_S)
                    break
                self._judge_piece(self._thread_guard)
                has_judged = True
            give_way()
        return []

    def close(self) -> list[Event]:
        """Nothing is left: the session has had all judged."""
        return []

    # -- on either, under the lock

    def _left_s(self) -> float:
        """How long the oldest step still waits."""
        return self._steps[0].ended_s + JUDGE_S - time.monotonic() if self._steps else JUDGE_S

    def _judge_waiting(self, guard: Guard) -> None:
        """Judge what has arrived; what is still on its way is not waited for."""
        while self._steps and self._steps[0].state == "waiting":
            self._judge_piece(guard)

    def _judge_piece(self, guard: Guard) -> None:
        """Judge the oldest steps, for two milliseconds."""
        if not self._steps:
            return
        oldest = self._steps[0]
        if isinstance(oldest, QueuedStep) and oldest.state == "late":
            self._take_late(oldest, guard)
            return
        piece, count = self._take_piece()
        started_s = time.thread_time()
        verdict = guard.run("detectors", self._judge, piece)
        self._note_cost(count, time.thread_time() - started_s)
        if verdict is not None:
            self._keep(verdict)

    def _note_cost(self, steps: int, taken_s: float) -> None:
        """Choose the next pieces' length by what one has taken."""
        # Not by the time of a step: that of single ones would have them single for ever.
        if taken_s > _PIECE_S:
            self._most = max(min(steps, self._most) // 2, _LEAST)
        elif steps == self._most and taken_s < _ROOM * _PIECE_S:
            self._most = min(2 * steps, MOST_WAITING)

    def _take_late(self, late: QueuedStep, guard: Guard) -> None:
        self._arrive(late, guard)
        if late.state == "judged" and late in self._steps:
            self._steps.remove(late)

    def _take_piece(self) -> tuple[list[QueuedStep | QueuedRun], int]:
        """Take successive steps of one layout, all healthy or with one fault, and say how many they are."""
        piece: list[QueuedStep | QueuedRun] = []
        count, layout, fault = 0, self._steps[0].layout, self._steps[0].fault
        while self._steps and count < self._most:
            following = self._steps[0]
            if following.state != "waiting" or following.layout is not layout or following.fault is not fault:
                break
            self._steps.popleft()
            if isinstance(following, QueuedRun) and count + len(following.times) > self._most:
                left = self._most - count
                self._steps.appendleft(following.part(left))
                following = following.part(0, left)
            piece.append(following)
            count += len(following.times) if isinstance(following, QueuedRun) else 1
        return piece, count

    def _judge(self, piece: Sequence[QueuedStep | QueuedRun]) -> Verdict:
        batches: list[ObservationBatch] = []
        times: list[float] = []
        stacks: list[Sequence[RawFrame]] = []
        for is_run, steps in itertools.groupby(piece, key=lambda one: isinstance(one, QueuedRun)):
            if is_run:
                runs = [one for one in steps if isinstance(one, QueuedRun)]
                batches += [run.batch for run in runs]
                times += [time for run in runs for time in run.times]
                stacks += [stack for run in runs for stack in run.stacks]
            else:
                singles = [one for one in steps if isinstance(one, QueuedStep)]
                batches.append(build_batch([one.measured for one in singles]))
                times += [one.measured.time for one in singles]
                stacks += [one.stack for one in singles]
        if (fault := piece[0].fault) is not None:
            verdict = self._incidents.count(fault, join_batches(batches), times, stacks)
        else:
            verdict = self._incidents.judge_quiet(join_batches(batches), times, stacks)
        for one in piece:
            if isinstance(one, QueuedStep):
                one.state = "judged"
        return verdict

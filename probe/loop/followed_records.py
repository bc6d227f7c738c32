"""Gives the steps that C has written into the ring to the detectors, in their order.

The recorder's thread comes here before it takes records out of the ring, the training thread when it goes on
in the slow way: a step that goes that way is judged after all that were before it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from ..attach.layout import ModelLayout
from ..delivery.recorder.recorder import Recorder
from ..delivery.recorder.ring import Ring
from ..delivery.recorder.ring_format import RAW, RawStep, Template, raw_scalars, read_raw
from ..detectors.sample import InputSample
from ..guard import Guard
from ..incidents.incidents import IncidentReporter
from ..measure.statistics.statistics import TensorStatistics
from ..measure.statistics.torch_statistics import ROWS
from ..step.frames import MeasuredStep
from ..step.losses import StepLoss
from ..threads.stacks import RawFrame
from ..threads.watchdog import LoopMark
from ..wire import Event
from .sample_judge import SampleJudge
from .step_queue import QueuedStep, StepQueue

_MOST_INPUTS: Final = 64
_PERIOD_S: Final = 0.25
_PIECE_RECORDS: Final = 4
"""What the recorder's thread takes before training gets Python's lock again."""
_ALL_RECORDS: Final = 1 << 20
_OTHERS_S: Final = 0.0002
_SHARE: Final = 0.0025
"""Of the time, that steps which go the slow way only for news may take: with many tensors one costs 12 ms."""


class Following(NamedTuple):
    """What the records of one template have in common."""

    template: Template
    layout: ModelLayout
    stack: Sequence[RawFrame]
    """Of the training loop, when C was armed."""


class FollowedRecords:
    """Reads the ring, each record once; a `Watch` of the recorder.

    Args:
        mark: of the training loop; where its stack is wanted, the next step has to go the slow way, as where
            memory was read anew or something was found that is acted upon there.
        ask_for_a_look: has it go that way.
        interlude_ns: what going that way has cost the last time.
    """

    def __init__(
        self,
        queue: StepQueue,
        samples: SampleJudge,
        *,
        recorder: Recorder,
        incidents: IncidentReporter,
        guard: Guard,
        mark: LoopMark,
        ask_for_a_look: Callable[[], None],
        interlude_ns: Callable[[], int],
    ) -> None:
        self._queue, self._samples, self._recorder = queue, samples, recorder
        self._incidents, self._guard = incidents, guard
        self._thread_guard = guard.for_thread()
        self._mark, self._ask_for_a_look = mark, ask_for_a_look
        self._interlude_ns, self._not_before_s = interlude_ns, 0.0
        self._memory = recorder.memory
        self.period_s = _PERIOD_S
        self._ring: Ring | None = None
        self._next_byte = 0
        self._following: dict[int, Following] = {}
        self._inputs: dict[int, InputSample] = {}

    def begin(self, ring: Ring, number: int, following: Following) -> None:
        """C is about to write records of template `number`."""
        if ring is not self._ring:
            self.take()
            self._ring, self._following = ring, {}
        self._next_byte = ring.counters.head
        self._following[number] = following
        for old in [key for key in self._following if key < number - 1]:
            del self._following[old]

    def note_inputs(self, step: int, inputs: InputSample | None) -> None:
        """The inputs of a step that C follows were looked at."""
        if inputs is not None and len(self._inputs) < _MOST_INPUTS:
            self._inputs[step] = inputs

    def take(self, *, is_recorders_thread: bool = False) -> None:
        """Have what is new judged, on either thread."""
        ring = self._ring
        if ring is None:
            return
        guard = self._thread_guard if is_recorders_thread else self._guard
        end, most = ring.counters.head, _PIECE_RECORDS if is_recorders_thread else _ALL_RECORDS
        while (begin := self._next_byte) < end:
            with self._incidents.judging(guard):
                guard.run("detectors", self._take, ring, guard, most)
            if self._next_byte <= begin:
                return
            if is_recorders_thread:
                # The lock and Python's own go to who waits for them.
                time.sleep(_OTHERS_S)

    def look(self) -> list[Event]:
        """See whether the next step has to go the slow way."""
        memory, now_s = self._recorder.memory, time.monotonic()
        has_news = (memory is not self._memory or self._mark.wanted) and now_s >= self._not_before_s
        if has_news or self._queue.has_suspicion:
            self._memory = memory
            self._not_before_s = now_s + self._interlude_ns() / 1e9 / _SHARE
            self._ask_for_a_look()
        return []

    def close(self) -> list[Event]:
        """Nothing is left: the session has had all judged."""
        return []

    def _take(self, ring: Ring, guard: Guard, most: int) -> None:
        """Take so many records, or fewer up to one that the detectors of samples look at."""
        for record in itertools.islice(ring.records(self._next_byte), most):
            self._next_byte = record.end
            if record.kind != RAW:
                continue
            raw = read_raw(record.payload)
            following = self._following.get(raw.template)
            if following is not None:
                measured = measured_of(raw, following, self._inputs.pop(raw.step, None))
                self._queue.append(QueuedStep(measured, following.stack, "waiting", time.monotonic()))
                if self._samples.wants(measured):
                    self._judge_sample(measured, guard)
                    return

    def _judge_sample(self, measured: MeasuredStep, guard: Guard) -> None:
        verdict = guard.run("detectors of samples", self._samples.take, measured)
        if verdict is not None and verdict.suspicion is not None:
            self._queue.note(verdict)


def measured_of(raw: RawStep, following: Following, inputs: InputSample | None) -> MeasuredStep:
    """Return what the slow way knows of a step that C has written down; nothing of it refers to the ring."""
    count = raw.block.shape[1]
    block = np.zeros((ROWS, count))
    block[: len(raw.block)] = raw.block
    missing = np.zeros(count, dtype=np.bool_)
    if raw.missing:
        missing = np.unpackbits(np.frombuffer(raw.missing, np.uint8), count=count).astype(np.bool_)
    return MeasuredStep(
        step=raw.step,
        time=raw.time,
        layout=following.layout,
        stage=following.template.stage,
        gradients=TensorStatistics(block, missing, is_finite=True, total_norm=raw.total_norm),
        total_norm=raw.total_norm,
        parameter_norm=None if raw.parameter_norm is None else raw.parameter_norm.astype(np.float64),
        loss=StepLoss(raw.loss, raw.loss_raw),
        samples=int(raw.samples),
        scalars=raw_scalars(following.template, raw),
        inputs=inputs,
    )

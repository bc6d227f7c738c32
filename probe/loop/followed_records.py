"""Gives the steps that C has written into the ring to the detectors, in their order.

The recorder's thread comes here before it takes records out of the ring, the training thread when it goes on
in the slow way: a step that goes that way is judged after all that were before it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from ..attach.layout import ModelLayout
from ..attach.observation.module_statistics import ModuleStatistics
from ..delivery.recorder.ring import Ring
from ..delivery.recorder.ring_format import (
    ADDITION,
    RAW,
    UPDATE,
    RawStep,
    RawUpdate,
    Template,
    raw_scalars,
    read_raw,
    read_update,
)
from ..detectors.sample import InputSample
from ..guard import Guard
from ..incidents.incidents import IncidentReporter
from ..measure.statistics.masked import MaskedValues
from ..measure.statistics.statistics import TensorStatistics
from ..measure.statistics.torch_statistics import ROWS
from ..step.frames import MeasuredStep
from ..step.losses import StepLoss
from ..step.open_step import LogValue
from ..threads.pieces import give_way
from ..threads.stacks import RawFrame
from .sample_judge import SampleJudge
from .step_queue import JUDGE_S, QueuedStep, StepQueue

_MOST_INPUTS: Final = 64
_MOST_STACKS: Final = 16
_PIECE_RECORDS: Final = 8
"""What the recorder's thread takes before training gets Python's lock again."""
_ALL_RECORDS: Final = 1 << 20


class Following(NamedTuple):
    """What the records of one template have in common."""

    template: Template
    layout: ModelLayout
    stack: Sequence[RawFrame]
    """Of the training loop, when C was armed."""


class FollowedRecords:
    """Reads the ring, each record once."""

    def __init__(
        self,
        queue: StepQueue,
        samples: SampleJudge,
        *,
        incidents: IncidentReporter,
        guard: Guard,
    ) -> None:
        self._queue, self._samples = queue, samples
        self._incidents, self._guard = incidents, guard
        self._thread_guard = guard.for_thread()
        self._ring: Ring | None = None
        self._next_byte = 0
        self._following: dict[int, Following] = {}
        self._inputs: dict[int, InputSample] = {}
        self._modules: dict[int, ModuleStatistics] = {}
        self._logged: dict[int, dict[str, LogValue]] = {}
        self._stacks: tuple[tuple[int, Sequence[RawFrame]], ...] = ()
        """From which step on which lines lead to the training loop, oldest first."""
        self._open: QueuedStep | None = None
        """The newest step, where what its update has changed follows in a record of its own."""
        self._newest: MeasuredStep | None = None
        """The step that was queued last: what is logged until the next one is for the samples' judge too."""

    def begin(self, ring: Ring, number: int, following: Following) -> None:
        """C is about to write records of template `number`."""
        if ring is not self._ring:
            self.take()
            self._ring, self._following = ring, {}
        # Of steps that went the slow way after all.
        self._inputs, self._modules, self._logged, self._stacks = {}, {}, {}, ()
        self._next_byte = ring.counters.head
        self._following[number] = following
        for old in [key for key in self._following if key < number - 1]:
            del self._following[old]

    def end(self) -> None:
        """C writes no more records until the next `begin`: take what there is, and look at the ring no more.

        The recorder's thread would wait for the training thread, which judges steps of the slow way, and
        waits for the recorder's thread where it writes a bundle.
        """
        self.take()
        self._ring = None

    def note_inputs(self, step: int, inputs: InputSample | None) -> None:
        """The inputs of a step that C follows were looked at."""
        if inputs is not None and len(self._inputs) < _MOST_INPUTS:
            self._inputs[step] = inputs

    def note_stack(self, step: int, stack: Sequence[RawFrame]) -> None:
        """From this step on it is that of the training loop."""
        # A new one each time: the recorder's thread may be looking at the old one.
        self._stacks = (*self._stacks[1 - _MOST_STACKS :], (step, stack))

    def take_inputs(self, step: int) -> InputSample | None:
        """What `note_inputs` was given of a step that goes on in the slow way."""
        return self._inputs.pop(step, None)

    def note_modules(self, step: int, modules: ModuleStatistics | None) -> None:
        """What the modules of a step that C follows have returned."""
        if modules is not None and len(self._modules) < _MOST_INPUTS:
            self._modules[step] = modules

    def note_logged(self, step: int, values: dict[str, LogValue]) -> None:
        """What is logged of a step that C follows, before it ends."""
        if len(self._logged) < _MOST_INPUTS:
            self._logged[step] = self._logged.get(step, {}) | values

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
                break
            give_way()
        if not is_recorders_thread and self._open is not None:
            with self._incidents.judging(guard):
                guard.run("detectors", self._close_open, guard)

    def _take(self, ring: Ring, guard: Guard, most: int) -> None:
        """Take so many records, or fewer up to one that the detectors of samples look at."""
        for record in itertools.islice(ring.records(self._next_byte), most):
            self._next_byte = record.end
            if record.kind == ADDITION:
                # No more of what is judged; an update may still follow.
                continue
            if record.kind == UPDATE:
                self._add_update(read_update(record.payload))
            is_judged = self._close_open(guard)
            if record.kind == RAW:
                raw = read_raw(record.payload)
                self._open = self._queued(raw)
                if not raw.has_update:
                    is_judged |= self._close_open(guard)
            if is_judged:
                return

    def _queued(self, raw: RawStep) -> QueuedStep | None:
        following = self._following.get(raw.template)
        if following is None:
            return None
        measured = measured_of(raw, following)
        measured.inputs = self._inputs.pop(raw.step, None)
        measured.modules = self._modules.pop(raw.step, None)
        measured.logged = self._logged.pop(raw.step, {})
        # It has waited long enough: no other one comes before the ring is looked at again.
        noted = (stack for first, stack in reversed(self._stacks) if first <= raw.step)
        stack = next(noted, following.stack)
        return QueuedStep(measured, stack, "waiting", time.monotonic() - JUDGE_S)

    def _add_update(self, update: RawUpdate) -> None:
        if self._open is None or self._open.measured.step != update.step:
            return
        measured = self._open.measured
        measured.sampled["update_ratio"] = MaskedValues(update.ratios, update.missing)
        if update.total is not None:
            measured.scalars["update_ratio"] = update.total

    def _close_open(self, guard: Guard) -> bool:
        """Nothing more comes of the newest step: have it judged; whether its sample was looked at."""
        step, self._open = self._open, None
        if step is None:
            return False
        is_judged = self._judge_newest(guard)
        self._queue.append(step)
        self._newest = step.measured
        return is_judged

    def take_newest(self, step: int) -> MeasuredStep | None:
        """Return the newest step, if it is this one: the slow way has its sample judged then."""
        newest, self._newest = self._newest, None
        return newest if newest is not None and newest.step == step else None

    def _judge_newest(self, guard: Guard) -> bool:
        """Another step has followed: have the sample of the one before judged, if there is one."""
        measured, self._newest = self._newest, None
        if measured is None or not self._samples.wants(measured):
            return False
        self._judge_sample(measured, guard)
        return True

    def _judge_sample(self, measured: MeasuredStep, guard: Guard) -> None:
        verdict = guard.run("detectors of samples", self._samples.take, measured)
        if verdict is not None and verdict.suspicion is not None:
            self._queue.note(verdict)


def measured_of(raw: RawStep, following: Following) -> MeasuredStep:
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
    )

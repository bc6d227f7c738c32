"""Gives the steps that C has written into the ring to the detectors, in their order.

The recorder's thread comes here before it takes records out of the ring, the training thread when it goes on
in the slow way: a step that goes that way is judged after all that were before it.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from ..attach.layout import ModelLayout
from ..attach.observation.module_statistics import ModuleStatistics
from ..delivery.recorder.raw_rows import RawRows, read_rows
from ..delivery.recorder.ring import Ring
from ..delivery.recorder.ring_format import (
    RAW,
    UPDATE,
    RawStep,
    RawUpdate,
    RingRecord,
    Template,
    raw_scalars,
    read_raw,
    read_update,
)
from ..detectors.base import Floats, ObservationBatch
from ..detectors.sample import InputSample
from ..guard import Guard
from ..incidents.incidents import IncidentReporter
from ..incidents.lasting import LastingFault
from ..measure.statistics.masked import MaskedValues
from ..measure.statistics.statistics import TensorStatistics
from ..measure.statistics.torch_statistics import ROWS
from ..step.frames import MeasuredStep, batch_rates
from ..step.losses import StepLoss
from ..step.open_step import LogValue
from ..threads.pieces import give_way
from ..threads.stacks import RawFrame
from ..wire import Event
from .sample_judge import SampleJudge
from .step_queue import JUDGE_S, QueuedRun, QueuedStep, StepQueue

_MOST_INPUTS: Final = 64
_MOST_STACKS: Final = 16
_PERIOD_S: Final = 0.25
_SAMPLES_S: Final = 0.93
"""How often samples are judged on the recorder's thread, together: one alone is 0.2 ms of cold code."""
_WAIT_S: Final = 0.02
"""So long for another thread that judges; then it is seen whether there is still anything to take."""
_PIECE_RECORDS: Final = 32
"""What the recorder's thread takes before training gets Python's lock again."""
_ALL_RECORDS: Final = 1 << 20


class Following(NamedTuple):
    """What the records of one template have in common."""

    template: Template
    layout: ModelLayout
    stack: Sequence[RawFrame]
    """Of the training loop, when C was armed."""
    fault: LastingFault | None = None
    """What is bad of all of them."""


class _Plain(NamedTuple):
    """A step with nothing of its own for a sample: taken apart only if one is made of it after all."""

    step: int
    time: float
    """UNIX seconds."""
    payload: bytes
    following: Following


class FollowedRecords:
    """Reads the ring, each record once; a `Watch` of the recorder, so that no step waits for its frame."""

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
        self._newest: MeasuredStep | _Plain | None = None
        """The step that was queued last: its update and what is logged until the next are for its sample."""
        self._claimed: deque[MeasuredStep] = deque()
        """Steps for the samples' judge, which comes in pieces of its own."""
        self._samples_at_s = 0.0
        """From when on the recorder's thread has them judged."""

    @property
    def period_s(self) -> float:
        """How often the recorder's thread has new steps judged."""
        return _PERIOD_S

    def look(self) -> list[Event]:
        """Have what is new judged, on the recorder's thread."""
        self.take(is_recorders_thread=True)
        return []

    def close(self) -> list[Event]:
        """Nothing is left open: who closes the recorder has taken everything before."""
        return []

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
        waits for the recorder's thread where it writes a bundle (`IncidentReporter.judging`).
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
        samples_wait = is_recorders_thread and time.monotonic() < self._samples_at_s
        while (begin := self._next_byte) < end or (self._claimed and not samples_wait):
            claimed = len(self._claimed)
            with self._incidents.judging(guard, wait_s=_WAIT_S) as may_judge:
                if not may_judge:
                    # Its steps have been taken if it has ended meanwhile.
                    if self._ring is not ring:
                        return
                    continue
                guard.run("detectors", self._take_piece, ring, guard, most, samples_wait)
            if (self._next_byte, len(self._claimed)) == (begin, claimed):
                break
            give_way()

    def _take_piece(self, ring: Ring, guard: Guard, most: int, samples_wait: bool) -> None:
        """Have a sample judged that waits for that, or take so many records."""
        if self._claimed and not samples_wait:
            self._samples_at_s = time.monotonic() + _SAMPLES_S
            self._judge_sample(self._claimed.popleft(), guard)
        else:
            self._take(ring, most)

    def _take(self, ring: Ring, most: int) -> None:
        records = list(itertools.islice(ring.records(self._next_byte), most))
        if not records:
            return
        self._next_byte = records[-1].end
        payloads = [record.payload for record in records if record.kind == RAW]
        rows = read_rows(payloads) if len(payloads) > 1 else None
        following = None if rows is None else self._following.get(rows.template)
        if rows is None or following is None:
            self._take_one_by_one(records)
        else:
            self._take_rows(records, rows, following)

    def _take_one_by_one(self, records: Sequence[RingRecord]) -> None:
        for record in records:
            if record.kind == UPDATE:
                self._add_update(read_update(record.payload))
            elif record.kind == RAW:
                self._claim_newest()
                raw = read_raw(record.payload)
                self._note_own(raw.scalars)
                following = self._following.get(raw.template)
                if following is not None:
                    newest = self._newest = self._measured(raw, following)
                    stack = self._stack(raw.step, following)
                    queued = QueuedStep(newest, stack, "waiting", _long_ago(), following.fault)
                    self._queue.append(queued)

    def _take_rows(self, records: Sequence[RingRecord], rows: RawRows, following: Following) -> None:
        """Take the same where they are alike: only what a sample may be made of is looked at by itself."""
        steps, last = rows.steps, len(rows.steps) - 1
        parameter_norms: list[Floats | None] = [None] * len(steps)
        has_notes = bool(self._inputs or self._modules or self._logged)
        at = -1
        for record in records:
            if record.kind == UPDATE:
                self._add_update(read_update(record.payload))
            if record.kind != RAW:
                continue
            at += 1
            self._claim_newest()
            self._note_own(rows.scalars[at])
            is_wanted = rows.has_more[at] or self._samples.is_due(rows.times[at])
            if is_wanted or (has_notes and self._is_noted(steps[at])):
                measured = self._newest = self._measured(read_raw(record.payload), following)
                parameter_norms[at] = measured.parameter_norm
            elif at == last:
                self._newest = _Plain(steps[at], rows.times[at], bytes(record.payload), following)
        stacks = [following.stack] * len(steps)
        if self._stacks:
            newest = self._stacks[-1]
            is_old = newest[0] <= steps[0]
            stacks = [newest[1] if is_old else self._stack(step, following) for step in steps]
        batch = _batch_of(rows, following, parameter_norms)
        queued = QueuedRun(following.layout, batch, rows.times, stacks, _long_ago(), following.fault)
        self._queue.append(queued)

    def _note_own(self, scalars: Sequence[float] | Floats) -> None:
        step_s, own_share = scalars[:2]
        self._samples.note_own(float(step_s * own_share))

    def _is_noted(self, step: int) -> bool:
        return step in self._inputs or step in self._modules or step in self._logged

    def _measured(self, raw: RawStep, following: Following) -> MeasuredStep:
        """Return a step with all that the training thread has noted of it."""
        measured = measured_of(raw, following)
        measured.inputs = self._inputs.pop(raw.step, None)
        measured.modules = self._modules.pop(raw.step, None)
        measured.logged = self._logged.pop(raw.step, {})
        return measured

    def _stack(self, step: int, following: Following) -> Sequence[RawFrame]:
        noted = (stack for first, stack in reversed(self._stacks) if first <= step)
        return next(noted, following.stack)

    def _add_update(self, update: RawUpdate) -> None:
        if self._newest is None or self._newest.step != update.step:
            return
        measured = self._newest = self._opened(self._newest)
        measured.sampled["update_ratio"] = MaskedValues(update.ratios, update.missing)
        if update.total is not None:
            measured.scalars["update_ratio"] = update.total

    def _claim_newest(self) -> None:
        """Another step follows: have the sample of the one before judged, if there is one."""
        newest, self._newest = self._newest, None
        if newest is None or (isinstance(newest, _Plain) and not self._samples.is_due(newest.time)):
            return
        measured = self._opened(newest)
        if self._samples.claim(measured):
            self._claimed.append(measured)

    def _opened(self, newest: MeasuredStep | _Plain) -> MeasuredStep:
        if isinstance(newest, _Plain):
            return self._measured(read_raw(newest.payload), newest.following)
        return newest

    def take_newest(self, step: int) -> MeasuredStep | None:
        """Return the newest step, if it is this one: the slow way has its sample judged then."""
        newest, self._newest = self._newest, None
        return self._opened(newest) if newest is not None and newest.step == step else None

    def _judge_sample(self, measured: MeasuredStep, guard: Guard) -> None:
        stack = next((known.stack for known in reversed(self._following.values())), None)
        stack = next((noted for first, noted in reversed(self._stacks) if first <= measured.step), stack)
        verdict = guard.run("detectors of samples", self._samples.take, measured, stack)
        if verdict is not None and verdict.suspicion is not None:
            self._queue.note(verdict)


def _long_ago() -> float:
    """When a step has ended that waits no longer: none comes before the ring is looked at again."""
    return time.monotonic() - JUDGE_S


def _batch_of(
    rows: RawRows, following: Following, parameter_norms: Sequence[Floats | None]
) -> ObservationBatch:
    """Return what `build_batch` makes of the same steps, one by one."""
    unknown = [None] * len(rows.steps)
    layout = following.layout
    lowest, highest = batch_rates(following.template.scalars, rows.scalars)
    return ObservationBatch(
        steps=rows.steps,
        losses=unknown if rows.losses is None else rows.losses,
        total_grad_norms=unknown if rows.total_norms is None else rows.total_norms,
        grad_norm=rows.norm,
        grad_max_abs=rows.max_abs,
        missing=None,
        parameter_norms=parameter_norms,
        parameter_names=layout.names,
        layer_names=layout.layer_names,
        layer_of=layout.layer_of,
        lowest_rates=lowest,
        highest_rates=highest,
        input_elements=rows.input_elements,
    )


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
        gradients=TensorStatistics(block, missing, len(raw.block) < ROWS, raw.total_norm),
        total_norm=raw.total_norm,
        parameter_norm=None if raw.parameter_norm is None else raw.parameter_norm.astype(np.float64),
        loss=StepLoss(raw.loss, raw.loss_raw),
        samples=int(raw.samples),
        input_elements=raw.input_elements,
        scalars=raw_scalars(following.template, raw),
    )

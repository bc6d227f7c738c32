"""Steps that C has followed: in small pieces on the recorder's thread, at once on the training thread."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.attach.layout import describe_model
from probe.delivery.recorder.ring import Ring
from probe.delivery.recorder.ring_format import (
    ADDITION,
    FRAME,
    HAS_LOSS,
    HAS_MISSING,
    HAS_NORM,
    HAS_PARAMETER_NORMS,
    HAS_UPDATE,
    RAW,
    RAW_HEAD,
    UPDATE,
    UPDATE_HEAD,
    Template,
)
from probe.detectors.base import Observation
from probe.guard import Guard
from probe.incidents.verdict import Verdict
from probe.loop import followed_records
from probe.loop.followed_records import FollowedRecords, Following
from probe.loop.sample_judge import SampleJudge
from probe.loop.step_queue import JUDGE_S, QueuedRun, QueuedStep, StepQueue
from probe.step.frames import MeasuredStep, build_observation

PARAMETERS = 6


class Pieces:
    """Stands in for the incidents: counts how many records are taken each time that the lock is held."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.when_busy: list[Callable[[], None]] = []
        """Called, one at a time, where another thread judges until then."""

    @contextmanager
    def judging(self, guard: Guard, *, wait_s: float) -> Iterator[bool]:
        if self.when_busy:
            assert wait_s > 0
            self.when_busy.pop(0)()
            yield False
            return
        self.taken.append(0)
        yield True


class Records:
    """Stands in for the ring: records without a step in them, of one byte each."""

    def __init__(self, count: int, pieces: Pieces) -> None:
        self.counters, self._pieces = SimpleNamespace(head=count), pieces

    def records(self, begin: int) -> Iterator[Any]:
        for at in range(begin, self.counters.head):
            self._pieces.taken[-1] += 1
            yield SimpleNamespace(kind=FRAME, end=at + 1)


@dataclass
class Step:
    """What one step writes into the ring, and what the training thread notes of it."""

    step: int
    seed: int = 0
    flags: int = HAS_LOSS | HAS_NORM
    missing: bool = False
    has_norms: bool = False
    update: bool | None = False
    """Whether one follows; None: the record promises one, and none comes."""
    is_added_to: bool = False
    is_noted: bool = False
    rate: float = 0.1
    later_s: float = 0.01

    def records(self, at_s: float) -> list[tuple[int, bytes]]:
        random = np.random.default_rng([self.seed, self.step])
        flags = self.flags | HAS_MISSING * self.missing | HAS_PARAMETER_NORMS * self.has_norms
        flags |= HAS_UPDATE * (self.update is not False)
        loss, norm, samples, *_ = random.lognormal(size=4)
        head = RAW_HEAD.pack(
            self.step,
            at_s,
            7,
            PARAMETERS,
            loss,
            2 * loss,
            norm,
            samples,
            flags,
            3,
            64 + self.step % 5,
            *[0] * 5,
        )
        block = random.lognormal(size=4 * PARAMETERS).astype("<f4").tobytes()
        bitmap = np.packbits([True, False] * (PARAMETERS // 2)).tobytes() if self.missing else b""
        norms = random.lognormal(size=PARAMETERS).astype("<f4").tobytes() if self.has_norms else b""
        scalars = struct.pack("<3d", 0.02, self.rate, math.nan)
        written = [(RAW, head + scalars + block + bitmap + norms)]
        if self.is_added_to:
            written.append((ADDITION, b"more"))
        if self.update:
            head = UPDATE_HEAD.pack(self.step, at_s, 7, PARAMETERS, norm, 0)
            ratios = random.lognormal(size=PARAMETERS).astype("<f8").tobytes()
            written.append((UPDATE, head + ratios + bytes((PARAMETERS + 7) // 8)))
        return written


class Queue:
    """Stands in for the queue of steps: what its judge would be given."""

    def __init__(self) -> None:
        self.items: list[QueuedStep | QueuedRun] = []
        self.append = self.items.append
        self.judge = SimpleNamespace(judge_quiet=lambda *given: given)

    def judged(self) -> list[Any]:
        """Every step of the queue: all that the detectors see of it."""
        queue = StepQueue(self.judge, Guard(), arrive=None, note_alarms=None)  # type: ignore[arg-type]
        if not self.items:
            return []
        batch, times, stacks = queue._judge(self.items)  # type: ignore[misc]
        return [(seen(batch.at(at)), times[at], stacks[at]) for at in range(len(batch))]


class Samples:
    """Stands in for the samples' judge: wants what has more than other steps, and one step in 0.05 s."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.judge = SampleJudge(SimpleNamespace(has_news=False), SimpleNamespace(), lambda seconds: 1.0)  # type: ignore[arg-type]
        self.is_due = lambda time: not 0 <= time - self.judge._judged_at < 0.05
        self.judge.is_due = self.is_due  # type: ignore[method-assign]
        self.claim = self.judge.claim
        self.note_own = self.judge.note_own

    def take(self, measured: MeasuredStep, stack: object = None) -> Verdict:
        ratio = measured.sampled.get("update_ratio")
        self.taken.append(
            (
                seen(build_observation(measured)),
                dict(measured.scalars),
                None if ratio is None else ratio.values.tolist(),
                (measured.inputs, measured.modules, measured.samples, measured.loss),
            )
        )
        return Verdict()


def seen(observation: Observation) -> dict[str, Any]:
    """An observation as values that can be compared."""
    fields = {field: getattr(observation, field) for field in Observation.__slots__}
    # Without gaps, or where none were looked for, there are none.
    for name in ("missing", "grad_nan_count", "grad_inf_count"):
        fields[name] = None if fields[name] is None or not fields[name].any() else fields[name].tolist()
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in fields.items()
    }


def taking(steps: Sequence[Step], queue: Queue, samples: Samples | None = None) -> FollowedRecords:
    """Have the steps in a ring; return what is to read them."""
    samples = samples or Samples()
    records = FollowedRecords(
        queue,  # type: ignore[arg-type]
        samples,  # type: ignore[arg-type]
        incidents=Pieces(),  # type: ignore[arg-type]
        guard=Guard(),
    )
    ring, at_s = Ring(None, 1 << 20), 1000.0
    layout = describe_model(torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(PARAMETERS // 2)))
    template = Template(layout=0, stage="local", scalars=["step_time_s", "lr", "log/x"])
    records.begin(ring, 7, Following(template, layout, ("armed",)))  # type: ignore[arg-type]
    for one in steps:
        at_s += one.later_s
        if one.is_noted:
            records.note_inputs(one.step, f"inputs of {one.step}")  # type: ignore[arg-type]
            records.note_stack(one.step, (f"stack of {one.step}",))  # type: ignore[arg-type]
        for kind, payload in one.records(at_s):
            assert ring.append(kind, payload)
    return records


def followed(count: int) -> tuple[FollowedRecords, Pieces]:
    pieces = Pieces()
    records = FollowedRecords(
        SimpleNamespace(look=list),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        incidents=pieces,  # type: ignore[arg-type]
        guard=Guard(),
    )
    records._ring = Records(count, pieces)  # type: ignore[assignment]
    return records, pieces


def test_recorders_thread_takes_a_few_at_once_and_lets_training_go_on_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records, pieces = followed(40)
    pauses: list[int] = []
    monkeypatch.setattr(followed_records, "give_way", lambda: pauses.append(len(pieces.taken)))
    records.take(is_recorders_thread=True)
    assert pieces.taken == [32, 8]
    assert pauses == [1, 2]
    records.take(is_recorders_thread=True)
    assert len(pieces.taken) == 2


@pytest.mark.parametrize("age_s", [0.0, 0.15, 3.0, -60.0])
def test_a_step_is_judged_when_it_is_found(monkeypatch: pytest.MonkeyPatch, age_s: float) -> None:
    """No other one comes before the next look; whatever has been done to the machine's clock."""
    monkeypatch.setattr(followed_records.time, "time", lambda: 1000.0 + age_s)
    monkeypatch.setattr(followed_records.time, "monotonic", lambda: 50.0)
    queue = Queue()
    taking([Step(step=3), Step(step=4)], queue).take()
    taking([Step(step=5, missing=True)], queue).take()
    assert [one.ended_s + JUDGE_S <= 50.0 for one in queue.items] == [True, True]


some_steps = st.lists(
    st.builds(
        Step,
        step=st.just(0),
        seed=st.integers(0, 9),
        missing=st.sampled_from([False] * 9 + [True]),
        has_norms=st.sampled_from([False] * 4 + [True]),
        update=st.sampled_from([False] * 6 + [True, None]),
        is_added_to=st.sampled_from([False] * 6 + [True]),
        is_noted=st.sampled_from([False] * 6 + [True]),
        rate=st.sampled_from([0.1, 0.1, 0.2, math.nan]),
        later_s=st.sampled_from([0.01, 0.01, 0.06, -1.0]),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(steps=some_steps, most=st.sampled_from([2, 5, 32]), flags=st.sampled_from([0, HAS_LOSS, HAS_NORM, 3]))
def test_steps_are_the_same_taken_together_and_one_by_one(steps: list[Step], most: int, flags: int) -> None:
    steps = [replace(one, step=at, flags=flags) for at, one in enumerate(steps)]
    queues, samples = (Queue(), Queue()), (Samples(), Samples())
    together, single = (taking(steps, *given) for given in zip(queues, samples, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(followed_records, "_PIECE_RECORDS", most)
        together.take(is_recorders_thread=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(followed_records, "read_rows", lambda payloads: None)
        single.take(is_recorders_thread=True)
    assert queues[0].judged() == queues[1].judged() and len(queues[0].judged()) == len(steps)
    assert samples[0].taken == samples[1].taken
    for records, judge in zip((together, single), samples, strict=True):
        newest = records.take_newest(len(steps) - 1)
        assert (newest is not None) == bool(steps)
        if newest is not None:
            judge.take(newest)
    assert samples[0].taken == samples[1].taken


def test_steps_with_the_same_gradients_missing_are_taken_one_by_one() -> None:
    queue = Queue()
    taking([Step(step=step, missing=True) for step in range(4)], queue).take()
    assert [fields["missing"] for fields, *_ in queue.judged()] == [[True, False] * (PARAMETERS // 2)] * 4


def test_steps_of_a_run_are_arranged_once() -> None:
    queue, samples = Queue(), Samples()
    taking([Step(step=step, has_norms=step == 4) for step in range(9)], queue, samples).take()
    (run,) = queue.items
    assert isinstance(run, QueuedRun) and run.batch.steps == list(range(9))
    assert [norms is not None for norms in run.batch.parameter_norms] == [False] * 4 + [True] + [False] * 4
    assert [fields["step"] for fields, *_ in samples.taken] == [0, 4]


def test_a_quiet_newest_step_is_taken_apart_only_if_a_sample_is_made_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    read_raw = followed_records.read_raw
    monkeypatch.setattr(
        followed_records, "read_raw", lambda payload: read.append(len(payload)) or read_raw(payload)
    )
    queue, samples = Queue(), Samples()
    records = taking([Step(step=step) for step in range(5)], queue, samples)

    def come(*steps: int) -> None:
        for step in steps:
            for kind, payload in Step(step=step).records(1000.05):
                assert records._ring is not None and records._ring.append(kind, payload)
        records.take()

    come()
    assert len(read) == 1 and [fields["step"] for fields, *_ in samples.taken] == [0]
    come(5, 6)
    assert len(read) == 1
    # News do not wait for a measurement.
    monkeypatch.setattr(samples.judge, "_has_news", True)
    monkeypatch.setattr(samples, "is_due", SampleJudge.is_due.__get__(samples.judge))
    monkeypatch.setattr(samples.judge, "is_due", samples.is_due)
    come(7, 8)
    assert [fields["step"] for fields, *_ in samples.taken] == [0, 6]


def test_recorders_thread_judges_samples_together_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them at once: where they are rare, none has to wait."""
    now_s = 50.0
    monkeypatch.setattr(followed_records.time, "monotonic", lambda: now_s)
    queue, samples = Queue(), Samples()
    records = taking([Step(step=step, has_norms=True) for step in range(3)], queue, samples)
    counts = []

    def come(after_s: float, *steps: int) -> None:
        nonlocal now_s
        now_s += after_s
        for step in steps:
            for kind, payload in Step(step=step, has_norms=True).records(1000.0 + step):
                assert records._ring is not None and records._ring.append(kind, payload)
        records.take(is_recorders_thread=True)
        counts.append((len(queue.judged()), len(samples.taken)))

    come(0.0)
    come(0.25, 3)
    come(0.25, 4, 5)
    come(0.5)
    come(3.0, 6)
    # The newest has no sample yet: an update may follow it. All steps are queued at once.
    assert counts == [(3, 2), (4, 2), (6, 2), (6, 5), (7, 6)]
    come(0.1, 7)
    assert len(samples.taken) == 6
    records.take()
    assert [fields["step"] for fields, *_ in samples.taken] == [*range(7)]


def test_recorders_thread_goes_on_once_nobody_else_judges() -> None:
    records, pieces = followed(10)
    pieces.when_busy = [lambda: None, lambda: None]
    records.take(is_recorders_thread=True)
    assert pieces.taken == [10]


def test_recorders_thread_waits_no_longer_for_a_training_that_has_left_the_ring() -> None:
    """That one has taken all of it, judges a step in the slow way, and may wait for the recorder's thread."""
    records, pieces = followed(10)

    def leave() -> None:
        records._ring = None

    pieces.when_busy = [lambda: None, leave]
    records.take(is_recorders_thread=True)
    assert pieces.taken == []


def test_training_takes_all_at_once() -> None:
    records, pieces = followed(10)
    records.take()
    assert pieces.taken == [10]


def test_a_part_that_has_failed_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    records, pieces = followed(10)

    def fail(*_: Any) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(FollowedRecords, "_take", fail)
    records.take(is_recorders_thread=True)
    records.take(is_recorders_thread=True)
    assert pieces.taken == [0, 0]

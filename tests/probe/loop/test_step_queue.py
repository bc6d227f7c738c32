"""The queue of finished steps: in order, once each, on either thread, and the same events on both."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from journals import read_journal
from small_training import seeded_model, train

import probe
from probe.attach.layout import ModelLayout, describe_model
from probe.detectors.base import Observation, ObservationBatch
from probe.guard import Guard
from probe.incidents.evidence import LateEvidence
from probe.incidents.incidents import IncidentReporter
from probe.incidents.verdict import NOTHING_FOUND, Verdict
from probe.loop import step_queue
from probe.loop.step_queue import MOST_WAITING, QueuedRun, QueuedStep, StepQueue
from probe.measure.statistics.statistics import TensorStatistics
from probe.step.frames import MeasuredStep, build_batch, build_observation
from probe.step.losses import StepLoss
from probe.wire import Event

LAYOUT = describe_model(torch.nn.Linear(2, 1), name="net")


class Judge:
    """Stands in for an `IncidentReporter`: notes what it is given, and on which thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.steps: list[int] = []
        self.batches: list[int] = []
        self.guards: list[Guard] = []

    @contextmanager
    def judging(self, guard: Guard, *, wait_s: float = -1.0) -> Iterator[bool]:
        is_free = self.lock.acquire(timeout=wait_s)
        try:
            if is_free:
                self.guards.append(guard)
            yield is_free
        finally:
            if is_free:
                self.lock.release()

    def judge(self, observation: Observation, time: float, evidence: object) -> Verdict:
        self.steps.append(observation.step)
        return Verdict(alarms=(observation.step,))

    def judge_quiet(self, batch: ObservationBatch, times: Sequence[float], stacks: object) -> Verdict:
        self.steps += batch.steps
        self.batches.append(len(batch.steps))
        return Verdict(alarms=tuple(batch.steps))


def measured(step: int, layout: ModelLayout = LAYOUT) -> MeasuredStep:
    return MeasuredStep(
        step=step,
        time=float(step),
        layout=layout,
        stage="local",
        gradients=TensorStatistics(np.ones((6, 2)), np.zeros(2, np.bool_), True, 1.0),
        total_norm=1.0,
        parameter_norm=None,
        loss=StepLoss(1.0, 1.0),
        samples=4,
    )


class Queue:
    """A queue with a stand-in for its judge, and a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.judge, self.now_s = Judge(), 100.0
        self.arrived: list[int] = []
        self.alarms: list[int] = []
        self.guard = Guard()
        self.queue = StepQueue(
            cast(IncidentReporter, self.judge),
            self.guard,
            arrive=self._arrive,
            note_alarms=self.alarms.extend,
        )
        monkeypatch.setattr(step_queue.time, "monotonic", lambda: self.now_s)

    def _arrive(self, late: QueuedStep, guard: Guard) -> None:
        self.arrived.append(late.measured.step)
        late.state = "waiting"

    def add(self, step: int, *, state: Any = "waiting", layout: ModelLayout = LAYOUT) -> QueuedStep:
        queued = QueuedStep(measured(step, layout), (), state, self.now_s)
        self.queue.add(queued)
        return queued


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Queue:
    return Queue(monkeypatch)


def test_quiet_step_is_judged_once_it_is_old_enough(steps: Queue) -> None:
    queued = steps.add(0)
    steps.queue.look()
    assert steps.judge.steps == [] and 0.0 < steps.queue.period_s <= 0.2 + 1e-9
    steps.now_s += 0.2
    steps.queue.look()
    assert steps.judge.steps == [0] and queued.state == "judged"
    assert steps.queue.period_s == 0.25
    assert steps.judge.guards[-1] is not steps.guard
    assert [verdict.alarms for verdict in steps.queue.take_verdicts()] == [(0,)]
    assert steps.queue.take_verdicts() == []


def test_oldest_step_that_waits_is_named(steps: Queue) -> None:
    assert steps.queue.unjudged_from() is None
    steps.add(4)
    steps.add(5)
    assert steps.queue.unjudged_from() == 4
    run = QueuedRun(LAYOUT, build_batch([measured(step) for step in (6, 7)]), (6.0, 7.0), ((), ()), 0.0)
    steps.queue.judge_all()
    steps.queue.append(run)
    assert steps.queue.unjudged_from() == 6
    steps.queue.append(run.part(1))
    steps.queue.judge_all()
    assert steps.queue.unjudged_from() is None


def test_what_came_after_an_old_step_is_judged_with_it(steps: Queue) -> None:
    """Each look wakes a thread, with the processor's caches empty: not one look for each few steps."""
    for step in range(20):
        steps.add(step)
        steps.now_s += 0.01
    steps.queue.look()
    assert steps.judge.steps == list(range(20)) and len(steps.judge.batches) > 1


def test_a_young_step_whose_values_are_on_their_way_is_not_waited_for(steps: Queue) -> None:
    steps.add(0)
    steps.now_s += 0.2
    steps.add(1, state="late")
    steps.queue.look()
    assert steps.judge.steps == [0] and steps.arrived == []
    assert steps.queue.period_s == pytest.approx(0.2)


def test_alarms_wait_for_nobody_to_take_the_verdicts(steps: Queue) -> None:
    """While C follows the steps, nobody does for long."""
    steps.add(0)
    steps.add(1)
    steps.now_s += 0.2
    steps.queue.look()
    assert steps.alarms == [0, 1]
    steps.queue.judge_at_once(build_observation(measured(2)), 2.0, LateEvidence(()), steps.guard)
    assert steps.alarms == [0, 1, 2]


@pytest.mark.parametrize(("fixed_s", "step_s", "most"), [(4e-4, 1e-5, 32), (6e-4, 12e-5, 8), (4e-3, 2e-3, 4)])
def test_pieces_are_as_long_as_two_milliseconds_allow(
    steps: Queue, monkeypatch: pytest.MonkeyPatch, fixed_s: float, step_s: float, most: int
) -> None:
    spent = [0.0]

    def judge_quiet(batch: ObservationBatch, times: Sequence[float], stacks: object) -> Verdict:
        steps.judge.batches.append(len(batch.steps))
        spent[0] += fixed_s + step_s * len(batch.steps)
        return Verdict()

    steps.judge.judge_quiet = judge_quiet  # type: ignore[method-assign]
    monkeypatch.setattr(step_queue.time, "thread_time", lambda: spent[0])
    for step in range(300):
        steps.queue.append(QueuedStep(measured(step), (), "waiting", 0.0))
        # One by one, as when steps come rarely: that teaches nothing of many.
        if step < 20:
            steps.queue.look()
    steps.queue.look()
    assert set(steps.judge.batches[24:-1]) == {most}


def test_unusual_step_is_judged_after_those_that_wait(steps: Queue) -> None:
    for step in range(5):
        steps.add(step)
    unusual = build_observation(measured(5))
    verdict = steps.queue.judge_at_once(unusual, 5.0, LateEvidence(()), steps.guard)
    assert steps.judge.steps == [0, 1, 2, 3, 4, 5] and verdict.alarms == (5,)


def test_many_waiting_steps_are_judged_where_they_pile_up(steps: Queue) -> None:
    for step in range(MOST_WAITING):
        steps.add(step)
    assert steps.judge.steps == list(range(MOST_WAITING))


def test_steps_that_pile_up_wait_for_no_device(steps: Queue) -> None:
    for step in range(MOST_WAITING - 1):
        steps.add(step)
    steps.add(MOST_WAITING - 1, state="late")
    assert steps.judge.steps == list(range(MOST_WAITING - 1)) and steps.arrived == []


def test_steps_of_two_layouts_are_no_batch(steps: Queue) -> None:
    other = describe_model(torch.nn.Linear(2, 1), name="net")
    for step in range(6):
        steps.add(step, layout=LAYOUT if step < 2 else other)
    steps.queue.judge_all()
    assert steps.judge.batches == [2, 4]


def test_verdicts_that_say_nothing_are_not_kept(steps: Queue) -> None:
    """While C follows the steps nobody takes them, for hours."""
    steps.judge.judge_quiet = lambda *_: NOTHING_FOUND  # type: ignore[method-assign]
    for step in range(5):
        steps.add(step)
        steps.queue.judge_all()
    assert steps.queue.take_verdicts() == []


def a_run(first: int, stop: int) -> QueuedRun:
    steps = [measured(step) for step in range(first, stop)]
    times = [one.time for one in steps]
    return QueuedRun(LAYOUT, build_batch(steps), times, [(f"stack of {at}",) for at in times], 0.0)  # type: ignore[list-item]


def test_runs_are_judged_with_the_single_steps_between_them_in_order(steps: Queue) -> None:
    given: list[Any] = []
    steps.judge.judge_quiet = lambda *one: given.append(one) or Verdict()  # type: ignore[assignment, func-returns-value]
    steps.queue._most = 8
    for item in (a_run(0, 3), QueuedStep(measured(3), ("stack of 3.0",), "waiting", 0.0), a_run(4, 25)):  # type: ignore[arg-type]
        steps.queue.append(item)
    steps.queue.judge_all()
    assert [step for batch, *_ in given for step in batch.steps] == list(range(25))
    assert [time for _, times, _ in given for time in times] == [float(step) for step in range(25)]
    assert [stack for *_, stacks in given for stack in stacks] == [
        (f"stack of {float(step)}",) for step in range(25)
    ]
    assert all(len(batch.grad_norm) == len(batch.steps) == len(batch.grad_max_abs) for batch, *_ in given)
    assert len(given[0][0].steps) == 8


def test_late_step_is_waited_for_only_when_it_has_to_be(steps: Queue) -> None:
    steps.add(0)
    steps.add(1, state="late")
    steps.queue.settle()
    assert (steps.arrived, steps.judge.steps) == ([1], [])
    steps.queue.judge_all()
    assert steps.judge.steps == [0, 1]


def test_late_step_arrives_though_no_other_step_comes(steps: Queue) -> None:
    steps.add(0, state="late")
    steps.now_s += 0.3
    steps.queue.look()
    assert (steps.arrived, steps.judge.steps) == ([0], [0])


def test_failure_on_the_recorders_thread_switches_the_part_off_on_both(steps: Queue) -> None:
    steps.judge.judge_quiet = lambda *_: 1 / 0  # type: ignore[assignment]
    steps.add(0)
    steps.now_s += 1.0
    steps.queue.look()
    assert steps.guard.failures == 1
    assert steps.guard.run("detectors", lambda: 1) is None


def test_two_threads_judge_each_step_once_and_in_order() -> None:
    judge = Judge()
    queue = StepQueue(
        cast(IncidentReporter, judge),
        Guard(),
        arrive=lambda late, guard: None,
        note_alarms=lambda steps: None,
    )
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            queue.look()

    thread = threading.Thread(target=look)
    thread.start()
    for step in range(3000):
        queue.add(QueuedStep(measured(step), (), "waiting", 0.0))
    queue.judge_all()
    is_over.set()
    thread.join(30)
    assert judge.steps == list(range(3000))


def test_recorders_thread_does_not_wait_for_the_thread_that_judges(steps: Queue) -> None:
    """Who judges waits for the recorder's thread where a bundle is written: two seconds, steps missing."""
    steps.add(0)
    steps.now_s += 1.0
    thread = threading.Thread(target=steps.queue.look, daemon=True)
    with steps.judge.lock:
        thread.start()
        thread.join(30)
        assert not thread.is_alive() and steps.judge.steps == []
    assert 0.0 < steps.queue.period_s <= 0.05
    steps.queue.look()
    assert steps.judge.steps == [0]


def events_of(
    spool: Path, run_id: str, monkeypatch: pytest.MonkeyPatch, *, by_the_thread: bool
) -> list[Event]:
    """Train with a spike in the middle; have each step judged by itself, or all by the steps after them."""
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with monkeypatch.context() as patch, probe.watch(model, optimizer, run=run_id) as run:
        assert run._recorder is not None
        queue = next(watch for watch in run._recorder.watches if isinstance(watch, StepQueue))
        patch.setattr(step_queue, "JUDGE_S", 0.0 if by_the_thread else 1e9)
        for part in range(12):
            train(model, optimizer, 10)
            if by_the_thread:
                queue.look()
            (model(torch.ones(8, 6)).sum() * (1e5 if part == 8 else 1.0)).backward()
            optimizer.step()
            if by_the_thread:
                queue.look()
    events = read_journal(spool / run_id).events
    return [event for event in events if event.kind in ("gradient_explosion", "loss_spike")]


def test_events_are_the_same_whoever_judges(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_steps = events_of(spool, "one", monkeypatch, by_the_thread=False)
    by_thread = events_of(spool, "two", monkeypatch, by_the_thread=True)
    told = [(e.kind, e.step, e.subject, e.ended, e.count, e.last_step) for e in by_steps]
    assert told and told == [(e.kind, e.step, e.subject, e.ended, e.count, e.last_step) for e in by_thread]

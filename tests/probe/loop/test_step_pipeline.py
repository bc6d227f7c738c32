"""Measure -> judge -> write between stand-ins: what a step is handed to, and when."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from probe.actions.step_hooks import StepHooks
from probe.attach.layout import describe_model
from probe.errors import AnomalyError
from probe.guard import Guard
from probe.incidents.verdict import NOTHING_FOUND, Verdict
from probe.loop.step_judge import StepJudge
from probe.loop.step_pipeline import StepPipeline
from probe.loop.step_writer import StepWriter
from probe.loop.verdict_timing import VerdictTiming
from probe.measure.statistics.masked import MaskedValues
from probe.measure.statistics.statistics import PendingStatistics, TensorStatistics
from probe.measure.update_meter import UpdateRatios
from probe.settings.config import ProbeConfig
from probe.settings.levels import Features
from probe.step.frames import MeasuredStep
from probe.step.late_values import LateValues
from probe.step.losses import StepLoss
from probe.step.open_step import FinishedStep, OpenStep
from probe.wire import Frame

LAYOUT = describe_model(torch.nn.Linear(2, 1), name="net")


class Paper:
    """Stands in for a `Recorder`."""

    def __init__(self) -> None:
        self.watches: list[Any] = []
        self.frames: list[tuple[Frame, bool]] = []

    def frame(self, frame: Frame | MeasuredStep, *, is_addition: bool = False) -> None:
        self.frames.append((frame if isinstance(frame, Frame) else frame.build(), is_addition))


class Reporter:
    """Stands in for an `IncidentReporter`: finds what it is told to find."""

    recent = SimpleNamespace(note_mode=lambda step, *, is_training: None)

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.black_box = SimpleNamespace(keep=lambda *_: None, forget=lambda: None, before=lambda _: [])
        self.judged: list[int] = []
        self.verdict = NOTHING_FOUND

    @contextmanager
    def judging(self, guard: Guard, *, wait_s: float = -1.0) -> Iterator[bool]:
        with self.lock:
            yield True

    def judge(self, observation: Any, time: float, evidence: Any) -> Verdict:
        self.judged.append(observation.step)
        return self.verdict

    def judge_quiet(self, batch: Any, times: Any, stacks: Any) -> Verdict:
        self.judged += batch.steps
        return NOTHING_FOUND


class Samples:
    """Stands in for a `SampleJudge`."""

    def __init__(self) -> None:
        self.taken: list[dict[str, float]] = []
        self.alarms: list[int] = []

    def wants(self, measured: MeasuredStep) -> bool:
        return True

    def take(self, measured: MeasuredStep) -> Verdict:
        self.taken.append({name: read() for name, read in measured.logged.items()})
        return NOTHING_FOUND

    def note_alarms(self, steps: Collection[int]) -> None:
        self.alarms += steps


class Schedule:
    """Stands in for a `MeasureSchedule`: nothing more is due."""

    features = Features(gradients=1)
    is_basic = True
    mailbox = SimpleNamespace(waiting=False)

    def __init__(self) -> None:
        self.suspicions: list[str] = []

    def begin_step(self, step: int, *, since: int | None = None) -> None:
        pass

    def suspect(self, reason: str | None) -> None:
        self.suspicions += [] if reason is None else [reason]


class Measures:
    """Stands in for `StepMeasures`: measures loss and gradients, and the update of step 0."""

    def after_update(self, optimizer: Any, step: int) -> UpdateRatios:
        ratio = MaskedValues(np.array([0.5, 0.25]), np.zeros(2, np.bool_))
        return UpdateRatios(step=0, ratio=ratio, total=0.4)

    def late_ratios(self, *, wait: bool = False) -> None:
        return None

    def measure(self, finished: FinishedStep, *, waits: bool) -> MeasuredStep:
        measured = MeasuredStep(
            step=finished.step, time=0.0, layout=LAYOUT, stage=finished.stage, gradients=finished.gradients,
            total_norm=1.0, parameter_norm=None, loss=finished.loss, samples=0,
            logged=finished.opened.logged, late=finished.late,
        )  # fmt: skip
        if waits:
            measured.arrive()
        return measured


class Desk:
    """The judge and the writer in a pipeline, between stand-ins."""

    def __init__(self, **options: Any) -> None:
        self.paper, self.reporter, self.samples = Paper(), Reporter(), Samples()
        self.schedule, self.guard, self.hooks = Schedule(), Guard(), StepHooks()
        model: Any = SimpleNamespace(
            layout=LAYOUT, root=torch.nn.Linear(2, 1), parameters={}, no_replay_reason=None, is_on_cuda=False,
            tells_of_updates=True,
            measure_parameters=lambda: SimpleNamespace(is_finite=True),
        )  # fmt: skip
        paper, reporter, schedule = cast(Any, self.paper), cast(Any, self.reporter), cast(Any, self.schedule)
        config = ProbeConfig(**options)
        self.timing = VerdictTiming(config, model, schedule)
        writer = StepWriter(model, paper)
        leaks: Any = SimpleNamespace(wants=False, is_looking=False)
        self.judge = StepJudge(
            model, schedule, cast(Any, self.samples), self.timing, leaks, mode=config.mode, judges_each=False,
            incidents=reporter, hooks=self.hooks, write=writer.write, guard=self.guard,
        )  # fmt: skip
        self.paper.watches.append(self.judge.queue)
        self.pipeline = StepPipeline(
            cast(Any, Measures()), self.judge, writer, schedule=schedule,
            meters=cast(Any, SimpleNamespace(read_time=lambda: None)), hooks=self.hooks,
            incidents=reporter, guard=self.guard,
        )  # fmt: skip

    def finish(
        self, step: int, *, loss: float = 1.0, late: LateValues | None = None, **logged: float
    ) -> None:
        """End a step."""
        self.pipeline.begin_step()
        self.timing.is_late = late is not None
        opened = OpenStep(logged={f"log/{name}": lambda value=value: value for name, value in logged.items()})
        gradients = TensorStatistics(np.ones((6, 2)), np.zeros(2, np.bool_), True, 1.0)
        values = StepLoss(loss, loss) if late is None else StepLoss(None, None)
        self.pipeline.finish(
            FinishedStep(opened, step, gradients, "local", values, False, False, False, late)
        )
        assert self.guard.failures == 0

    @property
    def steps(self) -> list[int]:
        return [frame.step for frame, is_addition in self.paper.frames if not is_addition]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def late_values(loss: float = 1.0) -> LateValues:
    gradients = TensorStatistics(np.ones((6, 2)), np.zeros(2, np.bool_), True, 1.0)
    return LateValues(PendingStatistics(lambda: gradients), lambda: StepLoss(loss, loss))


def test_frame_is_with_the_recorder_when_the_step_ends(desk: Desk) -> None:
    desk.finish(0, mine=2.0)
    ((frame, is_addition),) = desk.paper.frames
    assert (frame.step, is_addition, frame.scalars["log/mine"]) == (0, False, 2.0)
    assert desk.reporter.judged == []


def test_what_is_logged_later_is_added_until_the_next_backward(desk: Desk) -> None:
    desk.finish(0)
    desk.pipeline.log({"log/x": lambda: 3.0})
    desk.pipeline.complete_newest()
    desk.pipeline.log({"log/y": lambda: 4.0})
    added = [(frame.step, dict(frame.scalars), is_addition) for frame, is_addition in desk.paper.frames[1:]]
    assert added == [(0, {"log/x": 3.0}, True), (0, {"log/y": 4.0}, True)]
    assert desk.samples.taken == [{"log/x": 3.0}]


def test_unusual_step_is_judged_at_once_after_those_that_wait(desk: Desk) -> None:
    desk.finish(0)
    desk.finish(1)
    desk.reporter.verdict = Verdict(suspicion="loss_spike at step 2", alarms=(2,))
    desk.finish(2, loss=math.nan)
    assert desk.reporter.judged == [0, 1, 2]
    assert desk.schedule.suspicions == ["loss_spike at step 2"] and desk.samples.alarms == [2]
    assert desk.steps == [0, 1, 2]


def test_mode_raise_has_an_anomaly_where_the_verdict_is_critical() -> None:
    desk = Desk(mode="raise")
    desk.finish(0)
    assert desk.pipeline.take_anomaly() is None
    desk.reporter.verdict = Verdict(critical="the loss is NaN")
    desk.finish(1)
    assert isinstance(desk.pipeline.take_anomaly(), AnomalyError) and desk.reporter.judged == [0, 1]
    assert desk.pipeline.take_anomaly() is None


def test_late_step_is_written_when_its_values_have_arrived(desk: Desk) -> None:
    desk.finish(0, late=late_values(0.5))
    desk.pipeline.log({"log/x": lambda: 3.0})
    desk.pipeline.complete_newest()
    assert desk.paper.frames == [] and desk.samples.taken == []
    desk.finish(1)
    (frame, is_addition) = desk.paper.frames[0]
    assert (frame.step, frame.scalars["loss"], frame.scalars["log/x"], is_addition) == (0, 0.5, 3.0, False)
    assert desk.steps == [0, 1] and desk.samples.taken == [{"log/x": 3.0}]


def test_late_step_is_written_by_the_recorders_thread_where_no_other_comes(desk: Desk) -> None:
    desk.finish(0, late=late_values(math.inf))
    (queue,) = desk.paper.watches
    thread = threading.Thread(target=lambda: look_until(queue, lambda: bool(desk.paper.frames)))
    thread.start()
    thread.join(30)
    assert desk.steps == [0] and desk.reporter.judged == [0]
    desk.pipeline.close()
    assert desk.steps == [0] and len(desk.samples.taken) == 1


def look_until(queue: Any, is_done: Any) -> None:
    for _ in range(1000):
        queue.look()
        if is_done():
            return
        threading.Event().wait(0.01)


def test_close_has_all_judged_written_and_complete(desk: Desk) -> None:
    for step in range(3):
        desk.finish(step, late=late_values() if step == 2 else None)
    desk.pipeline.close()
    assert desk.reporter.judged == desk.steps == [0, 1, 2]
    assert len(desk.samples.taken) == 3
    desk.pipeline.close()
    assert desk.steps == [0, 1, 2]


def test_value_on_its_way_from_a_device_is_added_when_it_is_there(desk: Desk) -> None:
    class Coming:
        is_ready = False

        def __call__(self) -> float:
            assert self.is_ready
            return 7.0

    coming = Coming()
    desk.finish(0)
    desk.pipeline.log({"log/x": coming, "log/y": lambda: 1.0})
    assert dict(desk.paper.frames[-1][0].scalars) == {"log/y": 1.0}
    coming.is_ready = True
    desk.finish(1)
    assert [dict(f.scalars) for f, added in desk.paper.frames if added] == [{"log/y": 1.0}, {"log/x": 7.0}]


def test_forget_leaves_nothing_to_judge(desk: Desk) -> None:
    desk.finish(0)
    desk.pipeline.forget()
    desk.pipeline.close()
    assert desk.reporter.judged == []


def test_hooks_are_called_in_the_order_of_a_step_and_one_that_acts_has_it_judged_first(desk: Desk) -> None:
    told: list[Any] = []
    desk.hooks.judged.add(lambda finished, measured, verdict: told.append(("judged", measured.step)))
    desk.hooks.accounted.add(lambda measured, evidence: told.append(("accounted", len(desk.paper.frames))))
    desk.hooks.complete.add(lambda measured: told.append(("complete", measured.step)))
    desk.finish(0, late=late_values())
    desk.pipeline.complete_newest()
    assert told == [("judged", 0), ("accounted", 0), ("complete", 0)] and desk.steps == [0]


def test_pause_comes_when_the_step_is_judged_complete_and_written(desk: Desk) -> None:
    seen: list[Any] = []

    def hold() -> None:
        desk.hooks.pause.remove(hold)
        seen.append((list(desk.reporter.judged), desk.steps, len(desk.samples.taken)))

    desk.hooks.accounted.add(lambda measured, evidence: desk.hooks.pause.add(hold))
    desk.finish(0)
    assert seen == [([0], [0], 1)]


def test_update_ratios_follow_their_step_and_stand_alone_for_an_older_one(desk: Desk) -> None:
    for step in range(2):
        desk.finish(step)
        desk.pipeline.look_after_update(cast(Any, None))
    frames = [(frame, is_addition) for frame, is_addition in desk.paper.frames if not frame.columns]
    added = [(frame.step, frame.scalars["update_ratio"], is_addition) for frame, is_addition in frames]
    assert added == [(0, 0.4, True), (0, 0.4, False)]

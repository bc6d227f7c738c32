"""What `IncidentReporter.judge` returns: a frozen verdict, and the events are with the recorder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from probe.delivery.recorder.recorder import Recorder
from probe.detectors.base import Observation, ObservationBatch
from probe.guard import Guard
from probe.incidents.evidence import LateEvidence
from probe.incidents.incidents import IncidentReporter
from probe.incidents.verdict import NOTHING_FOUND
from probe.settings.config import ProbeConfig
from probe.wire import Event, RunStart

START = RunStart(run="run", rank=0, incarnation=1)
LATE = LateEvidence(())


class Notebook:
    """Stands in for a `Recorder`: keeps the events."""

    folder = Path("/nowhere")
    is_own_thread = False

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, record: Event) -> None:
        self.events.append(record)


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


@pytest.fixture
def reporter(notebook: Notebook) -> IncidentReporter:
    recorder = cast(Recorder, notebook)
    return IncidentReporter(START, "net", config=ProbeConfig(), recorder=recorder, guard=Guard())


def observation(step: int, *, loss: float = 1.0, norm: float = 1.0) -> Observation:
    ones = np.full(2, norm / math.sqrt(2))
    return Observation(
        step=step, loss=loss, total_grad_norm=norm, grad_norm=ones, grad_max_abs=ones, grad_nan_count=None,
        grad_inf_count=None, missing=np.zeros(2, np.bool_), parameter_norm=None, parameter_names=("w", "b"),
        layer_names=("",), layer_of=np.zeros(2, np.int64), lowest_rate=None, highest_rate=None,
    )  # fmt: skip


def quiet(steps: range, norms: dict[int, float]) -> ObservationBatch:
    grad_norm = np.array([[norms.get(step, 1.0) / math.sqrt(2)] * 2 for step in steps])
    return ObservationBatch(
        steps=list(steps), losses=[1.0 for _ in steps],
        total_grad_norms=[norms.get(step, 1.0) for step in steps], grad_norm=grad_norm,
        grad_max_abs=grad_norm, missing=None, parameter_norms=[None for _ in steps],
        parameter_names=("w", "b"), layer_names=("",), layer_of=np.zeros(2, np.int64),
        lowest_rates=[None for _ in steps], highest_rates=[None for _ in steps],
    )  # fmt: skip


def test_verdict_of_a_healthy_step_says_nothing(reporter: IncidentReporter, notebook: Notebook) -> None:
    assert reporter.judge(observation(0), 0.0, LATE) == NOTHING_FOUND
    assert notebook.events == []


def test_verdict_of_a_bad_loss_is_critical_and_written(
    reporter: IncidentReporter, notebook: Notebook
) -> None:
    verdict = reporter.judge(observation(3, loss=math.nan), 0.0, LATE)
    assert verdict.kinds == {"nonfinite_loss"} and verdict.alarms == (3,) and not verdict.replayed
    assert verdict.critical == notebook.events[-1].message
    assert [event.kind for event in notebook.events] == ["nonfinite_loss"]


def test_verdict_cannot_be_changed(reporter: IncidentReporter) -> None:
    verdict: Any = reporter.judge(observation(0), 0.0, LATE)
    with pytest.raises(AttributeError, match="immutable"):
        verdict.critical = "something"


def test_verdict_of_running_episode_stays_critical(reporter: IncidentReporter, notebook: Notebook) -> None:
    for step in range(3):
        verdict = reporter.judge(observation(step, loss=math.inf), 0.0, LATE)
    assert verdict.critical is not None and len({event.id for event in notebook.events}) == 1


def test_verdict_of_quiet_steps_names_the_unusual_ones(
    reporter: IncidentReporter, notebook: Notebook
) -> None:
    verdict = reporter.judge_quiet(
        quiet(range(80), {70: 1e8}), [float(step) for step in range(80)], [()] * 80
    )
    assert "gradient_explosion" in verdict.kinds and 70 in verdict.alarms
    assert verdict.suspicion is not None and "gradient_explosion" in verdict.suspicion
    assert {event.step for event in notebook.events} == {70}

"""One fault, one event: what lasts is not told again, and what follows from it is counted there."""

from __future__ import annotations

import math
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from probe.delivery.recorder.recorder import Recorder
from probe.detectors.base import Finding, Observation
from probe.detectors.performance import AnomalyRateDetector
from probe.detectors.sample import Sample
from probe.detectors.sampled_thresholds import SampledThresholds
from probe.guard import Guard
from probe.incidents.consequences import WarnedSteps
from probe.incidents.evidence import LateEvidence
from probe.incidents.incidents import IncidentReporter
from probe.settings.config import ProbeConfig
from probe.wire import Event, RunStart

BAD = np.array([math.nan, 1.0])
FINE = np.ones(2)


class Notebook:
    """Stands in for a `Recorder`: keeps the events."""

    folder, is_own_thread = Path("/nowhere"), False

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, record: Event) -> None:
        self.events.append(record)

    @property
    def newest(self) -> dict[str, Event]:
        """Newest state of each event."""
        return {event.id: event for event in self.events}


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


@pytest.fixture
def reporter(notebook: Notebook) -> IncidentReporter:
    start, recorder = RunStart(run="run", rank=0, incarnation=1), cast(Recorder, notebook)
    return IncidentReporter(start, "net", config=ProbeConfig(), recorder=recorder, guard=Guard())


def observed(step: int, *, loss: float = 1.0, norm: float = 1.0, weights: np.ndarray | None) -> Observation:
    gradients = np.full(2, norm / math.sqrt(2))
    return Observation(
        step=step, loss=loss, total_grad_norm=norm, grad_norm=gradients, grad_max_abs=gradients,
        grad_nan_count=None, grad_inf_count=None, missing=None, parameter_norm=weights,
        parameter_names=("w", "b"), layer_names=("",), layer_of=np.zeros(2, np.int64),
    )  # fmt: skip


def judge(reporter: IncidentReporter, *steps: Observation) -> None:
    for step in steps:
        reporter.judge(step, 0.0, LateEvidence(()))
    reporter.close(step=steps[-1].step, time=1.0)


def told(notebook: Notebook) -> list[tuple[str, int, int]]:
    return [(event.kind, event.step, event.count) for event in notebook.newest.values()]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"norm": math.nan}, {"loss": math.nan, "norm": math.nan}),
        ({"loss": math.nan, "norm": math.nan}, {"loss": math.nan, "norm": math.nan}),
        ({"weights": BAD}, {"loss": math.inf}),
    ],
    ids=["gradients, then the loss", "a loss, then the parameters", "parameters, then the loss"],
)
def test_bad_parameters_after_a_nan_are_steps_of_its_event(
    reporter: IncidentReporter, notebook: Notebook, first: dict, then: dict
) -> None:
    later = [observed(step, **{"weights": BAD, **then}) for step in range(4, 9)]
    judge(reporter, observed(2, weights=None), observed(3, **{"weights": None, **first}), *later)
    assert [(step, count) for _, step, count in told(notebook)] == [(3, 6)]


def test_loss_that_turns_nan_with_good_parameters_is_a_fault_of_its_own(
    reporter: IncidentReporter, notebook: Notebook
) -> None:
    later = observed(5, loss=math.nan, norm=math.nan, weights=FINE)
    judge(reporter, observed(3, norm=math.nan, weights=None), later)
    assert [kind for kind, *_ in told(notebook)] == ["nonfinite_gradient", "nonfinite_loss"]


def test_parameters_and_loss_of_one_step_stay_two_events(
    reporter: IncidentReporter, notebook: Notebook
) -> None:
    judge(reporter, observed(3, loss=math.nan, norm=math.nan, weights=BAD))
    assert [kind for kind, *_ in told(notebook)] == ["nonfinite_parameter", "nonfinite_loss"]


def sampled(kind: str) -> Finding:
    return Finding(
        kind=kind, severity="warning", subject="", message="from step 36 on", value=1.0, threshold=0.0
    )


def test_what_lasts_is_one_event_though_other_findings_come_between_the_samples(
    reporter: IncidentReporter, notebook: Notebook
) -> None:
    for step in range(36, 400, 20):
        reporter.report_sampled([sampled("output_degenerate")], step, 0.0, stack=())
        for _ in range(9):
            reporter.report_sampled([sampled("high_anomaly_rate")], step, 0.0, stack=(), is_whole=False)
    kinds = [event.kind for event in notebook.newest.values()]
    assert sorted(kinds) == ["high_anomaly_rate", "output_degenerate"]
    reporter.close(step=400, time=1.0)
    assert all(event.count == 19 for event in notebook.newest.values())


def rate_after(spans: list[tuple[range, str]]) -> tuple[list[Finding], AnomalyRateDetector]:
    """What is said of the rate at step 299, where these steps were those of events with these ids."""
    detector, warned = AnomalyRateDetector(SampledThresholds()), WarnedSteps()
    detector.are_explained = warned.are_explained
    for steps, identity in spans:
        event = Event(id=identity, run="r", rank=0, incarnation=1, step=0, time=0.0, kind="custom",
                      severity="warning", message="")  # fmt: skip
        for step in steps:
            detector.note(step)
            warned.note(step, [sampled("loss_spike")], [event, None])
    found: list[Finding] = []
    for step in (0, 299):
        found = detector.observe(_sample(step))
    return found, detector


def _sample(step: int) -> Sample:
    return Sample(
        step=step, time=0.0, loss=1.0, total_grad_norm=1.0, grad_norm=None, missing=None, parameter_norm=None,
        update_ratio=None, parameter_names=("w",), layer_names=("",), layer_of=np.zeros(1, np.int64),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("spans", "is_said"),
    [
        ([(range(100, 300), "a")], False),
        ([(range(130, 250), "a")], False),
        ([(range(100, 300), "a"), (range(150, 160), "b")], False),
        ([(range(start, start + 3), str(start)) for start in range(100, 300, 14)], True),
        ([(range(100, 130), "a"), (range(200, 230), "b"), (range(260, 290), "c")], True),
    ],
    ids=["one that lasts", "one that has ended", "two at once", "many short ones", "three long ones"],
)
def test_high_rate_is_said_where_no_event_explains_it(spans: list[tuple[range, str]], is_said: bool) -> None:
    found, _ = rate_after(spans)
    assert [finding.kind for finding in found] == ["high_anomaly_rate"] * is_said

"""The measures between stand-ins: what a finished step is made into, and what is due."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from probe.actions.step_hooks import StepHooks
from probe.attach.layout import describe_model
from probe.attach.observation.gradient_meters import GradientMeters
from probe.attach.watched_model import WatchedModel
from probe.guard import Guard
from probe.loop.control import SetFeatures
from probe.loop.measure_schedule import MeasureSchedule
from probe.loop.step_measures import StepMeasures
from probe.measure.statistics.statistics import PendingStatistics, TensorStatistics
from probe.measure.update_meter import UpdateMeter
from probe.settings.levels import Features, Settings
from probe.step.late_values import LateValues
from probe.step.losses import StepLoss
from probe.step.open_step import Clipping, FinishedStep, OpenStep


class Reporter:
    """Stands in for an `IncidentReporter`: takes notes."""

    replays = 0

    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []

    def note(self, kind: str, subject: str, message: str, **_: Any) -> None:
        self.notes.append((kind, subject))


class Bench:
    """Measures of a small model, at a level of its own."""

    def __init__(self, **features: int) -> None:
        torch.manual_seed(0)
        root = nn.Linear(3, 2)
        self.model = WatchedModel(root, describe_model(root), None)
        self.guard, self.hooks = Guard(), StepHooks()
        self.root, self.kept, self.released = root, list[int](), list[str]()
        reporter, nothing = cast(Any, Reporter()), dict.fromkeys(Features().periods(), 0)
        self.reporter: Reporter = reporter
        self.schedule = MeasureSchedule(
            Settings(level="basic", overrides={**nothing, "gradients": 1, **features}, overhead_limit=0.0),
            guard=self.guard,
            incidents=reporter,
            releases={"update_ratios": lambda: self.released.append("update_ratios")},
        )
        box: Any = SimpleNamespace(keep=lambda step, captures: self.kept.append(step))
        meters: Any = SimpleNamespace(read_memory=lambda: {"process_rss_bytes": 1.0})
        self.measures = StepMeasures(
            self.model, self.schedule, meters, updates=UpdateMeter(), turns=GradientMeters(),
            hooks=self.hooks, black_box=box, guard=self.guard,
        )  # fmt: skip

    def finished(self, step: int = 0, *, late: bool = False, **opened: Any) -> FinishedStep:
        known = TensorStatistics(np.ones((6, 2)), np.zeros(2, np.bool_), True, 3.0)
        values = LateValues(PendingStatistics(lambda: known), lambda: StepLoss(0.5, 0.5)) if late else None
        gradients = known._replace(total_norm=None) if late else known
        loss = StepLoss(None, None) if late else StepLoss(0.5, 0.5)
        return FinishedStep(OpenStep(**opened), step, gradients, "local", loss, False, late=values)


def test_step_is_its_numbers_and_what_is_due_of_it() -> None:
    bench = Bench(parameter_norms=1, memory=1, clipping=1)
    bench.schedule.begin_step(4)
    clipped = Clipping(3.0, 1.0)
    finished = bench.finished(4, samples=8, clipping=clipped, before_backward_ns=2_000_000_000)
    measured = bench.measures.measure(finished, waits=True)
    assert (measured.step, measured.samples, measured.loss.value, measured.total_norm) == (4, 8, 0.5, 3.0)
    assert measured.scalars.pop("process_rss_bytes") == 1.0 and bench.kept == [4]
    kinds = {
        name: measured.scalars.pop(name) for name in sorted(measured.scalars) if name.startswith("memory_")
    }
    # float32: six weights and two biases; the rest of one byte cannot be.
    assert kinds == {"memory_gradients_bytes": 0, "memory_optimizer_bytes": 0, "memory_parameters_bytes": 32}
    assert measured.scalars == {"grad_norm_clipped": 1.0, "clip_fired": 1.0, "before_backward_s": 2.0}
    norms = [float(parameter.detach().double().norm()) for parameter in bench.root.parameters()]
    assert measured.parameter_norm == pytest.approx(norms) and bench.guard.failures == 0


def test_what_is_not_due_is_not_measured() -> None:
    bench = Bench(memory=10)
    bench.schedule.begin_step(5)
    measured = bench.measures.measure(bench.finished(5), waits=True)
    assert measured.scalars == {} and measured.parameter_norm is None and measured.sampled == {}


@pytest.mark.parametrize(("waits", "norm"), [(True, 3.0), (False, None)])
def test_values_on_their_way_are_waited_for_where_they_have_to_be(waits: bool, norm: float | None) -> None:
    bench = Bench()
    bench.schedule.begin_step(0)
    measured = bench.measures.measure(bench.finished(late=True), waits=waits)
    assert measured.total_norm == norm and (measured.late is None) is waits


def test_whoever_is_called_at_a_measured_step_comes_before_the_rest_of_it() -> None:
    bench = Bench(parameter_norms=1)
    seen: list[Any] = []
    bench.hooks.measured.add(
        lambda finished, measured: seen.append((measured.parameter_norm, list(bench.kept)))
    )
    bench.schedule.begin_step(0)
    bench.measures.measure(bench.finished(), waits=True)
    assert seen == [(None, [])] and bench.kept == [0]


def test_feature_that_fails_is_off_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(parameter_norms=1, memory=1)
    monkeypatch.setattr(bench.model, "parameter_norms", lambda: 1 / 0)
    for step in range(2):
        bench.schedule.begin_step(step)
        measured = bench.measures.measure(bench.finished(step), waits=True)
    assert measured.parameter_norm is None and measured.scalars["process_rss_bytes"] == 1.0
    assert bench.guard.failures == 1


def test_command_lets_go_of_what_is_switched_off_and_says_so_once() -> None:
    bench = Bench(update_ratios=1)
    bench.schedule.mailbox.post(SetFeatures({"update_ratios": 0}))
    bench.schedule.apply_commands(3)
    bench.schedule.begin_step(4)
    assert not bench.schedule.features.update_ratios and bench.released == ["update_ratios"]
    assert bench.reporter.notes == [("level_changed", "basic")]

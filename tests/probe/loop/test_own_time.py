"""No detector of slowness counts what the probe itself takes, on a clock of our own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from armed_training import watched_training, why_not
from followed_kinds import Scaled, ScaledAndClipped
from run_numbers import run_of
from torch import nn

import probe
from probe import guard
from probe.delivery.recorder.hang_watch import HangWatch
from probe.loop import run_beginning, step_measures
from probe.loop.sample_judge import SampleJudge
from probe.loop.training_loop import TrainingLoop
from probe.measure.kernels import hot_binding
from probe.step import step_meters

SLOW_FROM, STEPS = 60, 160
Burn = Callable[["Clock", float], None]


class Clock:
    """Of the wall, and of the training thread; both stand still but where a test says otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_s = self.cpu_s = 0.0
        began = time.time()
        told: Any = {**vars(time), "time": lambda: began + self.wall_s, "perf_counter_ns": self.wall_ns}
        for module in (step_measures, step_meters):
            monkeypatch.setattr(module, "time", SimpleNamespace(**told))
        monkeypatch.setattr(guard, "_wall_ns", self.wall_ns)
        monkeypatch.setattr(guard, "_brief_clock_ns", self.wall_ns)
        monkeypatch.setattr(guard, "_clock_ns", lambda: int(self.cpu_s * 1e9))

    def wall_ns(self) -> int:
        return int(self.wall_s * 1e9)

    def compute(self, seconds: float) -> None:
        self.wall_s += seconds
        self.cpu_s += seconds

    def wait(self, seconds: float) -> None:
        self.wall_s += seconds


def slow_events(
    monkeypatch: pytest.MonkeyPatch, spool: Path, *, own: Burn | None = None, seconds: float = 4.0
) -> set[str]:
    """Kinds of events of a training of 1 s a step; from some step on `own` takes more, or the script."""
    clock = Clock(monkeypatch)
    look = TrainingLoop.look_before_clip

    def dear(loop: TrainingLoop) -> None:
        if own is not None and loop.counter.number >= SLOW_FROM:
            own(clock, seconds)
        look(loop)

    monkeypatch.setattr(TrainingLoop, "look_before_clip", dear)
    never = hot_binding.HotStatus(None, "not in this test")
    monkeypatch.setattr(hot_binding, "status", lambda: never)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with probe.watch(model, optimizer, overhead_limit=0.0, spool=spool):
        for step in range(STEPS):
            clock.compute(1.0 if own is not None or step < SLOW_FROM else 1.0 + seconds)
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return {event.kind for event in run_of(spool).events}


def test_slowness_of_the_script_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "performance_degradation" in slow_events(monkeypatch, tmp_path)


@pytest.mark.parametrize("own", [Clock.compute, Clock.wait])
@pytest.mark.parametrize("seconds", [4.0, 100.0])
def test_slowness_of_ours_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: Burn, seconds: float
) -> None:
    assert "performance_degradation" not in slow_events(monkeypatch, tmp_path, own=own, seconds=seconds)


def test_watch_for_hangs_knows_that_our_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Callable[[], bool]] = []
    during: list[bool] = []
    look, watch = TrainingLoop.look_before_clip, run_beginning.HangWatch

    def made(*given: Any, is_own: Callable[[], bool], **options: Any) -> HangWatch:
        seen.append(is_own)
        return watch(*given, is_own=is_own, **options)

    monkeypatch.setattr(run_beginning, "HangWatch", made)
    monkeypatch.setattr(TrainingLoop, "look_before_clip", lambda loop: (during.append(seen[0]()), look(loop)))
    with watched_training(in_c=False, kind=ScaledAndClipped):
        assert set(during) == {True}
        assert not seen[0]()


@pytest.mark.skipif(hot_binding.status().calls is None, reason=hot_binding.status().reason)
def test_what_steps_in_c_take_of_ours_is_told_to_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    with watched_training(in_c=True, kind=Scaled) as training:
        monkeypatch.setattr(SampleJudge, "note_own", lambda _, seconds: told.append(seconds))
        training.steps(40)
        assert training.is_followed, why_not()
        training.run._tracker._records.take()
    assert len(told) >= 40
    assert all(math.isfinite(seconds) and seconds > 0 for seconds in told)

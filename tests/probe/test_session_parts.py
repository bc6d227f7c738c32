"""A session over stand-ins for its parts: what it asks of them, and that it is built whole or not at all."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from probe import session
from probe.actions.progress_board import ProgressBoard
from probe.actions.watched_session import Session
from probe.delivery.recorder.beside import BesideWriter
from probe.detectors.base import Finding
from probe.guard import Guard
from probe.loop.failed_forward import Share
from probe.loop.session_builder import build_session
from probe.loop.session_parts import SessionParts
from probe.session import Probe
from probe.settings.config import ProbeConfig
from probe.wire import RunStart


class Rules:
    """The rules of a session that has none."""

    def end_pauses(self) -> None: ...

    def close(self, step: int, time: float) -> None: ...


class Tracker:
    """Stands for the tracker of a training that has made seven steps."""

    last_step, next_step = 6, 7
    is_of_this_thread = True
    settings = SimpleNamespace(level="basic")

    def __init__(self) -> None:
        self.optimizers: list[Any] = []
        self.rules, self.logged, self.ended = Rules(), list[dict[str, Any]](), list[str]()

    def owns(self, optimizer: Any) -> bool:
        return optimizer in self.optimizers

    def share_in(self, error: BaseException) -> Share:
        return Share.THREAD

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)

    def judge_waiting(self) -> None:
        self.ended.append("judged")

    def stop(self) -> None:
        self.ended.append("stopped")

    def close(self) -> None:
        self.ended.append("closed")


class Incidents:
    """Stands for who writes the events."""

    def __init__(self) -> None:
        self.reported: list[tuple[Finding, int]] = []

    def report(self, finding: Finding, step: int, time: float, *, stack: Any) -> None:
        self.reported.append((finding, step))

    def close(self, *, step: int, time: float) -> None: ...


class Recorder:
    """Stands for the recorder."""

    is_own_thread, group = False, "a-run"

    def __init__(self) -> None:
        self.beside = BesideWriter()
        self.ends: list[tuple[str, int | None]] = []
        self.folder = Path("run") / "rank-0"

    def flush(self) -> None: ...

    def release(self, watches: Any, taker: Any) -> None: ...

    def close(self, *, outcome: str, last_step: int | None) -> bool:
        self.ends.append((outcome, last_step))
        return True


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(1, 1)


@pytest.fixture
def parts() -> SessionParts:
    made: Any = {"recorder": Recorder(), "incidents": Incidents(), "tracker": Tracker(), "snapshots": None}
    made |= {"progress": ProgressBoard(), "training_values": None}
    made["start"] = RunStart(run="a-run", rank=0, incarnation=1)
    return SessionParts(run="a-run", model="net", name="train.py", **made)


def probe_of(parts: SessionParts, model: nn.Module) -> Probe:
    return Probe.of_parts(parts, model, mode="detect", guard=Guard())


def test_probe_of_parts_is_a_running_session(parts: SessionParts, model: nn.Module) -> None:
    with probe_of(parts, model) as run:
        sessions: list[Session] = list(session.running_sessions())
        assert sessions == [run]
        assert (run.run, run.active, run.watched_model) == ("a-run", True, model)


def test_session_answers_by_its_tracker(parts: SessionParts, model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts.tracker.optimizers.append(optimizer)
    with probe_of(parts, model) as run:
        assert run.optimizers == [optimizer]
        assert run.is_updated_by(optimizer)
        assert run.is_of_this_thread


def test_finding_is_reported_at_the_step_under_way(parts: SessionParts, model: nn.Module) -> None:
    found = Finding(kind="custom", severity="info", subject="s", message="m", value=None, threshold=None)
    with probe_of(parts, model) as run:
        run.record_finding(found)
    assert parts.incidents.reported == [(found, 7)]  # type: ignore[attr-defined]


def test_close_ends_the_parts_once_and_in_order(parts: SessionParts, model: nn.Module) -> None:
    run = probe_of(parts, model)
    run.close()
    run.close()
    assert parts.tracker.ended == ["stopped", "closed"]  # type: ignore[attr-defined]
    assert parts.recorder.ends == [("finished", 6)]  # type: ignore[attr-defined]


def test_closed_session_answers_and_records_nothing(parts: SessionParts, model: nn.Module) -> None:
    run = probe_of(parts, model)
    run.close()
    run.log(loss=1.0)
    assert (run.watched_model, run.optimizers, run.is_of_this_thread) == (None, [], False)
    assert parts.tracker.logged == []  # type: ignore[attr-defined]


def test_session_that_cannot_be_built_leaves_no_thread(tmp_path: Path, model: nn.Module) -> None:
    config = ProbeConfig.resolve({"spool": tmp_path, "connect": ""})
    optimizer: Any = NotAnOptimizer()
    before = threading.active_count()
    with pytest.raises(TypeError, match="no optimizer"):
        build_session(model, optimizer, config, Guard())
    assert threading.active_count() == before


class NotAnOptimizer:
    """Fails when it is asked for what it updates."""

    @property
    def param_groups(self) -> Any:
        raise TypeError("this is no optimizer")

"""Which session hears of a call: asked of stand-ins, by the names that `Session` gives them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from probe.calls.attempts import session_of, tell
from probe.calls.launch.sessions import _is_watched_by
from probe.detectors.base import Finding


@dataclass(eq=False)
class StandIn:
    """A session without a training."""

    watched_model: nn.Module | None = None
    optimizers: list[Optimizer] = field(default_factory=list)
    is_of_this_thread: bool = True
    found: list[Finding] = field(default_factory=list)

    def is_updated_by(self, optimizer: Optimizer) -> bool:
        return any(optimizer is known for known in self.optimizers)

    def record_finding(self, finding: Finding) -> None:
        self.found.append(finding)


def sgd() -> Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


def finding(subject: str, kind: str = "custom") -> Finding:
    return Finding(kind=kind, severity="warning", subject=subject, message="told", value=None, threshold=None)


def test_session_of_an_optimizer_is_the_one_that_it_updates() -> None:
    ours, optimizer = StandIn(), sgd()
    ours.optimizers = [optimizer]
    assert session_of(optimizer, [StandIn(), ours]) is ours


def test_session_of_a_foreign_optimizer_is_none() -> None:
    assert session_of(sgd(), [StandIn(optimizers=[sgd()])]) is None


def test_session_of_none_is_the_only_one_of_this_thread() -> None:
    here = StandIn()
    assert session_of(None, [StandIn(is_of_this_thread=False), here]) is here


def test_session_of_none_is_none_where_two_are_of_this_thread() -> None:
    assert session_of(None, [StandIn(), StandIn()]) is None


def test_tell_writes_to_the_session_and_numbers_what_comes_again() -> None:
    session = StandIn()
    for _ in range(2):
        tell(session, finding("retry"))
    tell(session, finding("retry", kind="recovery"))
    assert [each.subject for each in session.found] == ["retry", "retry 2", "retry 3"]


def test_tell_without_a_session_logs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="probe.actions.recovery"):
        tell(None, finding("retry"))
    assert "nanscope: told" in caplog.text


def test_part_of_a_watched_model_is_watched() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    session = StandIn(watched_model=model)
    assert _is_watched_by(session, model[0])
    assert _is_watched_by(StandIn(watched_model=model[0]), model)


def test_other_models_and_ended_sessions_watch_nothing() -> None:
    assert not _is_watched_by(StandIn(watched_model=nn.Linear(1, 1)), nn.Linear(1, 1))
    assert not _is_watched_by(StandIn(), nn.Linear(1, 1))

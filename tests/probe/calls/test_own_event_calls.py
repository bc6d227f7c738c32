"""`probe.record_event` and `probe.track_error`: to which session they go, and what happens without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from journals import read_journal
from torch import nn

import probe
from probe.calls import own_events


def watch(name: str) -> tuple[nn.Module, probe.Probe]:
    model = nn.Linear(2, 1)
    return model, probe.watch(model, name=name, connect="", quiet=True)


def messages(run: probe.Probe) -> list[str]:
    events = read_journal(Path(os.environ["NANSCOPE_SPOOL"]) / run.run).latest_events
    return [event.message.splitlines()[0] for event in events]


def test_event_goes_to_the_session_of_the_model_else_to_the_newest() -> None:
    model, first = watch("first")
    other, second = watch("second")
    with first, second:
        probe.record_event("of the newest", n=1)
        probe.record_event("of the model", model=model)
        second.close()
        probe.record_event("of who is left")
        assert other is not model
    assert messages(second) == ["of the newest"]
    assert messages(first) == ["of the model", "of who is left"]


def test_error_goes_where_it_is_known() -> None:
    models, (first, second) = zip(watch("first"), watch("second"), strict=True)
    error = ValueError("x")
    with first, second:
        first.track_error(error)
        probe.track_error(error, category="late")
        probe.track_error(KeyError("y"), model=models[1])
    assert messages(second) == ["KeyError: 'y' at step 0"]
    assert len(messages(first)) == 1


def test_without_a_session_it_is_logged_and_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_events, "_told", set())
    probe.record_event("alone", severity="error", x=1)
    probe.track_error(ValueError("bad"))
    probe.record_event("of no session", severity="warning", model=nn.Linear(1, 1))
    found = [(record.levelname, record.message.splitlines()[0]) for record in caplog.records]
    assert ("ERROR", "custom: alone") in found and ("WARNING", "exception: ValueError: bad") in found
    assert sum("no session is running" in message for _, message in found) == 1


def test_switched_off_it_says_nothing_of_sessions(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_events, "_told", set())
    monkeypatch.setenv("NANSCOPE_OFF", "1")
    probe.record_event("alone", severity="warning")
    assert [record.message for record in caplog.records] == ["custom: alone"]

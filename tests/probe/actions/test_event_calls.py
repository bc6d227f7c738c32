"""`run.record_event` and `run.track_error`: what reaches the journal and Python's logging."""

from __future__ import annotations

import copy
import enum
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from journals import Journal, read_journal
from torch import nn

import probe
from probe import wire


class Category(enum.Enum):
    MODEL = "model"


@pytest.fixture
def run() -> Iterator[probe.Probe]:
    model = nn.Linear(2, 1)
    with probe.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), connect="", quiet=True) as session:
        yield session


def events_of(run: probe.Probe, kind: str) -> list[wire.Event]:
    journal: Journal = read_journal(Path(os.environ["NANSCOPE_SPOOL"]) / run.run)
    return [event for event in journal.latest_events if event.kind == kind]


def fail(batch: torch.Tensor) -> None:
    scale = 3
    raise ValueError(f"cannot take {tuple(batch.shape)} times {scale}")


def caught(function: Any, *args: Any) -> Exception:
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 - what a script does
        return error
    raise AssertionError("nothing was raised")


def test_event_arrives_with_severity_and_data(run: probe.Probe) -> None:
    run.record_event("two\nlines", severity="warning", where="batch 3", none=None, nested={"a": [1, 2.5]})
    (event,) = events_of(run, "custom")
    assert (event.severity, event.message, event.subject) == ("warning", "two\nlines", "two\nlines")
    assert event.data == {"where": "batch 3", "none": None, "nested": {"a": [1, 2.5]}}
    assert event.evidence.baseline is None


def test_equal_messages_of_one_step_are_events_with_ids_that_come_again(run: probe.Probe) -> None:
    long = "x" * 300
    for message in ("again", "again", long + "a", long + "b"):
        run.record_event(message)
    events = events_of(run, "custom")
    assert [event.message[-1] for event in events] == ["n", "n", "a", "b"]
    for event, repetition in zip(events, (0, 1, 0, 1), strict=True):
        assert event.id == wire.event_id(
            run=event.run, rank=0, incarnation=event.incarnation, model=event.model, kind="custom",
            subject=event.subject, step=event.step, repetition=repetition,
        )  # fmt: skip


def test_many_equal_messages_of_one_step_are_bounded(run: probe.Probe) -> None:
    for number in range(1100):
        run.record_event("again", number=number)
    events = events_of(run, "custom")
    assert len(events) == 1000 and events[-1].data == {"number": 1099}


@pytest.mark.capability(61)
@pytest.mark.parametrize(
    ("severity", "level"), [("info", logging.INFO), ("warning", logging.WARNING), ("error", logging.ERROR)]
)
def test_event_is_logged_at_the_level_of_its_severity(
    run: probe.Probe, caplog: pytest.LogCaptureFixture, severity: str, level: int
) -> None:
    with caplog.at_level(logging.DEBUG):
        run.record_event("half way", severity=severity)
    assert [(record.levelno, record.message) for record in caplog.records] == [(level, "custom: half way")]


@pytest.mark.parametrize("message", ["", 3, None, "\udcff", "x" * 9000])
def test_message_of_any_kind_is_recorded(run: probe.Probe, message: Any) -> None:
    run.record_event(message)
    (event,) = events_of(run, "custom")
    assert str(message).encode("utf-8", "replace").decode().startswith(event.message)


def test_unknown_severity_is_said_once_and_taken_for_info(
    run: probe.Probe, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        run.record_event("x", severity="loud")
    assert {event.severity for event in events_of(run, "custom")} == {"info"}
    assert sum("severity 'loud' does not exist" in record.message for record in caplog.records) == 1


def test_data_may_be_called_like_the_arguments(run: probe.Probe) -> None:
    run.record_event("x", message="m", model="n", self=1)
    assert events_of(run, "custom")[0].data == {"message": "m", "model": "n", "self": 1}


def test_caught_error_has_stack_locals_category_and_context(run: probe.Probe) -> None:
    try:
        fail(torch.ones(2, 3))
    except ValueError as error:
        run.track_error(error, category=Category.MODEL, context={"batch": 3})
    (event,) = events_of(run, "exception")
    assert (event.severity, event.subject) == ("warning", "ValueError")
    assert event.data == {"category": "model", "context": {"batch": 3}}
    functions = [frame.function for frame in event.stacks.training_loop]
    assert functions[-2:] == ["test_caught_error_has_stack_locals_category_and_context", "fail"]
    assert len(functions) > 4  # and who called the test
    assert "In fail (test_event_calls.py:" in event.message and "scale 3" in event.message
    assert "left the training loop" not in " ".join(event.advice)


def test_same_error_recorded_twice_is_one_event_with_all_that_was_said(run: probe.Probe) -> None:
    error = caught(fail, torch.ones(2))
    run.track_error(error, category="first", context={"a": 1})
    run.track_error(error, severity="error", context={"b": 2})
    run.track_error(error, severity="info")
    (event,) = events_of(run, "exception")
    assert event.severity == "critical"
    assert event.data == {"category": "first", "context": {"b": 2}}


def test_errors_that_follow_each_other_at_one_address_are_events_of_their_own(run: probe.Probe) -> None:
    addresses = set()
    for _ in range(5):
        try:
            fail(torch.ones(2))
        except ValueError as error:
            addresses.add(id(error))
            run.track_error(error)
    assert len(events_of(run, "exception")) == 5


def test_error_that_leaves_the_script_after_it_was_caught_is_one_critical_event() -> None:
    model = nn.Linear(2, 1)
    error = caught(fail, torch.ones(2))
    with pytest.raises(ValueError, match="cannot take"), probe.watch(model, connect="", quiet=True) as run:
        run.track_error(error, category="data")
        raise error
    (event,) = events_of(run, "exception")
    assert (event.severity, event.data) == ("critical", {"category": "data"})


def test_recorded_error_is_not_kept_alive_and_can_be_copied(run: probe.Probe) -> None:
    import weakref

    class Batch:
        pass

    class OwnError(Exception):
        pass

    error = OwnError("x")
    error.batch = Batch()  # type: ignore[attr-defined]
    reference = weakref.ref(error.batch)  # type: ignore[attr-defined]
    run.track_error(error)
    del error
    assert reference() is None
    plain = ValueError("y")
    run.track_error(plain)
    assert copy.deepcopy(plain).args == ("y",)


def test_what_is_no_exception_is_complained_about(run: probe.Probe, caplog: pytest.LogCaptureFixture) -> None:
    run.track_error("oh")  # type: ignore[arg-type]
    assert not events_of(run, "exception") and "takes an exception, got str" in caplog.text


def test_error_that_leaves_nested_regions_is_one_event_of_the_innermost(run: probe.Probe) -> None:
    for _ in range(2):
        with pytest.raises(ValueError), run.debug_context("epoch"), run.debug_context("batch"):
            fail(torch.ones(2))
    events = events_of(run, "exception")
    assert [event.data for event in events] == [{"region": "epoch/batch"}] * 2
    assert all(event.severity == "warning" for event in events)
    assert events[0].stacks.training_loop[-1].function == "fail"


def test_region_without_a_session_of_its_own_records_in_the_newest(run: probe.Probe) -> None:
    with pytest.raises(ValueError), probe.debug_context("validation"):
        fail(torch.ones(2))
    with pytest.raises(StopIteration), probe.debug_context("end of data"):
        next(iter([]))
    assert [event.data for event in events_of(run, "exception")] == [{"region": "validation"}]


def test_error_caught_outside_of_a_region_and_recorded_is_one_event(run: probe.Probe) -> None:
    try:
        with run.debug_context("batch"):
            fail(torch.ones(2))
    except ValueError as error:
        run.track_error(error, context={"step": 3})
    (event,) = events_of(run, "exception")
    assert event.data == {"region": "batch", "context": {"step": 3}}


@pytest.mark.capability(61)
def test_logger_of_the_users_own_gets_the_error_that_ends_the_run(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("mine")
    model = nn.Linear(2, 1)
    with pytest.raises(ValueError), probe.watch(model, connect="", quiet=True, logger=logger) as run:
        run.record_event("begun", severity="warning")
        model(torch.full((1, 2), torch.nan)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        fail(torch.ones(2))
    found = [(record.levelname, record.message) for record in caplog.records if record.name == "mine"]
    assert ("WARNING", "custom: begun") in found
    errors = [message for level, message in found if level == "ERROR"]
    assert any(message.startswith("nonfinite_loss: NaN first at step 0") for message in errors)
    assert any(message.startswith("exception: ValueError: cannot take (2,) times 3") for message in errors)


def test_inert_handle_records_and_raises_nothing(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANSCOPE_OFF", "1")
    run = probe.watch(nn.Linear(2, 1))
    run.record_event("x", severity="loud", y=object())
    run.track_error(ValueError("x"), category=1)
    assert not spool.exists()

"""The watchpoints' section: what it asks for, where errors stand, and what is shown when nobody answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from dash import no_update

from dashboard import ids
from dashboard.ingest.control_desk import ControlDesk, UnreachableError
from dashboard.page.callbacks.watchpoints import section_view
from probe.delivery.control.control_messages import (
    AddWatchpoint,
    Answer,
    Ask,
    AskState,
    RemoveWatchpoint,
    Request,
    Resume,
    TrainerState,
    WatchpointState,
    decode_ask,
    encode_answer,
)
from probe.wire import Answered


class Trainers:
    """A collector with one helper: answers what is asked through a real desk, as two ranks would."""

    def __init__(self) -> None:
        self.desk = ControlDesk()
        self.asked: list[Ask] = []
        self.helpers = 1
        self.problem: str | None = None
        self.state = TrainerState(
            step=12, level="basic", preset=None, overhead_limit=0.02, is_paused=False, watchpoints=[]
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="nanscope-test-trainers")
        self._thread.start()

    def _serve(self) -> None:
        while not self._stopping.wait(0.005):
            for control in self.desk.take_outbox():
                self.asked.append(decode_ask(control.request))
                answer = encode_answer(Answer(problem=self.problem, state=self.state))
                self.desk.note_sent(control.id, self.helpers)
                if self.helpers:
                    answers = [("0-5", answer), ("1-5", None)]
                    self.desk.note_answered(Answered(id=control.id, answers=answers))

    def view(self, trigger: object, *, condition: str = "", action: str = "event") -> tuple[object, ...]:
        return section_view(self.desk, "run", trigger, condition=condition, action=action)

    @property
    def requests(self) -> list[Request]:
        assert all(ask.source == "browser" for ask in self.asked)
        return [ask.request for ask in self.asked]

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(10)
        self.desk.close()


@pytest.fixture
def trainers() -> Iterator[Trainers]:
    made = Trainers()
    yield made
    made.close()


def test_opening_the_section_lists_what_is_watched(trainers: Trainers) -> None:
    one = WatchpointState(name="mine", condition="loss > 5", action="pause", once=True)
    trainers.state = TrainerState(
        step=1234, level="basic", preset=None, overhead_limit=0.02, is_paused=True, watchpoints=[one]
    )
    rows, count, resume_hidden, error, typed = trainers.view(ids.WATCHPOINT_SUMMARY)
    assert (count, resume_hidden, error, typed) == ("1, paused", False, "", no_update)
    for text in (
        "loss > 5",
        "pause the training",
        ", once",
        " (mine)",
        "paused at step 1,234",
        "Remove mine",
    ):
        assert text in repr(rows)
    assert trainers.requests == [AskState()]


def test_condition_that_cannot_be_read_is_told_at_the_field_and_nobody_is_asked(trainers: Trainers) -> None:
    rows, _, _, error, typed = trainers.view(ids.WATCHPOINT_ADD, condition="loss > lss")
    assert "'lss' at character 8" in str(error)
    assert (rows, typed) == (no_update, no_update)
    assert trainers.requests == []


def test_addition_is_sent_and_the_field_is_empty_again(trainers: Trainers) -> None:
    view = trainers.view(ids.WATCHPOINT_CONDITION, condition="when loss > 5", action="bundle")
    assert view[3:] == ("", "")
    assert trainers.requests == [AddWatchpoint(condition="when loss > 5", action="bundle")]


def test_addition_that_the_trainer_refuses_is_told_at_the_field_and_stays_typed(trainers: Trainers) -> None:
    trainers.problem = "no layer or parameter has a name like that"
    view = trainers.view(ids.WATCHPOINT_ADD, condition='grad_norm("x") > 5')
    assert view[3:] == (trainers.problem, no_update)


def test_resume_and_remove_are_sent(trainers: Trainers) -> None:
    trainers.view(ids.WATCHPOINT_RESUME)
    trainers.view({"type": "watchpoint-remove", "name": "mine"})
    assert trainers.requests == [Resume(), RemoveWatchpoint(name="mine")]


def test_run_that_nobody_answers_for_is_said_to_have_ended(trainers: Trainers) -> None:
    trainers.helpers = 0
    rows, count, resume_hidden, _, _ = trainers.view(ids.RUN_SELECT)
    assert "no training of run run is connected" in repr(rows)
    assert (count, resume_hidden) == ("", True)
    assert "No run is shown" in repr(section_view(trainers.desk, None, None, condition="", action="event"))


def test_desk_that_is_closed_lets_go_of_who_waits() -> None:
    desk = ControlDesk()
    threading.Timer(0.1, desk.close).start()
    with pytest.raises(UnreachableError):
        desk.ask("run", AskState(), source="api")
    with pytest.raises(UnreachableError):
        desk.ask("run", AskState(), source="api")

"""The section that changes a run: what it allows, what it asks, and that it deletes what it asked about."""

from __future__ import annotations

from collections.abc import Iterator

import page_runs
import pytest
from dash import no_update
from page_store import PageStore
from test_watchpoints_page import Trainers

from dashboard import ids
from dashboard.page.callbacks.run_actions import DialogView, ask_for_level, dialog_view, section_view
from dashboard.store.protocol import RunMark
from probe.delivery.control.control_messages import ChangeLevel

SCOPE = {"run": "demo-run", "state": "running", "level": "basic"}


@pytest.fixture
def store() -> PageStore:
    filled = PageStore()
    page_runs.fill(filled, steps=range(9))
    return filled


@pytest.fixture
def trainers() -> Iterator[Trainers]:
    started = Trainers()
    yield started
    started.close()


def click(store: PageStore, trigger: str, asked: str | None = None) -> DialogView:
    return dialog_view(store, SCOPE, trigger, asked, spool=None, changed=lambda: None)


def test_running_run_may_change_its_level_and_stays(store: PageStore) -> None:
    view = section_view(store, SCOPE)
    assert (view.level, view.level_disabled, view.set_disabled) == ("basic", False, False)
    assert view.delete_disabled and "still being written" in view.delete_said
    assert "still being written" in click(store, ids.DELETE_ASK).said


@pytest.mark.parametrize(
    ("before", "choice", "shown"),
    [
        (None, None, "advanced"),  # the section is new
        (None, "off", "advanced"),  # of the run that was shown before
        ("basic", "basic", "advanced"),  # the level was set elsewhere
        ("basic", "off", no_update),  # chosen here, not set yet
        ("basic", "advanced", no_update),  # set here
    ],
)
def test_level_that_was_chosen_and_not_set_yet_stays(
    store: PageStore, before: str | None, choice: str | None, shown: object
) -> None:
    scope = {**SCOPE, "level": "advanced", "before": before}
    view = section_view(store, scope, choice)
    assert view.level is shown or view.level == shown
    assert view.level_said == "The level is advanced."


def test_ended_run_may_be_deleted_and_keeps_its_level(store: PageStore) -> None:
    page_runs.end_run(store)
    view = section_view(store, SCOPE)
    assert view.level_disabled and view.set_disabled and "This run has ended" in view.level_said
    assert (view.delete_disabled, view.delete_said) == (False, "")


@pytest.mark.parametrize("data", [None, 3, {"run": "demo-run"}, {**SCOPE, "run": "another"}])
def test_scope_without_a_run_allows_nothing(store: PageStore, data: object) -> None:
    view = section_view(store, data)
    assert view.level_disabled and view.set_disabled and view.delete_disabled


def test_level_is_asked_of_every_rank(store: PageStore, trainers: Trainers) -> None:
    assert "advanced from the next step on" in ask_for_level(store, trainers.desk, SCOPE, "advanced")
    assert trainers.requests == [ChangeLevel(level="advanced")]


def test_level_that_there_is_not_is_asked_of_nobody(store: PageStore, trainers: Trainers) -> None:
    assert "Choose a level" in ask_for_level(store, trainers.desk, SCOPE, "all of it")
    page_runs.end_run(store)
    assert "has ended" in ask_for_level(store, trainers.desk, SCOPE, "basic")
    assert trainers.requests == []


def test_level_that_is_refused_says_why(store: PageStore, trainers: Trainers) -> None:
    trainers.problem = "recording was switched off after a failure"
    assert trainers.problem in ask_for_level(store, trainers.desk, SCOPE, "basic")
    trainers.helpers = 0
    assert "is connected" in ask_for_level(store, trainers.desk, SCOPE, "basic")


def test_run_is_deleted_only_after_the_answer(store: PageStore) -> None:
    page_runs.end_run(store)
    asked = click(store, ids.DELETE_ASK)
    assert (asked.hidden, asked.asked) == (False, "demo-run") and "demo-run" in asked.question
    assert click(store, ids.DELETE_KEEP, "demo-run").hidden and store.removed == []
    assert "is deleted" in click(store, ids.DELETE_CONFIRM, "demo-run").said
    assert store.removed == ["demo-run"]


def test_run_that_was_starred_after_the_question_stays(store: PageStore) -> None:
    page_runs.end_run(store)
    store.run_marks["demo-run"] = RunMark(starred=True)
    assert "starred" in click(store, ids.DELETE_CONFIRM, "demo-run").said
    assert store.removed == []


def test_answer_to_no_question_deletes_nothing(store: PageStore) -> None:
    page_runs.end_run(store)
    assert click(store, ids.DELETE_CONFIRM).hidden and store.removed == []

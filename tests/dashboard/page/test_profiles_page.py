"""The form that asks for a profile: what is asked of the trainers, and what it says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from test_watchpoints_page import Trainers

from dashboard.page.callbacks.profiles import ask_for_profile
from probe.delivery.control.control_messages import Profile


@pytest.fixture
def trainers() -> Iterator[Trainers]:
    started = Trainers()
    yield started
    started.close()


def test_form_asks_every_rank(trainers: Trainers) -> None:
    assert "next 7 steps are profiled" in ask_for_profile(trainers.desk, "run", 7).said
    assert trainers.requests == [Profile(steps=7)]


@pytest.mark.parametrize("steps", [0, 101, None, "5", 2.5, True])
def test_wrong_number_is_told_at_the_field_and_asked_of_nobody(trainers: Trainers, steps: object) -> None:
    assert "1 to 100" in ask_for_profile(trainers.desk, "run", steps).error
    assert trainers.requests == []


def test_refusal_of_the_trainer_is_told(trainers: Trainers) -> None:
    trainers.problem = "a profile is being taken already"
    assert ask_for_profile(trainers.desk, "run", 5).said == "Not profiled: a profile is being taken already."


def test_run_that_nobody_trains_says_so(trainers: Trainers) -> None:
    trainers.helpers = 0
    assert "no training of run run is connected" in ask_for_profile(trainers.desk, "run", 5).said
    assert ask_for_profile(trainers.desk, None, 5).said == "No run is shown."

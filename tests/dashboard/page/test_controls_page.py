"""The controls beside the level: what each one asks of the trainers, and what stands beside it then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import page_runs
import pytest
from dash import no_update
from page_store import PageStore
from test_watchpoints_page import Trainers

from dashboard import ids
from dashboard.ingest.control_desk import TrainerAnswer
from dashboard.page.callbacks.controls import ControlsView, controls_view, outputs_of
from dashboard.page.views import controls as views
from dashboard.page.views.trainer_answers import answer_text
from probe.delivery.control.control_messages import (
    Answer,
    AskState,
    ChangeFeatures,
    ChangeLevel,
    ChangeLimit,
    ChangePreset,
    KeepSnapshot,
    Pause,
    Resume,
    TakeMemorySnapshot,
    TrainerState,
    WriteBundle,
)
from probe.settings.levels import FEATURES, LEVEL_FEATURES, PRESETS

SCOPE = {"run": "demo-run", "state": "running", "level": "basic"}
KNOWN = {"level": "basic", "preset": None, "features": LEVEL_FEATURES["basic"].periods()}


@pytest.fixture
def store() -> PageStore:
    filled = PageStore()
    page_runs.fill(filled, steps=range(9))
    return filled


@pytest.fixture
def trainers() -> Iterator[Trainers]:
    started = Trainers()
    started.state = msgspec.structs.replace(started.state, features=LEVEL_FEATURES["basic"].periods())
    yield started
    started.close()


def click(store: PageStore, trainers: Trainers, act: str | dict[str, str], **form: Any) -> ControlsView:
    trigger = act if isinstance(act, dict) else views.act_id(act)
    form = {"preset": "none", "limit": "", "known": KNOWN} | form
    return controls_view(store, trainers.desk, SCOPE, trigger, **form)


def switch(name: str) -> dict[str, str]:
    return {"type": views.FEATURE, "name": name}


@pytest.mark.parametrize(
    ("act", "form", "request_"),
    [
        ("preset", {"preset": "memory"}, ChangePreset(preset="memory")),
        ("preset", {"preset": "none"}, ChangePreset(preset=None)),
        ("limit", {"limit": 5}, ChangeLimit(overhead_limit=0.05)),
        ("limit", {"limit": 0}, ChangeLimit(overhead_limit=0.0)),
        ("limit", {"limit": ""}, ChangeLimit(overhead_limit=None)),
        ("record", {}, ChangeLevel(level="off")),
        ("record", {"known": {**KNOWN, "level": "off"}}, ChangeLevel(level="basic")),
        ("pause", {}, Pause()),
        ("resume", {}, Resume()),
        ("snapshot", {}, KeepSnapshot()),
        ("bundle", {}, WriteBundle()),
        ("memory_snapshot", {}, TakeMemorySnapshot()),
        (switch("activations"), {}, ChangeFeatures(features={"activations": 0})),
        (switch("histograms"), {}, ChangeFeatures(features={"histograms": 20})),
        (
            switch("activations"),
            {"known": {**KNOWN, "features": {"activations": 0}}},
            ChangeFeatures(features={"activations": None}),
        ),
        (switch("memory"), {}, ChangeFeatures(features={"memory": 0})),
        (switch("__class__"), {}, AskState()),
        (switch("activations"), {"known": "nonsense"}, ChangeFeatures(features={"activations": 2})),
    ],
)
def test_each_control_asks_for_one_thing_and_says_what_came_of_it(
    store: PageStore, trainers: Trainers, act: Any, form: dict[str, Any], request_: Any
) -> None:
    view = click(store, trainers, act, **form)
    assert trainers.requests == [request_]
    assert view.reason.startswith("Level basic, overhead limit 2 % of a step.")
    if request_ != AskState():
        (said,) = view.said.values()
        assert said.endswith(
            "on 1 of 2 ranks. No answer from rank 1 within 3 s: the training is stopped, or busy in C code."
        )


@pytest.mark.parametrize(
    ("act", "form", "said"),
    [
        ("preset", {"preset": "fast"}, "Choose a preset: development"),
        ("preset", {"preset": None}, "Choose a preset: development"),
        ("limit", {"limit": 101}, "from 0 (no limit) to 100"),
        ("limit", {"limit": True}, "from 0 (no limit) to 100"),
        ("limit", {"limit": "5; drop"}, "from 0 (no limit) to 100"),
    ],
)
def test_what_cannot_be_asked_says_what_can_and_changes_nothing(
    store: PageStore, trainers: Trainers, act: str, form: dict[str, Any], said: str
) -> None:
    view = click(store, trainers, act, **form)
    assert said in view.said[act]
    assert trainers.requests == [AskState()]


def test_refusal_stands_beside_its_control(store: PageStore, trainers: Trainers) -> None:
    trainers.problem = "the training is paused already"
    assert (
        "Refused by rank 0: the training is paused already." in click(store, trainers, "pause").said["pause"]
    )


def test_ended_run_is_asked_nothing_and_says_why(store: PageStore, trainers: Trainers) -> None:
    page_runs.end_run(store)
    view = click(store, trainers, "bundle")
    assert (view.is_off, view.reason) == (True, "This run has ended, so these controls are off.")
    assert trainers.requests == []
    outputs = outputs_of(view, views.act_id("bundle"), SCOPE)
    assert outputs[7 + len(views.ACTS) : 7 + 2 * len(views.ACTS)] == [True] * len(views.ACTS)


@pytest.mark.parametrize("data", [None, {"run": "another"}, {**SCOPE, "run": "another"}])
def test_no_run_is_asked_nothing(store: PageStore, trainers: Trainers, data: Any) -> None:
    view = controls_view(store, trainers.desk, data, None, preset="none", limit="", known=None)
    assert (view.is_off, view.reason) == (True, "No run is shown.")


def test_run_that_nobody_answers_for_says_so_and_can_be_asked_again(
    store: PageStore, trainers: Trainers
) -> None:
    trainers.helpers = 0
    view = click(store, trainers, "memory_snapshot")
    assert "no training of run demo-run is connected" in view.said["memory_snapshot"]
    assert not view.is_off


def by_name(outputs: list[Any]) -> dict[str, Any]:
    names = ("reason", "features", "known", "preset", "limit", "preset_off", "limit_off")
    count = len(views.ACTS)
    parts = dict(zip(names, outputs[:7], strict=True))
    for number, kind in enumerate(("said", "off", "label")):
        values = outputs[7 + number * count : 7 + (number + 1) * count]
        parts |= {f"{kind} {act}": value for act, value in zip(views.ACTS, values, strict=True)}
    return parts


def test_level_off_says_why_steps_cannot_be_waited_for_and_offers_to_go_on(
    store: PageStore, trainers: Trainers
) -> None:
    change = page_runs.event(3, kind="level_changed", severity="info", subject="advanced", time=1.0)
    page_runs.add_event(store, change, page_runs.event(5, kind="level_changed", subject="off", time=2.0))
    trainers.state = msgspec.structs.replace(
        trainers.state, level="off", features=LEVEL_FEATURES["off"].periods()
    )
    view = click(store, trainers, "memory_snapshot")
    shown = by_name(outputs_of(view, views.act_id("memory_snapshot"), SCOPE))
    for act in views.ACTS:
        assert shown[f"off {act}"] == (act in views.NEEDS_STEPS)
        assert (shown[f"said {act}"] == views.AT_OFF) == (act in views.NEEDS_STEPS)
    assert shown["label record"] == "Record again, at level advanced"
    again = click(store, trainers, "record", known={**KNOWN, "level": "off"})
    assert trainers.requests[-1] == ChangeLevel(level="advanced") and "level advanced" in again.said["record"]


def test_opening_fills_the_form_and_what_is_chosen_later_stays(store: PageStore, trainers: Trainers) -> None:
    trainers.state = msgspec.structs.replace(trainers.state, preset="memory", overhead_limit=0.1)
    view = controls_view(
        store, trainers.desk, SCOPE, ids.ACTIONS_SUMMARY, preset="none", limit="", known=None
    )
    shown = by_name(outputs_of(view, ids.ACTIONS_SUMMARY, SCOPE))
    assert (shown["preset"], shown["limit"]) == ("memory", 10.0)
    assert shown["known"]["preset"] == "memory" and set(shown["known"]["features"]) == set(FEATURES)
    later = {**SCOPE, "level": "advanced", "before": "basic"}
    shown = by_name(outputs_of(view, ids.ACTIONS_SCOPE, later))
    assert shown["preset"] is no_update and shown["limit"] is no_update
    assert shown["said record"] is no_update, "the level changes by what was answered here"
    assert shown["said bundle"] == "", "what level off forbade"


def test_click_elsewhere_leaves_what_is_chosen_and_not_set_yet(store: PageStore, trainers: Trainers) -> None:
    view = click(store, trainers, "record")
    shown = by_name(outputs_of(view, views.act_id("record"), {**SCOPE, "before": None}))
    assert shown["limit"] is no_update and shown["preset"] == "none", "a level leaves its preset"
    view = click(store, trainers, "pause")
    shown = by_name(outputs_of(view, views.act_id("pause"), {**SCOPE, "before": None}))
    assert shown["limit"] is no_update and shown["preset"] is no_update


def test_every_feature_has_a_switch_and_each_one_can_be_turned_on() -> None:
    state = msgspec.structs.replace(trainer_state(), features=LEVEL_FEATURES["basic"].periods())
    shown = repr(views.feature_switches(state, {"memory": "Accepted."}, is_off=False))
    assert shown.count("role='switch'") == len(FEATURES)
    assert "every 100 steps" in shown and "never" in shown and "Accepted." in shown
    for name in FEATURES:
        for preset in (None, *PRESETS):
            period = views.period_when_on(name, level="basic", preset=preset)
            assert period is None or period > 0


def trainer_state() -> TrainerState:
    return TrainerState(
        step=1, level="basic", preset=None, overhead_limit=0.02, is_paused=False, watchpoints=[]
    )


def test_no_button_is_called_as_a_feature() -> None:
    assert not set(views.ACTS) & set(FEATURES)


def test_probe_that_does_not_tell_its_switches_is_said_to_be_old() -> None:
    assert "too old" in repr(views.feature_switches(trainer_state(), {}, is_off=False))


def answered(*problems: str | None) -> list[TrainerAnswer]:
    return [
        TrainerAnswer(
            rank=rank,
            incarnation=1,
            answer=None if problem is None else Answer(problem=problem or None, state=trainer_state()),
        )
        for rank, problem in enumerate(problems)
    ]


@pytest.mark.parametrize(
    ("problems", "said"),
    [
        ([""], "Done."),
        (["", ""], "Done."),
        (["no."], "Refused: no."),
        (["no", "no", ""], "Done, on 1 of 3 ranks. Refused by ranks 0, 1: no."),
        ([None], "No answer within 3 s: the training is stopped, or busy in C code."),
        ([None] * 7, "No answer from ranks 0, 1, 2, 3, 4 and 2 more within 3 s: the training"),
    ],
)
def test_answers_of_ranks_are_told_apart(problems: list[str | None], said: str) -> None:
    assert answer_text(answered(*problems), done="Done").startswith(said)

"""Episodes: one event for one incident, written rarely, ended, and never thousands of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.detectors import Finding
from probe.detectors.episodes import PATIENCE, EpisodeTracker
from probe.wire import Event, StackFrame, Stacks, event_id


def finding(kind: str = "loss_spike", subject: str = "loss") -> Finding:
    return Finding(
        kind=kind, severity="warning", subject=subject, message=f"{subject}!", value=1.0, threshold=0.5
    )


def maker(step: int, model: str = "net") -> Callable[[Finding], Event]:
    def make(item: Finding) -> Event:
        line = StackFrame(file="train.py", line=step, function="main")
        return Event(
            id=event_id(
                run="r", rank=0, incarnation=1, model=model, kind=item.kind, subject=item.subject, step=step
            ),
            run="r",
            rank=0,
            incarnation=1,
            model=model,
            step=step,
            time=1000.0 + step,
            kind=item.kind,
            severity=item.severity,
            subject=item.subject,
            message=f"{item.message} at {step}",
            stacks=Stacks(training_loop=[line]),
        )

    return make


def feed(tracker: EpisodeTracker, steps: range, bad: set[int], *, model: str = "net") -> list[Event]:
    return [
        event
        for step in steps
        for event in tracker.update(
            step,
            1000.0 + step,
            [finding()] if step in bad else [],
            model=model,
            make_event=maker(step, model),
        )
    ]


def test_episode_starts_with_an_event_at_once() -> None:
    [event] = feed(EpisodeTracker(), range(6), {5})
    assert (event.step, event.count, event.last_step, event.ended) == (5, 1, 5, False)


def test_episode_is_written_at_powers_of_two_and_at_its_end() -> None:
    events = feed(EpisodeTracker(), range(100), set(range(5, 25)))
    assert [(e.count, e.ended) for e in events] == [
        (1, False),
        (2, False),
        (4, False),
        (8, False),
        (16, False),
        (20, True),
    ]
    assert len({event.id for event in events}) == 1
    assert events[-1].last_step == 24


def test_episode_keeps_its_first_state() -> None:
    events = feed(EpisodeTracker(), range(40), {5, 6, 9})
    assert {(e.step, e.time, e.message, e.stacks.training_loop[0].line) for e in events} == {
        (5, 1005.0, "loss! at 5", 5)
    }


def test_episode_builds_one_event_only() -> None:
    calls = []

    def make(item: Finding) -> Event:
        calls.append(item)
        return maker(0)(item)

    tracker = EpisodeTracker()
    for step in range(50):
        tracker.update(step, 0.0, [finding()], model="net", make_event=make)
    assert len(calls) == 1


def severe(tracker: EpisodeTracker, severities: str) -> list[tuple[int, str, int, bool]]:
    """Feed one finding a step: information, warning, critical, or none; what is written."""
    names = {"i": "info", "w": "warning", "c": "critical"}
    written: list[Event] = []
    for step, letter in enumerate(severities):
        items = [replace(finding(), severity=names[letter])] if letter in names else []  # type: ignore[arg-type]
        written += tracker.update(step, 0.0, items, model="net", make_event=maker(step))
    return [(event.step, event.severity, event.count, event.ended) for event in written]


@pytest.mark.parametrize("letter", ["w", "c"])
def test_warning_within_an_episode_that_is_information_begins_one_of_its_own(letter: str) -> None:
    severity = {"w": "warning", "c": "critical"}[letter]
    written = severe(EpisodeTracker(patience=3), f"iii{letter}i{letter}....")
    assert written == [
        (0, "info", 1, False),
        (0, "info", 2, False),
        (0, "info", 3, True),
        (3, severity, 1, False),
        (3, severity, 2, False),
        (3, severity, 3, True),
    ]


def test_long_warning_that_becomes_critical_begins_an_event_of_its_own() -> None:
    begun = [one for one in severe(EpisodeTracker(), f"{'w' * PATIENCE}cwc") if one[2] == 1]
    assert begun == [(0, "warning", 1, False), (PATIENCE, "critical", 1, False)]
    assert [one[:2] for one in severe(EpisodeTracker(), "wwwcwc") if one[2] == 1] == [(0, "warning")]


def test_last_episode_of_a_kind_that_is_full_goes_on_whatever_comes() -> None:
    written = severe(EpisodeTracker(patience=3, max_events_per_kind=1), "iwi")
    assert written == [(0, "info", 1, False), (0, "info", 2, False)]


def test_episode_survives_a_gap_of_its_patience() -> None:
    events = feed(EpisodeTracker(patience=10), range(60), {5, 16})
    assert len({event.id for event in events}) == 1
    assert (events[-1].count, events[-1].last_step, events[-1].ended) == (2, 16, True)


def test_episode_ends_after_a_longer_gap_and_the_next_is_another() -> None:
    events = feed(EpisodeTracker(patience=10), range(60), {5, 17})
    assert [(e.step, e.ended) for e in events] == [(5, False), (5, True), (17, False), (17, True)]
    assert len({event.id for event in events}) == 2


@pytest.mark.parametrize(
    ("bad", "severity", "begins"),
    [
        ([range(5, 65), range(100, 110)], "warning", [5]),
        ([range(5, 65), range(130, 140)], "warning", [5, 130]),
        ([range(5, 505), range(640, 650)], "warning", [5, 640]),
        ([range(5, 65), range(100, 110)], "critical", [5, 100]),
        ([range(5, 15), range(40, 50)], "warning", [5, 40]),
    ],
    ids=["pauses", "is away for longer", "for longer than any", "critical", "short"],
)
def test_warning_that_lasts_is_allowed_as_long_a_pause(
    bad: list[range], severity: Any, begins: list[int]
) -> None:
    tracker, written = EpisodeTracker(patience=10, most_patience=8), list[Event]()
    for step in range(700):
        found = [replace(finding(), severity=severity)] if any(step in steps for steps in bad) else []
        written += tracker.update(step, 0.0, found, model="net", make_event=maker(step))
    assert list(dict.fromkeys(event.step for event in written)) == begins
    assert written[-1].count == sum(map(len, bad)) or len(begins) == 2


def test_other_subject_after_the_patience_is_another_fault() -> None:
    tracker, written = EpisodeTracker(patience=10, most_patience=8), list[Event]()
    subjects = ["first"] * 40 + [""] * 5 + ["second"] * 5 + [""] * 15 + ["second"] * 5
    for step, subject in enumerate(subjects):
        found = [finding(subject=subject)] if subject else []
        written += tracker.update(step, 0.0, found, model="net", make_event=maker(step))
    assert [(event.step, event.count) for event in written if event.ended] == [(0, 45)]
    assert written[-1].step == 65


def test_kinds_that_were_not_judged_are_not_quiet() -> None:
    tracker = EpisodeTracker(patience=3)
    for step in range(40):
        kinds = ["loss_spike"] if step % 10 else ["loss_spike", "dead_units"]
        found = [finding(kind) for kind in kinds]
        tracker.update(step, 0.0, found, model="net", make_event=maker(step), is_whole=step % 10 == 0)
    assert sorted((event.kind, event.count) for event in tracker.close(40, 0.0)) == [
        ("dead_units", 4),
        ("loss_spike", 40),
    ]


def test_episode_end_is_written_when_the_patience_is_over() -> None:
    tracker = EpisodeTracker(patience=10)
    assert [e.ended for e in feed(tracker, range(16), {5})] == [False]
    assert [e.ended for e in feed(tracker, range(16, 17), set())] == [True]


def test_episode_of_another_kind_or_model_is_its_own() -> None:
    tracker = EpisodeTracker()
    both = [finding("loss_spike"), finding("gradient_explosion")]
    events = tracker.update(1, 0.0, both, model="a", make_event=maker(1, "a"))
    events += tracker.update(1, 0.0, both, model="b", make_event=maker(1, "b"))
    assert len({event.id for event in events}) == 4


def test_episode_of_a_silent_model_is_not_ended_by_another() -> None:
    tracker = EpisodeTracker()
    feed(tracker, range(1), {0}, model="a")
    assert feed(tracker, range(50), set(), model="b") == []
    assert [e.model for e in tracker.close(50, 0.0)] == ["a"]


def test_close_ends_what_is_running_once() -> None:
    tracker = EpisodeTracker()
    feed(tracker, range(8), {5, 6, 7})
    assert [(e.count, e.last_step, e.ended) for e in tracker.close(7, 0.0)] == [(3, 7, True)]
    assert tracker.close(7, 0.0) == []


def test_episode_two_findings_of_a_step_count_once() -> None:
    tracker = EpisodeTracker()
    for _ in range(3):
        tracker.update(4, 0.0, [finding(), finding()], model="net", make_event=maker(4))
    assert [e.count for e in tracker.close(4, 0.0)] == [1]


def test_episode_ends_when_steps_go_back() -> None:
    tracker = EpisodeTracker()
    feed(tracker, range(101), {100})
    events = feed(tracker, range(3), {0})
    assert [(e.step, e.ended) for e in events] == [(100, True), (0, False)]


def test_long_episode_is_written_again_after_ten_minutes() -> None:
    tracker = EpisodeTracker()
    times = [step * 100.0 for step in range(70)]
    events = [
        event
        for step, time in enumerate(times)
        for event in tracker.update(step, time, [finding()], model="net", make_event=maker(0))
    ]
    assert [e.count for e in events] == [1, 2, 4, 8, 14, 16, 22, 28, 32, 38, 44, 50, 56, 62, 64, 70]


def test_pathological_run_writes_a_bounded_number_of_events() -> None:
    tracker = EpisodeTracker(patience=1, max_events_per_kind=20)
    events = feed(tracker, range(30_000), set(range(0, 30_000, 3)))
    assert len({event.id for event in events}) == 20
    assert len(events) < 120  # 19 with an end, one at 2, 4, 8, ... and every ten minutes
    [last] = tracker.close(30_000, 0.0)
    assert (last.count, last.ended) == (10_000 - 19, True)


def test_pathological_number_of_models_is_bounded() -> None:
    tracker = EpisodeTracker(max_events_per_kind=5)
    for index in range(100):
        feed(tracker, range(1), {0}, model=f"model{index}")
    assert len(tracker.close(0, 0.0)) == 5


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(
        st.tuples(
            st.sampled_from([[], [], ["a"], ["b"], ["a", "b"]]),
            st.integers(1, 9),
            st.sampled_from([0, 0, 0, 1, -7]),
            st.sampled_from(["net", "net", "other"]),
        ),
        max_size=14,
    ),
    most=st.integers(1, 3),
    longest=st.integers(1, 4),
)
def test_quiet_steps_are_passed_together_as_one_by_one(
    pieces: list[tuple[list[str], int, int, str]], most: int, longest: int
) -> None:
    """Each piece: what one step has, then so many quiet ones, the first of them so much later, of a model."""
    together, single = (
        EpisodeTracker(patience=2, most_patience=longest, max_events_per_kind=most) for _ in range(2)
    )
    written: tuple[list[Event], list[Event]] = ([], [])
    step = 0
    for kinds, quiet, later, model in pieces:
        for tracker, events in zip((together, single), written, strict=True):
            found = [finding(kind) for kind in kinds]
            make = maker(step, model)
            events += tracker.update(step, 1000.0 + step, found, model=model, make_event=make)
        steps = [max(step + 1 + later + at, 0) for at in range(quiet)]
        step = steps[-1] + 1
        one_by_one = [
            [
                event
                for at in steps
                for event in tracker.update(at, 1000.0 + at, [], model=model, make_event=maker(at, model))
            ]
            for tracker in ((single,) if together.pass_quiet(steps, model) else (together, single))
        ]
        written[1].extend(one_by_one[-1])
        if len(one_by_one) == 2:
            written[0].extend(one_by_one[0])
    assert written[0] == written[1]
    assert together.close(step, 0.0) == single.close(step, 0.0)


@pytest.mark.parametrize("option", ["patience", "most_patience", "max_events_per_kind"])
def test_tracker_options_below_one_are_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}=0"):
        EpisodeTracker(**{option: 0})


def test_running_episode_is_brought_up_to_date_once() -> None:
    tracker = EpisodeTracker()
    for step in range(7):
        tracker.update(step, float(step), [finding()], model="net", make_event=maker(step))
    (state,) = tracker.brought_up_to_date(7.0)
    assert (state.count, state.last_step, state.ended) == (7, 6, False)
    assert tracker.brought_up_to_date(8.0) == []


def test_layers_that_join_a_warning_later_are_counted_in_it() -> None:
    tracker, written = EpisodeTracker(), []
    for step in range(12):
        names = ("a", "b", "c")[: 1 + (step >= 5) + (step >= 9)]
        found = replace(finding("zero_gradient", "a"), affected=names)
        make = maker(0)
        written += tracker.update(
            step,
            1000.0 + step,
            [found],
            model="net",
            make_event=lambda item, make=make: msgspec.structs.replace(make(item), propagated_to=["a"]),
        )
    assert len({event.id for event in written}) == 1
    (first, *_, sixth), tenth = written[:4], written[-1]
    assert "By step" not in first.message
    assert sixth.message == f"{first.message}\nBy step 5 it affects 2: `a`, `b`"
    assert tenth.message == f"{first.message}\nBy step 9 it affects 3: `a`, `b`, `c`"
    states = [(event.count, event.propagated_to) for event in written]
    assert states == [
        (1, ["a"]),
        (2, ["a"]),
        (4, ["a"]),
        (6, ["a", "b"]),
        (8, ["a", "b"]),
        (10, ["a", "b", "c"]),
    ]
    (last,) = tracker.close(12, 1012.0)
    assert (last.count, last.propagated_to, last.ended) == (12, ["a", "b", "c"], True)

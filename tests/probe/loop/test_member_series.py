"""What is made again after the one before has stepped joins its run; what is trained together does not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import pytest
from torch import nn

from probe.delivery.recorder.recorder import Recorder
from probe.delivery.recorder.tally import Tally
from probe.loop.member_series import Made, MemberSeries, SeriesOfProcess, end_when_left, watched_above
from probe.wire import MEMBERS_IN_FULL, RunStart


class Recording:
    is_open = True

    def __init__(self) -> None:
        self.tally = Tally()


class Session:
    """So many steps."""

    def __init__(self, steps: int = 0, *, may_step: bool = True) -> None:
        self.steps_made, self.may_step = steps, may_step

    @property
    def steps_counted(self) -> int:
        return self.steps_made


class Told:
    def __init__(self) -> None:
        self.counts: list[int] = []

    def note_for_training(self, kind: str, message: str, *, count: int, **_: Any) -> None:
        assert kind == "level_changed"
        assert f"other {count:,} only" in message
        self.counts.append(count)


def begun(model: nn.Module, session: Session) -> tuple[SeriesOfProcess, MemberSeries]:
    found = SeriesOfProcess()
    made = made_here(found)
    start = RunStart(run="run", rank=0, incarnation=1)
    series = found.begin(made, cast(Recorder, Recording()), start, session, model)
    assert series is not None
    return found, series


def made_here(found: SeriesOfProcess) -> Made:
    """By one line of a script."""
    made = found.made_now(sys._getframe(0))
    return made._replace(line=("train.py", 12))


def test_model_made_after_the_steps_of_the_one_before_is_a_member() -> None:
    found, series = begun(nn.Linear(1, 1), Session(steps=3))
    made = made_here(found)
    assert found.find(nn.Linear(2, 5), made) is series
    assert series.place_for(nn.Linear(2, 5)).start.member == 1


@pytest.mark.parametrize(
    ("before", "since"),
    [(0, 0), (0, 1), (3, 1)],
    ids=["has not stepped", "had not stepped when it was made", "has stepped since"],
)
def test_models_trained_together_are_no_members(before: int, since: int) -> None:
    session = Session(before)
    found, _ = begun(nn.Linear(1, 1), session)
    made = made_here(found)
    session.steps_made += since
    assert found.find(nn.Linear(1, 1), made) is None


def test_only_what_the_line_of_a_series_trains_is_awaited() -> None:
    found, series = begun(nn.Linear(1, 1), Session(steps=3))
    made = made_here(found)
    assert found.await_one_like(nn.Linear(2, 5), [made])
    assert not found.await_one_like(nn.Sequential(), [made])
    assert not found.await_one_like(nn.Linear(2, 5), [made._replace(line=("train.py", 13))])
    cast(Any, series.recorder).is_open = False
    assert not found.await_one_like(nn.Linear(2, 5), [made])


@pytest.mark.parametrize("other", ["line", "class", "closed"])
def test_other_line_class_or_a_closed_run_is_no_series(other: str) -> None:
    found, series = begun(nn.Linear(1, 1), Session(steps=3))
    made = made_here(found)
    model: nn.Module = nn.Sequential(nn.Linear(1, 1)) if other == "class" else nn.Linear(1, 1)
    if other == "line":
        made = made._replace(line=("train.py", 13))
    if other == "closed":
        cast(Any, series.recorder).is_open = False
    assert found.find(model, made) is None


def test_each_of_two_models_made_in_turn_goes_on_in_its_own_series() -> None:
    found, first = begun(nn.Linear(1, 1), Session(steps=2))
    start = RunStart(run="other", rank=0, incarnation=1)
    second = found.begin(made_here(found), cast(Recorder, Recording()), start, Session(2), nn.Linear(1, 1))
    made = [made_here(found), made_here(found)]
    assert found.find(nn.Linear(1, 1), made[0]) is first
    first.enter(Session())
    assert found.find(nn.Linear(1, 1), made[1]) is second


def test_model_that_is_trained_again_keeps_its_number_and_counts_on() -> None:
    model, session = nn.Linear(1, 1), Session(steps=4, may_step=False)
    found, series = begun(model, session)
    assert list(series.give_way()) == [session]
    series.note_end(session, model)
    other = nn.Linear(1, 1)
    series.place_for(other)
    series.enter(Session(steps=2))
    place = found.find(model, made_here(found))
    assert place is series
    assert cast(Any, series.recorder).tally.models == 2
    again = series.place_for(model)
    assert (again.start.member or 0, again.first_step) == (0, 4)


def test_model_that_can_still_step_is_followed_and_refutes_the_series_when_it_does() -> None:
    session = Session(steps=3)
    found, series = begun(nn.Linear(1, 1), session)
    assert list(series.give_way()) == []
    series.place_for(nn.Linear(1, 1))
    series.enter(Session(steps=1))
    assert found.find(nn.Linear(1, 1), made_here(found)) is series
    session.steps_made += 1
    assert found.find(nn.Linear(1, 1), made_here(found)) is None


def watched(found: SeriesOfProcess, **asked: object) -> Made:
    """By `watch`, in one line of a script."""
    made = watched_above(asked)
    assert made is not None
    return made_here(found)._replace(asked=made.asked)


def begun_by_watch(session: Session, **asked: object) -> tuple[SeriesOfProcess, MemberSeries]:
    found = SeriesOfProcess()
    start = RunStart(run="run", rank=0, incarnation=1)
    recorder, model = cast(Recorder, Recording()), nn.Linear(1, 1)
    series = found.begin(watched(found, **asked), recorder, start, session, model)
    assert series is not None
    return found, series


@pytest.mark.parametrize(
    ("asked", "is_member"),
    [({"name": "a"}, True), ({"name": "a", "level": "basic"}, True), ({"name": "b"}, False), ({}, False)],
    ids=["same name", "another level", "another name", "no name"],
)
def test_model_that_is_watched_anew_joins_unless_the_run_is_named_otherwise(
    asked: dict[str, object], is_member: bool
) -> None:
    found, series = begun_by_watch(Session(steps=3), name="a")
    assert (found.find(nn.Linear(1, 1), watched(found, **asked)) is series) is is_member
    # What is found without a call of `watch` is another run.
    assert found.find(nn.Linear(1, 1), made_here(found)) is None


def test_run_that_is_given_an_id_is_a_run_of_its_own() -> None:
    assert watched_above({"run": "mine"}) is None


def test_run_whose_model_is_gone_ends_after_a_while_unless_another_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr("probe.loop.member_series.time.monotonic", lambda: clock[0])
    waiting: list[Callable[[], None]] = []
    ends: list[bool] = []

    def gone(series: MemberSeries) -> None:
        recorder = cast(Any, series.recorder)
        recorder.close_soon = waiting.append
        end_when_left(recorder, series, lambda *, is_final: ends.append(is_final))

    found, series = begun_by_watch(Session(steps=3))
    gone(series)
    waiting.pop()()
    clock[0] += 1.0
    assert found.find(nn.Linear(1, 1), watched(found)) is series
    waiting.pop()()
    assert (ends, waiting) == ([False, False], [])
    gone(series)
    clock[0] += 3.0
    waiting.pop()()
    assert (ends[2:], waiting) == ([True], [])
    assert found.find(nn.Linear(1, 1), watched(found)) is None
    # That of a script which is launched ends with its process.
    _, launched = begun(nn.Linear(1, 1), Session(steps=3))
    gone(launched)
    clock[0] += 3.0
    waiting.pop()()
    assert (ends[3:], waiting) == ([False], [])


def test_member_is_known_by_another_line_but_not_under_another_name() -> None:
    model = nn.Linear(1, 1)
    found = SeriesOfProcess()
    start = RunStart(run="run", rank=0, incarnation=1)
    recorder = cast(Recorder, Recording())
    series = found.begin(watched(found, name="a"), recorder, start, Session(steps=3), model)
    later = watched(found, name="a")._replace(line=("train.py", 40))
    assert found.find(model, later) is series
    assert found.find(nn.Linear(1, 1), later) is None
    assert found.find(model, watched(found, name="b")) is None


def test_model_that_joins_one_run_keeps_no_other_run_going(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("probe.loop.member_series.time.monotonic", lambda: clock[0])
    found, model, start = SeriesOfProcess(), nn.Linear(1, 1), RunStart(run="run", rank=0, incarnation=1)
    first, second = (
        found.begin(watched(found), cast(Recorder, Recording()), start, Session(steps=3), own)
        for own in (model, nn.Linear(1, 1))
    )
    assert first is not None and second is not None
    clock[0] += 3.0
    assert found.find(model, watched(found)) is first
    assert second.is_left(since=100.0) and not first.is_left(since=100.0)


def test_more_models_than_are_kept_are_told_and_counted_in_few_events() -> None:
    _, series = begun(nn.Linear(1, 1), Session(steps=3))
    told = Told()
    for _ in range(MEMBERS_IN_FULL + 499):
        series.place_for(nn.Linear(1, 1))
        series.tell_of_cap(cast(Any, told))
    assert told.counts[:3] == [1, 2, 3]
    assert told.counts[-1] >= 475
    assert len(told.counts) < 120

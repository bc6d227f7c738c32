"""What the training thread does about news while C follows the steps, between stand-ins."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from probe.loop.news_watch import Lookout, NewsWatch


class Judge:
    """Follows memory; is in the middle of a series of looks as long as told so."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.samples: list[tuple[int, object]] = []
        self.wants_memory = self.is_looking = False
        self.takes_s = 0.0
        self.memory_wait_ns = math.inf

    @property
    def is_looking_at_memory(self) -> bool:
        return self.is_looking

    def note_memory(self, step: int, sample: object) -> None:
        self.samples.append((step, sample))

    def follow_memory(self, step: int) -> bool:
        self.steps.append(step)
        self.wants_memory = False
        ends_s = time.thread_time() + self.takes_s
        while time.thread_time() < ends_s:
            pass
        return self.is_looking


class Mark(SimpleNamespace):
    """Of a loop; its stack may be wanted."""

    def take(self, stack: object) -> None:
        self.stack, self.wanted = stack, False


class Parts:
    """What both are given."""

    def __init__(self, *, period: int = 1) -> None:
        self.judge, self.mark = Judge(), Mark(wanted=False, stack=None)
        self.recorder: Any = SimpleNamespace(memory=None)
        self.told: list[str] = []
        schedule: Any = SimpleNamespace(period=lambda feature: period)
        fast: Any = SimpleNamespace(
            tell_news=lambda: self.told.append("news"), ask_for_a_look=lambda: self.told.append("look")
        )
        self.queue: Any = SimpleNamespace(has_suspicion=False)
        judge: Any = self.judge
        self.last_step: int | None = 6
        self.lookout = Lookout(judge, schedule, self.mark)  # type: ignore[arg-type]
        self.watch = NewsWatch(
            self.queue,
            fast,
            judge,
            self.recorder,
            self.lookout,
            loss_bound=SimpleNamespace(is_in_doubt=False),  # type: ignore[arg-type]
            last_step=lambda: self.last_step,
        )


def test_nothing_new_is_told_to_nobody() -> None:
    parts = Parts()
    assert (parts.watch.look(), parts.told) == ([], [])


@pytest.mark.parametrize("what", ["memory", "mark"])
def test_memory_to_be_followed_and_the_mark_are_news_once(what: str) -> None:
    parts = Parts()
    if what == "memory":
        parts.judge.wants_memory = True
    else:
        parts.mark.wanted = True
    parts.watch.look()
    parts.lookout.look_about(7)
    parts.watch.look()
    assert (parts.told, parts.judge.steps) == (["news"], [7])


def test_mark_of_the_same_lines_is_renewed_every_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is wanted each second; where C sees that other lines lead to a step, it is renewed at once."""
    parts, now_s = Parts(), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    renewed = []
    for second in range(20):
        now_s, parts.mark.wanted = 100.0 + second, True
        if second == 12:
            parts.lookout.note_other_lines()
        parts.watch.look()
        if parts.told:
            parts.told.clear()
            parts.lookout.look_about(second)
            renewed.append(second)
    assert renewed == [0, 5, 10, 12, 17]


def test_sample_of_memory_is_judged_at_once_and_is_no_news() -> None:
    """The training thread has nothing to do for it, unless something is found."""
    parts = Parts()
    parts.recorder.memory = sample = object()
    parts.watch.look()
    parts.watch.look()
    assert (parts.told, parts.judge.samples) == ([], [(6, sample)])


@pytest.mark.parametrize("last_step", [None, 6])
def test_sample_without_a_step_since_the_one_before_is_not_judged(last_step: int | None) -> None:
    parts = Parts()
    parts.recorder.memory = object()
    parts.watch.look()
    parts.last_step, parts.recorder.memory = last_step, object()
    parts.watch.look()
    assert [step for step, _ in parts.judge.samples] == [6]
    parts.last_step = 2  # steps have restarted
    parts.watch.look()
    assert [step for step, _ in parts.judge.samples] == [6, 2]


def test_series_of_looks_that_was_begun_in_the_slow_way_goes_on_when_c_follows() -> None:
    """Not only when memory is read again, up to a second later: short trainings have ended by then."""
    parts = Parts()
    parts.judge.is_looking = True
    parts.watch.look()
    assert parts.told == ["news"]
    parts.judge.is_looking = False
    parts.lookout.look_about(7)
    parts.watch.look()
    assert parts.told == ["news"]


def test_suspicion_has_the_next_step_go_the_slow_way() -> None:
    parts = Parts()
    parts.queue.has_suspicion = True
    parts.watch.look()
    assert parts.told == ["look"]


def test_memory_that_is_not_measured_is_not_followed() -> None:
    parts = Parts(period=0)
    parts.recorder.memory, parts.judge.wants_memory, parts.judge.is_looking = object(), True, True
    parts.watch.look()
    parts.lookout.look_about(7)
    assert (parts.told, parts.judge.steps, parts.judge.samples) == ([], [], [])


def test_series_of_looks_goes_on_by_what_a_look_takes() -> None:
    parts = Parts()
    parts.judge.is_looking, parts.judge.takes_s = True, 0.032
    parts.lookout.look_about(6)  # what the first looks may take is used up
    parts.judge.takes_s = 0.002
    parts.judge.wants_memory = True  # a reading, which comes with a look
    before_s = time.monotonic()
    again_ns = parts.lookout.look_about(7)
    # At two per cent of the time, the next one comes fifty times as long after it; C calls back by itself.
    assert again_ns / 1e9 == pytest.approx(parts.lookout.next_look_s)
    assert parts.lookout.next_look_s >= before_s + 0.1
    parts.watch.look()
    assert parts.told == []
    parts.lookout.next_look_s = time.monotonic() - 0.001
    parts.watch.look()
    parts.judge.is_looking = False
    assert parts.lookout.look_about(8) == 0
    assert (parts.told, parts.lookout.next_look_s) == (["news"], math.inf)


def test_first_looks_go_on_at_once_until_they_have_taken_30_ms() -> None:
    """A training of a second is over before the share of the time allows one to be compared."""
    parts = Parts()
    parts.judge.is_looking, parts.judge.takes_s = True, 0.012
    waits_s = []
    for step in range(5):
        again_ns = parts.lookout.look_about(step)
        waits_s.append((again_ns - time.monotonic_ns()) / 1e9)
    assert max(waits_s[:2]) <= 0 and min(waits_s[2:]) > 0.3


@pytest.mark.parametrize(("period", "is_due"), [(1, True), (0, False)])
def test_what_is_followed_in_memory_has_its_time_though_there_is_no_series(period: int, is_due: bool) -> None:
    parts = Parts(period=period)
    assert parts.lookout.next_ns == parts.lookout.look_about(6) == 0
    parts.judge.memory_wait_ns = 5e9
    before_ns = time.monotonic_ns()
    for next_ns in (parts.lookout.next_ns, parts.lookout.look_about(7)):
        assert (next_ns >= before_ns + 5e9) if is_due else next_ns == 0

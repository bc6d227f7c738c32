"""The judge of samples: whichever thread judges, an event shows the line of the training loop, or none."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from probe.detectors.base import Finding
from probe.guard import Guard
from probe.incidents.verdict import NOTHING_FOUND
from probe.loop.sample_judge import SampleJudge
from probe.threads.stacks import RawFrame, capture_stack, format_loop_stack, is_own_thread, raw_stack

FOUND = Finding(
    kind="loss_plateau", severity="warning", subject="loss", message="", value=1.0, threshold=None
)


def on_our_thread(call: Callable[[], Any]) -> None:
    """Call on a thread whose outermost function is the probe's, as the recorder's is."""
    guard = Guard()
    thread = threading.Thread(target=guard.run, args=("part", call))
    thread.start()
    thread.join(20)
    assert guard.failures == 0


def on_a_users_thread(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=lambda: call())
    thread.start()
    thread.join(20)


@pytest.fixture
def judged() -> tuple[SampleJudge, list[Sequence[RawFrame]]]:
    """A judge that finds something in every sample, and the stacks that it reports."""
    stacks: list[Sequence[RawFrame]] = []
    rate = SimpleNamespace(unjudged_from=None, newest=3, note=lambda step: None, again=lambda: [FOUND])
    bank = SimpleNamespace(anomaly_rate=rate, has_news=False, observe=lambda sample: [FOUND])

    def report(findings: Any, step: int, time: float, *, stack: Sequence[RawFrame], **how: Any) -> Any:
        stacks.append(stack)
        return NOTHING_FOUND

    incidents = SimpleNamespace(lock=nullcontext(), report_sampled=report)
    return SampleJudge(bank, incidents, lambda seconds: 1.0), stacks  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def samples_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(step=3, time=1.0)
    monkeypatch.setattr("probe.loop.sample_judge.build_sample", lambda measured, **how: made)


MEASURED: Any = SimpleNamespace(time=1.0, is_quiet=True)


def functions(stack: Sequence[RawFrame]) -> list[str]:
    return [frame.function for frame in format_loop_stack(stack)]


def test_recorders_thread_shows_the_loop_as_last_seen_and_none_before(
    judged: tuple[SampleJudge, list[Sequence[RawFrame]]],
) -> None:
    judge, stacks = judged
    on_our_thread(lambda: judge.take(MEASURED))
    judge.take(MEASURED)
    on_our_thread(lambda: judge.note_alarms([1]))
    before, on_this, later = map(functions, stacks)
    assert before == []
    assert on_this[-1] == later[-1] == "test_recorders_thread_shows_the_loop_as_last_seen_and_none_before"


def test_stack_that_is_given_with_a_sample_counts_from_there_on(
    judged: tuple[SampleJudge, list[Sequence[RawFrame]]],
) -> None:
    judge, stacks = judged
    given: list[RawFrame] = []
    on_a_users_thread(lambda: given.extend(raw_stack(sys._getframe(), limit=8)))
    on_our_thread(lambda: judge.take(MEASURED, given))
    on_our_thread(lambda: judge.note_alarms([2]))
    assert [list(stack) for stack in stacks] == [given, given]


def test_only_threads_of_the_probe_have_no_stack() -> None:
    taken: dict[str, Any] = {}
    on_our_thread(lambda: taken.update(ours=capture_stack()))
    on_a_users_thread(lambda: taken.update(users=capture_stack()))
    assert taken["ours"] == []
    assert taken["users"][-1].file == __file__
    assert not is_own_thread(())
    assert capture_stack()[-1].function == "test_only_threads_of_the_probe_have_no_stack"

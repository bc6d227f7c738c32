"""What a signal's handler raises in code that C calls leaves the script's own call; training goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch
from armed_training import ARMED_AT, Training, calls_state, watched_training, why_not

import probe
from probe.attach import module_call
from probe.attach.observation.module_calls import CallObserver, ModuleCalls, module_calls
from probe.attach.observation.observer import ModuleObserver
from probe.delivery.journal.journal_reader import read_stream
from probe.loop import fast_path
from probe.loop.followed_training import FollowedTraining
from probe.loop.reach_look import ReachLook
from probe.measure.kernels import hot_binding
from probe.step.phase_times import PhaseTimes
from probe.threads import unnoticed
from probe.wire import Frame, decode_record

pytestmark = [
    pytest.mark.skipif(hot_binding.status().calls is None, reason=hot_binding.status().reason),
    pytest.mark.usefixtures("nothing_switched_off", "one_thread"),
]
PLACES = ("_note_stack", "_glance", "_observe", "end_forward", "_add_more", "_on_news")
STEPS = 130
"""Within so many steps each of them is called; a training that was given back is followed again."""


class Strikes:
    """Signals that strike in the middle of our code, and what the script has of them."""

    def __init__(self) -> None:
        self.due, self.caught = "", 0
        self.error: type[BaseException] = TimeoutError
        self.raised: list[str] = []

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.raised.append(self.due)
        self.due = ""
        raise self.error("the step takes too long")

    def strike_in(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same, and a signal in the middle of it where it is due, if C follows steps."""

        def struck(*given: Any, **named: Any) -> Any:
            result = function(*given, **named)
            if self.due == name and calls_state().armed:
                signal.raise_signal(signal.SIGUSR1)
            return result

        return struck

    def strike_at(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same where Python follows the step, before it or behind it."""

        def struck(*given: Any, **named: Any) -> Any:
            if self.due == f"before {name}":
                signal.raise_signal(signal.SIGUSR1)
            result = function(*given, **named)
            if self.due == f"behind {name}":
                signal.raise_signal(signal.SIGUSR1)
            return result

        return struck

    def train(self, training: Training, count: int) -> None:
        """Steps, of which some are broken off."""
        for _ in range(count):
            try:
                training.step()
            except TimeoutError:
                self.caught += 1


@contextmanager
def handled(number: int, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.fixture
def strikes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Strikes]:
    strikes = Strikes()
    # Each time is waited for as the first one.
    monkeypatch.setattr(fast_path, "_LONGEST_WAIT", fast_path.ARMED_AFTER)
    for name in PLACES:
        monkeypatch.setattr(FollowedTraining, name, strikes.strike_in(name, getattr(FollowedTraining, name)))
    with handled(signal.SIGUSR1, strikes.handle):
        yield strikes


def frames_of(training: Training) -> list[Frame]:
    recorder = training.run._recorder
    assert recorder is not None
    records = [decode_record(data) for _, data in read_stream(recorder.folder, "metrics")]
    return [record for record in records if isinstance(record, Frame)]


def follow_again(strikes: Strikes, training: Training) -> None:
    for _ in range(STEPS):
        strikes.train(training, 1)
        if training.is_followed:
            return
    raise AssertionError(why_not())


def strike(strikes: Strikes, training: Training, name: str) -> None:
    """Train until the signal has struck there."""
    strikes.due = name
    fast = training.run._tracker.fast  # type: ignore[union-attr]
    for _ in range(STEPS):
        if name == "_on_news":
            fast.tell_news()
        strikes.train(training, 1)
        if not strikes.due:
            return
    raise AssertionError(f"C has not called {name}")


def test_script_has_what_a_handler_raises_in_code_that_c_calls(strikes: Strikes) -> None:
    with watched_training(in_c=True) as training:
        for at, name in enumerate(PLACES):
            strike(strikes, training, name)
            assert strikes.raised == [*PLACES[: at + 1]]
            assert strikes.caught == at + 1, f"{name}: swallowed"
            before = int(calls_state().step)
            follow_again(strikes, training)
            strikes.train(training, 2)
            assert int(calls_state().step) > before
    steps = [frame.step for frame in frames_of(training)]
    assert steps == sorted(set(steps)) and len(steps) > len(PLACES) + ARMED_AT


SLOW_PLACES: list[tuple[Any, str]] = [
    (PhaseTimes, "begin_forward"),
    (module_call, "tell_dynamo_of_call"),
    (module_call.ModuleCall, "put_back"),
]


def test_nothing_stays_half_done_where_a_handler_raises_in_the_slow_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {name: torch.nn.Module.__dict__[name] for name in ("__call__", "_call_impl")}
    monkeypatch.setattr(fast_path, "_LONGEST_WAIT", fast_path.ARMED_AFTER)
    strikes = Strikes()
    for owner, name in SLOW_PLACES:
        monkeypatch.setattr(owner, name, strikes.strike_at(name, getattr(owner, name)))
    expected = [f"{when} {name}" for _, name in SLOW_PLACES for when in ("before", "behind")]
    with handled(signal.SIGUSR1, strikes.handle), watched_training(in_c=True) as training:
        for due in expected:
            strikes.due = due
            for _ in range(10 * STEPS):
                # Module calls are observed now and then, and roots looked for.
                training.run._tracker.fast.ask_for_a_look()  # type: ignore[union-attr]
                strikes.train(training, 1)
                if not strikes.due:
                    break
            follow_again(strikes, training)
    assert strikes.raised == expected and strikes.caught == len(expected)
    assert {name: torch.nn.Module.__dict__[name] for name in before} == before


def test_observation_is_over_where_a_handler_raises_as_it_ends(
    monkeypatch: pytest.MonkeyPatch, strikes: Strikes
) -> None:
    """At the very call that ends it; then it was its own next observer, and called itself for ever."""
    end, struck = ModuleCalls.end, set[type]()

    def struck_end(calls: ModuleCalls, observer: CallObserver) -> None:
        if observer in calls._observers and type(observer) not in struck:
            struck.add(type(observer))
            signal.raise_signal(signal.SIGUSR1)
        end(calls, observer)

    monkeypatch.setattr(ModuleCalls, "end", struck_end)
    # One part never gets a gradient: that has the forwards of a step looked at.
    model = torch.nn.ModuleList([torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)])
    model.forward = lambda inputs: model[0](inputs)  # type: ignore[method-assign]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, connect="", quiet=True, overhead_limit=0.0):
        for _ in range(40):
            try:
                model(torch.ones(1, 2)).sum().backward()
            except TimeoutError:
                strikes.caught += 1
            assert not module_calls.is_installed
            optimizer.step()
    assert struck == {ModuleObserver, ReachLook} and strikes.caught == len(struck)


def test_block_that_a_handler_breaks_off_as_it_begins_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Struck(set[int]):
        def add(self, thread: int) -> None:
            super().add(thread)
            raise TimeoutError

    monkeypatch.setattr(unnoticed, "_replaying", Struck())
    with pytest.raises(TimeoutError), unnoticed.unnoticed():
        pass
    assert not unnoticed.is_replaying()


def test_ctrl_c_is_none_of_our_failures(strikes: Strikes, monkeypatch: pytest.MonkeyPatch) -> None:
    with watched_training(in_c=True) as training:
        monkeypatch.setattr(strikes, "error", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            strike(strikes, training, "_on_news")
        follow_again(strikes, training)

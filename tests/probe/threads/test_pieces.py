"""The probe's thread gives Python's lock away after a third of a millisecond; a script's never waits."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from probe.threads import pieces


class Thread:
    """CPU time that passes by work alone, and how often the thread has slept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cpu_ns, self.sleeps = 10**9, 0
        monkeypatch.setattr(pieces.time, "thread_time_ns", lambda: self.cpu_ns)
        monkeypatch.setattr(pieces.time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.sleeps += 1

    def work(self, each_ns: int, times: int) -> int:
        """Return how often others have come first."""
        before = self.sleeps
        for _ in range(times):
            self.cpu_ns += each_ns
            pieces.give_way()
        return self.sleeps - before


def on_a_thread(function: Callable[[], None]) -> None:
    """What is known of a thread goes with it."""
    failures: list[AssertionError] = []

    def call() -> None:
        try:
            function()
        except AssertionError as error:
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def test_own_thread_gives_way_after_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = Thread(monkeypatch)

    def work() -> None:
        pieces.work_in_pieces()
        pieces.give_way()
        assert thread.work(100_000, times=30) == 10
        assert thread.work(900_000, times=5) == 5
        assert thread.work(1_000, times=200) == 0

    on_a_thread(work)


def test_thread_of_the_script_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = Thread(monkeypatch)

    def work() -> None:
        assert thread.work(5_000_000, times=20) == 0

    on_a_thread(work)


class Lull:
    """A stand-in: on as long as the test says so."""

    is_on, beats = True, 0

    def call_at_next(self, ring: Callable[[], None] | None) -> None:
        """Nobody waits here."""


def test_own_thread_works_on_in_a_lull_and_gives_way_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, lull = Thread(monkeypatch), Lull()
    monkeypatch.setattr(pieces.process, "lull", lull)

    def work() -> None:
        pieces.work_in_pieces()
        pieces.give_way()
        assert thread.work(100_000, times=24) == 2
        assert thread.work(100_000, times=11) == 0
        lull.is_on = False
        assert thread.work(1_000, times=1) == 1

    on_a_thread(work)

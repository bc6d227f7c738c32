"""`Guard`: its clocks, and that a failure goes no further."""

import pytest

from probe import guard as guard_module
from probe.guard import Guard


class Clock:
    """Stands still unless told otherwise."""

    def __init__(self) -> None:
        self.ns = 0

    def now(self) -> int:
        return self.ns

    def work(self, ns: int) -> str:
        self.ns += ns
        return "done"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(guard_module, "_clock_ns", clock.now)
    monkeypatch.setattr(guard_module, "_brief_clock_ns", clock.now)
    return clock


@pytest.mark.parametrize("way", ["run", "run_brief"])
def test_guard_adds_up_the_time_of_its_calls(clock: Clock, way: str) -> None:
    guard = Guard()
    for ns in (300, 20):
        assert getattr(guard, way)("part", clock.work, ns) == "done"
        clock.work(1_000_000)
    assert guard.spent_ns == 320


def test_guard_takes_an_interruption_of_a_brief_call_for_no_work_of_its_own(clock: Clock) -> None:
    guard = Guard()
    guard.run_brief("part", clock.work, 50_000_000)
    guard.run("part", clock.work, 7)
    assert guard.spent_ns == 200_007


@pytest.mark.parametrize("way", ["run", "run_brief"])
def test_guard_counts_a_call_inside_a_call_once(clock: Clock, way: str) -> None:
    guard = Guard()

    def outer() -> None:
        clock.work(10)
        guard.run_brief("inner", clock.work, 5)
        guard.run("inner", clock.work, 3)

    getattr(guard, way)("outer", outer)
    assert guard.spent_ns == 18


def test_guard_knows_the_time_of_the_call_under_way(clock: Clock) -> None:
    guard, seen = Guard(), []

    def outer() -> None:
        clock.work(10)
        seen.append(guard.spent_so_far_ns())

    guard.run("part", outer)
    clock.work(99)
    assert seen == [10] and guard.spent_so_far_ns() == 10


@pytest.mark.parametrize("way", ["run", "run_brief"])
def test_guard_switches_off_a_part_that_failed_and_no_other(
    clock: Clock, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard()
    assert getattr(guard, way)("bad", clock.work, None) is None
    assert getattr(guard, way)("bad", clock.work, 1) is None
    assert getattr(guard, way)("good", clock.work, 1) == "done"
    assert guard.failures == 1
    assert [record.message for record in caplog.records] == [
        "nanscope: bad failed and is switched off for this run; training goes on"
    ]


def test_outcome_is_what_a_function_returned_or_raised() -> None:
    assert guard_module.outcome_of(int, "7") == (7, None)
    value, error = guard_module.outcome_of(int, "x")
    assert value is None
    assert isinstance(error, ValueError)


def test_outcome_lets_an_interruption_through() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard_module.outcome_of(interrupted)
